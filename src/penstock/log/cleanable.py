"""What is worth compacting, and in which portions: pure decisions over whole segments.

start              clean offset              up to                    end
  ├── clean ─────────────┼── dirty ─────────────┼── not yet ────────────┤
  one record per key        may repeat the keys     open transactions, too young, the segment
                            of what lies before     that is being appended to
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
    """The segments that a round of compaction reads, for a log of these, the last one being
    appended to; none when it is not worth it. It is when the share of bytes that have never been
    compacted is above ``dirty_ratio_min``, or when the first of them has waited for longer than
    ``lag_ms_max``. Segments with records younger than ``lag_ms_min`` are left for later."""
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
    """Neighbours that become one segment: as many as fit, judged by what they are now. Otherwise
    a log whose old segments shrink to nothing would keep a file of nothing for each of them."""
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
