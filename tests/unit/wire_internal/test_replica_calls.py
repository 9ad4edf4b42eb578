"""Calls between replicas, as nodes of this version and of the one before read each other's."""

from collections.abc import Sequence

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire.internal.calls import encode
from penstock.wire.internal.frame import HEADER_BYTES, Hello, decode_hello, encode_hello
from penstock.wire.internal.node_calls import (
    REPLICA_FETCH,
    PartitionReply,
    ReplicaFetched,
    ReplicaFetchedEnds,
    ReplyKind,
)

LENGTH_BYTES = 4


class FetchedBefore(msgspec.Struct, frozen=True, array_like=True):
    """The answer as level 1 has it."""

    told: Sequence[PartitionReply] = ()


class HelloBefore(msgspec.Struct, frozen=True):
    """A greeting from before there were levels."""

    version_min: int
    version_max: int
    cluster_id: str
    node_id: str
    features: tuple[str, ...] = ()
    frame_bytes_max: int = 65_536
    in_flight_max: int = 1_024


told = st.lists(
    st.builds(
        PartitionReply,
        position=st.integers(0, 999),
        kind=st.sampled_from(ReplyKind),
        epoch=st.integers(-1, 9),
        offset=st.integers(-1, 2**40),
        data=st.binary(max_size=20),
    ),
    max_size=5,
)


@settings(max_examples=60)
@given(told)
def test_at_level_1_an_answer_is_to_the_byte_what_it_was(told: list[PartitionReply]) -> None:
    assert encode(ReplicaFetched(told)) == msgspec.msgpack.encode(FetchedBefore(told))


@settings(max_examples=60)
@given(told)
def test_an_answer_of_the_version_before_is_read(told: list[PartitionReply]) -> None:
    read = REPLICA_FETCH.decode_reply(msgspec.msgpack.encode(FetchedBefore(told)))
    assert isinstance(read, ReplicaFetchedEnds)
    assert (list(read.replies), list(read.ends)) == (told, [])


@settings(max_examples=60)
@given(told, st.lists(st.integers(-1, 2**40), max_size=5))
def test_ends_go_along_and_hurt_nobody_who_does_not_know_them(
    told: list[PartitionReply], ends: list[int]
) -> None:
    sent = encode(ReplicaFetchedEnds(told, ends))
    read = REPLICA_FETCH.decode_reply(sent)
    assert isinstance(read, ReplicaFetchedEnds)
    assert (list(read.replies), list(read.ends)) == (told, ends)
    assert list(msgspec.msgpack.decode(sent, type=FetchedBefore).told) == told


def test_greetings_are_read_by_versions_that_say_and_do_not_say_levels() -> None:
    old = msgspec.msgpack.encode(HelloBefore(1, 1, "c", "n"))
    frame = encode_hello(Hello(1, 1, "c", "n", level_min=1, level_max=2))[LENGTH_BYTES:]
    head = frame[:HEADER_BYTES]
    before = decode_hello(head + old)
    assert (before.level_min, before.level_max) == (1, 1)
    assert msgspec.msgpack.decode(frame[HEADER_BYTES:], type=HelloBefore).node_id == "n"
    assert decode_hello(frame).level_max == 2
