"""Computes a group's lag on a partition, and whether the group will catch up. Pure.

The lag is computed from committed offsets and log ends at several moments of the last minutes:

- **seconds**: how long ago the log ended at the group's committed offset, interpolated between two
  moments. If the log was already longer at the first moment, the rate of appends gives an estimate.
- **trend**: growth of the lag in records per second, negative if it shrinks.
- **eta**: seconds until the group has caught up at the current trend; None if it will not.
- **state**: STALLED if the group lags and commits nothing; SLOW if it commits, but its lag grows;
  OK otherwise."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

STALLED_MS: Final = 60_000  # time without a commit; most groups commit every few seconds
SLOW_RECORDS_MIN: Final = 100  # a smaller lag is normal: one fetch returns as many records


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
    """Compute the lag from at least one point, oldest first."""
    first, last = points[0], points[-1]
    records = max(0, last.log_end - last.committed)
    span_s = (last.at_ms - first.at_ms) / 1_000
    if not records or span_s <= 0:
        seconds = None if records else 0.0
        return Lag(records, seconds, 0.0, None if records else 0.0, State.OK)
    before = max(0, first.log_end - first.committed)
    trend = (records - before) / span_s
    return Lag(
        records=records,
        seconds=_seconds(points),
        trend_per_s=trend,
        eta_s=records / -trend if trend < 0 else None,
        state=_state(first, last, records, trend),
    )


def _state(first: Point, last: Point, records: int, trend: float) -> State:
    has_moved = last.committed > first.committed
    if not has_moved and last.at_ms - first.at_ms >= STALLED_MS:
        return State.STALLED
    return State.SLOW if trend > 0 and records >= SLOW_RECORDS_MIN else State.OK


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
