"""Converts records of ``__usage`` to files of the tables ``usage_partial`` and ``usage_reject``, in
the tasks of a micro-batch.

The task that fetches records also sums them (``usage_sums``) and writes the files. It reports the
files and the flushes in them to the driver. The driver decides whether they count, and names the
files in a commit; readers ignore files that no commit names, so a task may die or be repeated at
any time."""

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.pipeline.arrow_map import batch_of, map_in_arrow, schema_of
from penstock.pipeline.facts.usage_sums import HOUR_MS, SUMS_SCHEMA, Flushes, FlushRange, partials
from penstock.pipeline.parts import Part, write_parts
from penstock.pipeline.reading.range_source import RecordReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTIAL, REJECT = "usage_partial", "usage_reject"
FLUSH: Final = "flush"  # kind of the rows of usage_partial that name flushes, beside those of facts
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


@dataclass(slots=True)
class Written:
    """The results of all tasks of a micro-batch."""

    partial: list[Part] = field(default_factory=list)
    reject: list[Part] = field(default_factory=list)
    flushes: list[FlushRange] = field(default_factory=list)

    def drop(self, lake: Path) -> None:
        """Delete files that no commit will name. Vacuum deletes those that this misses."""
        for table, parts in ((PARTIAL, self.partial), (REJECT, self.reject)):
            for part in parts:
                with contextlib.suppress(OSError):
                    (lake / table / part.path).unlink()


def write(
    frame: "DataFrame", reading: RecordReader, *, seen: Flushes, turn: int, lake: Path
) -> Written:
    """Run the tasks. ``reading`` converts the batches of ``frame`` to records."""

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
    """Do the work of one task, and yield its results for the driver."""
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
    """Return rows whose date is the day when the flush was written."""
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
