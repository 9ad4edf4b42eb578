"""Retention: a pure decision over whole segments, oldest first."""

from collections.abc import Sequence

from penstock.log.segment import SegmentInfo


def droppable(
    segments: Sequence[SegmentInfo],
    *,
    low_offset: int,
    retention_ms: int | None,
    retention_bytes: int | None,
    keep_after_ms: int | None,
    now_ms: int,
) -> int:
    """Return the offset before which to drop segments. The last segment is the active one.

    A segment is dropped if every record in it is finished (it ends at or before ``low_offset``), if
    its newest record is older than ``retention_ms``, or while the log is larger than
    ``retention_bytes``. It is always kept if it has records newer than ``keep_after_ms``, because
    their deduplication ids are still needed. The first segment that is kept ends the search,
    because a log has no holes."""
    if not segments:
        return low_offset
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
