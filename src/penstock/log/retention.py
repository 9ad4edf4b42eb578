"""Functions that decide which segments of a log to drop, to compact and to merge."""

from collections.abc import Sequence

from penstock.log.storage.segment import SegmentInfo
from penstock.log.storage.side_files import RELATIVE_MAX
from penstock.model.stream import StreamSettings


def droppable(
    segments: Sequence[SegmentInfo],
    settings: StreamSettings,
    *,
    low_offset: int,
    keep_after_ms: int | None,
    now_ms: int,
) -> int:
    """Return the offset before which to drop segments. The last of ``segments`` is always kept.

    A segment is dropped if every record in it is finished (it ends at or before ``low_offset``), if
    its newest record is older than ``retention_ms``, or while the log is larger than
    ``retention_bytes``. It is always kept if it has records newer than ``keep_after_ms``, because
    their deduplication ids are still needed. The first segment that is kept ends the search,
    because a log has no holes."""
    if not segments:
        return low_offset
    retention_ms, retention_bytes = settings.retention_ms, settings.retention_bytes
    offset = segments[0].base_offset
    total_bytes = sum(segment.bytes for segment in segments)
    for segment in segments[:-1]:
        if keep_after_ms is not None and segment.max_timestamp_ms > keep_after_ms:
            break
        is_finished = segment.end_offset <= low_offset
        is_old = retention_ms is not None and segment.max_timestamp_ms < now_ms - retention_ms
        is_over = retention_bytes is not None and total_bytes > retention_bytes
        if not (is_finished or is_old or is_over):
            break
        total_bytes -= segment.bytes
        offset = segment.end_offset
    return offset


def cleanable(
    segments: Sequence[SegmentInfo],
    settings: StreamSettings,
    *,
    clean_offset: int,
    up_to: int,
    now_ms: int,
) -> Sequence[SegmentInfo]:
    """Return the segments to compact, or none if compaction is not worthwhile.

    start              clean offset              up to                    end
      ├── clean ─────────────┼── dirty ─────────────┼── not yet ────────────┤
      one record per key        may repeat keys of      open transactions, records that are too
                                earlier records         young, the active segment

    The fraction of bytes that were never compacted must be above ``dirty_ratio_min``, or the oldest
    such segment must be older than ``compaction_lag_ms_max``. Segments with records younger than
    ``compaction_lag_ms_min`` wait. The last of ``segments`` is active and never chosen."""
    chosen = []
    lag_ms_min = settings.compaction_lag_ms_min
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
    is_late = now_ms - dirty[0].max_timestamp_ms > settings.compaction_lag_ms_max
    return chosen if is_late or dirty_bytes > settings.dirty_ratio_min * total_bytes else ()


def grouped(segments: Sequence[SegmentInfo], *, bytes_max: int) -> list[list[SegmentInfo]]:
    """Group neighbouring segments that together fit into one segment."""
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
