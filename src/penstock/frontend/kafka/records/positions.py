"""Handles ListOffsets, OffsetForLeaderEpoch and DeleteRecords.

Negative timestamps of ListOffsets have special meanings, each from a certain version on:

    -1 the end        -2 the start        -3 the newest record
    -4 the start on this node: the same as -2
    -5, -6 tiered storage: not supported, so no offset"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Final

from penstock.frontend.kafka import checks
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import partition_code
from penstock.frontend.kafka.offsets_view import log_of
from penstock.frontend.kafka.permissions import Operation, on_cluster, reaches_topic
from penstock.model.calls import DeleteRecords, Ends, FindTime, MaxTimestamp
from penstock.model.errors import PenstockError
from penstock.model.stream import settings_of
from penstock.model.topic import Topic
from penstock.net.slices import portions
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import READ_COMMITTED
from penstock.wire.kafka.generated import delete_records as delete_wire
from penstock.wire.kafka.generated import list_offsets as list_wire
from penstock.wire.kafka.generated import offset_for_leader_epoch as epoch_wire

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
_KNOWN_FROM: Final[Mapping[int, int]] = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
TO_THE_END = -1
_UNKNOWN = -1


async def list_offsets(call: KafkaCall, request: list_wire.Request) -> list_wire.Response:
    is_committed = request.isolation_level == READ_COMMITTED
    # As in Kafka, partitions that the request names twice are rejected.
    seen: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    slices = call.slices
    for each in request.topics:
        if slices.is_over:
            await slices.next()
        for one in each.partitions:
            place = (each.name, one.partition_index)
            (twice if place in seen else seen).add(place)
    topics = []
    for each in request.topics:
        if slices.is_over:
            await slices.next()
        topic = checks.locate_name(call, Operation.DESCRIBE, each.name)
        partitions = []
        for one in each.partitions:
            if slices.is_over:
                await slices.next()
            index = one.partition_index
            partitions.append(
                list_wire.ListOffsetsPartitionResponse(index, ErrorCode.INVALID_REQUEST)
                if (each.name, index) in twice
                else await _listed(call.context, call.version, topic, one, is_committed)
            )
        topics.append(list_wire.ListOffsetsTopicResponse(each.name, partitions))
    return list_wire.Response(topics=topics)


async def _listed(
    context: KafkaContext,
    version: int,
    topic: Topic | ErrorCode,
    requested: list_wire.ListOffsetsPartition,
    is_committed: bool,
) -> list_wire.ListOffsetsPartitionResponse:
    index, wanted = requested.partition_index, requested.timestamp
    reply = list_wire.ListOffsetsPartitionResponse
    if isinstance(topic, ErrorCode):
        return reply(index, topic)
    if not checks.has_partition(topic, index):
        return reply(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if wanted < 0 and version < _KNOWN_FROM.get(wanted, version + 1):
        return reply(index, ErrorCode.UNSUPPORTED_VERSION)
    topic, broker, timestamp = log_of(context, topic), context.broker, -1
    try:
        ends = await broker.call(Ends(topic, index))
        code = checks.epoch_error(requested.current_leader_epoch, ends.leader_epoch)
        if not code and not ends.is_settled and wanted < 0:
            code = ErrorCode.OFFSET_NOT_AVAILABLE  # the new leader may not know the end yet
        if code:
            return reply(index, code)
        end = ends.last_stable_offset if is_committed else ends.high_watermark
        if wanted == LATEST:
            offset = end
        elif wanted in (EARLIEST, EARLIEST_LOCAL):
            offset = ends.start_offset
        elif wanted in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            offset = _UNKNOWN
        elif wanted == MAX_TIMESTAMP:
            offset, timestamp = await broker.call(MaxTimestamp(topic, index))
        else:
            offset, timestamp = await broker.call(FindTime(topic, index, wanted))
            if offset >= end:
                offset, timestamp = _UNKNOWN, -1
    except PenstockError as error:
        return reply(index, partition_code(error))
    return reply(index, 0, timestamp, offset, ends.leader_epoch if offset >= 0 else -1)


async def epoch_ends(call: KafkaCall, request: epoch_wire.Request) -> epoch_wire.Response:
    """Return the end offsets of leader epochs. After a change of leader, readers need them to find
    out whether records that they have read were truncated."""
    is_node = on_cluster(call, Operation.CLUSTER_ACTION)

    def find(each: epoch_wire.OffsetForLeaderTopic) -> Topic | ErrorCode:
        found = checks.find_name(call.context, each.topic) if is_node else None
        if found is not None and reaches_topic(call, Operation.DESCRIBE, found):
            return found
        if is_node and found is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return checks.locate_name(call, Operation.DESCRIBE, each.topic)

    kind, reply = epoch_wire.OffsetForLeaderTopicResult, partial(_epoch_end, call.context)
    return epoch_wire.Response(topics=await call.by_topic(request.topics, kind, reply, find))


async def _epoch_end(
    context: KafkaContext, topic: Topic | ErrorCode, requested: epoch_wire.OffsetForLeaderPartition
) -> epoch_wire.EpochEndOffset:
    index = requested.partition
    if isinstance(topic, ErrorCode):
        return epoch_wire.EpochEndOffset(topic, index)
    if not checks.has_partition(topic, index):
        return epoch_wire.EpochEndOffset(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, index)
    topic = log_of(context, topic)
    try:
        ends = await context.broker.call(Ends(topic, index))
        code = checks.epoch_error(requested.current_leader_epoch, ends.leader_epoch)
        if code or not 0 <= requested.leader_epoch <= ends.leader_epoch:
            # The epoch never existed.
            return epoch_wire.EpochEndOffset(code, index)
        if known := context.brokers.epoch_end(topic, index, requested.leader_epoch):
            return epoch_wire.EpochEndOffset(0, index, *known)
    except PenstockError as error:
        return epoch_wire.EpochEndOffset(partition_code(error), index)
    # A single node never truncates its log, nor did the cluster whose backup it may have.
    return epoch_wire.EpochEndOffset(0, index, requested.leader_epoch, ends.high_watermark)


async def delete_records(call: KafkaCall, request: delete_wire.Request) -> delete_wire.Response:
    """Delete all records before an offset. Only streams with ``cleanup.policy=delete`` allow it."""
    topics = []
    deadline = asyncio.get_running_loop().time() + request.timeout_ms / 1_000
    async for each in call.slices.each(request.topics):
        topic = checks.locate_name(call, Operation.DELETE, each.name)
        partitions: list[delete_wire.DeleteRecordsPartitionResult] = []
        # Partitions wait for their replicas concurrently, because they share one timeout.
        async for some in call.slices.each(portions(each.partitions)):
            partitions += await asyncio.gather(
                *(_deleted(call.context, topic, one, deadline) for one in some)
            )
        topics.append(delete_wire.DeleteRecordsTopicResult(each.name, partitions))
    return delete_wire.Response(topics=topics)


async def _deleted(
    context: KafkaContext,
    topic: Topic | ErrorCode,
    requested: delete_wire.DeleteRecordsPartition,
    deadline: float,
) -> delete_wire.DeleteRecordsPartitionResult:
    index = requested.partition_index
    if isinstance(topic, ErrorCode):
        code = topic
    elif not checks.has_partition(topic, index):
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif checks.is_internal_topic(topic):
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    elif topic.is_queue or not settings_of(topic, context.defaults).is_deleted:
        code = ErrorCode.POLICY_VIOLATION
    elif requested.offset < TO_THE_END:
        code = ErrorCode.OFFSET_OUT_OF_RANGE
    else:
        try:
            async with asyncio.timeout_at(deadline):
                start = await context.broker.call(DeleteRecords(topic, index, requested.offset))
            return delete_wire.DeleteRecordsPartitionResult(index, start)
        except TimeoutError:
            # Some replica has not stored the new start offset. It may still do so.
            code = ErrorCode.REQUEST_TIMED_OUT
        except PenstockError as error:
            code = partition_code(error)
    return delete_wire.DeleteRecordsPartitionResult(index, _UNKNOWN, code)
