"""Frames out of bytes, however they are cut; memory for what has arrived, not for promises."""

from itertools import chain, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.net.frames import (
    AHEAD_BYTES_MAX,
    CHUNK_BYTES,
    HELD_BYTES_MAX,
    PART_BYTES_MIN,
    Chunks,
    FrameReader,
    FrameRejected,
)

FRAME_BYTES_MAX = 8 * 1_048_576


def reader(chunks: Chunks) -> FrameReader:
    return FrameReader(chunks, frame_bytes_max=FRAME_BYTES_MAX)


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def feed(to: FrameReader, data: bytes) -> list[bytes]:
    """What a loop does: as much as there is room for, again and again."""
    frames = []
    left = memoryview(data)
    while left:
        room = to.room()
        count = min(len(room), len(left))
        assert count > 0, "there is always room"
        room[:count] = left[:count]
        left = left[count:]
        to.received(count)
        while (frame := to.next_frame()) is not None:
            frames.append(bytes(frame))
        to.settle()
    return frames


def body(number: int, size: int) -> bytes:
    return (number % 251 + 1).to_bytes(1, "big") * size


sizes = st.one_of(
    st.integers(1, 40),
    st.integers(PART_BYTES_MIN - 8, PART_BYTES_MIN + 8),
    st.integers(CHUNK_BYTES // 2 - 8, CHUNK_BYTES // 2 + 8),
    st.integers(CHUNK_BYTES - 8, CHUNK_BYTES + 8),
    st.just(1_048_576),
)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(sizes, max_size=8),
    st.lists(st.integers(1, 300_000), max_size=8),
    st.lists(st.integers(1, 300_000), max_size=8),
)
def test_every_frame_comes_out_as_it_went_in(
    lengths: list[int], cuts: list[int], other_cuts: list[int]
) -> None:
    """Two connections in turns, over the same chunks."""
    chunks = Chunks()
    bodies = [body(number, size) for number, size in enumerate(lengths)]
    stream = b"".join(map(framed, bodies))
    readers = [reader(chunks), reader(chunks)]
    found: list[list[bytes]] = [[], []]
    positions = [0, 0]
    pace = [chain(cuts, repeat(70_000)), chain(other_cuts, repeat(200_000))]
    while min(positions) < len(stream):
        for which in (0, 1):
            at = positions[which]
            stop = at + next(pace[which])
            found[which] += feed(readers[which], stream[at:stop])
            positions[which] = min(stop, len(stream))
    assert found == [bodies, bodies]
    assert [one.part_bytes for one in readers] == [0, 0]
    assert chunks.held_bytes == 0


@pytest.mark.parametrize("length", [0, -1, FRAME_BYTES_MAX + 1, 2**31 - 1, -(2**31)])
def test_an_impossible_length_is_refused(length: int) -> None:
    chunks = Chunks()
    one = reader(chunks)
    with pytest.raises(FrameRejected):
        feed(one, framed(b"good") + (length % 2**32).to_bytes(4, "big"))
    one.close()
    assert chunks.held_bytes == 0


def test_a_promise_costs_little_and_what_is_held_ahead_is_bounded() -> None:
    chunks = Chunks()
    large = [reader(chunks) for _ in range(200)]
    for one in large:
        feed(one, AHEAD_BYTES_MAX.to_bytes(4, "big") + bytes(1_000))
    assert chunks.held_bytes == 200 * PART_BYTES_MIN
    many = [reader(chunks) for _ in range(400)]
    for one in many:
        feed(one, (1_048_576).to_bytes(4, "big") + bytes(1_000))
    assert chunks.held_bytes <= HELD_BYTES_MAX + 600 * PART_BYTES_MIN
    for one in chain(large, many):
        one.close()
    assert chunks.held_bytes == 0


def test_what_is_promised_beyond_the_bound_grows_as_it_arrives() -> None:
    chunks = Chunks()
    one = reader(chunks)
    whole = body(1, AHEAD_BYTES_MAX + 1_000_000)
    stream = framed(whole)
    found: list[bytes] = []
    for at in range(0, len(stream), 50_000):
        found += feed(one, stream[at : at + 50_000])
        assert chunks.held_bytes <= max(4 * (at + 50_000), PART_BYTES_MIN)
    assert found == [whole]
    assert chunks.held_bytes == 0


def test_a_frame_that_is_kept_is_not_received_over() -> None:
    chunks = Chunks()
    one, other = reader(chunks), reader(chunks)
    kept = body(1, 100_000)
    room = one.room()
    stream = framed(kept)
    room[: len(stream)] = stream
    one.received(len(stream))
    frame = one.next_frame()
    assert frame is not None
    one.keep()
    one.settle()
    for number in range(2, 6):
        assert feed(other, framed(body(number, 100_000))) == [body(number, 100_000)]
        assert feed(one, framed(body(number, 100_000))) == [body(number, 100_000)]
    assert bytes(frame) == kept


def test_chunks_are_used_again() -> None:
    chunks = Chunks()
    one = reader(chunks)
    stream = framed(body(1, 1_048_576)) * 2
    feed(one, stream[:300_000])
    held = chunks.held_bytes
    feed(one, stream[300_000:])
    assert chunks.held_bytes == 0
    first = one.room()
    feed(one, stream)
    assert one.room().obj is first.obj
    feed(one, stream[:300_000])
    assert chunks.held_bytes == held
