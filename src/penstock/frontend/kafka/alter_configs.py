"""AlterConfigs: the older way to set configs, which replaces all of a topic's: what is not given
goes back to its default. What makes a queue a queue is not touched by being left out."""

from collections.abc import Callable

from penstock.frontend.kafka.configs import FSYNC
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.named import repeated
from penstock.frontend.kafka.reconfigure import reconfigure, with_configs
from penstock.frontend.kafka.refusal import REFUSALS, Refusal, refusal_of
from penstock.frontend.kafka.resources import check_alterable
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

KEY = 33


async def run(
    context: KafkaContext, _call: KafkaCall, asked: AlterConfigsRequest
) -> AlterConfigsResponse:
    return AlterConfigsResponse(
        responses=[
            await _alter(context, resource, is_dry=asked.validate_only)
            for resource in asked.resources
        ]
    )


async def _alter(
    context: KafkaContext, resource: AlterConfigsResource, *, is_dry: bool
) -> AlterConfigsResourceResponse:
    code, message = ErrorCode.NONE, None
    try:
        check_alterable(resource.resource_type)
        change = _replaced(resource, now_ms=context.clock.wall_ms())
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


def _replaced(resource: AlterConfigsResource, *, now_ms: int) -> Callable[[Topic], Topic]:
    for name in repeated(config.name for config in resource.configs):
        raise Refusal(ErrorCode.INVALID_CONFIG, f"{name} is set more than once.")
    given = {config.name: config.value for config in resource.configs}

    def change(topic: Topic) -> Topic:
        removed = {*topic.configs, FSYNC} - given.keys()
        return with_configs(topic, given, now_ms=now_ms, removed=removed)

    return change


ACTION = KafkaAction(KEY, run)
