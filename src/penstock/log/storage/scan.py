"""A scan of one segment file, which finds whole batches, damage and the end of valid data.
Everything is read and verified; nothing is changed.

A bad batch means one of two things. If no whole batch follows, it is the torn end of a log whose
last write did not finish, and nothing after it can be saved. If a whole batch follows, bytes in the
middle have changed: the range is reported as damage and the scan continues after it. A message body
that looks like a batch must not count as one: either the index must contain its position, or the
``.check`` file its header, or an unbroken chain of batches must lead to the end of the file.

``verified`` checks batches from a leader. They are stored with the offsets and epochs they arrive
with, so everything that a scan would reject is rejected before it is written."""

import re
from array import array
from dataclasses import dataclass, field
from pathlib import Path

from penstock.log.storage.checkpoint import Damage
from penstock.log.storage.files import Disk
from penstock.log.storage.segment_files import SegmentFiles
from penstock.log.storage.side_files import (
    HOLE,
    RELATIVE_MAX,
    START,
    BatchStart,
    header_check,
    is_entry_intact,
    read_checks,
)
from penstock.model.errors import Damaged
from penstock.model.limits import BATCH_BYTES_MAX, MIB
from penstock.record.batch import (
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LENGTH_FROM,
    MAGIC,
    BatchHeader,
    parse_header,
)
from penstock.record.compaction import empty_batch, is_bare, spanned
from penstock.record.crc32c import crc32c

WINDOW_BYTES = 4 * MIB
CANDIDATES_MAX = 1_000  # positions tried for one gap; more candidates are an attack
EPOCH_MIN = -(2**31)
ZEROS_REASON = "zeros up to the end of the file: space that was never written"


def header_fault(header: BatchHeader, offset: int) -> str | None:
    """Return why a batch header is invalid at ``offset``, or None if it is valid."""
    if header.magic != MAGIC:
        return f"the batch begins with magic {header.magic}, expected {MAGIC}"
    if header.base_offset != offset:
        return f"the batch has base offset {header.base_offset}, expected {offset}"
    if not HEADER_BYTES <= header.total_bytes <= BATCH_BYTES_MAX:
        return f"the header has an invalid batch size of {header.total_bytes} bytes"
    if header.last_offset_delta < 0:
        return f"the batch has the invalid last offset delta {header.last_offset_delta}"
    return None


def is_zero_from(disk: Disk, fd: int, position: int, size: int) -> bool:
    """Return whether only zeros follow ``position``, that is, space that was never written."""
    while position < size:
        chunk = disk.pread(fd, MIB, position)
        if chunk.count(0) != len(chunk):
            return False
        if not chunk:
            break
        position += len(chunk)
    return True


@dataclass(slots=True)
class Scan:
    """State and results of a scan. ``checks`` and ``places`` are the entries for the side files."""

    size: int  # bytes of the file to scan
    position: int
    offset: int
    ordinal: int
    epoch: int = EPOCH_MIN
    max_timestamp: int = -1
    last: BatchStart | None = None
    checks: "array[int]" = field(default_factory=lambda: array("I"))
    places: list[tuple[BatchStart, int]] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    tail_reason: str | None = None  # why the scan stopped before the end of the file

    def seal(self) -> None:
        if self.last is not None and (not self.places or self.places[-1][0] != self.last):
            self.places.append((self.last, self.max_timestamp))

    def gap_before(self, name: str, next_base: int) -> Damage:
        reason = self.tail_reason or f"records up to offset {next_base} are missing"
        size = self.size - self.position
        return Damage(name, self.position, size, self.offset, next_base, reason)


class Scanner:
    def __init__(
        self,
        files: SegmentFiles,
        start: BatchStart = START,
        *,
        epoch: int = EPOCH_MIN,
        max_timestamp: int = -1,
        bytes_max: int | None = None,
    ) -> None:
        self._files, self._disk, self._fd = files, files.disk, files.log_fd
        self._checks, self._base_offset = files.checks, files.base_offset
        self._wanted_bytes = 0  # size of the next batch if it is larger than the window
        size = self._disk.size(self._fd)
        self.scan = Scan(
            size if bytes_max is None else min(size, bytes_max),
            start.position,
            files.base_offset + start.relative,
            start.ordinal,
            epoch=epoch,
            max_timestamp=max_timestamp,
        )
        self._first_ordinal = start.ordinal
        known_count = max(0, self._checks.count - start.ordinal)
        self._known = read_checks(self._checks, start.ordinal, known_count)
        self._indexed_position = start.position - files.interval_bytes
        self._by_check: dict[int, int] | None = None

    def run(self) -> Scan:
        while self.advance():
            pass
        return self.scan

    def advance(self, window_bytes: int = WINDOW_BYTES) -> bool:
        scan = self.scan
        if scan.position >= scan.size:
            return False
        size = min(max(window_bytes, self._wanted_bytes), scan.size - scan.position)
        window = self._disk.pread(self._fd, size, scan.position)
        # A short read means that the file was truncated meanwhile.
        is_end = len(window) < size or scan.position + len(window) >= scan.size
        reason, self._wanted_bytes = self._walk(window, is_end)
        if reason is None and not window:
            reason = "the file ends here"
        return reason is None or self._step_over(reason)

    def _walk(self, window: bytes, is_end: bool) -> tuple[str | None, int]:
        """Take whole batches from ``window``, a part of the file. Returns why the next batch is bad
        (None if it is only incomplete), and its size. One loop with local names, for speed."""
        scan, known, base_offset = self.scan, self._known, self._base_offset
        view, limit, at, start = memoryview(window), len(window), 0, scan.position
        unpack, crc_of, add_check = HEADER.unpack_from, crc32c, scan.checks.append
        offset, epoch, max_timestamp = scan.offset, scan.epoch, scan.max_timestamp
        number, known_count = scan.ordinal - self._first_ordinal, len(known)
        interval_bytes = self._files.interval_bytes
        index_at = self._indexed_position + interval_bytes
        reason, wanted, last_at = None, 0, -1
        while limit - at >= HEADER_BYTES:
            fields = unpack(view, at)
            end = at + fields[1] + LENGTH_FROM
            if (
                fields[0] != offset
                or fields[3] != MAGIC
                or not HEADER_BYTES <= end - at <= BATCH_BYTES_MAX
                or fields[6] < 0
                or fields[2] < epoch
            ):
                reason = _fault(tuple.__new__(BatchHeader, fields), offset, epoch, limit - at)
                break
            check = crc_of(view[at : at + HEADER_BYTES]) or 1
            if (
                number < known_count
                and known[number] != check
                and is_entry_intact(self._checks, self._first_ordinal + number)
            ):
                reason = "the header does not match its checksum"
                break
            if end > limit:
                if is_end:
                    reason = f"the batch is truncated by {end - limit} bytes"
                wanted = end - at
                break
            if crc_of(view[at + CRC_FROM : end]) != fields[4]:
                reason = "the CRC does not match"
                break
            if fields[8] > max_timestamp:
                max_timestamp = fields[8]
            if start + at >= index_at:
                place = BatchStart(offset - base_offset, start + at, self._first_ordinal + number)
                scan.places.append((place, max_timestamp))
                index_at = start + at + interval_bytes
            add_check(check)
            number += 1
            last_at, at, epoch = at, end, fields[2]
            offset += fields[6] + 1
        else:
            if is_end and at < limit:
                reason = f"{limit - at} bytes are too few for a batch"
        if last_at >= 0:
            scan.ordinal = self._first_ordinal + len(scan.checks)
            last = unpack(view, last_at)[0] - base_offset
            scan.last = BatchStart(last, start + last_at, scan.ordinal - 1)
            scan.epoch, scan.offset, scan.position = epoch, offset, start + at
        scan.max_timestamp = max_timestamp
        self._indexed_position = index_at - interval_bytes
        return reason, wanted

    def _step_over(self, reason: str) -> bool:
        """Find the next whole batch and report the damage before it. Returns False if none."""
        scan = self.scan
        if is_zero_from(self._disk, self._fd, scan.position, scan.size):
            scan.tail_reason = ZEROS_REASON
            return False
        indexed = self._next_indexed()
        place = self._search(scan.size if indexed is None else indexed.position) or indexed
        if place is None:
            scan.tail_reason = reason
            return False
        name, size = self._files.path.name, place.position - scan.position
        next_offset = self._base_offset + place.relative
        scan.damage.append(Damage(name, scan.position, size, scan.offset, next_offset, reason))
        scan.checks.extend([HOLE] * (place.ordinal - scan.ordinal))
        scan.position, scan.ordinal, scan.offset = place.position, place.ordinal, next_offset
        # The batch after a hole is always indexed, so that reads can skip the hole.
        self._indexed_position = place.position - self._files.interval_bytes
        return True

    def _next_indexed(self) -> BatchStart | None:
        index = self._files.index
        number = index.offsets.last_at_most(self.scan.position, column=1)
        for at in range(0 if number is None else number + 1, index.count):
            place = index.place(at)
            if place is None or place.position <= self.scan.position:
                continue
            header = self._whole_at(place.position)
            if (
                header is not None
                and header.base_offset == self._base_offset + place.relative
                and place.ordinal > self.scan.ordinal
            ):
                return place
        return None

    def _whole_at(self, position: int) -> BatchHeader | None:
        """Return the header of the batch at ``position``, or None if there is no valid batch."""
        scan = self.scan
        raw = self._disk.pread(self._fd, HEADER_BYTES, position)
        if len(raw) < HEADER_BYTES:
            return None
        header = parse_header(raw)
        if (
            header_fault(header, header.base_offset) is not None
            or header.base_offset <= scan.offset
            or header.leader_epoch < scan.epoch
            or header.next_offset - self._base_offset > RELATIVE_MAX
            or position + header.total_bytes > scan.size
        ):
            return None
        body = self._disk.pread(self._fd, header.total_bytes - CRC_FROM, position + CRC_FROM)
        return header if crc32c(body) == header.crc else None

    def _search(self, limit: int) -> BatchStart | None:
        """Find the next batch that is confirmed by the ``.check`` file or the batches after it."""
        scan = self.scan
        data = self._disk.pread(self._fd, limit - scan.position, scan.position)
        pattern = re.compile(
            b"(?=" + re.escape(scan.offset.to_bytes(8, "big")[:3]) + b".{5}[\x00\x01].{7}\x02)",
            re.DOTALL,
        )
        tried = 0
        for match in pattern.finditer(data, 1):
            position = scan.position + match.start()
            raw = self._disk.pread(self._fd, HEADER_BYTES, position)
            if len(raw) < HEADER_BYTES:
                break
            ordinal = self._ordinal_of(header_check(raw))
            if ordinal is None and tried >= CANDIDATES_MAX:
                continue
            tried += ordinal is None
            header = self._whole_at(position)
            if header is None:
                continue
            if ordinal is None:
                if not self._leads_to_end(position, header):
                    continue
                ordinal = scan.ordinal + 1
            return BatchStart(header.base_offset - self._base_offset, position, ordinal)
        return None

    def _ordinal_of(self, check: int) -> int | None:
        if self._by_check is None:
            first = self._first_ordinal
            self._by_check = {known: first + at for at, known in enumerate(self._known)}
        ordinal = self._by_check.get(check)
        if ordinal is None or ordinal <= self.scan.ordinal:
            return None
        return ordinal if is_entry_intact(self._checks, ordinal) else None

    def _leads_to_end(self, position: int, header: BatchHeader) -> bool:
        while True:
            position += header.total_bytes
            if position == self.scan.size:
                return True
            following = self._whole_at(position)
            if following is None or following.base_offset != header.next_offset:
                return False
            header = following


APPEND_BYTES_MAX = 2**30  # every system can write this with one call


def verified(view: memoryview, *, offset: int, epoch: int, folder: Path) -> list[BatchHeader]:
    """Return the headers of batches from a leader. Raises Damaged if a batch is invalid, does not
    begin at the expected offset, or has an older epoch than the batch before it."""
    headers: list[BatchHeader] = []
    make, unpack, at, limit = tuple.__new__, HEADER.unpack_from, 0, len(view)
    if limit > APPEND_BYTES_MAX:
        text = f"{limit} bytes were sent at once; at most {APPEND_BYTES_MAX} are allowed"
        raise Damaged(str(folder), 0, text)
    while at < limit:
        if limit - at < HEADER_BYTES:
            raise Damaged(str(folder), at, f"{limit - at} bytes are too few for a batch")
        fields = unpack(view, at)
        end = at + fields[1] + LENGTH_FROM
        if (
            fields[0] != offset
            or fields[2] < epoch
            or fields[3] != MAGIC
            or not HEADER_BYTES <= end - at <= BATCH_BYTES_MAX
            or fields[6] < 0
            or end > limit
        ):
            header = make(BatchHeader, fields)
            raise Damaged(str(folder), at, _fault(header, offset, epoch, limit - at))
        if crc32c(view[at + CRC_FROM : end]) != fields[4]:
            raise Damaged(str(folder), at, "the CRC does not match")
        headers.append(make(BatchHeader, fields))
        offset += fields[6] + 1
        epoch, at = fields[2], end
    return headers


def _fault(header: BatchHeader, offset: int, epoch: int, left_bytes: int) -> str:
    reason = header_fault(header, offset)
    if reason is None and header.leader_epoch < epoch:
        reason = f"the batch has leader epoch {header.leader_epoch} after epoch {epoch}"
    return reason or f"the batch is truncated by {header.total_bytes - left_bytes} bytes"


def trimmed(view: memoryview, offset: int) -> memoryview:
    """If the first batch has no records, cut off its offsets below ``offset``, the log's end.
    Compaction merges such batches, so a leader may send one that begins before the log's end."""
    if len(view) < HEADER_BYTES:
        return view
    header = parse_header(view)
    if (
        not header.base_offset < offset < header.next_offset
        or not is_bare(header)
        or header.total_bytes != HEADER_BYTES
        or crc32c(view[CRC_FROM:HEADER_BYTES]) != header.crc
    ):
        return view
    bare = empty_batch(spanned(header, offset, header.next_offset), with_producer=False)
    return memoryview(b"".join((bare, view[HEADER_BYTES:])))
