"""Searches in the records of one batch, which may come from any producer."""

from collections.abc import Generator
from typing import TypeVar

import pytest

from penstock.record.batch import encode_batch, parse_header
from penstock.record.malformed import MalformedBatch
from penstock.record.opened import bad_records, first_at
from penstock.record.record import encode_record, iter_records, records_blob

Result = TypeVar("Result")


def finished(steps: Generator[None, None, Result]) -> Result:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def batch_of(*records: tuple[int, int, bytes | None]) -> bytes:
    """Each record: offset delta, time delta, key."""
    encoded = [
        encode_record(offset_delta=delta, timestamp_delta=at, key=key, value=b"v")
        for delta, at, key in records
    ]
    return encode_batch(
        encoded, base_offset=100, leader_epoch=0, base_timestamp=1_000, max_timestamp=1_009
    )


def test_the_first_record_with_a_timestamp_is_found_from_an_offset_on() -> None:
    batch = batch_of((0, 0, None), (1, 5, None), (2, 9, None))
    header = parse_header(batch)
    blob = records_blob(batch, header)
    assert finished(first_at(blob, header, 1_003)) == (101, 1_005)
    assert finished(first_at(memoryview(blob), header, 1_003, start_offset=102)) == (102, 1_009)
    assert finished(first_at(blob, header, 1_010)) is None


@pytest.mark.parametrize("delta", [-1, 2, 2**31])
def test_an_offset_outside_the_batch_is_malformed_for_every_reader(delta: int) -> None:
    batch = batch_of((0, 0, b"k"), (delta, 5, b"k"))
    header = parse_header(batch)
    blob = records_blob(batch, header)
    with pytest.raises(MalformedBatch, match="outside the batch"):
        finished(first_at(blob, header, 1_003))
    with pytest.raises(MalformedBatch, match="outside the batch"):
        finished(bad_records(blob, header, needs_key=True, earliest_ms=0, latest_ms=2_000))
    with pytest.raises(MalformedBatch, match="outside the batch"):
        list(iter_records(batch))


def test_records_without_a_key_or_with_a_distant_timestamp_are_listed() -> None:
    batch = batch_of((0, 0, b""), (1, 5, None), (2, 9, b"k" * 200))
    header = parse_header(batch)
    blob = records_blob(batch, header)
    keyless = finished(bad_records(blob, header, needs_key=True, earliest_ms=0, latest_ms=2_000))
    assert keyless == [(1, 1, None)]
    late = finished(bad_records(blob, header, needs_key=False, earliest_ms=0, latest_ms=1_005))
    assert late == [(2, 2, 1_009)]


def test_a_record_that_ends_before_its_key_is_malformed() -> None:
    batch = encode_batch(
        [b"\x06\x00\x00\x00"], base_offset=0, leader_epoch=0, base_timestamp=0, max_timestamp=0
    )
    header = parse_header(batch)
    with pytest.raises(MalformedBatch):
        finished(
            bad_records(
                records_blob(batch, header),
                header,
                needs_key=True,
                earliest_ms=0,
                latest_ms=1,
            )
        )
    with pytest.raises(MalformedBatch):
        list(iter_records(batch))
