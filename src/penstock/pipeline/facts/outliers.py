"""Finds the queues, partitions or nodes that have far more load than others. Pure.

A name is hot if it has a large *share* of the total, or if it is an *outlier*. Outliers are
measured by the median and the median absolute deviation, which a few hot names hardly change. If
most rates are equal, any difference would be an outlier, so an outlier's rate must also be several
times the median."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

SHARE_MIN: Final = 0.25
Z_MIN: Final = 3.5
TIMES_MEDIAN_MIN: Final = 3.0
HOT_MAX: Final = 50  # rows; a reader would not look at more
_TO_SIGMA: Final = 1.4826  # standard deviation per median absolute deviation, normal distribution


@dataclass(frozen=True, slots=True)
class Hot:
    name: str
    rate: float
    share: float
    z: float
    reason: str


def hot(rates: Mapping[str, float], *, rate_min: float = 1.0, hot_max: int = HOT_MAX) -> list[Hot]:
    """Return the hot names with a rate of at least ``rate_min``, highest rate first."""
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
        return ""  # a single name always has everything
    if z >= Z_MIN and rate >= TIMES_MEDIAN_MIN * middle and count >= 3:
        return f"{rate / middle:.0f} times the median" if middle else "the others have nothing"
    if share >= max(SHARE_MIN, 2 / count):
        return f"{share:.0%} of all"
    return ""
