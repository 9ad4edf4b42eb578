"""The events of cursors as the pipeline reads them, against the code that writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cursor.bookmark import Bookmarks
from penstock.cursor.leases import events as written
from penstock.model.message import AckReason
from penstock.pipeline.decoding.cursor_events import events_in
from penstock.record.control import encode_control_batch
from penstock.record.malformed import MalformedBatch

MINE, OTHER = bytes(range(16)), bytes(16)
OFFSETS = st.integers(0, 2**60)
MANY = st.lists(OFFSETS, max_size=4).map(tuple)
EVENTS = st.one_of(
    st.builds(
        written.LeaseEvent,
        lease_seq=OFFSETS,
        duration_ms=OFFSETS,
        head=OFFSETS,
        passed=OFFSETS,
        offsets=MANY,
        leased_at_ms=OFFSETS,
        detail=st.none()
        | st.builds(written.LeaseDetail, skipped=MANY, held=MANY, expired=MANY, due_keys=MANY),
    ),
    st.builds(written.ExtendEvent, st.lists(st.tuples(OFFSETS, OFFSETS), max_size=3).map(tuple)),
    st.builds(written.AckEvent, st.sampled_from(AckReason), MANY),
    st.builds(written.TrimEvent, OFFSETS, OFFSETS),
    st.builds(written.StartEvent, OFFSETS, OFFSETS),
)


def batch_of(*entries: tuple[int, bytes]) -> bytes:
    return encode_control_batch(entries, base_offset=100, leader_epoch=3, timestamp=7)


def told(event: written.Event) -> list[tuple[str, int]]:
    """What an event says about offsets, by the names of its fields."""
    match event:
        case written.LeaseEvent(head=head, offsets=offsets, detail=detail):
            detail = detail or written.LeaseDetail()
            named = [*offsets, *detail.skipped, *detail.held]
            gone = [("expired", offset) for offset in detail.expired]
            return [("head", head), *(("leased", offset) for offset in named), *gone]
        case written.AckEvent(reason=reason, offsets=offsets):
            return [(reason.name.lower(), offset) for offset in offsets]
        case written.TrimEvent(start=start):
            return [("trim", start)]
        case written.StartEvent(start=start):
            return [("start", start)]
    return []


@given(st.lists(st.tuples(st.sampled_from([MINE, OTHER]), EVENTS), min_size=1, max_size=8))
def test_every_event_of_a_share_is_read(pairs: list[tuple[bytes, written.Event]]) -> None:
    batch = batch_of(*(written.encode_shared(share, event) for share, event in pairs))
    wanted = [
        (100 + number, MINE.hex(), what, offset)
        for number, (share, event) in enumerate(pairs)
        for what, offset in told(event)
        if share == MINE
    ]
    assert list(events_in(batch, {MINE.hex()})) == wanted


def test_bookmarks_are_read_and_the_queues_own_events_are_not() -> None:
    marks = Bookmarks()
    moves = [("sns", 5), ("other", 6), ("sns", 9), ("sns", -1)]
    entries = [marks.move(reader, to, may_move_back=True) for reader, to in moves]
    own = written.encode(written.AckEvent(AckReason.ACKED, (1,)))
    batch = batch_of(*(entry for entry in entries if entry is not None), own)
    assert list(events_in(batch, {"sns"})) == [
        (100, "sns", "bookmark", 5),
        (102, "sns", "bookmark", 9),
        (103, "sns", "bookmark", -1),
    ]


@pytest.mark.parametrize("kind", [80, 82, 83, 84])
@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x90", b"\x01", b"\x92\x63\x91\x01"])
def test_a_damaged_event_is_named(kind: int, value: bytes) -> None:
    if kind in (83, 84) and value == b"\x92\x63\x91\x01":
        return  # a valid offset
    batch = batch_of((82, OTHER + b"\xc1"), (kind, MINE + value))
    with pytest.raises(MalformedBatch, match=f"offset 101 .type {kind}. cannot be read"):
        list(events_in(batch, {MINE.hex()}))
