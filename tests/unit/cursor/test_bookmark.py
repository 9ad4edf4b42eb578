"""Bookmarks against a dict, live and replayed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cursor.bookmark import BOOKMARK_TYPE, REMOVED, Bookmarks
from penstock.cursor.leases.events import is_event_type, is_shared_type
from penstock.model.errors import InvalidRequest
from penstock.model.limits import BOOKMARKS_PER_PARTITION_MAX, READER_CHARS_MAX

MOVES = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(REMOVED, 9), st.booleans()), max_size=30
)


@given(moves=MOVES, cut=st.integers(0, 30))
def test_the_newest_move_counts_and_replay_agrees(
    moves: list[tuple[str, int, bool]], cut: int
) -> None:
    live, model = Bookmarks(), dict[str, int]()
    events: list[tuple[int, bytes]] = []
    saved: tuple[dict[str, int], int] = ({}, 0)
    for number, (reader, offset, may_move_back) in enumerate(moves):
        if number == cut:
            saved = (live.offsets(), len(events))
        event = live.move(reader, offset, may_move_back=may_move_back)
        if offset == REMOVED:
            is_moved = model.pop(reader, None) is not None
        else:
            known = model.get(reader, REMOVED)
            is_moved = offset > known or (may_move_back and offset < known)
            if is_moved:
                model[reader] = offset
        assert (event is not None) == is_moved
        if event is not None:
            events.append(event)
        assert live.offsets() == model
        assert live.find(reader) == model.get(reader)
    for start, skipped in (({}, 0), saved):
        replayed = Bookmarks(start)
        for number, value in events[skipped:]:
            assert number == BOOKMARK_TYPE
            replayed.apply(value)
        assert replayed.offsets() == model


def test_the_type_is_of_no_lease_event() -> None:
    assert not is_event_type(BOOKMARK_TYPE)
    assert not is_shared_type(BOOKMARK_TYPE)
    assert not any(is_shared_type(BOOKMARK_TYPE + step) for step in (-16, 16))


@pytest.mark.parametrize("reader", ["", "x" * (READER_CHARS_MAX + 1), "a\nb", "\udc80"])
def test_a_reader_needs_a_short_printable_name(reader: str) -> None:
    with pytest.raises(InvalidRequest, match="1 to 64 printable"):
        Bookmarks().move(reader, 1, may_move_back=False)


def test_there_is_room_for_a_number_of_readers() -> None:
    marks = Bookmarks()
    for number in range(BOOKMARKS_PER_PARTITION_MAX):
        marks.move(f"r{number}", 1, may_move_back=False)
    with pytest.raises(InvalidRequest, match="maximum of 1024"):
        marks.move("one more", 1, may_move_back=False)
    assert marks.move("r7", 2, may_move_back=False) is not None
    assert marks.move("r7", REMOVED, may_move_back=False) is not None
    assert marks.move("r7", REMOVED, may_move_back=False) is None
    assert marks.move("one more", 1, may_move_back=False) is not None


@pytest.mark.parametrize("value", [b"", b"\x90", b"\x91\xa1r", b"\x92\xa1r\xa1x", b"\xc1", b"\x92"])
def test_a_damaged_event_is_reported(value: bytes) -> None:
    with pytest.raises(ValueError, match="type 69 is malformed"):
        Bookmarks().apply(value)
