"""DescribeTopicPartitions: what Metadata says of partitions, in pages. Topics come sorted by name,
and the cursor of a page names the first partition of the next."""

from collections.abc import Sequence

from penstock.frontend.kafka.brokers import NOBODY, Place
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.new_topic import is_topic_name
from penstock.frontend.kafka.offsets_view import log_of
from penstock.frontend.kafka.permissions import Operation, on_topic, topic_operations
from penstock.frontend.kafka.topics import find_name, id_of, is_of_node, topics_shown
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

KEY = 75
PAGE_PARTITIONS_MAX = 2_000  # whatever a client asks for


async def run(
    context: KafkaContext, call: KafkaCall, asked: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    cursor = asked.cursor
    room = max(1, min(asked.response_partition_limit, PAGE_PARTITIONS_MAX))
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    async for name in call.slices.each(await _names(context, call, asked)):
        is_cursor = cursor is not None and name == cursor.topic_name
        first = max(0, cursor.partition_index) if cursor is not None and is_cursor else 0
        if room <= 0:
            return DescribeTopicPartitionsResponse(
                topics=topics, next_cursor=DescribeTopicPartitionsResponseCursor(name, first)
            )
        topic = find_name(context, name)
        if not on_topic(context, call, Operation.DESCRIBE, name, topic):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            topics.append(DescribeTopicPartitionsResponseTopic(code, name))
            continue
        if topic is None:
            operations = topic_operations(context, call, name, None)
            topics.append(
                DescribeTopicPartitionsResponseTopic(
                    _missing(name), name, topic_authorized_operations=operations
                )
            )
            continue
        stop = min(topic.partition_count, first + room)
        topics.append(_described(context, call, topic, range(first, stop)))
        room -= max(0, stop - first)
        if stop < topic.partition_count:
            return DescribeTopicPartitionsResponse(
                topics=topics, next_cursor=DescribeTopicPartitionsResponseCursor(name, stop)
            )
    return DescribeTopicPartitionsResponse(topics=topics)


async def _names(
    context: KafkaContext, call: KafkaCall, asked: DescribeTopicPartitionsRequest
) -> Sequence[str]:
    if asked.topics:
        names = sorted({each.name for each in asked.topics})
    else:
        names = [
            topic.name
            async for topic in call.slices.each(topics_shown(context))
            if on_topic(context, call, Operation.DESCRIBE, topic.name, topic)
        ]
    cursor = asked.cursor
    return names if cursor is None else [name for name in names if name >= cursor.topic_name]


def _missing(name: str) -> ErrorCode:
    if is_topic_name(name):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.INVALID_TOPIC_EXCEPTION


def _described(
    context: KafkaContext, call: KafkaCall, topic: Topic, indexes: range
) -> DescribeTopicPartitionsResponseTopic:
    log = log_of(context, topic)
    return DescribeTopicPartitionsResponseTopic(
        0,
        topic.name,
        id_of(topic),
        is_of_node(topic),
        [_partition(index, context.brokers.place(log, index)) for index in indexes],
        topic_operations(context, call, topic.name, topic),
    )


def _partition(index: int, place: Place) -> DescribeTopicPartitionsResponsePartition:
    code = ErrorCode.LEADER_NOT_AVAILABLE if place.leader == NOBODY else ErrorCode.NONE
    # The Java client does not bear null where there are no eligible leaders.
    return DescribeTopicPartitionsResponsePartition(
        code,
        index,
        place.leader,
        place.epoch,
        place.replicas,
        place.in_sync,
        (),
        (),
        place.offline,
    )


ACTION = KafkaAction(KEY, run)
