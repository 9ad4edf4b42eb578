"""DeleteRecords: everything below an offset is gone, also after a crash or an election.

For streams whose cleanup deletes; the records of a queue go when its consumers acknowledge them, or
with a purge of the queue."""

import asyncio

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation
from penstock.frontend.kafka.topics import code_for, has_partition, is_of_node, locate_name
from penstock.frontend.slices import portions
from penstock.model.errors import PenstockError
from penstock.model.stream import settings_of
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

KEY = 21
TO_THE_END = -1
_UNKNOWN = -1


async def run(
    context: KafkaContext, call: KafkaCall, asked: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    topics = []
    deadline = asyncio.get_running_loop().time() + asked.timeout_ms / 1_000
    async for each in call.slices.each(asked.topics):
        topic = locate_name(context, call, Operation.DELETE, each.name)
        partitions: list[DeleteRecordsPartitionResult] = []
        # Together: a partition that waits for its replicas must not use up the time of others.
        async for some in call.slices.each(portions(each.partitions)):
            partitions += await asyncio.gather(
                *(_deleted(context, topic, one, deadline) for one in some)
            )
        topics.append(DeleteRecordsTopicResult(each.name, partitions))
    return DeleteRecordsResponse(topics=topics)


async def _deleted(
    context: KafkaContext, topic: Topic | ErrorCode, asked: DeleteRecordsPartition, deadline: float
) -> DeleteRecordsPartitionResult:
    index = asked.partition_index
    if isinstance(topic, ErrorCode):
        code = topic
    elif not has_partition(topic, index):
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif is_of_node(topic):
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    elif topic.is_queue or not settings_of(topic, context.defaults).is_deleted:
        code = ErrorCode.POLICY_VIOLATION
    elif asked.offset < TO_THE_END:
        code = ErrorCode.OFFSET_OUT_OF_RANGE
    else:
        try:
            async with asyncio.timeout_at(deadline):
                start_offset = await context.streams.delete_records(topic, index, asked.offset)
            return DeleteRecordsPartitionResult(index, start_offset)
        except TimeoutError:
            # Not every replica has stored it, or it has not begun. It may still happen.
            code = ErrorCode.REQUEST_TIMED_OUT
        except PenstockError as error:
            code = code_for(error)
    return DeleteRecordsPartitionResult(index, _UNKNOWN, code)


ACTION = KafkaAction(KEY, run)
