"""Frames between nodes as bytes: what is written is read again, and nothing else is."""

import tracemalloc

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.net.frames import Chunks, FrameReader, FrameRejected
from penstock.wire.internal.faults import HelloRefused, MalformedFrame
from penstock.wire.internal.frame import (
    FRAME_BYTES_MAX,
    HEADER_BYTES,
    Header,
    Hello,
    Kind,
    agree,
    decode_hello,
    encode_hello,
    pack_header,
    read_header,
)

LENGTH_BYTES = 4

frames = st.tuples(
    st.integers(0, 255),
    st.sampled_from(Kind),
    st.integers(0, 0xFFFF),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=300),
)
hellos = st.builds(
    Hello,
    version_min=st.integers(1, 5),
    version_max=st.integers(5, 9),
    cluster_id=st.text(max_size=20),
    node_id=st.text(min_size=1, max_size=20),
    features=st.lists(st.text(max_size=8), max_size=4).map(tuple),
)


def packed(frame: tuple[int, Kind, int, int, int, bytes]) -> bytes:
    version, kind, call, request_id, deadline_ms, payload = frame
    return pack_header(version, kind, call, request_id, deadline_ms, len(payload)) + payload


def cut(stream: bytes, sizes: list[int], *, frame_bytes_max: int = FRAME_BYTES_MAX) -> list[bytes]:
    """What a connection that receives the stream in pieces makes of it."""
    reader = FrameReader(Chunks(), frame_bytes_max=frame_bytes_max)
    found: list[bytes] = []
    at = 0
    while at < len(stream):
        room = reader.room()
        size = min(sizes[len(found) % len(sizes)] if sizes else len(stream), len(room))
        piece = stream[at : at + size]
        room[: len(piece)] = piece
        reader.received(len(piece))
        at += len(piece)
        while (frame := reader.next_frame()) is not None:
            found.append(bytes(frame))
        reader.settle()
    return found


@settings(max_examples=100, deadline=None)
@given(st.lists(frames, max_size=8), st.lists(st.integers(1, 40), max_size=5))
def test_any_split_of_the_bytes_gives_the_same_frames(
    sent: list[tuple[int, Kind, int, int, int, bytes]], sizes: list[int]
) -> None:
    found = cut(b"".join(map(packed, sent)), sizes)
    assert [(*read_header(frame), frame[HEADER_BYTES:]) for frame in found] == sent


def test_the_layout_is_the_one_drawn() -> None:
    header = pack_header(1, Kind.REQUEST, 0x0102, 0x0A0B0C0D0E0F1011, 0x01020304, payload_bytes=5)
    assert header.hex() == "00000015" + "01" + "01" + "0102" + "0a0b0c0d0e0f1011" + "01020304"
    assert read_header(header[LENGTH_BYTES:]) == Header(
        1, Kind.REQUEST, 0x0102, 0x0A0B0C0D0E0F1011, 0x01020304
    )


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400), st.lists(st.integers(1, 60), max_size=4))
def test_garbage_is_refused_or_is_a_frame_and_never_anything_else(
    garbage: bytes, sizes: list[int]
) -> None:
    try:
        found = cut(garbage, sizes, frame_bytes_max=1_000)
    except FrameRejected:
        return
    for frame in found:
        try:
            header = read_header(frame)
        except MalformedFrame:
            continue
        assert header.kind in Kind
        try:
            decode_hello(frame)
        except MalformedFrame:
            pass


@pytest.mark.parametrize("length", [FRAME_BYTES_MAX + 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_a_length_that_is_not_allowed_makes_no_room(length: int) -> None:
    reader = FrameReader(Chunks(), frame_bytes_max=FRAME_BYTES_MAX)
    stream = length.to_bytes(4, "big") + bytes(12)
    reader.room()[: len(stream)] = stream
    reader.received(len(stream))
    tracemalloc.start()
    try:
        with pytest.raises(FrameRejected):
            reader.next_frame()
        reader.close()
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_length_that_is_allowed_makes_room_as_the_bytes_come() -> None:
    chunks = Chunks()
    reader = FrameReader(chunks, frame_bytes_max=FRAME_BYTES_MAX)
    stream = FRAME_BYTES_MAX.to_bytes(4, "big") + bytes(12)
    reader.room()[: len(stream)] = stream
    reader.received(len(stream))
    assert reader.next_frame() is None
    reader.settle()
    assert chunks.held_bytes <= 8_192


@pytest.mark.parametrize(
    "frame", [b"", b"\x01" * 15, bytes((1, len(Kind))) + bytes(14), bytes((1, 255)) + bytes(14)]
)
def test_a_frame_without_a_header_or_of_no_kind_is_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedFrame):
        read_header(frame)


# ── The greeting ─────────────────────────────────────────────────────────────────────────────


@settings(max_examples=50, deadline=None)
@given(hellos)
def test_a_greeting_is_read_as_it_was_said(hello: Hello) -> None:
    assert decode_hello(encode_hello(hello)[LENGTH_BYTES:]) == hello


@settings(max_examples=100, deadline=None)
@given(
    st.tuples(st.integers(1, 6), st.integers(1, 6)).map(sorted),
    st.tuples(st.integers(1, 6), st.integers(1, 6)).map(sorted),
)
def test_two_nodes_agree_on_the_highest_version_both_speak(a: list[int], b: list[int]) -> None:
    one = Hello(a[0], a[1], "c", "n1")
    other = Hello(b[0], b[1], "c", "n2")
    both = set(range(a[0], a[1] + 1)) & set(range(b[0], b[1] + 1))
    if both:
        assert agree(one, other) == agree(other, one) == max(both)
    else:
        with pytest.raises(HelloRefused, match="supports versions"):
            agree(one, other)


def test_a_node_of_another_cluster_is_refused() -> None:
    with pytest.raises(HelloRefused, match=r"cluster blue.*cluster red"):
        agree(Hello(1, 1, "red", "n1"), Hello(1, 1, "blue", "n2"))


def test_a_greeting_may_say_more_than_is_known() -> None:
    hello = {"version_min": 1, "version_max": 1, "cluster_id": "c", "node_id": "n", "zone": "z"}
    payload = msgspec.msgpack.encode(hello)
    frame = pack_header(0, Kind.HELLO, 0, 0, 0, payload_bytes=len(payload)) + payload
    assert decode_hello(frame[LENGTH_BYTES:]).node_id == "n"


@pytest.mark.parametrize(
    "changed",
    [
        {"node_id": ""},
        {"node_id": "n" * 256},
        {"cluster_id": "c" * 256},
        {"features": ("f",) * 65},
        {"frame_bytes_max": 100},
        {"in_flight_max": 0},
    ],
)
def test_a_greeting_out_of_bounds_is_malformed(changed: dict[str, object]) -> None:
    hello = msgspec.structs.replace(Hello(1, 1, "c", "n"), **changed)
    with pytest.raises(MalformedFrame):
        decode_hello(encode_hello(hello)[LENGTH_BYTES:])


def test_a_connection_begins_with_a_greeting_and_with_nothing_else() -> None:
    frame = pack_header(1, Kind.REQUEST, 1, 1, 1, payload_bytes=0)[LENGTH_BYTES:]
    with pytest.raises(MalformedFrame, match="begins with a REQUEST"):
        decode_hello(frame)
