"""DeleteTopics: topics and all their records, by name or by id; queues too. The broker sees the
catalog change and lets go of the logs."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.named import (
    check_not_internal,
    check_topic,
    repeated,
    topic_named,
    topic_with_id,
)
from penstock.frontend.kafka.permissions import Operation, on_topic
from penstock.frontend.kafka.refusal import REFUSALS, Refusal, refusal_of
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from penstock.wire.kafka.primitives import ZERO_UUID

KEY = 20
STATES_SINCE = 6  # the version from which a topic may be named by its id


async def run(
    context: KafkaContext, call: KafkaCall, asked: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    states = asked.topics
    if call.version < STATES_SINCE:
        states = tuple(DeleteTopicState(name=name) for name in asked.topic_names)
    twice = repeated(states)
    return DeleteTopicsResponse(
        responses=[
            await _delete(context, call, state, is_repeated=state in twice)
            async for state in call.slices.each(dict.fromkeys(states))
        ]
    )


async def _delete(
    context: KafkaContext, call: KafkaCall, state: DeleteTopicState, *, is_repeated: bool
) -> DeletableTopicResult:
    try:
        if is_repeated:
            raise Refusal(ErrorCode.INVALID_REQUEST, "The request names this more than once.")
        topic = _find(context, call, state)
        check_topic(context, call, Operation.DELETE, topic.name)
        check_not_internal(topic.name)
        await context.catalog.delete(
            topic.account, topic.region, topic.name, now_ms=context.clock.wall_ms()
        )
        return DeletableTopicResult(name=topic.name, topic_id=bytes.fromhex(topic.topic_id))
    except REFUSALS as error:
        refusal = refusal_of(error)
        return DeletableTopicResult(
            name=state.name,
            topic_id=state.topic_id,
            error_code=refusal.code,
            error_message=refusal.message,
        )


def _find(context: KafkaContext, call: KafkaCall, state: DeleteTopicState) -> Topic:
    if (state.name is None) == (state.topic_id == ZERO_UUID):
        raise Refusal(
            ErrorCode.INVALID_REQUEST, "A topic to delete is named by its name or by its id."
        )
    if state.name is None:
        topic = topic_with_id(context, state.topic_id)
        if not on_topic(context, call, Operation.DESCRIBE, topic.name, topic):
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_ID)  # whoever holds an id may not know of it
        return topic
    check_topic(context, call, Operation.DELETE, state.name)
    return topic_named(context, state.name)


ACTION = KafkaAction(KEY, run)
