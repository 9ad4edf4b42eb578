"""Cutting a log, and beginning one anew: what is left is a log like any other. That dying on the
way is harmless, ``test_replica_machine.py`` shows."""

import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.unit.log.stage import (
    SMALL,
    FaultyDisk,
    append,
    append_many,
    make_batch,
    open_log,
    read_all,
    sync,
)

from penstock.log.batch_cache import BatchCacheBudget
from penstock.log.inspection import segment_bases, verify_segment
from penstock.log.log import AppendsRefused, Log, LogConfig
from penstock.log.replacement import begin_replacement, mark_path, rewritten_folder
from penstock.log.storage.checkpoint import DOUBT_GARBAGE, DOUBT_SHORT, RecoveryPoint, read_point
from penstock.log.storage.files import DISK, SIDE_SUFFIXES
from penstock.model.errors import DiskFull, OffsetOutOfRange
from penstock.model.file_slice import FileSlice
from penstock.record.batch import parse_header

ONE_SEGMENT = LogConfig(index_interval_bytes=150, tail_bytes_max=0)


def assert_in_order(folder: Path) -> None:
    """Segments and their side files say the same."""
    bases = segment_bases(folder)
    for base_offset, next_base in zip(bases, [*bases[1:], None], strict=True):
        found = verify_segment(folder, base_offset, next_base)
        assert (found.damage, found.remarks) == ([], [])


@pytest.mark.parametrize("to", range(31))
def test_everything_at_and_behind_the_offset_goes(tmp_path: Path, to: int) -> None:
    log = open_log(tmp_path)
    written = append_many(log, 30)
    if to % 2:
        sync(log)
    assert log.truncate(to) == to
    kept = {offset: batch for offset, batch in written.items() if offset < to}
    assert read_all(log) == (kept, [])
    assert log.end_offset == to
    assert log.durable_offset == (to if to < 30 or to % 2 else 0)
    assert log.size_bytes == sum(map(len, kept.values()))
    assert log.last_timestamp_ms == max((1_000 + offset for offset in kept), default=-1)
    if to < 30:
        assert log.sealed_offset <= to
        assert_in_order(tmp_path)
    # It goes on from there, and what comes is found by offset and by time.
    for _ in range(20):
        offset = log.end_offset
        kept[offset] = append(log, size=60)
    assert read_all(log) == (kept, [])
    assert log.find_time(1_000 + to + 3) == to + 3
    sync(log)
    log.close()
    assert_in_order(tmp_path)
    again = open_log(tmp_path)
    assert again.recovery.was_clean
    assert read_all(again) == (kept, [])


def test_a_batch_goes_as_a_whole(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, count=5)
    append(log, count=5)
    assert log.truncate(7) == 5
    assert log.truncate(3) == 0
    assert (log.start_offset, log.end_offset, len(log.segments())) == (0, 0, 1)


def test_a_cut_without_a_close_survives_a_kill(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    written = append_many(log, 30)
    sync(log)
    log.truncate(13)
    point = read_point(tmp_path, DISK)
    assert point is not None
    assert point.offset <= 13
    again = open_log(tmp_path)
    assert again.recovery.end_offset >= again.recovery.recovery_point
    assert not again.recovery.doubts & DOUBT_SHORT
    assert not again.recovery.doubts & DOUBT_GARBAGE
    assert read_all(again) == ({at: written[at] for at in range(13)}, [])


def test_the_mark_of_a_clean_stop_does_not_come_back_with_the_size(tmp_path: Path) -> None:
    log = open_log(tmp_path, ONE_SEGMENT)
    append_many(log, 5)
    log.close()
    log = open_log(tmp_path, ONE_SEGMENT)
    append_many(log, 5)
    log.truncate(5)
    log.close(clean=False)
    assert not open_log(tmp_path, ONE_SEGMENT).recovery.was_clean


def test_recent_batches_in_memory_go_too(tmp_path: Path) -> None:
    budget = BatchCacheBudget(10_000)
    log = open_log(tmp_path, LogConfig(tail_bytes_max=5_000, batch_cache_budget=budget))
    append_many(log, 10)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(log.truncate, 4).result() == 4
    with pytest.raises(OffsetOutOfRange):
        log.read(5, bytes_max=100)
    batch = make_batch(4, size=90)
    log.append(batch, now_ms=1_000)
    assert log.read(4, bytes_max=100) == [batch]
    assert budget.used_bytes == len(batch), "what was held before is given back"


def test_a_fetch_that_knew_the_place_is_not_served_what_stood_there(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(tail_bytes_max=0))
    for _ in range(4):
        append(log, size=100_000)
    for as_slice in (True, False):
        log.read_buffers(2, bytes_max=10**6, as_slice=as_slice)
    log.truncate(2)
    batch = append(log, size=150_000)
    for as_slice in (True, False):
        (piece,) = log.read_buffers(2, bytes_max=10**6, as_slice=as_slice).buffers
        data = (
            piece.file.pread(piece.size, piece.position) if isinstance(piece, FileSlice) else piece
        )
        assert data == batch


def flip(path: Path, position: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[position] ^= 0x10
    path.write_bytes(raw)


@pytest.mark.parametrize("to", [3, 4, 5, 6, 9, 11])
@pytest.mark.parametrize("byte", [3, 70], ids=["header", "body"])
def test_damage_is_forgotten_when_it_is_cut_off_and_only_then(
    tmp_path: Path, to: int, byte: int
) -> None:
    log = open_log(tmp_path, ONE_SEGMENT)
    written = append_many(log, 12)
    sync(log)
    log.close(clean=False)
    path = tmp_path / f"{0:020d}.log"
    flip(path, sum(len(written[at]) for at in range(4)) + byte)
    log = open_log(tmp_path, ONE_SEGMENT)
    assert [damage.first_offset for damage in log.damage] == [4]
    # With nothing whole behind it damage is no more than a torn end, and goes too.
    assert log.truncate(to) == (4 if to == 5 else to)
    left = [4] if to > 5 else []
    assert [damage.first_offset for damage in log.damage] == left
    found, damages = read_all(log)
    assert found == {at: written[at] for at in range(log.end_offset) if at != 4}
    assert [damaged.first_offset for damaged in damages] == left
    log.close(clean=False)
    again = open_log(tmp_path, ONE_SEGMENT)
    assert [damage.first_offset for damage in again.recovery.damage] == left
    assert not again.recovery.doubts & DOUBT_GARBAGE
    assert again.end_offset == log.end_offset


@pytest.mark.parametrize("suffix", SIDE_SUFFIXES)
def test_damaged_side_files_do_not_mislead_a_cut(tmp_path: Path, suffix: str) -> None:
    log = open_log(tmp_path, ONE_SEGMENT)
    written = append_many(log, 40)
    log.close()
    for position in range(0, 64, 5):
        log = open_log(tmp_path, ONE_SEGMENT)
        flip(tmp_path / f"{0:020d}{suffix}", position)
        end = log.end_offset - 2
        assert log.truncate(end) == end
        assert log.last_timestamp_ms == 1_000 + end - 1
        assert read_all(log)[0] == {at: written[at] for at in range(end)}
        log.close()
        assert read_all(open_log(tmp_path, ONE_SEGMENT))[0] == {
            at: written[at] for at in range(end)
        }


def test_a_rewrite_that_was_decided_does_not_bring_back_what_is_cut(tmp_path: Path) -> None:
    """Compaction had a segment ready when its replica was told to cut it."""
    log = open_log(tmp_path)
    written = append_many(log, 20)
    sync(log)
    first = log.segments()[0]
    spare = rewritten_folder(tmp_path)
    spare.mkdir()
    for suffix in (".log", *SIDE_SUFFIXES):
        name = f"{0:020d}{suffix}"
        (spare / name).write_bytes((tmp_path / name).read_bytes())
    begin_replacement(DISK, tmp_path, 0, first.end_offset)
    log.truncate(2)
    assert not mark_path(tmp_path, 0, first.end_offset).exists()
    assert read_all(open_log(tmp_path)) == ({at: written[at] for at in range(2)}, [])


def test_nothing_is_cut_while_a_sync_is_under_way(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_many(log, 3)
    job = log.begin_sync()
    assert job is not None
    for cut in (lambda: log.truncate(1), lambda: log.restart(1)):
        with pytest.raises(AssertionError):
            cut()
    job.run()
    log.finish_sync(job)
    assert log.truncate(1) == 1


def cut_in_the_middle(log: Log) -> object:
    return log.truncate(10)


def begin_anew(log: Log) -> object:
    log.restart(100)
    return None


BOTH = pytest.mark.parametrize("change", [cut_in_the_middle, begin_anew])


@BOTH
def test_a_full_disk_leaves_the_log_as_it_was(
    tmp_path: Path, change: Callable[[Log], object]
) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    written = append_many(log, 20)
    disk.room = 0
    disk.write_errno = errno.ENOSPC
    if change is begin_anew:
        disk.write_errno = None
        disk.sync_errno = None
        disk.rename = no_room  # type: ignore[method-assign]
    with pytest.raises(DiskFull):
        change(log)
    assert read_all(log) == (written, [])
    assert log.refusal is None


def no_room(source: Path, target: Path) -> None:
    raise OSError(errno.ENOSPC, "injected", str(target))


@BOTH
@pytest.mark.parametrize("fault", ["sync_errno", "truncate_errno"])
def test_a_broken_disk_ends_appends_until_it_is_opened_again(
    tmp_path: Path, change: Callable[[Log], object], fault: str
) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    written = append_many(log, 20)
    if change is begin_anew:
        disk.rename = broken  # type: ignore[method-assign]
    else:
        setattr(disk, fault, errno.EIO)
    with pytest.raises(OSError, match="injected"):
        change(log)
    for refused in (lambda: append(log), lambda: log.truncate(1), lambda: log.restart(1)):
        with pytest.raises(AppendsRefused):
            refused()
    log.close()
    again = open_log(tmp_path)
    assert read_all(again) == ({at: written[at] for at in range(again.end_offset)}, [])


def broken(source: Path, target: Path) -> None:
    raise OSError(errno.EIO, "injected", str(target))


# ── Beginning anew ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("at", [0, 2, 10, 13, 20, 30, 31, 2**40])
def test_a_log_begins_anew_wherever_it_is_told_to(tmp_path: Path, at: int) -> None:
    log = open_log(tmp_path)
    append_many(log, 30)
    sync(log)
    log.detach_before(10).remove()
    log.write_checkpoint("cursor", b"folded from what is gone")
    log.restart(at)
    assert (log.start_offset, log.end_offset, log.durable_offset) == (at, at, at)
    assert (log.size_bytes, log.last_timestamp_ms, log.last_epoch) == (0, -1, -1)
    assert log.read(at, bytes_max=100) == []
    assert log.read_checkpoint("cursor") is None
    assert segment_bases(tmp_path) == [at]
    log.close(clean=False)
    log = open_log(tmp_path)
    assert (log.start_offset, log.end_offset) == (at, at)
    assert log.recovery.end_offset >= log.recovery.recovery_point
    assert log.recovery.truncated_bytes == 0
    written = append_many(log, 20)
    assert min(written) == at
    assert read_all(log) == (written, [])
    log.close()
    assert read_all(open_log(tmp_path)) == (written, [])


def test_a_log_that_has_begun_anew_goes_on_without_being_opened_again(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes_max=600, tail_bytes_max=1_000))
    append_many(log, 30)
    log.restart(7)
    written = append_many(log, 20)
    assert read_all(log) == (written, [])
    sync(log)
    assert log.durable_offset == 27
    log.close(clean=False)
    assert read_all(open_log(tmp_path)) == (written, [])


def test_removing_what_was_dropped_earlier_does_not_remove_what_is_new(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_many(log, 30)
    sync(log)
    detached = log.detach_before(12)
    assert detached.paths, "not yet removed"
    log.restart(0)
    written = append_many(log, 3)
    detached.remove()
    sync(log)
    log.close()
    assert read_all(open_log(tmp_path)) == (written, [])


def test_damage_is_gone_with_what_was_damaged(tmp_path: Path) -> None:
    log = open_log(tmp_path, ONE_SEGMENT)
    append_many(log, 12)
    log.close()
    flip(tmp_path / f"{0:020d}.log", 70)
    log = open_log(tmp_path, ONE_SEGMENT)
    assert read_all(log)[1]
    log.restart(0)
    assert list(log.damage) == []
    append_many(log, 12)
    assert open_log(tmp_path, ONE_SEGMENT).recovery.damage == ()


def test_a_checkpoint_can_be_removed(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    for data in (b"one", b"two", b"three"):
        log.write_checkpoint("cursor", data)
    log.write_checkpoint("other", b"stays")
    log.remove_checkpoint("cursor")
    log.remove_checkpoint("cursor")
    assert log.read_checkpoint("cursor") is None
    assert log.read_checkpoint("other") == b"stays"
    assert read_point(tmp_path, DISK) in (None, RecoveryPoint(0))
    assert parse_header(append(log)).base_offset == 0
