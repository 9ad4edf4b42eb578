"""AlterShareGroupOffsets: a share group without members begins anew at other offsets. What was
leased, delivered or finished there counts no longer."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.named import (
    check_group,
    check_partition,
    check_topic,
    topic_named,
)
from penstock.frontend.kafka.permissions import Operation, on_topic
from penstock.frontend.kafka.refusal import REFUSALS, Refusal, refusal_of
from penstock.frontend.kafka.share_groups import check_share_group, open_share
from penstock.frontend.kafka.topics import find_name, id_of
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)

KEY = 91


async def run(
    context: KafkaContext, call: KafkaCall, asked: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    try:
        check_group(context, call, Operation.READ, asked.group_id)
        await check_share_group(context, asked.group_id, must_be_empty=True)
    except REFUSALS as error:
        refusal = refusal_of(error)
        return AlterShareGroupOffsetsResponse(
            error_code=refusal.code, error_message=refusal.message
        )
    topics = []
    async for each in call.slices.each(asked.topics):
        partitions = [
            await _altered(context, call, asked.group_id, each.topic_name, one)
            async for one in call.slices.each(each.partitions)
        ]
        topic = find_name(context, each.topic_name)
        if topic is None or not on_topic(context, call, Operation.READ, topic.name, topic):
            found = AlterShareGroupOffsetsResponseTopic(each.topic_name, partitions=partitions)
        else:
            found = AlterShareGroupOffsetsResponseTopic(each.topic_name, id_of(topic), partitions)
        topics.append(found)
    return AlterShareGroupOffsetsResponse(responses=topics)


async def _altered(
    context: KafkaContext,
    call: KafkaCall,
    group_id: str,
    name: str,
    asked: AlterShareGroupOffsetsRequestPartition,
) -> AlterShareGroupOffsetsResponsePartition:
    index, offset = asked.partition_index, asked.start_offset
    try:
        check_topic(context, call, Operation.READ, name)
        topic = topic_named(context, name)
        check_partition(topic, index)
        if offset < 0:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"{offset} is no offset.")
        share = await open_share(context, topic, group_id, is_earliest=False)
        await context.shares.restart_share(share, index, offset)
    except REFUSALS as error:
        refusal = refusal_of(error)
        return AlterShareGroupOffsetsResponsePartition(index, refusal.code, refusal.message)
    return AlterShareGroupOffsetsResponsePartition(index)


ACTION = KafkaAction(KEY, run)
