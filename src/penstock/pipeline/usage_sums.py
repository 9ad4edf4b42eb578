"""Records of ``__usage`` to sums by the hour: what one task of the job ``usage`` does.

Runs in the executors, next to the decoding; what a task hands on is as long as there are resources
and operations, not as there are facts. A row of the result is one of four kinds: ``calls`` and
``storage`` are sums, ``flush`` says which flushes of which process were counted, ``reject`` is a
record that was not: it cannot be read, or it is a copy of one that was counted.
"""

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.wire.facts.usage import CALLS, STORAGE, UsageFacts, UsageUnreadable, decode

HOUR_MS: Final = 3_600_000
FLUSH, REJECTED = "flush", "reject"  # kinds of rows beside those of facts
FOLD_ROWS: Final = 200_000  # decoded rows that wait in a task before they are added up
VALUE_BYTES_MAX: Final = 4_096  # of a rejected record, kept to be looked at
_MS_MAX: Final = 253_402_300_800_000  # the year 10000: beyond is damage

KEYS: Final = ("hour", "tenant", "region", "resource", "kind", "op")
COUNTS: Final = (
    "requests", "messages", "bytes_in", "bytes_out", "units64k", "throttled", "denied", "failed",
)  # fmt: skip
SUMS: Final = (*COUNTS, "byte_minutes", "facts")
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
    """Which flushes have been counted: ranges of numbers for each incarnation of a node."""

    def __init__(self) -> None:
        self._ranges: dict[Name, list[tuple[int, int]]] = {}

    def has(self, name: Name, flush: int) -> bool:
        ranges = self._ranges.get(name, ())
        at = bisect.bisect_right(ranges, flush, key=lambda each: each[0]) - 1
        return at >= 0 and flush <= ranges[at][1]

    def add(self, name: Name, first: int, last: int) -> None:
        """Ranges that touch become one, so that what is kept does not grow with time."""
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
        """How many flushes are missing between others, where there are any."""
        found = {
            name: sum(after[0] - before[1] - 1 for before, after in pairwise(of))
            for name, of in self._ranges.items()
        }
        return {name: count for name, count in found.items() if count}


def partials(batches: Iterable[pa.RecordBatch], seen: Flushes) -> Iterator[pa.RecordBatch]:
    """Records (partition, offset, value) to sums, flushes and rejects."""
    task = _Task(seen)
    for batch in batches:
        columns = [batch.column(name) for name in ("partition", "offset", "value")]
        for partition, offset, value in zip(*columns, strict=True):
            task.take(partition.as_py(), offset.as_py(), value.as_py())
    yield from task.result()


@dataclass(slots=True)
class _Told:
    """What one task has of one incarnation in one partition."""

    flushes: list[int] = field(default_factory=list)
    written_at_ms: int = 0
    hour_min: int = 1 << 60
    end_offset: int = 0


class _Task:
    def __init__(self, seen: Flushes) -> None:
        self._seen = seen
        self._own = Flushes()  # a copy may stand in the same batch
        self._told: dict[tuple[str, str, int], _Told] = {}
        self._waiting: list[tuple[UsageFacts, int, int, bytes]] = []
        self._waiting_rows = 0
        self._sums: pa.Table | None = None
        self._rejects: list[tuple[int, int, str, bytes]] = []

    def take(self, partition: int, offset: int, value: bytes | None) -> None:
        try:
            facts = decode(value or b"")
        except UsageUnreadable as error:
            self._reject(partition, offset, str(error), value)
            return
        name = facts.node, facts.incarnation
        if not (0 <= facts.minute_ms < _MS_MAX and 0 <= facts.written_at_ms < _MS_MAX):
            self._reject(partition, offset, "a time that cannot be", value)
        elif not 1 <= facts.flush < 1 << 53:
            self._reject(partition, offset, f"flush {facts.flush} cannot be", value)
        elif self._seen.has(name, facts.flush) or self._own.has(name, facts.flush):
            what = f"{facts.node}/{facts.incarnation}/{facts.flush}"
            self._reject(partition, offset, f"a copy of {what}", None)
        else:
            self._own.add(name, facts.flush, facts.flush)
            self._waiting.append((facts, partition, offset, value or b""))
            self._waiting_rows += len(facts.columns)
            if self._waiting_rows >= FOLD_ROWS:
                self._fold()

    def _reject(self, partition: int, offset: int, why: str, value: bytes | None) -> None:
        self._rejects.append((partition, offset, why, (value or b"")[:VALUE_BYTES_MAX]))

    def _fold(self) -> None:
        waiting, self._waiting, self._waiting_rows = self._waiting, [], 0
        try:
            table = _rows_of([each[0] for each in waiting])
        except _RowsInvalid:
            # One of them has a number that cannot be: find it, keep the others.
            good = []
            for each in waiting:
                try:
                    _rows_of([each[0]])
                except _RowsInvalid as error:
                    self._reject(each[1], each[2], str(error), each[3])
                else:
                    good.append(each)
            waiting = good
            table = _rows_of([each[0] for each in waiting])
        for facts, partition, offset, _ in waiting:
            told = self._told.setdefault((facts.node, facts.incarnation, partition), _Told())
            told.flushes.append(facts.flush)
            told.written_at_ms = max(told.written_at_ms, facts.written_at_ms)
            told.hour_min = min(told.hour_min, facts.minute_ms // HOUR_MS)
            told.end_offset = max(told.end_offset, offset + 1)
        if self._sums is not None:
            table = pa.concat_tables([self._sums, table])
        summed = table.group_by(list(KEYS)).aggregate([(name, "sum") for name in SUMS])
        # Results are called <name>_sum; the order of the columns differs between versions.
        columns = [summed.column(name) for name in KEYS]
        columns += [summed.column(f"{name}_sum") for name in SUMS]
        self._sums = pa.table(columns, names=[*KEYS, *SUMS])

    def result(self) -> Iterator[pa.RecordBatch]:
        self._fold()
        assert self._sums is not None
        hours = pc.multiply(self._sums.column("hour"), HOUR_MS * 1_000).cast(OUT.field("hour").type)
        yield from _padded(self._sums.set_column(0, "hour", hours))
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
    """A column holds what no counter gives."""


def _rows_of(facts: Sequence[UsageFacts]) -> pa.Table:
    """All rows of some records as one table, hours as numbers; raises _RowsInvalid."""
    lists: dict[str, list[Any]] = {name: [] for name in (*KEYS, *COUNTS, "byte_minutes")}
    for each in facts:
        columns = each.columns
        lists["hour"] += [each.minute_ms // HOUR_MS] * len(columns)
        for name in KEYS[1:]:
            lists[name] += getattr(columns, name)
        for name in COUNTS:
            lists[name] += getattr(columns, name)
        lists["byte_minutes"] += columns.stored_bytes  # one level for one minute
    if not set(lists["kind"]) <= {CALLS, STORAGE}:
        raise _RowsInvalid("a row of an unknown kind")
    count = len(lists["hour"])
    made: dict[str, Any] = {name: pa.array(lists[name], pa.string()) for name in KEYS[1:]}
    for name in ("hour", *COUNTS, "byte_minutes"):
        made[name] = _numbers(name, lists[name])
    made["facts"] = np.ones(count, np.int64)
    return pa.table({name: made[name] for name in (*KEYS, *SUMS)})


def _numbers(name: str, values: list[int]) -> npt.NDArray[np.int64]:
    if not any(values):  # most are not refused, and most rows are no storage
        return np.zeros(len(values), np.int64)
    try:
        numbers = np.array(values, np.int64)
    except OverflowError:
        raise _RowsInvalid(f"column {name} has a number that no counter reaches") from None
    if numbers.min() < 0:
        raise _RowsInvalid(f"column {name} has a number below zero")
    return numbers


def _padded(table: pa.Table) -> list[pa.RecordBatch]:
    """With all columns of the output, nulls where there is nothing."""
    count = table.num_rows
    if not count:
        return []
    columns = [
        table.column(f.name) if f.name in table.column_names else pa.nulls(count, f.type)
        for f in OUT
    ]
    return list(pa.table(columns, schema=OUT).combine_chunks().to_batches())
