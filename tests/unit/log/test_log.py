import errno
import gc
import os
import threading
from pathlib import Path

import pytest
from tests.unit.log.stage import (
    SMALL,
    FaultyDisk,
    append,
    append_many,
    closed_later,
    make_batch,
    open_log,
    read_all,
    sync,
)

from penstock.log.log import AppendsRefused, Log, LogConfig, OffsetOutOfRange
from penstock.log.readable import OPEN_SEGMENTS_MAX
from penstock.log.storage.checkpoint import DamagedRange
from penstock.model.errors import DiskFull
from penstock.record.batch import parse_header

KEPT_IN_MEMORY = LogConfig(segment_bytes_max=600, index_interval_bytes=150, tail_bytes_max=300)


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_new_log_is_empty_and_clean(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic" / "0")
    assert (log.start_offset, log.end_offset, log.size_bytes, len(log.segments())) == (0, 0, 0, 1)
    assert log.recovery.was_clean
    assert log.read(0, bytes_max=1) == []
    assert log.last_timestamp_ms == -1


@pytest.mark.parametrize("config", [SMALL, KEPT_IN_MEMORY, LogConfig()])
def test_what_is_appended_is_read_from_memory_and_from_disk(
    tmp_path: Path, config: LogConfig
) -> None:
    log = open_log(tmp_path, config)
    written = {}
    for at in range(40):
        offset = log.end_offset
        written[offset] = append(log, count=1 + at % 3, size=10 + 7 * (at % 11))
    assert read_all(log) == (written, [])
    log.close()
    assert read_all(open_log(tmp_path, config)) == (written, [])


def test_a_read_begins_with_the_batch_that_holds_the_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    batches = [append(log, count=5) for _ in range(6)]
    for offset in range(30):
        assert log.read(offset, bytes_max=1) == [batches[offset // 5]]


@pytest.mark.parametrize("config", [SMALL, LogConfig()])
def test_a_read_stops_below_up_to_and_at_bytes_max(tmp_path: Path, config: LogConfig) -> None:
    log = open_log(tmp_path, config)
    first, second, third = (append(log, count=2) for _ in range(3))
    assert log.read(0, bytes_max=10_000, up_to=4) == [first, second]
    assert log.read(0, bytes_max=10_000, up_to=3) == [first]
    assert log.read(0, bytes_max=10_000, up_to=1) == []
    assert log.read(2, bytes_max=10_000, up_to=2) == []
    assert log.read(0, bytes_max=len(first) + len(second)) == [first, second]
    assert log.read(0, bytes_max=len(first) + len(second) - 1) == [first]
    assert log.read(5, bytes_max=0, up_to=99) == [third]


def test_offsets_outside_of_the_log_are_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(20):
        append(log)
    log.detach_before(10).remove()
    with pytest.raises(OffsetOutOfRange) as caught:
        log.read(0, bytes_max=1)
    assert caught.value.start_offset == log.start_offset > 0
    with pytest.raises(OffsetOutOfRange):
        log.read(21, bytes_max=1)
    assert log.read(20, bytes_max=1) == []


def test_an_append_out_of_order_is_our_own_mistake(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with pytest.raises(AssertionError):
        log.append(make_batch(1), now_ms=0)
    with pytest.raises(AssertionError):
        log.append(make_batch(0) + b"x", now_ms=0)


def test_an_append_is_one_write(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, LogConfig(), disk=disk)
    before = disk.write_count
    for _ in range(10):
        append(log)
    assert disk.write_count == before + 10


def test_segments_roll_by_size_and_by_age(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes_max=300, segment_age_ms_max=1_000)
    log = closed_later(Log.open(tmp_path, config, now_ms=0))
    log.append(make_batch(0), now_ms=0)
    log.append(make_batch(1), now_ms=999)
    assert len(log.segments()) == 1
    log.append(make_batch(2), now_ms=1_000)
    assert [info.base_offset for info in log.segments()] == [0, 2]
    log.append(make_batch(3), now_ms=1_001)
    log.append(make_batch(4, size=200), now_ms=1_002)
    assert [info.base_offset for info in log.segments()] == [0, 2, 4]
    assert [info.end_offset for info in log.segments()] == [2, 4, 5]
    assert sum(info.bytes for info in log.segments()) == log.size_bytes


def test_a_batch_larger_than_a_segment_gets_one_of_its_own(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    batches = [append(log, size=size) for size in (10, 2_000, 10)]
    assert [info.base_offset for info in log.segments()] == [0, 1, 2]
    assert log.read(1, bytes_max=1) == [batches[1]]


def test_rolling_an_empty_segment_does_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.roll(now_ms=0)
    append(log)
    log.roll(now_ms=0)
    log.roll(now_ms=0)
    assert [info.base_offset for info in log.segments()] == [0, 1]


def test_dropping_removes_whole_segments_but_never_the_active_one(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(30):
        append(log)
    infos = log.segments()
    assert log.detach_before(infos[0].end_offset - 1).remove() == 0
    before = log.size_bytes
    assert log.detach_before(infos[1].end_offset).remove() == infos[0].bytes + infos[1].bytes
    assert log.size_bytes == before - infos[0].bytes - infos[1].bytes
    assert log.start_offset == infos[2].base_offset
    log.detach_before(10**9).remove()
    assert len(log.segments()) == 1
    names = {path.name for path in tmp_path.iterdir() if path.name[0] == "0"}
    assert len(names) == 4
    sync(log)
    log.close()
    again = open_log(tmp_path)
    assert (again.start_offset, again.end_offset) == (log.start_offset, 30)


def test_nothing_is_durable_before_its_sync_has_finished(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    sync(log)
    assert log.begin_sync() is None
    append(log, count=3)
    job = log.begin_sync()
    assert job is not None
    append(log)
    assert (job.end_offset, log.durable_offset) == (3, 0)
    job.run()
    assert log.durable_offset == 0
    log.finish_sync(job)
    assert (log.durable_offset, log.end_offset) == (3, 4)
    sync(log)
    assert log.durable_offset == 4


def test_a_sync_in_a_thread_copes_with_rolls_and_drops_meanwhile(tmp_path: Path) -> None:
    class SlowDisk(FaultyDisk):
        started, go_on = threading.Event(), threading.Event()

        def sync_data(self, fd: int) -> None:
            if threading.current_thread() is not threading.main_thread():
                self.started.set()
                assert self.go_on.wait(10)
            super().sync_data(fd)

    disk = SlowDisk()
    log = open_log(tmp_path, disk=disk)
    for _ in range(10):
        append(log)
    job = log.begin_sync()
    assert job is not None
    thread = threading.Thread(target=job.run)
    thread.start()
    assert disk.started.wait(10)
    for _ in range(30):
        append(log)
    log.detach_before(30).remove()
    log.close(clean=False)
    disk.go_on.set()
    thread.join(10)
    assert not thread.is_alive()
    assert len(disk.synced) >= 2


def test_descriptors_of_closed_segments_are_bounded(tmp_path: Path) -> None:
    gc.collect()  # files of other tests' logs
    before = open_fds()
    log = open_log(tmp_path)
    written = append_many(log, 150)
    assert len(log.segments()) > 20
    sync(log)
    assert read_all(log)[0] == written
    assert read_all(log)[0] == written
    assert open_fds() - before <= 4 * (OPEN_SEGMENTS_MAX + 1)
    log.close()
    assert open_fds() == before


def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    first = append(log)
    for room in (0, 1, 60, len(first) - 1):
        disk.room = room
        with pytest.raises(DiskFull):
            append(log)
        assert (log.end_offset, log.size_bytes) == (1, len(first))
        assert (tmp_path / f"{0:020d}.log").read_bytes() == first
    disk.room = None
    second = append(log)
    assert read_all(log) == ({0: first, 1: second}, [])
    log.close()
    assert read_all(open_log(tmp_path)) == ({0: first, 1: second}, [])


def test_side_files_wait_for_room_on_a_full_disk(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, LogConfig(tail_bytes_max=0), disk=disk)
    written = append_many(log, 5)
    disk.room = 0
    sync(log)
    disk.room = None
    written |= append_many(log, 5)
    assert read_all(log) == (written, [])
    log.close()
    again = open_log(tmp_path)
    assert again.recovery.was_clean
    assert again.recovery.scanned_bytes == 0
    assert read_all(again) == (written, [])


@pytest.mark.parametrize("fault", ["write", "truncate"])
def test_a_broken_disk_ends_appends_but_not_reads(tmp_path: Path, fault: str) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    first = append(log)
    if fault == "write":
        disk.write_errno = errno.EIO
    else:
        disk.room, disk.truncate_errno = 10, errno.EIO
    with pytest.raises(OSError, match="injected"):
        append(log)
    disk.write_errno = disk.room = disk.truncate_errno = None
    with pytest.raises(AppendsRefused):
        append(log)
    with pytest.raises(AppendsRefused):
        log.begin_sync()
    assert log.read(0, bytes_max=1) == [first]
    log.close()
    assert read_all(open_log(tmp_path)) == ({0: first}, [])


def test_one_sync_at_a_time_and_a_stop_in_the_middle_is_not_clean(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    first = append(log)
    job = log.begin_sync()
    assert job is not None
    append(log)
    with pytest.raises(AssertionError):
        log.begin_sync()
    log.close()
    job.run()
    again = open_log(tmp_path)
    assert not again.recovery.was_clean
    assert again.read(0, bytes_max=1) == [first]


def test_a_failed_sync_is_final(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    append(log)
    job = log.begin_sync()
    assert job is not None
    before = open_fds()
    disk.sync_errno = errno.EIO
    with pytest.raises(OSError, match="injected"):
        job.run()
    disk.sync_errno = None
    assert open_fds() < before
    with pytest.raises(AppendsRefused, match="sync failed"):
        append(log)
    with pytest.raises(AppendsRefused):
        log.finish_sync(job)
    assert log.durable_offset == 0


def test_time_leads_to_the_first_batch_that_reaches_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    stamps = [100, 90, 300, 200, 250, 300, 500, 400, 700, 700, 650, 900]
    for timestamp in stamps:
        log.append(make_batch(log.end_offset, timestamp=timestamp), now_ms=0)
    assert len(log.segments()) > 1
    for wanted in range(0, 1_000, 10):
        first = next((at for at, stamp in enumerate(stamps) if stamp >= wanted), len(stamps))
        assert log.find_time(wanted) == first, wanted
    assert log.last_timestamp_ms == 900
    log.close()
    again = open_log(tmp_path)
    assert again.last_timestamp_ms == 900
    assert again.find_time(260) == 2


def test_checkpoints_keep_two_generations_and_the_newest_valid_one_wins(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.read_checkpoint("cursor") is None
    for number in range(5):
        log.write_checkpoint("cursor", b"state %d" % number)
        assert log.read_checkpoint("cursor") == b"state %d" % number
    files = sorted(tmp_path.glob("cursor.*"))
    assert len(files) == 2
    newest = next(path for path in files if path.read_bytes().endswith(b"4"))
    newest.write_bytes(newest.read_bytes()[:-1])
    assert log.read_checkpoint("cursor") == b"state 3"
    log.write_checkpoint("cursor", b"state 5")
    assert log.read_checkpoint("cursor") == b"state 5"


def test_a_full_disk_keeps_the_old_checkpoint(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    log.write_checkpoint("cursor", b"old")
    disk.room = 10
    with pytest.raises(OSError, match="injected"):
        log.write_checkpoint("cursor", b"new")
    disk.room = None
    assert log.read_checkpoint("cursor") == b"old"
    log.close()
    again = open_log(tmp_path)
    assert again.read_checkpoint("cursor") == b"old"
    assert not list(tmp_path.glob("*.tmp"))


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log)
    log.close()
    log.close()
    with pytest.raises(AppendsRefused, match="closed"):
        append(log)


def test_damage_met_while_reading_is_remembered(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    written = append_many(log, 12)
    log.close()
    path = tmp_path / f"{0:020d}.log"
    raw = bytearray(path.read_bytes())
    raw[len(written[0]) + 80] ^= 1
    path.write_bytes(raw)
    again = open_log(tmp_path)
    assert again.damage == []
    with pytest.raises(DamagedRange) as caught:
        again.read(1, bytes_max=1_000)
    assert (caught.value.first_offset, caught.value.next_offset) == (1, 2)
    assert caught.value.position == len(written[0])
    assert [damage.first_offset for damage in again.damage] == [1]
    again.close()
    third = open_log(tmp_path)
    assert [damage.first_offset for damage in third.recovery.damage] == [1]
    found, damages = read_all(third)
    assert found == {base: batch for base, batch in written.items() if base != 1}
    assert len(damages) == 1
    third.detach_before(6).remove()
    assert third.damage == []


def test_batches_of_many_records_keep_their_offsets(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for count in (1, 7, 2, 30):
        append(log, count=count)
    assert log.end_offset == 40
    assert parse_header(log.read(39, bytes_max=1)[0]).base_offset == 10


def test_borrowed_memory_is_written_and_not_kept(tmp_path: Path) -> None:
    log = open_log(tmp_path, KEPT_IN_MEMORY)
    first = append(log)
    memory = bytearray(make_batch(log.end_offset, count=3))
    batch = bytes(memory)
    log.append(memoryview(memory), now_ms=1_000)
    memory[:] = bytes(len(memory))  # the caller goes on to use it for something else
    last = append(log)
    assert read_all(log) == ({0: first, 1: batch, 4: last}, [])
