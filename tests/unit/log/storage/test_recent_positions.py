"""Pieces of what was just written: whole batches, rightly counted, whoever asks for how much; gone
after a while, and safe from whatever happens to their segment meanwhile."""

from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.log.stage import QuickDisk, append, open_log

from penstock.log.log import Log, LogConfig
from penstock.log.storage.batch_buffers import SLICE_BYTES_MIN
from penstock.log.storage.recent_positions import POSITION_BYTES, RecentPositions
from penstock.model.file_slice import FileSlice, in_memory
from penstock.model.limits import KIB, MIB
from penstock.record.batch import parse_header, split_batches

BIG = LogConfig(segment_bytes_max=2 * MIB, index_interval_bytes=4 * KIB, tail_bytes_max=0)


def read_from(
    log: Log, start: int, *, bytes_max: int = MIB, up_to: int | None = None
) -> tuple[bytes, int, int, bool]:
    found = log.read_buffers(start, bytes_max=bytes_max, up_to=up_to, as_slice=True)
    is_slice = any(isinstance(piece, FileSlice) for piece in found.buffers)
    return b"".join(in_memory(found.buffers)), found.next_offset, found.record_count, is_slice


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 3 * POSITION_BYTES), min_size=1, max_size=30),
    counts=st.lists(st.integers(1, 5), min_size=30, max_size=30),
    bytes_max=st.integers(1, 6 * POSITION_BYTES),
    data=st.data(),
)
def test_a_marked_piece_is_whole_batches_within_its_bounds(
    sizes: list[int], counts: list[int], bytes_max: int, data: st.DataObject
) -> None:
    offsets = [0, *accumulate(counts[: len(sizes)])]
    positions = [0, *accumulate(sizes)]
    marks = RecentPositions()
    aged_at = data.draw(st.integers(0, len(sizes)))
    for at, position in enumerate(positions[:-1]):
        if at == aged_at:
            marks.age()
        if position >= marks.due_at:
            marks.add(offsets[at], position)
        marks.records += counts[at]
    start = data.draw(st.sampled_from(offsets[:-1]))
    up_to = data.draw(st.integers(start, offsets[-1]))
    found = marks.find(
        start,
        bytes_max=bytes_max,
        up_to=up_to,
        end_offset=offsets[-1],
        end_position=positions[-1],
    )
    if found is None:
        return
    at = offsets.index(start)
    position, size, next_offset, record_count = found
    end = positions.index(position + size)
    assert position == positions[at]
    assert 0 < size <= bytes_max
    assert next_offset == offsets[end] <= up_to
    assert record_count == sum(counts[at:end])


def test_a_reader_is_led_from_mark_to_mark_and_gets_every_byte(tmp_path: Path) -> None:
    log = open_log(tmp_path, BIG)
    written = b"".join(append(log, count=3, size=20 * KIB) for _ in range(80))
    assert len(log.segments()) > 2
    for first in (0, 7):  # where a batch begins, and in the middle of one between two marks
        offset, got, slices, count = first, b"", 0, 0
        while offset < log.end_offset:
            part, offset, found, is_slice = read_from(log, offset)
            got += part
            slices += is_slice
            count += found
        assert written.endswith(got)
        assert len(got) == len(written) if first == 0 else len(got) < len(written)
        assert slices >= 4
        assert count == sum(parse_header(batch).count for batch in split_batches([got]))


def test_nothing_is_given_beyond_what_readers_may_see(tmp_path: Path) -> None:
    log = open_log(tmp_path, BIG)
    for _ in range(20):
        append(log, size=60 * KIB)
    part, middle, first, is_slice = read_from(log, 0, up_to=7)
    assert is_slice
    assert 0 < middle == first < 7
    rest, next_offset, count, _ = read_from(log, middle, up_to=7)
    assert (next_offset, count) == (7, 7 - first)
    found = [parse_header(batch).base_offset for batch in split_batches([part, rest])]
    assert found == [*range(7)]
    assert read_from(log, 7, up_to=7) == (b"", 7, 0, False)


def test_small_pieces_are_read(tmp_path: Path) -> None:
    log = open_log(tmp_path, BIG)
    for _ in range(5):
        append(log, size=200)
    assert read_from(log, 0)[3] is False
    for _ in range(5):
        append(log, size=SLICE_BYTES_MIN)
    assert read_from(log, 0)[3] is True


def test_what_is_new_no_more_is_verified(tmp_path: Path) -> None:
    disk = _Reading()
    log = open_log(tmp_path, BIG, disk=disk)
    for _ in range(10):
        append(log, size=100 * KIB)
    assert read_from(log, 0)[3] is True
    log.expire_recent()
    assert read_from(log, 0)[3] is True, "younger than one round"
    log.expire_recent()
    disk.bytes_read = 0
    found = log.read_buffers(0, bytes_max=MIB, as_slice=True)
    assert not isinstance(found.buffers[0], FileSlice)
    assert disk.bytes_read >= len(found.buffers[0])
    again = log.read_buffers(0, bytes_max=MIB, as_slice=True)
    assert isinstance(again.buffers[0], FileSlice), "it is known now"
    assert in_memory(again.buffers)[0] == found.buffers[0]
    append(log, size=100 * KIB)
    assert len(log._active.recent) == 1, "and what comes next is marked again"


@pytest.mark.parametrize("happens", ["roll", "drop", "close"])
def test_a_piece_outlives_what_happens_to_its_segment(tmp_path: Path, happens: str) -> None:
    log = open_log(tmp_path, BIG)
    written = b"".join(append(log, size=100 * KIB) for _ in range(4))
    piece = log.read_buffers(0, bytes_max=MIB, as_slice=True).buffers[0]
    assert isinstance(piece, FileSlice)
    log.roll(now_ms=2_000)
    if happens == "drop":
        log.detach_before(log.end_offset).remove()
        assert len(list(tmp_path.glob("*.log"))) == 1
    if happens == "close":
        log.close()
    assert piece.read() == written


class _Reading(QuickDisk):
    def __init__(self) -> None:
        self.bytes_read = 0

    def pread(self, fd: int, count: int, position: int) -> bytes:
        self.bytes_read += count
        return super().pread(fd, count, position)
