"""The file with the first offset that readers of a stream may see."""

import errno
import struct
from pathlib import Path
from random import Random

import pytest
from tests.unit.log.power import Killed, PowerDisk
from tests.unit.log.stage import QuickDisk, append_many, open_log, sync

from penstock.log.log import Log
from penstock.log.storage.checkpoint import DOUBT_GARBAGE
from penstock.log.storage.files import Disk
from penstock.model.errors import DiskFull
from penstock.record.crc32c import crc32c

FILE = "low-watermark"


def written(folder: Path, count: int = 30, *, low_watermark: int = 0, clean: bool = True) -> None:
    log = open_log(folder, disk=QuickDisk())
    log.settle()
    append_many(log, count)
    sync(log)
    if low_watermark:
        log.store_low_watermark(low_watermark)
    log.close(clean=clean)


def reopened(folder: Path, disk: Disk | None = None) -> Log:
    return open_log(folder, disk=disk or QuickDisk())


def test_the_file_is_laid_out_as_documented(tmp_path: Path) -> None:
    written(tmp_path, low_watermark=7)
    raw = struct.pack(">4sHHq", b"PSLW", 1, 0, 7)
    assert (tmp_path / FILE).read_bytes() == raw + struct.pack(">I", crc32c(raw))


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_begins_at_the_file_or_at_its_first_segment(tmp_path: Path, clean: bool) -> None:
    written(tmp_path, low_watermark=7, clean=clean)
    log = reopened(tmp_path)
    assert (log.start_offset, log.low_watermark, log.end_offset) == (0, 7, 30)
    log.detach_before(20).remove()
    assert log.start_offset > 7
    assert log.low_watermark == log.start_offset


def test_without_the_file_a_log_begins_at_its_first_segment(tmp_path: Path) -> None:
    written(tmp_path)
    log = reopened(tmp_path)
    assert not (tmp_path / FILE).exists()
    assert (log.low_watermark, log.stored_low_watermark) == (0, 0)


def test_a_log_that_lost_its_end_lowers_the_low_watermark(tmp_path: Path) -> None:
    """Otherwise what is written next would be hidden until the log reaches the old value."""
    written(tmp_path, 3, low_watermark=3)
    written_end = reopened(tmp_path)
    written_end.store_low_watermark(40)
    written_end.close()
    log = reopened(tmp_path)
    assert (log.low_watermark, log.end_offset) == (3, 3)
    append_many(log, 2)
    log.close()
    assert reopened(tmp_path).low_watermark == 3, "on disk, too"


def test_a_cut_and_a_new_beginning_keep_it_or_lower_it(tmp_path: Path) -> None:
    written(tmp_path, low_watermark=20)
    log = reopened(tmp_path)
    assert log.truncate(25) == 25
    assert log.low_watermark == 20
    assert log.truncate(10) == 10
    assert log.low_watermark == 10
    log.close()
    log = reopened(tmp_path)
    assert log.low_watermark == 10
    log.restart(50)
    assert (log.stored_low_watermark, log.low_watermark) == (10, 50)
    log.restart(4)
    assert (log.stored_low_watermark, log.low_watermark) == (4, 4)
    append_many(log, 3)
    log.close()
    assert reopened(tmp_path).low_watermark == 4


@pytest.mark.parametrize(
    "content", [b"", b"PSLW", bytes(20), struct.pack(">4sHHqI", b"PSLW", 1, 0, 9, 0)]
)
def test_a_damaged_file_is_reported_and_casts_doubt_on_a_replica(
    tmp_path: Path, content: bytes
) -> None:
    written(tmp_path, low_watermark=7)
    (tmp_path / FILE).write_bytes(content)
    log = reopened(tmp_path)
    assert log.low_watermark == 0
    assert log.recovery.is_low_watermark_damaged
    assert log.recovery.doubts & DOUBT_GARBAGE, "the replica declares a loss"
    log.store_low_watermark(9)
    log.settle()
    log.close()
    again = reopened(tmp_path)
    assert again.low_watermark == 9
    assert not again.recovery.is_low_watermark_damaged
    assert not again.recovery.doubts & DOUBT_GARBAGE


class FullDisk(QuickDisk):
    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        raise OSError(errno.ENOSPC, "full")


def test_a_full_disk_leaves_it_as_it_was(tmp_path: Path) -> None:
    written(tmp_path, low_watermark=7)
    log = reopened(tmp_path)
    log.disk = FullDisk()
    with pytest.raises(DiskFull):
        log.store_low_watermark(9)
    assert log.low_watermark == 7
    log.close(clean=False)
    assert reopened(tmp_path).low_watermark == 7


@pytest.mark.parametrize("is_power_cut", [False, True])
def test_it_is_the_old_or_the_new_value_whenever_the_machine_stops(
    tmp_path: Path, is_power_cut: bool
) -> None:
    chance = Random(32)
    found = set()
    for number in range(40):
        folder = tmp_path / f"before-{number}"
        written(folder, low_watermark=7)
        disk = PowerDisk(folder)
        log = reopened(folder, disk)
        disk.dies_at = disk.operations + chance.randint(1, 12)
        is_returned = False
        try:
            log.store_low_watermark(9)
            is_returned = True
            log.store_low_watermark(9)
            log.store_low_watermark(9)
        except Killed:
            pass
        left = tmp_path / f"after-{number}"
        disk.left_behind(folder, left, chance if is_power_cut else None)
        disk.close_files()
        value = reopened(left).low_watermark
        assert value == 9 if is_returned else value in (7, 9)
        found.add((is_returned, value))
    assert {(True, 9), (False, 7)} <= found, "both ends were seen"
