"""What a reader by offset gets is what was appended, whole and in order, however it asks; and what
has been verified once is trusted no longer than is written down."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.damage import flip_bit
from tests.unit.log.stage import SMALL, QuickDisk, append, make_batch, open_log, read_all, sync
from tests.unit.record.checks import check

from penstock.log.log import Log, LogConfig, OffsetOutOfRange
from penstock.log.readable import OPEN_SEGMENTS_MAX
from penstock.log.storage.batch_buffers import READ_BYTES_MAX, TRUSTED_READS, BatchBuffers
from penstock.log.storage.checkpoint import DamagedRange
from penstock.log.storage.segment_files import RANGES_MAX
from penstock.model.file_slice import in_memory
from penstock.model.limits import MIB
from penstock.record.batch import (
    ATTR_CONTROL,
    HEADER_BYTES,
    encode_batch,
    parse_header,
    split_batches,
)
from penstock.record.compaction import empty_batch
from penstock.record.record import encode_record

ONE_SEGMENT = LogConfig(segment_bytes_max=10_000, index_interval_bytes=150, tail_bytes_max=0)
IN_MEMORY = LogConfig(segment_bytes_max=600, index_interval_bytes=150, tail_bytes_max=400)


class CountingDisk(QuickDisk):
    def __init__(self) -> None:
        self.reads: list[int] = []

    def pread(self, fd: int, count: int, position: int) -> bytes:
        self.reads.append(count)
        return super().pread(fd, count, position)


def append_behind(log: Log, count: int) -> bytes:
    """So many batches, and one more, for the last of all is always in memory."""
    written = b"".join(append(log) for _ in range(count))
    append(log)
    sync(log)  # writes out the checks
    return written


def joined(stretch: BatchBuffers) -> bytes:
    return b"".join(in_memory(stretch.buffers))


def segment_path(log: Log, number: int = 0) -> Path:
    return sorted(log.folder.glob("*.log"))[number]


def emptied(batch: bytes) -> bytes:
    return empty_batch(parse_header(batch), with_producer=True)


@settings(max_examples=60, deadline=None)
@given(
    config=st.sampled_from([SMALL, ONE_SEGMENT, IN_MEMORY]),
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(3, 90)), min_size=1, max_size=30),
    reads=st.lists(
        st.tuples(st.integers(0, 130), st.integers(0, 900), st.integers(0, 130)),
        min_size=1,
        max_size=40,
    ),
)
def test_every_stretch_is_a_run_of_what_was_appended(
    tmp_path_factory: pytest.TempPathFactory,
    config: LogConfig,
    sizes: list[tuple[int, int]],
    reads: list[tuple[int, int, int]],
) -> None:
    log = open_log(tmp_path_factory.mktemp("log"), config, disk=QuickDisk())
    written = [append(log, count=count, size=size) for count, size in sizes]
    headers = [parse_header(batch) for batch in written]
    for start, bytes_max, up_to in reads:
        if start > log.end_offset:
            with pytest.raises(OffsetOutOfRange):
                log.read_buffers(start, bytes_max=bytes_max, up_to=up_to)
            continue
        found = log.read_buffers(start, bytes_max=bytes_max, up_to=up_to)
        first = next((i for i, h in enumerate(headers) if h.next_offset > start), len(headers))
        if start >= up_to or first == len(headers) or headers[first].next_offset > up_to:
            assert found == BatchBuffers(found.buffers, start, 0)
            assert not found.buffers
            continue
        last = next(i for i, h in enumerate(headers) if h.next_offset == found.next_offset)
        assert joined(found) == b"".join(written[first : last + 1])
        assert found.record_count == sum(header.count for header in headers[first : last + 1])
        assert found.next_offset <= up_to
        assert len(joined(found)) <= bytes_max or last == first
    log.close(clean=False)


def test_the_next_reader_of_a_stretch_costs_one_read(tmp_path: Path) -> None:
    disk = CountingDisk()
    log = open_log(tmp_path, ONE_SEGMENT, disk=disk)
    written = append_behind(log, 20)
    first = log.read_buffers(0, bytes_max=len(written) // 2)
    disk.reads.clear()
    again = log.read_buffers(0, bytes_max=len(written) // 2)
    assert again == first == BatchBuffers((written[: len(joined(first))],), 10, 10)
    assert disk.reads == [len(joined(first))], "no index, no checks, not a byte too many"
    disk.reads.clear()
    rest = log.read_buffers(10, bytes_max=len(written), up_to=20)
    assert joined(first) + joined(rest) == written
    assert len(disk.reads) == 2, "the place where the other one ended is known: batches and checks"
    disk.reads.clear()
    assert joined(log.read_buffers(0, bytes_max=len(written))) == written
    assert disk.reads == [len(written)], "stretches in a row are read as one"


def test_what_is_kept_in_memory_is_not_read_at_all(tmp_path: Path) -> None:
    disk = CountingDisk()
    log = open_log(tmp_path, LogConfig(), disk=disk)
    batch = append(log, count=3)
    disk.reads.clear()
    found = log.read_buffers(1, bytes_max=1)
    assert found == BatchBuffers([batch], 3, 3)
    assert found.buffers[0] is batch
    assert disk.reads == []


def test_a_batch_longer_than_the_bound_comes_alone_and_whole(tmp_path: Path) -> None:
    config = LogConfig(tail_bytes_max=0, index_interval_bytes=150)
    log = open_log(tmp_path, config)
    small = append(log)
    large = append(log, size=READ_BYTES_MAX + MIB)
    append(log)
    for _ in range(2):
        assert joined(log.read_buffers(0, bytes_max=50 * MIB)) == small
        assert joined(log.read_buffers(1, bytes_max=10)) == large
        assert joined(log.read_buffers(1, bytes_max=50 * MIB)) == large


def test_one_read_takes_no_more_than_is_good_for_others(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(tail_bytes_max=0))
    for _ in range(6):
        append(log, size=MIB)
    assert len(joined(log.read_buffers(0, bytes_max=50 * MIB))) <= READ_BYTES_MAX
    assert log.read_buffers(0, bytes_max=50 * MIB).next_offset == 3


def test_control_batches_are_handed_out_and_not_counted(tmp_path: Path) -> None:
    log = open_log(tmp_path, ONE_SEGMENT)
    append(log, count=2)
    control = encode_batch(
        [encode_record(offset_delta=0, timestamp_delta=0, key=b"\0\0\0\1", value=b"")],
        base_offset=2,
        leader_epoch=0,
        base_timestamp=0,
        max_timestamp=0,
        attributes=ATTR_CONTROL,
    )
    log.append(control, now_ms=1_000)
    for _ in range(2):
        found = log.read_buffers(0, bytes_max=1_000)
        assert (found.next_offset, found.record_count, found.is_all_empty) == (3, 2, False)
        assert list(split_batches(found.buffers))[1] == control
        assert not log.read_buffers(2, bytes_max=1_000).is_all_empty


@pytest.mark.parametrize("config", [ONE_SEGMENT, LogConfig()])
def test_emptied_batches_are_left_out_unless_there_is_nothing_else(
    tmp_path: Path, config: LogConfig
) -> None:
    log = open_log(tmp_path, config)
    written = []
    for is_empty in (True, True, False, True, False, False, True):
        batch = make_batch(log.end_offset)
        written.append(emptied(batch) if is_empty else batch)
        log.append(written[-1], now_ms=1_000)
    assert len(written[0]) == HEADER_BYTES
    for _ in range(3):
        found = log.read_buffers(0, bytes_max=1_000)
        assert joined(found) == written[2] + written[4] + written[5]
        assert (found.next_offset, found.record_count, found.is_all_empty) == (7, 3, False)
        lost = log.read_buffers(0, bytes_max=1_000, up_to=2)
        assert joined(lost) == written[1], "the reader gets on by the last of them"
        assert (lost.next_offset, lost.record_count, lost.is_all_empty) == (2, 0, True)


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_damage_is_never_served_to_the_first_reader(tmp_path: Path, step: int) -> None:
    log = open_log(tmp_path, SMALL, disk=QuickDisk())
    written = b"".join(append(log, size=8) for _ in range(5))
    path = segment_path(log)
    log.close()
    for at in range(0, len(written), step):
        log = open_log(tmp_path, SMALL, disk=QuickDisk())
        flip_bit(path, at, bit=4)
        try:
            served = joined(log.read_buffers(0, bytes_max=1_000))
        except DamagedRange:
            served = b""
        assert written.startswith(served)
        assert len(served) <= at
        assert log.damage or served, "what is not served is reported"
        flip_bit(path, at, bit=4)
        log.close(clean=False)


def test_what_we_wrote_ourselves_is_verified_when_it_is_first_read(tmp_path: Path) -> None:
    log = open_log(tmp_path, ONE_SEGMENT)
    append_behind(log, 1)
    flip_bit(segment_path(log), 100, bit=4)
    with pytest.raises(DamagedRange):
        log.read_buffers(0, bytes_max=1_000)


def test_a_known_stretch_is_verified_again_after_so_many_reads(tmp_path: Path) -> None:
    log = open_log(tmp_path, ONE_SEGMENT)
    written = append_behind(log, 4)
    assert joined(log.read_buffers(0, bytes_max=1_000, up_to=4)) == written
    flip_bit(segment_path(log), 100, bit=4)
    for _ in range(TRUSTED_READS):
        log.read_buffers(0, bytes_max=1_000, up_to=4)
    with pytest.raises(DamagedRange):
        log.read_buffers(0, bytes_max=1_000)
    assert log.damage
    with pytest.raises(DamagedRange):
        log.read_buffers(0, bytes_max=1_000)


def test_a_good_stretch_is_trusted_anew_when_it_was_verified(tmp_path: Path) -> None:
    disk = CountingDisk()
    log = open_log(tmp_path, ONE_SEGMENT, disk=disk)
    written = append_behind(log, 4)
    lone = 0
    for _ in range(3 * (TRUSTED_READS + 1)):
        disk.reads.clear()
        assert joined(log.read_buffers(0, bytes_max=1_000, up_to=4)) == written
        lone += len(disk.reads) == 1
    assert lone == 3 * TRUSTED_READS


def test_nothing_is_known_of_a_segment_that_was_closed(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    for _ in range(60):
        append(log)
    sync(log)
    assert len(log.segments()) > OPEN_SEGMENTS_MAX + 2
    log.read_buffers(0, bytes_max=1_000)
    flip_bit(segment_path(log), 100, bit=4)
    for segment in log.segments()[1 : OPEN_SEGMENTS_MAX + 1]:
        log.read_buffers(segment.base_offset, bytes_max=1)
    with pytest.raises(DamagedRange):
        log.read_buffers(0, bytes_max=1_000)


def test_a_lease_cursors_read_verifies_what_a_fetch_would_trust(tmp_path: Path) -> None:
    log = open_log(tmp_path, ONE_SEGMENT)
    append_behind(log, 1)
    log.read_buffers(0, bytes_max=1_000, up_to=1)
    flip_bit(segment_path(log), 100, bit=4)
    with pytest.raises(DamagedRange):
        log.read(0, bytes_max=1_000)


def test_readers_get_past_damage_and_places_known_before_stay_good(tmp_path: Path) -> None:
    log = open_log(tmp_path, ONE_SEGMENT)
    written = [append(log) for _ in range(20)]
    for start in range(20):
        log.read_buffers(start, bytes_max=1)
    # A header: the scan that follows counts the lost range as one, and numbers change behind it.
    size = len(written[0])
    flip_bit(segment_path(log), 5 * size + 3, bit=4)
    flip_bit(segment_path(log), 6 * size + 3, bit=4)
    found, damages = read_all(log)
    assert damages
    for start in range(20):
        if start in found:
            for _ in range(2):
                assert joined(log.read_buffers(start, bytes_max=1)) == written[start]


def test_what_is_remembered_has_a_bound(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(tail_bytes_max=0))
    for _ in range(RANGES_MAX + 50):
        append(log, size=3)
    for start in range(RANGES_MAX + 50):
        check(joined(log.read_buffers(start, bytes_max=1)))
    stretches = log._active.files.verified
    assert len(stretches) == RANGES_MAX
    assert stretches.get(0) is None
    assert stretches.get(RANGES_MAX + 49) is not None
