"""OffsetDelete: forget what a group has committed, except for topics its members read."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_group
from penstock.frontend.kafka.topics import locate_name
from penstock.frontend.slices import portions
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

KEY = 47


async def run(
    context: KafkaContext, call: KafkaCall, asked: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    if not on_group(context, call, Operation.DELETE, asked.group_id):
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    located = {
        each.name: locate_name(context, call, Operation.READ, each.name)
        async for each in call.slices.each(asked.topics)
    }
    ids = {name: topic.topic_id for name, topic in located.items() if isinstance(topic, Topic)}
    places = [
        (ids[each.name], each.name, partition.partition_index)
        async for each in call.slices.each(asked.topics)
        if each.name in ids
        for partition in each.partitions
    ]
    codes: dict[tuple[str, int], int] = {}
    async for some in call.slices.each(portions(places) or ((),)):
        reply = await context.groups.delete_offsets(asked.group_id, some)
        if reply.code:
            return OffsetDeleteResponse(error_code=reply.code)
        codes |= {(topic_id, index): int(code) for topic_id, index, code in reply.partitions}
    topics = [
        _answer(each, located[each.name], codes) async for each in call.slices.each(asked.topics)
    ]
    return OffsetDeleteResponse(topics=topics)


def _answer(
    asked: OffsetDeleteRequestTopic, topic: Topic | ErrorCode, codes: dict[tuple[str, int], int]
) -> OffsetDeleteResponseTopic:
    return OffsetDeleteResponseTopic(
        asked.name,
        [
            OffsetDeleteResponsePartition(
                each.partition_index,
                codes[topic.topic_id, each.partition_index] if isinstance(topic, Topic) else topic,
            )
            for each in asked.partitions
        ],
    )


ACTION = KafkaAction(KEY, run)
