"""Sums records of ``__usage`` by hour, in the tasks of the job ``usage``. A task returns a row for
each resource and operation, however many records it reads."""

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline.arrow_map import Folding, add_up
from penstock.pipeline.decoding.packed_columns import (
    Columns,
    UnusualRecords,
    listed,
    read_columns,
    read_together,
    values_in,
)
from penstock.wire.facts import usage as wire

HOUR_MS: Final = 3_600_000
FOLD_ROWS: Final = 500_000  # collected by a task before it sums them, about 80 MB
VALUE_BYTES_MAX: Final = 4_096  # of a rejected record, kept for inspection
_MS_MAX: Final = 253_402_300_800_000  # the year 10000; later times are invalid

KEYS: Final = ("hour", "tenant", "region", "resource", "kind", "op")
COUNTS: Final = (
    "requests", "messages", "bytes_in", "bytes_out", "units64k", "throttled", "denied", "failed",
)  # fmt: skip
SUMS: Final = (*COUNTS, "byte_minutes", "facts")
_KINDS: Final = pa.array([wire.CALLS, wire.STORAGE])
SUMS_SCHEMA: Final = pa.schema(
    [
        ("hour", pa.timestamp("us", tz="UTC")),
        *((name, pa.string()) for name in KEYS[1:]),
        *((name, pa.int64()) for name in SUMS),
    ]
)

Name = tuple[str, str]  # node, incarnation


class Flushes:
    """The numbers of counted flushes (records written by a node), as ranges."""

    def __init__(self) -> None:
        self.ranges: dict[Name, list[tuple[int, int]]] = {}

    def has(self, name: Name, flush: int) -> bool:
        ranges = self.ranges.get(name, ())
        at = bisect.bisect_right(ranges, flush, key=lambda each: each[0]) - 1
        return at >= 0 and flush <= ranges[at][1]

    def add(self, name: Name, first: int, last: int) -> None:
        """Add a range, and merge adjacent ranges, so that memory does not grow with time."""
        ranges = self.ranges.setdefault(name, [])
        bisect.insort(ranges, (first, last))
        merged = ranges[:1]
        for begin, end in ranges[1:]:
            if begin <= merged[-1][1] + 1:
                merged[-1] = merged[-1][0], max(end, merged[-1][1])
            else:
                merged.append((begin, end))
        self.ranges[name] = merged

    def gaps(self) -> dict[Name, int]:
        """Return the number of missing flushes, for each node that has any."""
        found = {
            name: sum(after[0] - before[1] - 1 for before, after in pairwise(of))
            for name, of in self.ranges.items()
        }
        return {name: count for name, count in found.items() if count}


@dataclass(frozen=True, slots=True)
class FlushRange:
    """Consecutive flushes of one node's process that one task has counted."""

    node: str
    incarnation: str
    first_flush: int
    last_flush: int
    written_at_ms: int
    partition: int
    end_offset: int
    hour_number: int  # the first hour with facts


class Rejected(NamedTuple):
    partition: int
    offset: int
    reason: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Partials:
    sums: pa.Table  # of SUMS_SCHEMA
    flushes: Sequence[FlushRange]
    rejected: Sequence[Rejected]


def folding() -> Folding:
    return Folding(lambda rows: add_up(rows, KEYS, SUMS), FOLD_ROWS)


_Record = tuple[wire.UsageBlock, int, int, bytes]  # with partition, offset and value
_Counted = dict[tuple[str, str, int], list[tuple[int, int, int, int]]]  # by node and partition


def partials(batches: Iterable[pa.RecordBatch], seen: Flushes) -> Partials:
    """Sum records (partition, offset, value), except copies of flushes that are in ``seen``."""
    own = Flushes()  # flushes of this task: a copy may be in the same batch
    counted: _Counted = {}
    sums = folding()
    rejected: list[Rejected] = []

    def reject(partition: int, offset: int, reason: str, value: bytes) -> None:
        rejected.append(Rejected(partition, offset, reason, value[:VALUE_BYTES_MAX]))

    def accepted() -> Iterator[_Record]:
        for partition, offset, value in values_in(batches):
            try:
                block = wire.FORM.block(value)
            except wire.UsageUnreadable as error:
                reject(partition, offset, str(error), value)
                continue
            name = block.node, block.incarnation
            if not (0 <= block.minute_ms < _MS_MAX and 0 <= block.written_at_ms < _MS_MAX):
                reject(partition, offset, "the record has an invalid time", value)
            elif not 1 <= block.flush < 1 << 53:
                reject(partition, offset, f"flush number {block.flush} is invalid", value)
            elif seen.has(name, block.flush) or own.has(name, block.flush):
                copied = f"copy of flush {block.node}/{block.incarnation}/{block.flush}"
                reject(partition, offset, copied, b"")
            else:
                own.add(name, block.flush, block.flush)
                yield block, partition, offset, value

    def count(records: Sequence[_Record], rows: pa.Table) -> None:
        sums.add(rows)
        for block, partition, offset, _ in records:
            hour = block.minute_ms // HOUR_MS
            of_node = counted.setdefault((block.node, block.incarnation, partition), [])
            of_node.append((block.flush, block.written_at_ms, offset + 1, hour))

    def count_one(record: _Record) -> None:
        try:
            count([record], _rows_of_lists(wire.FORM.decode(record[-1])))
        except wire.UsageUnreadable as error:
            _, partition, offset, value = record
            reject(partition, offset, str(error), value)

    def count_many(records: Sequence[_Record]) -> None:
        count(records, _rows_of([each[0] for each in records]))

    read_together(accepted(), count_many, count_one)
    return Partials(sums.result(SUMS_SCHEMA), list(_flush_ranges(counted)), rejected)


def _flush_ranges(counted: _Counted) -> Iterator[FlushRange]:
    for (node, incarnation, partition), found in counted.items():
        flushes, written_at_ms, ends, hours = zip(*found, strict=True)
        ranges = Flushes()
        for flush in flushes:
            ranges.add((node, incarnation), flush, flush)
        for first, last in ranges.ranges[node, incarnation]:
            place = partition, max(ends), min(hours)
            yield FlushRange(node, incarnation, first, last, max(written_at_ms), *place)


def _rows_of(blocks: Sequence[wire.UsageBlock]) -> pa.Table:
    found = read_columns([each.columns for each in blocks], texts=wire.TEXTS, numbers=wire.NUMBERS)
    is_known = pc.is_in(found.texts["kind"], _KINDS)
    if not pc.all(is_known).as_py():
        flags = is_known.to_numpy(zero_copy_only=False)
        raise UnusualRecords(found.records_of(np.flatnonzero(~flags)))
    return _table(found, [each.minute_ms for each in blocks])


def _rows_of_lists(facts: wire.UsageFacts) -> pa.Table:
    """Return the rows of one record. Raises UsageUnreadable for unknown kinds, invalid counts."""
    if not set(facts.columns.kind) <= {wire.CALLS, wire.STORAGE}:
        raise wire.UsageUnreadable("a row has an unknown kind")
    for name in wire.NUMBERS:
        numbers = getattr(facts.columns, name)
        if numbers and min(numbers) < 0:
            raise wire.UsageUnreadable(f"column {name} has a number below zero")
        if numbers and max(numbers) >= 1 << 63:
            raise wire.UsageUnreadable(f"column {name} has a number above 2^63 - 1")
    return _table(listed(facts.columns, texts=wire.TEXTS, numbers=wire.NUMBERS), [facts.minute_ms])


def _table(found: Columns, minutes_ms: Sequence[int]) -> pa.Table:
    hours_us = np.array(minutes_ms, np.int64) // HOUR_MS * HOUR_MS * 1_000
    made: dict[str, Any] = {**found.texts, **found.numbers}
    made["hour"] = pa.array(np.repeat(hours_us, found.counts)).view(SUMS_SCHEMA.field("hour").type)
    made["byte_minutes"] = found.numbers["stored_bytes"]  # each row has the level of one minute
    made["facts"] = np.ones(len(made["hour"]), np.int64)
    return pa.table({name: made[name] for name in SUMS_SCHEMA.names}, schema=SUMS_SCHEMA)
