"""Ledger lines put together into lives: one per message sent, with its deliveries and their ends.

The checker asks questions of this; the order of lines in a life is the order in which they
happened. A call that has no closing line (its client died with it) is treated like INFO."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from tests.harness import ledger as L  # noqa: N812  (every event class is used)


class Sent(Enum):
    OK = auto()
    INFO = auto()
    FAIL = auto()


class End(Enum):
    """How a delete or an extension ended."""

    OK = auto()
    INFO = auto()
    FAIL = auto()


@dataclass(slots=True)
class Touch:
    """A delete or a change of a lease by some receipt of a message."""

    invoked_at: int
    receipt: str
    lease_ms: int = 0
    end: End = End.INFO
    ended_at: float = math.inf


@dataclass(slots=True)
class Life:
    """One message as its producer knows it."""

    key: L.Key
    queue: str = ""
    group: str = ""
    group_seq: int = 0
    dedup_id: str = ""
    invokes: int = 0
    invoked_at: int = 0  # the first time
    oks: list[L.Ok] = field(default_factory=list)
    fails: int = 0
    deliveries: list[L.Recv] = field(default_factory=list)
    deletes: list[Touch] = field(default_factory=list)
    extends: list[Touch] = field(default_factory=list)
    lines: list[L.AnyEvent] = field(default_factory=list)

    @property
    def sent(self) -> Sent:
        if self.oks:
            return Sent.OK
        return Sent.FAIL if self.fails == self.invokes else Sent.INFO

    @property
    def answered_ids(self) -> set[str]:
        return {ok.message_id for ok in self.oks}

    @property
    def delete_invoked_at(self) -> float:
        """When it may first have been deleted; never, if every delete was refused."""
        return min(
            (touch.invoked_at for touch in self.deletes if touch.end is not End.FAIL),
            default=math.inf,
        )

    def deleted_at(self, message_id: str) -> float:
        """When a delete was first answered: from here on it must never be seen again. Of one send
        that was stored twice, each is deleted by itself."""
        receipts = {seen.receipt for seen in self.deliveries if seen.message_id == message_id}
        return min(
            (
                touch.ended_at
                for touch in self.deletes
                if touch.end is End.OK and touch.receipt in receipts
            ),
            default=math.inf,
        )

    @property
    def sequences(self) -> dict[str, set[int]]:
        """What was told of its place in a FIFO queue, by message id."""
        told: dict[str, set[int]] = defaultdict(set)
        for ok in self.oks:
            told[ok.message_id].add(ok.sequence)
        for delivery in self.deliveries:
            told[delivery.message_id].add(delivery.sequence)
        return {message_id: places - {-1} for message_id, places in told.items()}

    def held_until(self, delivery: L.Recv, *, seen_at: int, free_at: float = 0) -> float:
        """A moment before which this lease certainly had not run out, as far as can be known at
        ``seen_at``. It began no earlier than its receive was invoked, than the message was sent,
        and than the lease before it can have ended (``free_at``); each change of it may have been
        applied at any time from its own invocation on. Where a change is not certain, or came by
        the receipt of another lease, the earlier of both readings counts."""
        begun_at = max(delivery.invoked_at, self.invoked_at, free_at)
        until: float = begun_at + delivery.lease_ms * 1_000_000
        for touch in self.extends:
            if touch.invoked_at >= seen_at or touch.end is End.FAIL:
                continue
            if touch.ended_at < delivery.invoked_at:
                continue
            changed = touch.invoked_at + touch.lease_ms * 1_000_000
            is_certain = touch.end is End.OK and touch.ended_at < seen_at
            if is_certain and touch.receipt == delivery.receipt:
                until = changed
            else:
                until = min(until, changed)
        return until

    def story(self) -> str:
        start = self.lines[0].at if self.lines else 0
        head = f"{self.key.producer}/{self.key.seq} in {self.queue}"
        if self.group:
            head += f", group {self.group} number {self.group_seq}"
        lines = [f"  {(line.at - start) / 1e6:12.3f} ms  {line!r}" for line in self.lines]
        return "\n".join([head, *lines])


@dataclass(slots=True)
class History:
    lives: dict[L.Key, Life] = field(default_factory=dict)
    strays: list[L.Recv] = field(default_factory=list)  # bodies that are not whole
    unknown: dict[str, list[L.RecvInfo]] = field(default_factory=lambda: defaultdict(list))
    cuts: list[int] = field(default_factory=list)
    skews: list[tuple[int, int]] = field(default_factory=list)  # in which some clock was wrong
    faults: list[L.Fault] = field(default_factory=list)
    hung: list[L.Hung] = field(default_factory=list)
    drained: dict[str, L.Drained] = field(default_factory=dict)
    queues: set[str] = field(default_factory=set)

    def cut_between(self, start: int, end: int) -> bool:
        return any(start < cut < end for cut in self.cuts)

    def is_repeated_in_skew(self, life: Life) -> bool:
        """A send that was repeated while a clock was wrong: the five minutes within which a repeat
        is recognized are counted by the clock of whoever leads."""
        last = max((ok.at for ok in life.oks), default=math.inf)
        return life.invokes > 1 and any(
            life.invoked_at < until and last > since for since, until in self.skews
        )


class _Builder:
    """Folds the lines, in order of time, into a history."""

    def __init__(self, called_off_after_ns: float) -> None:
        self.history = History()
        self._called_off_after_ns = called_off_after_ns
        self._by_receipt: dict[str, Life] = {}
        self._deletes: dict[str, Touch] = {}  # the open call of each receipt
        self._extends: dict[str, Touch] = {}
        self._receives: dict[str, L.RecvInvoke] = {}  # that have not ended, by call

    def add(self, event: L.AnyEvent) -> None:
        match event:
            case L.Invoke() | L.Ok() | L.Fail() | L.Info():
                self._add_send(event)
            case L.RecvInvoke():
                self._receives[event.call] = event
            case L.RecvFail() | L.RecvNone():
                self._close_receive(event.call, event.at)
            case L.RecvInfo():
                self._receives.pop(event.call, None)
                self.history.unknown[event.queue].append(event)
            case L.Recv():
                self._close_receive(event.call, event.at)
                self._add_delivery(event)
            case L.DelInvoke():
                self._open(self._deletes, event.receipt, Touch(event.at, event.receipt), event)
            case L.ExtInvoke():
                touch = Touch(event.at, event.receipt, event.lease_ms)
                self._open(self._extends, event.receipt, touch, event)
            case L.DelOk() | L.DelFail() | L.DelInfo():
                self._close(self._deletes, event.receipt, event)
            case L.ExtOk() | L.ExtFail() | L.ExtInfo():
                self._close(self._extends, event.receipt, event)
            case _:
                self._add_circumstance(event)

    def _close_receive(self, call: str, at: int) -> None:
        asked = self._receives.pop(call, None)
        if asked is not None and at - asked.at >= self._called_off_after_ns:
            self.history.unknown[asked.queue].append(
                L.RecvInfo(at, asked.at, asked.queue, asked.count_max, call)
            )

    def _life(self, key: L.Key) -> Life:
        life = self.history.lives.get(key)
        if life is None:
            life = self.history.lives[key] = Life(key)
        return life

    def _add_send(self, event: L.Invoke | L.Ok | L.Fail | L.Info) -> None:
        life = self._life(event.key)
        life.lines.append(event)
        match event:
            case L.Invoke():
                self.history.queues.add(event.queue)
                life.queue, life.dedup_id = event.queue, event.dedup_id
                life.group, life.group_seq = event.group, event.group_seq
                life.invoked_at = life.invoked_at or event.at
                life.invokes += 1
            case L.Ok():
                life.oks.append(event)
            case L.Fail():
                life.fails += 1
            case L.Info():
                pass

    def _add_delivery(self, event: L.Recv) -> None:
        self.history.queues.add(event.queue)
        if event.key is None:
            self.history.strays.append(event)
            return
        life = self._life(event.key)
        life.deliveries.append(event)
        life.lines.append(event)
        self._by_receipt[event.receipt] = life

    def _open(self, calls: dict[str, Touch], receipt: str, touch: Touch, event: L.AnyEvent) -> None:
        life = self._by_receipt.get(receipt)
        if life is None:
            return  # the message of a stray body: counted already
        (life.deletes if calls is self._deletes else life.extends).append(touch)
        life.lines.append(event)
        calls[receipt] = touch

    def _close(
        self,
        calls: dict[str, Touch],
        receipt: str,
        event: L.DelOk | L.DelFail | L.DelInfo | L.ExtOk | L.ExtFail | L.ExtInfo,
    ) -> None:
        touch = calls.pop(receipt, None)
        if touch is None:
            return
        match event:
            case L.DelOk() | L.ExtOk():
                touch.end, touch.ended_at = End.OK, event.at
            case L.DelFail() | L.ExtFail():
                touch.end, touch.ended_at = End.FAIL, event.at
            case _:
                pass  # still unknown: it may have happened at any time since
        self._by_receipt[receipt].lines.append(event)

    def _add_circumstance(self, event: L.AnyEvent) -> None:
        history = self.history
        match event:
            case L.Fault():
                history.faults.append(event)
                if event.kind == "cut":
                    history.cuts.append(event.at)
                elif event.kind == "clock":
                    history.skews.append((event.at, event.until))
            case L.Hung():
                history.hung.append(event)
            case L.Drained():
                history.queues.add(event.queue)
                history.drained[event.queue] = event
            case _:
                pass

    def end(self) -> None:
        """Receives that no line closes: nobody lived to write down whether there was an answer."""
        for left in self._receives.values():
            self.history.unknown[left.queue].append(
                L.RecvInfo(left.at, left.at, left.queue, left.count_max, left.call)
            )


def build_history(
    events: Iterable[L.AnyEvent], *, called_off_after_seconds: float = math.inf
) -> History:
    """``called_off_after_seconds``: where nodes pass receives on, one that waited so long may have
    called a lease off at another node, which had it already and gave it back: its count has risen
    and nobody has seen it."""
    builder = _Builder(called_off_after_seconds * 1e9)
    for event in sorted(events, key=lambda event: event.at):
        builder.add(event)
    builder.end()
    return builder.history
