"""GetQueueAttributes and SetQueueAttributes."""

from penstock.frontend.sqs.call import Action, Call
from penstock.frontend.sqs.context import Context
from penstock.frontend.sqs.rules.names import topic_of
from penstock.frontend.sqs.rules.queue_attributes import changed, requested, show
from penstock.frontend.sqs.rules.redrive import check_target
from penstock.model.calls import Stats
from penstock.model.topic import QueueStats, Topic
from penstock.wire.aws.faults import missing
from penstock.wire.aws.shapes import (
    GetQueueAttributesReply,
    GetQueueAttributesRequest,
    SetQueueAttributesRequest,
)


async def get_queue_attributes(
    context: Context, call: Call, request: GetQueueAttributesRequest
) -> GetQueueAttributesReply:
    """Return the attributes that the request names; without names, none."""
    topic = topic_of(context, call, request.queue_url)
    rows = requested(request.attribute_names or (), is_fifo=topic.is_fifo)
    stats = QueueStats()
    if any(row.is_count for row in rows):
        stats = await context.broker.call(Stats(topic))
    return GetQueueAttributesReply(attributes=show(rows, topic, stats) or None)


async def set_queue_attributes(
    context: Context, call: Call, request: SetQueueAttributesRequest
) -> None:
    topic = topic_of(context, call, request.queue_url)
    given = request.attributes
    if not given:
        raise missing("Attributes")
    now_ms = context.clock.wall_ms()

    def change(current: Topic) -> Topic:
        after = changed(current, given, now_ms=now_ms)
        if "RedrivePolicy" in given and after.settings.redrive is not None:
            check_target(context.catalog, after, after.settings.redrive)
        return after

    change(topic)  # raises the caller's faults before the metadata store is called
    await context.catalog.change(topic.account, topic.region, topic.name, change)


ACTIONS = (
    Action("GetQueueAttributes", get_queue_attributes),
    Action("SetQueueAttributes", set_queue_attributes),
)
