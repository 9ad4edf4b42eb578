"""Pure decisions about which whole segments to compact, and which of them to merge.

start              clean offset              up to                    end
  ├── clean ─────────────┼── dirty ─────────────┼── not yet ────────────┤
  one record per key        may repeat keys of      open transactions, records that are too
                            earlier records         young, the active segment
"""

from collections.abc import Sequence

from penstock.log.index import RELATIVE_MAX
from penstock.log.segment import SegmentInfo


def cleanable(
    segments: Sequence[SegmentInfo],
    *,
    clean_offset: int,
    up_to: int,
    dirty_ratio_min: float,
    lag_ms_min: int,
    lag_ms_max: int,
    now_ms: int,
) -> Sequence[SegmentInfo]:
    """Return the segments that a round of compaction reads, or none if it is not worthwhile: the
    fraction of bytes that were never compacted must be above ``dirty_ratio_min``, or the oldest
    such segment must be older than ``lag_ms_max``. Segments with records younger than
    ``lag_ms_min`` wait. The last of ``segments`` is the active one and is never chosen."""
    chosen = []
    for segment in segments[:-1]:
        is_young = lag_ms_min > 0 and segment.max_timestamp_ms > now_ms - lag_ms_min
        if segment.end_offset > up_to or is_young:
            break
        chosen.append(segment)
    dirty = [segment for segment in chosen if segment.end_offset > clean_offset]
    if not dirty:
        return ()
    dirty_bytes = sum(segment.bytes for segment in dirty)
    total_bytes = sum(segment.bytes for segment in chosen)
    is_late = now_ms - dirty[0].max_timestamp_ms > lag_ms_max
    return chosen if is_late or dirty_bytes > dirty_ratio_min * total_bytes else ()


def grouped(segments: Sequence[SegmentInfo], *, bytes_max: int) -> list[list[SegmentInfo]]:
    """Group neighbouring segments that together fit into one, by their present sizes. Without this,
    a log whose old segments become empty would keep an empty file for each of them."""
    groups: list[list[SegmentInfo]] = []
    size = 0
    for segment in segments:
        size += segment.bytes
        if (
            groups
            and size <= bytes_max
            and segment.end_offset - groups[-1][0].base_offset <= RELATIVE_MAX
        ):
            groups[-1].append(segment)
        else:
            groups.append([segment])
            size = segment.bytes
    return groups
