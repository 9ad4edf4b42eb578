"""DescribeConfigs: the configs of topics, of this node and of groups, with where each value comes
from."""

from collections.abc import Sequence

from penstock.frontend.kafka.configs import ConfigEntry, entries_of
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.group_configs import configs_of, group_entries
from penstock.frontend.kafka.named import check_cluster, check_group, check_topic, topic_named
from penstock.frontend.kafka.new_topic import check_name
from penstock.frontend.kafka.node_configs import node_entries
from penstock.frontend.kafka.permissions import Operation
from penstock.frontend.kafka.refusal import REFUSALS, Refusal, refusal_of
from penstock.frontend.kafka.resources import ResourceType, unknown_resource
from penstock.wire.kafka.faults import ErrorCode
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
        error_message=None,
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
        return list(entries_of(topic_named(context, name), context.config))
    if resource.resource_type == ResourceType.NODE:
        check_cluster(context, call, Operation.DESCRIBE_CONFIGS)
        return _entries_of_node(context, name)
    if resource.resource_type == ResourceType.GROUP:
        check_group(context, call, Operation.DESCRIBE_CONFIGS, name)
        return group_entries(await configs_of(context, name))
    raise unknown_resource(resource.resource_type)


def _entries_of_node(context: KafkaContext, name: str) -> Sequence[ConfigEntry]:
    if not name:
        return ()  # what was set for all nodes at once, which is nothing
    node_id = context.config.node_id
    if name != str(node_id):
        raise Refusal(
            ErrorCode.INVALID_REQUEST, f"This is node {node_id} and there is no node {name[:100]}."
        )
    return node_entries(context)


def _shown(entry: ConfigEntry, asked: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if asked.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        synonyms=[DescribeConfigsSynonym(*synonym) for synonym in synonyms],
        config_type=entry.type,
        documentation=entry.documentation if asked.include_documentation else None,
    )


ACTION = KafkaAction(KEY, run)
