"""CreateTopics: new streams, or queues where their configs say so. Each topic of the request is
made or refused on its own.

A request for more replicas than there are nodes is rejected, because clients would believe a topic
that pretends to have three replicas. The manager chooses the nodes, unless the request assigns
them. A caller that may not see configs gets none of the topic it has created."""

from collections.abc import Mapping, Sequence

import msgspec

from penstock.frontend.kafka.assignments import check_lists, invalid
from penstock.frontend.kafka.configs import entries_of
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.named import check_not_repeated, check_topic, repeated
from penstock.frontend.kafka.new_topic import (
    check_partition_count,
    check_replicas,
    new_stream,
    with_replicas,
)
from penstock.frontend.kafka.permissions import Operation, on_cluster, on_topic
from penstock.frontend.kafka.refusal import REFUSALS, Refusal, refusal_of
from penstock.frontend.kafka.topics import find_name
from penstock.model.errors import TopicExists
from penstock.model.names import OFFSETS_TOPIC, OPERATOR_NAMES
from penstock.model.replication import MANUAL, PLACEMENT, factor_of
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.kafka.primitives import ZERO_UUID

KEY = 19
DEFAULT = -1  # leaves the number to the node
_UNTOLD = -1


async def run(
    context: KafkaContext, call: KafkaCall, asked: CreateTopicsRequest
) -> CreateTopicsResponse:
    may_create_any = on_cluster(context, call, Operation.CREATE)
    twice = repeated(topic.name for topic in asked.topics)
    results: dict[str, CreatableTopicResult] = {}
    async for wanted in call.slices.each(asked.topics):
        if wanted.name in results:
            continue  # told once that it is there twice
        try:
            check_not_repeated(wanted.name, twice)
            if not may_create_any or wanted.name in OPERATOR_NAMES:
                check_topic(context, call, Operation.CREATE, wanted.name)
            topic = await _create(context, wanted, is_dry=asked.validate_only)
            is_told = on_topic(context, call, Operation.DESCRIBE_CONFIGS, topic.name, topic)
            made = _created(context, topic, is_dry=asked.validate_only)
            results[wanted.name] = made if is_told else _without_configs(made)
        except REFUSALS as error:
            refusal = refusal_of(error)
            if refusal.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                refusal = Refusal(refusal.code, f"Topic '{wanted.name}' already exists.")
            results[wanted.name] = CreatableTopicResult(
                name=wanted.name, error_code=refusal.code, error_message=refusal.message
            )
    return CreateTopicsResponse(topics=tuple(results.values()))


async def _create(context: KafkaContext, wanted: CreatableTopic, *, is_dry: bool) -> Topic:
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


def _places(context: KafkaContext, wanted: CreatableTopic) -> Mapping[int, Sequence[int]]:
    """The replicas of each partition; empty where the manager chooses. Raises Refusal."""
    if not wanted.assignments:
        return {}
    if (wanted.num_partitions, wanted.replication_factor) != (DEFAULT, DEFAULT):
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            "A topic with assignments has -1 as number of partitions and as replication factor.",
        )
    check_partition_count(len(wanted.assignments))
    places = {one.partition_index: one.broker_ids for one in wanted.assignments}
    if sorted(places) != list(range(len(wanted.assignments))):
        raise invalid("The assignments must have every partition from 0 on once.")
    lists = [places[index] for index in range(len(places))]
    check_lists(lists, context.cluster.nodes, factor=len(lists[0]))
    return dict(enumerate(lists))


def _partition_count(context: KafkaContext, wanted: CreatableTopic) -> int:
    if wanted.assignments:
        return len(wanted.assignments)
    if wanted.num_partitions == DEFAULT:
        return context.config.partitions_default
    return wanted.num_partitions


def _replicas(context: KafkaContext, wanted: CreatableTopic) -> int | None:
    """None: the cluster's default."""
    if wanted.replication_factor == DEFAULT:
        return None
    check_replicas(context, wanted.replication_factor)
    return wanted.replication_factor


def _configs(configs: Sequence[CreatableTopicConfig]) -> Mapping[str, str | None]:
    for name in repeated(config.name for config in configs):
        raise Refusal(ErrorCode.INVALID_CONFIG, f"{name} is set more than once.")
    return {config.name: config.value for config in configs}


def _created(context: KafkaContext, topic: Topic, *, is_dry: bool) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name,
        topic_id=ZERO_UUID if is_dry else bytes.fromhex(topic.topic_id),
        error_message=None,
        num_partitions=topic.partition_count,
        replication_factor=factor_of(topic, None, context.config.replicas_default),
        configs=tuple(
            CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.is_read_only,
                config_source=entry.source,
            )
            for entry in entries_of(topic, context)
        ),
    )


def _without_configs(made: CreatableTopicResult) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=made.name,
        topic_id=made.topic_id,
        topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        error_message=None,
        num_partitions=_UNTOLD,
        replication_factor=_UNTOLD,
    )


ACTION = KafkaAction(KEY, run)
