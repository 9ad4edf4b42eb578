"""Converts rows with a time to series for a plot: with a limited number of steps, without gaps, and
with one series for each of the largest names and one for all others. Pure."""

import datetime
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.pipeline.reports.charts import COLOURS

OTHERS: Final = "others"
MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400
# Maximum number of steps of each length in a plot; days are not limited.
_ROOM: Final = ((MINUTE_S, 180), (HOUR_S, 96), (DAY_S, 1 << 30))
_UNITS: Final[Mapping[int, str]] = {MINUTE_S: "a minute", HOUR_S: "an hour", DAY_S: "a day"}

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Series:
    times: Sequence[datetime.datetime]
    values: Mapping[str, Sequence[float]]  # by name
    step_s: int

    @property
    def unit(self) -> str:
        return _UNITS[self.step_s]


def by_column(column: str) -> Callable[[Row], str]:
    return lambda row: row[column] or "(unknown)"


def ranked_by(rows: Iterable[Row], name: Callable[[Row], str], value: str) -> dict[str, float]:
    """Return the sums of a column by name, largest first, without names whose sum is 0."""
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
    """Return the series of at least one row. ``at``: the time column. ``step_s_min``: the length of
    the shortest step."""
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
