"""Sums records of ``__usage`` by hour, in the tasks of the job ``usage``. A task returns a row for
each resource and operation, however many records it reads."""

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline.arrow_map import Folding, add_up
from penstock.pipeline.decoding.packed_columns import (
    Columns,
    RecordBuffer,
    UnusualRecords,
    listed,
    read_columns,
)
from penstock.wire.facts import usage as wire

HOUR_MS: Final = 3_600_000
READ_BYTES: Final = 8 * 1_048_576  # of records that are decoded together: enough to be fast
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


def partials(batches: Iterable[pa.RecordBatch], seen: Flushes) -> Partials:
    """Sum records (partition, offset, value), except copies of flushes that are in ``seen``."""
    task = _Task(seen)
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "value")]
        for partition, offset, value in zip(*columns, strict=True):
            task.add(partition, offset, value or b"")
    return task.result()


def folding() -> Folding:
    return Folding(lambda rows: add_up(rows, KEYS, SUMS), FOLD_ROWS)


@dataclass(slots=True)
class _Counted:
    flushes: list[int] = field(default_factory=list)
    written_at_ms: int = 0
    hour_min: int = 1 << 60
    end_offset: int = 0


@dataclass(frozen=True, slots=True)
class _Record:
    block: wire.UsageBlock
    partition: int
    offset: int
    value: bytes


class _Task:
    def __init__(self, seen: Flushes) -> None:
        self._seen = seen
        self._own = Flushes()  # flushes of this task: a copy may be in the same batch
        self._counted: dict[tuple[str, str, int], _Counted] = {}
        self._gathering = RecordBuffer(self._read, self._read_slowly, bytes_max=READ_BYTES)
        self._sums = folding()
        self._rejected: list[Rejected] = []

    def add(self, partition: int, offset: int, value: bytes) -> None:
        try:
            block = wire.FORM.block(value)
        except wire.UsageUnreadable as error:
            self._reject(partition, offset, str(error), value)
            return
        name = block.node, block.incarnation
        if not (0 <= block.minute_ms < _MS_MAX and 0 <= block.written_at_ms < _MS_MAX):
            self._reject(partition, offset, "the record has an invalid time", value)
        elif not 1 <= block.flush < 1 << 53:
            self._reject(partition, offset, f"flush number {block.flush} is invalid", value)
        elif self._seen.has(name, block.flush) or self._own.has(name, block.flush):
            copied = f"copy of flush {block.node}/{block.incarnation}/{block.flush}"
            self._reject(partition, offset, copied, b"")
        else:
            self._own.add(name, block.flush, block.flush)
            self._gathering.add(_Record(block, partition, offset, value), len(value))

    def _reject(self, partition: int, offset: int, reason: str, value: bytes) -> None:
        self._rejected.append(Rejected(partition, offset, reason, value[:VALUE_BYTES_MAX]))

    def _read(self, records: Sequence[_Record]) -> None:
        self._count(records, _rows_of([each.block for each in records]))

    def _read_slowly(self, record: _Record) -> None:
        try:
            self._count([record], _rows_of_lists(wire.FORM.decode(record.value)))
        except (wire.UsageUnreadable, _RowsInvalid) as error:
            self._reject(record.partition, record.offset, str(error), record.value)

    def _count(self, records: Sequence[_Record], rows: pa.Table) -> None:
        self._sums.add(rows)
        for each in records:
            block = each.block
            key = block.node, block.incarnation, each.partition
            counted = self._counted.setdefault(key, _Counted())
            counted.flushes.append(block.flush)
            counted.written_at_ms = max(counted.written_at_ms, block.written_at_ms)
            counted.hour_min = min(counted.hour_min, block.minute_ms // HOUR_MS)
            counted.end_offset = max(counted.end_offset, each.offset + 1)

    def result(self) -> Partials:
        self._gathering.read()
        sums = self._sums.result(SUMS_SCHEMA)
        return Partials(sums, list(self._flush_ranges()), self._rejected)

    def _flush_ranges(self) -> Iterator[FlushRange]:
        for (node, incarnation, partition), counted in self._counted.items():
            ranges = Flushes()
            for flush in counted.flushes:
                ranges.add((node, incarnation), flush, flush)
            for first, last in ranges.ranges[node, incarnation]:
                yield FlushRange(
                    *(node, incarnation, first, last, counted.written_at_ms),
                    *(partition, counted.end_offset, counted.hour_min),
                )


class _RowsInvalid(Exception):
    pass


def _rows_of(blocks: Sequence[wire.UsageBlock]) -> pa.Table:
    found = read_columns([each.columns for each in blocks], texts=wire.TEXTS, numbers=wire.NUMBERS)
    is_known = pc.is_in(found.texts["kind"], _KINDS)
    if not pc.all(is_known).as_py():
        flags = is_known.to_numpy(zero_copy_only=False)
        raise UnusualRecords(found.records_of(np.flatnonzero(~flags)))
    return _table(found, [each.minute_ms for each in blocks])


def _rows_of_lists(facts: wire.UsageFacts) -> pa.Table:
    """Return all rows of one record. Raises _RowsInvalid for an unknown kind or invalid counts."""
    if not set(facts.columns.kind) <= {wire.CALLS, wire.STORAGE}:
        raise _RowsInvalid("a row has an unknown kind")
    for name in wire.NUMBERS:
        numbers = getattr(facts.columns, name)
        if numbers and min(numbers) < 0:
            raise _RowsInvalid(f"column {name} has a number below zero")
        if numbers and max(numbers) >= 1 << 63:
            raise _RowsInvalid(f"column {name} has a number above 2^63 - 1")
    return _table(listed(facts.columns, texts=wire.TEXTS, numbers=wire.NUMBERS), [facts.minute_ms])


def _table(found: Columns, minutes_ms: Sequence[int]) -> pa.Table:
    hours_us = np.array(minutes_ms, np.int64) // HOUR_MS * HOUR_MS * 1_000
    made: dict[str, Any] = {**found.texts, **found.numbers}
    made["hour"] = pa.array(np.repeat(hours_us, found.counts)).view(SUMS_SCHEMA.field("hour").type)
    made["byte_minutes"] = found.numbers["stored_bytes"]  # each row has the level of one minute
    made["facts"] = np.ones(len(made["hour"]), np.int64)
    return pa.table({name: made[name] for name in SUMS_SCHEMA.names}, schema=SUMS_SCHEMA)
