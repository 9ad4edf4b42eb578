"""DeleteTopics: delete topics and queues with all their records, by name or by id. The broker
closes the logs when the catalog changes."""

from penstock.frontend.kafka.checks import (
    check_not_internal,
    check_topic,
    repeated,
    topic_named,
    topic_with_id,
)
from penstock.frontend.kafka.context import KafkaCall
from penstock.frontend.kafka.errors import API_ERRORS, ApiError, error_fields, invalid_request
from penstock.frontend.kafka.permissions import Operation, on_topic
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import delete_topics as wire
from penstock.wire.kafka.primitives import ZERO_UUID

STATES_SINCE = 6  # the first version with topic ids


async def run(call: KafkaCall, request: wire.Request) -> wire.Response:
    states = request.topics
    if call.version < STATES_SINCE:
        states = tuple(wire.DeleteTopicState(name=name) for name in request.topic_names)
    twice = repeated(states)
    return wire.Response(
        responses=[
            await _delete(call, state, is_repeated=state in twice)
            async for state in call.slices.each(dict.fromkeys(states))
        ]
    )


async def _delete(
    call: KafkaCall, state: wire.DeleteTopicState, *, is_repeated: bool
) -> wire.DeletableTopicResult:
    try:
        if is_repeated:
            raise invalid_request("The request names this more than once.")
        topic = _find(call, state)
        check_topic(call, Operation.DELETE, topic.name)
        check_not_internal(topic.name)
        await call.context.catalog.delete(
            topic.account, topic.region, topic.name, now_ms=call.context.clock.wall_ms()
        )
        return wire.DeletableTopicResult(name=topic.name, topic_id=bytes.fromhex(topic.topic_id))
    except API_ERRORS as error:
        return wire.DeletableTopicResult(
            name=state.name, topic_id=state.topic_id, **error_fields(error)
        )


def _find(call: KafkaCall, state: wire.DeleteTopicState) -> Topic:
    if (state.name is None) == (state.topic_id == ZERO_UUID):
        raise invalid_request("Give either the name or the id of a topic to delete.")
    if state.name is None:
        topic = topic_with_id(call.context, state.topic_id)
        if not on_topic(call, Operation.DESCRIBE, topic.name, topic):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)  # an id must not reveal that a topic exists
        return topic
    check_topic(call, Operation.DELETE, state.name)
    return topic_named(call.context, state.name)
