"""IncrementalAlterConfigs: set or unset single configs of a topic or a group, or add to and take
from those that are lists; all others stay."""

from collections.abc import Callable
from enum import IntEnum
from functools import partial

from penstock.frontend.kafka.configs import TABLE, ValueType, row_of, value_of
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.group_configs import alter_group
from penstock.frontend.kafka.reconfigure import alter_all, reconfigure, with_configs
from penstock.frontend.kafka.refusal import Refusal
from penstock.frontend.kafka.resources import ResourceType
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

KEY = 44


class Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


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
    if resource.resource_type == ResourceType.GROUP:
        await _alter_group(context, resource, is_dry=is_dry)
    else:
        change = _altered(resource, now_ms=context.clock.wall_ms())
        await reconfigure(context, resource.resource_name, change, is_dry=is_dry)


async def _alter_group(
    context: KafkaContext, resource: AlterConfigsResource, *, is_dry: bool
) -> None:
    given: dict[str, str | None] = {}
    removed: list[str] = []
    for config in resource.configs:
        if config.config_operation == Operation.DELETE:
            removed.append(config.name)
        elif config.config_operation == Operation.SET:
            given[config.name] = config.value
        else:
            raise Refusal(ErrorCode.INVALID_CONFIG, f"{config.name} is not a list.")
    await alter_group(context, resource.resource_name, given, removed=removed, is_dry=is_dry)


def _altered(resource: AlterConfigsResource, *, now_ms: int) -> Callable[[Topic], Topic]:
    def change(topic: Topic) -> Topic:
        given: dict[str, str | None] = {}
        removed: list[str] = []
        for config in resource.configs:
            row_of(config.name)
            if config.config_operation == Operation.DELETE:
                removed.append(config.name)
            elif config.config_operation == Operation.SET:
                given[config.name] = config.value
            else:
                given[config.name] = _relisted(topic, config)
        return with_configs(topic, given, now_ms=now_ms, removed=removed)

    return change


def _relisted(topic: Topic, config: AlterableConfig) -> str:
    """The list with the given parts added or taken out."""
    name = config.name
    if config.config_operation not in (Operation.APPEND, Operation.SUBTRACT):
        raise Refusal(
            ErrorCode.INVALID_REQUEST, f"There is no operation {config.config_operation}."
        )
    if TABLE[name].type is not ValueType.LIST:
        raise Refusal(ErrorCode.INVALID_CONFIG, f"{name} is not a list.")
    if config.value is None:
        raise Refusal(ErrorCode.INVALID_CONFIG, f"{name} needs a value.")
    current = value_of(topic, name) or TABLE[name].default or ""
    parts = [part for part in current.split(",") if part]
    asked = [part.strip() for part in config.value.split(",")]
    if config.config_operation == Operation.APPEND:
        parts += [part for part in asked if part not in parts]
    else:
        parts = [part for part in parts if part not in asked]
    return ",".join(parts)


ACTION = KafkaAction(KEY, run)
