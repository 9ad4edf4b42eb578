"""OffsetDelete: forget what a group has committed, except for topics its members read."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.topics import find_name
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
    context: KafkaContext, _call: KafkaCall, asked: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    ids = {
        each.name: topic.topic_id
        for each in asked.topics
        if (topic := find_name(context, each.name)) is not None
    }
    reply = await context.groups.delete_offsets(
        asked.group_id,
        [
            (ids[each.name], each.name, partition.partition_index)
            for each in asked.topics
            if each.name in ids
            for partition in each.partitions
        ],
    )
    if reply.code:
        return OffsetDeleteResponse(error_code=reply.code)
    codes = {(topic_id, index): int(code) for topic_id, index, code in reply.partitions}
    topics = [_answer(each, ids.get(each.name), codes) for each in asked.topics]
    return OffsetDeleteResponse(topics=topics)


def _answer(
    asked: OffsetDeleteRequestTopic, topic_id: str | None, codes: dict[tuple[str, int], int]
) -> OffsetDeleteResponseTopic:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return OffsetDeleteResponseTopic(
        asked.name,
        [
            OffsetDeleteResponsePartition(
                each.partition_index,
                unknown if topic_id is None else codes[topic_id, each.partition_index],
            )
            for each in asked.partitions
        ],
    )


ACTION = KafkaAction(KEY, run)
