"""What a replica has to know about its log before others may rely on it (rule R5), and that dying
before it could say so does not make it forget."""

from pathlib import Path

import pytest
from tests.unit.log.power import Killed, PowerDisk
from tests.unit.log.stage import QuickDisk, append_many, make_batch, open_log, read_all, sync

from penstock.log.inspection import PartitionFolder, summarize
from penstock.log.log import Log, LogConfig
from penstock.log.recovery import RecoveryReport
from penstock.log.storage.checkpoint import DOUBT_CRASHED, DOUBT_GARBAGE, DOUBT_NEW, DOUBT_SHORT
from penstock.log.storage.files import Disk

ONE_SEGMENT = LogConfig(index_interval_bytes=150, tail_bytes_max=0)
SEGMENT = f"{0:020d}.log"


def opened(folder: Path, disk: Disk | None = None) -> Log:
    return open_log(folder, ONE_SEGMENT, disk=disk or QuickDisk())


def settled_log(folder: Path, count: int = 12, *, clean: bool = False) -> dict[int, bytes]:
    log = opened(folder)
    log.settle()
    written = append_many(log, count)
    sync(log)
    log.close(clean=clean)
    return written


def doubts(report: RecoveryReport) -> set[str]:
    flags = {
        "new": DOUBT_NEW,
        "garbage": DOUBT_GARBAGE,
        "short": DOUBT_SHORT,
        "crashed": DOUBT_CRASHED,
    }
    return {name for name, flag in flags.items() if report.doubts & flag}


def test_r5_a_log_that_nobody_vouched_for_is_new_until_somebody_does(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert doubts(log.recovery) == {"new"}
    append_many(log, 3)
    sync(log)
    log.close()
    log = opened(tmp_path)
    assert (doubts(log.recovery), log.recovery.was_clean) == ({"new"}, True)
    log.settle()
    log.close()
    assert doubts(opened(tmp_path).recovery) == set()


def test_r5_a_clean_stop_leaves_no_doubts(tmp_path: Path) -> None:
    settled_log(tmp_path, clean=True)
    log = opened(tmp_path)
    assert doubts(log.recovery) == set()
    assert summarize(PartitionFolder("t", 0, tmp_path)).was_clean


def test_r5_a_crash_is_told_from_a_stop_even_after_a_clean_stop(tmp_path: Path) -> None:
    """A node that dies, comes back, and is stopped before it could tell anybody."""
    settled_log(tmp_path)
    log = opened(tmp_path)
    assert doubts(log.recovery) == {"crashed"}
    log.close()
    log = opened(tmp_path)
    assert log.recovery.was_clean
    assert doubts(log.recovery) == {"crashed"}
    log.settle()
    log.close(clean=False)
    assert doubts(opened(tmp_path).recovery) == set(), "nothing was done since the clean stop"


@pytest.mark.parametrize("tail", [b"\x00" * 61, b"\x00" * 10_000])
def test_r5_a_tail_of_zeros_is_no_garbage(tmp_path: Path, tail: bytes) -> None:
    settled_log(tmp_path)
    path = tmp_path / SEGMENT
    path.write_bytes(path.read_bytes() + tail)
    assert doubts(opened(tmp_path).recovery) == {"crashed"}


@pytest.mark.parametrize(
    "tail",
    [b"\x01", b"\x00" * 500 + b"x", make_batch(12)[:-1], make_batch(13), make_batch(12, epoch=-1)],
    ids=["a byte", "behind zeros", "torn", "a later offset", "an earlier epoch"],
)
def test_r5_other_bytes_behind_the_last_batch_are_garbage(tmp_path: Path, tail: bytes) -> None:
    written = settled_log(tmp_path)
    path = tmp_path / SEGMENT
    path.write_bytes(path.read_bytes() + tail)
    log = opened(tmp_path)
    assert doubts(log.recovery) == {"crashed", "garbage"}
    assert log.recovery.damage == ()
    assert read_all(log) == (written, [])


def test_r5_segments_behind_a_torn_one_are_garbage_unless_they_are_empty(tmp_path: Path) -> None:
    written = settled_log(tmp_path)
    for content, expected in ((b"", {"crashed"}), (make_batch(20), {"crashed", "garbage"})):
        (tmp_path / f"{20:020d}.log").write_bytes(content)
        log = opened(tmp_path)
        assert doubts(log.recovery) == expected
        assert read_all(log) == (written, [])
        log.settle()
        log.close(clean=False)


def test_r5_an_end_below_the_recovery_point_is_short(tmp_path: Path) -> None:
    written = settled_log(tmp_path)
    opened(tmp_path).close(clean=False)  # the point is at the end now
    path = tmp_path / SEGMENT
    path.write_bytes(path.read_bytes()[: -len(written[11])])
    log = opened(tmp_path)
    assert doubts(log.recovery) == {"crashed", "short"}
    assert log.recovery.recovery_point - log.recovery.end_offset == 1
    log.close(clean=False)
    log = opened(tmp_path)
    assert log.recovery.end_offset >= log.recovery.recovery_point
    assert "short" in doubts(log.recovery), "it still has to be told"


def test_r5_damage_in_the_middle_is_reported_until_it_is_gone(tmp_path: Path) -> None:
    written = settled_log(tmp_path)
    path = tmp_path / SEGMENT
    raw = bytearray(path.read_bytes())
    raw[sum(len(written[at]) for at in range(4)) + 70] ^= 1
    path.write_bytes(raw)
    for is_clean in (False, True, False):
        log = opened(tmp_path)
        assert [damage.first_offset for damage in log.recovery.damage] == [4]
        log.settle()
        log.close(clean=is_clean)


@pytest.mark.parametrize("field", [7, 11, 14, 15], ids=["base", "length", "epoch", "epoch low"])
@pytest.mark.parametrize("is_clean", [False, True])
def test_r5_header_fields_that_a_batch_does_not_cover_are_covered(
    tmp_path: Path, field: int, is_clean: bool
) -> None:
    """The CRC of a batch begins behind base offset, length and leader epoch."""
    written = settled_log(tmp_path, clean=is_clean)
    path = tmp_path / SEGMENT
    raw = bytearray(path.read_bytes())
    raw[sum(len(written[at]) for at in range(4)) + field] ^= 1
    path.write_bytes(raw)
    log = opened(tmp_path)
    found, damages = read_all(log)
    assert found == {base: batch for base, batch in written.items() if base != 4}
    assert [damaged.first_offset for damaged in damages] == [4]


@pytest.mark.parametrize("has_checks", [False, True])
def test_r5_an_epoch_that_goes_back_behind_a_closed_segment_is_noticed(
    tmp_path: Path, has_checks: bool
) -> None:
    config = LogConfig(index_interval_bytes=150, tail_bytes_max=0)
    log = open_log(tmp_path, config)
    log.append(make_batch(0, epoch=4), now_ms=1_000)
    log.roll(now_ms=1_000)
    for at in range(1, 4):
        log.append(make_batch(at, epoch=4), now_ms=1_000)
    sync(log)
    log.close(clean=False)
    path = tmp_path / f"{1:020d}.log"
    raw = bytearray(path.read_bytes())
    raw[15] = 3  # the epoch of its first batch
    path.write_bytes(raw)
    if not has_checks:
        path.with_suffix(".check").unlink()
    log = open_log(tmp_path, config)
    assert [damage.first_offset for damage in log.recovery.damage] == [1]


def test_r5_dying_at_any_moment_of_an_opening_forgets_no_doubt(tmp_path: Path) -> None:
    """Garbage is cut off and a point that was too high lowered: by the time it could be told, there
    would be nothing left to see."""
    origin = tmp_path / "origin"
    written = settled_log(origin)
    opened(origin).close(clean=False)
    path = origin / SEGMENT
    raw = path.read_bytes()[: -len(written[11]) - 7]  # below the point, and torn
    expected = {"crashed", "garbage", "short"}
    dies_at, is_killed = -1, True
    while is_killed:
        dies_at += 1
        folder, left = tmp_path / f"{dies_at}", tmp_path / f"{dies_at}-left"
        folder.mkdir()
        for one in origin.iterdir():
            (folder / one.name).write_bytes(raw if one.name == SEGMENT else one.read_bytes())
        disk = PowerDisk(folder)
        disk.dies_at = dies_at
        try:
            log = opened(folder, disk)
            assert doubts(log.recovery) == expected
            log.close(clean=False)
            is_killed = False
        except Killed:
            is_killed = True
        disk.left_behind(folder, left, None)
        disk.close_files()
        again = opened(left)
        assert doubts(again.recovery) == expected
        assert again.end_offset == 10
        again.settle()
        again.close()
        assert doubts(opened(left).recovery) == set()
    assert dies_at > 10, "all of it was looked at"
