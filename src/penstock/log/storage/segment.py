"""A segment: one file of batches with its side files. Bytes from disk are verified before they are
returned: the header against the ``.check`` file, its offset against the batch before, the records
against the batch's CRC. ``log/storage/batch_buffers.py`` reads many batches at once."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from penstock.log.storage.checkpoint import Damage, DamagedRange
from penstock.log.storage.files import Disk, is_full, segment_path
from penstock.log.storage.recent_positions import RecentPositions
from penstock.log.storage.scan import Scan, Scanner, header_fault
from penstock.log.storage.segment_files import SegmentFiles
from penstock.log.storage.side_files import (
    HOLE,
    RELATIVE_MAX,
    START,
    BatchStart,
    CheckWindow,
    header_check,
    is_same_checks,
    read_checks,
)
from penstock.model.errors import DiskFull
from penstock.model.limits import MIB
from penstock.record.batch import (
    ATTR_CONTROL,
    CRC_FROM,
    HEADER_BYTES,
    LENGTH_FROM,
    BatchHeader,
    parse_header,
)
from penstock.record.crc32c import crc32c

READ_AHEAD_BYTES = MIB
CHECKS_AHEAD = 512

_NO_HEADER = parse_header(bytes(HEADER_BYTES))


def checked_header(
    raw: bytes, offset: int, ordinal: int, checks: CheckWindow | None
) -> tuple[BatchHeader, str | None]:
    """Return a batch header, and why it is invalid at ``offset`` (None if it is valid)."""
    if len(raw) < HEADER_BYTES:
        return _NO_HEADER, "the file ends inside a batch"
    header = parse_header(raw)
    reason = header_fault(header, offset)
    if reason is None and checks is not None and checks.is_refuted(raw, ordinal):
        reason = "the header does not match its checksum"
    return header, reason


class BatchReader:
    """Reads and verifies batches up to a bad one. Raises DamagedRange if the first one is bad."""

    def __init__(self, segment: "Segment", place: BatchStart, *, bytes_max: int) -> None:
        self._segment = segment
        self._place = place
        self.is_new_hole = False  # a header is bad, and no scan has found the end of the damage yet
        self._bytes_max = bytes_max
        self._window = b""
        self._window_at = 0
        self.checks = CheckWindow(segment.files.checks, CHECKS_AHEAD)

    def run(self, start: int, *, up_to: int) -> list[bytes]:
        segment = self._segment
        position, ordinal = self._place.position, self._place.ordinal
        offset = segment.base_offset + self._place.relative
        batches: list[bytes] = []
        taken = 0
        while position < segment.bytes:
            raw = self.take(position, HEADER_BYTES)
            header, reason = checked_header(raw, offset, ordinal, self.checks)
            if reason is not None:
                if batches:
                    break
                self.is_new_hole = self.checks.at(ordinal) != HOLE
                raise self._damaged(position, offset, reason)
            total = header.length + LENGTH_FROM
            next_offset = header.next_offset
            if next_offset > start:
                if next_offset > up_to or (batches and taken + total > self._bytes_max):
                    break
                batch = self.take(position, total)
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

    def take(self, position: int, size: int) -> bytes:
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

    def _damaged(
        self, position: int, offset: int, reason: str, *, header: BatchHeader | None = None
    ) -> DamagedRange:
        segment = self._segment
        if header is not None:
            end, next_offset = position + header.total_bytes, header.next_offset
        else:
            after = segment.files.index.find_after(position)
            end = segment.bytes if after is None else after.position
            next_offset = segment.end_offset
            if after is not None:
                next_offset = segment.base_offset + after.relative
        name = segment.path.name
        return DamagedRange(
            segment.folder, Damage(name, position, end - position, offset, next_offset, reason)
        )


NO_TIMESTAMP = -1
NO_EPOCH = -1


class SegmentInfo(NamedTuple):
    base_offset: int
    end_offset: int
    bytes: int
    max_timestamp_ms: int


class Cut(NamedTuple):
    position: int
    end_offset: int
    ordinal: int
    indexed: int  # number of index entries that stay
    last: BatchStart
    epoch: int
    max_timestamp: int


class Segment:
    def __init__(self, folder: Path, base_offset: int, *, interval_bytes: int, disk: Disk) -> None:
        self.folder = folder
        self.disk = disk
        self.interval_bytes = interval_bytes
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.bytes = 0
        self.batch_count = 0
        self.max_timestamp = NO_TIMESTAMP
        self.first_timestamp = NO_TIMESTAMP
        self.last = START
        self.last_epoch = NO_EPOCH  # epoch of the last batch, in this or an earlier segment
        self.recent = RecentPositions()
        self._files: SegmentFiles | None = None

    @property
    def path(self) -> Path:
        return segment_path(self.folder, self.base_offset)

    @property
    def info(self) -> SegmentInfo:
        return SegmentInfo(self.base_offset, self.end_offset, self.bytes, self.max_timestamp)

    @property
    def is_open(self) -> bool:
        return self._files is not None

    @property
    def files(self) -> SegmentFiles:
        if self._files is None:
            self._files = SegmentFiles(
                self.folder, self.base_offset, interval_bytes=self.interval_bytes, disk=self.disk
            )
        return self._files

    def make_files(self) -> None:
        """Create the files now, so that a full disk is noticed before the first append."""
        assert self.files.log_fd >= 0

    def close(self) -> None:
        if self._files is not None:
            files, self._files = self._files, None
            files.close()

    def has_room(self, size: int, next_offset: int, *, bytes_max: int) -> bool:
        return self.bytes == 0 or (
            self.bytes + size <= bytes_max and next_offset - self.base_offset <= RELATIVE_MAX
        )

    def append(self, batch: bytes | memoryview, header: BatchHeader) -> None:
        files = self.files
        position = self.bytes
        size = len(batch)
        try:
            written = self.disk.pwrite(files.log_fd, batch, position)
        except OSError as error:
            self._take_back(position, error)
        if written != size:
            self._take_back(position)
        timestamp = header.max_timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        if position == 0:
            self.first_timestamp = header.base_timestamp
        place = BatchStart(header.base_offset - self.base_offset, position, self.batch_count)
        self.last = place
        self.bytes = position + size
        self.batch_count += 1
        self.end_offset = header.base_offset + header.last_offset_delta + 1
        self.last_epoch = header.leader_epoch
        files.checks.append(header_check(bytes(batch[:HEADER_BYTES])))
        files.index.note(place, timestamp_max=self.max_timestamp)
        recent = self.recent
        if position >= recent.due_at:
            recent.add(header.base_offset, position)
        if not header.attributes & ATTR_CONTROL:
            recent.records += header.count

    def append_many(self, data: memoryview, headers: Sequence[BatchHeader]) -> None:
        files, recent, position = self.files, self.recent, self.bytes
        try:
            written = self.disk.pwrite(files.log_fd, data, position)
        except OSError as error:
            self._take_back(position, error)
        if written != len(data):
            self._take_back(position)
        add_check, note = files.checks.append, files.index.note
        base_offset, ordinal, max_timestamp = self.base_offset, self.batch_count, self.max_timestamp
        if position == 0:
            self.first_timestamp = headers[0].base_timestamp
        at = 0
        for header in headers:
            if header.max_timestamp > max_timestamp:
                max_timestamp = header.max_timestamp
            add_check(header_check(data[at : at + HEADER_BYTES]))
            place = BatchStart(header.base_offset - base_offset, position + at, ordinal)
            note(place, timestamp_max=max_timestamp)
            size = header.length + LENGTH_FROM
            if size == HEADER_BYTES:
                recent.clear()  # readers by offset are not served batches that compaction emptied
            elif position + at >= recent.due_at:
                recent.add(header.base_offset, position + at)
            if not header.attributes & ATTR_CONTROL:
                recent.records += header.count
            ordinal += 1
            at += size
        self.last, self.batch_count, self.max_timestamp = place, ordinal, max_timestamp
        self.bytes, self.end_offset = position + at, headers[-1].next_offset
        self.last_epoch = headers[-1].leader_epoch

    def _take_back(self, position: int, error: OSError | None = None) -> NoReturn:
        """If the disk is full, undo a partial write and raise DiskFull. Otherwise raise
        ``error``."""
        if error is not None and not is_full(error):
            raise error
        self.disk.truncate(self.files.log_fd, position)
        raise DiskFull("the disk is full: nothing was appended to the log") from error

    def cut(self, cut: Cut) -> None:
        files = self.files
        self.disk.truncate(files.log_fd, cut.position)
        files.index.cut(cut.indexed)
        files.checks.cut(cut.ordinal)
        files.verified.clear()
        self.recent.clear()
        self.bytes, self.end_offset, self.batch_count = cut.position, cut.end_offset, cut.ordinal
        self.last, self.last_epoch, self.max_timestamp = cut.last, cut.epoch, cut.max_timestamp
        if not cut.position:
            self.first_timestamp = NO_TIMESTAMP
        files.flush()
        for fd in files.fds():
            self.disk.sync_data(fd)

    def seal(self) -> None:
        if self.batch_count:
            self.files.index.seal(self.last, timestamp_max=self.max_timestamp)
        self.files.flush()

    def read(self, start: int, *, bytes_max: int, up_to: int) -> list[bytes]:
        """Return whole batches from ``start`` on. Raises DamagedRange if the first one is bad."""
        assert self.base_offset <= start < self.end_offset
        reader = BatchReader(self, self.find(start), bytes_max=bytes_max)
        try:
            return reader.run(start, up_to=up_to)
        except DamagedRange:
            # If a header is bad, only a scan finds the end of the damage. The scan adds an index
            # entry after the damage, so this happens once.
            if not reader.is_new_hole or not self._rebuild_all():
                raise
        reader = BatchReader(self, self.find(start), bytes_max=bytes_max)
        return reader.run(start, up_to=up_to)

    def find(self, offset: int) -> BatchStart:
        """Return an indexed batch from which to search for an offset. Rebuilds a damaged index."""
        place = self.files.index.find(offset - self.base_offset)
        if place is None and self._rebuild_all():
            place = self.files.index.find(offset - self.base_offset)
        return place or START

    def _rebuild_all(self) -> bool:
        """Scan the segment and rebuild its side files. Returns False if its end is damaged."""
        scan = Scanner(self.files, bytes_max=self.bytes).run()
        if scan.position != self.bytes or scan.last is None:
            return False
        scan.seal()
        self.rebuild(scan)
        self.batch_count = scan.ordinal
        self.last = scan.last
        return True

    def is_indexed(self, scan: Scan, *, from_ordinal: int = 0) -> bool:
        """Return whether the side files are intact and agree with a scan."""
        index = self.files.index
        last = index.place(index.count - 1)
        return (
            is_same_checks(self.files.checks, from_ordinal, scan.checks)
            and index.count == index.times.count
            and all(index.offsets.read_range(0, index.count))
            and all(index.times.read_range(0, index.count))
            and (last is None) == (scan.last is None)
            and (last is None or last.position < scan.position)
        )

    def rebuild(self, scan: Scan, *, from_place: int = 0, from_ordinal: int = 0) -> bool:
        """Rebuild the side files from a scan. Returns whether they had wrong header checksums."""
        is_stale = False
        index, checks = self.files.index, self.files.checks
        expected = [tuple(place) for place, _ in scan.places]
        times = [(timestamp, place.relative) for place, timestamp in scan.places]
        count = len(expected) + 1  # one more, to detect extra entries
        if (
            index.offsets.read_range(from_place, count) != expected
            or index.times.read_range(from_place, count) != times
        ):
            index.cut(from_place)
            for place, timestamp in scan.places:
                index.add(place, timestamp_max=timestamp)
        if not is_same_checks(checks, from_ordinal, scan.checks):
            known = read_checks(checks, from_ordinal, checks.count - from_ordinal)
            is_stale = known != scan.checks[: len(known)]
            checks.cut(from_ordinal)
            for check in scan.checks:
                checks.append(check)
        self.files.verified.clear()  # ordinals may have changed
        self.recent.clear()
        self.files.flush()
        return is_stale

    def find_time(self, timestamp_ms: int) -> int:
        index = self.files.index
        relative = index.find_time(timestamp_ms)
        if relative is None and self._rebuild_all():
            relative = index.find_time(timestamp_ms)
        offset = self.base_offset + (relative or 0)
        while offset < self.end_offset:
            try:
                batches = self.read(offset, bytes_max=READ_AHEAD_BYTES, up_to=self.end_offset)
            except DamagedRange as damaged:
                offset = damaged.next_offset
                continue
            for batch in batches:
                header = parse_header(batch)
                if header.max_timestamp >= timestamp_ms:
                    return header.base_offset
                offset = header.next_offset
        return self.end_offset
