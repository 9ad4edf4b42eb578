"""Computes the lag of consumer groups, and finds names with far more load than others.

A group's lag on a partition is computed from committed offsets and log ends of the last minutes:

- **seconds**: how long ago the log ended at the group's committed offset, interpolated between two
  moments. If the log was already longer at the first moment, the rate of appends gives an estimate.
- **trend**: growth of the lag in records per second, negative if it shrinks.
- **eta**: seconds until the group has caught up at the current trend; None if it will not.
- **state**: STALLED if the group lags and commits nothing; SLOW if it commits, but its lag grows;
  OK otherwise.

A queue, partition or node is hot if it has a large *share* of the total, or if it is an *outlier*,
measured by the median and the median absolute deviation, which a few hot names hardly change. If
most rates are equal, any difference would be an outlier, so an outlier's rate must also be several
times the median."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Final

STALLED_MS: Final = 60_000  # time without a commit; most groups commit every few seconds
SLOW_RECORDS_MIN: Final = 100  # a smaller lag is normal: one fetch returns as many records
SHARE_MIN: Final = 0.25
Z_MIN: Final = 3.5
TIMES_MEDIAN_MIN: Final = 3.0
HOT_MAX: Final = 50  # rows; a reader would not look at more
_TO_SIGMA: Final = 1.4826  # standard deviation per median absolute deviation, normal distribution


class State(StrEnum):
    OK = "OK"
    SLOW = "SLOW"
    STALLED = "STALLED"


@dataclass(frozen=True, slots=True)
class Point:
    at_ms: int
    committed: int
    log_end: int


@dataclass(frozen=True, slots=True)
class Lag:
    records: int
    seconds: float | None  # None: not known yet
    trend_per_s: float
    eta_s: float | None
    state: State


def lag_of(points: Sequence[Point]) -> Lag:
    first, last = points[0], points[-1]
    records = max(0, last.log_end - last.committed)
    span_s = (last.at_ms - first.at_ms) / 1_000
    if not records or span_s <= 0:
        seconds = None if records else 0.0
        return Lag(records, seconds, 0.0, None if records else 0.0, State.OK)
    before = max(0, first.log_end - first.committed)
    trend = (records - before) / span_s
    state = State.SLOW if trend > 0 and records >= SLOW_RECORDS_MIN else State.OK
    if last.committed <= first.committed and last.at_ms - first.at_ms >= STALLED_MS:
        state = State.STALLED
    return Lag(records, _seconds(points), trend, records / -trend if trend < 0 else None, state)


def _seconds(points: Sequence[Point]) -> float | None:
    last = points[-1]
    later = last
    for point in reversed(points):
        if point.log_end <= last.committed:
            # The log end passed the group's offset between this moment and the next.
            grown = max(later.log_end - point.log_end, 1)
            share = (last.committed - point.log_end) / grown
            at_ms = point.at_ms + share * (later.at_ms - point.at_ms)
            return (last.at_ms - at_ms) / 1_000
        later = point
    first = points[0]
    rate = (last.log_end - first.log_end) / ((last.at_ms - first.at_ms) / 1_000)
    if rate <= 0:
        return None  # no record was appended in this time, so the lag is older than the points
    return (last.at_ms - first.at_ms) / 1_000 + (first.log_end - last.committed) / rate


@dataclass(frozen=True, slots=True)
class Hot:
    name: str
    rate: float
    share: float
    z: float
    reason: str


def hot(rates: Mapping[str, float], *, rate_min: float = 1.0, hot_max: int = HOT_MAX) -> list[Hot]:
    """Return names with far more load than others, and at least ``rate_min``, highest first."""
    total = sum(rates.values())
    if total <= 0:
        return []
    values = list(rates.values())
    middle = median(values)
    spread = _TO_SIGMA * median(abs(value - middle) for value in values)
    found = []
    for name, rate in rates.items():
        share = rate / total
        z = (rate - middle) / max(spread, middle * 0.05, 1e-9)
        reason = _reason(rate, share, z, middle, count=len(values))
        if reason and rate >= rate_min:
            found.append(Hot(name, rate, share, round(min(z, 1e6), 2), reason))
    found.sort(key=lambda each: (-each.rate, each.name))
    return found[:hot_max]


def _reason(rate: float, share: float, z: float, middle: float, *, count: int) -> str:
    if count < 2:
        return ""  # a single name always has the whole load
    if z >= Z_MIN and rate >= TIMES_MEDIAN_MIN * middle and count >= 3:
        return f"{rate / middle:.0f} times the median" if middle else "the others have no load"
    if share >= max(SHARE_MIN, 2 / count):
        return f"{share:.0%} of the total"
    return ""
