import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.message import Attribute, Message
from penstock.record.batch import ATTR_APPEND_TIME, ATTR_PRODUCED, encode_batch
from penstock.record.malformed import MalformedBatch
from penstock.record.message import decode_at, decode_batch, encode_message
from penstock.record.record import encode_record, iter_records

ORIGIN = b"topic/0"
TEXT = st.text(max_size=40).filter(lambda text: text.isprintable())
NAMES = st.text("abc.penstock_type", min_size=1, max_size=24) | st.sampled_from(
    ["penstock", "penstock.type.x", "x", "penstock.type.penstock.type.x", "penstock.type."]
)
ATTRIBUTES = st.dictionaries(
    NAMES,
    st.builds(
        Attribute,
        st.sampled_from(["String", "Number", "Binary", "String.json", "Number.int"]),
        st.binary(max_size=20),
    ),
    max_size=10,
)
MESSAGES = st.builds(
    Message,
    message_id=st.binary(min_size=16, max_size=16),
    body=st.binary(max_size=300),
    attributes=ATTRIBUTES.map(lambda found: found or None),
    group=st.none() | TEXT,
    dedup_id=st.none() | TEXT,
    delay_ms=st.none() | st.integers(0, 900_000),
    sender=TEXT,
    trace_header=st.none() | TEXT,
    attempts=st.integers(0, 1_000),
    source_arn=st.none() | TEXT,
    sent_at_ms=st.none() | st.integers(0, 2**45),
)


def batch_of(records: list[bytes], **changes: int) -> bytes:
    fields = {"base_offset": 5, "leader_epoch": 0, "base_timestamp": 1_000, "max_timestamp": 1_009}
    return encode_batch(records, **(fields | changes))


def server_batch(records: list[bytes], **changes: int) -> bytes:
    """A batch as the journal writes it: append time, which both times are, and nothing else."""
    fields = {"base_timestamp": 1_009, "attributes": ATTR_APPEND_TIME}
    return batch_of(records, **(fields | changes))


@settings(deadline=None, max_examples=60)
@given(st.lists(MESSAGES, min_size=1, max_size=5))
def test_messages_come_back_as_they_went_in(messages: list[Message]) -> None:
    found = decode_batch(server_batch(encoded(messages)), origin=ORIGIN)
    assert [record.message for record in found] == messages
    assert [record.offset for record in found] == list(range(5, 5 + len(messages)))
    assert {record.appended_at_ms for record in found} == {1_009}


def encoded(messages: list[Message]) -> list[bytes]:
    return [encode_message(m, offset_delta=n, timestamp_delta=0) for n, m in enumerate(messages)]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(MESSAGES, min_size=1, max_size=5),
    st.sampled_from(
        [
            {"attributes": 0},  # what a producer may set: a codec, a transaction, an id, times
            {"attributes": 4},
            {"attributes": 0x10, "producer_id": 7},
            {"attributes": 0, "base_timestamp": 1_009},
            # The same with the append time of a queue or topic, as it stands in the log ...
            {"attributes": ATTR_APPEND_TIME | ATTR_PRODUCED, "base_timestamp": 1_009},
            # ... and as it stood there before the produced bit existed.
            {"attributes": ATTR_APPEND_TIME, "base_timestamp": 1_000},
            {"attributes": ATTR_APPEND_TIME | 4, "base_timestamp": 1_009},
            {"attributes": ATTR_APPEND_TIME, "base_timestamp": 1_009, "producer_id": 7},
        ]
    ),
)
def test_the_server_fields_of_a_producers_record_are_ignored(
    messages: list[Message], fields: dict[str, int]
) -> None:
    found = decode_batch(batch_of(encoded(messages), **fields), origin=ORIGIN)
    for record, message in zip(found, messages, strict=True):
        expected = Message(record.message.message_id, message.body, message.attributes)
        assert record.message == msgspec.structs.replace(expected, group=message.group)
        assert record.message.message_id != message.message_id


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (3, -1),
        (3, 900_001),
        (3, 2**63),
        (5, -1_000),
        (5, 2**31),
        (5, 2**64 - 1),
        (7, -1),
        (7, 2**63),
    ],
)
def test_a_header_with_a_number_out_of_range_is_not_the_servers(place: int, value: int) -> None:
    fields: list[object] = [b"i" * 16, "me", None, None, None, 0, None, None]
    fields[place] = value
    header = (b"penstock", msgspec.msgpack.encode(fields))
    record = encode_record(offset_delta=0, timestamp_delta=0, key=None, value=b"", headers=[header])
    (found,) = decode_batch(server_batch([record]), origin=ORIGIN)
    message = found.message
    assert message.sender == ""
    assert (message.attempts, message.delay_ms, message.sent_at_ms) == (0, None, None)


def test_a_message_was_never_sent_after_its_append() -> None:
    message = Message(bytes(16), b"x", sent_at_ms=2**62)
    (found,) = decode_batch(server_batch(encoded([message])), origin=ORIGIN)
    assert found.sent_at_ms == 1_009


def test_decoding_starts_where_it_is_asked_to() -> None:
    records = encoded([Message(bytes(16), b"x")] * 4)
    found = decode_batch(server_batch(records), origin=ORIGIN, from_offset=7)
    assert [record.offset for record in found] == [7, 8]


def test_a_kafka_consumer_sees_key_value_and_attributes() -> None:
    message = Message(
        b"i" * 16, b"body", {"a": Attribute("String", b"1"), "n": Attribute("Number", b"2")}, "g"
    )
    (raw,) = iter_records(batch_of([encode_message(message, offset_delta=0, timestamp_delta=0)]))
    assert (raw.key, raw.value) == (b"g", b"body")
    assert raw.headers[0][0] == b"penstock"
    assert raw.headers[1:] == [(b"a", b"1"), (b"n", b"2"), (b"penstock.type.n", b"Number")]


def test_the_system_header_leaves_out_trailing_defaults() -> None:
    message = Message(b"i" * 16, b"", sender="me", dedup_id="d")
    (raw,) = iter_records(batch_of([encode_message(message, offset_delta=0, timestamp_delta=0)]))
    assert msgspec.msgpack.decode(raw.headers[0][1] or b"") == [b"i" * 16, "me", "d"]


def test_append_time_is_the_batchs_own() -> None:
    record = encode_message(Message(bytes(16), b"x"), offset_delta=0, timestamp_delta=3)
    (found,) = decode_batch(batch_of([record], attributes=ATTR_APPEND_TIME), origin=ORIGIN)
    assert found.appended_at_ms == 1_009


def test_a_kafka_producers_record_becomes_a_message() -> None:
    headers = [(b"text", "grün".encode()), (b"raw", b"\xff\xfe"), (b"null", None)]
    records = [
        encode_record(offset_delta=0, timestamp_delta=0, key=b"k", value=None, headers=headers),
        encode_record(offset_delta=1, timestamp_delta=0, key=b"\xff", value=b"v"),
    ]
    first, second = (r.message for r in decode_batch(batch_of(records), origin=ORIGIN))
    assert (first.group, first.body) == ("k", b"")
    assert first.attributes == {
        "text": Attribute("String", "grün".encode()),
        "raw": Attribute("Binary", b"\xff\xfe"),
        "null": Attribute("String", b""),
    }
    assert (second.group, second.attributes) == ("ff", None)
    again, _ = (r.message for r in decode_batch(batch_of(records), origin=ORIGIN))
    elsewhere, _ = (r.message for r in decode_batch(batch_of(records), origin=b"topic/1"))
    assert first.message_id == again.message_id
    assert len({first.message_id, second.message_id, elsewhere.message_id}) == 3
    assert len(first.message_id) == 16


@pytest.mark.parametrize("value", [b"", b"\x93", b"\x91\xc4\x01a", b"\xc0", None])
def test_a_header_of_our_name_that_is_not_ours_is_an_attribute(value: bytes | None) -> None:
    record = encode_record(
        offset_delta=0, timestamp_delta=0, key=None, value=b"", headers=[(b"penstock", value)]
    )
    (found,) = decode_batch(batch_of([record]), origin=ORIGIN)
    assert found.message.attributes is not None
    assert found.message.attributes["penstock"].value == (value or b"")


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=60), st.integers(1, 3))
def test_noise_is_malformed_or_messages(noise: bytes, count: int) -> None:
    batch = encode_batch(
        [noise] + [b""] * (count - 1),
        base_offset=0,
        leader_epoch=0,
        base_timestamp=0,
        max_timestamp=0,
    )
    try:
        found = decode_batch(batch, origin=ORIGIN)
    except MalformedBatch:
        return
    assert len(found) == count


def test_every_flipped_byte_of_a_record_is_malformed_or_another_message() -> None:
    message = Message(b"i" * 16, b"body", {"n": Attribute("Number", b"2")}, "g", dedup_id="d")
    record = encode_message(message, offset_delta=0, timestamp_delta=0)
    for at in range(len(record)):
        for flip in (0x01, 0x80, 0xFF):
            broken = bytearray(record)
            broken[at] ^= flip
            try:
                decode_batch(server_batch([bytes(broken)]), origin=ORIGIN)
            except MalformedBatch:
                pass


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=20), st.data())
def test_one_record_is_found_without_opening_the_others(
    values: list[bytes], data: st.DataObject
) -> None:
    messages = [Message(bytes([n]) * 16, value) for n, value in enumerate(values)]
    batch = server_batch(encoded(messages), base_offset=100)
    at = data.draw(st.integers(0, len(values) - 1))
    assert decode_at(batch, 100 + at, origin=b"o") == decode_batch(batch, origin=b"o")[at]
    assert decode_at(batch, 100 + len(values), origin=b"o") is None
