"""Produce: each partition for itself, checks before the log, silence for acks=0."""

import asyncio

import pytest
from tests.unit.frontend_kafka.rig import NOW_MS, Rig, batch

from penstock.frontend.kafka.pipeline import DECODED_AT_ONCE_MAX, is_produce
from penstock.frontend.kafka.transactions.producers import transactional_code
from penstock.model.errors import (
    DiskFull,
    Overloaded,
    PenstockError,
    ProducerRefused,
    Throttled,
)
from penstock.model.topic import Kind
from penstock.net.kafka.listener import HangUp, KafkaConfig, KafkaListener
from penstock.record.batch import ATTR_CONTROL, ATTR_TRANSACTIONAL
from penstock.wire.kafka.apis import APIS, PRODUCE, encode_request_frame
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.primitives import ZERO_UUID
from penstock.wire.kafka.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
    decode_produce_response,
    encode_produce_request,
)

HOUR_MS = 3_600_000


def request(
    name: str,
    *partitions: tuple[int, bytes | None],
    topic_id: bytes = ZERO_UUID,
    acks: int = -1,
    transactional_id: str | None = None,
) -> ProduceRequest:
    asked = [ProducePartition(index, records) for index, records in partitions]
    return ProduceRequest(transactional_id, acks, 1_000, [ProduceTopic(name, topic_id, asked)])


async def codes(rig: Rig, asked: ProduceRequest, version: int = 9) -> list[int]:
    answer = await rig.ask(PRODUCE, version, asked)
    return [one.error_code for topic in answer.topics for one in topic.partitions]


@pytest.mark.parametrize("version", range(3, 13))
async def test_a_batch_is_appended_and_its_offset_answered(version: int) -> None:
    rig = Rig()
    topic = await rig.topic("t")
    await rig.ask(PRODUCE, version, request("t", (0, batch(b"a", b"b"))))
    answer = await rig.ask(PRODUCE, version, request("t", (0, batch(b"c"))))
    [one] = answer.topics[0].partitions
    assert (one.error_code, one.base_offset, one.log_append_time_ms) == (0, 2, -1)
    assert rig.partition(topic).end_offset == 3
    assert rig.meter.sent_count == 3


async def test_from_version_13_on_a_topic_is_its_id() -> None:
    rig = Rig()
    topic = await rig.topic("t")
    topic_id = bytes.fromhex(topic.topic_id)
    assert await codes(rig, request("", (0, batch(b"a")), topic_id=topic_id), 13) == [0]
    gone = request("", (0, batch(b"a")), topic_id=bytes(15) + b"\xff")
    assert await codes(rig, gone, 13) == [ErrorCode.UNKNOWN_TOPIC_ID]


async def test_an_id_of_another_account_is_not_found() -> None:
    rig = Rig()
    topic = await rig.topic("t", account="111111111111")
    asked = request("", (0, batch(b"a")), topic_id=bytes.fromhex(topic.topic_id))
    assert await codes(rig, asked, 13) == [ErrorCode.UNKNOWN_TOPIC_ID]


async def test_one_bad_partition_does_not_stop_the_others() -> None:
    rig = Rig()
    topic = await rig.topic("t", partitions=3)
    rig.partition(topic, 1).broken = DiskFull("no room")
    damaged = bytearray(batch(b"x"))
    damaged[-1] ^= 1
    asked = request(
        "t", (0, batch(b"a")), (1, batch(b"b")), (2, bytes(damaged)), (3, batch(b"c")), (2, None)
    )
    assert await codes(rig, asked) == [
        0,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_RECORD,
    ]
    assert rig.partition(topic, 0).end_offset == 1
    assert rig.partition(topic, 2).end_offset == 0


async def test_what_may_be_tried_again_is_answered_so_that_every_client_does() -> None:
    rig = Rig()
    topic = await rig.topic("t", partitions=2)
    rig.partition(topic, 0).broken = Overloaded("out of service")
    rig.partition(topic, 1).broken = Throttled("too much")
    asked = request("t", (0, batch(b"a")), (1, batch(b"b")))
    assert await codes(rig, asked) == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT]


async def test_partitions_wait_for_their_commit_together() -> None:
    rig = Rig()
    await rig.topic("t", partitions=3)
    rig.streams.may_commit.clear()
    parts = [(index, batch(b"a")) for index in range(3)]
    asking = asyncio.create_task(codes(rig, request("t", *parts)))
    while rig.streams.appending < 3:
        await asyncio.sleep(0)
    assert not asking.done()
    rig.streams.may_commit.set()
    assert await asking == [0, 0, 0]


async def test_a_request_decoded_in_a_thread_keeps_its_place_among_others() -> None:
    """One with many partitions and small ones behind it, all sent at once."""
    rig = Rig()
    topic = await rig.topic("t")
    many = DECODED_AT_ONCE_MAX + 1
    listener = KafkaListener(rig.frontend.answer, config=KafkaConfig(), outlives=is_produce)
    bound = await listener.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(bound.rpartition(":")[2]))
    for correlation_id in range(3):
        records = [(0, batch(b"%d" % correlation_id))]
        if correlation_id == 0:
            records += [(index, batch(b"x")) for index in range(1, many)]
        body = encode_produce_request(request("t", *records), 9)
        writer.write(
            encode_request_frame(
                APIS[PRODUCE], 9, correlation_id=correlation_id, client_id="me", body=body
            )
        )
    for correlation_id in range(3):
        size = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), 5), "big")
        reply = await asyncio.wait_for(reader.readexactly(size), 5)
        assert int.from_bytes(reply[:4], "big") == correlation_id
        results = decode_produce_response(reply, 5, 9).topics[0].partitions
        assert (results[0].error_code, results[0].base_offset) == (0, correlation_id)
        assert len(results) == (many if correlation_id == 0 else 1)
    assert rig.partition(topic).end_offset == 3
    writer.close()
    await listener.drain(seconds_max=1.0)


async def test_requests_sent_ahead_wait_for_their_commits_together() -> None:
    rig = Rig()
    await rig.topic("t")
    rig.streams.may_commit.clear()
    listener = KafkaListener(rig.frontend.answer, config=KafkaConfig(), outlives=is_produce)
    bound = await listener.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(bound.rpartition(":")[2]))
    for correlation_id in range(5):
        writer.write(
            encode_request_frame(
                APIS[PRODUCE],
                9,
                correlation_id=correlation_id,
                client_id="me",
                body=encode_produce_request(request("t", (0, batch(b"%d" % correlation_id))), 9),
            )
        )
    async with asyncio.timeout(5):
        while rig.streams.appending < 5:
            await asyncio.sleep(0.001)
    rig.streams.may_commit.set()
    for correlation_id in range(5):
        size = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), 5), "big")
        reply = await asyncio.wait_for(reader.readexactly(size), 5)
        assert int.from_bytes(reply[:4], "big") == correlation_id
        answer = decode_produce_response(reply, 5, 9)
        assert answer.topics[0].partitions[0].base_offset == correlation_id
    writer.close()
    await listener.drain(seconds_max=1.0)


@pytest.mark.parametrize("acks", [0, 1, -1])
async def test_acks_reach_the_log(acks: int) -> None:
    rig = Rig()
    await rig.topic("t")
    answer = await rig.ask(PRODUCE, 9, request("t", (0, batch(b"a")), acks=acks))
    assert rig.streams.acks == [acks]
    assert (answer is None) == (acks == 0)


async def test_an_error_with_acks_0_ends_the_connection() -> None:
    rig = Rig()
    with pytest.raises(HangUp, match="UNKNOWN_TOPIC_OR_PARTITION"):
        await rig.ask(PRODUCE, 9, request("t", (0, batch(b"a")), acks=0))


async def test_other_acks_do_not_exist() -> None:
    rig = Rig()
    topic = await rig.topic("t")
    asked = request("t", (0, batch(b"a")), acks=2)
    assert await codes(rig, asked) == [ErrorCode.INVALID_REQUIRED_ACKS]
    assert rig.partition(topic).end_offset == 0


async def test_a_produce_makes_no_topic() -> None:
    rig = Rig()
    asked = request("new", (0, batch(b"a")))
    assert await codes(rig, asked) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert rig.catalog.all_topics() == []
    bad = request("a/b", (0, batch(b"a")))
    assert await codes(rig, bad) == [ErrorCode.INVALID_TOPIC_EXCEPTION]


async def test_a_standard_queue_takes_batches_and_a_fifo_queue_does_not() -> None:
    rig = Rig()
    await rig.topic("q", kind=Kind.STANDARD)
    await rig.topic("q.fifo", kind=Kind.FIFO)
    assert await codes(rig, request("q", (0, batch(b"a")))) == [0]
    answer = await rig.ask(PRODUCE, 9, request("q.fifo", (0, batch(b"a"))))
    [one] = answer.topics[0].partitions
    assert one.error_code == ErrorCode.INVALID_REQUEST
    assert one.error_message == "A FIFO queue does not accept Kafka records; use SendMessage."


async def test_a_fifo_stream_takes_neither_batches_nor_transactions() -> None:
    rig = Rig()
    topic = await rig.topic("sns.t.fifo", kind=Kind.FIFO_STREAM)
    answer = await rig.ask(PRODUCE, 9, request("sns.t.fifo", (0, batch(b"a"))))
    [one] = answer.topics[0].partitions
    assert one.error_code == ErrorCode.INVALID_REQUEST
    assert one.error_message == "A FIFO topic does not accept Kafka records; use Publish."
    assert transactional_code(topic, 0) is ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_what_the_node_keeps_for_itself_is_not_written_by_clients() -> None:
    rig = Rig()
    topic = await rig.topic("__groups")
    await rig.topic("__queue", kind=Kind.STANDARD)
    refused = request("__groups", (0, batch(b"a")))
    assert await codes(rig, refused) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    by_id = request("", (0, batch(b"a")), topic_id=bytes.fromhex(topic.topic_id))
    assert await codes(rig, by_id, 13) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert rig.partition(topic).end_offset == 0
    assert await codes(rig, request("__queue", (0, batch(b"a")))) == [0]


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (batch(b"a", attributes=ATTR_CONTROL), ErrorCode.INVALID_RECORD),
        (
            batch(b"a", attributes=ATTR_TRANSACTIONAL, producer_id=1, base_sequence=0),
            ErrorCode.INVALID_TXN_STATE,
        ),
        (batch(bytes(1_048_589)), ErrorCode.MESSAGE_TOO_LARGE),
        (batch(b"a", at_ms=NOW_MS + 2 * HOUR_MS), ErrorCode.INVALID_TIMESTAMP),
    ],
)
async def test_batches_that_break_a_rule_do_not_reach_the_log(
    records: bytes, code: ErrorCode
) -> None:
    rig = Rig()
    topic = await rig.topic("t")
    assert await codes(rig, request("t", (0, records))) == [code]
    assert rig.partition(topic).end_offset == 0


async def test_a_topic_sets_its_own_bounds() -> None:
    rig = Rig()
    configs = {
        "max.message.bytes": "100",
        "message.timestamp.after.max.ms": str(3 * HOUR_MS),
        "message.timestamp.before.max.ms": str(HOUR_MS),
    }
    await rig.topic("t", configs=configs)
    large = request("t", (0, batch(bytes(100))))
    assert await codes(rig, large) == [ErrorCode.MESSAGE_TOO_LARGE]
    ahead = request("t", (0, batch(b"a", at_ms=NOW_MS + 2 * HOUR_MS)))
    assert await codes(rig, ahead) == [0]
    behind = request("t", (0, batch(b"a", at_ms=NOW_MS - 2 * HOUR_MS)))
    assert await codes(rig, behind) == [ErrorCode.INVALID_TIMESTAMP]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ProducerRefused(45, "a gap"), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (ProducerRefused(47, "an old epoch"), ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
async def test_a_refused_producer_gets_the_code_of_the_refusal(
    error: PenstockError, code: ErrorCode
) -> None:
    rig = Rig()
    topic = await rig.topic("t")
    rig.partition(topic).broken = error
    records = batch(b"a", producer_id=1, base_sequence=5)
    assert await codes(rig, request("t", (0, records))) == [code]
