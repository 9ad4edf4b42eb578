"""What a reader is handed, made whole again: every offset covered once, nothing behind the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.storage.scan import verified
from penstock.record.batch import encode_batch, parse_header, split_batches
from penstock.record.compaction import covered, empty_batch
from penstock.record.malformed import MalformedBatch
from penstock.record.record import encode_record


def batch(base: int, count: int, epoch: int = 0) -> bytes:
    records = [
        encode_record(offset_delta=at, timestamp_delta=0, key=None, value=b"v")
        for at in range(count)
    ]
    return encode_batch(
        records, base_offset=base, leader_epoch=epoch, base_timestamp=1_000, max_timestamp=1_000
    )


def bare(base: int, count: int) -> bytes:
    return empty_batch(parse_header(batch(base, count)), with_producer=False)


@given(
    spans=st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=12),
    start=st.integers(0, 1_000),
    data=st.data(),
)
def test_all_offsets_are_covered_whatever_was_left_out(
    spans: list[tuple[int, bool]], start: int, data: st.DataObject
) -> None:
    whole, at, ends = [], start, [start]
    for count, is_kept in spans:
        whole.append((batch(at, count), is_kept))
        at += count
        ends.append(at)
    end = data.draw(st.sampled_from(ends[1:]))
    kept = [one for one, is_kept in whole if is_kept] or [bare(ends[-2], ends[-1] - ends[-2])]
    found = covered([b"".join(kept)], start, end, next_offset=at)
    assert (found.base_offset, found.next_offset) == (start, end)
    headers = verified(memoryview(found.data), offset=start, epoch=-1, folder=None)  # type: ignore[arg-type]
    assert headers[-1].next_offset == end
    records = [one for one in split_batches([found.data]) if parse_header(one).count]
    assert records == [one for one in kept if parse_header(one).count and _end(one) <= end]


def _end(one: bytes) -> int:
    return parse_header(one).next_offset


def test_a_bare_batch_is_cut_on_both_sides() -> None:
    found = covered([bare(0, 100)], 10, 30, next_offset=100)
    assert (found.base_offset, found.next_offset) == (10, 30)
    header = parse_header(found.data)
    assert (header.base_offset, header.next_offset) == (10, 30)


def test_the_first_batch_may_begin_before_what_was_asked_for() -> None:
    found = covered([batch(5, 5)], 8, 10, next_offset=10)
    assert (found.base_offset, found.next_offset) == (5, 10)
    assert found.data == batch(5, 5)


def test_what_is_out_of_order_or_lies_across_the_end_is_refused() -> None:
    with pytest.raises(MalformedBatch):
        covered([batch(0, 5)], 0, 3, next_offset=5)
    with pytest.raises(MalformedBatch):
        covered([batch(0, 5), batch(3, 5)], 0, 8, next_offset=8)
    with pytest.raises(MalformedBatch):
        covered([batch(0, 5)[:30]], 0, 5, next_offset=5)
