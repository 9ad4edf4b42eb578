"""ListConfigResources: names of resources that have configs. Lists topics and groups of the
caller's tenant that the caller may describe, and client metrics for operators only."""

from collections.abc import AsyncIterator
from typing import Final

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_cluster, on_group, on_topic
from penstock.frontend.kafka.resources import ResourceType
from penstock.frontend.kafka.topics import topics_shown
from penstock.metadata.resource_configs import CLIENT_METRICS, GROUP
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

KEY = 74
_TYPES_FROM: Final = 1


async def run(
    context: KafkaContext, call: KafkaCall, asked: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    if not on_cluster(context, call, Operation.DESCRIBE_CONFIGS):
        return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if call.version < _TYPES_FROM:
        types = {int(ResourceType.CLIENT_METRICS)}
    else:
        types = set(asked.resource_types) or {int(each) for each in ResourceType}
    if not types <= {int(each) for each in ResourceType}:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    found = [
        ConfigResource(name, each)
        for each in ResourceType
        if each in types
        async for name in _names(context, call, each)
    ]
    return ListConfigResourcesResponse(config_resources=found)


async def _names(
    context: KafkaContext, call: KafkaCall, resource_type: ResourceType
) -> AsyncIterator[str]:
    stored = context.dynamic.stored
    if resource_type is ResourceType.TOPIC:
        async for topic in call.slices.each(topics_shown(context)):
            if on_topic(context, call, Operation.DESCRIBE_CONFIGS, topic.name, topic):
                yield topic.name
    elif resource_type is ResourceType.GROUP:
        async for name in call.slices.each(tuple(stored.names(context.account, GROUP))):
            if on_group(context, call, Operation.DESCRIBE_CONFIGS, name):
                yield name
    elif resource_type is ResourceType.CLIENT_METRICS:
        if call.caller.is_trusted or call.caller.is_operator:
            for name in sorted(stored.names(context.config.account, CLIENT_METRICS)):
                yield name
    else:
        for broker in context.brokers.all():
            yield str(broker.node_id)


ACTION = KafkaAction(KEY, run)
