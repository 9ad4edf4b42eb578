"""AlterConfigs: the older way to set configs, which replaces all of a resource: what is not given
goes back to its default. What makes a queue a queue is not touched by being left out."""

from collections.abc import Callable, Mapping
from functools import partial

from penstock.frontend.kafka.configs import FSYNC, TABLE
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.group_configs import alter_group, configs_of
from penstock.frontend.kafka.metric_configs import alter_metrics
from penstock.frontend.kafka.node_configs import alter_brokers
from penstock.frontend.kafka.reconfigure import alter_all, reconfigure, with_configs
from penstock.frontend.kafka.resources import Edit, ResourceType, unknown_resource
from penstock.metadata.resource_configs import BROKER, CLIENT_METRICS
from penstock.model.topic import Topic
from penstock.wire.kafka.generated.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

KEY = 33


async def run(
    context: KafkaContext, call: KafkaCall, asked: AlterConfigsRequest
) -> AlterConfigsResponse:
    alter = partial(_alter, context, asked.validate_only)
    return AlterConfigsResponse(
        responses=await alter_all(
            context, call, asked.resources, alter, AlterConfigsResourceResponse
        )
    )


async def _alter(context: KafkaContext, is_dry: bool, resource: AlterConfigsResource) -> None:
    name = resource.resource_name
    given = {config.name: config.value for config in resource.configs}
    if resource.resource_type == ResourceType.TOPIC:
        await reconfigure(context, name, _replaced(context, given), is_dry=is_dry)
    elif resource.resource_type == ResourceType.GROUP:
        removed = (await configs_of(context, name)).keys() - given.keys()
        await alter_group(context, name, given, removed=removed, is_dry=is_dry)
    elif resource.resource_type == ResourceType.BROKER:
        before = context.dynamic.of(BROKER, name)
        edit = Edit(given, frozenset(before.keys() - given.keys()))
        await alter_brokers(context, name, edit, is_dry=is_dry)
    elif resource.resource_type == ResourceType.CLIENT_METRICS:
        before = context.dynamic.of(CLIENT_METRICS, name)
        edit = Edit(given, frozenset(before.keys() - given.keys()))
        await alter_metrics(context, name, edit, is_dry=is_dry)
    else:
        raise unknown_resource(resource.resource_type)  # levels of loggers are set one by one


def _replaced(context: KafkaContext, given: Mapping[str, str | None]) -> Callable[[Topic], Topic]:
    now_ms, defaults = context.clock.wall_ms(), context.defaults.configs

    def change(topic: Topic) -> Topic:
        # What else the topic keeps there, its replication factor, is not a config of Kafka.
        removed = {*(name for name in topic.configs if name in TABLE), FSYNC} - given.keys()
        return with_configs(topic, given, now_ms=now_ms, defaults=defaults, removed=removed)

    return change


ACTION = KafkaAction(KEY, run)
