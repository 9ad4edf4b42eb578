"""AlterConfigs and IncrementalAlterConfigs: change the configs of topics, groups, brokers, loggers
and client metrics.

AlterConfigs replaces all configs of a resource: those that are not given get their defaults, but a
queue stays a queue. IncrementalAlterConfigs sets or deletes single configs, or adds to and takes
from those that are lists."""

from collections.abc import Callable, Mapping
from typing import Any

from penstock.frontend.kafka.checks import (
    check_group,
    check_not_repeated,
    check_operator,
    check_topic,
    repeated,
)
from penstock.frontend.kafka.configs.altered_topics import reconfigure, with_configs
from penstock.frontend.kafka.configs.broker_table import BROKER_TABLE
from penstock.frontend.kafka.configs.group_configs import GROUP_TABLE, alter_group, configs_of
from penstock.frontend.kafka.configs.loggers import alter_loggers
from penstock.frontend.kafka.configs.metric_configs import METRICS_TABLE, alter_metrics
from penstock.frontend.kafka.configs.node_configs import alter_brokers
from penstock.frontend.kafka.configs.resources import (
    Edit,
    ResourceType,
    check_alterable,
    edit_of,
    unknown_resource,
)
from penstock.frontend.kafka.configs.topic_configs import FSYNC, TABLE, ConfigRow, row_of
from penstock.frontend.kafka.context import KafkaCall
from penstock.frontend.kafka.errors import API_ERRORS, api_error, invalid_request
from penstock.frontend.kafka.permissions import Operation
from penstock.metadata.topics.resource_configs import BROKER, CLIENT_METRICS
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import alter_configs as wire
from penstock.wire.kafka.generated import incremental_alter_configs as incremental_wire

# Makes the changes of one resource from the rows of its table and the configs that are set now.
Edits = Callable[[Any, Mapping[str, ConfigRow], Mapping[str, str]], Edit]


async def replace(call: KafkaCall, request: wire.Request) -> wire.Response:
    def edits(resource: Any, _: Mapping[str, ConfigRow], current: Mapping[str, str]) -> Edit:
        given = {config.name: config.value for config in resource.configs}
        return Edit(given, frozenset(current.keys() - given.keys()))

    results = await _alter_all(call, request, edits)
    return wire.Response(
        responses=[wire.AlterConfigsResourceResponse(*result) for result in results]
    )


async def change(call: KafkaCall, request: incremental_wire.Request) -> incremental_wire.Response:
    def edits(resource: Any, rows: Mapping[str, ConfigRow], current: Mapping[str, str]) -> Edit:
        return edit_of(resource.configs, rows, current.get)

    results = await _alter_all(call, request, edits)
    return incremental_wire.Response(
        responses=[incremental_wire.AlterConfigsResourceResponse(*result) for result in results]
    )


async def _alter_all(
    call: KafkaCall, request: Any, edits: Edits
) -> list[tuple[ErrorCode, str | None, int, str]]:
    """Alter one resource after the other. Return code, message, type and name of each."""
    keys = [(each.resource_type, each.resource_name) for each in request.resources]
    twice = repeated(keys)
    results = []
    async for resource in call.slices.each(request.resources):
        key = (resource.resource_type, resource.resource_name)
        code, message = ErrorCode.NONE, None
        try:
            check_not_repeated(key, twice)
            _check_allowed(call, *key)
            check_alterable(resource.resource_type)
            for name in repeated(config.name for config in resource.configs):
                raise invalid_request(f"{name} is given more than once.")
            await _alter(call, resource, edits, is_dry=request.validate_only)
        except API_ERRORS as error:
            failed = api_error(error)
            code, message = failed.code, failed.message
        results.append((code, message, *key))
    return results


def _check_allowed(call: KafkaCall, resource_type: int, name: str) -> None:
    if resource_type == ResourceType.TOPIC:
        check_topic(call, Operation.ALTER_CONFIGS, name)
    elif resource_type == ResourceType.GROUP:
        check_group(call, Operation.ALTER_CONFIGS, name)
    else:
        check_operator(call, Operation.ALTER_CONFIGS)


async def _alter(call: KafkaCall, resource: Any, edits: Edits, *, is_dry: bool) -> None:
    context, name = call.context, resource.resource_name
    match resource.resource_type:
        case ResourceType.TOPIC:
            now_ms, defaults = context.clock.wall_ms(), context.defaults.configs

            def altered(topic: Topic) -> Topic:
                for config in resource.configs:
                    row_of(config.name)
                edit = edits(resource, TABLE, _set_on(topic))
                return with_configs(topic, edit, now_ms=now_ms, defaults=defaults)

            await reconfigure(context, name, altered, is_dry=is_dry)
        case ResourceType.GROUP:
            current = await configs_of(context, name)
            edit = edits(resource, GROUP_TABLE, current)
            await alter_group(context, name, current, edit, is_dry=is_dry)
        case ResourceType.BROKER:
            edit = edits(resource, BROKER_TABLE, context.dynamic.of(BROKER, name))
            await alter_brokers(context, name, edit, is_dry=is_dry)
        case ResourceType.CLIENT_METRICS:
            edit = edits(resource, METRICS_TABLE, context.dynamic.of(CLIENT_METRICS, name))
            await alter_metrics(context, name, edit, is_dry=is_dry)
        case _ if isinstance(resource, incremental_wire.AlterConfigsResource):
            alter_loggers(context, name, resource.configs, is_dry=is_dry)
        case _:
            raise unknown_resource(resource.resource_type)  # levels of loggers are set one by one


def _set_on(topic: Topic) -> dict[str, str]:
    """Return the configs of the topic that AlterConfigs may take away. The topic has others there,
    such as its replication factor, that are not configs of Kafka."""
    configs = {name: text for name, text in topic.configs.items() if name in TABLE}
    return configs if topic.fsync is None else configs | {FSYNC: topic.fsync.value}
