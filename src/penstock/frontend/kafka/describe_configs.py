"""DescribeConfigs: the configs of topics, of this node and of groups, with where each value comes
from."""

from collections.abc import Sequence

from penstock.frontend.kafka.configs import ConfigEntry, entries_of
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.named import topic_named
from penstock.frontend.kafka.new_topic import check_name
from penstock.frontend.kafka.node_configs import group_entries, node_entries
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
    context: KafkaContext, _call: KafkaCall, asked: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[_described(context, resource, asked) for resource in asked.resources]
    )


def _described(
    context: KafkaContext, resource: DescribeConfigsResource, asked: DescribeConfigsRequest
) -> DescribeConfigsResult:
    try:
        entries = _entries(context, resource)
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


def _entries(context: KafkaContext, resource: DescribeConfigsResource) -> Sequence[ConfigEntry]:
    name = resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        check_name(name)
        return list(entries_of(topic_named(context, name)))
    if resource.resource_type == ResourceType.NODE:
        return _entries_of_node(context, name)
    if resource.resource_type == ResourceType.GROUP:
        if not name:
            raise Refusal(ErrorCode.INVALID_REQUEST, "A group has a name.")
        return group_entries()
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
