"""Latencies in logarithmic buckets: recording costs a shift and an addition, whatever the value.

A list of samples would grow with the run and make the garbage collector part of what is measured;
buckets are a fixed few thousand integers. Values are microseconds. Up to 127 they are exact, above
that a bucket is at most 1/64 of its value wide, so that a percentile is off by less than 1.6 %.
"""

SUB_BUCKETS = 64  # per power of two
EXPONENT_MAX = 32  # 2^32 µs, more than an hour: later ones count in the last bucket
BUCKET_COUNT = SUB_BUCKETS * (EXPONENT_MAX - 5)


def bucket_of(value_us: int) -> int:
    """Where a value counts. Below 128 the value itself, then 64 buckets to each power of two."""
    if value_us < 2 * SUB_BUCKETS:
        return max(value_us, 0)
    shift = value_us.bit_length() - 7
    index = (shift << 6) + (value_us >> shift)
    return index if index < BUCKET_COUNT else BUCKET_COUNT - 1


def upper_edge_of(bucket: int) -> int:
    """The largest value that counts in a bucket."""
    if bucket < 2 * SUB_BUCKETS:
        return bucket
    shift = (bucket >> 6) - 1
    mantissa = bucket - (shift << 6)
    return ((mantissa + 1) << shift) - 1


class Histogram:
    __slots__ = ("_counts", "count", "max_us", "sum_us")

    def __init__(self) -> None:
        self._counts = [0] * BUCKET_COUNT
        self.count = 0
        self.sum_us = 0
        self.max_us = 0

    def record(self, value_us: int) -> None:
        # bucket_of, written out: this runs once per request.
        if value_us < 128:
            self._counts[value_us if value_us > 0 else 0] += 1
        else:
            shift = value_us.bit_length() - 7
            index = (shift << 6) + (value_us >> shift)
            self._counts[index if index < BUCKET_COUNT else BUCKET_COUNT - 1] += 1
        self.count += 1
        self.sum_us += value_us
        if value_us > self.max_us:
            self.max_us = value_us

    def percentile(self, percent: float) -> int:
        """The upper edge of the bucket that holds the percentile; 0 when nothing was recorded."""
        rank = self.count * percent / 100
        seen = 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if count and seen >= rank:
                return min(upper_edge_of(bucket), self.max_us)
        return 0

    @property
    def mean_us(self) -> float:
        return self.sum_us / self.count if self.count else 0.0
