"""Sums records of ``__usage`` by hour, in the tasks of the job ``usage``, and writes the sums to
files: records become files of ``usage_partial`` and ``usage_reject``, with a row for each resource
and operation; the partials of complete hours become files of ``usage_hourly``. The driver names the
files in a commit; readers ignore files that no commit names, so a task may die or be repeated.

To seal an hour is to write its final sums. A task seals some hours of one day, and reads the files
that may have partials of these hours. This takes a fraction of the CPU time of a join, a shuffle
and an aggregate in Spark, because partials are grouped and most files have few hours."""

import bisect
import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.pipeline.arrow_map import Folding, add_up, batch_of, map_in_arrow, schema_of
from penstock.pipeline.decoding.packed_columns import (
    Columns,
    UnusualRecords,
    listed,
    read_columns,
    read_together,
    values_in,
)
from penstock.pipeline.lake import Table
from penstock.pipeline.parts import PART_SCHEMA, Part, batch_of_parts, read_parts, write_parts
from penstock.wire.facts import usage as wire

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.reading.stream_source import RecordReader

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
    """The sequence numbers of counted flushes. A node writes one record per flush."""

    def __init__(self) -> None:
        self.ranges: dict[Name, list[tuple[int, int]]] = {}

    def has(self, name: Name, flush: int) -> bool:
        ranges = self.ranges.get(name, ())
        at = bisect.bisect_right(ranges, flush, key=lambda each: each[0]) - 1
        return at >= 0 and flush <= ranges[at][1]

    def add(self, name: Name, first: int, last: int) -> None:
        """Add a range. Adjacent ranges are merged, so that memory does not grow with time."""
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
        """Return the number of missing flushes, for each process that has gaps."""
        found = {
            name: sum(after[0] - before[1] - 1 for before, after in pairwise(of))
            for name, of in self.ranges.items()
        }
        return {name: count for name, count in found.items() if count}


class FlushRange(NamedTuple):
    """Consecutive flushes of one process of a node, all counted by the same task."""

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


class Partials(NamedTuple):
    sums: pa.Table  # of SUMS_SCHEMA
    flushes: Sequence[FlushRange]
    rejected: Sequence[Rejected]


def folding() -> Folding:
    return Folding(lambda rows: add_up(rows, KEYS, SUMS), FOLD_ROWS)


_Record = tuple[wire.UsageBlock, int, int, bytes]  # with partition, offset and value
_Counted = dict[tuple[str, str, int], list[tuple[int, int, int, int]]]  # by node and partition


def partials(batches: Iterable[pa.RecordBatch], seen: Flushes) -> Partials:
    """Sum records (partition, offset, value). Flushes that are already in ``seen`` are rejected."""
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
    """Return the rows of one record. Raises UsageUnreadable if a kind or count is invalid."""
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


PARTIAL, REJECT = "usage_partial", "usage_reject"
FLUSH: Final = "flush"  # kind of the rows of usage_partial that record flushes and not sums
PARTIAL_BY: Final = ("kind", "date")
PARTIAL_SCHEMA: Final = pa.schema(
    [
        *SUMS_SCHEMA,
        *schema_of(
            "node string, incarnation string, first_flush long, last_flush long,"
            " written_at_ms long, partition int, end_offset long, turn long, date date"
        ),
    ]
)
REJECT_SCHEMA: Final = schema_of("partition int, offset long, why string, value binary")
_RESULT: Final = schema_of("kind string, detail string")
HOURLY: Final = "usage_hourly"
HOURLY_BY: Final = ("date",)
HOURLY_SCHEMA: Final = pa.schema(
    [
        *(SUMS_SCHEMA.field(name) for name in KEYS),
        ("through", pa.int64()),
        *(SUMS_SCHEMA.field(name) for name in SUMS),
        ("date", pa.date32()),
    ]
)
HOURS_PER_TASK: Final = 6
_HOURS_PER_DAY: Final = 24
_READ_ROWS: Final = 131_072
_IN_FILES: Final = [name for name in (*KEYS, *SUMS, "turn") if name != "kind"]
_HOUR_US: Final = HOUR_MS * 1_000


@dataclass(slots=True)
class Written:
    partial: list[Part] = field(default_factory=list)
    reject: list[Part] = field(default_factory=list)
    flushes: list[FlushRange] = field(default_factory=list)

    def drop(self, lake: Path) -> None:
        for table, parts in ((PARTIAL, self.partial), (REJECT, self.reject)):
            for part in parts:
                with contextlib.suppress(OSError):
                    (lake / table / part.path).unlink()


def write(
    frame: "DataFrame", reading: "RecordReader", *, seen: Flushes, turn: int, lake: Path
) -> Written:
    """Sum the records that ``reading`` decodes from ``frame``, and write the sums to files."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from write_share(reading(batches), seen=seen, turn=turn, lake=lake)

    found = Written()
    for row in map_in_arrow(frame, work, _RESULT).collect():
        detail = json.loads(row.detail)
        if row.kind == FLUSH:
            found.flushes.append(FlushRange(**detail))
        else:
            parts = found.partial if row.kind == PARTIAL else found.reject
            parts.append(Part.from_row(detail))
    return found


def write_share(
    records: Iterable[pa.RecordBatch], *, seen: Flushes, turn: int, lake: Path
) -> Iterator[pa.RecordBatch]:
    found = partials(records, seen)
    results: list[tuple[str, Any]] = [(FLUSH, each._asdict()) for each in found.flushes]
    rows = [*_sum_rows(found.sums, turn), *_flush_rows(found.flushes, turn)]
    parts = write_parts(rows, lake / PARTIAL, PARTIAL_BY, is_tracked=False)
    results += [(PARTIAL, part.to_row()) for part in parts]
    if found.rejected:
        rejected = [batch_of(found.rejected, REJECT_SCHEMA)]
        parts = write_parts(rejected, lake / REJECT, (), is_tracked=False)
        results += [(REJECT, part.to_row()) for part in parts]
    yield batch_of([(kind, json.dumps(detail)) for kind, detail in results], _RESULT)


def _sum_rows(sums: pa.Table, turn: int) -> list[pa.RecordBatch]:
    count = sums.num_rows
    made = {
        **dict(zip(sums.column_names, sums.columns, strict=True)),
        "turn": pa.repeat(pa.scalar(turn, pa.int64()), count),
        "date": sums.column("hour").cast(pa.date32()),
    }
    columns = [made.get(each.name, pa.nulls(count, each.type)) for each in PARTIAL_SCHEMA]
    return list(pa.table(columns, schema=PARTIAL_SCHEMA).combine_chunks().to_batches())


def _flush_rows(flushes: Iterable[FlushRange], turn: int) -> list[pa.RecordBatch]:
    rows = [
        {
            **each._asdict(),
            "kind": FLUSH,
            "hour": each.hour_number * HOUR_MS * 1_000,
            "turn": turn,
            "date": each.written_at_ms // 86_400_000,
        }
        for each in flushes
    ]
    return list(pa.Table.from_pylist(rows, PARTIAL_SCHEMA).to_batches())


class Share(NamedTuple):
    """The hours of one day whose final sums one task computes. ``through`` maps each hour to the
    last commit whose partial sums belong to it; ``files`` maps each kind to the files to read."""

    through: Mapping[int, int]
    files: Mapping[str, Sequence[str]]


class PartialFile(NamedTuple):
    """A file of the table ``usage_partial``. The first or last hour is None if it is unknown."""

    path: str
    kind: str
    first: int | None
    last: int | None

    def may_have(self, first: int, last: int) -> bool:
        return (self.first is None or self.first <= last) and (
            self.last is None or self.last >= first
        )


def files_of(partial: Table) -> list[PartialFile]:
    """Return all files of the table ``usage_partial``, without opening them."""
    actions = partial.open().get_add_actions(flatten=True)
    names = ("path", "partition.kind", "min.hour", "max.hour")
    rows = zip(*(actions.column(name).to_pylist() for name in names), strict=True)
    return [
        PartialFile(str(partial.path / path), kind, _number(first), _number(last))
        for path, kind, first, last in rows
    ]


def first_hour(files: Sequence[PartialFile]) -> int | None:
    return min((file.first for file in files if file.first is not None), default=None)


def shares_of(through: Mapping[int, int], files: Sequence[PartialFile]) -> list[Share]:
    """Divide the hours among tasks. Each task gets successive hours of one day."""
    cut: list[list[int]] = []
    for hour in sorted(through):
        last = cut[-1] if cut else []
        is_same_day = last and last[0] // _HOURS_PER_DAY == hour // _HOURS_PER_DAY
        if is_same_day and len(last) < HOURS_PER_TASK:
            last.append(hour)
        else:
            cut.append([hour])
    shares = []
    for hours in cut:
        mine = [file for file in files if file.may_have(hours[0], hours[-1])]
        by_kind = {
            k: [file.path for file in mine if file.kind == k] for k in (wire.CALLS, wire.STORAGE)
        }
        if any(by_kind.values()):
            shares.append(Share({hour: through[hour] for hour in hours}, by_kind))
    return shares


def _number(hour: datetime | None) -> int | None:
    return None if hour is None else int(hour.timestamp() * 1_000) // HOUR_MS


def seal(spark: "SparkSession", shares: Sequence[Share], lake: Path) -> list[Part]:
    if not shares:
        return []

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield batch_of_parts(seal_share(shares[number], lake))

    tasks = min(len(shares), 2 * spark.sparkContext.defaultParallelism)
    return read_parts(map_in_arrow(spark.range(0, len(shares), 1, tasks), work, PART_SCHEMA))


def seal_share(share: Share, lake: Path) -> list[Part]:
    sums = folding()
    for kind, paths in share.files.items():
        for path in paths:
            for table in _partials(path, kind, share.through):
                sums.add(table)
    made = _dated(sums.result(SUMS_SCHEMA), share.through)
    return write_parts(
        made.combine_chunks().to_batches(), lake / HOURLY, HOURLY_BY, is_tracked=False
    )


def _partials(path: str, kind: str, through: Mapping[int, int]) -> Iterator[pa.Table]:
    hours = pa.array([hour * _HOUR_US for hour in through]).cast(SUMS_SCHEMA.field("hour").type)
    turns = pa.array(list(through.values()), pa.int64())
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(_READ_ROWS, columns=_IN_FILES, use_threads=False):
            # The turn up to which a row's hour is sealed; null for all other hours.
            sealed = turns.take(pc.index_in(batch.column("hour"), hours))
            mine = batch.filter(pc.less_equal(batch.column("turn"), sealed))
            if mine.num_rows:
                kinds = pa.repeat(pa.scalar(kind), mine.num_rows)
                arrays = [kinds if f.name == "kind" else mine.column(f.name) for f in SUMS_SCHEMA]
                yield pa.Table.from_arrays(arrays, schema=SUMS_SCHEMA)


def _dated(sums: pa.Table, through: Mapping[int, int]) -> pa.Table:
    hours = sums.column("hour")
    numbers = pc.divide(hours.cast(pa.int64()), _HOUR_US).to_pylist()
    made = {
        "through": pa.array([through[number] for number in numbers], pa.int64()),
        "date": hours.cast(pa.date32()),
    }
    columns = [made[f.name] if f.name in made else sums.column(f.name) for f in HOURLY_SCHEMA]
    return pa.table(columns, schema=HOURLY_SCHEMA)
