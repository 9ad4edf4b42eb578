"""IncrementalAlterConfigs: set or unset single configs of a topic, or add to and take from those
that are lists; all others stay."""

from collections.abc import Callable
from enum import IntEnum

from penstock.frontend.kafka.configs import TABLE, ValueType, default_of, row_of, value_of
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.named import check_not_repeated, repeated
from penstock.frontend.kafka.reconfigure import reconfigure, with_configs
from penstock.frontend.kafka.refusal import REFUSALS, Refusal, refusal_of
from penstock.frontend.kafka.resources import check_alterable
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
    context: KafkaContext, _call: KafkaCall, asked: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    twice = repeated(_resource(resource) for resource in asked.resources)
    return IncrementalAlterConfigsResponse(
        responses=[
            await _alter(context, resource, twice, is_dry=asked.validate_only)
            for resource in asked.resources
        ]
    )


def _resource(resource: AlterConfigsResource) -> str:
    return f"{resource.resource_type} {resource.resource_name}"


async def _alter(
    context: KafkaContext, resource: AlterConfigsResource, twice: frozenset[str], *, is_dry: bool
) -> AlterConfigsResourceResponse:
    code, message = ErrorCode.NONE, None
    try:
        check_not_repeated(_resource(resource), twice)
        check_alterable(resource.resource_type)
        change = _altered(resource, now_ms=context.clock.wall_ms())
        await reconfigure(context, resource.resource_name, change, is_dry=is_dry)
    except REFUSALS as error:
        refusal = refusal_of(error)
        code, message = refusal.code, refusal.message
    return AlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _altered(resource: AlterConfigsResource, *, now_ms: int) -> Callable[[Topic], Topic]:
    for name in repeated(config.name for config in resource.configs):
        raise Refusal(ErrorCode.INVALID_CONFIG, f"{name} is changed more than once.")

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
    current = value_of(topic, name) or default_of(topic, name) or ""
    parts = [part for part in current.split(",") if part]
    asked = [part.strip() for part in config.value.split(",")]
    if config.config_operation == Operation.APPEND:
        parts += [part for part in asked if part not in parts]
    else:
        parts = [part for part in parts if part not in asked]
    return ",".join(parts)


ACTION = KafkaAction(KEY, run)
