"""OffsetDelete: delete committed offsets of a group, except for topics that its members read."""

from penstock.cursor.coordinator_calls import DeleteOffsets
from penstock.frontend.kafka.checks import check_group
from penstock.frontend.kafka.context import KafkaCall
from penstock.frontend.kafka.permissions import Operation
from penstock.frontend.kafka.topic_lookup import locate_name
from penstock.model.topic import Topic
from penstock.net.slices import portions
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import offset_delete as wire


async def run(call: KafkaCall, request: wire.Request) -> wire.Response:
    check_group(call, Operation.DELETE, request.group_id)
    located = {
        each.name: locate_name(call, Operation.READ, each.name)
        async for each in call.slices.each(request.topics)
    }
    ids = {name: topic.topic_id for name, topic in located.items() if isinstance(topic, Topic)}
    places = [
        (ids[each.name], each.name, partition.partition_index)
        async for each in call.slices.each(request.topics)
        if each.name in ids
        for partition in each.partitions
    ]
    codes: dict[tuple[str, int], int] = {}
    async for some in call.slices.each(portions(places) or ((),)):
        reply = await call.context.groups.call(DeleteOffsets(request.group_id, some))
        if reply.code:
            return wire.Response(error_code=reply.code)
        codes |= {(topic_id, index): int(code) for topic_id, index, code in reply.partitions}
    topics = [
        _answer(each, located[each.name], codes) async for each in call.slices.each(request.topics)
    ]
    return wire.Response(topics=topics)


def _answer(
    requested: wire.OffsetDeleteRequestTopic,
    topic: Topic | ErrorCode,
    codes: dict[tuple[str, int], int],
) -> wire.OffsetDeleteResponseTopic:
    return wire.OffsetDeleteResponseTopic(
        requested.name,
        [
            wire.OffsetDeleteResponsePartition(
                each.partition_index,
                codes[topic.topic_id, each.partition_index] if isinstance(topic, Topic) else topic,
            )
            for each in requested.partitions
        ],
    )
