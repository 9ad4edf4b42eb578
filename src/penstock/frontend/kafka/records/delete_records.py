"""DeleteRecords: delete all records before an offset, durably.

Only for streams with ``cleanup.policy=delete``. Records of a queue are deleted by acks of its
consumers, or by a purge."""

import asyncio

from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import partition_code
from penstock.frontend.kafka.permissions import Operation
from penstock.frontend.kafka.topic_lookup import has_partition, is_internal_topic, locate_name
from penstock.model.calls import DeleteRecords
from penstock.model.errors import PenstockError
from penstock.model.stream import settings_of
from penstock.model.topic import Topic
from penstock.net.slices import portions
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import delete_records as wire

TO_THE_END = -1
_UNKNOWN = -1


async def run(call: KafkaCall, request: wire.Request) -> wire.Response:
    topics = []
    deadline = asyncio.get_running_loop().time() + request.timeout_ms / 1_000
    async for each in call.slices.each(request.topics):
        topic = locate_name(call, Operation.DELETE, each.name)
        partitions: list[wire.DeleteRecordsPartitionResult] = []
        # Concurrently: a partition that waits for its replicas must not use up the timeout.
        async for some in call.slices.each(portions(each.partitions)):
            partitions += await asyncio.gather(
                *(_deleted(call.context, topic, one, deadline) for one in some)
            )
        topics.append(wire.DeleteRecordsTopicResult(each.name, partitions))
    return wire.Response(topics=topics)


async def _deleted(
    context: KafkaContext,
    topic: Topic | ErrorCode,
    requested: wire.DeleteRecordsPartition,
    deadline: float,
) -> wire.DeleteRecordsPartitionResult:
    index = requested.partition_index
    if isinstance(topic, ErrorCode):
        code = topic
    elif not has_partition(topic, index):
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif is_internal_topic(topic):
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    elif topic.is_queue or not settings_of(topic, context.defaults).is_deleted:
        code = ErrorCode.POLICY_VIOLATION
    elif requested.offset < TO_THE_END:
        code = ErrorCode.OFFSET_OUT_OF_RANGE
    else:
        try:
            async with asyncio.timeout_at(deadline):
                start_offset = await context.broker.call(
                    DeleteRecords(topic, index, requested.offset)
                )
            return wire.DeleteRecordsPartitionResult(index, start_offset)
        except TimeoutError:
            # Some replica has not stored the new start offset. It may still do so.
            code = ErrorCode.REQUEST_TIMED_OUT
        except PenstockError as error:
            code = partition_code(error)
    return wire.DeleteRecordsPartitionResult(index, _UNKNOWN, code)
