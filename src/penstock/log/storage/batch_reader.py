"""A reader that returns verified batches one by one. Each header is compared with ``.check`` and
with the end of the batch before, each batch with its CRC. The first bad batch ends the read, or
raises DamagedRange if no good batch was read before it."""

from typing import TYPE_CHECKING

from penstock.log.storage.checkpoint import Damage, DamagedRange
from penstock.log.storage.scan import header_fault
from penstock.log.storage.side_files import HOLE, BatchStart, CheckWindow
from penstock.model.limits import MIB
from penstock.record.batch import CRC_FROM, HEADER_BYTES, LENGTH_FROM, BatchHeader, parse_header
from penstock.record.crc32c import crc32c

if TYPE_CHECKING:
    from penstock.log.storage.segment import Segment

READ_AHEAD_BYTES = MIB
CHECKS_AHEAD = 512

_NO_HEADER = parse_header(bytes(HEADER_BYTES))


class BatchReader:
    __slots__ = (
        "_bytes_max",
        "_checks",
        "_place",
        "_segment",
        "_window",
        "_window_at",
        "is_new_hole",
    )

    def __init__(self, segment: "Segment", place: BatchStart, *, bytes_max: int) -> None:
        self._segment = segment
        self._place = place
        self.is_new_hole = False  # a bad header was met, and no scan has found the damage's end yet
        self._bytes_max = bytes_max
        self._window = b""
        self._window_at = 0
        self._checks = CheckWindow(segment.files.checks, CHECKS_AHEAD)

    def run(self, start: int, *, up_to: int) -> list[bytes]:
        segment = self._segment
        position, ordinal = self._place.position, self._place.ordinal
        offset = segment.base_offset + self._place.relative
        batches: list[bytes] = []
        taken = 0
        while position < segment.bytes:
            raw = self._take(position, HEADER_BYTES)
            header, reason = self._header(raw, offset, ordinal)
            if reason is not None:
                if batches:
                    break
                self.is_new_hole = self._checks.at(ordinal) != HOLE
                raise self._damaged(position, offset, reason)
            total = header.length + LENGTH_FROM
            next_offset = header.next_offset
            if next_offset > start:
                if next_offset > up_to or (batches and taken + total > self._bytes_max):
                    break
                batch = self._take(position, total)
                if len(batch) < total or crc32c(memoryview(batch)[CRC_FROM:]) != header.crc:
                    if batches:
                        break
                    reason = "the CRC does not match"
                    raise self._damaged(position, offset, reason, header=header)
                batches.append(batch)
                taken += total
            position += total
            offset = next_offset
            ordinal += 1
        else:
            if not batches:
                # The segment is closed but ends before the next one begins.
                raise self._damaged(position, offset, "records are missing at the end of the file")
        return batches

    def _take(self, position: int, size: int) -> bytes:
        at = position - self._window_at
        data = self._window[at : at + size]
        if len(data) < size:
            segment = self._segment
            ahead = max(size, min(self._bytes_max + segment.interval_bytes, READ_AHEAD_BYTES))
            ahead = min(ahead, segment.bytes - position)
            self._window = segment.disk.pread(segment.files.log_fd, ahead, position)
            self._window_at = position
            data = self._window[:size]
        return data

    def _header(self, raw: bytes, offset: int, ordinal: int) -> tuple[BatchHeader, str | None]:
        if len(raw) < HEADER_BYTES:
            return _NO_HEADER, "the file ends inside a batch"
        header = parse_header(raw)
        reason = header_fault(header, offset)
        if reason is None and self._checks.is_refuted(raw, ordinal):
            reason = "the header differs from its check"
        return header, reason

    def _damaged(
        self, position: int, offset: int, reason: str, *, header: BatchHeader | None = None
    ) -> DamagedRange:
        """Without a trusted header, everything up to the next indexed batch is lost."""
        segment = self._segment
        if header is not None:
            end, next_offset = position + header.total_bytes, header.next_offset
        else:
            after = segment.files.index.find_after(position)
            end = segment.bytes if after is None else after.position
            next_offset = (
                segment.end_offset if after is None else segment.base_offset + after.relative
            )
        name = segment.path.name
        return DamagedRange(
            segment.folder, Damage(name, position, end - position, offset, next_offset, reason)
        )
