"""A histogram of latencies with a fixed number of buckets, so that a run of an hour needs no more
memory than a run of a second.

Buckets grow by one percent each, from a microsecond to about two minutes, so a percentile is at
most one percent too high. Longer times count in the last bucket; the maximum is kept exactly."""

import math

_GROWTH = math.log(1.01)
_FIRST_S = 1e-6
_BUCKETS = 1_870


class Histogram:
    def __init__(self) -> None:
        self._counts = [0] * (_BUCKETS + 1)
        self.count = 0
        self.max_s = 0.0

    def add(self, seconds: float) -> None:
        index = 0
        if seconds > _FIRST_S:
            index = min(math.ceil(math.log(seconds / _FIRST_S) / _GROWTH), _BUCKETS)
        self._counts[index] += 1
        self.count += 1
        self.max_s = max(self.max_s, seconds)

    def percentile(self, percent: float) -> float:
        """Return the upper edge of the bucket that contains the percentile, in seconds."""
        if not self.count:
            return 0.0
        wanted = max(1, math.ceil(self.count * percent / 100))
        seen = 0
        for index, count in enumerate(self._counts):
            seen += count
            if seen >= wanted:
                return min(_FIRST_S * math.exp(index * _GROWTH), self.max_s)
        raise AssertionError("the counts add up to count")

    def summary_ms(self) -> dict[str, float]:
        points = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99_9": 99.9}
        summary = {
            name: round(self.percentile(percent) * 1_000, 3) for name, percent in points.items()
        }
        return {**summary, "max": round(self.max_s * 1_000, 3)}
