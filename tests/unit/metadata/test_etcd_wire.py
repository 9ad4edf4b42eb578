"""etcd's messages as bytes. That a real etcd reads and writes them so is what the store suites
show; here is what no etcd can be made to send."""

from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.metadata.etcd import wire as wire
from penstock.metadata.etcd.wire import Stored
from penstock.metadata.store import StoreUnusable, Txn

NUMBERS = st.integers(0, 2**63 - 1)
TEXTS = st.binary(max_size=200)
ENTRIES = st.builds(Stored, TEXTS, TEXTS, NUMBERS, NUMBERS)

DECODERS = (
    wire.decode_range,
    wire.decode_txn,
    wire.decode_watch,
    wire.decode_grant,
    wire.decode_keep_alive,
)


def number(field: int, value: int) -> bytes:
    return wire.varint(field << 3) + wire.varint(value)


def content(field: int, value: bytes) -> bytes:
    return wire.varint(field << 3 | 2) + wire.varint(len(value)) + value


# Fields that a newer version might add: of every kind, with small and large numbers.
UNKNOWN = (
    number(15, 7) + content(100, b"new"),
    wire.varint(13 << 3 | 1) + bytes(8) + wire.varint(200 << 3 | 5) + bytes(4),
)


def entry(stored: Stored, more: bytes = b"") -> bytes:
    return (
        more
        + content(1, stored.key)
        + number(2, stored.create_revision)
        + number(3, stored.version)
        + number(4, 1)
        + content(5, stored.value)
        + number(6, 99)
    )


@given(value=st.integers(-(2**63), 2**63 - 1))
@example(value=-1)
@settings(deadline=None)
def test_numbers_come_back_with_their_sign(value: int) -> None:
    encoded = wire.varint(value)
    assert len(encoded) <= 10
    assert wire.decode_watch(number(2, value)).watch_id == value


@given(entries=st.lists(ENTRIES, max_size=5), revision=NUMBERS, more=st.sampled_from(UNKNOWN))
@settings(deadline=None)
def test_a_range_is_read_whatever_else_a_newer_version_says(
    entries: list[Stored], revision: int, more: bytes
) -> None:
    header = content(1, number(1, 2**64 - 1) + number(3, revision) + more)
    for extra in (b"", more):
        data = extra + header + b"".join(content(2, entry(one, extra)) for one in entries)
        ranged = wire.decode_range(data + number(3, 1) + extra)
        assert list(ranged.entries) == entries
        assert ranged.revision == revision
        assert ranged.is_more


@given(events=st.lists(st.tuples(st.booleans(), ENTRIES), max_size=5))
@settings(deadline=None)
def test_a_watchs_answer_is_read_with_its_events(events: list[tuple[bool, Stored]]) -> None:
    data = b"".join(
        content(11, (b"" if is_put else number(1, 1)) + content(2, entry(stored)))
        for is_put, stored in events
    )
    answer = wire.decode_watch(data + number(7, 1) + number(5, 12) + content(6, b"why"))
    assert list(answer.events) == events
    assert (answer.is_fragment, answer.compacted, answer.reason) == (True, 12, "why")


def test_a_transaction_says_its_comparisons_even_if_they_are_zero() -> None:
    txn = Txn([("/a", 0)], [("/c", b"v")], ["/d"], [("/b", 300)], lease=5)
    request = wire.encode_txn(txn, str.encode)
    fields = [(field, value) for field, _, value in wire.fields(request)]
    assert [field for field, _ in fields] == [1, 1, 2, 2, 3, 3]
    assert fields[0][1] == number(2, 2) + content(3, b"/a") + number(6, 0)
    assert fields[1][1] == number(2, 1) + content(3, b"/b") + number(5, 300)
    assert fields[2][1] == content(2, content(1, b"/c") + content(2, b"v") + number(3, 5))
    assert fields[3][1] == content(3, content(1, b"/d"))
    assert fields[4][1] == content(1, content(1, b"/a") + number(8, 1))


@pytest.mark.parametrize("decode", DECODERS, ids=lambda one: str(one.__name__))
@given(data=st.binary(max_size=60))
@example(data=b"\x0a\xff")
@example(data=b"\xff" * 20)
@example(data=b"\x12\x05ab")
@example(data=b"\x5a\x00")
@example(data=b"\x5a\x02\x12\x7f")
@settings(deadline=None)
def test_bytes_that_are_no_message_are_said_to_be_none(
    decode: Callable[[bytes], object], data: bytes
) -> None:
    try:
        decode(data)
    except StoreUnusable:
        pass  # whatever else is raised fails this test
