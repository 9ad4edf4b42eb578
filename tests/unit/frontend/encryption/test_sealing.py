"""The stage that seals and opens, over a real store and a real key ring: which topics, which
messages, and what becomes of those that do not open."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.frontend.memory import MemoryCatalog, MemoryClock
from tests.unit.frontend_kafka.rig import Rig, batch
from tests.unit.frontend_kafka.test_produce import codes
from tests.unit.frontend_kafka.test_produce import request as produce
from tests.unit.record.checks import check

from penstock.frontend.encryption.content import NONCE_BYTES, seal_message
from penstock.frontend.encryption.sealing import QUARANTINED_MAX, Sealing
from penstock.metadata.security.data_keys import DataKey, DataKeys
from penstock.metadata.sqlite import SqliteStore
from penstock.model.errors import InvalidRequest
from penstock.model.message import Delivery, Message, Record
from penstock.model.ports import Acquired, Fetched, StreamEnds
from penstock.model.topic import Kind, QueueSettings, Topic
from penstock.node.keys.keyring import MasterKeyRing
from penstock.record.batch import ATTR_SEALED, encode_batch, parse_header, split_batches
from penstock.record.compression import Codec
from penstock.record.record import encode_record, iter_records
from penstock.telemetry.metrics import Meter
from penstock.wire.kafka.faults import ErrorCode

ENDS = StreamEnds(0, 100, 100)


def new_topic(kind: Kind = Kind.STANDARD, **settings: Any) -> Topic:
    return Topic(
        topic_id=os.urandom(16).hex(),
        account="000000000000",
        region="us-east-1",
        name="orders",
        kind=kind,
        partition_count=1,
        created_at_ms=0,
        modified_at_ms=0,
        receipt_key=b"r" * 32,
        settings=QueueSettings(**settings),
    )


class Stage:
    def __init__(self, store: SqliteStore) -> None:
        self.clock = MemoryClock()
        self.meter = Meter()
        self.keys = DataKeys(
            store,
            MasterKeyRing(b"m" * 32),
            MemoryCatalog(),
            clock=self.clock,
            entropy=os.urandom,
        )
        self.sealing = self.new_sealing()

    def new_sealing(self, *, is_default: bool = False) -> Sealing:
        return Sealing(
            self.keys,
            clock=self.clock,
            entropy=os.urandom,
            meter=self.meter,
            is_default=is_default,
        )


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    store = await SqliteStore.open(tmp_path / "metadata.db")
    stage = Stage(store)
    await stage.keys.start()
    yield stage
    await stage.keys.stop()
    await store.close()


def delivery(offset: int, message: Message) -> Delivery:
    return Delivery(0, Record(offset, 5, message), 1, 1, 5)


def changed(message: Message) -> Message:
    body = message.body
    return msgspec.structs.replace(message, body=body[:-1] + bytes([body[-1] ^ 1]))


async def bodies(sealing: Sealing, topic: Topic, *messages: Message) -> list[bytes]:
    given = [delivery(offset, message) for offset, message in enumerate(messages)]
    return [one.record.message.body for one in await sealing.opened(topic, given)]


async def test_with_a_key_at_hand_a_message_is_sealed_without_waiting(stage: Stage) -> None:
    topic = new_topic(is_sse_managed=True)
    message = Message(b"i" * 16, b"hello", group="g", sender="me")
    assert stage.sealing.sealed(topic, message) is None, "no key yet: that takes the store"
    await stage.sealing.seal(topic, message)
    sealed = stage.sealing.sealed(topic, message)
    assert sealed is not None
    assert sealed.is_sealed
    assert b"hello" not in sealed.body
    assert await bodies(stage.sealing, topic, sealed) == [b"hello"]


# ── Which topics ─────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("settings", "is_on", "is_on_by_default"),
    [
        ({}, False, True),
        ({"is_sse_managed": True}, True, True),
        ({"is_sse_managed": False}, False, False),
        ({"is_sse_managed": False, "kms_key": "alias/k"}, True, True),
        ({"kms_key": "alias/k"}, True, True),
    ],
)
async def test_a_topic_is_encrypted_when_it_says_so_or_else_as_the_node_does(
    stage: Stage, settings: dict[str, Any], is_on: bool, is_on_by_default: bool
) -> None:
    topic = new_topic(**settings)
    assert stage.sealing.is_on(topic) is is_on
    assert stage.new_sealing(is_default=True).is_on(topic) is is_on_by_default


# ── Messages ─────────────────────────────────────────────────────────────────────────────────
async def test_sealed_and_plain_messages_are_delivered_side_by_side(stage: Stage) -> None:
    topic = new_topic()
    one = Message(os.urandom(16), b"one")
    two = Message(os.urandom(16), b"two")
    sealed = await stage.sealing.seal(topic, two)
    assert await bodies(stage.sealing, topic, one, sealed) == [b"one", b"two"]
    given = [delivery(0, one)]
    assert await stage.sealing.opened(topic, given) is given


async def test_no_nonce_comes_twice(stage: Stage) -> None:
    topic, message = new_topic(), Message(os.urandom(16), b"x")
    sealed = [(await stage.sealing.seal(topic, message)).body for _ in range(10_000)]
    assert len({body[25 : 25 + NONCE_BYTES] for body in sealed}) == 10_000
    assert len({body[:25] for body in sealed}) == 1


async def test_what_does_not_open_is_left_out_counted_and_logged_once(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic()
    good = await stage.sealing.seal(topic, Message(os.urandom(16), b"good"))
    bad = changed(await stage.sealing.seal(topic, Message(os.urandom(16), b"planted-secret")))
    for _ in range(3):
        assert await bodies(stage.sealing, topic, good, bad, good) == [b"good", b"good"]
    assert stage.meter.messages_quarantined == 1
    [line] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert line.__dict__["offset"] == 1
    assert "planted" not in str(line.__dict__)
    assert b"penstock_messages_quarantined_total 1\n" in stage.meter.render()


async def test_a_flood_of_bad_messages_is_counted_but_not_logged_one_by_one(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic()
    bad = changed(await stage.sealing.seal(topic, Message(os.urandom(16), b"x")))
    count = QUARANTINED_MAX + 10
    for offset in range(count):
        assert await stage.sealing.open(topic, 0, offset, bad) is None
    assert stage.meter.messages_quarantined == count
    assert len(caplog.records) == 1
    stage.clock.now_ms += 1_000
    await stage.sealing.open(topic, 0, count, bad)
    assert len(caplog.records) == 2


async def test_a_message_sealed_for_another_tenant_or_by_nobody_is_refused(stage: Stage) -> None:
    topic = new_topic()
    theirs = msgspec.structs.replace(new_topic(), account="999999999999")
    foreign = await stage.sealing.seal(theirs, Message(os.urandom(16), b"x"))
    own = DataKey(bytes.fromhex(topic.topic_id) + os.urandom(8), topic.account, os.urandom(32))
    forged = seal_message(Message(os.urandom(16), b"x"), own, os.urandom(NONCE_BYTES))
    short = Message(os.urandom(16), b"short", is_sealed=True)
    assert await bodies(stage.sealing, topic, foreign, forged, short) == []
    assert stage.meter.messages_quarantined == 3


async def test_a_dead_letter_opens_in_another_queue_and_after_a_new_key(stage: Stage) -> None:
    topic, dead = new_topic(), new_topic()
    sealed = await stage.sealing.seal(topic, Message(os.urandom(16), b"letter", group="g"))
    await stage.sealing.rotate(msgspec.structs.replace(topic, settings=QueueSettings(kms_key="k")))
    moved = msgspec.structs.replace(sealed, message_id=os.urandom(16), attempts=3)
    assert await bodies(stage.sealing, dead, moved) == [b"letter"]


async def test_a_key_is_not_replaced_where_nothing_is_sealed(stage: Stage) -> None:
    with pytest.raises(InvalidRequest):
        await stage.sealing.rotate(new_topic())


# ── Batches ──────────────────────────────────────────────────────────────────────────────────
async def encrypted_stream(rig: Rig, stage: Stage, name: str = "t", **more: object) -> Topic:
    rig.context.sealing = stage.sealing
    topic = await rig.topic(name)

    def change(before: Topic) -> Topic:
        return before.with_settings(now_ms=0, is_sse_managed=True, **more)

    return await rig.catalog.change(topic.account, topic.region, name, change)


async def test_a_produced_batch_is_stored_sealed_and_fetched_as_it_was(stage: Stage) -> None:
    rig = Rig()
    topic = await encrypted_stream(rig, stage)
    first = batch(b"planted", b"two", producer_id=5, base_sequence=0)
    assert await codes(rig, produce("t", (0, first))) == [0]
    assert await codes(rig, produce("t", (0, batch(b"planted" * 99, attributes=Codec.GZIP)))) == [0]
    stored = rig.partition(topic).batches
    assert all(check(each).attributes == ATTR_SEALED for each in stored)
    assert not any(b"planted" in each for each in stored)
    assert parse_header(stored[0])[9:] == parse_header(first)[9:]
    buffer = b"".join(stored)
    fetched = Fetched(ENDS, [memoryview(buffer)], 3, 3)
    assert stage.sealing.may_hold(topic)
    opened = await stage.sealing.opened_fetch(topic, 0, fetched)
    assert opened.record_count == 3
    read = [record for one in split_batches(opened.buffers) for record in iter_records(one)]
    assert [record.value for record in read] == [b"planted", b"two", b"planted" * 99]
    assert [record.offset for record in read] == [0, 1, 2]


async def test_a_batch_that_cannot_be_taken_apart_or_grows_too_large_is_refused(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    topic = await encrypted_stream(rig, stage)
    nonsense = encode_batch(
        [b"\xff" * 30], base_offset=0, leader_epoch=-1, base_timestamp=0, max_timestamp=0
    )
    assert await codes(rig, produce("t", (0, nonsense))) == [ErrorCode.INVALID_RECORD]
    sealed = encode_batch(
        [encode_record(offset_delta=0, timestamp_delta=0, key=None, value=b"x")],
        base_offset=0,
        leader_epoch=-1,
        base_timestamp=0,
        max_timestamp=0,
        attributes=ATTR_SEALED,
    )
    assert await codes(rig, produce("t", (0, sealed))) == [ErrorCode.INVALID_RECORD]
    monkeypatch.setattr("penstock.frontend.encryption.sealing.BATCH_BYTES_MAX", 5_000)
    large = batch(b"x" * 10_000, attributes=Codec.GZIP)
    assert await codes(rig, produce("t", (0, large))) == [ErrorCode.MESSAGE_TOO_LARGE]
    assert not rig.partition(topic).batches


async def test_a_stream_without_keys_is_not_looked_into_but_a_queue_is(stage: Stage) -> None:
    assert not stage.sealing.may_hold(new_topic(Kind.STREAM))
    assert stage.sealing.may_hold(new_topic())  # it may be somebody's dead-letter queue
    fetched = Fetched(ENDS, [batch(b"plain")], 1, 1)
    assert await stage.sealing.opened_fetch(new_topic(), 0, fetched) is fetched


async def sealed_values(stage: Stage, topic: Topic, *values: bytes) -> bytes:
    given = batch(*values)
    [(done, _)] = await stage.sealing.seal_batches(
        topic, [(memoryview(given), parse_header(given))]
    )
    return bytes(done)


def broken(sealed: bytes, *, record: int) -> bytes:
    value = [one.value for one in iter_records(sealed)][record]
    assert value is not None
    return sealed.replace(value, value[:-1] + bytes((value[-1] ^ 1,)))


async def test_a_reader_by_offset_finds_a_gap_where_a_record_does_not_open(stage: Stage) -> None:
    topic = new_topic(Kind.STREAM, is_sse_managed=True)
    sealed = broken(await sealed_values(stage, topic, b"a", b"b", b"c"), record=1)
    plain = batch(b"d")
    fetched = Fetched(ENDS, [sealed + plain], 4, 4)
    opened = await stage.sealing.opened_fetch(topic, 0, fetched)
    first, second = split_batches(opened.buffers)
    assert [(r.offset, r.value) for r in iter_records(first)] == [(0, b"a"), (2, b"c")]
    assert check(first).last_offset_delta == 2
    assert second == plain
    assert opened.record_count == 3
    assert stage.meter.messages_quarantined == 1


async def test_a_member_of_a_share_group_is_not_told_of_what_does_not_open(stage: Stage) -> None:
    topic = new_topic(Kind.STREAM, is_sse_managed=True)
    share = msgspec.structs.replace(new_topic(), source_id=topic.topic_id)
    sealed = broken(await sealed_values(stage, topic, b"a", b"b", b"c"), record=0)
    picks = [(0, 11, 1), (2, 12, 1)]
    opened = await stage.sealing.opened_share(share, 0, Acquired(0, [sealed], picks))
    assert list(opened.picks) == [(2, 12, 1)]
    [only] = opened.batches
    assert [r.value for r in iter_records(only)] == [b"b", b"c"]
    plain = Acquired(0, [batch(b"p")], picks)
    assert await stage.sealing.opened_share(share, 0, plain) is plain


async def test_a_sealed_batch_of_nonsense_is_passed_over_whole(stage: Stage) -> None:
    topic = new_topic(Kind.STREAM, is_sse_managed=True)
    sealed = await sealed_values(stage, topic, b"a", b"b")
    header = parse_header(sealed)
    nonsense = encode_batch(
        [b"\xff" * 20, b"\xff" * 20],
        base_offset=header.base_offset,
        leader_epoch=0,
        base_timestamp=0,
        max_timestamp=0,
        attributes=ATTR_SEALED,
    )
    opened = await stage.sealing.opened_fetch(topic, 0, Fetched(ENDS, [nonsense], 2, 2))
    [only] = split_batches(opened.buffers)
    left = check(only)
    assert (left.count, left.last_offset_delta, left.attributes) == (0, 1, 0)
    assert stage.meter.messages_quarantined == 2
