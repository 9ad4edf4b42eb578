"""Reads rows of the lake for reports with PyArrow. Files are chosen by their statistics and read
batch by batch; sums are computed while reading, so memory holds sums and not rows."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline.job import JobMisused
from penstock.pipeline.lake import Lake

FOLD_ROWS: Final = 500_000
DAY_MS: Final = 86_400_000


def times(column: str, since_ms: int | None, until_ms: int | None) -> Any:
    """Return a condition on a time column and on the partition column ``date``; None: all rows."""
    condition = None
    for at_ms, is_since in ((since_ms, True), (until_ms, False)):
        if at_ms is None:
            continue
        at = datetime.datetime.fromtimestamp(at_ms / 1_000, datetime.UTC)
        edge = pa.scalar(at, pa.timestamp("us", tz="UTC"))
        day = pa.scalar(at.date(), pa.date32())
        part = (
            (pc.field(column) >= edge) & (pc.field("date") >= day)
            if is_since
            else (pc.field(column) < edge) & (pc.field("date") <= day)
        )
        condition = part if condition is None else condition & part
    return condition


def both(one: Any, other: Any) -> Any:
    """Return the conjunction of two conditions, either of which may be None."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def rows(lake: Lake, table: str, *, where: Any = None, rows_max: int = 100_000) -> list[Any]:
    """Return all columns of a table. Raises JobMisused if there are more than ``rows_max`` rows."""
    dataset = _dataset(lake, table)
    found: list[Any] = []
    for batch in dataset.to_batches(filter=where):
        found += batch.to_pylist()
        if len(found) > rows_max:
            raise JobMisused(
                f"table {table} has more than {rows_max:,} rows for this report: "
                "choose a shorter time with --from and --to"
            )
    return found


def summed(
    lake: Lake,
    table: str,
    *,
    keys: Sequence[str],
    sums: Sequence[str],
    where: Any = None,
    truncate: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Return sums by keys. ``truncate``: unit (hour, day) to which a time key is rounded down."""
    waiting: list[pa.Table] = []
    count = 0
    for batch in _dataset(lake, table).to_batches(columns=[*keys, *sums], filter=where):
        part = pa.Table.from_batches([batch])
        for name, unit in (truncate or {}).items():
            place = part.column_names.index(name)
            part = part.set_column(place, name, pc.floor_temporal(part.column(name), unit=unit))
        waiting.append(part)
        count += part.num_rows
        if count >= FOLD_ROWS:
            waiting, count = [_folded(waiting, keys, sums)], 0
    return _folded(waiting, keys, sums).to_pylist() if waiting else []


def _folded(tables: Sequence[pa.Table], keys: Sequence[str], sums: Sequence[str]) -> pa.Table:
    grouped = pa.concat_tables(tables).group_by(list(keys), use_threads=False)
    added = grouped.aggregate([(name, "sum") for name in sums])
    columns = [added.column(name) for name in keys]
    columns += [added.column(f"{name}_sum") for name in sums]
    return pa.table(columns, names=[*keys, *sums])


def _dataset(lake: Lake, table: str) -> Any:
    return lake.table(table).open().to_pyarrow_dataset()
