"""Merges histograms of durations from ``__telemetry``, and computes percentiles. A histogram is a
list: the number of its first bucket, followed by the counts of this and the next buckets
(``wire/facts/telemetry.py``). Merging is exact, in any order. A percentile is the upper bound of
its bucket: never less than the true value, and at most 9 % more."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.wire.facts.telemetry import BUCKET_LAST, bound, packed, unpacked

Longs = npt.NDArray[np.int64]
_BUCKETS: Final = BUCKET_LAST + 1


def merge(hists: Iterable[Sequence[int]]) -> list[int]:
    total: dict[int, int] = {}
    for hist in hists:
        for bucket, count in unpacked(hist).items():
            total[bucket] = total.get(bucket, 0) + count
    return packed(total)


def count_of(hist: Sequence[int]) -> int:
    return sum(hist[1:])


def percentile(hist: Sequence[int], q: float) -> float | None:
    """Return the duration in seconds that a fraction ``q`` of the observations did not exceed."""
    count = count_of(hist)
    if not count:
        return None
    rank = max(1, -(-int(q * count * 1_000_000) // 1_000_000))
    seen = 0
    for place, each in enumerate(hist[1:]):
        seen += each
        if seen >= rank:
            return bound(hist[0] + place)
    return bound(hist[0] + len(hist) - 2)


def merge_groups(offsets: Longs, values: Longs, groups: Longs, group_count: int) -> tuple[Any, Any]:
    """Merge many histograms at once: histogram ``i`` is ``values[offsets[i]:offsets[i + 1]]`` and
    belongs to group ``groups[i]``. Return offsets and values of one histogram for each group."""
    lengths = np.diff(offsets)
    used = lengths > 1
    sizes = lengths[used] - 1
    total = int(sizes.sum())
    if not total:
        return np.zeros(group_count + 1, np.int64), np.zeros(0, np.int64)
    begins = offsets[:-1][used]
    # The index of each count in its histogram, from 0.
    ends = np.cumsum(sizes)
    within = np.arange(total) - np.repeat(ends - sizes, sizes)
    counts = values[np.repeat(begins + 1, sizes) + within]
    buckets = np.repeat(values[begins], sizes) + within
    keys = np.repeat(groups[used], sizes) * _BUCKETS + buckets
    is_counted = counts > 0
    keys, inverse = np.unique(keys[is_counted], return_inverse=True)
    sums = np.zeros(len(keys), np.int64)
    np.add.at(sums, inverse, counts[is_counted])
    return _packed(keys // _BUCKETS, keys % _BUCKETS, sums, group_count)


def _packed(groups: Longs, buckets: Longs, sums: Longs, group_count: int) -> tuple[Longs, Longs]:
    first = np.full(group_count, -1, np.int64)
    last = np.full(group_count, -2, np.int64)
    last[groups] = buckets  # the last assignment to a group counts
    first[groups[::-1]] = buckets[::-1]
    sizes = np.where(first < 0, 0, last - first + 2)
    offsets = np.zeros(group_count + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    values = np.zeros(offsets[-1], np.int64)
    is_used = first >= 0
    values[offsets[:-1][is_used]] = first[is_used]
    values[offsets[:-1][groups] + 1 + buckets - first[groups]] = sums
    return offsets, values
