"""DescribeConfigs: the configs of topics, groups, brokers, loggers and client metrics, with the
source of each value."""

from collections.abc import Sequence

from penstock.frontend.kafka.checks import (
    check_cluster,
    check_group,
    check_name,
    check_operator,
    check_topic,
    topic_named,
)
from penstock.frontend.kafka.configs.group_configs import configs_of, group_entries
from penstock.frontend.kafka.configs.loggers import logger_entries
from penstock.frontend.kafka.configs.metric_configs import metric_entries
from penstock.frontend.kafka.configs.node_configs import (
    check_is_this_node,
    entries_of_all,
    node_entries,
)
from penstock.frontend.kafka.configs.resources import ResourceType, unknown_resource
from penstock.frontend.kafka.configs.topic_configs import ConfigEntry, entries_of
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import API_ERRORS, error_fields
from penstock.frontend.kafka.permissions import Operation
from penstock.wire.kafka.generated import describe_configs as wire


async def run(call: KafkaCall, request: wire.Request) -> wire.Response:
    return wire.Response(
        results=[
            await _described(call, resource, request)
            async for resource in call.slices.each(dict.fromkeys(request.resources))
        ]
    )


async def _described(
    call: KafkaCall, resource: wire.DescribeConfigsResource, request: wire.Request
) -> wire.DescribeConfigsResult:
    try:
        entries = await _entries(call, resource)
    except API_ERRORS as error:
        return wire.DescribeConfigsResult(
            **error_fields(error),
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
    keys = frozenset(resource.configuration_keys or ())
    return wire.DescribeConfigsResult(
        error_message="",  # not null, as in Kafka
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[_shown(entry, request) for entry in entries if not keys or entry.name in keys],
    )


async def _entries(
    call: KafkaCall, resource: wire.DescribeConfigsResource
) -> Sequence[ConfigEntry]:
    name = resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        check_topic(call, Operation.DESCRIBE_CONFIGS, name)
        check_name(name)
        return list(entries_of(call.context, topic_named(call.context, name)))
    if resource.resource_type == ResourceType.BROKER:
        check_cluster(call, Operation.DESCRIBE_CONFIGS)
        return _entries_of_node(call.context, name)
    if resource.resource_type == ResourceType.GROUP:
        check_group(call, Operation.DESCRIBE_CONFIGS, name)
        return group_entries(await configs_of(call.context, name))
    check_operator(call, Operation.DESCRIBE_CONFIGS)
    if resource.resource_type == ResourceType.LOGGER:
        return logger_entries(call.context, name)
    if resource.resource_type == ResourceType.CLIENT_METRICS:
        return metric_entries(call.context, name)
    raise unknown_resource(resource.resource_type)


def _entries_of_node(context: KafkaContext, name: str) -> Sequence[ConfigEntry]:
    if not name:
        return entries_of_all(context.dynamic.of_all)
    check_is_this_node(context, name)
    return node_entries(context)


def _shown(entry: ConfigEntry, request: wire.Request) -> wire.DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return wire.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[wire.DescribeConfigsSynonym(*synonym) for synonym in synonyms],
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )
