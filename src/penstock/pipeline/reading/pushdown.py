"""Narrows the ranges of a read by filters on topic, partition, offset and time.

No records are filtered here; Spark evaluates all filters again. A range is narrowed without reading
records: by partition, by offset, and by a minimum time, for which the server finds the first record
that is new enough. (It cannot find the last record before a time, because timestamps may decrease.)
"""

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from penstock.net.kafka_client.client import KafkaClient
from penstock.pipeline.reading.ranges import Range

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


@dataclass(frozen=True, slots=True)
class Bounds:
    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_min: int | None = None
    offset_max: int | None = None  # inclusive
    time_ms_min: int | None = None

    def applied(self, ranges: Sequence[Range], client: KafkaClient) -> list[Range]:
        """Return the narrowed ranges, without empty ones. Raises KafkaTrouble."""
        left = []
        for each in ranges:
            if self.topics is not None and each.place.topic not in self.topics:
                continue
            if self.partitions is not None and each.place.partition not in self.partitions:
                continue
            begin, end = each.begin, each.end
            if self.offset_min is not None:
                begin = max(begin, self.offset_min)
            if self.offset_max is not None:
                end = min(end, self.offset_max + 1)
            left.append(replace(each, begin=begin, end=end))
        left = [each for each in left if each.count]
        if self.time_ms_min is None or not left:
            return left
        first = client.offsets({each.place: self.time_ms_min for each in left})
        return [
            replace(each, begin=max(each.begin, first[each.place]))
            for each in left
            if first[each.place] >= 0
        ]


@dataclass(slots=True)
class _Gathered:
    topics: list[frozenset[str]] = field(default_factory=list)
    partitions: list[frozenset[int]] = field(default_factory=list)
    least: list[int] = field(default_factory=list)
    most: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)


def bounds_from(filters: "Iterable[Filter]") -> Bounds:
    """Return the bounds that satisfy all filters. Filters that cannot narrow ranges are ignored."""
    found = _Gathered()
    for each in filters:
        _take(each, found)
    return Bounds(
        frozenset.intersection(*found.topics) if found.topics else None,
        frozenset.intersection(*found.partitions) if found.partitions else None,
        max(found.least, default=None),
        min(found.most, default=None),
        max(found.times, default=None),
    )


def _take(each: "Filter", found: _Gathered) -> None:
    from pyspark.sql.datasource import (
        EqualTo,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        LessThan,
        LessThanOrEqual,
    )

    if not isinstance(
        each, EqualTo | GreaterThan | GreaterThanOrEqual | In | LessThan | LessThanOrEqual
    ):
        return
    (name, *deeper) = each.attribute
    value: Any = each.value
    if deeper or value is None:
        return
    if isinstance(each, EqualTo | In) and name in ("topic", "partition"):
        chosen: frozenset[Any] = frozenset(value if isinstance(each, In) else [value])
        (found.topics if name == "topic" else found.partitions).append(chosen)
    elif name == "offset" and not isinstance(each, In):
        if not isinstance(each, LessThan | LessThanOrEqual):
            found.least.append(value + isinstance(each, GreaterThan))
        if not isinstance(each, GreaterThan | GreaterThanOrEqual):
            found.most.append(value - isinstance(each, LessThan))
    elif name == "timestamp" and isinstance(each, EqualTo | GreaterThan | GreaterThanOrEqual):
        time_ms = _ms(value)
        if time_ms is not None:
            found.times.append(time_ms)


def _ms(value: object) -> int | None:
    """Round down to milliseconds: too early is safe, too late would lose records."""
    if not isinstance(value, dt.datetime):
        return None
    if value.tzinfo is None:
        value = value.astimezone()  # PySpark passes times in the time zone of the process
    return max(0, int(value.timestamp() * 1_000) - 1)
