"""Metadata: which nodes there are, and which of them leads each partition of the topics asked for.

Also where topics come from by being named: with auto-creation on, a client that asks about a topic
it means to write to finds it made. A produce never makes one; it may be the last of a producer
whose topic was deleted on purpose. Who may not describe a topic does not find it in the list of
all, and is told nothing of it by any name or id."""

from collections.abc import Iterable, Sequence

import msgspec

from penstock.frontend.kafka.brokers import NOBODY, Place
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.new_topic import is_topic_name, new_stream
from penstock.frontend.kafka.offsets_view import log_of
from penstock.frontend.kafka.permissions import (
    UNASKED,
    Operation,
    cluster_operations,
    on_cluster,
    on_topic,
    topic_operations,
)
from penstock.frontend.kafka.refusal import REFUSALS, refusal_of
from penstock.frontend.kafka.topics import (
    find_id,
    find_name,
    id_of,
    is_of_node,
    topics_shown,
)
from penstock.model.errors import TopicExists, TopicNotFound
from penstock.model.names import is_for_operators
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.wire.kafka.primitives import ZERO_UUID

KEY = 3
_NULL_IS_ALL_FROM = 1  # before, an empty list asked for all topics
_BY_ID_FROM = 12
# Errors after which a client still learns what it may do with a topic of that name.
_OPERATIONS_OF = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)


async def run(context: KafkaContext, call: KafkaCall, asked: MetadataRequest) -> MetadataResponse:
    config = context.config
    wants_operations = asked.include_topic_authorized_operations

    def shown(topic: Topic) -> MetadataResponseTopic:
        operations = (
            topic_operations(context, call, topic.name, topic) if wants_operations else UNASKED
        )
        return _described(context, topic, operations)

    if asked.topics is None or (call.version < _NULL_IS_ALL_FROM and not asked.topics):
        topics = [
            shown(topic)
            async for topic in call.slices.each(topics_shown(context))
            if on_topic(context, call, Operation.DESCRIBE, topic.name, topic)
        ]
    else:
        may_create = asked.allow_auto_topic_creation and config.auto_create
        topics = []
        slices = call.slices
        for each in _distinct(call, asked.topics):
            if slices.is_over:
                await slices.next()
            one = await _asked_for(context, call, each, may_create)
            if isinstance(one, Topic):
                one = shown(one)
            elif wants_operations and one.error_code in _OPERATIONS_OF and one.name is not None:
                operations = topic_operations(context, call, one.name, None)
                one = msgspec.structs.replace(one, topic_authorized_operations=operations)
            topics.append(one)
    return MetadataResponse(
        brokers=[MetadataResponseBroker(*broker) for broker in context.brokers.all()],
        cluster_id=config.cluster_id or None,
        controller_id=context.brokers.controller,
        topics=topics,
        cluster_authorized_operations=(
            cluster_operations(context, call)
            if asked.include_cluster_authorized_operations
            else UNASKED
        ),
    )


def _distinct(
    call: KafkaCall, asked: Sequence[MetadataRequestTopic]
) -> Iterable[MetadataRequestTopic]:
    """Return the entries to answer. If one of them has a topic id, the request is by id: names are
    ignored, and entries without an id are left out."""
    if call.version < _BY_ID_FROM or all(each.topic_id == ZERO_UUID for each in asked):
        return dict.fromkeys(asked)
    ids = dict.fromkeys(each.topic_id for each in asked if each.topic_id != ZERO_UUID)
    return [MetadataRequestTopic(topic_id, None) for topic_id in ids]


async def _asked_for(
    context: KafkaContext, call: KafkaCall, asked: MetadataRequestTopic, may_create: bool
) -> Topic | MetadataResponseTopic:
    """The topic, made if need be, or what to answer instead."""
    if asked.name is None:
        return _by_id(context, call, asked.topic_id)
    topic = find_name(context, asked.name)
    if not on_topic(context, call, Operation.DESCRIBE, asked.name, topic):
        return MetadataResponseTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, asked.name)
    if topic is not None:
        return topic
    if not is_topic_name(asked.name):
        return MetadataResponseTopic(ErrorCode.INVALID_TOPIC_EXCEPTION, asked.name)
    if not may_create or is_for_operators(asked.name):
        return MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, asked.name)
    if not on_cluster(context, call, Operation.CREATE) and not on_topic(
        context, call, Operation.CREATE, asked.name
    ):
        return MetadataResponseTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, asked.name)
    try:
        return await _created(context, asked.name)
    except REFUSALS as error:
        return MetadataResponseTopic(refusal_of(error).code, asked.name)


def _by_id(
    context: KafkaContext, call: KafkaCall, topic_id: bytes
) -> Topic | MetadataResponseTopic:
    if call.version < _BY_ID_FROM:
        return MetadataResponseTopic(ErrorCode.INVALID_REQUEST, "", topic_id)
    topic = find_id(context, topic_id)
    if topic is None or not on_topic(context, call, Operation.DESCRIBE, topic.name, topic):
        return MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id)
    return topic


async def _created(context: KafkaContext, name: str) -> Topic:
    made = new_stream(context, name, context.config.partitions_default)
    try:
        return await context.catalog.create(made)
    except TopicExists:  # another client was faster
        topic = find_name(context, name)
        if topic is None:  # and a third has deleted it again
            raise TopicNotFound(name) from None
        return topic


def _described(context: KafkaContext, topic: Topic, operations: int) -> MetadataResponseTopic:
    log = log_of(context, topic)
    partitions: Sequence[MetadataResponsePartition] = [
        _partition(index, context.brokers.place(log, index))
        for index in range(topic.partition_count)
    ]
    return MetadataResponseTopic(
        0, topic.name, id_of(topic), is_of_node(topic), partitions, operations
    )


def _partition(index: int, place: Place) -> MetadataResponsePartition:
    code = ErrorCode.LEADER_NOT_AVAILABLE if place.leader == NOBODY else ErrorCode.NONE
    return MetadataResponsePartition(
        code, index, place.leader, place.epoch, place.replicas, place.in_sync, place.offline
    )


ACTION = KafkaAction(KEY, run)
