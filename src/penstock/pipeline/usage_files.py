"""Converts records of ``__usage`` to files of the tables ``usage_partial`` and ``usage_reject``, in
the tasks of a micro-batch.

The task that fetches records also sums them (``usage_sums``) and writes the files. It reports the
files and the flushes in them to the driver. The driver decides whether they count, and names the
files in a commit; readers ignore files that no commit names, so a task may die or be repeated at
any time.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline.parts import Part, write_parts
from penstock.pipeline.range_source import Reading
from penstock.pipeline.usage_sums import FLUSH, HOUR_MS, OUT, REJECTED, Flushes, partials

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTIAL, REJECT = "usage_partial", "usage_reject"
PARTIAL_BY: Final = ("kind", "date")
PARTIAL_SCHEMA: Final = pa.schema(
    [
        *(each for each in OUT if each.name not in ("why", "value")),
        ("turn", pa.int64()),
        ("date", pa.date32()),
    ]
)
REJECT_SCHEMA: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("why", pa.string()),
        ("value", pa.binary()),
    ]
)
_TOLD_SPARK: Final = "what string, detail string"
_TOLD: Final = pa.schema([("what", pa.string()), ("detail", pa.string())])


@dataclass(frozen=True, slots=True)
class Told:
    """Flushes of one process, with consecutive numbers, that one task has counted."""

    node: str
    incarnation: str
    first_flush: int
    last_flush: int
    written_at_ms: int
    partition: int
    end_offset: int
    hour_number: int  # the first hour with facts


@dataclass(slots=True)
class Written:
    """The results of all tasks of a micro-batch."""

    partial: list[Part] = field(default_factory=list)
    reject: list[Part] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)

    def drop(self, lake: Path) -> None:
        """Delete files that no commit will name. Vacuum deletes those that this misses."""
        for table, parts in ((PARTIAL, self.partial), (REJECT, self.reject)):
            for part in parts:
                with contextlib.suppress(OSError):
                    (lake / table / part.path).unlink()


def write(frame: "DataFrame", reading: Reading, *, seen: Flushes, turn: int, lake: Path) -> Written:
    """Run the tasks. ``reading`` converts the batches of ``frame`` to records."""
    from penstock.pipeline.arrow_map import map_in_arrow

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from write_share(reading(batches), seen=seen, turn=turn, lake=lake)

    found = Written()
    for row in map_in_arrow(frame, work, _TOLD_SPARK).collect():
        detail = json.loads(row.detail)
        if row.what == PARTIAL:
            found.partial.append(Part.from_row(detail))
        elif row.what == REJECT:
            found.reject.append(Part.from_row(detail))
        else:
            found.told.append(Told(**detail))
    return found


def write_share(
    records: Iterable[pa.RecordBatch], *, seen: Flushes, turn: int, lake: Path
) -> Iterator[pa.RecordBatch]:
    """Do the work of one task, and yield rows of ``_TOLD``."""
    sums: list[pa.RecordBatch] = []
    rejects: list[pa.RecordBatch] = []
    told: list[tuple[str, Any]] = []
    for batch in partials(records, seen):
        kind = batch.column("kind")[0].as_py()  # a batch has sums, flushes or rejects
        if kind == REJECTED:
            rejects.append(_rejected(batch))
            continue
        sums.append(_dated(batch, turn, is_flush=kind == FLUSH))
        if kind == FLUSH:
            told += [(FLUSH, asdict(each)) for each in _told(batch)]
    for part in write_parts(sums, lake / PARTIAL, PARTIAL_BY, is_tracked=False):
        told.append((PARTIAL, part.to_row()))
    if rejects:
        for part in write_parts(rejects, lake / REJECT, (), is_tracked=False):
            told.append((REJECT, part.to_row()))
    rows = [{"what": what, "detail": json.dumps(detail)} for what, detail in told]
    yield pa.RecordBatch.from_pylist(rows, _TOLD)


def _dated(batch: pa.RecordBatch, turn: int, *, is_flush: bool) -> pa.RecordBatch:
    """Return rows of ``usage_partial``. The date of a flush is the day when it was written."""
    at = batch.column("hour")
    if is_flush:
        at = batch.column("written_at_ms").cast(pa.timestamp("ms", tz="UTC"))
    made = {
        "turn": pa.repeat(pa.scalar(turn, pa.int64()), batch.num_rows),
        "date": at.cast(pa.date32()),
    }
    arrays = [made[f.name] if f.name in made else batch.column(f.name) for f in PARTIAL_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=PARTIAL_SCHEMA)


def _rejected(batch: pa.RecordBatch) -> pa.RecordBatch:
    offset = pc.subtract(batch.column("end_offset"), 1)
    arrays = [offset if f.name == "offset" else batch.column(f.name) for f in REJECT_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=REJECT_SCHEMA)


def _told(batch: pa.RecordBatch) -> Iterator[Told]:
    names = [name for name in Told.__dataclass_fields__ if name != "hour_number"]
    hours = batch.column("hour").cast(pa.int64()).to_pylist()
    for row, hour_us in zip(batch.select(names).to_pylist(), hours, strict=True):
        yield Told(**row, hour_number=hour_us // (HOUR_MS * 1_000))
