"""Judges a finished run: each invariant is a count, and each count must be 0.

LOST       an answered send was never received, or a message went away that nobody deleted
PHANTOM    a message was received that was never sent, or whose send was refused
CONFLICT   two messages of a FIFO queue have one place in it, or one message has two
DUP        one send is stored twice: received under two message ids
RESURRECT  a receive that began after a delete was answered returned that message
OVERLAP    a message was leased again before its lease could have run out
GROUP      a FIFO group gave out a message while an earlier one was unfinished elsewhere
HWBACK     a send to a FIFO group got a place before one that had been answered for already
RCOUNT     a receive count repeats, goes back, or is higher than the receives that gave out the
           message and those that their clients saw no answer of, or that waited in a cluster
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
    "LOST", "PHANTOM", "CONFLICT", "DUP", "HWBACK", "RESURRECT", "OVERLAP", "GROUP", "RCOUNT",
    "DEDUP", "STUCK", "BADCRC", "TRACE",
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


def check(
    events: Iterable[AnyEvent], *, log: str = "", called_off_after_seconds: float = math.inf
) -> Verdict:
    """Every invariant over the events of one run and the stderr of its server."""
    history = build_history(events, called_off_after_seconds=called_off_after_seconds)
    tally = _Tally()
    for life in history.lives.values():
        _check_storage(life, history, tally)
        _check_leases(life, history, tally)
    _check_ids(history, tally)
    _check_sequences(history, tally)
    _check_unseen(history, tally)
    for lives in _groups(history):
        _check_group(lives, tally)
    for lives in _sent_groups(history):
        _check_places(lives, tally)
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
    is_stray = len(seen) > 1 or (life.oks and not seen <= life.answered_ids)
    if is_stray and not history.is_repeated_in_skew(life):
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
        if delivery.invoked_at > life.deleted_at(delivery.message_id):
            tally.add("RESURRECT", f"receipt {delivery.receipt} after an answered delete", life)
    stored: dict[str, list[Recv]] = defaultdict(list)  # one entry, unless the message is a DUP
    for delivery in life.deliveries:
        stored[delivery.message_id].append(delivery)
    for deliveries in stored.values():
        # By count, which is the order the server gave them in; the clock then has to agree.
        deliveries.sort(key=lambda seen: (seen.count, seen.at))
        free_at = -math.inf  # before which the lease at hand cannot have begun
        for one, two in pairwise(deliveries):
            free_at = _check_pair(life, one, two, free_at, history, tally)
        _check_jumps(life, deliveries, history, tally)


def _check_pair(
    life: Life, one: Recv, two: Recv, free_at: float, history: History, tally: _Tally
) -> float:
    """Two leases of one record, one after the other. Before what is returned the second cannot have
    begun."""
    if not life.group and history.cut_between(one.invoked_at, two.at):
        return -math.inf  # leases of a standard queue are not synced before they are answered
    if one.invoked_at > two.at:
        tally.add("RCOUNT", f"count {two.count} came before count {one.count}", life)
        return -math.inf
    if one.count == two.count:
        tally.add("RCOUNT", f"count {one.count} twice", life)
    until = life.held_until(one, seen_at=two.at, free_at=free_at)
    if two.at < until:
        tally.add("OVERLAP", f"{two.receipt} while {one.receipt} held it", life)
        return -math.inf
    return until


def _check_jumps(life: Life, deliveries: list[Recv], history: History, tally: _Tally) -> None:
    """Every count that nobody saw must have gone out with an answer that a client missed, of a
    receive that had begun by the time a higher count was seen."""
    unknown = history.unknown[life.queue]
    for number, seen in enumerate(deliveries, 1):
        unseen = seen.count - number
        if unseen <= 0:
            continue
        lost = sum(1 for receive in unknown if receive.invoked_at < seen.at)
        if unseen > lost:
            why = f"{unseen} deliveries nobody got, {lost} receives without an answer"
            tally.add("RCOUNT", f"count {seen.count}: {why}", life)
            return  # what follows has the same gap


def _unseen(life: Life) -> int:
    """Leases of a message that nobody got: at least so many, by the counts that were seen."""
    highest: dict[str, tuple[int, int]] = {}
    for delivery in life.deliveries:
        count, seen = highest.get(delivery.message_id, (0, 0))
        highest[delivery.message_id] = max(count, delivery.count), seen + 1
    return sum(max(0, count - seen) for count, seen in highest.values())


# ── all messages ─────────────────────────────────────────────────────────────────────────────
def _check_ids(history: History, tally: _Tally) -> None:
    """DEDUP: retries of one send get one id, and no two sends share theirs."""
    owner: dict[str, Life] = {}
    for life in history.lives.values():
        if len(life.answered_ids) > 1 and not history.is_repeated_in_skew(life):
            tally.add("DEDUP", "one send was answered with several ids", life)
        for message_id in life.answered_ids:
            other = owner.setdefault(message_id, life)
            if other is not life:
                tally.add("DEDUP", f"two sends were answered with {message_id}", other, life)


def _check_sequences(history: History, tally: _Tally) -> None:
    """CONFLICT: in a FIFO queue every message has one place, and every place one message."""
    owner: dict[tuple[str, int], tuple[str, Life]] = {}
    for life in history.lives.values():
        for message_id, told in life.sequences.items():
            if len(told) > 1:
                tally.add("CONFLICT", f"{message_id} stands at {sorted(told)}", life)
            for sequence in told:
                other = owner.setdefault((life.queue, sequence), (message_id, life))
                if other[0] != message_id:
                    why = f"{other[0]} and {message_id} stand at {sequence}"
                    tally.add("CONFLICT", why, other[1], life)


def _check_unseen(history: History, tally: _Tally) -> None:
    """RCOUNT of whole queues: an answer that was missed had no more messages than were asked for.
    One message by itself may have been in any of them; all together they must fit."""
    unseen: dict[str, int] = defaultdict(int)
    for life in history.lives.values():
        unseen[life.queue] += _unseen(life)
    for queue, count in unseen.items():
        room = sum(receive.count_max for receive in history.unknown[queue])
        if count > room:
            lost = len(history.unknown[queue])
            why = f"{queue}: {count} deliveries nobody got, {lost} receives without an answer"
            tally.add("RCOUNT", f"{why} for {room} messages at most")


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


def _sent_groups(history: History) -> Iterator[list[Life]]:
    """The messages of each FIFO group that were answered with a place, in the order of sending."""
    groups: dict[tuple[str, str], list[Life]] = defaultdict(list)
    for life in history.lives.values():
        if life.group and any(ok.sequence >= 0 for ok in life.oks):
            groups[life.queue, life.group].append(life)
    for lives in groups.values():
        lives.sort(key=lambda life: life.invoked_at)
        yield lives


def _check_places(lives: list[Life], tally: _Tally) -> None:
    """HWBACK: whoever is sent after another was answered for stands behind it. A place that is
    given out again means that something committed was cut off."""
    answered = [(ok.at, ok.sequence, life) for life in lives for ok in life.oks]
    answered.sort(key=_first)
    index, floor, highest = 0, -1, lives[0]
    for life in lives:
        while index < len(answered) and answered[index][0] < life.invoked_at:
            _, sequence, other = answered[index]
            if sequence > floor:
                floor, highest = sequence, other
            index += 1
        place = min(ok.sequence for ok in life.oks if ok.sequence >= 0)
        if place < floor:
            tally.add("HWBACK", f"{place} was given after {floor} had been told", highest, life)


def _first(told: tuple[int, int, Life]) -> int:
    return told[0]


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
