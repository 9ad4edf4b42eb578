"""Batches with records taken out: what stays does not move, and what cannot be opened stays."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.record.checks import check

from penstock.record.batch import (
    ATTR_APPEND_TIME,
    ATTR_CONTROL,
    ATTR_DELETE_HORIZON,
    ATTR_TRANSACTIONAL,
    HEADER_BYTES,
    encode_batch,
    parse_header,
)
from penstock.record.compaction import (
    SPAN_MAX,
    Wanted,
    compact_batch,
    empty_batch,
    is_bare,
    keys_of,
    merge_empty,
)
from penstock.record.compression import Codec
from penstock.record.control import encode_control_batch
from penstock.record.record import RawRecord, encode_record, iter_records

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000
Pair = tuple[bytes | None, bytes | None]


def batch_of(
    *pairs: Pair,
    base_offset: int = 100,
    attributes: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    at_ms: int = 5_000,
) -> bytes:
    records = [
        encode_record(
            offset_delta=at, timestamp_delta=10 * at, key=key, value=value, headers=[(b"h", None)]
        )
        for at, (key, value) in enumerate(pairs)
    ]
    return encode_batch(
        records,
        base_offset=base_offset,
        leader_epoch=3,
        base_timestamp=at_ms,
        max_timestamp=at_ms + 10 * (len(pairs) - 1),
        attributes=attributes,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )


def compact(batch: bytes, is_wanted: Wanted, *, now_ms: int = NOW_MS) -> bytes:
    compacted = compact_batch(batch, is_wanted=is_wanted, tombstone_ms=DAY_MS, now_ms=now_ms)
    check(compacted)
    return compacted


def none_wanted(_key: bytes, _offset: int) -> bool:
    return False


def all_wanted(_key: bytes, _offset: int) -> bool:
    return True


@pytest.mark.parametrize("codec", list(Codec))
def test_what_stays_keeps_offset_time_and_bytes_under_every_codec(codec: Codec) -> None:
    batch = batch_of((b"a", b"1"), (b"b", b"2" * 99), (b"a", b"3"), attributes=codec)
    compacted = compact(batch, lambda key, offset: key == b"b" or offset == 102)
    before, after = list(iter_records(batch)), list(iter_records(compacted))
    assert after == before[1:]
    old, new = parse_header(batch), parse_header(compacted)
    assert (new.base_offset, new.next_offset, new.count) == (100, 103, 2)
    assert (new.codec, new.leader_epoch) == (codec, old.leader_epoch)


def test_a_batch_that_keeps_everything_is_the_same_object() -> None:
    batch = batch_of((b"a", b"1"), (b"", b"2"))
    assert compact(batch, all_wanted) is batch


def test_the_highest_time_is_that_of_the_records_that_stay() -> None:
    batch = batch_of((b"a", b"1"), (b"b", b"2"))
    assert parse_header(compact(batch, lambda key, _: key == b"a")).max_timestamp == 5_000
    append_time = batch_of((b"a", b"1"), (b"b", b"2"), attributes=ATTR_APPEND_TIME)
    (record,) = iter_records(compact(append_time, lambda key, _: key == b"a"))
    assert record.timestamp == 5_010


def test_a_batch_without_records_is_left_as_a_header_with_its_sequences() -> None:
    batch = batch_of(
        (b"a", b"1"),
        (b"b", b"2"),
        producer=(7, 2, 40),
        attributes=ATTR_TRANSACTIONAL | Codec.ZSTD,
    )
    compacted = compact(batch, none_wanted)
    header = parse_header(compacted)
    assert len(compacted) == HEADER_BYTES
    assert list(iter_records(compacted)) == []
    assert (header.base_offset, header.next_offset, header.count, header.codec) == (100, 102, 0, 0)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 40)
    assert header.attributes & ATTR_TRANSACTIONAL
    assert not is_bare(header)
    assert compact(compacted, none_wanted) is compacted


def test_records_without_a_key_are_dropped_and_control_batches_stay() -> None:
    batch = batch_of((None, b"1"), (b"a", b"2"), (None, None), (b"", b"4"))
    assert [r.offset for r in iter_records(compact(batch, all_wanted))] == [101, 103]
    control = encode_control_batch([(64, b"x")], base_offset=5, leader_epoch=0, timestamp=1)
    assert compact(control, none_wanted) is control


def test_a_tombstone_stays_until_its_horizon_has_passed_and_its_time_does_not_change() -> None:
    batch = batch_of((b"a", None), (b"b", b"2"))
    before = list(iter_records(batch))
    stamped = compact(batch, all_wanted)
    header = parse_header(stamped)
    assert header.attributes & ATTR_DELETE_HORIZON
    assert header.base_timestamp == NOW_MS + DAY_MS
    assert list(iter_records(stamped)) == before
    # The horizon is set once; nothing happens until it has passed.
    assert compact(stamped, all_wanted, now_ms=NOW_MS + DAY_MS - 1) is stamped
    later = compact(stamped, all_wanted, now_ms=NOW_MS + DAY_MS)
    assert list(iter_records(later)) == before[1:]
    assert parse_header(later).next_offset == 102


def test_a_tombstone_with_a_successor_goes_at_once() -> None:
    batch = batch_of((b"a", None), (b"b", b"2"))
    compacted = compact(batch, lambda key, _: key == b"b")
    assert not parse_header(compacted).attributes & ATTR_DELETE_HORIZON
    assert [r.key for r in iter_records(compacted)] == [b"b"]


def test_times_too_far_apart_for_a_horizon_leave_the_tombstone_unstamped() -> None:
    batch = batch_of((b"a", None), at_ms=-(2**63))
    assert compact(batch, all_wanted) is batch


def test_a_batch_that_cannot_be_opened_stays_and_names_no_keys() -> None:
    whole = batch_of((b"a", b"1"), (b"b", b"2"))
    header = parse_header(whole)
    torn = bytearray(whole[: HEADER_BYTES + 4])
    torn[8:12] = (len(torn) - 12).to_bytes(4, "big")
    assert compact_batch(bytes(torn), is_wanted=none_wanted, tombstone_ms=1, now_ms=1) == torn
    assert keys_of(bytes(torn)) == []
    assert keys_of(whole) == [(b"a", header.base_offset), (b"b", header.base_offset + 1)]


def test_neighbours_that_say_nothing_become_one() -> None:
    first = parse_header(batch_of((b"a", b"1"), (b"b", b"2"), producer=(1, 0, 0)))
    second = parse_header(batch_of((b"c", b"3"), base_offset=102, at_ms=9_000))
    one = empty_batch(first, with_producer=False)
    two = empty_batch(second, with_producer=False)
    merged = merge_empty(one, two)
    assert merged is not None
    header = check(merged)
    assert is_bare(header)
    assert (header.base_offset, header.next_offset, header.max_timestamp) == (100, 103, 9_000)
    assert merge_empty(empty_batch(first, with_producer=True), two) is None
    assert merge_empty(two, one) is None, "they are no neighbours"
    assert merge_empty(one, batch_of((b"c", b"3"), base_offset=102)) is None
    control = encode_control_batch([(64, b"x")], base_offset=102, leader_epoch=3, timestamp=1)
    assert parse_header(control).attributes & ATTR_CONTROL
    assert merge_empty(one, control) is None
    other_epoch = empty_batch(second._replace(leader_epoch=4), with_producer=False)
    assert merge_empty(one, other_epoch) is None
    wide = empty_batch(
        second._replace(last_offset_delta=SPAN_MAX - 2), with_producer=False
    )  # with the two before it, one more than a batch can cover
    assert merge_empty(one, wide) is None


PAIRS = st.lists(
    st.tuples(
        st.none() | st.sampled_from([b"a", b"b", b"c", b""]), st.none() | st.binary(max_size=6)
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=80)
@given(PAIRS, st.sets(st.integers(100, 107)), st.sampled_from(list(Codec)), st.booleans())
def test_exactly_the_wanted_records_stay_as_they_were(
    pairs: list[Pair], wanted: set[int], codec: Codec, is_append_time: bool
) -> None:
    attributes = codec | (ATTR_APPEND_TIME if is_append_time else 0)
    batch = batch_of(*pairs, attributes=attributes)

    def stays(record: RawRecord) -> bool:
        return record.key is not None and record.offset in wanted

    expected = [record for record in iter_records(batch) if stays(record)]
    compacted = compact(batch, lambda _, offset: offset in wanted)
    assert list(iter_records(compacted)) == expected
    header = parse_header(compacted)
    assert (header.base_offset, header.next_offset) == (100, 100 + len(pairs))
    assert header.count == len(expected)
