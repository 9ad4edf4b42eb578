"""Judges what Kafka clients wrote down. Counts by invariant:

LOST      acknowledged and not in the log at the end, where that could be read (else it is STUCK);
          or in the log, and the group has read past it though nobody read it (what lies behind all
          it has read is STUCK)
PHANTOM   in the log, or read, and never sent
CONFLICT  two values for one place in a partition, over all that was acknowledged and read
DUP       in the log twice, though the producer is idempotent
REORDER   in the log behind a record that was sent later to the same partition
SKIP      a member read past a record without a rebalance between
BACK      a member read an offset again without a rebalance between; or the group's offset lies
          below a commit that was answered
HWBACK    a high watermark below one that was told before it was asked for
STUCK     the producer, the group or the reader of the log did not come to an end

Pure. A record without an acknowledgement may be there or not; reading one twice over a rebalance is
what the protocol promises."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from tests.lab import kafka_ledger as K  # noqa: N812  (every event class is used)

INVARIANTS = (
    "LOST", "PHANTOM", "CONFLICT", "DUP", "REORDER", "SKIP", "BACK", "HWBACK", "STUCK",
)  # fmt: skip

Place = tuple[str, int]  # topic, partition
Fail = Callable[[str, str], None]


class KafkaHistory:
    def __init__(self, events: Iterable[K.AnyEvent]) -> None:
        self.sent: dict[Place, set[int]] = defaultdict(set)
        self.acked: dict[Place, dict[int, int]] = defaultdict(dict)  # number → offset
        self.unknown = 0
        self.reads: dict[tuple[Place, str, int], list[tuple[int, int]]] = defaultdict(list)
        self.stands: dict[Place, list[tuple[int, int]]] = defaultdict(list)  # offset, number
        self.committed: dict[Place, int] = defaultdict(int)
        self.marks: dict[Place, list[tuple[int, int, int]]] = defaultdict(list)
        self.offsets: dict[Place, int] = {}
        self.stuck: list[str] = []
        self.ended: set[str] = set()
        self.read_partly: set[Place] = set()  # whose log nobody could read up to its end
        self.topics: set[str] = set()
        for event in events:
            if not isinstance(event, K.Marks):  # which queues have too
                self.topics.add(event.topic)
            self._add(event)

    def _add(self, event: K.AnyEvent) -> None:
        topic = event.topic
        match event:
            case K.Sent():
                for partition, number in event.records:
                    self.sent[topic, partition].add(number)
            case K.Acked():
                for partition, number, offset, _ in event.records:
                    self.acked[topic, partition][number] = offset
            case K.Unknown():
                self.unknown += len(event.records)
            case K.Read():
                for partition, offset, number in event.records:
                    key = ((topic, partition), event.member, event.assignment)
                    self.reads[key].append((offset, number))
            case K.Committed():
                for partition, offset in event.places:
                    place = (topic, partition)
                    self.committed[place] = max(self.committed[place], offset)
            case K.Marks():
                for partition, offset in event.places:
                    self.marks[topic, partition].append((event.invoked_at, event.at, offset))
            case K.Stands():
                for partition, offset, number in event.records:
                    self.stands[topic, partition].append((offset, number))
            case K.Ended():
                self.ended.add(topic)
                self.stuck += event.stuck
                if event.read is not None:
                    known = {place for place in {*self.sent, *self.stands} if place[0] == topic}
                    self.read_partly |= known - {(topic, partition) for partition in event.read}
                for partition, offset in event.offsets:
                    self.offsets[topic, partition] = offset

    def highest_marks(self) -> dict[Place, int]:
        """How far everything was known to be committed, by somebody."""
        return {place: max(mark for _, _, mark in marks) for place, marks in self.marks.items()}

    @property
    def acked_count(self) -> int:
        return sum(map(len, self.acked.values()))

    @property
    def read_count(self) -> int:
        return sum(map(len, self.reads.values()))


def check_kafka(history: KafkaHistory) -> tuple[dict[str, int], dict[str, str]]:
    """Counts, and the first offender of each kind."""
    counts = dict.fromkeys(INVARIANTS, 0)
    first: dict[str, str] = {}

    def fail(name: str, why: str) -> None:
        counts[name] += 1
        first.setdefault(name, why)

    for why in history.stuck:
        fail("STUCK", why)
    for topic in sorted(history.topics - history.ended):
        fail("STUCK", f"{topic}: its process did not come to its end")
    read: dict[Place, set[int]] = defaultdict(set)
    reached: dict[Place, int] = defaultdict(int)
    for (place, _, _), records in history.reads.items():
        read[place].update(number for _, number in records)
        reached[place] = max(reached[place], *(offset for offset, _ in records))
    for place in sorted({*history.sent, *history.stands}):
        if place[0] in history.ended:
            _check_log(place, history, read[place], reached[place], fail)
    for (place, member, assignment), records in history.reads.items():
        _check_member(place, f"{member}/{assignment}", records, history.stands[place], fail)
    _check_places(history, fail)
    for place, marks in history.marks.items():
        _check_marks(place, marks, fail)
    return counts, first


def _check_log(
    place: Place, history: KafkaHistory, read: set[int], reached: int, fail: Fail
) -> None:
    sent, stands = history.sent[place], history.stands[place]
    seen: set[int] = set()
    highest = -1
    for offset, number in stands:
        if number in seen:
            fail("DUP", f"{place}: {number} again at {offset}")
        elif number < highest:
            fail("REORDER", f"{place}: {number} at {offset} behind {highest}")
        seen.add(number)
        highest = max(highest, number)
    missing = set() if place in history.read_partly else history.acked[place].keys() - seen
    for number in sorted(missing):
        fail("LOST", f"{place}: {number} acknowledged, not in the log")
    for number in sorted({number for offset, number in stands if offset < reached} - read):
        fail("LOST", f"{place}: the group has read past {number}, which nobody read")
    for number in sorted((seen | read) - sent):
        fail("PHANTOM", f"{place}: {number} was never sent")
    answered, told = history.committed[place], history.offsets.get(place, 0)
    if history.offsets and told < answered:
        fail("BACK", f"{place}: the group is at {told}, below an answered commit of {answered}")


def _check_member(
    place: Place,
    who: str,
    records: list[tuple[int, int]],
    stands: list[tuple[int, int]],
    fail: Fail,
) -> None:
    """One member's reading of one partition between two rebalances."""
    position = {offset: index for index, (offset, _) in enumerate(stands)}
    before: int | None = None
    for offset, _ in records:
        if before is not None and offset <= before:
            fail("BACK", f"{place}: {who} read {offset} behind {before}")
        elif before in position and offset in position and position[offset] != position[before] + 1:
            fail("SKIP", f"{place}: {who} went from {before} to {offset}")
        before = offset


def _check_places(history: KafkaHistory, fail: Fail) -> None:
    """CONFLICT: whoever says what stands at an offset says the same."""
    values: dict[tuple[Place, int], int] = {}
    said = [
        *((place, records) for place, records in history.stands.items()),
        *((place, records) for (place, _, _), records in history.reads.items()),
        *(
            (place, [(offset, number) for number, offset in acked.items() if offset >= 0])
            for place, acked in history.acked.items()
        ),
    ]
    for place, records in said:
        for offset, number in records:
            known = values.setdefault((place, offset), number)
            if known != number:
                fail("CONFLICT", f"{place} at {offset}: {known} and {number}")


def _check_marks(place: Place, marks: list[tuple[int, int, int]], fail: Fail) -> None:
    """Each was asked for after the ones that had been told before; ``marks`` are in the order they
    were told."""
    told: list[tuple[int, int]] = []  # when, the highest up to then
    index = 0
    floor = -1
    for invoked_at, at, offset in marks:
        while index < len(told) and told[index][0] < invoked_at:
            floor = max(floor, told[index][1])
            index += 1
        if offset < floor:
            fail("HWBACK", f"{place}: {offset} after {floor} had been told")
        told.append((at, offset))
