"""Computes the offsets of a read: partitions and positions from a user's options, ranges for tasks,
filters that narrow ranges, and the offset that a stream stores in its checkpoint.

Offsets given by the user are not checked; the read itself finds out whether they still exist.
Ranges are split as in Spark's Kafka connector, by a maximum number of records per task and a
minimum number of tasks. Partitions get tasks in proportion to their records."""

import datetime as dt
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from penstock.net.kafka_client.client import EARLIEST, LATEST, KafkaClient, KafkaRefused, Place
from penstock.pipeline.client.option_values import OptionInvalid
from penstock.pipeline.client.options import Position, Subscription, TimestampStrategy
from penstock.wire.kafka.faults import ErrorCode

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

VERSION: Final = 1
_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class TopicsMissing(Exception):
    def __str__(self) -> str:
        return f"there is no topic {', '.join(sorted(self.args[0]))}"


class Found(NamedTuple):
    """The partitions of a subscription, and topic ids, which change when a topic is re-created."""

    places: tuple[Place, ...]
    ids: Mapping[str, str]
    missing: tuple[str, ...] = ()  # named topics or partitions that do not exist


def look_up(client: KafkaClient, subscription: Subscription) -> Found:
    """Find the subscription's partitions. As in Kafka, a pattern never matches internal topics."""
    named = subscription.topics or sorted({place.topic for place in subscription.places})
    reply = client.retried(lambda: client.metadata(named or None))
    pattern = re.compile(subscription.pattern)
    places: list[Place] = []
    ids: dict[str, str] = {}
    missing = []
    for topic in reply.topics:
        if not named and (topic.is_internal or not pattern.fullmatch(topic.name)):
            continue
        if topic.error_code in _GONE:
            missing.append(topic.name)
            continue
        if topic.error_code:
            raise KafkaRefused(topic.error_code, subject=topic.name)
        ids[topic.name] = bytes(topic.topic_id).hex()
        places += [Place(topic.name, part.partition_index) for part in topic.partitions]
    if subscription.places:
        existing = set(places)
        missing += [str(place) for place in subscription.places if place not in existing]
        places = [place for place in subscription.places if place in existing]
    return Found(tuple(sorted(places)), ids, tuple(sorted(set(missing))))


def resolve(
    client: KafkaClient, position: Position, places: Iterable[Place], *, is_committed: bool
) -> dict[Place, int]:
    wanted = {place: _requested(position, place) for place in places}
    if position.by_place is not None:
        unknown = sorted(set(position.by_place) - set(wanted))
        if unknown:
            raise OptionInvalid(
                f"option {position.option} names partitions that are not subscribed:"
                f" {'; '.join(map(str, unknown))}"
            )
    fixed = {} if position.is_time else {at: to for at, to in wanted.items() if to >= 0}
    unresolved = {place: to for place, to in wanted.items() if place not in fixed}
    found = client.offsets(unresolved, is_committed=is_committed) if unresolved else {}
    beyond = [place for place, offset in found.items() if offset < 0]
    if beyond:
        if position.timestamp_strategy is TimestampStrategy.ERROR:
            raise OptionInvalid(
                f"option {position.option} is after all records of {'; '.join(map(str, beyond))};"
                " set startingOffsetsByTimestampStrategy=latest to start at the end"
            )
        found |= client.offsets(dict.fromkeys(beyond, LATEST), is_committed=is_committed)
    return fixed | found


def _requested(position: Position, place: Place) -> int:
    if position.by_place is None:
        assert position.everywhere is not None
        return position.everywhere
    if place not in position.by_place:
        raise OptionInvalid(
            f"option {position.option} has no value for {place}: set one for every partition"
            + ("" if position.is_time else f" ({EARLIEST} for earliest, {LATEST} for latest)")
        )
    return position.by_place[place]


@dataclass(frozen=True, slots=True)
class Range:
    place: Place
    begin: int
    end: int

    @property
    def count(self) -> int:
        return max(0, self.end - self.begin)


def split(
    ranges: Sequence[Range], *, partitions_min: int | None, records_max: int | None
) -> list[Range]:
    wanted = [each for each in ranges if each.count]
    if records_max is not None:
        wanted = [part for each in wanted for part in _cut(each, -(-each.count // records_max))]
    if partitions_min is None or len(wanted) >= partitions_min:
        return wanted
    total = sum(each.count for each in wanted)
    counts = [max(1, round(each.count / total * partitions_min)) for each in wanted]
    return [part for each, n in zip(wanted, counts, strict=True) for part in _cut(each, n)]


def _cut(whole: Range, parts: int) -> list[Range]:
    parts = min(parts, whole.count)
    edges = [whole.begin + whole.count * number // parts for number in range(parts + 1)]
    return [replace(whole, begin=begin, end=end) for begin, end in pairwise(edges)]


def packed(ranges: Sequence[Range], *, records_max: int) -> list[tuple[Range, ...]]:
    """Group neighbouring ranges into tasks of up to ``records_max`` records, because starting a
    task takes as long as reading some thousand records."""
    packs: list[tuple[Range, ...]] = []
    room = 0
    for each in ranges:
        room -= each.count
        if packs and room >= 0:
            packs[-1] += (each,)
        else:
            packs.append((each,))
            room = records_max - each.count
    return packs


def limited_ends(
    begins: Mapping[Place, int], ends: Mapping[Place, int], limit: float
) -> dict[Place, int]:
    """Return end offsets such that all partitions together have about ``limit`` records. Each
    partition with records gets at least one, so that large partitions do not starve small ones."""
    sizes = {place: max(0, ends[place] - begins[place]) for place in ends}
    total = sum(sizes.values())
    if total <= limit:
        return dict(ends)
    return {
        place: begins[place] + min(size, max(1, int(limit * size / total))) if size else ends[place]
        for place, size in sizes.items()
    }


def narrowed(
    ranges: Sequence[Range], filters: "Iterable[Filter]", client: KafkaClient
) -> list[Range]:
    """Narrow ranges, without reading records, by filters on topic, partition, offset and minimum
    time. A maximum time is not used, because timestamps may decrease. Spark evaluates all filters
    again."""
    from pyspark.sql import datasource as d

    time_ms = None
    for each in filters:
        is_above = isinstance(each, d.GreaterThan | d.GreaterThanOrEqual)
        is_below = isinstance(each, d.LessThan | d.LessThanOrEqual)
        is_equal = isinstance(each, d.EqualTo | d.In)
        (name, *deeper), value = getattr(each, "attribute", ("",)), getattr(each, "value", None)
        if not (is_above or is_below or is_equal) or deeper or value is None:
            continue
        if name in ("topic", "partition") and is_equal:
            chosen: set[Any] = set(value if isinstance(each, d.In) else [value])
            ranges = [one for one in ranges if getattr(one.place, name) in chosen]
        elif name == "offset" and not isinstance(each, d.In):
            if not is_below:
                least = value + isinstance(each, d.GreaterThan)
                ranges = [replace(one, begin=max(one.begin, least)) for one in ranges]
            if not is_above:
                end = value + 1 - isinstance(each, d.LessThan)
                ranges = [replace(one, end=min(one.end, end)) for one in ranges]
        elif name == "timestamp" and isinstance(value, dt.datetime) and not is_below:
            if value.tzinfo is None:
                value = value.astimezone()  # PySpark passes times in the time zone of the process
            # Rounded down: too early is safe, too late would lose records.
            time_ms = max(time_ms or 0, int(value.timestamp() * 1_000) - 1)
    left = [one for one in ranges if one.count]
    if time_ms is None or not left:
        return left
    first = client.offsets({one.place: time_ms for one in left})
    return [
        replace(one, begin=max(one.begin, first[one.place]))
        for one in left
        if first[one.place] >= 0
    ]


class OffsetUnreadable(ValueError):
    """Raised if the checkpoint contains an offset that this source did not write."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The offset of the next record of each partition, as Spark keeps it in its checkpoint:

        {"v": 1, "topics": {"orders": {"0": 1204, "1": 998}}, "ids": {"orders": "5d0c…"}}

    The id distinguishes a topic from a later topic of the same name. Fields may be added to the
    format; a reader treats a missing field as empty. A change of meaning needs another ``v``. A
    reader rejects an unknown version, because continuing at a wrong offset would lose records."""

    at: Mapping[Place, int] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        topics: dict[str, dict[str, int]] = {}
        for place in sorted(self.at):
            topics.setdefault(place.topic, {})[str(place.partition)] = self.at[place]
        return {"v": VERSION, "topics": topics, "ids": dict(sorted(self.ids.items()))}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        if not isinstance(found, Mapping) or found.get("v") != VERSION:
            raise OffsetUnreadable(f"the checkpoint must have version {VERSION}: {found!s:.200}")
        try:
            at = {
                Place(topic, int(number)): int(offset)
                for topic, numbers in found["topics"].items()
                for number, offset in numbers.items()
            }
            return cls(at, {str(name): str(each) for name, each in found.get("ids", {}).items()})
        except (KeyError, TypeError, ValueError, AttributeError):
            raise OffsetUnreadable(f"another source wrote the checkpoint: {found!s:.200}") from None

    def same_topic(self, other: "StreamOffset", topic: str) -> bool:
        """Return whether a topic has the same id in both offsets. An unknown id matches any id."""
        mine, theirs = self.ids.get(topic, ""), other.ids.get(topic, "")
        return not mine or not theirs or mine == theirs
