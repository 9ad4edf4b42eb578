"""DescribeShareGroupOffsets: how far share groups have come. For each partition the first record
that is not finished with and, from version 1, how many are not."""

from collections.abc import Sequence

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.named import check_group
from penstock.frontend.kafka.permissions import Operation, on_topic
from penstock.frontend.kafka.refusal import REFUSALS, Refusal, refusal_of
from penstock.frontend.kafka.share_groups import check_share_group, shared_topics
from penstock.frontend.kafka.topics import (
    code_for,
    has_partition,
    id_of,
    locate_name,
)
from penstock.model.errors import PenstockError, client_text
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)

KEY = 90
_LAG_FROM = 1
_UNKNOWN = -1


async def run(
    context: KafkaContext, call: KafkaCall, asked: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    has_lag = call.version >= _LAG_FROM
    return DescribeShareGroupOffsetsResponse(
        groups=[
            await _group(context, call, each, has_lag)
            async for each in call.slices.each(asked.groups)
        ]
    )


async def _group(
    context: KafkaContext,
    call: KafkaCall,
    asked: DescribeShareGroupOffsetsRequestGroup,
    has_lag: bool,
) -> DescribeShareGroupOffsetsResponseGroup:
    group_id = asked.group_id
    try:
        check_group(context, call, Operation.DESCRIBE, group_id)
        await check_share_group(context, group_id, may_be_new=True)  # nothing read yet
    except REFUSALS as error:
        refusal = refusal_of(error)
        return DescribeShareGroupOffsetsResponseGroup(
            group_id, error_code=refusal.code, error_message=refusal.message
        )
    chosen: list[tuple[str, Topic | ErrorCode, Sequence[int]]]
    if asked.topics is None:
        chosen = [
            (topic.name, topic, range(topic.partition_count))
            async for topic in call.slices.each(shared_topics(context, group_id))
            if on_topic(context, call, Operation.DESCRIBE, topic.name, topic)
        ]
    else:
        chosen = [
            (
                each.topic_name,
                locate_name(context, call, Operation.DESCRIBE, each.topic_name),
                each.partitions,
            )
            async for each in call.slices.each(asked.topics)
        ]
    topics = []
    async for name, topic, indexes in call.slices.each(chosen):
        partitions = [
            await _partition(context, group_id, topic, index, has_lag)
            async for index in call.slices.each(indexes)
        ]
        if isinstance(topic, ErrorCode):
            topics.append(DescribeShareGroupOffsetsResponseTopic(name, partitions=partitions))
        else:
            topics.append(DescribeShareGroupOffsetsResponseTopic(name, id_of(topic), partitions))
    return DescribeShareGroupOffsetsResponseGroup(group_id, topics)


async def _partition(
    context: KafkaContext, group_id: str, topic: Topic | ErrorCode, index: int, has_lag: bool
) -> DescribeShareGroupOffsetsResponsePartition:
    try:
        if isinstance(topic, ErrorCode):
            raise Refusal(topic)
        if not has_partition(topic, index):
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        share = context.shares.find_share(topic, group_id)
        if share is None:
            return DescribeShareGroupOffsetsResponsePartition(index, _UNKNOWN)  # never read
        start_offset = await context.shares.share_start(share, index)
        lag = await context.shares.share_lag(share, index) if has_lag else _UNKNOWN
    except Refusal as refusal:
        return _failed(index, refusal.code, refusal.message)
    except PenstockError as error:
        return _failed(index, code_for(error), client_text(error))
    epoch = context.brokers.place(topic, index).epoch
    return DescribeShareGroupOffsetsResponsePartition(index, start_offset, epoch, lag)


def _failed(
    index: int, code: ErrorCode, message: str
) -> DescribeShareGroupOffsetsResponsePartition:
    return DescribeShareGroupOffsetsResponsePartition(
        index, _UNKNOWN, error_code=code, error_message=message
    )


ACTION = KafkaAction(KEY, run)
