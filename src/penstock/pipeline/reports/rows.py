"""Reads rows of the lake for reports with PyArrow, and converts them to series for plots. Files are
chosen by their statistics and read batch by batch; sums are computed while reading, so memory holds
sums and not rows. A plot has one series for each of the largest names and one for all others. A
series has a limited number of time steps, without gaps."""

import datetime
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline.arrow_map import Folding, add_up
from penstock.pipeline.job import JobMisused, utc
from penstock.pipeline.lake import Lake
from penstock.pipeline.reports.charts import COLOURS

FOLD_ROWS: Final = 500_000
DAY_MS: Final = 86_400_000


def times(column: str, since_ms: int | None, until_ms: int | None) -> Any:
    """Return a filter on a time column and ``date``, or None if the time range is unlimited."""
    condition = None
    at, date = pc.field(column), pc.field("date")
    if since_ms is not None:
        edge, day = _scalars(since_ms)
        condition = (at >= edge) & (date >= day)
    if until_ms is not None:
        edge, day = _scalars(until_ms)
        condition = both(condition, (at < edge) & (date <= day))
    return condition


def _scalars(at_ms: int) -> tuple[Any, Any]:
    at = utc(at_ms)
    return pa.scalar(at, pa.timestamp("us", tz="UTC")), pa.scalar(at.date(), pa.date32())


def both(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def rows(lake: Lake, table: str, *, where: Any = None, rows_max: int = 100_000) -> list[Any]:
    """Return the rows of a table. Raises JobMisused if there are more than ``rows_max``."""
    found: list[Any] = []
    for batch in _dataset(lake, table).to_batches(filter=where):
        found += batch.to_pylist()
        if len(found) > rows_max:
            raise JobMisused(
                f"table {table} has more than {rows_max:,} rows for this report: "
                "choose a shorter time range with --from and --to"
            )
    return found


def summed(
    lake: Lake,
    table: str,
    *,
    keys: Sequence[str],
    sums: Sequence[str],
    where: Any = None,
) -> list[dict[str, Any]]:
    folding, part = Folding(lambda found: add_up(found, keys, sums), FOLD_ROWS), None
    for batch in _dataset(lake, table).to_batches(columns=[*keys, *sums], filter=where):
        part = pa.Table.from_batches([batch])
        folding.add(part)
    return [] if part is None else folding.result(part.schema).to_pylist()


def _dataset(lake: Lake, table: str) -> Any:
    return lake.table(table).open().to_pyarrow_dataset()


OTHERS: Final = "others"
MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400
# Maximum number of steps of each length in a plot; days are not limited.
_ROOM: Final = ((MINUTE_S, 180), (HOUR_S, 96), (DAY_S, 1 << 30))
_UNITS: Final[Mapping[int, str]] = {MINUTE_S: "a minute", HOUR_S: "an hour", DAY_S: "a day"}

Row = Mapping[str, Any]


class Series(NamedTuple):
    times: Sequence[datetime.datetime]
    values: Mapping[str, Sequence[float]]  # by name
    step_s: int

    @property
    def unit(self) -> str:
        return _UNITS[self.step_s]


def by_column(column: str) -> Callable[[Row], str]:
    return lambda row: row[column] or "(unknown)"


def ranked_by(rows: Iterable[Row], name: Callable[[Row], str], value: str) -> dict[str, float]:
    """Sum up a column for each name, largest sum first. Names whose sum is 0 are left out."""
    totals: Counter[str] = Counter()
    for row in rows:
        totals[name(row)] += row[value]
    found = [(each, total) for each, total in totals.items() if total > 0]
    return dict(sorted(found, key=lambda each: (-each[1], each[0])))


def over_time(
    rows: Sequence[Row],
    value: str,
    name: Callable[[Row], str],
    *,
    at: str,
    step_s_min: int,
    series_max: int = len(COLOURS),
) -> Series:
    """Sum up a column for each name and time step. ``at`` is the name of the time column."""
    seconds = [int(row[at].timestamp()) for row in rows]
    for step_s, room in _ROOM:
        first = min(seconds) // step_s
        count = max(seconds) // step_s - first + 1
        if step_s >= step_s_min and count <= room:
            break
    ranked = list(ranked_by(rows, name, value))
    values = {each: [0.0] * count for each in ranked[:series_max]}
    if len(ranked) > series_max:
        values[OTHERS] = [0.0] * count
    for row, second in zip(rows, seconds, strict=True):
        if row[value]:
            own = name(row)
            values[own if own in values else OTHERS][second // step_s - first] += row[value]
    times = [
        datetime.datetime.fromtimestamp((first + place) * step_s, datetime.UTC)
        for place in range(count)
    ]
    return Series(times, values, step_s)
