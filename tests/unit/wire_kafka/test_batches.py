"""What a producer may and may not hand in."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.record.batch import (
    ATTR_APPEND_TIME,
    ATTR_CONTROL,
    ATTR_DELETE_HORIZON,
    ATTR_TRANSACTIONAL,
    CRC_FROM,
    HEADER_BYTES,
    encode_batch,
)
from penstock.record.compression import Codec
from penstock.record.crc32c import crc32c
from penstock.record.record import encode_record
from penstock.wire.kafka.batches import (
    BatchRefused,
    check_batches,
)
from penstock.wire.kafka.faults import ErrorCode

BYTES_MAX = 1_048_576
RECORD = encode_record(offset_delta=0, timestamp_delta=0, key=None, value=b"v" * 40)


def batch(
    *, count: int = 1, attributes: int = 0, producer: tuple[int, int, int] = (-1, -1, -1)
) -> bytes:
    records = [
        encode_record(offset_delta=delta, timestamp_delta=0, key=None, value=b"v" * 40)
        for delta in range(count)
    ]
    return encode_batch(
        records,
        base_offset=0,
        leader_epoch=-1,
        base_timestamp=1_000,
        max_timestamp=2_000,
        attributes=attributes,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )


def with_field(raw: bytes, position: int, layout: str, value: int) -> bytes:
    """A batch with one field changed and its checksum set right again."""
    changed = bytearray(raw)
    struct.pack_into(layout, changed, position, value)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[CRC_FROM:])))
    return bytes(changed)


def check(records: bytes | None, *, version: int = 9, bytes_max: int = BYTES_MAX) -> int:
    return len(check_batches(records, version=version, bytes_max=bytes_max))


@contextmanager
def refused(code: ErrorCode, match: str | None = None) -> Iterator[None]:
    with pytest.raises(BatchRefused, match=match) as caught:
        yield
    assert caught.value.code is code


def test_whole_batches_come_back_as_slices_with_their_headers() -> None:
    first, second = batch(count=3), batch(count=1)
    (one, header), (two, other) = check_batches(first + second, version=9, bytes_max=BYTES_MAX)
    assert (bytes(one), bytes(two)) == (first, second)
    assert (header.count, other.count) == (3, 1)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_compressed_batches_are_taken_unopened(codec: Codec) -> None:
    assert check(batch(count=5, attributes=codec)) == 1


def test_an_idempotent_producer_sends_one_batch() -> None:
    mine = batch(producer=(7, 0, 0))
    assert check(mine) == 1
    with refused(ErrorCode.INVALID_RECORD, match="one batch"):
        check(mine + mine)
    with refused(ErrorCode.INVALID_RECORD, match="one batch"):
        check(batch() + mine)


@pytest.mark.parametrize("records", [None, b""])
def test_a_partition_without_a_batch_is_invalid(records: bytes | None) -> None:
    with refused(ErrorCode.INVALID_RECORD):
        check(records)


@pytest.mark.parametrize("magic", [0, 1, 3, 255])
def test_other_magics_have_their_own_answer_even_in_short_messages(magic: int) -> None:
    old = bytearray(batch()[:30])
    old[16] = magic
    with refused(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT):
        check(bytes(old))


def test_a_changed_byte_is_corrupt() -> None:
    raw = bytearray(batch())
    raw[-1] ^= 1
    with refused(ErrorCode.CORRUPT_MESSAGE):
        check(bytes(raw))
    assert ErrorCode.CORRUPT_MESSAGE.is_retriable


@pytest.mark.parametrize("length", [-1, 0, 48, 2**31 - 1])
def test_a_length_that_cannot_be_is_corrupt(length: int) -> None:
    with refused(ErrorCode.CORRUPT_MESSAGE):
        check(with_field(batch(), 8, ">i", length))


def test_bytes_behind_the_last_batch_are_corrupt() -> None:
    with refused(ErrorCode.CORRUPT_MESSAGE):
        check(batch() + b"\x00" * 10)
    with refused(ErrorCode.CORRUPT_MESSAGE):
        check(batch()[:-1])


def test_a_batch_larger_than_the_topic_takes_is_too_large() -> None:
    raw = batch(count=20)
    assert check(raw, bytes_max=len(raw)) == 1
    with refused(ErrorCode.MESSAGE_TOO_LARGE):
        check(raw, bytes_max=len(raw) - 1)


@pytest.mark.parametrize(
    "attributes",
    [ATTR_CONTROL, ATTR_CONTROL | ATTR_TRANSACTIONAL, ATTR_CONTROL | ATTR_APPEND_TIME],
)
def test_a_client_cannot_write_control_batches(attributes: int) -> None:
    with refused(ErrorCode.INVALID_RECORD, match="control"):
        check(batch(attributes=attributes, producer=(7, 0, 0)))


def test_a_client_sets_neither_delete_horizon_nor_append_time() -> None:
    with refused(ErrorCode.INVALID_RECORD):
        check(batch(attributes=ATTR_DELETE_HORIZON))
    with refused(ErrorCode.INVALID_TIMESTAMP):
        check(batch(attributes=ATTR_APPEND_TIME))


@pytest.mark.parametrize(("count", "delta"), [(0, -1), (2, 0), (1, 1), (-1, -2)])
def test_count_and_offsets_must_agree(count: int, delta: int) -> None:
    raw = with_field(with_field(batch(), 57, ">i", count), 23, ">i", delta)
    with refused(ErrorCode.INVALID_RECORD, match="last offset delta"):
        check(raw)


@pytest.mark.parametrize("producer", [(7, -1, 0), (7, 0, -1), (-2, 0, 0)])
def test_a_producer_id_comes_with_epoch_and_sequence(producer: tuple[int, int, int]) -> None:
    with refused(ErrorCode.INVALID_RECORD, match="negative"):
        check(batch(producer=producer))


def test_a_transactional_batch_needs_a_producer_id() -> None:
    assert check(batch(attributes=ATTR_TRANSACTIONAL, producer=(7, 0, 0))) == 1
    with refused(ErrorCode.INVALID_RECORD, match="has no producer id"):
        check(batch(attributes=ATTR_TRANSACTIONAL))


def test_zstd_needs_a_client_that_knows_it_and_unknown_codecs_are_refused() -> None:
    with refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE):
        check(batch(attributes=Codec.ZSTD), version=6)
    with refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE):
        check(with_field(batch(), 21, ">h", 5))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_noise_is_taken_or_refused_and_nothing_else(data: st.DataObject) -> None:
    raw = bytearray(batch(count=2) + batch())
    for _ in range(data.draw(st.integers(1, 5))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    try:
        found = check_batches(bytes(raw[:cut]), version=9, bytes_max=BYTES_MAX)
    except BatchRefused:
        return
    assert sum(len(each) for each, _ in found) == cut
    assert all(len(each) >= HEADER_BYTES for each, _ in found)
