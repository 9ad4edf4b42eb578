"""The small parts beside the cursor: receipts, deduplication, dead letters, events, snapshots."""

import hmac
from base64 import urlsafe_b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cursor.leases.harness import Shell

from penstock.cursor.leases.dedup import DedupTable, dedup_key
from penstock.cursor.leases.events import (
    AckEvent,
    Event,
    ExtendEvent,
    LeaseDetail,
    LeaseEvent,
    TrimEvent,
    decode,
    encode,
    is_event_type,
)
from penstock.cursor.leases.fifo import open_cursor, restore_cursor
from penstock.cursor.leases.parts import BUCKETS_MAX, DelayBuckets, dead_letter, decode_snapshot
from penstock.cursor.leases.receipt import open_receipt, seal
from penstock.model.errors import Damaged, InvalidReceipt, Throttled
from penstock.model.limits import DEDUP_WINDOW_MS
from penstock.model.message import AckReason, Attribute, Claim, Message, Record
from penstock.model.topic import DedupScope

TOPIC = "0123456789abcdef0123456789abcdef"
KEY = b"k" * 32
OFFSETS = st.integers(0, 2**63)

# Receipts.


@given(st.integers(0, 2**16 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_a_receipt_opens_to_the_claim_it_was_sealed_with(
    partition: int, offset: int, lease_seq: int
) -> None:
    claim = Claim(partition, offset, lease_seq)
    text = seal(TOPIC, KEY, claim)
    assert len(text) <= 1_024
    assert open_receipt(text, TOPIC, KEY) == claim


@given(st.text(max_size=60))
def test_garbage_is_an_invalid_receipt_and_nothing_else(text: str) -> None:
    with pytest.raises(InvalidReceipt):
        open_receipt(text, TOPIC, KEY)


@given(st.integers(0, 47), st.characters())
def test_a_receipt_with_any_character_changed_is_invalid(at: int, other: str) -> None:
    text = seal(TOPIC, KEY, Claim(1, 2, 3))
    changed = text[:at] + other + text[at + 1 :]
    if changed != text:
        with pytest.raises(InvalidReceipt):
            open_receipt(changed, TOPIC, KEY)


def test_a_receipt_of_another_queue_or_key_is_invalid() -> None:
    text = seal(TOPIC, KEY, Claim(1, 2, 3))
    with pytest.raises(InvalidReceipt):
        open_receipt(text, "f" * 32, KEY)
    with pytest.raises(InvalidReceipt):
        open_receipt(text, TOPIC, b"other")


@pytest.mark.parametrize("key", [b"", b"short", b"k" * 64, b"k" * 65, b"k" * 200])
def test_the_signature_is_an_ordinary_hmac(key: bytes) -> None:
    raw = urlsafe_b64decode(seal(TOPIC, key, Claim(1, 2, 3)))
    expected = hmac.digest(key, TOPIC.encode() + raw[:20], "sha256")
    assert raw[20:] == expected[:16]


@given(st.integers(0, 2**64 - 1))
def test_a_receipt_has_one_spelling(offset: int) -> None:
    text = seal(TOPIC, KEY, Claim(1, offset, 3))
    plain = text.replace("-", "+").replace("_", "/")
    if plain != text:
        with pytest.raises(InvalidReceipt):
            open_receipt(plain, TOPIC, KEY)


def test_each_lease_has_another_receipt() -> None:
    assert seal(TOPIC, KEY, Claim(1, 2, 3)) != seal(TOPIC, KEY, Claim(1, 2, 4))


# Deduplication.


def message(dedup_id: str | None, group: str | None = None) -> Message:
    return Message(b"m" * 16, b"body", group=group, dedup_id=dedup_id)


def key(dedup_id: str, group: str | None = None, scope: DedupScope = DedupScope.QUEUE) -> bytes:
    found = dedup_key(message(dedup_id, group), scope)
    assert found is not None
    return found


def test_an_id_answers_with_its_first_message_for_five_minutes() -> None:
    table = DedupTable()
    table.remember(key("a"), 7, b"first", 1_000)
    table.remember(key("a"), 9, b"second", 2_000)
    assert table.find(key("a"), wall_ms=1_000 + DEDUP_WINDOW_MS - 1) == (7, b"first")
    assert table.find(key("a"), wall_ms=1_000 + DEDUP_WINDOW_MS) is None
    table.remember(key("a"), 11, b"third", 1_000 + DEDUP_WINDOW_MS)
    assert table.find(key("a"), wall_ms=1_001 + DEDUP_WINDOW_MS) == (11, b"third")


def test_the_scope_says_whether_groups_share_ids() -> None:
    assert key("a", "g") == key("a", "h")
    group = DedupScope.GROUP
    assert key("a", "g", group) != key("a", "h", group)
    assert key("bc", "a", group) != key("c", "ab", group)
    assert dedup_key(message(None), group) is None


def test_a_full_table_throttles_until_the_oldest_id_is_forgotten() -> None:
    table = DedupTable(entries_max=2)
    table.remember(key("a"), 1, b"", 0)
    table.remember(key("b"), 2, b"", 1_000)
    table.remember(key("b"), 2, b"", 1_000)
    with pytest.raises(Throttled) as refused:
        table.remember(key("c"), 3, b"", 2_000)
    assert refused.value.retry_after_ms == DEDUP_WINDOW_MS - 2_000
    with pytest.raises(Throttled):
        table.check_room(1, wall_ms=DEDUP_WINDOW_MS - 1)
    table.check_room(1, wall_ms=DEDUP_WINDOW_MS)
    table.remember(key("c"), 3, b"", DEDUP_WINDOW_MS)
    assert len(table) == 2


# Dead letters.


def test_a_dead_letter_keeps_what_its_reader_needs() -> None:
    attributes = {"n": Attribute("Number", b"1")}
    original = Message(
        b"\x01" * 16, b"body", attributes, "g", "id", 5_000, "me", "trace", attempts=2
    )
    record = Record(40, 1_234, original)
    letter = dead_letter(record, attempts=3, source_arn="arn", origin="t:0:1", is_fifo=True)
    assert letter.message_id == original.message_id
    assert (letter.body, letter.attributes, letter.group) == (b"body", attributes, "g")
    assert (letter.attempts, letter.source_arn, letter.sent_at_ms) == (5, "arn", 1_234)
    assert (letter.sender, letter.trace_header, letter.delay_ms) == ("me", "trace", None)
    assert letter.dedup_id == "01010101-0101-0101-0101-010101010101"
    plain = dead_letter(record, attempts=3, source_arn="arn", origin="t:0:1", is_fifo=False)
    assert plain.dedup_id == "t:0:1"


# Events.

DETAILS = st.none() | st.builds(
    LeaseDetail,
    skipped=st.lists(OFFSETS).map(tuple),
    held=st.lists(OFFSETS).map(tuple),
    attempt_id=st.none() | st.text(max_size=128),
)
EVENTS = st.one_of(
    st.builds(
        LeaseEvent,
        OFFSETS,
        st.integers(0, 43_200_000),
        OFFSETS,
        st.integers(0, 1_000),
        st.lists(OFFSETS, max_size=10).map(tuple),
        st.integers(0, 2**42),
        DETAILS,
    ),
    st.builds(ExtendEvent, st.lists(st.tuples(OFFSETS, OFFSETS)).map(tuple)),
    st.builds(AckEvent, st.sampled_from(AckReason), st.lists(OFFSETS).map(tuple)),
    st.builds(TrimEvent, OFFSETS, OFFSETS),
)


@given(EVENTS)
def test_an_event_decodes_to_what_was_encoded(event: Event) -> None:
    number, data = encode(event)
    assert number >= 64
    assert is_event_type(number)
    assert decode(number, data) == event


def test_a_lease_of_one_record_is_small() -> None:
    event = LeaseEvent(1_000_000, 30_000, 5_000_001, 1, (5_000_000,), 1_700_000_000_000)
    assert len(encode(event)[1]) <= 32
    assert len(encode(AckEvent(AckReason.ACKED, (5_000_000,)))[1]) <= 10


@given(st.integers(0, 255), st.binary(max_size=40))
def test_an_event_that_is_not_ours_is_a_value_error(number: int, data: bytes) -> None:
    try:
        decoded = decode(number, data)
    except ValueError:
        return
    assert encode(decoded)[0] == number


# Snapshots and delay counts.


def test_a_damaged_snapshot_says_so() -> None:
    shell = Shell()
    shell.send(5)
    shell.lease(2)
    data = shell.cursor.snapshot(now_ms=shell.now_ms)
    for at in range(len(data)):
        bad = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(Damaged):
            restore_cursor(bad, now_ms=0, elapsed_ms=0)
    with pytest.raises(Damaged):
        restore_cursor(b"", now_ms=0, elapsed_ms=0)
    with pytest.raises(Damaged):
        decode_snapshot(data[:-1])


def test_a_lease_restored_from_a_snapshot_ends_when_it_would_have() -> None:
    shell = Shell()
    shell.send(2)
    shell.lease(1, 30_000)
    saved = shell.snapshot()
    shell.now_ms += 10_000
    shell.restart_from(saved)
    assert shell.counts() == (1, 1, 0)
    shell.now_ms += 19_999
    assert shell.counts() == (1, 1, 0)
    shell.now_ms += 1
    assert shell.take(10) == [0, 1]


def test_replay_can_lengthen_a_lease_but_never_shorten_it() -> None:
    shell = Shell()
    shell.send(1)
    shell.lease(1, 30_000)
    events = [item for item in shell.log if isinstance(item, tuple)]
    cursor = open_cursor(is_fifo=False)
    cursor.appended(0, 1, next_offset=1, now_ms=0)
    offset, number, data, _ = events[0]
    cursor.apply(decode(number, data), offset=offset, now_ms=500_000)
    assert cursor.stats(now_ms=529_999).in_flight == 1
    assert cursor.stats(now_ms=530_000).in_flight == 0


def test_delay_buckets_are_bounded_whatever_the_clock_does() -> None:
    buckets = DelayBuckets(by_append=False)
    for second in range(10 * BUCKETS_MAX):
        buckets.add(900_000, appended_at_ms=second * 1_000, now_ms=0)
    assert len(buckets) == BUCKETS_MAX
    assert buckets.count(now_ms=900_000) == 0
    assert len(buckets) == 0
