"""ListOffsets: the start and end of a partition, and the offset of a timestamp.

Negative timestamps have special meanings, each from some version on:

    -1 the end        -2 the start        -3 the newest record
    -4 the start on this node: the same as -2
    -5, -6 tiered storage: not supported, so no offset"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import partition_code
from penstock.frontend.kafka.offsets_view import log_of
from penstock.frontend.kafka.permissions import Operation
from penstock.frontend.kafka.topic_lookup import epoch_error, has_partition, locate_name
from penstock.model.calls import Ends, FindTime, MaxTimestamp
from penstock.model.errors import PenstockError
from penstock.model.ports import StreamEnds
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import READ_COMMITTED
from penstock.wire.kafka.generated import list_offsets as wire

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
_NOT_FOUND = (-1, -1)


async def run(call: KafkaCall, request: wire.Request) -> wire.Response:
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
        topic = locate_name(call, Operation.DESCRIBE, each.name)
        partitions = []
        for one in each.partitions:
            if slices.is_over:
                await slices.next()
            index = one.partition_index
            partitions.append(
                wire.ListOffsetsPartitionResponse(index, ErrorCode.INVALID_REQUEST)
                if (each.name, index) in twice
                else await _listed(call.context, call.version, topic, one, is_committed)
            )
        topics.append(wire.ListOffsetsTopicResponse(each.name, partitions))
    return wire.Response(topics=topics)


async def _listed(
    context: KafkaContext,
    version: int,
    topic: Topic | ErrorCode,
    requested: wire.ListOffsetsPartition,
    is_committed: bool,
) -> wire.ListOffsetsPartitionResponse:
    index = requested.partition_index
    if isinstance(topic, ErrorCode):
        return wire.ListOffsetsPartitionResponse(index, topic)
    if not has_partition(topic, index):
        return wire.ListOffsetsPartitionResponse(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if requested.timestamp < 0 and version < _KNOWN_FROM.get(requested.timestamp, version + 1):
        return wire.ListOffsetsPartitionResponse(index, ErrorCode.UNSUPPORTED_VERSION)
    topic = log_of(context, topic)
    try:
        ends = await context.broker.call(Ends(topic, index))
        code = epoch_error(requested.current_leader_epoch, ends.leader_epoch)
        if code:
            return wire.ListOffsetsPartitionResponse(index, code)
        if not ends.is_settled and requested.timestamp < 0:
            # The new leader may not know the end yet.
            return wire.ListOffsetsPartitionResponse(index, ErrorCode.OFFSET_NOT_AVAILABLE)
        offset, timestamp = await _found(context, topic, requested, ends, is_committed)
    except PenstockError as error:
        return wire.ListOffsetsPartitionResponse(index, partition_code(error))
    epoch = ends.leader_epoch if offset >= 0 else -1
    return wire.ListOffsetsPartitionResponse(index, 0, timestamp, offset, epoch)


async def _found(
    context: KafkaContext,
    topic: Topic,
    requested: wire.ListOffsetsPartition,
    ends: StreamEnds,
    is_committed: bool,
) -> tuple[int, int]:
    """Return offset and timestamp, -1 for unknown."""
    index = requested.partition_index
    end = ends.last_stable_offset if is_committed else ends.high_watermark
    wanted = requested.timestamp
    if wanted == LATEST:
        return end, -1
    if wanted in (EARLIEST, EARLIEST_LOCAL):
        return ends.start_offset, -1
    if wanted in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _NOT_FOUND
    if wanted == MAX_TIMESTAMP:
        return await context.broker.call(MaxTimestamp(topic, index))
    offset, timestamp = await context.broker.call(FindTime(topic, index, wanted))
    return (offset, timestamp) if offset < end else _NOT_FOUND
