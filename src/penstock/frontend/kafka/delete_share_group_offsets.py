"""DeleteShareGroupOffsets: a share group without members forgets that it ever read some topics."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.named import check_group, check_topic, topic_named
from penstock.frontend.kafka.permissions import Operation
from penstock.frontend.kafka.refusal import REFUSALS, refusal_of
from penstock.frontend.kafka.share_groups import check_share_group
from penstock.frontend.kafka.topics import id_of
from penstock.wire.kafka.generated.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)

KEY = 92


async def run(
    context: KafkaContext, call: KafkaCall, asked: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse:
    try:
        check_group(context, call, Operation.DELETE, asked.group_id)
        await check_share_group(context, asked.group_id, must_be_empty=True)
    except REFUSALS as error:
        refusal = refusal_of(error)
        return DeleteShareGroupOffsetsResponse(
            error_code=refusal.code, error_message=refusal.message
        )
    return DeleteShareGroupOffsetsResponse(
        responses=[
            await _forgotten(context, call, asked.group_id, each.topic_name)
            async for each in call.slices.each(asked.topics)
        ]
    )


async def _forgotten(
    context: KafkaContext, call: KafkaCall, group_id: str, name: str
) -> DeleteShareGroupOffsetsResponseTopic:
    """What was never read is forgotten already."""
    try:
        check_topic(context, call, Operation.READ, name)
        topic = topic_named(context, name)
        await context.shares.close_share(topic, group_id)
    except REFUSALS as error:
        refusal = refusal_of(error)
        return DeleteShareGroupOffsetsResponseTopic(
            name, error_code=refusal.code, error_message=refusal.message
        )
    return DeleteShareGroupOffsetsResponseTopic(name, id_of(topic))


ACTION = KafkaAction(KEY, run)
