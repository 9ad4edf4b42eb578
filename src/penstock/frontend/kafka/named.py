"""What an administrative request names, or a refusal that says what is wrong with the name."""

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.offsets_view import is_offsets_view
from penstock.frontend.kafka.permissions import Operation, on_cluster, on_group, on_topic
from penstock.frontend.kafka.refusal import Refusal
from penstock.frontend.kafka.topics import find_id, find_name, has_partition
from penstock.model.errors import TopicNotFound
from penstock.model.names import is_internal
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode

T = TypeVar("T")


def topic_named(context: KafkaContext, name: str) -> Topic:
    topic = find_name(context, name)
    if topic is None:
        raise TopicNotFound(name)
    return topic


def topic_with_id(context: KafkaContext, topic_id: bytes) -> Topic:
    topic = find_id(context, topic_id)
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_ID)
    return topic


def check_topic(context: KafkaContext, call: KafkaCall, operation: Operation, name: str) -> None:
    """May the caller do that with a topic of this name, there or not?"""
    if not on_topic(context, call, operation, name):
        raise Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def check_group(
    context: KafkaContext, call: KafkaCall, operation: Operation, group_id: str
) -> None:
    if not on_group(context, call, operation, group_id):
        raise Refusal(ErrorCode.GROUP_AUTHORIZATION_FAILED)


def check_cluster(context: KafkaContext, call: KafkaCall, operation: Operation) -> None:
    if not on_cluster(context, call, operation):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def check_operator(context: KafkaContext, call: KafkaCall, operation: Operation) -> None:
    """For what belongs to all tenants: the right on the cluster of one tenant is not enough."""
    if not (call.caller.is_trusted or call.caller.is_operator):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    check_cluster(context, call, operation)


def check_not_internal(name: str) -> None:
    """Groups and transactions live in topics of the node's own, which nobody else may change."""
    if is_internal(name):
        raise Refusal(
            ErrorCode.INVALID_TOPIC_EXCEPTION, "Topics that begin with __ belong to the node."
        )


def check_partition(topic: Topic | None, partition: int) -> Topic:
    if topic is None or not has_partition(topic, partition):
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic


def check_has_replicas(topic: Topic) -> None:
    if is_offsets_view(topic):
        raise Refusal(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{topic.name} is a read-only view of committed offsets without replicas of its own.",
        )


def repeated(names: Iterable[T]) -> frozenset[T]:
    """Names that a request has more than once: which of the parts is meant cannot be told."""
    return frozenset(name for name, count in Counter(names).items() if count > 1)


def check_not_repeated(name: str, twice: frozenset[str]) -> None:
    if name in twice:
        raise Refusal(ErrorCode.INVALID_REQUEST, "The request names this more than once.")
