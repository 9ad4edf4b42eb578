"""Judges a finished run: each invariant is a count, and each count must be 0.

LOST       an answered send was never received, or a message went away that nobody deleted
PHANTOM    a message was received that was never sent, or whose send was refused
DUP        one send is stored twice: received under two message ids
RESURRECT  a receive that began after a delete was answered returned that message
OVERLAP    a message was leased again before its lease could have run out
GROUP      a FIFO group gave out a message while an earlier one was unfinished elsewhere
RCOUNT     a receive count repeats, goes back, or jumps further than lost answers explain
DEDUP      retries of one send were answered with two ids, or two sends share one id
STUCK      a queue that could not be drained, or a call that hung past its deadline
BADCRC     a body that is not what was sent
TRACE      an unhandled exception in the server's log

A verdict is only as good as what is uncertain is treated fairly: a call without an answer may or
may not have happened, and a lease began somewhere between question and answer. Every rule here
asks whether *any* order of events within those limits would have been right, so a violation is
never a matter of timing. The checker is pure; ``ledger`` writes, ``history`` joins, this counts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from tests.harness.history import End, History, Life, Sent, build_history
from tests.harness.ledger import AnyEvent, Recv
from tests.harness.server import tracebacks

INVARIANTS = (
    "LOST", "PHANTOM", "DUP", "RESURRECT", "OVERLAP", "GROUP", "RCOUNT", "DEDUP", "STUCK",
    "BADCRC", "TRACE",
)  # fmt: skip
EMPTY_POLLS_MIN = 3


@dataclass(slots=True)
class Coverage:
    """What the run went through: a clean verdict on a run that tried nothing is worth nothing."""

    sends_ok: int = 0
    sends_unknown: int = 0  # no answer at all, after every retry
    sends_retried: int = 0
    deliveries: int = 0
    redeliveries: int = 0
    receives_unknown: int = 0
    deletes_ok: int = 0
    deletes_unknown: int = 0
    extends: int = 0
    releases: int = 0
    faults: int = 0
    faults_under_load: int = 0


@dataclass(slots=True)
class Verdict:
    counts: dict[str, int]
    first: dict[str, str]  # the first offender of each broken invariant, with its whole life
    coverage: Coverage

    @property
    def is_clean(self) -> bool:
        return not any(self.counts.values())

    def text(self) -> str:
        lines = ["  ".join(f"{name}={count}" for name, count in self.counts.items())]
        lines.append(str(self.coverage))
        lines += [f"first {name}: {story}" for name, story in self.first.items()]
        return "\n".join(lines)

    def assert_clean(self) -> None:
        assert self.is_clean, f"the run broke its promises\n{self.text()}"


@dataclass(slots=True)
class _Tally:
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(INVARIANTS, 0))
    first: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, why: str, *lives: Life) -> None:
        self.counts[name] += 1
        if name not in self.first:
            self.first[name] = "\n".join([why, *(life.story() for life in lives)])


def check(events: Iterable[AnyEvent], *, log: str = "") -> Verdict:
    """Every invariant over the events of one run and the stderr of its server."""
    history = build_history(events)
    tally = _Tally()
    for life in history.lives.values():
        _check_storage(life, history, tally)
        _check_leases(life, history, tally)
    _check_ids(history, tally)
    for lives in _groups(history):
        _check_group(lives, tally)
    _check_liveness(history, tally)
    for stray in history.strays:
        tally.add("BADCRC", f"damaged body: {stray!r}")
    for trace in tracebacks(log):
        tally.add("TRACE", trace)
    return Verdict(tally.counts, tally.first, _coverage(history))


# ── one message ──────────────────────────────────────────────────────────────────────────────
def _check_storage(life: Life, history: History, tally: _Tally) -> None:
    """LOST, PHANTOM, DUP. What a queue still holds is not lost: that queue is STUCK."""
    if not life.invokes:
        tally.add("PHANTOM", "received, never sent", life)
        return
    if life.sent is Sent.FAIL and life.deliveries:
        tally.add("PHANTOM", "received although the send was refused", life)
    if _is_drained(life.queue, history):
        if life.sent is Sent.OK and not life.deliveries:
            tally.add("LOST", "answered, never received", life)
        if life.deliveries and life.delete_invoked_at == math.inf:
            tally.add("LOST", "received, then gone though nobody deleted it", life)
    seen = {delivery.message_id for delivery in life.deliveries}
    if len(seen) > 1 or (life.oks and not seen <= life.answered_ids):
        tally.add("DUP", "stored under another id than the one answered", life)


def _is_drained(queue: str, history: History) -> bool:
    end = history.drained.get(queue)
    return (
        end is not None
        and end.empty_polls >= EMPTY_POLLS_MIN
        and end.visible == end.in_flight == end.delayed == 0
    )


def _check_leases(life: Life, history: History, tally: _Tally) -> None:
    """RESURRECT, OVERLAP, RCOUNT over the deliveries of one message."""
    for delivery in life.deliveries:
        if delivery.invoked_at > life.deleted_at:
            tally.add("RESURRECT", f"receipt {delivery.receipt} after an answered delete", life)
    stored: dict[str, list[Recv]] = defaultdict(list)  # one entry, unless the message is a DUP
    for delivery in life.deliveries:
        stored[delivery.message_id].append(delivery)
    for deliveries in stored.values():
        # By count, which is the order the server gave them in; the clock then has to agree.
        deliveries.sort(key=lambda seen: (seen.count, seen.at))
        for one, two in pairwise(deliveries):
            _check_pair(life, one, two, history, tally)
        _check_jumps(life, deliveries, history, tally)


def _check_pair(life: Life, one: Recv, two: Recv, history: History, tally: _Tally) -> None:
    """Two leases of one record, one after the other."""
    if not life.group and history.cut_between(one.invoked_at, two.at):
        return  # leases of a standard queue are not synced before they are answered
    if one.invoked_at > two.at:
        tally.add("RCOUNT", f"count {two.count} came before count {one.count}", life)
        return
    if one.count == two.count:
        tally.add("RCOUNT", f"count {one.count} twice", life)
    if two.at < life.held_until(one, seen_at=two.at):
        tally.add("OVERLAP", f"{two.receipt} while {one.receipt} held it", life)


def _check_jumps(life: Life, deliveries: list[Recv], history: History, tally: _Tally) -> None:
    """Every count that nobody saw must have gone out with an answer that was lost."""
    last = deliveries[-1]
    unseen = last.count - len(deliveries)
    if unseen <= 0:
        return
    lost = sum(1 for receive in history.unknown[life.queue] if receive.invoked_at < last.at)
    if unseen > lost:
        why = f"{unseen} deliveries nobody got, {lost} receives without an answer"
        tally.add("RCOUNT", why, life)


# ── all messages ─────────────────────────────────────────────────────────────────────────────
def _check_ids(history: History, tally: _Tally) -> None:
    """DEDUP: retries of one send get one id, and no two sends share theirs."""
    owner: dict[str, Life] = {}
    for life in history.lives.values():
        if len(life.answered_ids) > 1:
            tally.add("DEDUP", "one send was answered with several ids", life)
        for message_id in life.answered_ids:
            other = owner.setdefault(message_id, life)
            if other is not life:
                tally.add("DEDUP", f"two sends were answered with {message_id}", other, life)


def _check_liveness(history: History, tally: _Tally) -> None:
    """STUCK: every queue ends empty and every call ends in time."""
    for queue in sorted(history.queues):
        if not _is_drained(queue, history):
            tally.add("STUCK", f"{queue} did not drain: {history.drained.get(queue)!r}")
    for hung in history.hung:
        tally.add("STUCK", f"{hung.call} gave no answer within {hung.seconds} s")


# ── one FIFO group ───────────────────────────────────────────────────────────────────────────
def _groups(history: History) -> Iterator[list[Life]]:
    """The stored messages of each FIFO group, in the order they were sent."""
    groups: dict[tuple[str, str], list[Life]] = defaultdict(list)
    for life in history.lives.values():
        if life.group and life.deliveries:
            groups[life.queue, life.group].append(life)
    for lives in groups.values():
        lives.sort(key=lambda life: life.group_seq)
        yield lives


def _check_group(lives: list[Life], tally: _Tally) -> None:
    """A message may be given out only behind all earlier ones: in the same answer after them, or
    once they may have been deleted. An earlier one may come again while a later one is leased,
    which is what SQS does when the later one's lease was extended."""
    all_done_at = -math.inf  # when every earlier message may have been deleted
    for place, life in enumerate(lives):
        for delivery in life.deliveries:
            if delivery.at > all_done_at:
                continue
            for earlier in lives[:place]:
                if not _goes_before(earlier, delivery):
                    why = f"number {life.group_seq} given out, {earlier.group_seq} not finished"
                    tally.add("GROUP", why, earlier, life)
                    break
        all_done_at = max(all_done_at, life.delete_invoked_at)


def _goes_before(earlier: Life, delivery: Recv) -> bool:
    return earlier.delete_invoked_at < delivery.at or any(
        seen.call == delivery.call and seen.place < delivery.place for seen in earlier.deliveries
    )


def _coverage(history: History) -> Coverage:
    lives = history.lives.values()
    deletes = [touch for life in lives for touch in life.deletes]
    extends = [touch for life in lives for touch in life.extends]
    return Coverage(
        sends_ok=sum(1 for life in lives if life.sent is Sent.OK),
        sends_unknown=sum(1 for life in lives if life.sent is Sent.INFO),
        sends_retried=sum(1 for life in lives if life.invokes > 1),
        deliveries=sum(len(life.deliveries) for life in lives),
        redeliveries=sum(max(0, len(life.deliveries) - 1) for life in lives),
        receives_unknown=sum(len(lost) for lost in history.unknown.values()),
        deletes_ok=sum(1 for touch in deletes if touch.end is End.OK),
        deletes_unknown=sum(1 for touch in deletes if touch.end is End.INFO),
        extends=sum(1 for touch in extends if touch.lease_ms > 0),
        releases=sum(1 for touch in extends if touch.lease_ms == 0),
        faults=len(history.faults),
        faults_under_load=sum(1 for fault in history.faults if fault.calls_open > 0),
    )
