"""The open files of a segment, and its ranges of bytes that a fetch has verified."""

from pathlib import Path

import msgspec

from penstock.log.storage.files import Disk, SharedFile, segment_paths
from penstock.log.storage.side_files import CHECK_FIELDS, BatchStart, EntryFile, SegmentIndex

RANGES_MAX = 512  # ranges remembered per open segment, 400 bytes each


class VerifiedRange(msgspec.Struct):
    place: BatchStart
    size: int = 0
    next_offset: int = 0
    record_count: int = 0
    trusted_reads: int = 0


class VerifiedRanges(dict[int, VerifiedRange]):
    def at(self, offset: int, place: BatchStart) -> VerifiedRange:
        known = self.get(offset)
        if known is None:
            if len(self) >= RANGES_MAX:
                del self[next(iter(self))]
            known = self[offset] = VerifiedRange(place)
        return known


class SegmentFiles:
    def __init__(self, folder: Path, base_offset: int, *, interval_bytes: int, disk: Disk) -> None:
        self.disk = disk
        self.path, *_ = paths = segment_paths(folder, base_offset)
        self.base_offset = base_offset
        self.interval_bytes = interval_bytes
        opened: list[int] = []
        try:
            for path in paths:
                # Not a comprehension, because the opened ones must be closed if the next one fails.
                opened.append(disk.open(path))  # noqa: PERF401
        except OSError:
            for fd in opened:
                disk.close(fd)
            raise
        self.log_fd, offsets, times, checks = opened
        self.index = SegmentIndex(offsets, times, interval_bytes=interval_bytes, disk=disk)
        self.checks = EntryFile(checks, CHECK_FIELDS, disk=disk)
        self.verified = VerifiedRanges()
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
            self.log_file = None  # closed when the last reader is done
            for fd in self.fds()[1:]:
                self.disk.close(fd)
