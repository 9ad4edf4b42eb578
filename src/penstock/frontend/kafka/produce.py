"""Produce: whole batches into partitions, answered once they are committed.

Records stay closed: a batch is judged by its header and its checksum (``wire.kafka.batches``) and
handed on as the slice of the frame that it is. Each partition succeeds or fails for itself, and
all of them are under way at once, so that they share one sync.

A queue takes Kafka's records as well; the key of a record is its group. Not a FIFO queue: there
every message needs a group and a deduplication id, which only opening the records could tell.

With acks=0 the client reads no answer. All that can be done about an error is to hang up, which
makes it ask for metadata and begin again."""

import asyncio
from collections.abc import Sequence

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.new_topic import is_topic_name
from penstock.frontend.kafka.refusal import Refusal
from penstock.frontend.kafka.topics import code_for, has_partition, is_of_node, locate
from penstock.frontend.kafka.transaction_guard import check_transaction
from penstock.model.errors import PenstockError
from penstock.model.limits import BATCH_BYTES_MAX
from penstock.model.stream import LONG_MAX, StreamSettings, settings_of
from penstock.model.topic import Topic
from penstock.net.kafka import HangUp
from penstock.record.batch import ATTR_TRANSACTIONAL, BatchHeader
from penstock.record.malformed import MalformedBatch
from penstock.record.message import decode_batch
from penstock.wire.kafka.apis import PRODUCE
from penstock.wire.kafka.batches import BatchRefused, check_batches
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
)

_BY_ID_FROM = 13
ACKS = (-1, 0, 1)
NO_ANSWER = 0
_NO_TIMESTAMP = -1


async def run(
    context: KafkaContext, call: KafkaCall, asked: ProduceRequest
) -> ProduceResponse | None:
    refusal = _refusal_of_all(asked)
    located = [_target(context, call, each.name, each.topic_id, refusal) for each in asked.topics]
    jobs = [
        _appended(context, call.version, asked, target, partition)
        for each, target in zip(asked.topics, located, strict=True)
        for partition in each.partitions
    ]
    # The usual request is for one partition, and has no use for a task of its own.
    results = [await jobs[0]] if len(jobs) == 1 else await asyncio.gather(*jobs)
    if asked.acks == NO_ANSWER:
        _hang_up_on_error(results)
        return None
    answers = iter(results)
    return ProduceResponse(
        [
            ProduceTopicResponse(each.name, each.topic_id, [next(answers) for _ in each.partitions])
            for each in asked.topics
        ]
    )


def _refusal_of_all(asked: ProduceRequest) -> Refusal | None:
    if asked.acks not in ACKS:
        return Refusal(ErrorCode.INVALID_REQUIRED_ACKS)
    return None


def _target(
    context: KafkaContext, call: KafkaCall, name: str, topic_id: bytes, refusal: Refusal | None
) -> Topic | Refusal:
    """Where a topic's batches go, or why none of them goes anywhere."""
    if refusal is not None:
        return refusal
    is_id = call.version >= _BY_ID_FROM
    found = locate(context, name, topic_id, is_id=is_id)
    if isinstance(found, ErrorCode):
        if not is_id and not is_topic_name(name):
            return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION)
        return Refusal(found)
    if is_of_node(found):
        return Refusal(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Only the node itself writes to {found.name}."
        )
    if found.is_fifo:
        return Refusal(
            ErrorCode.INVALID_REQUEST, "Messages for a FIFO queue are sent through its own API."
        )
    return found


async def _appended(
    context: KafkaContext,
    version: int,
    asked: ProduceRequest,
    target: Topic | Refusal,
    partition: ProducePartition,
) -> ProducePartitionResponse:
    index = partition.index
    try:
        if isinstance(target, Refusal):
            raise target
        if not has_partition(target, index):
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        batches = _checked(context, version, target, partition)
        for _, header in batches:
            if header.attributes & ATTR_TRANSACTIONAL:
                await check_transaction(
                    context, version, asked.transactional_id, target, index, header
                )
        appended = await context.streams.append_batches(
            target, index, [batch for batch, _ in batches], acks=asked.acks
        )
    except Refusal as error:
        return _refused(index, error.code, error.message)
    except BatchRefused as error:
        return _refused(index, error.code, str(error))
    except PenstockError as error:
        return _refused(index, code_for(error), str(error))
    if not appended.is_duplicate:
        context.meter.sent(
            sum(header.count for _, header in batches), sum(len(batch) for batch, _ in batches)
        )
    return ProducePartitionResponse(
        index,
        base_offset=appended.base_offset,
        log_append_time_ms=appended.appended_at_ms,
        log_start_offset=appended.start_offset,
    )


def _checked(
    context: KafkaContext, version: int, topic: Topic, partition: ProducePartition
) -> list[tuple[memoryview, BatchHeader]]:
    settings = settings_of(topic)
    now_ms = context.clock.wall_ms()
    ahead_ms = LONG_MAX if settings.is_append_time else settings.timestamp_after_ms_max
    batches = check_batches(
        partition.records,
        version=version,
        bytes_max=min(settings.message_bytes_max, BATCH_BYTES_MAX),
        timestamp_max=min(now_ms + ahead_ms, LONG_MAX),
    )
    for batch, header in batches:
        _check_age(header, settings, now_ms)
        if topic.is_queue:
            _check_records(batch)
    return batches


def _check_records(batch: memoryview) -> None:
    """Consumers of a queue get messages one by one, so here, and only here, a batch is opened on
    its way in: one that cannot be would stand in the way of everything behind it."""
    try:
        decode_batch(bytes(batch), origin=b"")
    except MalformedBatch as error:
        raise Refusal(ErrorCode.INVALID_RECORD, str(error)) from None


def _check_age(header: BatchHeader, settings: StreamSettings, now_ms: int) -> None:
    """By the first record's time, which the header has; the others would have to be opened."""
    if settings.timestamp_before_ms_max == LONG_MAX or settings.is_append_time:
        return
    if _NO_TIMESTAMP < header.base_timestamp < now_ms - settings.timestamp_before_ms_max:
        raise Refusal(
            ErrorCode.INVALID_TIMESTAMP,
            f"Timestamp {header.base_timestamp} is older than the topic takes.",
        )


def _refused(index: int, code: ErrorCode, message: str) -> ProducePartitionResponse:
    return ProducePartitionResponse(index, code, error_message=message)


def _hang_up_on_error(results: Sequence[ProducePartitionResponse]) -> None:
    for result in results:
        if result.error_code:
            raise HangUp(f"acks=0 and {ErrorCode(result.error_code).name}")


ACTION = KafkaAction(PRODUCE, run)
