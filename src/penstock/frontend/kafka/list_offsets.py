"""ListOffsets: where a partition begins and ends, and which offset belongs to a time.

Negative times are questions of their own, each known from some version on:

    -1 the end        -2 the beginning        -3 the newest record
    -4 the beginning of what is on this node: with us the same as -2
    -5, -6 what is in, or on its way to, another tier: there is none, so no offset"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.offsets_view import log_of
from penstock.frontend.kafka.permissions import Operation
from penstock.frontend.kafka.topics import code_for, epoch_refusal, has_partition, locate_name
from penstock.model.errors import PenstockError
from penstock.model.ports import StreamEnds
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch_request import READ_COMMITTED
from penstock.wire.kafka.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

KEY = 2
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
_KNOWN_FROM: Final[Mapping[int, int]] = MappingProxyType(
    {
        LATEST: 0,
        EARLIEST: 0,
        MAX_TIMESTAMP: 7,
        EARLIEST_LOCAL: 8,
        LATEST_TIERED: 9,
        EARLIEST_PENDING_UPLOAD: 11,
    }
)
_NOWHERE = (-1, -1)


async def run(
    context: KafkaContext, call: KafkaCall, asked: ListOffsetsRequest
) -> ListOffsetsResponse:
    is_committed = asked.isolation_level == READ_COMMITTED
    # As Kafka: which of two answers for one partition is meant cannot be told.
    seen: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    slices = call.slices
    for each in asked.topics:
        if slices.is_over:
            await slices.next()
        for one in each.partitions:
            place = (each.name, one.partition_index)
            (twice if place in seen else seen).add(place)
    topics = []
    for each in asked.topics:
        if slices.is_over:
            await slices.next()
        topic = locate_name(context, call, Operation.DESCRIBE, each.name)
        partitions = []
        for one in each.partitions:
            if slices.is_over:
                await slices.next()
            index = one.partition_index
            partitions.append(
                ListOffsetsPartitionResponse(index, ErrorCode.INVALID_REQUEST)
                if (each.name, index) in twice
                else await _listed(context, call.version, topic, one, is_committed)
            )
        topics.append(ListOffsetsTopicResponse(each.name, partitions))
    return ListOffsetsResponse(topics=topics)


async def _listed(
    context: KafkaContext,
    version: int,
    topic: Topic | ErrorCode,
    asked: ListOffsetsPartition,
    is_committed: bool,
) -> ListOffsetsPartitionResponse:
    index = asked.partition_index
    if isinstance(topic, ErrorCode):
        return ListOffsetsPartitionResponse(index, topic)
    if not has_partition(topic, index):
        return ListOffsetsPartitionResponse(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if asked.timestamp < 0 and version < _KNOWN_FROM.get(asked.timestamp, version + 1):
        return ListOffsetsPartitionResponse(index, ErrorCode.UNSUPPORTED_VERSION)
    topic = log_of(context, topic)
    try:
        ends = await context.streams.ends(topic, index)
        code = epoch_refusal(asked.current_leader_epoch, ends.leader_epoch)
        if code:
            return ListOffsetsPartitionResponse(index, code)
        if not ends.is_settled and asked.timestamp < 0:
            # Its leader has just changed, and may not know its end yet.
            return ListOffsetsPartitionResponse(index, ErrorCode.OFFSET_NOT_AVAILABLE)
        offset, timestamp = await _found(context, topic, asked, ends, is_committed)
    except PenstockError as error:
        return ListOffsetsPartitionResponse(index, code_for(error))
    epoch = ends.leader_epoch if offset >= 0 else -1
    return ListOffsetsPartitionResponse(index, 0, timestamp, offset, epoch)


async def _found(
    context: KafkaContext,
    topic: Topic,
    asked: ListOffsetsPartition,
    ends: StreamEnds,
    is_committed: bool,
) -> tuple[int, int]:
    """(offset, time), −1 for what there is not."""
    index = asked.partition_index
    end = ends.last_stable_offset if is_committed else ends.high_watermark
    wanted = asked.timestamp
    if wanted == LATEST:
        return end, -1
    if wanted in (EARLIEST, EARLIEST_LOCAL):
        return ends.start_offset, -1
    if wanted in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _NOWHERE
    if wanted == MAX_TIMESTAMP:
        return await context.streams.max_timestamp(topic, index)
    offset, timestamp = await context.streams.find_time(topic, index, wanted)
    return (offset, timestamp) if offset < end else _NOWHERE


ACTION = KafkaAction(KEY, run)
