"""Batches to append, a disk that fails on demand, and what a reader gets out of a log."""

import errno
from pathlib import Path

from penstock.log.log import Log, LogConfig
from penstock.log.storage.checkpoint import DamagedRange
from penstock.log.storage.files import Disk
from penstock.record.batch import encode_batch, parse_header
from penstock.record.record import encode_record

SMALL = LogConfig(
    segment_bytes_max=600, segment_age_ms_max=10**9, index_interval_bytes=150, tail_bytes_max=0
)


def make_batch(
    base_offset: int,
    *,
    count: int = 1,
    size: int = 40,
    epoch: int = 0,
    timestamp: int | None = None,
) -> bytes:
    timestamp = 1_000 + base_offset if timestamp is None else timestamp
    records = [
        encode_record(
            offset_delta=at,
            timestamp_delta=0,
            key=None,
            value=(b"%d." % (base_offset + at)).ljust(size, b"x"),
        )
        for at in range(count)
    ]
    return encode_batch(
        records,
        base_offset=base_offset,
        leader_epoch=epoch,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
    )


OPENED: list[Log] = []  # by the test that runs; ``conftest.py`` closes them


def open_log(folder: Path, config: LogConfig = SMALL, *, disk: Disk | None = None) -> Log:
    return closed_later(Log.open(folder, config, now_ms=1_000, disk=disk or Disk()))


def closed_later(log: Log) -> Log:
    OPENED.append(log)
    return log


def append(log: Log, *, count: int = 1, size: int = 40, epoch: int = 0) -> bytes:
    batch = make_batch(log.end_offset, count=count, size=size, epoch=epoch)
    log.append(batch, now_ms=1_000)
    return batch


def append_many(log: Log, count: int) -> dict[int, bytes]:
    """By base offset, as ``read_all`` returns them."""
    written = {}
    for _ in range(count):
        offset = log.end_offset
        written[offset] = append(log)
    return written


def sync(log: Log) -> None:
    job = log.begin_sync()
    if job is not None:
        job.run()
        log.finish_sync(job)


def read_all(log: Log) -> tuple[dict[int, bytes], list[DamagedRange]]:
    """Every batch by its base offset, and every damage met on the way."""
    found: dict[int, bytes] = {}
    damages: list[DamagedRange] = []
    offset = log.start_offset
    while offset < log.end_offset:
        try:
            batches = log.read(offset, bytes_max=500)
        except DamagedRange as damaged:
            damages.append(damaged)
            offset, before = damaged.next_offset, offset
            if offset > before:
                continue
            raise AssertionError("damage does not lead onwards") from None
        assert batches, "a read below the end returns something or raises"
        for batch in batches:
            header = parse_header(batch)
            found[header.base_offset] = batch
            offset = header.next_offset
    return found, damages


class QuickDisk(Disk):
    """Does not wait for the platter: for tests that open a log thousands of times."""

    def sync_data(self, fd: int) -> None:
        assert fd >= 0

    def sync(self, fd: int) -> None:
        assert fd >= 0


class FaultyDisk(Disk):
    """Fails the next write or sync as told. ``room`` is the number of bytes still free."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.write_errno: int | None = None
        self.sync_errno: int | None = None
        self.truncate_errno: int | None = None
        self.synced: list[int] = []
        self.write_count = 0

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        self.write_count += 1
        if self.write_errno is not None:
            raise OSError(self.write_errno, "injected")
        if self.room is not None:
            if self.room == 0:
                raise OSError(errno.ENOSPC, "injected")
            data = bytes(data[: self.room])
            self.room -= len(data)
        return super().pwrite(fd, data, position)

    def truncate(self, fd: int, length: int) -> None:
        if self.truncate_errno is not None:
            raise OSError(self.truncate_errno, "injected")
        super().truncate(fd, length)

    def sync_data(self, fd: int) -> None:
        if self.sync_errno is not None:
            raise OSError(self.sync_errno, "injected")
        self.synced.append(fd)
        super().sync_data(fd)
