"""CreateTopics: create streams, or queues with ``penstock.queue``. Each topic of the request
succeeds or fails by itself.

A request for more replicas than nodes is rejected. The manager chooses the nodes, unless the
request assigns them. A caller who may not see configs gets none in the reply."""

from collections.abc import Mapping, Sequence

import msgspec

from penstock.frontend.kafka.checks import check_not_repeated, check_topic, repeated
from penstock.frontend.kafka.cluster.assignments import check_lists, invalid
from penstock.frontend.kafka.configs.topic_configs import entries_of
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import (
    API_ERRORS,
    ApiError,
    api_error,
    error_fields,
    invalid_request,
)
from penstock.frontend.kafka.permissions import Operation, on_cluster, on_topic
from penstock.frontend.kafka.topic_lookup import find_name
from penstock.frontend.kafka.topics.new_topic import (
    check_partition_count,
    check_replicas,
    new_stream,
    with_replicas,
)
from penstock.model.errors import TopicExists
from penstock.model.names import OFFSETS_TOPIC, OPERATOR_NAMES
from penstock.model.replication import MANUAL, PLACEMENT, factor_of
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import create_topics as wire
from penstock.wire.kafka.primitives import ZERO_UUID

DEFAULT = -1  # the node's default
_HIDDEN = -1


async def run(call: KafkaCall, request: wire.Request) -> wire.Response:
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
    places = _places(context, wanted)
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


def _places(context: KafkaContext, wanted: wire.CreatableTopic) -> Mapping[int, Sequence[int]]:
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
