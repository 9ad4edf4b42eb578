"""ListConfigResources: names of resources that have configs. Lists topics and groups of the
caller's tenant that the caller may describe, and client metrics for operators only."""

from collections.abc import AsyncIterator
from typing import Final

from penstock.frontend.kafka.checks import check_cluster
from penstock.frontend.kafka.configs.resources import ResourceType
from penstock.frontend.kafka.context import KafkaCall
from penstock.frontend.kafka.permissions import Operation, on_group, on_topic
from penstock.frontend.kafka.topic_lookup import topics_shown
from penstock.metadata.topics.resource_configs import CLIENT_METRICS, GROUP
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import list_config_resources as wire

_TYPES_FROM: Final = 1


async def run(call: KafkaCall, request: wire.Request) -> wire.Response:
    check_cluster(call, Operation.DESCRIBE_CONFIGS)
    if call.version < _TYPES_FROM:
        types = {int(ResourceType.CLIENT_METRICS)}
    else:
        types = set(request.resource_types) or {int(each) for each in ResourceType}
    if not types <= {int(each) for each in ResourceType}:
        return wire.Response(error_code=ErrorCode.UNSUPPORTED_VERSION)
    found = [
        wire.ConfigResource(name, each)
        for each in ResourceType
        if each in types
        async for name in _names(call, each)
    ]
    return wire.Response(config_resources=found)


async def _names(call: KafkaCall, resource_type: ResourceType) -> AsyncIterator[str]:
    stored = call.context.dynamic.stored
    if resource_type is ResourceType.TOPIC:
        async for topic in call.slices.each(topics_shown(call.context)):
            if on_topic(call, Operation.DESCRIBE_CONFIGS, topic.name, topic):
                yield topic.name
    elif resource_type is ResourceType.GROUP:
        async for name in call.slices.each(tuple(stored.names(call.context.account, GROUP))):
            if on_group(call, Operation.DESCRIBE_CONFIGS, name):
                yield name
    elif resource_type is ResourceType.CLIENT_METRICS:
        if call.caller.is_trusted or call.caller.is_operator:
            for name in sorted(stored.names(call.context.config.account, CLIENT_METRICS)):
                yield name
    else:
        for broker in call.context.brokers.all():
            yield str(broker.node_id)
