"""What a leader sent is appended as it is, or not at all."""

import errno
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.log.stage import (
    FaultyDisk,
    QuickDisk,
    append,
    append_many,
    make_batch,
    open_log,
    read_all,
    sync,
)

from penstock.log.inspection import PartitionFolder, segments_of, verify_segment
from penstock.log.log import AppendsRefused, Log, LogConfig
from penstock.model.errors import Damaged, DiskFull
from penstock.model.file_slice import in_memory
from penstock.model.limits import BATCH_BYTES_MAX
from penstock.record.batch import HEADER_BYTES, parse_header
from penstock.record.compaction import empty_batch, merge_empty

CONFIG = LogConfig(
    segment_bytes_max=600, segment_age_ms_max=10**9, index_interval_bytes=150, tail_bytes_max=1_000
)
ROOMY = LogConfig(tail_bytes_max=0)


def batches_from(offset: int, sizes: list[int], epoch: int = 0) -> list[bytes]:
    made = []
    for size in sizes:
        made.append(make_batch(offset, size=size, epoch=epoch))
        offset += 1
    return made


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@given(
    portions=st.lists(st.lists(st.integers(8, 300), min_size=1, max_size=12), max_size=5),
    is_borrowed=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_the_files_are_those_of_single_appends(
    tmp_path_factory: pytest.TempPathFactory, portions: list[list[int]], is_borrowed: bool
) -> None:
    folder = tmp_path_factory.mktemp("log")
    follower = open_log(folder / "follower", CONFIG, disk=QuickDisk())
    leader = open_log(folder / "leader", CONFIG, disk=QuickDisk())
    for portion in portions:
        made = batches_from(leader.end_offset, portion)
        for batch in made:
            leader.append(batch, now_ms=1_000)
        data = b"".join(made)
        headers = follower.append_copied(
            memoryview(bytearray(data)) if is_borrowed else data, now_ms=1_000
        )
        assert list(headers) == [parse_header(batch) for batch in made]
        assert read_all(follower) == read_all(leader)
        assert follower.segments() == leader.segments()
        assert follower.last_timestamp_ms == leader.last_timestamp_ms
        assert follower.size_bytes == leader.size_bytes
        sync(follower)
        assert follower.durable_offset == leader.end_offset
    follower.close()
    leader.close()
    for path in (folder / "leader").iterdir():
        if path.suffix:
            assert (folder / "follower" / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_stretch_is_one_write_per_segment(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, CONFIG, disk=disk)
    before = disk.write_count
    log.append_copied(b"".join(batches_from(0, [40] * 4)), now_ms=1_000)
    assert (len(log.segments()), disk.write_count - before) == (1, 1)
    before = disk.write_count
    log.append_copied(b"".join(batches_from(4, [40] * 8)), now_ms=1_000)
    data_writes = len(log.segments())
    side_writes = 3 * (
        len(log.segments()) - 1
    )  # of closed segments: once each, when they are closed
    assert len(log.segments()) == 3
    assert disk.write_count - before <= data_writes + side_writes


def test_a_segment_that_is_too_old_is_closed_first(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_age_ms_max=500, tail_bytes_max=0))
    log.append_copied(make_batch(0), now_ms=1_000)
    log.append_copied(make_batch(1), now_ms=1_499)
    assert len(log.segments()) == 1
    log.append_copied(make_batch(2), now_ms=1_500)
    assert len(log.segments()) == 2


def test_nothing_is_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path, CONFIG)
    assert list(log.append_copied(b"", now_ms=1_000)) == []


BASE, LENGTH, EPOCH, MAGIC_AT, DELTA, BODY = 7, 11, 15, 16, 23, 70


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(
    "byte", [BASE, LENGTH, MAGIC_AT, DELTA, BODY], ids=["base", "length", "magic", "delta", "body"]
)
def test_whatever_is_wrong_with_a_batch_nothing_is_written(
    tmp_path: Path, number: int, byte: int
) -> None:
    log = open_log(tmp_path, CONFIG)
    append_many(log, 3)
    before, end = files(tmp_path), log.end_offset
    made = [bytearray(batch) for batch in batches_from(3, [40] * 3)]
    made[number][byte] ^= 0x80
    with pytest.raises(Damaged) as caught:
        log.append_copied(b"".join(made), now_ms=1_000)
    assert caught.value.path == str(tmp_path)
    assert caught.value.position <= number * len(made[0])
    assert (files(tmp_path), log.end_offset) == (before, end)
    assert log.refusal is None, "the next answer may be better"
    log.append_copied(b"".join(batches_from(3, [40] * 3)), now_ms=1_000)
    assert log.end_offset == 6


def with_length(batch: bytes, length: int) -> bytes:
    return batch[:8] + length.to_bytes(4, "big", signed=True) + batch[12:]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (make_batch(4), "base offset 4, expected 3"),
        (make_batch(2), "base offset 2, expected 3"),
        (make_batch(3, epoch=1), "leader epoch 1 after epoch 2"),
        (make_batch(3, epoch=4) + make_batch(4, epoch=3), "leader epoch 3 after epoch 4"),
        (make_batch(3, epoch=2) + make_batch(5, epoch=2), "base offset 5, expected 4"),
        (make_batch(3, epoch=2)[:-1], "the batch is truncated by 1 bytes"),
        (make_batch(3, epoch=2) + b"x", "1 bytes are too few for a batch"),
        (with_length(make_batch(3, epoch=2), -12), "invalid batch size of 0 bytes"),
        (with_length(make_batch(3, epoch=2), BATCH_BYTES_MAX), f"of {BATCH_BYTES_MAX + 12} bytes"),
    ],
)
def test_only_what_follows_the_log_is_taken(tmp_path: Path, data: bytes, reason: str) -> None:
    log = open_log(tmp_path, CONFIG)
    for _ in range(3):
        append(log, epoch=2)
    with pytest.raises(Damaged, match=reason):
        log.append_copied(data, now_ms=1_000)
    assert log.end_offset == 3


def test_the_last_epoch_is_known_after_a_start_and_over_a_roll(tmp_path: Path) -> None:
    log = open_log(tmp_path, CONFIG)
    append(log, epoch=7)
    log.roll(now_ms=1_000)
    for is_clean in (False, True):
        log.close(clean=is_clean)
        log = open_log(tmp_path, CONFIG)
        assert log.last_epoch == 7
        with pytest.raises(Damaged, match="leader epoch 6 after epoch 7"):
            log.append_copied(make_batch(1, epoch=6), now_ms=1_000)


def test_without_room_for_another_segment_the_first_is_kept_and_named(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, CONFIG, disk=disk)
    made = batches_from(0, [40] * 9)
    disk.room = sum(map(len, made[:7]))
    headers = log.append_copied(b"".join(made), now_ms=1_000)
    fitting = log.end_offset
    assert 0 < fitting < 7
    assert [header.base_offset for header in headers] == list(range(fitting))
    assert read_all(log)[0] == dict(enumerate(made[:fitting]))
    disk.room = 0
    with pytest.raises(DiskFull):
        log.append_copied(b"".join(made[fitting:]), now_ms=1_000)
    assert log.end_offset == fitting
    disk.room = None
    log.append_copied(b"".join(made[fitting:]), now_ms=1_000)
    assert read_all(log) == (dict(enumerate(made)), [])


def test_a_broken_disk_ends_appends(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, CONFIG, disk=disk)
    disk.write_errno = errno.EIO
    with pytest.raises(OSError, match="injected"):
        log.append_copied(make_batch(0), now_ms=1_000)
    with pytest.raises(AppendsRefused):
        log.append_copied(make_batch(0), now_ms=1_000)


# ── What compaction has left ─────────────────────────────────────────────────────────────────


def compacted(log: Log, size: int = 40) -> list[bytes]:
    """Ten batches, of which the middle six have lost their records and become one."""
    made = [make_batch(at, size=size) for at in range(10)]
    bare = empty_batch(parse_header(made[2]), with_producer=False)
    for batch in made[3:8]:
        merged = merge_empty(bare, empty_batch(parse_header(batch), with_producer=False))
        assert merged is not None
        bare = merged
    left = [*made[:2], bare, *made[8:]]
    for batch in left:
        log.append(batch, now_ms=1_000)
    return left


def fetched(log: Log, *, as_slice: bool = False) -> bytes:
    parts: list[bytes | bytearray | memoryview] = []
    offset = 0
    while offset < log.end_offset:
        found = log.read_buffers(offset, bytes_max=10**6, as_slice=as_slice)
        parts += in_memory(found.buffers)
        offset = found.next_offset
    return b"".join(parts)


@pytest.mark.parametrize("config", [ROOMY, LogConfig(tail_bytes_max=10**6)], ids=["disk", "memory"])
def test_a_replica_is_given_emptied_batches_too(tmp_path: Path, config: LogConfig) -> None:
    leader, follower = open_log(tmp_path / "a", config), open_log(tmp_path / "b", config)
    left = compacted(leader, size=100_000)
    data = b"".join(read_all(leader)[0].values())
    assert data == b"".join(left)
    follower.append_copied(data, now_ms=1_000)
    assert read_all(follower) == read_all(leader)
    # Nobody else is, neither there nor here.
    served = b"".join(batch for batch in left if len(batch) > HEADER_BYTES)
    assert fetched(leader) == served
    for as_slice in (False, True):
        assert fetched(follower, as_slice=as_slice) == served


@pytest.mark.parametrize("end", range(2, 9))
def test_a_follower_gets_the_rest_of_what_became_one_batch(tmp_path: Path, end: int) -> None:
    """It has some of the batches, and its leader has compacted them meanwhile."""
    leader, follower = open_log(tmp_path / "a", ROOMY), open_log(tmp_path / "b", ROOMY)
    left = compacted(leader)
    append_many(follower, end)
    data = b"".join(leader.read(end, bytes_max=10**6))
    headers = follower.append_copied(data, now_ms=1_000)
    assert (headers[0].base_offset, follower.end_offset) == (end, 10)
    found, damages = read_all(follower)
    assert (found[8], found[9], damages) == (left[-2], left[-1], [])
    follower.close(clean=False)
    again = open_log(tmp_path / "b", ROOMY)
    assert (again.recovery.damage, again.end_offset) == ((), 10)
    place = PartitionFolder("t", 0, tmp_path / "b")
    for base_offset, next_base in segments_of(place):
        assert verify_segment(place.folder, base_offset, next_base).damage == []


def test_a_batch_with_records_that_begins_too_early_is_not_cut_in_two(tmp_path: Path) -> None:
    log = open_log(tmp_path, ROOMY)
    append_many(log, 2)
    with pytest.raises(Damaged, match="base offset 1, expected 2"):
        log.append_copied(make_batch(1, count=3), now_ms=1_000)
