"""Rules about single records: keys in compacted topics, timestamps near the present."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.frontend_kafka.rig import NOW_MS, Rig

from penstock.model.errors import NotLeader
from penstock.model.topic import Topic
from penstock.record.batch import encode_batch
from penstock.record.compression import Codec
from penstock.record.record import encode_record
from penstock.wire.kafka.apis import PRODUCE
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.primitives import ZERO_UUID
from penstock.wire.kafka.produce import ProducePartition, ProduceRequest, ProduceTopic

COMPACTED = {"cleanup.policy": "compact,delete"}
HOUR_MS = 3_600_000
VERSIONS = (7, 8, 13)
KEYLESS = "Compacted topic cannot accept message without key in topic partition t-0"
UNTIMELY = "One or more records have been rejected due to invalid timestamp"
GOOD: tuple[bytes | None, int] = (b"k", NOW_MS)


def batch(*records: tuple[bytes | None, int], codec: Codec = Codec.NONE) -> bytes:
    """A batch of (key, timestamp)."""
    base_ms = records[0][1]
    return encode_batch(
        [
            encode_record(
                offset_delta=place, timestamp_delta=at_ms - base_ms, key=key, value=b"v", headers=()
            )
            for place, (key, at_ms) in enumerate(records)
        ],
        base_offset=0,
        leader_epoch=-1,
        base_timestamp=base_ms,
        max_timestamp=max(at_ms for _, at_ms in records),
        attributes=codec,
    )


async def produce(rig: Rig, version: int, topic: Topic, *batches: bytes) -> list[Any]:
    """One batch for each partition."""
    partitions = [ProducePartition(index, each) for index, each in enumerate(batches)]
    topic_id = bytes.fromhex(topic.topic_id) if version >= 13 else ZERO_UUID
    name = "" if version >= 13 else topic.name
    request = ProduceRequest(None, -1, 1_000, [ProduceTopic(name, topic_id, partitions)])
    (found,) = (await rig.ask(PRODUCE, version, request)).topics
    return list(found.partitions)


def errors_of(answer: Any) -> list[tuple[int, str]]:
    return [(error.batch_index, error.message) for error in answer.record_errors]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("codec", list(Codec))
async def test_a_compacted_topic_rejects_a_batch_with_keyless_records(
    version: int, codec: Codec
) -> None:
    rig = Rig()
    topic = await rig.topic("t", partitions=2, configs=COMPACTED)
    rig.partition(topic).start_offset = 7
    bad = batch((b"", NOW_MS), (None, NOW_MS), GOOD, (None, NOW_MS), codec=codec)
    refused, taken = await produce(rig, version, topic, bad, batch(GOOD, codec=codec))
    assert (taken.error_code, taken.base_offset) == (0, 0)
    assert refused.error_code == ErrorCode.INVALID_RECORD
    assert (refused.base_offset, refused.log_append_time_ms, refused.log_start_offset) == (
        -1,
        -1,
        7,
    )
    assert rig.partition(topic).batches == []
    if version >= 8:
        assert errors_of(refused) == [(1, KEYLESS), (3, KEYLESS)]
        assert refused.error_message == (
            "One or more records have been rejected due to 2 record errors in total, and only "
            "showing the first three errors at most: "
            f"[RecordError(batchIndex=1, message='{KEYLESS}'), "
            f"RecordError(batchIndex=3, message='{KEYLESS}')]"
        )


async def test_the_text_shows_three_errors_at_most() -> None:
    rig = Rig()
    topic = await rig.topic("t", configs=COMPACTED)
    (refused,) = await produce(rig, 8, topic, batch(*[(None, NOW_MS)] * 5))
    assert len(refused.record_errors) == 5
    assert "due to 5 record errors" in refused.error_message
    assert refused.error_message.count("RecordError(") == 3


async def test_other_topics_take_records_without_a_key() -> None:
    rig = Rig()
    topic = await rig.topic("t")
    (taken,) = await produce(rig, 8, topic, batch((None, NOW_MS)))
    assert taken.error_code == 0


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("codec", list(Codec))
async def test_every_record_outside_the_bounds_is_named(version: int, codec: Codec) -> None:
    rig = Rig()
    bounds = {
        "message.timestamp.before.max.ms": "1000",
        "message.timestamp.after.max.ms": "2000",
    }
    topic = await rig.topic("t", configs=bounds)
    old, late = NOW_MS - 1_001, NOW_MS + 2_001
    inside = [(b"k", NOW_MS - 1_000), (b"k", NOW_MS + 2_000), (b"k", -1)]
    bad = batch(GOOD, (None, old), *inside, (b"k", late), codec=codec)
    (refused,) = await produce(rig, version, topic, bad)
    assert (refused.error_code, refused.log_start_offset) == (ErrorCode.INVALID_TIMESTAMP, 0)
    if version >= 8:
        within = f"The timestamp should be within [{NOW_MS - 1_000}, {NOW_MS + 2_000}]"
        text = "Timestamp {} of message with offset {} is out of range. "
        assert errors_of(refused) == [
            (1, text.format(old, 1) + within),
            (5, text.format(late, 5) + within),
        ]
        assert refused.error_message == UNTIMELY
    (taken,) = await produce(rig, version, topic, batch(GOOD, *inside, codec=codec))
    assert taken.error_code == 0


async def test_by_default_only_records_of_the_future_are_rejected() -> None:
    rig = Rig()
    topic = await rig.topic("t")
    late = NOW_MS + HOUR_MS + 1
    ancient, refused = (1, NOW_MS + HOUR_MS), (NOW_MS, late)
    (taken,) = await produce(rig, 8, topic, batch(*[(None, at_ms) for at_ms in ancient]))
    assert taken.error_code == 0
    (refused_,) = await produce(rig, 8, topic, batch(*[(None, at_ms) for at_ms in refused]))
    assert refused_.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in errors_of(refused_)] == [1]


async def test_both_kinds_in_one_batch_are_reported_together() -> None:
    rig = Rig()
    topic = await rig.topic("t", configs=COMPACTED)
    late = NOW_MS + HOUR_MS + 1
    (refused,) = await produce(rig, 8, topic, batch((None, late), (b"k", late), (None, NOW_MS)))
    assert (refused.error_code, refused.error_message) == (ErrorCode.INVALID_TIMESTAMP, UNTIMELY)
    (first, second, third) = errors_of(refused)
    assert (first, third) == ((0, KEYLESS), (2, KEYLESS))
    assert second[1].startswith(f"Timestamp {late} of message with offset 1 is out of range.")


async def test_the_leaders_time_is_not_judged() -> None:
    rig = Rig()
    configs = {
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.before.max.ms": "1000",
    }
    topic = await rig.topic("t", configs=configs)
    (taken,) = await produce(rig, 8, topic, batch((None, 1), (None, NOW_MS * 2)))
    assert taken.error_code == 0


async def test_a_node_that_does_not_lead_says_so_instead() -> None:
    rig = Rig()
    topic = await rig.topic("t", configs=COMPACTED)
    rig.partition(topic).broken = NotLeader("t-0")
    (refused,) = await produce(rig, 8, topic, batch((None, NOW_MS)))
    assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert errors_of(refused) == []


async def test_a_reply_names_a_bounded_number_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.frontend.kafka.records.produce.RECORD_ERRORS_MAX", 5)
    rig = Rig()
    topic = await rig.topic("t", partitions=3, configs=COMPACTED)
    answers = await produce(rig, 8, topic, *[batch(*[(None, NOW_MS)] * 3)] * 3)
    assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_RECORD] * 3
    assert [len(answer.record_errors) for answer in answers] == [3, 2, 0]


async def test_a_batch_that_cannot_be_opened_is_rejected() -> None:
    rig = Rig()
    topic = await rig.topic("t", configs=COMPACTED)
    torn = encode_batch(
        [b"\x7f\x00"],
        base_offset=0,
        leader_epoch=-1,
        base_timestamp=NOW_MS,
        max_timestamp=NOW_MS,
    )
    (refused,) = await produce(rig, 8, topic, torn)
    assert refused.error_code == ErrorCode.INVALID_RECORD
    assert rig.partition(topic).batches == []
