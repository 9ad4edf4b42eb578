"""IncrementalAlterConfigs: set or unset single configs of a resource, or add to and take from those
that are lists; all others stay."""

from collections.abc import Callable
from functools import partial

from penstock.frontend.kafka.broker_table import BROKER_TABLE
from penstock.frontend.kafka.configs import TABLE, row_of, value_of
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.group_configs import GROUP_TABLE, alter_group
from penstock.frontend.kafka.loggers import alter_loggers
from penstock.frontend.kafka.metric_configs import METRICS_TABLE, alter_metrics
from penstock.frontend.kafka.node_configs import alter_brokers
from penstock.frontend.kafka.reconfigure import alter_all, reconfigure, with_configs
from penstock.frontend.kafka.resources import Edit, ResourceType, edit_of
from penstock.metadata.resource_configs import BROKER, CLIENT_METRICS
from penstock.model.topic import Topic
from penstock.wire.kafka.generated.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

KEY = 44


async def run(
    context: KafkaContext, call: KafkaCall, asked: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    alter = partial(_alter, context, asked.validate_only)
    return IncrementalAlterConfigsResponse(
        responses=await alter_all(
            context, call, asked.resources, alter, AlterConfigsResourceResponse
        )
    )


async def _alter(context: KafkaContext, is_dry: bool, resource: AlterConfigsResource) -> None:
    name, configs = resource.resource_name, resource.configs
    if resource.resource_type == ResourceType.TOPIC:
        await reconfigure(context, name, _altered(context, resource), is_dry=is_dry)
    elif resource.resource_type == ResourceType.GROUP:
        edit = edit_of(configs, GROUP_TABLE, lambda _: None)  # no group config is a list
        await alter_group(context, name, edit.given, removed=edit.removed, is_dry=is_dry)
    elif resource.resource_type == ResourceType.BROKER:
        edit = edit_of(configs, BROKER_TABLE, context.dynamic.of(BROKER, name).get)
        await alter_brokers(context, name, edit, is_dry=is_dry)
    elif resource.resource_type == ResourceType.CLIENT_METRICS:
        edit = edit_of(configs, METRICS_TABLE, context.dynamic.of(CLIENT_METRICS, name).get)
        await alter_metrics(context, name, edit, is_dry=is_dry)
    else:
        alter_loggers(context, name, configs, is_dry=is_dry)


def _altered(context: KafkaContext, resource: AlterConfigsResource) -> Callable[[Topic], Topic]:
    now_ms, defaults = context.clock.wall_ms(), context.defaults.configs

    def change(topic: Topic) -> Topic:
        for config in resource.configs:
            row_of(config.name)
        edit: Edit = edit_of(resource.configs, TABLE, partial(value_of, topic))
        return with_configs(
            topic, edit.given, now_ms=now_ms, defaults=defaults, removed=edit.removed
        )

    return change


ACTION = KafkaAction(KEY, run)
