"""New topics of Kafka clients: valid names, and the value that is stored. ``Catalog.create`` checks
whether the topic exists.

CreateTopics: create streams, or queues with ``penstock.queue``. Each topic of the request
succeeds or fails by itself.

A request for more replicas than nodes is rejected. The manager chooses the nodes, unless the
request assigns them. A caller who may not see configs gets none in the reply.

CreatePartitions: add partitions to a topic. The broker opens them when the catalog changes.

Existing records stay where they are, so a key may then be in two partitions, as in Kafka. A FIFO
queue is rejected, because it promises order by message group.

DeleteTopics: delete topics and queues with all their records, by name or by id. The broker
closes the logs when the catalog changes."""

from collections.abc import Mapping, Sequence

import msgspec

from penstock.frontend.kafka.checks import (
    check_name,
    check_not_internal,
    check_not_repeated,
    check_topic,
    find_name,
    repeated,
    topic_named,
    topic_with_id,
)
from penstock.frontend.kafka.cluster.replicas import check_lists, invalid
from penstock.frontend.kafka.config import PARTITIONS_MAX
from penstock.frontend.kafka.configs.rows import Edit
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
from penstock.wire.kafka.generated import create_partitions as partitions_wire
from penstock.wire.kafka.generated import create_topics as wire
from penstock.wire.kafka.generated import delete_topics as delete_wire
from penstock.wire.kafka.primitives import ZERO_UUID

RECEIPT_KEY_BYTES = 32  # a stream may become a queue later, and then signs receipts


def check_partition_count(partition_count: int) -> None:
    if not 1 <= partition_count <= PARTITIONS_MAX:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"A topic has 1 to {PARTITIONS_MAX} partitions, not {partition_count}.",
        )


def new_stream(
    context: KafkaContext,
    name: str,
    partition_count: int,
    configs: Mapping[str, str | None] | None = None,
) -> Topic:
    """Return a topic to store: a stream, unless its configs make it a queue. Raises ApiError."""
    check_name(name)
    check_not_internal(name)
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


def check_replicas(context: KafkaContext, replicas: int) -> None:
    nodes = len(context.cluster.nodes)
    if not 1 <= replicas <= nodes:
        allowed = "1, for there is one node" if nodes == 1 else f"1 to {nodes}, the number of nodes"
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor must be {allowed}; it is {replicas}.",
        )


def with_replicas(context: KafkaContext, topic: Topic, replicas: int) -> Topic:
    """Return the topic unchanged on a single node."""
    if context.joined is None:
        return topic
    return msgspec.structs.replace(
        topic, configs={**topic.configs, REPLICATION_FACTOR: str(replicas)}
    )


DEFAULT = -1  # the node's default
_HIDDEN = -1


async def create_topics(call: KafkaCall, request: wire.Request) -> wire.Response:
    may_create_any = on_cluster(call, Operation.CREATE)
    twice = repeated(topic.name for topic in request.topics)
    results: dict[str, wire.CreatableTopicResult] = {}
    async for wanted in call.slices.each(request.topics):
        if wanted.name in results:
            continue  # one error for all entries of the name
        try:
            check_not_repeated(wanted.name, twice)
            if not may_create_any or wanted.name in OPERATOR_NAMES:
                check_topic(call, Operation.CREATE, wanted.name)
            topic = await _create(call.context, wanted, is_dry=request.validate_only)
            shows_configs = on_topic(call, Operation.DESCRIBE_CONFIGS, topic.name, topic)
            made = _created(call.context, topic, is_dry=request.validate_only)
            results[wanted.name] = made if shows_configs else _without_configs(made)
        except API_ERRORS as error:
            failed = api_error(error)
            if failed.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                failed = ApiError(failed.code, f"Topic '{wanted.name}' already exists.")
            results[wanted.name] = wire.CreatableTopicResult(
                name=wanted.name, **error_fields(failed)
            )
    return wire.Response(topics=tuple(results.values()))


async def _create(context: KafkaContext, wanted: wire.CreatableTopic, *, is_dry: bool) -> Topic:
    if wanted.name == OFFSETS_TOPIC and find_name(context, wanted.name) is not None:
        raise TopicExists(wanted.name)
    places = _places_of_all(context, wanted)
    topic = new_stream(
        context, wanted.name, _partition_count(context, wanted), _configs(wanted.configs)
    )
    replicas = len(places[0]) if places else _replicas(context, wanted)
    if replicas is not None:
        topic = with_replicas(context, topic, replicas)
    if places and context.joined is not None:
        topic = msgspec.structs.replace(topic, configs={**topic.configs, PLACEMENT: MANUAL})
    if context.catalog.find(topic.account, topic.region, topic.name) is not None:
        raise TopicExists(wanted.name)
    if is_dry:
        return topic
    if not places:
        return await context.catalog.create(topic)
    async with context.cluster.placed(topic, places):
        return await context.catalog.create(topic)


def _places_of_all(
    context: KafkaContext, wanted: wire.CreatableTopic
) -> Mapping[int, Sequence[int]]:
    """Return the replicas of each partition; empty: the manager chooses. Raises ApiError."""
    if not wanted.assignments:
        return {}
    if (wanted.num_partitions, wanted.replication_factor) != (DEFAULT, DEFAULT):
        raise invalid_request(
            "A topic with assignments has -1 as number of partitions and as replication factor."
        )
    check_partition_count(len(wanted.assignments))
    places = {one.partition_index: one.broker_ids for one in wanted.assignments}
    if sorted(places) != list(range(len(wanted.assignments))):
        raise invalid("The assignments must have every partition from 0 on once.")
    lists = [places[index] for index in range(len(places))]
    check_lists(lists, context.cluster.nodes, factor=len(lists[0]))
    return dict(enumerate(lists))


def _partition_count(context: KafkaContext, wanted: wire.CreatableTopic) -> int:
    if wanted.assignments:
        return len(wanted.assignments)
    if wanted.num_partitions == DEFAULT:
        return context.config.partitions_default
    return wanted.num_partitions


def _replicas(context: KafkaContext, wanted: wire.CreatableTopic) -> int | None:
    """Return None for the default of the cluster."""
    if wanted.replication_factor == DEFAULT:
        return None
    check_replicas(context, wanted.replication_factor)
    return wanted.replication_factor


def _configs(configs: Sequence[wire.CreatableTopicConfig]) -> Mapping[str, str | None]:
    for name in repeated(config.name for config in configs):
        raise ApiError(ErrorCode.INVALID_CONFIG, f"{name} is set more than once.")
    return {config.name: config.value for config in configs}


def _created(context: KafkaContext, topic: Topic, *, is_dry: bool) -> wire.CreatableTopicResult:
    return wire.CreatableTopicResult(
        name=topic.name,
        topic_id=ZERO_UUID if is_dry else bytes.fromhex(topic.topic_id),
        error_message=None,
        num_partitions=topic.partition_count,
        replication_factor=factor_of(topic, None, context.config.replicas_default),
        configs=tuple(
            wire.CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.is_read_only,
                config_source=entry.source,
            )
            for entry in entries_of(context, topic)
        ),
    )


def _without_configs(made: wire.CreatableTopicResult) -> wire.CreatableTopicResult:
    return wire.CreatableTopicResult(
        name=made.name,
        topic_id=made.topic_id,
        topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        error_message=None,
        num_partitions=_HIDDEN,
        replication_factor=_HIDDEN,
    )


async def create_partitions(
    call: KafkaCall, request: partitions_wire.Request
) -> partitions_wire.Response:
    twice = repeated(topic.name for topic in request.topics)
    results: dict[str, partitions_wire.CreatePartitionsTopicResult] = {}
    async for wanted in call.slices.each(request.topics):
        if wanted.name in results:
            continue  # one error for all entries of the name
        try:
            check_not_repeated(wanted.name, twice)
            check_topic(call, Operation.ALTER, wanted.name)
            await _grow(call.context, wanted, is_dry=request.validate_only)
            results[wanted.name] = partitions_wire.CreatePartitionsTopicResult(name=wanted.name)
        except API_ERRORS as error:
            results[wanted.name] = partitions_wire.CreatePartitionsTopicResult(
                name=wanted.name, **error_fields(error)
            )
    return partitions_wire.Response(results=tuple(results.values()))


async def _grow(
    context: KafkaContext, wanted: partitions_wire.CreatePartitionsTopic, *, is_dry: bool
) -> None:
    topic = topic_named(context, wanted.name)
    count, now_ms = topic.partition_count, context.clock.wall_ms()
    places = _places_of_added(context, topic, wanted)
    is_assigned = bool(places) and context.joined is not None

    def change(topic: Topic) -> Topic:
        _check_growth(topic, wanted.count)
        if places and topic.partition_count != count:
            raise invalid(f"{topic.name} has {topic.partition_count} partitions now.")
        configs = {**topic.configs, PLACEMENT: MANUAL} if is_assigned else topic.configs
        return msgspec.structs.replace(
            topic, partition_count=wanted.count, configs=configs, modified_at_ms=now_ms
        )

    await reconfigure(context, wanted.name, change, is_dry=is_dry or bool(places))
    if places and not is_dry:
        async with context.cluster.placed(topic, places):
            await reconfigure(context, wanted.name, change, is_dry=False)


def _check_growth(topic: Topic, count: int) -> None:
    if topic.is_fifo:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"{topic.name} is a FIFO queue: its message groups must stay in their partitions.",
        )
    if count <= topic.partition_count:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {topic.partition_count} partition(s);"
            f" {count} would not be an increase.",
        )
    check_partition_count(count)
    if topic.is_queue and count > QUEUE_PARTITIONS_MAX:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"{topic.name} is a queue, which has at most {QUEUE_PARTITIONS_MAX} partitions.",
        )


def _places_of_added(
    context: KafkaContext, topic: Topic, wanted: partitions_wire.CreatePartitionsTopic
) -> Mapping[int, Sequence[int]]:
    """Return the replicas of each new partition; empty: the manager chooses. Raises ApiError."""
    _check_growth(topic, wanted.count)
    if wanted.assignments is None:
        return {}
    added = range(topic.partition_count, wanted.count)
    if len(wanted.assignments) != len(added):
        raise invalid(
            f"{len(added)} partitions are added, and {len(wanted.assignments)} are assigned."
        )
    lists = [assignment.broker_ids for assignment in wanted.assignments]
    factor = factor_of(topic, None, context.config.replicas_default)
    check_lists(lists, context.cluster.nodes, factor=factor)
    return dict(zip(added, lists, strict=True))


STATES_SINCE = 6  # the first version with topic ids


async def delete_topics(call: KafkaCall, request: delete_wire.Request) -> delete_wire.Response:
    states = request.topics
    if call.version < STATES_SINCE:
        states = tuple(delete_wire.DeleteTopicState(name=name) for name in request.topic_names)
    twice = repeated(states)
    return delete_wire.Response(
        responses=[
            await _delete(call, state, is_repeated=state in twice)
            async for state in call.slices.each(dict.fromkeys(states))
        ]
    )


async def _delete(
    call: KafkaCall, state: delete_wire.DeleteTopicState, *, is_repeated: bool
) -> delete_wire.DeletableTopicResult:
    try:
        if is_repeated:
            raise invalid_request("The request names this more than once.")
        topic = _find_to_delete(call, state)
        check_topic(call, Operation.DELETE, topic.name)
        check_not_internal(topic.name)
        await call.context.catalog.delete(
            topic.account, topic.region, topic.name, now_ms=call.context.clock.wall_ms()
        )
        return delete_wire.DeletableTopicResult(
            name=topic.name, topic_id=bytes.fromhex(topic.topic_id)
        )
    except API_ERRORS as error:
        return delete_wire.DeletableTopicResult(
            name=state.name, topic_id=state.topic_id, **error_fields(error)
        )


def _find_to_delete(call: KafkaCall, state: delete_wire.DeleteTopicState) -> Topic:
    if (state.name is None) == (state.topic_id == ZERO_UUID):
        raise invalid_request("Give either the name or the id of a topic to delete.")
    if state.name is None:
        topic = topic_with_id(call.context, state.topic_id)
        if not on_topic(call, Operation.DESCRIBE, topic.name, topic):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)  # an id must not reveal that a topic exists
        return topic
    check_topic(call, Operation.DELETE, state.name)
    return topic_named(call.context, state.name)
