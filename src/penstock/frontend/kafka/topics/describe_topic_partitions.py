"""DescribeTopicPartitions: the partitions of topics, in pages. Topics are sorted by name, and the
cursor of a page names the first partition of the next."""

from collections.abc import Sequence

from penstock.frontend.kafka.checks import is_topic_name
from penstock.frontend.kafka.context import KafkaCall
from penstock.frontend.kafka.offsets_view import log_of
from penstock.frontend.kafka.permissions import Operation, on_topic, topic_operations
from penstock.frontend.kafka.ports.brokers import NO_LEADER, Place
from penstock.frontend.kafka.topic_lookup import find_name, id_of, is_internal_topic, topics_shown
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import describe_topic_partitions as wire

PAGE_PARTITIONS_MAX = 2_000  # whatever the request allows


async def run(call: KafkaCall, request: wire.Request) -> wire.Response:
    cursor = request.cursor
    room = max(1, min(request.response_partition_limit, PAGE_PARTITIONS_MAX))
    topics: list[wire.DescribeTopicPartitionsResponseTopic] = []
    async for name in call.slices.each(await _names(call, request)):
        is_cursor = cursor is not None and name == cursor.topic_name
        first = max(0, cursor.partition_index) if cursor is not None and is_cursor else 0
        if room <= 0:
            return wire.Response(
                topics=topics, next_cursor=wire.DescribeTopicPartitionsResponseCursor(name, first)
            )
        topic = find_name(call.context, name)
        if not on_topic(call, Operation.DESCRIBE, name, topic):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            topics.append(wire.DescribeTopicPartitionsResponseTopic(code, name))
            continue
        if topic is None:
            operations = topic_operations(call, name, None)
            topics.append(
                wire.DescribeTopicPartitionsResponseTopic(
                    _missing(name), name, topic_authorized_operations=operations
                )
            )
            continue
        stop = min(topic.partition_count, first + room)
        topics.append(_described(call, topic, range(first, stop)))
        room -= max(0, stop - first)
        if stop < topic.partition_count:
            return wire.Response(
                topics=topics, next_cursor=wire.DescribeTopicPartitionsResponseCursor(name, stop)
            )
    return wire.Response(topics=topics)


async def _names(call: KafkaCall, request: wire.Request) -> Sequence[str]:
    if request.topics:
        names = sorted({each.name for each in request.topics})
    else:
        names = [
            topic.name
            async for topic in call.slices.each(topics_shown(call.context))
            if on_topic(call, Operation.DESCRIBE, topic.name, topic)
        ]
    cursor = request.cursor
    return names if cursor is None else [name for name in names if name >= cursor.topic_name]


def _missing(name: str) -> ErrorCode:
    if is_topic_name(name):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.INVALID_TOPIC_EXCEPTION


def _described(
    call: KafkaCall, topic: Topic, indexes: range
) -> wire.DescribeTopicPartitionsResponseTopic:
    log = log_of(call.context, topic)
    return wire.DescribeTopicPartitionsResponseTopic(
        0,
        topic.name,
        id_of(topic),
        is_internal_topic(topic),
        [_partition(index, call.context.brokers.place(log, index)) for index in indexes],
        topic_operations(call, topic.name, topic),
    )


def _partition(index: int, place: Place) -> wire.DescribeTopicPartitionsResponsePartition:
    code = ErrorCode.LEADER_NOT_AVAILABLE if place.leader == NO_LEADER else ErrorCode.NONE
    # The Java client fails upon null for the eligible leaders.
    return wire.DescribeTopicPartitionsResponsePartition(
        code, index, place.leader, place.epoch, place.replicas, place.in_sync, (), (), place.offline
    )
