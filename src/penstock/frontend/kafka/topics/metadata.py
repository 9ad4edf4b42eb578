"""Handles Metadata and DescribeTopicPartitions, with which clients find the leaders of partitions.

With auto-creation on, Metadata creates a requested topic that does not exist. Produce never does,
because it may be the last request of a producer whose topic was deleted. Topics that the caller may
not describe are not in the list of all topics, and are not found by name or id."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from penstock.frontend.kafka import checks
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import API_ERRORS, api_error
from penstock.frontend.kafka.offsets_view import log_of
from penstock.frontend.kafka.permissions import (
    UNASKED,
    Operation,
    cluster_operations,
    on_cluster,
    on_topic,
    topic_operations,
)
from penstock.frontend.kafka.ports.cluster import NO_LEADER
from penstock.frontend.kafka.topics.changes import new_stream
from penstock.model.errors import TopicExists
from penstock.model.names import is_for_operators
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import describe_topic_partitions as partitions_wire
from penstock.wire.kafka.generated import metadata as wire
from penstock.wire.kafka.primitives import ZERO_UUID

_NULL_IS_ALL_FROM = 1  # before this version, an empty list requests all topics
_BY_ID_FROM = 12
# Errors whose reply still has the operations that the caller may perform.
_OPERATIONS_OF = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)
_METADATA = (wire.MetadataResponseTopic, wire.MetadataResponsePartition)
_PAGE = (
    partitions_wire.DescribeTopicPartitionsResponseTopic,
    partitions_wire.DescribeTopicPartitionsResponsePartition,
)
T = TypeVar("T")
PAGE_PARTITIONS_MAX = 2_000  # whatever the request allows


async def metadata(call: KafkaCall, request: wire.Request) -> wire.Response:
    config = call.context.config
    wants_operations = request.include_topic_authorized_operations

    def shown(topic: Topic) -> wire.MetadataResponseTopic:
        operations = topic_operations(call, topic.name, topic) if wants_operations else UNASKED
        indexes = range(topic.partition_count)
        return _described(call.context, topic, indexes, operations, _METADATA)

    if request.topics is None or (call.version < _NULL_IS_ALL_FROM and not request.topics):
        topics = [
            shown(topic)
            async for topic in call.slices.each(checks.topics_shown(call.context))
            if on_topic(call, Operation.DESCRIBE, topic.name, topic)
        ]
    else:
        may_create = request.allow_auto_topic_creation and config.auto_create
        topics = []
        slices = call.slices
        for each in _distinct(call, request.topics):
            if slices.is_over:
                await slices.next()
            one = await _find_or_create(call, each, may_create)
            if isinstance(one, Topic):
                one = shown(one)
            elif wants_operations and one.error_code in _OPERATIONS_OF and one.name is not None:
                operations = topic_operations(call, one.name, None)
                one = msgspec.structs.replace(one, topic_authorized_operations=operations)
            topics.append(one)
    return wire.Response(
        brokers=[wire.MetadataResponseBroker(*broker) for broker in call.context.brokers.all()],
        cluster_id=config.cluster_id or None,
        controller_id=call.context.brokers.controller,
        topics=topics,
        cluster_authorized_operations=(
            cluster_operations(call) if request.include_cluster_authorized_operations else UNASKED
        ),
    )


def _distinct(
    call: KafkaCall, requested: Sequence[wire.MetadataRequestTopic]
) -> Iterable[wire.MetadataRequestTopic]:
    """Return the requested topics without duplicates. If any has an id, names are ignored."""
    if call.version < _BY_ID_FROM or all(each.topic_id == ZERO_UUID for each in requested):
        return dict.fromkeys(requested)
    ids = dict.fromkeys(each.topic_id for each in requested if each.topic_id != ZERO_UUID)
    return [wire.MetadataRequestTopic(topic_id, None) for topic_id in ids]


async def _find_or_create(
    call: KafkaCall, requested: wire.MetadataRequestTopic, may_create: bool
) -> Topic | wire.MetadataResponseTopic:
    context, name, topic_id = call.context, requested.name, requested.topic_id
    if name is None:
        if call.version < _BY_ID_FROM:
            return wire.MetadataResponseTopic(ErrorCode.INVALID_REQUEST, "", topic_id)
        topic = checks.find_id(context, topic_id)
        if topic is None or not on_topic(call, Operation.DESCRIBE, topic.name, topic):
            return wire.MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id)
        return topic
    topic = checks.find_name(context, name)
    if not on_topic(call, Operation.DESCRIBE, name, topic):
        return wire.MetadataResponseTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name)
    if topic is not None:
        return topic
    if not checks.is_topic_name(name):
        return wire.MetadataResponseTopic(ErrorCode.INVALID_TOPIC_EXCEPTION, name)
    if not may_create or is_for_operators(name):
        return wire.MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
    if not on_cluster(call, Operation.CREATE) and not on_topic(call, Operation.CREATE, name):
        return wire.MetadataResponseTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name)
    try:
        made = new_stream(context, name, context.config.partitions_default)
        try:
            return await context.catalog.create(made)
        except TopicExists:  # another client was faster, and a third may have deleted the topic
            return checks.topic_named(context, name)
    except API_ERRORS as error:
        return wire.MetadataResponseTopic(api_error(error).code, name)


def _described(
    context: KafkaContext,
    topic: Topic,
    indexes: range,
    operations: int,
    kinds: tuple[Callable[..., T], Callable[..., Any]],  # of the topic and of its partitions
    more: tuple[object, ...] = (),  # fields that only one of the replies has
) -> T:
    kind, partition_kind = kinds
    log, partitions, is_internal = log_of(context, topic), [], checks.is_internal_topic(topic)
    for index in indexes:
        at = context.brokers.place(log, index)
        code = ErrorCode.LEADER_NOT_AVAILABLE if at.leader == NO_LEADER else ErrorCode.NONE
        fields = (at.leader, at.epoch, at.replicas, at.in_sync, *more, at.offline)
        partitions.append(partition_kind(code, index, *fields))
    return kind(0, topic.name, checks.id_of(topic), is_internal, partitions, operations)


async def describe(call: KafkaCall, request: partitions_wire.Request) -> partitions_wire.Response:
    """Return a page of partitions, and a cursor that points to the start of the next page."""
    reply, _ = _PAGE
    cursor, after = request.cursor, partitions_wire.DescribeTopicPartitionsResponseCursor
    room = max(1, min(request.response_partition_limit, PAGE_PARTITIONS_MAX))
    topics: list[partitions_wire.DescribeTopicPartitionsResponseTopic] = []
    async for name in call.slices.each(await _names(call, request)):
        is_cursor = cursor is not None and name == cursor.topic_name
        first = max(0, cursor.partition_index) if cursor is not None and is_cursor else 0
        if room <= 0:
            return partitions_wire.Response(topics=topics, next_cursor=after(name, first))
        topic = checks.find_name(call.context, name)
        if not on_topic(call, Operation.DESCRIBE, name, topic):
            topics.append(reply(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name))
            continue
        operations = topic_operations(call, name, topic)
        if topic is None:
            code = ErrorCode.INVALID_TOPIC_EXCEPTION
            if checks.is_topic_name(name):
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topics.append(reply(code, name, topic_authorized_operations=operations))
            continue
        stop = min(topic.partition_count, first + room)
        indexes = range(first, stop)
        # The Java client fails upon null for the eligible leaders.
        topics.append(_described(call.context, topic, indexes, operations, _PAGE, ((), ())))
        room -= max(0, stop - first)
        if stop < topic.partition_count:
            return partitions_wire.Response(topics=topics, next_cursor=after(name, stop))
    return partitions_wire.Response(topics=topics)


async def _names(call: KafkaCall, request: partitions_wire.Request) -> Sequence[str]:
    if request.topics:
        names = sorted({each.name for each in request.topics})
    else:
        names = [
            topic.name
            async for topic in call.slices.each(checks.topics_shown(call.context))
            if on_topic(call, Operation.DESCRIBE, topic.name, topic)
        ]
    cursor = request.cursor
    return names if cursor is None else [name for name in names if name >= cursor.topic_name]
