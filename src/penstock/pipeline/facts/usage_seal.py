"""Sums the partials of complete hours, from files of ``usage_partial`` to files of
``usage_hourly``.

A task has some hours of one day. It reads the files that may have partials of these hours, sums
them and writes files. This needs a fraction of the CPU time of a join, a shuffle and an aggregate
in Spark, because partials are grouped and most files have few hours. The memory of a task depends
on the number of sums in its hours, not on the number of partials."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.pipeline.arrow_map import batch_of, map_in_arrow, schema_of
from penstock.pipeline.facts.usage_sums import FOLD_ROWS, HOUR_MS, KEYS, SUMS, SUMS_SCHEMA, add_up
from penstock.pipeline.parts import Part, write_parts
from penstock.wire.facts.usage import CALLS, STORAGE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.lake import Table

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
_PART: Final = schema_of("part string")
_HOURS_PER_DAY: Final = 24
_READ_ROWS: Final = 131_072
_IN_FILES: Final = [name for name in (*KEYS, *SUMS, "turn") if name != "kind"]
_HOUR_US: Final = HOUR_MS * 1_000


@dataclass(frozen=True, slots=True)
class Share:
    """The work of one task: hours of one day, as numbers, each with the turn up to which partials
    belong to it; and by kind, the files that may have partials."""

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
    """A file of ``usage_partial``, with its first and last hour; None: not known."""

    path: str
    kind: str
    first: int | None
    last: int | None

    def may_have(self, first: int, last: int) -> bool:
        """Return whether the file can have rows of these hours."""
        return (self.first is None or self.first <= last) and (
            self.last is None or self.last >= first
        )


def files_of(partial: "Table") -> list[PartialFile]:
    """Return all files, with facts from the log of commits: no file is opened."""
    actions = partial.open().get_add_actions(flatten=True)
    names = ("path", "partition.kind", "min.hour", "max.hour")
    rows = zip(*(actions.column(name).to_pylist() for name in names), strict=True)
    return [
        PartialFile(str(partial.path / path), kind, _number(first), _number(last))
        for path, kind, first, last in rows
    ]


def first_hour(files: Sequence[PartialFile]) -> int | None:
    """Return the first hour of all files, or None."""
    return min((file.first for file in files if file.first is not None), default=None)


def shares_of(through: Mapping[int, int], files: Sequence[PartialFile]) -> list[Share]:
    """Divide hours, as numbers, among tasks: each gets neighbouring hours of one day."""
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


def seal(spark: "SparkSession", shares: Sequence[Share], lake: Path) -> list[Part]:
    """Run the tasks, and return the files that they wrote."""
    if not shares:
        return []

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            texts = [
                json.dumps(part.to_row())
                for text in batch.column("share").to_pylist()
                for part in seal_share(Share.from_text(text), lake)
            ]
            yield batch_of([(text,) for text in texts], _PART)

    tasks = min(len(shares), 2 * spark.sparkContext.defaultParallelism)
    rows = [(share.to_text(),) for share in shares]
    frame = spark.createDataFrame(rows, "share string").repartition(tasks)
    return [
        Part.from_row(json.loads(row.part)) for row in map_in_arrow(frame, work, _PART).collect()
    ]


def seal_share(share: Share, lake: Path) -> list[Part]:
    sums = [SUMS_SCHEMA.empty_table()]
    rows = 0
    for kind, paths in share.files.items():
        for path in paths:
            for table in _partials(path, kind, share.through):
                sums.append(table)
                rows += table.num_rows
                if rows >= FOLD_ROWS:
                    sums = [add_up(pa.concat_tables(sums))]
                    rows = sums[0].num_rows
    table = _dated(add_up(pa.concat_tables(sums)), share.through)
    batches = table.combine_chunks().to_batches()
    return write_parts(batches, lake / HOURLY, HOURLY_BY, is_tracked=False)


def _partials(path: str, kind: str, through: Mapping[int, int]) -> Iterator[pa.Table]:
    """Yield the rows of one file that belong to these hours."""
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
