"""Sums records of ``__usage`` by hour, in the tasks of the job ``usage``.

This runs in the executors that decode records. The number of rows that a task returns depends on
the number of resources and operations, not of facts. There are four kinds of rows: ``calls`` and
``storage`` are sums, ``flush`` names the flushes of a process that were counted, and ``reject`` is
a record that was not counted, because it is unreadable or a copy.
"""

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline.packed_columns import Columns, Gathering, Odd, listed, read_columns
from penstock.wire.facts.usage import (
    CALLS,
    FORM,
    NUMBERS,
    STORAGE,
    TEXTS,
    UsageBlock,
    UsageFacts,
    UsageUnreadable,
)

HOUR_MS: Final = 3_600_000
FLUSH, REJECTED = "flush", "reject"  # kinds of rows, in addition to those of facts
READ_BYTES: Final = 8 * 1_048_576  # of values that are decoded together: enough to be fast
FOLD_ROWS: Final = 500_000  # that a task collects before it sums them: some 80 MB
VALUE_BYTES_MAX: Final = 4_096  # of a rejected record, kept for inspection
_MS_MAX: Final = 253_402_300_800_000  # the year 10000; later times are invalid

KEYS: Final = ("hour", "tenant", "region", "resource", "kind", "op")
COUNTS: Final = (
    "requests", "messages", "bytes_in", "bytes_out", "units64k", "throttled", "denied", "failed",
)  # fmt: skip
SUMS: Final = (*COUNTS, "byte_minutes", "facts")
_KINDS: Final = pa.array([CALLS, STORAGE])
_NO_ROWS: Final = pa.schema(
    [("hour", pa.int64()), *((n, pa.string()) for n in KEYS[1:]), *((n, pa.int64()) for n in SUMS)]
).empty_table()
OUT: Final = pa.schema(
    [
        ("hour", pa.timestamp("us", tz="UTC")),
        *((name, pa.string()) for name in KEYS[1:]),
        *((name, pa.int64()) for name in SUMS),
        ("node", pa.string()),
        ("incarnation", pa.string()),
        ("first_flush", pa.int64()),
        ("last_flush", pa.int64()),
        ("written_at_ms", pa.int64()),
        ("partition", pa.int32()),
        ("end_offset", pa.int64()),
        ("why", pa.string()),
        ("value", pa.binary()),
    ]
)
OUT_SPARK: Final = (
    "hour timestamp, tenant string, region string, resource string, kind string, op string, "
    + "".join(f"{name} long, " for name in SUMS)
    + "node string, incarnation string, first_flush long, last_flush long, written_at_ms long, "
    "partition int, end_offset long, why string, value binary"
)

Name = tuple[str, str]  # node, incarnation


class Flushes:
    """The flushes that were counted: ranges of numbers for each incarnation of a node."""

    def __init__(self) -> None:
        self._ranges: dict[Name, list[tuple[int, int]]] = {}

    def has(self, name: Name, flush: int) -> bool:
        ranges = self._ranges.get(name, ())
        at = bisect.bisect_right(ranges, flush, key=lambda each: each[0]) - 1
        return at >= 0 and flush <= ranges[at][1]

    def add(self, name: Name, first: int, last: int) -> None:
        """Add a range, and merge adjacent ranges, so that memory does not grow with time."""
        ranges = self._ranges.setdefault(name, [])
        bisect.insort(ranges, (first, last))
        merged = ranges[:1]
        for begin, end in ranges[1:]:
            if begin <= merged[-1][1] + 1:
                merged[-1] = merged[-1][0], max(end, merged[-1][1])
            else:
                merged.append((begin, end))
        self._ranges[name] = merged

    def ranges(self, name: Name) -> Sequence[tuple[int, int]]:
        return tuple(self._ranges.get(name, ()))

    def names(self) -> Iterable[Name]:
        return self._ranges.keys()

    def gaps(self) -> dict[Name, int]:
        """Return the number of flushes missing between others, where it is not 0."""
        found = {
            name: sum(after[0] - before[1] - 1 for before, after in pairwise(of))
            for name, of in self._ranges.items()
        }
        return {name: count for name, count in found.items() if count}


def partials(batches: Iterable[pa.RecordBatch], seen: Flushes) -> Iterator[pa.RecordBatch]:
    """Convert records (partition, offset, value) to sums, flushes and rejects."""
    task = _Task(seen)
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "value")]
        for partition, offset, value in zip(*columns, strict=True):
            task.take(partition, offset, value or b"")
    yield from task.result()


def add_up(rows: pa.Table) -> pa.Table:
    """Sum rows, or sums of rows, to one row for each set of keys."""
    # A task has one core: threads would take time from other tasks.
    grouped = rows.group_by(list(KEYS), use_threads=False)
    summed = grouped.aggregate([(name, "sum") for name in SUMS])
    # Results are named <name>_sum; the order of columns depends on the version of PyArrow.
    columns = [summed.column(name) for name in KEYS]
    columns += [summed.column(f"{name}_sum") for name in SUMS]
    return pa.table(columns, names=[*KEYS, *SUMS])


@dataclass(slots=True)
class _Told:
    """The flushes of one incarnation in one partition that one task has."""

    flushes: list[int] = field(default_factory=list)
    written_at_ms: int = 0
    hour_min: int = 1 << 60
    end_offset: int = 0


@dataclass(frozen=True, slots=True)
class _Record:
    """A record that waits to be decoded together with others."""

    block: UsageBlock
    partition: int
    offset: int
    value: bytes


class _Task:
    def __init__(self, seen: Flushes) -> None:
        self._seen = seen
        self._own = Flushes()  # of this task: a copy may be in the same batch
        self._told: dict[tuple[str, str, int], _Told] = {}
        self._gathering = Gathering(self._read, self._read_slowly, bytes_max=READ_BYTES)
        self._tables: list[pa.Table] = []  # rows, and sums of rows
        self._rows = 0
        self._rejects: list[tuple[int, int, str, bytes]] = []

    def take(self, partition: int, offset: int, value: bytes) -> None:
        try:
            block = FORM.block(value)
        except UsageUnreadable as error:
            self._reject(partition, offset, str(error), value)
            return
        name = block.node, block.incarnation
        if not (0 <= block.minute_ms < _MS_MAX and 0 <= block.written_at_ms < _MS_MAX):
            self._reject(partition, offset, "a time that cannot be", value)
        elif not 1 <= block.flush < 1 << 53:
            self._reject(partition, offset, f"flush {block.flush} cannot be", value)
        elif self._seen.has(name, block.flush) or self._own.has(name, block.flush):
            what = f"{block.node}/{block.incarnation}/{block.flush}"
            self._reject(partition, offset, f"a copy of {what}", b"")
        else:
            self._own.add(name, block.flush, block.flush)
            self._gathering.add(_Record(block, partition, offset, value), len(value))

    def _reject(self, partition: int, offset: int, why: str, value: bytes) -> None:
        self._rejects.append((partition, offset, why, value[:VALUE_BYTES_MAX]))

    def _read(self, records: Sequence[_Record]) -> None:
        self._count(records, _rows_of([each.block for each in records]))

    def _read_slowly(self, record: _Record) -> None:
        try:
            facts = FORM.decode(record.value)
            self._count([record], _rows_of_lists(facts))
        except (UsageUnreadable, _RowsInvalid) as error:
            self._reject(record.partition, record.offset, str(error), record.value)

    def _count(self, records: Sequence[_Record], rows: pa.Table) -> None:
        self._tables.append(rows)
        self._rows += rows.num_rows
        for each in records:
            block = each.block
            key = block.node, block.incarnation, each.partition
            told = self._told.get(key)
            if told is None:
                told = self._told[key] = _Told()
            told.flushes.append(block.flush)
            told.written_at_ms = max(told.written_at_ms, block.written_at_ms)
            told.hour_min = min(told.hour_min, block.minute_ms // HOUR_MS)
            told.end_offset = max(told.end_offset, each.offset + 1)
        if self._rows >= FOLD_ROWS:
            self._fold()

    def _fold(self) -> pa.Table:
        sums = add_up(pa.concat_tables([_NO_ROWS, *self._tables]))
        self._tables, self._rows = [sums], sums.num_rows
        return sums

    def result(self) -> Iterator[pa.RecordBatch]:
        self._gathering.read()
        sums = self._fold()
        hours = pc.multiply(sums.column("hour"), HOUR_MS * 1_000).cast(OUT.field("hour").type)
        yield from _padded(sums.set_column(0, "hour", hours))
        yield from _padded(pa.Table.from_pylist(self._flush_rows(), _FLUSH_SCHEMA))
        rejects = [
            {"kind": REJECTED, "partition": p, "end_offset": at + 1, "why": why, "value": value}
            for p, at, why, value in self._rejects
        ]
        yield from _padded(pa.Table.from_pylist(rejects, _REJECT_SCHEMA))

    def _flush_rows(self) -> list[dict[str, Any]]:
        rows = []
        for (node, incarnation, partition), told in self._told.items():
            ranges = Flushes()
            for flush in told.flushes:
                ranges.add((node, incarnation), flush, flush)
            for first, last in ranges.ranges((node, incarnation)):
                rows.append(
                    {
                        "hour": told.hour_min * HOUR_MS * 1_000,
                        "kind": FLUSH,
                        "node": node,
                        "incarnation": incarnation,
                        "first_flush": first,
                        "last_flush": last,
                        "written_at_ms": told.written_at_ms,
                        "partition": partition,
                        "end_offset": told.end_offset,
                    }
                )
        return rows


def _fields(*names: str) -> pa.Schema:
    return pa.schema([OUT.field(name) for name in names])


_FLUSH_SCHEMA: Final = _fields(
    "hour", "kind", "node", "incarnation", "first_flush", "last_flush", "written_at_ms",
    "partition", "end_offset",
)  # fmt: skip
_REJECT_SCHEMA: Final = _fields("kind", "partition", "end_offset", "why", "value")


class _RowsInvalid(Exception):
    """A column has values that are not valid counts."""


def _rows_of(blocks: Sequence[UsageBlock]) -> pa.Table:
    """Return all rows of some records as one table, with hours as numbers. Raises Odd."""
    found = read_columns([each.columns for each in blocks], texts=TEXTS, numbers=NUMBERS)
    is_known = pc.is_in(found.texts["kind"], _KINDS)
    if not pc.all(is_known).as_py():
        flags = is_known.to_numpy(zero_copy_only=False)
        raise Odd(found.records_of(np.flatnonzero(~flags)))
    return _table(found, [each.minute_ms for each in blocks])


def _rows_of_lists(facts: UsageFacts) -> pa.Table:
    """Return all rows of one record, as ``_rows_of`` does. Raises _RowsInvalid."""
    if not set(facts.columns.kind) <= {CALLS, STORAGE}:
        raise _RowsInvalid("a row of an unknown kind")
    for name in NUMBERS:
        numbers = getattr(facts.columns, name)
        if numbers and min(numbers) < 0:
            raise _RowsInvalid(f"column {name} has a number below zero")
        if numbers and max(numbers) >= 1 << 63:
            raise _RowsInvalid(f"column {name} has a number that no counter reaches")
    return _table(listed(facts.columns, texts=TEXTS, numbers=NUMBERS), [facts.minute_ms])


def _table(found: Columns, minutes_ms: Sequence[int]) -> pa.Table:
    hours = np.array(minutes_ms, np.int64) // HOUR_MS
    made: dict[str, Any] = {**found.texts, **found.numbers}
    made["hour"] = np.repeat(hours, found.counts)
    made["byte_minutes"] = found.numbers["stored_bytes"]  # one level for one minute
    made["facts"] = np.ones(len(made["hour"]), np.int64)
    return pa.table({name: made[name] for name in (*KEYS, *SUMS)})


def _padded(table: pa.Table) -> list[pa.RecordBatch]:
    """Return the rows with all columns of ``OUT``; missing columns are null."""
    count = table.num_rows
    if not count:
        return []
    columns = [
        table.column(f.name) if f.name in table.column_names else pa.nulls(count, f.type)
        for f in OUT
    ]
    return list(pa.table(columns, schema=OUT).combine_chunks().to_batches())
