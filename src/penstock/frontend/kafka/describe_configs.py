"""DescribeConfigs: the configs of topics, groups, brokers, loggers and client metrics, with where
each value comes from."""

from collections.abc import Sequence

from penstock.frontend.kafka.configs import ConfigEntry, entries_of
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.group_configs import configs_of, group_entries
from penstock.frontend.kafka.loggers import logger_entries
from penstock.frontend.kafka.metric_configs import metric_entries
from penstock.frontend.kafka.named import (
    check_cluster,
    check_group,
    check_operator,
    check_topic,
    topic_named,
)
from penstock.frontend.kafka.new_topic import check_name
from penstock.frontend.kafka.node_configs import check_is_this_node, entries_of_all, node_entries
from penstock.frontend.kafka.permissions import Operation
from penstock.frontend.kafka.refusal import REFUSALS, refusal_of
from penstock.frontend.kafka.resources import ResourceType, unknown_resource
from penstock.wire.kafka.generated.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

KEY = 32


async def run(
    context: KafkaContext, call: KafkaCall, asked: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[
            await _described(context, call, resource, asked)
            async for resource in call.slices.each(dict.fromkeys(asked.resources))
        ]
    )


async def _described(
    context: KafkaContext,
    call: KafkaCall,
    resource: DescribeConfigsResource,
    asked: DescribeConfigsRequest,
) -> DescribeConfigsResult:
    try:
        entries = await _entries(context, call, resource)
    except REFUSALS as error:
        refusal = refusal_of(error)
        return DescribeConfigsResult(
            error_code=refusal.code,
            error_message=refusal.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
    keys = frozenset(resource.configuration_keys or ())
    return DescribeConfigsResult(
        error_message="",  # not null, as in Kafka
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[_shown(entry, asked) for entry in entries if not keys or entry.name in keys],
    )


async def _entries(
    context: KafkaContext, call: KafkaCall, resource: DescribeConfigsResource
) -> Sequence[ConfigEntry]:
    name = resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        check_topic(context, call, Operation.DESCRIBE_CONFIGS, name)
        check_name(name)
        return list(entries_of(topic_named(context, name), context))
    if resource.resource_type == ResourceType.BROKER:
        check_cluster(context, call, Operation.DESCRIBE_CONFIGS)
        return _entries_of_node(context, name)
    if resource.resource_type == ResourceType.GROUP:
        check_group(context, call, Operation.DESCRIBE_CONFIGS, name)
        return group_entries(await configs_of(context, name))
    check_operator(context, call, Operation.DESCRIBE_CONFIGS)
    if resource.resource_type == ResourceType.LOGGER:
        return logger_entries(context, name)
    if resource.resource_type == ResourceType.CLIENT_METRICS:
        return metric_entries(context, name)
    raise unknown_resource(resource.resource_type)


def _entries_of_node(context: KafkaContext, name: str) -> Sequence[ConfigEntry]:
    if not name:
        return entries_of_all(context.dynamic.of_all)
    check_is_this_node(context, name)
    return node_entries(context)


def _shown(entry: ConfigEntry, asked: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if asked.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[DescribeConfigsSynonym(*synonym) for synonym in synonyms],
        config_type=entry.type,
        documentation=entry.documentation if asked.include_documentation else None,
    )


ACTION = KafkaAction(KEY, run)
