"""Reads many whole batches as one buffer, for readers that forward bytes unchanged: splitting the
bytes into batches would only cost time.

    a verified range ──────────────► one read, no verification
    recently written and requested as a slice ──► not even a read
    any other ──► one read ──► verify every batch header and CRC ───► a verified range
                                   │ the first batch is bad
                                   └► None: ``Segment.read`` finds the damage batch by batch

A verified range is trusted for TRUSTED_READS further reads while the segment's files stay open,
then verified again. So damage on disk is detected after some reads instead of at once, but clients
that check the batches' CRCs detect it at once. All other readers, above all the lease cursor,
verify all they read. ``docs/adr/0015-fetches-verify-once.md`` explains the trade-off.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.log.storage.segment import Segment
from penstock.log.storage.segment_files import VerifiedRange
from penstock.log.storage.side_files import BatchStart, header_check, read_checks
from penstock.model.file_slice import FileSlice, Piece
from penstock.model.limits import BATCH_BYTES_MAX, KIB, MIB
from penstock.record.batch import ATTR_CONTROL, CRC_FROM, HEADER, HEADER_BYTES, LENGTH_FROM, MAGIC
from penstock.record.crc32c import crc32c

READ_BYTES_MAX = 4 * MIB  # longer reads would delay all other requests
TRUSTED_READS = 15  # between two verifications of one range
SLICE_BYTES_MIN = 64 * KIB  # below this size a copy is cheaper than a slice
_CHECKS_FIRST = 64  # enough for a MiB of batches of ordinary size
_CHECKS_AHEAD = 1_024
_COUNT_AT = slice(57, 61)
_ATTRIBUTES_LOW_AT = 22


class BatchBuffers(NamedTuple):
    buffers: Sequence[Piece]  # whole batches; the first may begin before the requested offset
    next_offset: int  # the offset after the last batch
    record_count: int  # without control records
    is_all_empty: bool = False  # only empty batches, left by compaction


def buffers_of(batches: Sequence[bytes], start: int) -> BatchBuffers:
    count = 0
    next_offset = start
    filled: Sequence[bytes] = batches
    if any(len(batch) == HEADER_BYTES for batch in batches):
        filled = [batch for batch in batches if len(batch) > HEADER_BYTES]
    for batch in filled:
        if not batch[_ATTRIBUTES_LOW_AT] & ATTR_CONTROL:
            count += int.from_bytes(batch[_COUNT_AT], "big")
    if batches:
        last = HEADER.unpack_from(batches[-1])
        next_offset = last[0] + last[6] + 1
    if batches and not filled:
        return BatchBuffers(batches[-1:], next_offset, 0, is_all_empty=True)
    return BatchBuffers(filled, next_offset, count)


def read_buffers(
    segment: Segment, start: int, *, bytes_max: int, up_to: int, as_slice: bool
) -> BatchBuffers | None:
    """Return whole batches from offset ``start`` on, or None if the first batch is bad. With
    ``as_slice``, the result may be a slice of the file."""
    assert segment.base_offset <= start < segment.end_offset
    bytes_max = min(bytes_max, READ_BYTES_MAX)
    if as_slice and segment.recent:
        recent = segment.recent.find(
            start,
            bytes_max=bytes_max,
            up_to=up_to,
            end_offset=segment.end_offset,
            end_position=segment.bytes,
        )
        file = segment.files.log_file
        if recent is not None and recent[1] >= SLICE_BYTES_MIN and file is not None:
            position, size, next_offset, count = recent
            return BatchBuffers((FileSlice(file, position, size),), next_offset, count)
    verified = segment.files.verified
    known = verified.get(start)
    if known is not None and known.trusted_reads:
        found = _read_known(segment, known, bytes_max=bytes_max, up_to=up_to, as_slice=as_slice)
        if found is not None:
            return found
    if as_slice and (after := segment.recent.next_after(start)) is not None:
        up_to = min(up_to, after)  # the next read continues from position to position
    # If only the index is known, less than one index interval must be skipped.
    ahead = segment.interval_bytes if known is None else 0
    place = segment.find(start) if known is None else known.place
    walk = _BufferWalk(segment, place, max(bytes_max, HEADER_BYTES) + ahead)
    found = walk.run(start, bytes_max=bytes_max, up_to=up_to)
    if found is None and walk.wanted_bytes:
        walk = _BufferWalk(segment, place, walk.wanted_bytes)
        found = walk.run(start, bytes_max=bytes_max, up_to=up_to)
    if found is not None:
        known = verified.at(start, walk.first)
        if not walk.is_gapped:
            known.size = len(found.buffers[0])
            known.next_offset = found.next_offset
            known.record_count = found.record_count
            known.trusted_reads = TRUSTED_READS
        if found.next_offset < segment.end_offset:
            verified.at(found.next_offset, walk.end)
    return found


def _read_known(
    segment: Segment, first: VerifiedRange, *, bytes_max: int, up_to: int, as_slice: bool
) -> BatchBuffers | None:
    find = segment.files.verified.get
    position = first.place.position
    size = count = next_offset = 0
    known: VerifiedRange | None = first
    while (
        known is not None
        and known.trusted_reads
        and known.next_offset <= up_to
        and size + known.size <= bytes_max
        and known.place.position == position + size
    ):
        known.trusted_reads -= 1
        size += known.size
        count += known.record_count
        next_offset = known.next_offset
        known = find(next_offset)
    if not size:
        return None
    file = segment.files.log_file
    if as_slice and size >= SLICE_BYTES_MIN and file is not None:
        return BatchBuffers((FileSlice(file, position, size),), next_offset, count)
    data = segment.disk.pread(segment.files.log_fd, size, position)
    return BatchBuffers((data,), next_offset, count) if len(data) == size else None


class _BufferWalk:
    __slots__ = ("_data", "_place", "_segment", "end", "first", "is_gapped", "wanted_bytes")

    def __init__(self, segment: Segment, place: BatchStart, size: int) -> None:
        self._segment = segment
        self._place = place
        size = min(size, segment.bytes - place.position)
        self._data = segment.disk.pread(segment.files.log_fd, size, place.position)
        self.first = self.end = place  # start of the first batch found; start after the last
        self.is_gapped = False  # contains empty batches
        self.wanted_bytes = 0  # size of the first batch if it is longer than the read, else 0

    def run(self, start: int, *, bytes_max: int, up_to: int) -> BatchBuffers | None:
        """Return the valid batches from ``start`` on. Function calls are avoided, for speed."""
        segment, data, checks_file = self._segment, self._data, self._segment.files.checks
        view = memoryview(data)
        size, place = len(data), self._place
        offset = segment.base_offset + place.relative
        checks = read_checks(checks_file, place.ordinal, _CHECKS_FIRST)
        at = ordinal = count = 0
        first = -1
        empty: list[int] = []
        while at + HEADER_BYTES <= size:
            header = HEADER.unpack_from(data, at)
            end = at + header[1] + LENGTH_FROM
            next_offset = offset + header[6] + 1
            if ordinal == len(checks):
                checks += read_checks(checks_file, place.ordinal + ordinal, _CHECKS_AHEAD)
                if ordinal == len(checks):
                    break
            if (
                header[0] != offset
                or header[3] != MAGIC
                or not HEADER_BYTES <= end - at <= BATCH_BYTES_MAX
                or next_offset <= offset
                or header_check(view[at : at + HEADER_BYTES]) != checks[ordinal]
            ):
                break
            if next_offset > start:
                if first < 0:
                    first = at
                    self.first = BatchStart(
                        offset - segment.base_offset, place.position + at, place.ordinal + ordinal
                    )
                if end > size or next_offset > up_to or (end - first > bytes_max and at > first):
                    self.wanted_bytes = end if at == first and end > size else 0
                    break
                if crc32c(view[at + CRC_FROM : end]) != header[4]:
                    break
                if end - at == HEADER_BYTES:
                    empty.append(at)
                elif not header[5] & ATTR_CONTROL:
                    count += header[12]
            at, offset, ordinal = end, next_offset, ordinal + 1
        if first < 0 or at == first:
            return None
        relative = offset - segment.base_offset
        self.end = BatchStart(relative, place.position + at, place.ordinal + ordinal)
        self.is_gapped = bool(empty)
        if empty:
            return _without(view, first, at, empty, offset, count)
        whole = data if at - first == size else view[first:at]
        return BatchBuffers((whole,), offset, count)


def _without(
    view: memoryview, first: int, end: int, empty: Sequence[int], next_offset: int, count: int
) -> BatchBuffers:
    buffers: list[Piece] = []
    for at in empty:
        if at > first:
            buffers.append(view[first:at])
        first = at + HEADER_BYTES
    if first < end:
        buffers.append(view[first:end])
    if not buffers:
        last = view[empty[-1] : empty[-1] + HEADER_BYTES]
        return BatchBuffers((last,), next_offset, 0, is_all_empty=True)
    return BatchBuffers(buffers, next_offset, count)
