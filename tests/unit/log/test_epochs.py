"""Which epochs a log holds: found from headers, with or without what was saved."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.log.stage import (
    QuickDisk,
    append,
    append_many,
    closed_later,
    make_batch,
    open_log,
    sync,
)

from penstock.log.log import Log, LogConfig
from penstock.log.readable import read_epochs, write_epochs

CONFIG = LogConfig(
    segment_bytes_max=2_000, segment_age_ms_max=10**9, index_interval_bytes=300, tail_bytes_max=0
)
LARGE = LogConfig(tail_bytes_max=0)


class ReadingDisk(QuickDisk):
    def __init__(self) -> None:
        self.read_bytes = 0

    def pread(self, fd: int, count: int, position: int) -> bytes:
        data = super().pread(fd, count, position)
        self.read_bytes += len(data)
        return data


def fill(log: Log, epochs: list[int]) -> list[tuple[int, int]]:
    """One batch per epoch that is given. Returns what is to be found."""
    expected: dict[int, int] = {}
    for epoch in epochs:
        expected.setdefault(epoch, log.end_offset)
        append(log, epoch=epoch)
    return list(expected.items())


@given(
    epochs=st.lists(st.integers(0, 12), max_size=80).map(sorted),
    saved_at=st.integers(0, 80),
    dropped=st.integers(0, 80),
    is_clean=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_epochs_are_those_of_the_batches(
    tmp_path_factory: pytest.TempPathFactory,
    epochs: list[int],
    saved_at: int,
    dropped: int,
    is_clean: bool,
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = open_log(folder, CONFIG, disk=QuickDisk())
    expected = fill(log, epochs)
    if saved_at <= len(epochs):
        write_epochs(log, expected, saved_at)
    assert read_epochs(log) == expected
    log.detach_before(dropped).remove()
    start = log.start_offset
    kept = dict.fromkeys(epochs[start:])
    expected = [(epoch, max(offset, start)) for epoch, offset in expected if epoch in kept]
    assert read_epochs(log) == expected
    log.close(clean=is_clean)
    again = open_log(folder, CONFIG, disk=QuickDisk())
    assert read_epochs(again) == expected
    assert again.last_epoch == (epochs[-1] if epochs else -1)


def test_an_empty_log_has_none(tmp_path: Path) -> None:
    assert read_epochs(open_log(tmp_path)) == []


def test_an_epoch_without_a_batch_is_not_in_it(tmp_path: Path) -> None:
    log = open_log(tmp_path, CONFIG)
    fill(log, [1, 1])
    write_epochs(log, [(1, 0), (5, 2)], 2)
    assert read_epochs(log) == [(1, 0)]
    append(log, epoch=6)
    assert read_epochs(log) == [(1, 0), (6, 2)]


@pytest.mark.parametrize("is_saved", [False, True])
def test_bodies_are_not_read_for_it(tmp_path: Path, is_saved: bool) -> None:
    disk = ReadingDisk()
    log = closed_later(Log.open(tmp_path, LARGE, now_ms=1_000, disk=disk))
    for at in range(200):
        append(log, size=20_000, epoch=at // 50)
    expected = [(0, 0), (1, 50), (2, 100), (3, 150)]
    if is_saved:
        write_epochs(log, expected, 200)
    disk.read_bytes = 0
    assert read_epochs(log) == expected
    assert disk.read_bytes < log.size_bytes / (200 if is_saved else 10)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xc1",
        b"\x93\x01\x05\x90",
        b"\x93\x02\x05\x91\x92\x00\x00",
        b"\x93\x01\x05\x91\x92\x00\x07",
    ],
    ids=["empty", "no message pack", "no entries", "a later version", "an offset behind its end"],
)
def test_a_checkpoint_that_makes_no_sense_is_as_good_as_none(
    tmp_path: Path, content: bytes
) -> None:
    log = open_log(tmp_path, CONFIG)
    expected = fill(log, [0, 0, 1, 1, 2, 2, 2])
    log.write_checkpoint("epochs", content)
    assert read_epochs(log) == expected


def test_a_checkpoint_that_is_ahead_of_the_log_is_not_believed(tmp_path: Path) -> None:
    log = open_log(tmp_path, CONFIG)
    expected = fill(log, [0, 0, 1])
    write_epochs(log, [(0, 0), (1, 2), (4, 3)], 5)
    assert read_epochs(log) == expected


def test_a_checkpoint_of_another_history_is_not_believed(tmp_path: Path) -> None:
    """It was written ahead of what a crash left, and the log has grown past it since."""
    log = open_log(tmp_path, CONFIG)
    fill(log, [0, 0])
    write_epochs(log, [(0, 0), (2, 2)], 6)
    fill(log, [3] * 8)
    assert read_epochs(log) == [(0, 0), (3, 2)]


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_cut_takes_the_checkpoint_with_it(tmp_path: Path, is_killed: bool) -> None:
    log = open_log(tmp_path, CONFIG)
    fill(log, [0, 0, 0, 0, 0, 1, 1, 1])
    write_epochs(log, read_epochs(log), 8)
    log.truncate(3)
    if is_killed:
        log.close(clean=False)
        log = open_log(tmp_path, CONFIG)
    fill(log, [1] * 8)
    assert read_epochs(log) == [(0, 0), (1, 3)]


@pytest.mark.parametrize("byte", [14, 70], ids=["header", "body"])
@pytest.mark.parametrize("number", range(0, 40, 3))
def test_damage_hides_no_more_than_its_own_epoch(tmp_path: Path, number: int, byte: int) -> None:
    config = LogConfig(index_interval_bytes=300, tail_bytes_max=0)
    log = open_log(tmp_path, config, disk=QuickDisk())
    written = append_many(log, 20)
    for at in range(20, 40):
        batch = make_batch(at, epoch=3)
        log.append(batch, now_ms=1_000)
        written[at] = batch
    sync(log)
    log.close()
    position = sum(len(written[at]) for at in range(number)) + byte
    path = tmp_path / f"{0:020d}.log"
    raw = bytearray(path.read_bytes())
    raw[position] ^= 0x01
    path.write_bytes(raw)
    log = open_log(tmp_path, config, disk=QuickDisk())
    epochs = [epoch for epoch, _ in read_epochs(log)]
    assert epochs == [0, 3]
    starts = dict(read_epochs(log))
    assert starts[0] <= 3
    assert 20 <= starts[3] <= 23
