"""Writes the files of the job ``usage`` in tasks: records of ``__usage`` become files of
``usage_partial`` and ``usage_reject``; the partials of complete hours become files of
``usage_hourly``. The driver names the files in a commit; readers ignore files that no commit names,
so a task may die or be repeated at any time.

To seal an hour is to write its final sums. A task seals some hours of one day, and reads the files
that may have partials of these hours. This takes a fraction of the CPU time of a join, a shuffle
and an aggregate in Spark, because partials are grouped and most files have few hours."""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.arrow_map import batch_of, map_in_arrow, schema_of
from penstock.pipeline.facts.usage_sums import (
    HOUR_MS,
    KEYS,
    SUMS,
    SUMS_SCHEMA,
    Flushes,
    FlushRange,
    folding,
    partials,
)
from penstock.pipeline.lake import Table
from penstock.pipeline.parts import PART_SCHEMA, Part, batch_of_parts, read_parts, write_parts
from penstock.pipeline.reading.stream_source import RecordReader
from penstock.wire.facts.usage import CALLS, STORAGE

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
        """Delete the written files, because they will not be committed."""
        for table, parts in ((PARTIAL, self.partial), (REJECT, self.reject)):
            for part in parts:
                with contextlib.suppress(OSError):
                    (lake / table / part.path).unlink()


def write(
    frame: DataFrame, reading: RecordReader, *, seen: Flushes, turn: int, lake: Path
) -> Written:
    """Sum the records in Spark tasks. ``reading`` converts the batches of ``frame`` to records."""

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
    results: list[tuple[str, Any]] = [(FLUSH, asdict(each)) for each in found.flushes]
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
            **asdict(each),
            "kind": FLUSH,
            "hour": each.hour_number * HOUR_MS * 1_000,
            "turn": turn,
            "date": each.written_at_ms // 86_400_000,
        }
        for each in flushes
    ]
    return list(pa.Table.from_pylist(rows, PARTIAL_SCHEMA).to_batches())


@dataclass(frozen=True, slots=True)
class Share:
    """The hours of one day whose final sums a task computes. ``through`` has, by hour, the number
    of the last commit whose partial sums belong to the hour; ``files`` has the files to read."""

    through: Mapping[int, int]
    files: Mapping[str, Sequence[str]]

    def to_text(self) -> str:
        return json.dumps([list(self.through.items()), dict(self.files)])

    @classmethod
    def from_text(cls, text: str) -> "Share":
        through, files = json.loads(text)
        return cls(dict(through), files)


@dataclass(frozen=True, slots=True)
class PartialFile:
    """A file of ``usage_partial``, with its first and last hour, or None if not known."""

    path: str
    kind: str
    first: int | None
    last: int | None

    def may_have(self, first: int, last: int) -> bool:
        return (self.first is None or self.first <= last) and (
            self.last is None or self.last >= first
        )


def files_of(partial: Table) -> list[PartialFile]:
    """Return all files of ``usage_partial``, from the table's log and without opening them."""
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
    """Divide hours among tasks, so that each task gets neighbouring hours of one day."""
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
        by_kind = {k: [file.path for file in mine if file.kind == k] for k in (CALLS, STORAGE)}
        if any(by_kind.values()):
            shares.append(Share({hour: through[hour] for hour in hours}, by_kind))
    return shares


def _number(hour: datetime | None) -> int | None:
    return None if hour is None else int(hour.timestamp() * 1_000) // HOUR_MS


def seal(spark: SparkSession, shares: Sequence[Share], lake: Path) -> list[Part]:
    if not shares:
        return []

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for text in batch.column("share").to_pylist():
                yield batch_of_parts(seal_share(Share.from_text(text), lake))

    tasks = min(len(shares), 2 * spark.sparkContext.defaultParallelism)
    rows = [(share.to_text(),) for share in shares]
    frame = spark.createDataFrame(rows, "share string").repartition(tasks)
    return read_parts(map_in_arrow(frame, work, PART_SCHEMA))


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
