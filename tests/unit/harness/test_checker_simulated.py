"""Histories nobody wrote by hand: a simulated queue that keeps its promises must pass the checker
whatever chance does, and the same queue with one message forgotten must not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness import ledger as L  # noqa: N812  (every event class is used)
from tests.harness.checker import check
from tests.harness.ledger import Key

MS = 1_000_000


@dataclass
class Stored:
    seq: int
    group: str
    visible_at: int = 0
    count: int = 0
    receipt: str = ""
    is_gone: bool = False


class SimulatedQueue:
    """A queue that keeps its promises, driven by chance, that writes the ledger its clients would
    have written: answers arrive late or never, calls overlap, leases run out."""

    def __init__(self, chance: Random, *, is_fifo: bool) -> None:
        self.chance = chance
        self.is_fifo = is_fifo
        self.now = 10_000 * MS
        self.events: list[L.AnyEvent] = []
        self.stored: list[Stored] = []
        self.held: list[tuple[Stored, str]] = []
        self.seqs: dict[str, int] = {}
        self.sent = 0
        self.calls = 0

    def step(self) -> tuple[int, int, int]:
        """Question, deed and answer of one call; the next call may begin before this answer."""
        self.now += self.chance.randrange(1, 40) * MS
        before, after = self.chance.randrange(0, 20) * MS, self.chance.randrange(0, 60) * MS
        return self.now - before, self.now, self.now + after

    def send(self) -> None:
        group = f"g{self.chance.randrange(3)}" if self.is_fifo else ""
        number = self.seqs[group] = self.seqs.get(group, 0) + 1
        self.sent += 1
        key, seq = Key("p", self.sent), self.sent
        is_stored = False
        while True:
            asked, _, answered = self.step()
            if self.is_fifo:  # one producer per group: the next begins when this one has ended
                asked, self.now = self.now, answered
            dedup_id = f"{group}-{number}" if self.is_fifo else ""
            self.events.append(L.Invoke(asked, key, "q", group, number, dedup_id))
            end = self.chance.choice(("ok", "ok", "ok", "lost", "unheard", "refused"))
            if end in ("ok", "lost") and not is_stored:
                is_stored = True
                self.stored.append(Stored(seq, group))
            if end == "ok":
                self.events.append(L.Ok(answered, key, f"m{seq}", self.sequence(seq)))
                return
            if end == "refused" and not is_stored:
                self.events.append(L.Fail(answered, key, "refused"))
                return
            self.events.append(L.Info(answered, key, "reset"))
            if not self.is_fifo:
                return

    def sequence(self, seq: int) -> int:
        """The place of a message, which only FIFO queues tell."""
        places = [place for place, entry in enumerate(self.stored) if entry.seq == seq]
        return places[0] if self.is_fifo else -1

    def candidates(self) -> Iterator[Stored]:
        locked: set[str] = set()
        for entry in self.stored:
            if entry.is_gone or entry.group in locked:
                continue
            if entry.visible_at > self.now:
                if self.is_fifo:
                    locked.add(entry.group)
                continue
            yield entry

    def receive(self, *, is_draining: bool = False) -> bool:
        asked, _, answered = self.step()
        lease_ms = self.chance.choice((20, 200, 2_000))
        self.calls += 1
        is_lost = not is_draining and self.chance.random() < 0.2
        took = list(self.candidates())[: self.chance.randrange(1, 5)]
        numbers = self.group_numbers()
        call = f"c{self.calls}"
        self.events.append(L.RecvInvoke(asked, call, "q", 10))
        for place, entry in enumerate(took):
            entry.count += 1
            entry.visible_at = self.now + lease_ms * MS
            receipt = f"{self.calls}-{entry.seq}"
            entry.receipt = receipt
            if is_lost:
                continue
            self.held.append((entry, receipt))
            self.events.append(
                L.Recv(
                    answered,
                    asked,
                    call,
                    place,
                    "q",
                    f"m{entry.seq}",
                    receipt,
                    entry.count,
                    lease_ms,
                    Key("p", entry.seq),
                    entry.group,
                    numbers[entry.seq],
                    self.sequence(entry.seq),
                )
            )
        if is_lost and self.chance.random() < 0.5:  # else its client is gone with it
            self.events.append(L.RecvInfo(answered, asked, "q", 10, call))
        elif not is_lost:
            self.now = answered  # this consumer acts on what it got, not before
            if not took:
                self.events.append(L.RecvNone(answered, asked, "q", call))
        return bool(took)

    def group_numbers(self) -> dict[int, int]:
        return {
            event.key.seq: event.group_seq for event in self.events if isinstance(event, L.Invoke)
        }

    def finish(self) -> None:
        """Delete, extend or release one held message; some of the answers are lost."""
        if not self.held:
            return
        entry, receipt = self.held.pop(self.chance.randrange(len(self.held)))
        asked = self.now
        _, deed, answered = self.step()
        is_current = entry.receipt == receipt and entry.visible_at > deed and not entry.is_gone
        is_done, is_heard = self.chance.random() < 0.9, self.chance.random() < 0.8
        self.now = answered
        if self.chance.random() < 0.6:
            self.events.append(L.DelInvoke(asked, receipt, f"m{entry.seq}"))
            if is_done and (is_current or not self.is_fifo):
                entry.is_gone = True
                if is_heard:
                    self.events.append(L.DelOk(answered, receipt))
                    return
            elif is_done and is_heard and not entry.is_gone:
                self.events.append(L.DelFail(answered, receipt, "expired"))
                return
            self.events.append(L.DelInfo(answered, receipt, "reset"))
            return
        lease_ms = self.chance.choice((0, 50, 3_000))
        self.events.append(L.ExtInvoke(asked, receipt, f"m{entry.seq}", lease_ms))
        if is_done and is_current:
            entry.visible_at = deed + lease_ms * MS
            if is_heard:
                self.events.append(L.ExtOk(answered, receipt))
                return
        self.events.append(L.ExtInfo(answered, receipt, "reset"))

    def drain(self) -> None:
        while any(not entry.is_gone for entry in self.stored):
            self.now += 4_000 * MS
            self.receive(is_draining=True)
            for entry, receipt in self.held:
                self.now += MS
                if entry.receipt != receipt or entry.visible_at <= self.now or entry.is_gone:
                    continue
                self.events.append(L.DelInvoke(self.now, receipt, f"m{entry.seq}"))
                entry.is_gone = True
                self.now += MS
                self.events.append(L.DelOk(self.now, receipt))
            self.held.clear()
        self.now += MS
        self.events.append(L.Drained(self.now, "q", 0, 0, 0, 3))


@given(seed=st.integers(0, 2**32), is_fifo=st.booleans(), steps=st.integers(1, 120))
@settings(max_examples=150, deadline=None)
def test_a_queue_that_keeps_its_promises_passes(seed: int, is_fifo: bool, steps: int) -> None:
    queue = SimulatedQueue(Random(seed), is_fifo=is_fifo)
    for _ in range(steps):
        queue.chance.choice((queue.send, queue.receive, queue.finish))()
    queue.drain()
    check(queue.events).assert_clean()


@given(seed=st.integers(0, 2**32), is_fifo=st.booleans(), steps=st.integers(20, 80))
@settings(max_examples=50, deadline=None)
def test_a_queue_that_counts_a_lease_nobody_asked_for_is_caught(
    seed: int, is_fifo: bool, steps: int
) -> None:
    queue = SimulatedQueue(Random(seed), is_fifo=is_fifo)
    for _ in range(steps):
        queue.chance.choice((queue.send, queue.receive, queue.finish))()
    lost = sum(isinstance(event, L.RecvInvoke) for event in queue.events) + 1
    unseen = [entry for entry in queue.stored if not entry.is_gone]
    for entry in unseen[:1]:
        entry.count += lost
    queue.drain()
    verdict = check(queue.events)
    assert (verdict.counts["RCOUNT"] > 0) == bool(unseen), verdict.text()


@given(seed=st.integers(0, 2**32), is_fifo=st.booleans())
@settings(max_examples=50, deadline=None)
def test_a_queue_that_forgets_one_answered_message_is_caught(seed: int, is_fifo: bool) -> None:
    queue = SimulatedQueue(Random(seed), is_fifo=is_fifo)
    for _ in range(40):
        queue.chance.choice((queue.send, queue.receive, queue.finish))()
    queue.send()
    oks = {event.key.seq for event in queue.events if isinstance(event, L.Ok)}
    unseen = [entry for entry in queue.stored if entry.count == 0 and entry.seq in oks]
    for entry in unseen[:1]:
        entry.is_gone = True
    queue.drain()
    verdict = check(queue.events)
    assert verdict.counts["LOST"] == len(unseen[:1]), verdict.text()
