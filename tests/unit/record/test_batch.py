"""Batches against a hand-computed vector, round trips, and every way of being malformed."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.record.checks import check

from penstock.record.batch import (
    ATTR_APPEND_TIME,
    ATTR_CONTROL,
    HEADER_BYTES,
    encode_batch,
    is_server_batch,
    parse_header,
    placed,
)
from penstock.record.control import encode_control_batch, iter_control
from penstock.record.crc32c import crc32c
from penstock.record.malformed import MalformedBatch
from penstock.record.record import RawRecord, encode_record, iter_records

# One batch written out by hand from Kafka's description of the format, field by field.
KNOWN_RECORD = bytes.fromhex(
    "28"  # length 20
    "00"  # attributes
    "06"  # time delta 3
    "00"  # offset delta 0
    "06" + b"key".hex()  # key length 3
    + "0a" + b"value".hex()  # value length 5
    + "02"  # one header
    "02" + b"h".hex()  # name length 1
    + "06" + b"abc".hex()  # content length 3
)  # fmt: skip
KNOWN_CHECKED = bytes.fromhex(
    "0008"  # attributes: append time
    "00000000"  # last offset delta
    "0000018bcfe56800"  # base time 1700000000000
    "0000018bcfe56803"  # max time, three later
    "ffffffffffffffff"  # no producer
    "ffff"
    "ffffffff"
    "00000001"  # count
)


def crc32c_by_definition(data: bytes) -> int:
    """Bit by bit, from the polynomial: shares nothing with the library."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def known_batch() -> bytes:
    body = KNOWN_CHECKED + KNOWN_RECORD
    head = struct.pack(">qiib", 41, 9 + len(body), 5, 2)
    return head + struct.pack(">I", crc32c_by_definition(body)) + body


def encode(count: int = 3, **changes: int) -> bytes:
    records = [
        encode_record(offset_delta=at, timestamp_delta=at, key=None, value=b"v%d" % at)
        for at in range(count)
    ]
    fields = {"base_offset": 7, "leader_epoch": 1, "base_timestamp": 100, "max_timestamp": 102}
    return encode_batch(records, **(fields | changes))


def test_crc32c_agrees_with_its_definition_and_the_published_check_value() -> None:
    assert crc32c(b"123456789") == 0xE3069283 == crc32c_by_definition(b"123456789")


def test_a_batch_written_by_hand_is_understood() -> None:
    batch = known_batch()
    header = check(batch)
    assert (header.base_offset, header.next_offset, header.leader_epoch) == (41, 42, 5)
    assert (header.total_bytes, header.count, header.codec) == (len(batch), 1, 0)
    assert header.is_append_time
    assert not header.is_control
    expected = RawRecord(41, 1_700_000_000_003, b"key", b"value", [(b"h", b"abc")])
    assert list(iter_records(batch)) == [expected]


def test_the_encoder_writes_the_batch_written_by_hand() -> None:
    record = encode_record(
        offset_delta=0, timestamp_delta=3, key=b"key", value=b"value", headers=[(b"h", b"abc")]
    )
    assert record == KNOWN_RECORD
    batch = encode_batch(
        [record],
        base_offset=41,
        leader_epoch=5,
        base_timestamp=1_700_000_000_000,
        max_timestamp=1_700_000_000_003,
        attributes=ATTR_APPEND_TIME,
    )
    assert batch == known_batch()


def test_a_place_moves_a_batch_without_breaking_its_crc() -> None:
    batch = encode()
    before = parse_header(batch)
    data, header = placed(memoryview(batch), before, base_offset=2**40, leader_epoch=9)
    after = check(data)
    assert after == header
    assert (after.base_offset, after.leader_epoch) == (2**40, 9)
    assert after[3:] == before[3:]
    assert after.length == before.length
    assert data[16:] == batch[16:]


def test_a_large_batch_in_writable_memory_gets_its_place_where_it_is() -> None:
    record = encode_record(offset_delta=0, timestamp_delta=0, key=None, value=bytes(300_000))
    batch = encode_batch(
        [record], base_offset=0, leader_epoch=-1, base_timestamp=5, max_timestamp=5
    )
    memory = bytearray(batch)
    data, header = placed(
        memoryview(memory), parse_header(batch), base_offset=2**40, leader_epoch=9
    )
    assert isinstance(data, memoryview)
    assert data.obj is memory
    assert check(bytes(memory)) == header
    copied, same = placed(batch, parse_header(batch), base_offset=2**40, leader_epoch=9)
    assert isinstance(copied, bytes), "what cannot be written to is copied"
    assert (copied, same) == (bytes(memory), header)


def test_an_append_time_is_set_for_all_records_with_a_crc_that_holds() -> None:
    batch = encode()
    data, header = placed(
        batch, parse_header(batch), base_offset=7, leader_epoch=1, append_time_ms=5_000
    )
    after = check(data)
    assert after == header
    assert after.is_append_time
    assert (after.base_offset, after.max_timestamp) == (7, 5_000)
    assert data[HEADER_BYTES:] == batch[HEADER_BYTES:]
    assert {record.timestamp for record in iter_records(bytes(data))} == {5_000}


def test_a_producers_batch_with_append_time_does_not_pass_for_the_servers() -> None:
    record = encode_record(offset_delta=0, timestamp_delta=0, key=None, value=b"x")
    times = {"base_timestamp": 5_000, "max_timestamp": 5_000}  # even at the right millisecond
    place = {"base_offset": 0, "leader_epoch": 1}
    own = encode_batch([record], **times, **place, attributes=ATTR_APPEND_TIME)
    assert is_server_batch(parse_header(own))
    batch = encode_batch([record], **times, **place)
    data, header = placed(batch, parse_header(batch), **place, append_time_ms=5_000)
    assert header == parse_header(bytes(data))
    assert header.is_append_time
    assert not is_server_batch(header)


def test_every_flipped_bit_the_crc_covers_is_noticed() -> None:
    batch = encode()
    for at in range(16, len(batch)):
        for bit in range(8):
            broken = bytearray(batch)
            broken[at] ^= 1 << bit
            with pytest.raises(MalformedBatch):
                check(broken)


def test_every_truncation_is_noticed() -> None:
    batch = encode()
    for size in range(len(batch)):
        with pytest.raises(MalformedBatch):
            check(batch[:size])


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=200))
def test_noise_is_malformed_and_nothing_else(noise: bytes) -> None:
    with pytest.raises(MalformedBatch):
        check(noise)


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=120), st.integers(0, 50), st.sampled_from([0, 1, 2, 3, 4, 5, 7]))
def test_records_of_noise_under_a_valid_crc_are_malformed_or_records(
    noise: bytes, count: int, codec: int
) -> None:
    """A producer may send any bytes with a right CRC: it gets the one error, never another."""
    checked = struct.pack(">hiqqqhii", codec, max(count - 1, 0), 0, 0, -1, -1, -1, count)
    batch = struct.pack(">qiibI", 0, 49 + len(noise), 0, 2, crc32c(checked + noise))
    batch += checked + noise
    try:
        records = list(iter_records(batch))
    except MalformedBatch:
        return
    assert len(records) == count


RECORDS = st.lists(
    st.tuples(
        st.integers(-(2**40), 2**40),
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=300),
        st.lists(st.tuples(st.binary(max_size=9), st.none() | st.binary(max_size=9)), max_size=3),
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=60)
@given(RECORDS, st.integers(0, 4), st.integers(0, 2**60))
def test_records_come_back_as_they_went_in(records: list, codec: int, base_offset: int) -> None:
    batch = encode_batch(
        [
            encode_record(
                offset_delta=at, timestamp_delta=delta, key=key, value=value, headers=headers
            )
            for at, (delta, key, value, headers) in enumerate(records)
        ],
        base_offset=base_offset,
        leader_epoch=3,
        base_timestamp=2**41,
        max_timestamp=2**41,
        attributes=codec,
        producer_id=5,
        producer_epoch=6,
        base_sequence=7,
    )
    header = check(batch)
    assert (header.codec, header.count) == (codec, len(records))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 6, 7)
    found = [(r.timestamp - 2**41, r.key, r.value, list(r.headers)) for r in iter_records(batch)]
    assert found == records
    assert [r.offset for r in iter_records(batch)] == list(
        range(base_offset, base_offset + len(records))
    )


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(64, 32_767), st.binary(max_size=50)), min_size=1, max_size=9))
def test_control_records_come_back_with_offset_type_and_value(entries: list) -> None:
    batch = encode_control_batch(entries, base_offset=12, leader_epoch=0, timestamp=99)
    header = check(batch)
    assert header.is_control
    assert header.attributes == ATTR_CONTROL
    assert header.max_timestamp == 99
    assert list(iter_control(batch)) == [(12 + n, *entry) for n, entry in enumerate(entries)]


def test_a_control_record_without_a_type_is_malformed() -> None:
    record = encode_record(offset_delta=0, timestamp_delta=0, key=b"\x00", value=b"")
    batch = encode_batch(
        [record],
        base_offset=0,
        leader_epoch=0,
        base_timestamp=0,
        max_timestamp=0,
        attributes=ATTR_CONTROL,
    )
    with pytest.raises(MalformedBatch, match="no type"):
        list(iter_control(batch))


def test_the_header_is_sixty_one_bytes() -> None:
    assert HEADER_BYTES == 61
    with pytest.raises(MalformedBatch, match="too few"):
        parse_header(bytes(60))
