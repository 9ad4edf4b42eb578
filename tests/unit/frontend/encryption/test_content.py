"""Sealed contents and batches: what goes in comes out, and nothing else ever does."""

from __future__ import annotations

import itertools
import os
from collections.abc import Generator, Sequence
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.record.checks import check

from penstock.frontend.encryption.content import (
    NONCE_BYTES,
    SEALED_BYTES_MIN,
    STEP_RECORDS,
    Quarantine,
    Unopenable,
    check_count,
    open_batch,
    open_message,
    place_of,
    seal,
    seal_message,
    seal_records,
    sealed_runs,
    unseal,
)
from penstock.metadata.security.data_keys import DataKey
from penstock.model.message import Attribute, Message
from penstock.record.batch import (
    ATTR_APPEND_TIME,
    ATTR_SEALED,
    ATTR_TRANSACTIONAL,
    encode_batch,
    parse_header,
    repacked,
)
from penstock.record.compaction import compact_batch, keys_of
from penstock.record.compression import Codec
from penstock.record.malformed import MalformedBatch
from penstock.record.message import decode_at, decode_batch, encode_message
from penstock.record.record import encode_record, iter_records, records_blob

ACCOUNT = "000000000001"
OWNER = ACCOUNT.encode()
TOPIC_ID = bytes(range(16))
T = TypeVar("T")
Produced = Sequence[tuple[bytes | None, bytes | None, Sequence[tuple[bytes, bytes | None]]]]


def new_key(topic_id: bytes = TOPIC_ID, account: str = ACCOUNT) -> DataKey:
    return DataKey(topic_id + os.urandom(8), account, os.urandom(32))


KEY = new_key()

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
attributes = st.dictionaries(
    names,
    st.builds(Attribute, st.sampled_from(("String", "Number", "Binary", "String.x")), st.binary()),
    max_size=5,
)
messages = st.builds(
    Message,
    message_id=st.binary(min_size=16, max_size=16),
    body=st.binary(max_size=300),
    attributes=st.one_of(st.none(), attributes.filter(bool)),
    group=st.one_of(st.none(), names),
    dedup_id=st.one_of(st.none(), names),
    sender=st.text(max_size=10),
    attempts=st.integers(0, 5),
)
keys = st.one_of(st.none(), st.binary(max_size=12))
values = st.one_of(st.none(), st.binary(max_size=100))
headers = st.lists(st.tuples(st.binary(max_size=8), values), max_size=4)
records = st.lists(st.tuples(keys, values, headers), min_size=1, max_size=6)


def finish(steps: Generator[bytes | None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def opened_with(sealed: bytes, record_key: bytes | None, key: DataKey) -> bytes:
    """As it is done: the place first, then the key of that place, here as good a guess as any."""
    assert len(place_of(sealed)) == len(key.place)
    return unseal(sealed, record_key, key, OWNER)


def batch_of(
    given: Produced,
    *,
    attributes: int = 0,
    producer_id: int = -1,
) -> bytes:
    return encode_batch(
        [
            encode_record(offset_delta=n, timestamp_delta=3 * n, key=key, value=value, headers=some)
            for n, (key, value, some) in enumerate(given)
        ],
        base_offset=1_000,
        leader_epoch=3,
        base_timestamp=1_700_000_000_000,
        max_timestamp=1_700_000_000_000 + 3 * len(given),
        attributes=attributes,
        producer_id=producer_id,
        producer_epoch=7 if producer_id >= 0 else -1,
        base_sequence=42 if producer_id >= 0 else -1,
    )


def sealed_batch(batch: bytes, key: DataKey = KEY) -> bytes:
    header = parse_header(batch)
    return finish(seal_records(records_blob(batch, header), header, key, os.urandom))


def opened_batch(batch: bytes, *known: DataKey, owner: bytes = OWNER) -> tuple[bytes, Quarantine]:
    by_place = {key.place: key for key in known or (KEY,)}
    quarantine: Quarantine = []
    return finish(open_batch(batch, by_place.get, owner, quarantine)), quarantine


# ── Messages ─────────────────────────────────────────────────────────────────────────────────
@given(messages)
def test_an_opened_message_is_the_one_that_was_sealed(message: Message) -> None:
    sealed = seal_message(message, KEY, os.urandom(NONCE_BYTES))
    assert sealed.is_sealed
    assert sealed.attributes is None
    assert open_message(sealed, KEY, OWNER) == message


@given(messages)
def test_a_sealed_message_survives_the_log(message: Message) -> None:
    sealed = seal_message(message, KEY, os.urandom(NONCE_BYTES))
    record = encode_message(sealed, offset_delta=0, timestamp_delta=0)
    batch = encode_batch(
        [record],
        base_offset=9,
        leader_epoch=0,
        base_timestamp=5,
        max_timestamp=5,
        attributes=ATTR_APPEND_TIME | ATTR_SEALED,
    )
    [read] = decode_batch(batch, origin=b"o")
    assert read.message == sealed
    again = decode_at(batch, 9, origin=b"o")
    assert again == read
    assert open_message(read.message, KEY, OWNER) == message


@given(messages, st.data())
def test_no_changed_byte_is_opened(message: Message, data: st.DataObject) -> None:
    body = seal_message(message, KEY, os.urandom(NONCE_BYTES)).body
    at = data.draw(st.integers(0, len(body) - 1))
    flipped = bytearray(body)
    flipped[at] ^= data.draw(st.integers(1, 255))
    bound = None if message.group is None else message.group.encode()
    with pytest.raises(Unopenable):
        opened_with(bytes(flipped), bound, KEY)


@given(messages, st.integers(0, SEALED_BYTES_MIN + 10))
def test_no_shortened_content_is_opened(message: Message, size: int) -> None:
    sealed = seal_message(message, KEY, os.urandom(NONCE_BYTES)).body
    if size >= len(sealed):
        size = len(sealed) - 1
    bound = None if message.group is None else message.group.encode()
    with pytest.raises(Unopenable):
        opened_with(sealed[:size], bound, KEY)


@given(st.binary(), keys, keys.filter(bool))
def test_a_content_opens_under_no_other_record_key(
    content: bytes, one: bytes | None, other: bytes | None
) -> None:
    sealed = seal(content, one, KEY, os.urandom(NONCE_BYTES))
    assert unseal(sealed, one, KEY, OWNER) == content
    if one == other:
        other = None
    with pytest.raises(Unopenable):
        unseal(sealed, other, KEY, OWNER)


def test_no_key_and_an_empty_key_are_told_apart() -> None:
    sealed = seal(b"x", None, KEY, os.urandom(NONCE_BYTES))
    with pytest.raises(Unopenable):
        unseal(sealed, b"", KEY, OWNER)


def test_a_content_is_opened_for_no_other_account() -> None:
    sealed = seal(b"x", None, KEY, os.urandom(NONCE_BYTES))
    with pytest.raises(Unopenable, match="another account"):
        unseal(sealed, None, KEY, b"000000000002")


def test_a_key_with_another_name_opens_nothing() -> None:
    """The same secret under another topic, key id or account: as if an entry of the store were put
    in the place of another."""
    secret = os.urandom(32)
    place = TOPIC_ID + os.urandom(8)
    sealed = seal(b"x", None, DataKey(place, ACCOUNT, secret), os.urandom(NONCE_BYTES))
    elsewhere = DataKey(place, "000000000002", secret)
    with pytest.raises(Unopenable):
        unseal(sealed, None, elsewhere, b"000000000002")
    renamed = sealed[:1] + os.urandom(24) + sealed[25:]
    with pytest.raises(Unopenable):
        unseal(renamed, None, DataKey(renamed[1:25], ACCOUNT, secret), OWNER)


def test_a_sealed_form_shows_nothing_of_the_content() -> None:
    message = Message(
        os.urandom(16),
        b"planted-body" * 50,
        {"planted-name": Attribute("String", b"planted-value")},
    )
    sealed = seal_message(message, KEY, os.urandom(NONCE_BYTES))
    assert b"planted" not in encode_message(sealed, offset_delta=0, timestamp_delta=0)
    assert "planted" not in repr(KEY)


def test_a_record_in_an_unsealed_batch_is_not_believed_to_be_sealed() -> None:
    """Any Kafka producer can write our header; only the batch's own bit makes it count."""
    sealed = seal_message(Message(os.urandom(16), b"x"), KEY, os.urandom(NONCE_BYTES))
    record = encode_message(sealed, offset_delta=0, timestamp_delta=0)
    batch = encode_batch([record], base_offset=0, leader_epoch=0, base_timestamp=5, max_timestamp=5)
    [read] = decode_batch(batch, origin=b"o")
    assert not read.message.is_sealed
    assert read.message.body == sealed.body


# ── Batches ──────────────────────────────────────────────────────────────────────────────────
@given(records, st.sampled_from((Codec.NONE, Codec.GZIP, Codec.ZSTD)), st.booleans())
@settings(max_examples=60)
def test_an_opened_batch_has_the_records_that_were_produced(
    produced: Produced,
    codec: Codec,
    is_transactional: bool,
) -> None:
    attributes = codec | (ATTR_TRANSACTIONAL if is_transactional else 0)
    batch = batch_of(produced, attributes=attributes, producer_id=5)
    sealed = sealed_batch(batch)
    before, stored = parse_header(batch), check(sealed)
    assert stored.attributes == before.attributes & ~7 | ATTR_SEALED
    for field in ("base_offset", "last_offset_delta", "base_timestamp", "max_timestamp", "count"):
        assert getattr(stored, field) == getattr(before, field)
    assert stored[9:12] == before[9:12]  # producer id, epoch and sequence
    # What a broker goes by is as it was.
    for one, other in zip(iter_records(sealed), iter_records(batch), strict=True):
        assert one[:3] == other[:3]
        assert (one.value is None) == (other.value is None)
    assert keys_of(sealed) == keys_of(batch)
    opened, quarantine = opened_batch(sealed)
    assert not quarantine
    assert check(opened).attributes == before.attributes & ~7
    assert list(iter_records(opened)) == list(iter_records(batch))


def test_nothing_of_a_value_or_a_header_is_left_in_a_sealed_batch() -> None:
    batch = batch_of(
        [
            (b"key", b"planted" * 9, [(b"planted-name", b"planted-value")]),
            (b"gone", None, [(b"planted-name", b"planted-value")]),
        ]
    )
    sealed = sealed_batch(batch)
    assert b"planted" not in sealed
    assert b"key" in sealed


def test_a_changed_record_is_left_out_and_the_others_are_given() -> None:
    produced: Produced = [(b"k%d" % n, b"value %d" % n, []) for n in range(5)]
    sealed = sealed_batch(batch_of(produced))
    where = [record.value for record in iter_records(sealed)][2]
    assert where is not None
    at = sealed.index(where) + len(where) - 1
    changed = bytearray(sealed)
    changed[at] ^= 1
    opened, quarantine = opened_batch(bytes(changed))
    assert [offset for offset, _ in quarantine] == [1_002]
    header = check(opened)
    assert (header.base_offset, header.last_offset_delta, header.count) == (1_000, 4, 4)
    read = list(iter_records(opened))
    assert [record.offset for record in read] == [1_000, 1_001, 1_003, 1_004]
    assert [record.value for record in read] == [b"value 0", b"value 1", b"value 3", b"value 4"]


def test_values_cannot_change_places() -> None:
    sealed = sealed_batch(batch_of([(b"a", b"one", []), (b"b", b"two", [])]))
    one, two = iter_records(sealed)
    assert one.value is not None
    assert two.value is not None
    mixed = sealed.replace(one.value, b"\0" * len(one.value))
    mixed = mixed.replace(two.value, one.value).replace(b"\0" * len(one.value), two.value)
    opened, quarantine = opened_batch(mixed)
    assert parse_header(opened).count == 0
    assert len(quarantine) == 2


def test_what_another_tenant_sealed_is_left_out() -> None:
    sealed = sealed_batch(batch_of([(None, b"x", [])]))
    _, quarantine = opened_batch(sealed, owner=b"000000000002")
    assert quarantine == [(1_000, "the content was encrypted for another account")]


def test_a_missing_key_is_asked_for_once_and_then_given_up() -> None:
    sealed = sealed_batch(batch_of([(None, b"x", []), (None, b"y", [])]))
    known: dict[bytes, DataKey] = {}
    quarantine: Quarantine = []
    steps = open_batch(sealed, known.get, OWNER, quarantine)
    assert next(steps) == KEY.place
    known[KEY.place] = KEY  # learned
    assert list(iter_records(finish(steps))) == list(iter_records(opened_batch(sealed)[0]))
    assert not quarantine
    known.clear()
    steps = open_batch(sealed, known.get, OWNER, quarantine)
    assert parse_header(finish(steps)).count == 0
    assert [offset for offset, _ in quarantine] == [1_000, 1_001]


def test_a_large_batch_lets_others_have_their_turn() -> None:
    produced: Produced = [(None, b"v", []) for _ in range(3 * STEP_RECORDS)]
    batch = batch_of(produced)
    header = parse_header(batch)
    pauses = list(seal_records(records_blob(batch, header), header, KEY, os.urandom))
    assert pauses == [None, None, None]  # the last one before the batch is put together
    opening = list(open_batch(sealed_batch(batch), {KEY.place: KEY}.get, OWNER, []))
    assert len(opening) == 4


def test_a_header_that_promises_more_records_than_fit_is_refused() -> None:
    """Before a key is asked for: uses are counted by what the header says."""
    batch = repacked(parse_header(batch_of([(None, b"v", [])])), [b"\x00"] * 3)
    header = parse_header(batch)
    with pytest.raises(MalformedBatch):
        check_count(records_blob(batch, header), header)


@given(st.binary(min_size=10, max_size=80), st.integers(1, 5))
def test_a_batch_of_nonsense_is_refused_whole(blob: bytes, count: int) -> None:
    header = parse_header(batch_of([(None, b"v", [])] * count))
    try:
        finish(seal_records(blob, header, KEY, os.urandom))
    except MalformedBatch:
        return
    # By chance it makes sense: then it must come back as it was.
    sealed = finish(seal_records(blob, header, KEY, os.urandom))
    opened, quarantine = opened_batch(sealed)
    assert not quarantine
    assert opened.endswith(blob)


def test_compaction_of_sealed_batches_keeps_the_last_value_of_each_key() -> None:
    produced: Produced = [(b"a", b"old", []), (b"b", b"kept", [(b"h", b"1")]), (b"a", None, [])]
    sealed = sealed_batch(batch_of(produced))
    last = dict(keys_of(sealed))
    compacted = compact_batch(
        sealed, is_wanted=lambda key, offset: last[key] == offset, tombstone_ms=10, now_ms=0
    )
    opened, quarantine = opened_batch(compacted)
    assert not quarantine
    assert [(r.offset, r.key, r.value) for r in iter_records(opened)] == [
        (1_001, b"b", b"kept"),
        (1_002, b"a", None),
    ]


def message_batch(*given: Message) -> bytes:
    sealed = any(message.is_sealed for message in given)
    return encode_batch(
        [encode_message(m, offset_delta=n, timestamp_delta=0) for n, m in enumerate(given)],
        base_offset=0,
        leader_epoch=0,
        base_timestamp=5,
        max_timestamp=5,
        attributes=ATTR_APPEND_TIME | (ATTR_SEALED if sealed else 0),
    )


@given(st.lists(st.tuples(messages, st.booleans()), min_size=1, max_size=5))
@settings(max_examples=40)
def test_a_queues_batch_opens_to_what_it_would_have_been(
    given_messages: list[tuple[Message, bool]],
) -> None:
    plain = message_batch(*(message for message, _ in given_messages))
    sealed = message_batch(
        *(
            seal_message(message, KEY, os.urandom(NONCE_BYTES)) if is_sealed else message
            for message, is_sealed in given_messages
        )
    )
    [(is_batch, piece)] = sealed_runs(sealed)
    assert is_batch == any(is_sealed for _, is_sealed in given_messages)
    if is_batch:
        opened, quarantine = opened_batch(bytes(piece))
        assert not quarantine
        assert opened == plain


@pytest.mark.parametrize("key", [None, b"text", b"\xff\xfe"])
@pytest.mark.parametrize("value", [b"value", b"", None])
def test_a_producers_record_opens_as_a_message_and_as_a_dead_letter(
    key: bytes | None, value: bytes | None
) -> None:
    sealed = sealed_batch(batch_of([(key, value, [(b"name", b"header")])]))
    [record] = decode_batch(sealed, origin=b"o")
    [plain] = decode_batch(batch_of([(key, value, [(b"name", b"header")])]), origin=b"o")
    assert record.message.is_sealed
    assert open_message(record.message, KEY, OWNER) == plain.message
    # A broker copies it as it is to another queue, whose log a Kafka client may read as well.
    letter = message_batch(record.message)
    [copied] = decode_batch(letter, origin=b"other")
    assert open_message(copied.message, KEY, OWNER) == plain.message
    opened, quarantine = opened_batch(letter)
    assert not quarantine
    assert opened == message_batch(plain.message)


def test_only_the_sealed_batches_of_a_buffer_are_cut_out() -> None:
    plain = batch_of([(None, b"p", [])])
    sealed = sealed_batch(plain)
    for pattern in itertools.product((False, True), repeat=4):
        buffer = b"".join(sealed if is_sealed else plain for is_sealed in pattern)
        pieces = list(sealed_runs(memoryview(buffer)))
        assert b"".join(bytes(piece) for _, piece in pieces) == buffer
        assert sum(is_sealed for is_sealed, _ in pieces) == sum(pattern)
    [(is_sealed, whole)] = sealed_runs(buffer := plain * 3)
    assert not is_sealed
    assert whole is buffer
