"""Handles CreateTopics, CreatePartitions and DeleteTopics. Each topic of a request succeeds or
fails on its own. The broker opens and closes logs when the catalog of topics changes."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.frontend.kafka import checks
from penstock.frontend.kafka.cluster import check_lists, invalid
from penstock.frontend.kafka.config import PARTITIONS_MAX
from penstock.frontend.kafka.configs.rows import Edit, invalid_config
from penstock.frontend.kafka.configs.topic_configs import entries_of, reconfigure, with_configs
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import (
    API_ERRORS,
    ApiError,
    api_error,
    error_fields,
    invalid_request,
)
from penstock.frontend.kafka.permissions import Operation, on_cluster, on_topic
from penstock.model.errors import TopicExists
from penstock.model.limits import QUEUE_PARTITIONS_MAX
from penstock.model.names import OFFSETS_TOPIC, OPERATOR_NAMES
from penstock.model.replication import MANUAL, PLACEMENT, REPLICATION_FACTOR, factor_of
from penstock.model.topic import Kind, Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import create_partitions as grow_wire
from penstock.wire.kafka.generated import create_topics as wire
from penstock.wire.kafka.generated import delete_topics as delete_wire
from penstock.wire.kafka.primitives import ZERO_UUID

RECEIPT_KEY_BYTES = 32  # a stream may become a queue later, and then signs receipts
DEFAULT = -1  # stands for the node's default in requests
STATES_SINCE = 6  # the first version with topic ids


def _invalid_count(reason: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_PARTITIONS, reason)


def check_partition_count(count: int) -> None:
    if not 1 <= count <= PARTITIONS_MAX:
        raise _invalid_count(f"A topic must have 1 to {PARTITIONS_MAX} partitions, not {count}.")


def new_stream(
    context: KafkaContext,
    name: str,
    partition_count: int,
    configs: Mapping[str, str | None] | None = None,
) -> Topic:
    """Return a new topic to store. It is a stream, unless its configs make it a queue."""
    checks.check_name(name)
    checks.check_not_internal(name)
    check_partition_count(partition_count)
    now_ms = context.clock.wall_ms()
    topic = Topic(
        topic_id=context.entropy(16).hex(),
        account=context.account,
        region=context.config.region,
        name=name,
        kind=Kind.STREAM,
        partition_count=partition_count,
        created_at_ms=now_ms,
        modified_at_ms=now_ms,
        receipt_key=context.entropy(RECEIPT_KEY_BYTES),
    )
    defaults = context.defaults.configs
    return with_configs(topic, Edit(configs or {}), now_ms=now_ms, defaults=defaults)


def with_replicas(context: KafkaContext, topic: Topic, replicas: int) -> Topic:
    """Return the topic with this replication factor. A node without a cluster stores no factor."""
    nodes = len(context.cluster.nodes)
    if not 1 <= replicas <= nodes:
        allowed = "1, as there is one node" if nodes == 1 else f"1 to {nodes}, the number of nodes"
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor must be {allowed}; it is {replicas}.",
        )
    return topic if context.joined is None else _with(topic, REPLICATION_FACTOR, str(replicas))


def _with(topic: Topic, config: str, value: str) -> Topic:
    return msgspec.structs.replace(topic, configs={**topic.configs, config: value})


async def create_topics(call: KafkaCall, request: wire.Request) -> wire.Response:
    """Create streams, or queues if ``penstock.queue`` is set. The manager chooses the nodes, unless
    the request assigns them. The reply has configs only if the caller may see them."""
    may_create_any = on_cluster(call, Operation.CREATE)
    twice = checks.repeated(topic.name for topic in request.topics)
    results: dict[str, wire.CreatableTopicResult] = {}
    async for wanted in call.slices.each(request.topics):
        if wanted.name in results:
            continue  # one error for all entries of the name
        try:
            checks.check_not_repeated(wanted.name, twice)
            if not may_create_any or wanted.name in OPERATOR_NAMES:
                checks.check_topic(call, Operation.CREATE, wanted.name)
            topic = await _create(call.context, wanted, is_dry=request.validate_only)
            results[wanted.name] = _created(call, topic, is_dry=request.validate_only)
        except API_ERRORS as error:
            failed = api_error(error)
            if failed.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                failed = ApiError(failed.code, f"Topic '{wanted.name}' already exists.")
            results[wanted.name] = wire.CreatableTopicResult(
                name=wanted.name, **error_fields(failed)
            )
    return wire.Response(topics=tuple(results.values()))


async def _create(context: KafkaContext, wanted: wire.CreatableTopic, *, is_dry: bool) -> Topic:
    if wanted.name == OFFSETS_TOPIC and checks.find_name(context, wanted.name) is not None:
        raise TopicExists(wanted.name)
    places = _assigned(context, wanted)
    count = len(places) or wanted.num_partitions
    if count == DEFAULT:
        count = context.config.partitions_default
    for name in checks.repeated(config.name for config in wanted.configs):
        raise invalid_config(f"The config {name} is set more than once.")
    configs = {config.name: config.value for config in wanted.configs}
    topic = new_stream(context, wanted.name, count, configs)
    replicas = len(places[0]) if places else wanted.replication_factor
    if replicas != DEFAULT:
        topic = with_replicas(context, topic, replicas)
    if places and context.joined is not None:
        topic = _with(topic, PLACEMENT, MANUAL)
    if context.catalog.find(topic.account, topic.region, topic.name) is not None:
        raise TopicExists(wanted.name)
    if is_dry:
        return topic
    if not places:
        return await context.catalog.create(topic)
    async with context.cluster.placed(topic, places):
        return await context.catalog.create(topic)


def _assigned(context: KafkaContext, wanted: wire.CreatableTopic) -> Mapping[int, Sequence[int]]:
    """Return the requested replicas by partition, or {} if the manager is to choose them."""
    if not wanted.assignments:
        return {}
    if (wanted.num_partitions, wanted.replication_factor) != (DEFAULT, DEFAULT):
        raise invalid_request(
            "With replica assignments, partition count and replication factor must both be -1."
        )
    check_partition_count(len(wanted.assignments))
    places = {one.partition_index: one.broker_ids for one in wanted.assignments}
    if sorted(places) != list(range(len(wanted.assignments))):
        raise invalid("The assignments must contain each partition from 0 on exactly once.")
    lists = [places[index] for index in range(len(places))]
    check_lists(lists, context.cluster.nodes, factor=len(lists[0]))
    return dict(enumerate(lists))


def _created(call: KafkaCall, topic: Topic, *, is_dry: bool) -> wire.CreatableTopicResult:
    fields: dict[str, Any]
    if on_topic(call, Operation.DESCRIBE_CONFIGS, topic.name, topic):
        configs = [
            wire.CreatableTopicConfigs(one.name, one.value, one.is_read_only, one.source)
            for one in entries_of(call.context, topic)
        ]
        factor = factor_of(topic, None, call.context.config.replicas_default)
        fields = {"num_partitions": topic.partition_count, "replication_factor": factor}
        fields["configs"] = configs
    else:
        fields = {"topic_config_error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    topic_id = ZERO_UUID if is_dry else checks.id_of(topic)
    return wire.CreatableTopicResult(topic.name, topic_id, error_message=None, **fields)


async def add_partitions(call: KafkaCall, request: grow_wire.Request) -> grow_wire.Response:
    """Add partitions to topics. Existing records stay where they are, so a key may be in two
    partitions, as in Kafka. FIFO queues are rejected, because they guarantee order by group."""
    twice = checks.repeated(topic.name for topic in request.topics)
    results: dict[str, grow_wire.CreatePartitionsTopicResult] = {}
    async for wanted in call.slices.each(request.topics):
        if wanted.name in results:
            continue  # one error for all entries of the name
        fields: dict[str, Any] = {}
        try:
            checks.check_not_repeated(wanted.name, twice)
            checks.check_topic(call, Operation.ALTER, wanted.name)
            await _grow(call.context, wanted, is_dry=request.validate_only)
        except API_ERRORS as error:
            fields = error_fields(error)
        results[wanted.name] = grow_wire.CreatePartitionsTopicResult(wanted.name, **fields)
    return grow_wire.Response(results=tuple(results.values()))


async def _grow(
    context: KafkaContext, wanted: grow_wire.CreatePartitionsTopic, *, is_dry: bool
) -> None:
    topic = checks.topic_named(context, wanted.name)
    count, now_ms = topic.partition_count, context.clock.wall_ms()
    places = _places_of_added(context, topic, wanted)
    is_assigned = bool(places) and context.joined is not None

    def change(topic: Topic) -> Topic:
        _check_growth(topic, wanted.count)
        if places and topic.partition_count != count:
            raise invalid(f"{topic.name} now has {topic.partition_count} partitions: try again.")
        changed = _with(topic, PLACEMENT, MANUAL) if is_assigned else topic
        return msgspec.structs.replace(changed, partition_count=wanted.count, modified_at_ms=now_ms)

    await reconfigure(context, wanted.name, change, is_dry=is_dry or bool(places))
    if places and not is_dry:
        async with context.cluster.placed(topic, places):
            await reconfigure(context, wanted.name, change, is_dry=False)


def _check_growth(topic: Topic, count: int) -> None:
    if topic.is_fifo:
        raise _invalid_count(
            f"{topic.name} is FIFO, so its number of partitions cannot be changed."
        )
    if count <= topic.partition_count:
        raise _invalid_count(
            f"The topic {topic.name} currently has {topic.partition_count} partition(s);"
            f" {count} would not be an increase."
        )
    check_partition_count(count)
    if topic.is_queue and count > QUEUE_PARTITIONS_MAX:
        raise _invalid_count(
            f"{topic.name} is a queue, which can have at most {QUEUE_PARTITIONS_MAX} partitions."
        )


def _places_of_added(
    context: KafkaContext, topic: Topic, wanted: grow_wire.CreatePartitionsTopic
) -> Mapping[int, Sequence[int]]:
    """Return the requested replicas of new partitions, or {} if the manager is to choose them."""
    _check_growth(topic, wanted.count)
    if wanted.assignments is None:
        return {}
    added = range(topic.partition_count, wanted.count)
    if len(wanted.assignments) != len(added):
        raise invalid(
            f"There are {len(added)} new partitions but {len(wanted.assignments)} assignments."
        )
    lists = [assignment.broker_ids for assignment in wanted.assignments]
    factor = factor_of(topic, None, context.config.replicas_default)
    check_lists(lists, context.cluster.nodes, factor=factor)
    return dict(zip(added, lists, strict=True))


async def delete_topics(call: KafkaCall, request: delete_wire.Request) -> delete_wire.Response:
    states = request.topics
    if call.version < STATES_SINCE:
        states = tuple(delete_wire.DeleteTopicState(name=name) for name in request.topic_names)
    twice, results = checks.repeated(states), []
    async for state in call.slices.each(dict.fromkeys(states)):
        try:
            checks.check_not_repeated(state, twice)
            topic = _find_to_delete(call, state)
            checks.check_topic(call, Operation.DELETE, topic.name)
            checks.check_not_internal(topic.name)
            now_ms = call.context.clock.wall_ms()
            await call.context.catalog.delete(
                topic.account, topic.region, topic.name, now_ms=now_ms
            )
            result = delete_wire.DeletableTopicResult(topic.name, checks.id_of(topic))
        except API_ERRORS as error:
            fields = error_fields(error)
            result = delete_wire.DeletableTopicResult(state.name, state.topic_id, **fields)
        results.append(result)
    return delete_wire.Response(responses=results)


def _find_to_delete(call: KafkaCall, state: delete_wire.DeleteTopicState) -> Topic:
    if (state.name is None) == (state.topic_id == ZERO_UUID):
        raise invalid_request("Give either the name or the id of a topic to delete.")
    if state.name is None:
        topic = checks.find_id(call.context, state.topic_id)
        if topic is None or not on_topic(call, Operation.DESCRIBE, topic.name, topic):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)  # an id must not reveal that a topic exists
        return topic
    checks.check_topic(call, Operation.DELETE, state.name)
    return checks.topic_named(call.context, state.name)
