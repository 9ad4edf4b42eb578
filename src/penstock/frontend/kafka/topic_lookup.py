"""Finds topics by the name or id in a request, in the account of the context.

A queue is a topic of the same name. From some version of each API on, requests name topics by id
only; a topic that is deleted and created again gets another id, and ids of other accounts are
unknown. Permission is checked before existence, except where the request has the topic's id."""

from bisect import insort

from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.offsets_view import is_offsets_view, offsets_view
from penstock.frontend.kafka.permissions import Operation, on_topic
from penstock.model.names import OFFSETS_TOPIC, is_internal
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode

NO_EPOCH = -1  # the client accepts a reply of any leader


def find_name(context: KafkaContext, name: str) -> Topic | None:
    topic = context.catalog.find(context.account, context.config.region, name)
    return offsets_view(context) if topic is None and name == OFFSETS_TOPIC else topic


def find_id(context: KafkaContext, topic_id: bytes) -> Topic | None:
    topic = context.catalog.find_id(topic_id.hex())
    if topic is None:
        view = offsets_view(context)
        return view if view is not None and id_of(view) == topic_id else None
    if topic.account != context.account or topic.region != context.config.region:
        return None
    return topic


def topics_shown(context: KafkaContext) -> list[Topic]:
    """Return all topics of the tenant by name, with the view of its committed offsets."""
    topics = list(context.catalog.topics(context.account, context.config.region))
    view = find_name(context, OFFSETS_TOPIC)
    if view is not None and is_offsets_view(view):
        insort(topics, view, key=lambda topic: topic.name)
    return topics


def locate_name(call: KafkaCall, operation: Operation, name: str) -> Topic | ErrorCode:
    """Return the topic, or the code for each of its partitions."""
    topic = find_name(call.context, name)
    if not on_topic(call, operation, name, topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return topic or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def locate_id(call: KafkaCall, operation: Operation, topic_id: bytes) -> Topic | ErrorCode:
    topic = find_id(call.context, topic_id)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not on_topic(call, operation, topic.name, topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return topic


def has_partition(topic: Topic, index: int) -> bool:
    return 0 <= index < topic.partition_count


def id_of(topic: Topic) -> bytes:
    return bytes.fromhex(topic.topic_id)


def is_internal_topic(topic: Topic) -> bool:
    """Return whether only the node may write to the topic. Queues may have any name."""
    return is_internal(topic.name) and not topic.is_queue


def epoch_error(requested: int, current: int) -> ErrorCode:
    """Return the code for a client that knows epoch ``requested`` of the leader, NONE if
    current."""
    if requested in (NO_EPOCH, current):
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if requested < current else ErrorCode.UNKNOWN_LEADER_EPOCH
