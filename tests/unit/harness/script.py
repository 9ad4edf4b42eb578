"""Histories for the checker, written down as sentences: who sent, received, deleted what, and how
each call ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.harness import ledger as L  # noqa: N812  (every event class is used)
from tests.harness.checker import Verdict, check
from tests.harness.ledger import Key

MS = 1_000_000
LEASE_MS = 30_000


@dataclass
class Script:
    """Writes a history down as a sentence: every step takes a millisecond unless it says more."""

    is_fifo: bool = False
    at_ms: int = 0
    events: list[L.AnyEvent] = field(default_factory=list)
    queue: str = "q"
    calls: int = 0
    log: str = ""

    def tick(self, ms: int = 1) -> int:
        self.at_ms += ms
        return self.at_ms * MS

    def invoke(self, seq: int, *, group: str = "g") -> None:
        grouping = (group, seq, f"dedup-{seq}") if self.is_fifo else ("", 0, "")
        self.events.append(L.Invoke(self.tick(), Key("p", seq), self.queue, *grouping))

    def ok(self, seq: int, message_id: str | None = None, *, place: int = -1) -> None:
        self.events.append(L.Ok(self.tick(), Key("p", seq), message_id or f"m{seq}", place))

    def fail(self, seq: int) -> None:
        self.events.append(L.Fail(self.tick(), Key("p", seq), "refused"))

    def info(self, seq: int) -> None:
        self.events.append(L.Info(self.tick(), Key("p", seq), "reset"))

    def send(self, *seqs: int) -> None:
        for seq in seqs:
            self.invoke(seq)
            self.ok(seq)

    def receive(
        self,
        *seqs: int,
        count: int = 1,
        message_id: str | None = None,
        lease_ms: int = LEASE_MS,
        wait_ms: int = 1,
        stands_at: int = -1,
    ) -> list[str]:
        """One answer with these messages; gives their receipts."""
        invoked_at, at = self.tick(), self.tick(wait_ms)
        self.calls += 1
        call = f"c{self.calls}"
        receipts = []
        for place, seq in enumerate(seqs):
            receipt = f"{call}-{seq}"
            self.events.append(
                L.Recv(
                    at,
                    invoked_at,
                    call,
                    place,
                    self.queue,
                    message_id or f"m{seq}",
                    receipt,
                    count,
                    lease_ms,
                    Key("p", seq),
                    "g" if self.is_fifo else "",
                    seq if self.is_fifo else 0,
                    stands_at,
                )
            )
            receipts.append(receipt)
        return receipts

    def lost_receive(self) -> None:
        invoked_at = self.tick()
        self.events.append(L.RecvInfo(self.tick(), invoked_at, self.queue, 10))

    def unclosed_receive(self) -> None:
        self.calls += 1
        self.events.append(L.RecvInvoke(self.tick(), f"c{self.calls}", self.queue, 10))

    def refused_receive(self) -> None:
        self.unclosed_receive()
        self.events.append(L.RecvFail(self.tick(), f"c{self.calls}"))

    def empty_receive(self) -> None:
        invoked_at = self.tick()
        self.calls += 1
        call = f"c{self.calls}"
        self.events.append(L.RecvInvoke(invoked_at, call, self.queue, 10))
        self.events.append(L.RecvNone(self.tick(), invoked_at, self.queue, call))

    def delete(self, *receipts: str, end: str = "ok") -> None:
        ends: dict[str, Callable[[int, str], L.AnyEvent]] = {
            "ok": L.DelOk,
            "fail": lambda at, receipt: L.DelFail(at, receipt, "expired"),
            "info": lambda at, receipt: L.DelInfo(at, receipt, "reset"),
        }
        for receipt in receipts:
            self.events.append(L.DelInvoke(self.tick(), receipt, ""))
            self.events.append(ends[end](self.tick(), receipt))

    def extend(self, receipt: str, lease_ms: int, *, end: str = "ok") -> None:
        ends: dict[str, Callable[[int, str], L.AnyEvent]] = {
            "ok": L.ExtOk,
            "fail": lambda at, receipt: L.ExtFail(at, receipt, "expired"),
            "info": lambda at, receipt: L.ExtInfo(at, receipt, "reset"),
        }
        self.events.append(L.ExtInvoke(self.tick(), receipt, "", lease_ms))
        self.events.append(ends[end](self.tick(), receipt))

    def cut(self) -> None:
        self.events.append(L.Fault(self.tick(), "cut", 1))

    def skew(self, ms: int) -> None:
        since = self.tick()
        self.events.append(L.Fault(since, "clock", 1, self.tick(ms)))

    def drained(self, *, visible: int = 0, in_flight: int = 0, empty_polls: int = 3) -> None:
        self.events.append(L.Drained(self.tick(), self.queue, visible, in_flight, 0, empty_polls))

    def verdict(self) -> Verdict:
        return check(self.events, log=self.log)
