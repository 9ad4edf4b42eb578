"""One file of batches with its side files: append at the end, read from anywhere.

A segment knows where it starts and ends; everything else is found through the sparse index. What
comes from disk is verified on the way out: the header against ``.check``, its offset against its
neighbour's, the records against the batch's CRC. Bytes that fail are never returned. Readers by
offset are served stretches of many batches, which are verified less often (``log/stretch.py``).
"""

import errno
from array import array
from pathlib import Path
from typing import NamedTuple

from penstock.log.check import (
    CHECK_FIELDS,
    HOLE,
    header_check,
    is_entry_intact,
    is_same_checks,
    read_checks,
)
from penstock.log.damage import Damage, DamagedRange
from penstock.log.entries import EntryFile
from penstock.log.files import Disk, SharedFile
from penstock.log.index import RELATIVE_MAX, START, Place, SegmentIndex
from penstock.log.layout import CHECK_SUFFIX, INDEX_SUFFIX, TIME_SUFFIX, segment_path
from penstock.log.marks import Marks
from penstock.log.scan import Scan, Scanner, Source, header_fault
from penstock.log.stretch import KnownStretches, Stretch, read_stretch, stretch_of
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

NO_TIMESTAMP = -1
READ_AHEAD_BYTES = MIB
CHECKS_AHEAD = 512

_NO_HEADER = parse_header(bytes(HEADER_BYTES))


class SegmentInfo(NamedTuple):
    base_offset: int
    end_offset: int
    bytes: int
    max_timestamp_ms: int


class SegmentFiles:
    """The four descriptors of an open segment, and what readers have learned while it is open."""

    __slots__ = ("checks", "disk", "index", "log_fd", "log_file", "stretches")

    def __init__(self, folder: Path, base_offset: int, *, interval_bytes: int, disk: Disk) -> None:
        self.disk = disk
        opened: list[tuple[Path, int]] = []
        try:
            self.log_fd = disk.open(segment_path(folder, base_offset))
            opened.append((folder, self.log_fd))
            for suffix in (INDEX_SUFFIX, TIME_SUFFIX, CHECK_SUFFIX):
                path = segment_path(folder, base_offset, suffix)
                opened.append((path, disk.open(path)))
        except OSError:
            for _, fd in opened:
                disk.close(fd)
            raise
        _, offsets, times, checks = opened
        self.index = SegmentIndex(offsets, times, interval_bytes=interval_bytes, disk=disk)
        self.checks = EntryFile(*checks, CHECK_FIELDS, disk=disk)
        self.stretches = KnownStretches()
        self.log_file: SharedFile | None = SharedFile(self.log_fd, disk)

    def flush(self) -> None:
        self.index.flush()
        self.checks.flush()

    def fds(self) -> tuple[int, ...]:
        return (self.log_fd, self.index.offsets.fd, self.index.times.fd, self.checks.fd)

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self.log_file = None  # closes it, once nobody reads from it any more
            for fd in self.fds()[1:]:
                self.disk.close(fd)


class Segment:
    """What the log keeps of a segment in memory; the files are open only while in use."""

    __slots__ = (
        "_files",
        "base_offset",
        "batch_count",
        "bytes",
        "disk",
        "end_offset",
        "first_timestamp",
        "folder",
        "interval_bytes",
        "last",
        "marks",
        "max_timestamp",
    )

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
        self.marks = Marks()
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
        """Now, so that no append is the first to find the disk full."""
        assert self.files.log_fd >= 0

    def close(self) -> None:
        if self._files is not None:
            files, self._files = self._files, None
            files.close()

    # ── Append ───────────────────────────────────────────────────────────────────────────────

    def has_room(self, size: int, next_offset: int, *, bytes_max: int) -> bool:
        return self.bytes == 0 or (
            self.bytes + size <= bytes_max and next_offset - self.base_offset <= RELATIVE_MAX
        )

    def append(self, batch: bytes | memoryview, header: BatchHeader) -> None:
        """One write. A disk without room leaves the file as it was."""
        files = self.files
        position = self.bytes
        size = len(batch)
        try:
            written = self.disk.pwrite(files.log_fd, batch, position)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            written = -1
        if written != size:
            self.disk.truncate(files.log_fd, position)
            raise DiskFull("no space left for this partition's log")
        timestamp = header.max_timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        if position == 0:
            self.first_timestamp = header.base_timestamp
        place = Place(header.base_offset - self.base_offset, position, self.batch_count)
        self.last = place
        self.bytes = position + size
        self.batch_count += 1
        self.end_offset = header.base_offset + header.last_offset_delta + 1
        files.checks.append(header_check(bytes(batch[:HEADER_BYTES])))
        files.index.note(place, timestamp_max=self.max_timestamp)
        marks = self.marks
        if position >= marks.due_at:
            marks.add(header.base_offset, position)
        if not header.attributes & ATTR_CONTROL:
            marks.records += header.count

    def seal(self) -> None:
        """No batch comes after this one: index the last, write out what is pending."""
        if self.batch_count:
            self.files.index.seal(self.last, timestamp_max=self.max_timestamp)
        self.files.flush()

    # ── Read ─────────────────────────────────────────────────────────────────────────────────

    def read(self, start: int, *, bytes_max: int, up_to: int) -> list[bytes]:
        """Whole batches from the one that holds ``start``; DamagedRange when that one is bad."""
        assert self.base_offset <= start < self.end_offset
        reader = _Reader(self, self.find(start), bytes_max=bytes_max)
        try:
            return reader.run(start, up_to=up_to)
        except DamagedRange:
            # Where a header is lost, only a scan can tell how far the damage goes. It leaves a
            # hole that is known and an index entry behind it, so this happens once per damage.
            if not reader.is_new_hole or not self._rebuild_all():
                raise
        reader = _Reader(self, self.find(start), bytes_max=bytes_max)
        return reader.run(start, up_to=up_to)

    def read_stretch(
        self, start: int, *, bytes_max: int, up_to: int, as_slice: bool = False
    ) -> Stretch:
        """The same for readers who pass it on as it is; perhaps fewer batches."""
        assert self.base_offset <= start < self.end_offset
        found = read_stretch(self, start, bytes_max=bytes_max, up_to=up_to, as_slice=as_slice)
        if found is None:
            found = stretch_of(self.read(start, bytes_max=bytes_max, up_to=up_to), start)
        return found

    def find(self, offset: int) -> Place:
        """Where to start looking for an offset. A damaged index is built again first."""
        place = self.files.index.find(offset - self.base_offset)
        if place is None and self._rebuild_all():
            place = self.files.index.find(offset - self.base_offset)
        return place or START

    def _rebuild_all(self) -> bool:
        """False when the end of the segment is not whole: then its side files stay as they are,
        because appends go on from their numbering."""
        scan = Scanner(self.source()).run()
        if scan.position != self.bytes or scan.last is None:
            return False
        scan.seal()
        self.rebuild(scan)
        self.batch_count = scan.ordinal
        self.last = scan.last
        return True

    def source(self) -> Source:
        files = self.files
        return Source(
            self.path,
            self.base_offset,
            files.log_fd,
            self.bytes or self.disk.size(files.log_fd),
            self.disk,
            files.checks,
            files.index,
            self.interval_bytes,
        )

    def is_indexed(self, scan: Scan, *, from_ordinal: int = 0) -> bool:
        """Whether the side files lead to what a scan found. An index may have other entries than
        a new one would: its interval is a setting."""
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

    def rebuild(self, scan: Scan, *, from_place: int = 0, from_ordinal: int = 0) -> None:
        """Make the side files what a scan says they should be, from these entries on."""
        index, checks = self.files.index, self.files.checks
        expected = [tuple(place) for place, _ in scan.places]
        times = [(timestamp, place.relative) for place, timestamp in scan.places]
        count = len(expected) + 1  # one more than there should be
        if (
            index.offsets.read_range(from_place, count) != expected
            or index.times.read_range(from_place, count) != times
        ):
            index.cut(from_place)
            for place, timestamp in scan.places:
                index.add(place, timestamp_max=timestamp)
        if not is_same_checks(checks, from_ordinal, scan.checks):
            checks.cut(from_ordinal)
            for check in scan.checks:
                checks.append(check)
        self.files.stretches.clear()  # a batch may have another number now
        self.marks.clear()
        self.files.flush()

    def find_time(self, timestamp_ms: int) -> int:
        """The base offset of the first batch that reaches the timestamp; our end if none does."""
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


class _Reader:
    """Verified batches from one indexed place on, through a window on the file."""

    __slots__ = (
        "_bytes_max",
        "_checks",
        "_checks_from",
        "_place",
        "_segment",
        "_window",
        "_window_at",
        "is_new_hole",
    )

    def __init__(self, segment: Segment, place: Place, *, bytes_max: int) -> None:
        self._segment = segment
        self._place = place
        self.is_new_hole = False  # a header was bad, and no scan has yet said how far it goes
        self._bytes_max = bytes_max
        self._window = b""
        self._window_at = 0
        self._checks = array("I")
        self._checks_from = 0

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
                self.is_new_hole = self._check(ordinal) != HOLE
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
                # A closed segment that ends before the next one begins.
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
            return _NO_HEADER, "the file ends inside of a batch"
        header = parse_header(raw)
        reason = header_fault(header, offset)
        # Where header and check differ, the check's own checksum says which of them is wrong.
        if (
            reason is None
            and header_check(raw) != self._check(ordinal)
            and is_entry_intact(self._segment.files.checks, ordinal)
        ):
            reason = "the header is not the one that was written"
        return header, reason

    def _check(self, ordinal: int) -> int | None:
        at = ordinal - self._checks_from
        if at >= len(self._checks):
            self._checks = read_checks(self._segment.files.checks, ordinal, CHECKS_AHEAD)
            self._checks_from, at = ordinal, 0
        return self._checks[at] if self._checks else None

    def _damaged(
        self, position: int, offset: int, reason: str, *, header: BatchHeader | None = None
    ) -> DamagedRange:
        """With a header that can be trusted only its own batch is lost; without one, everything
        up to the next indexed batch."""
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
