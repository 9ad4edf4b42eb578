"""Finds the topics that a request names, in the caller's account, and checks names and rights.

Each queue is also a topic of the same name. Newer API versions identify topics only by id. A topic
that is deleted and created again gets another id. The id of another account's topic is reported as
unknown. Permission is checked before existence, except for topics that are given by id.

The ``check_`` functions raise ApiError, or another error that a reply can report."""

import re
from bisect import insort
from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import ApiError, invalid_request
from penstock.frontend.kafka.offsets_view import is_offsets_view, offsets_view
from penstock.frontend.kafka.permissions import (
    Operation,
    on_cluster,
    on_group,
    on_topic,
    on_transaction,
)
from penstock.model.errors import TopicNotFound
from penstock.model.names import OFFSETS_TOPIC, is_internal
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode

NO_EPOCH = -1  # the client accepts a leader with any epoch
T = TypeVar("T")
NAME_CHARS_MAX = 249
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")


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
    """Return all topics of the tenant, sorted by name, including ``__consumer_offsets``."""
    topics = list(context.catalog.topics(context.account, context.config.region))
    view = find_name(context, OFFSETS_TOPIC)
    if view is not None and is_offsets_view(view):
        insort(topics, view, key=lambda topic: topic.name)
    return topics


def locate_name(call: KafkaCall, operation: Operation, name: str) -> Topic | ErrorCode:
    """Return the topic, or an error code if it does not exist or the caller lacks permission."""
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
    return is_internal(topic.name) and not topic.is_queue


def epoch_error(requested: int, current: int) -> ErrorCode:
    """Return NONE if the leader epoch ``requested`` is current, and otherwise an error code."""
    if requested in (NO_EPOCH, current):
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if requested < current else ErrorCode.UNKNOWN_LEADER_EPOCH


def is_topic_name(name: str) -> bool:
    return _NAME.match(name) is not None and name not in (".", "..")


def check_name(name: str) -> None:
    if not is_topic_name(name):
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"A topic name must have 1 to {NAME_CHARS_MAX} of the characters a-z A-Z 0-9 . _ - "
            'and must not be "." or "..".',
        )


def topic_named(context: KafkaContext, name: str) -> Topic:
    topic = find_name(context, name)
    if topic is None:
        raise TopicNotFound(name)
    return topic


def check_topic(call: KafkaCall, operation: Operation, name: str) -> None:
    if not on_topic(call, operation, name):
        raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def check_group(call: KafkaCall, operation: Operation, group_id: str) -> None:
    if not on_group(call, operation, group_id):
        raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED)


def check_transactional_id(call: KafkaCall, operation: Operation, transactional_id: str) -> None:
    if not on_transaction(call, operation, transactional_id):
        raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def check_cluster(call: KafkaCall, operation: Operation) -> None:
    if not on_cluster(call, operation):
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def check_operator(call: KafkaCall, operation: Operation) -> None:
    """Raise ApiError unless the caller is an operator and may perform the operation."""
    if not (call.caller.is_trusted or call.caller.is_operator):
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    check_cluster(call, operation)


def check_not_internal(name: str) -> None:
    if is_internal(name):
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "Topics whose names begin with __ are internal and cannot be changed.",
        )


def check_partition(topic: Topic | None, partition: int) -> Topic:
    if topic is None or not has_partition(topic, partition):
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic


def check_has_replicas(topic: Topic) -> None:
    if is_offsets_view(topic):
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{topic.name} is a read-only view of committed offsets and has no replicas.",
        )


def repeated(names: Iterable[T]) -> frozenset[T]:
    return frozenset(name for name, count in Counter(names).items() if count > 1)


def check_not_repeated(name: T, twice: frozenset[T]) -> None:
    if name in twice:
        raise invalid_request("The request names this resource more than once.")
