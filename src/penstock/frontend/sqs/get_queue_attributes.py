"""GetQueueAttributes: the settings and counts asked for by name. None asked, none shown."""

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.frontend.sqs.naming import topic_of
from penstock.frontend.sqs.queue_attributes import Subject, asked_for, show
from penstock.wire.aws.shapes import GetQueueAttributesReply, GetQueueAttributesRequest


async def run(
    context: Context, call: Call, asked: GetQueueAttributesRequest
) -> GetQueueAttributesReply:
    topic = topic_of(context, call, asked.queue_url)
    rows = asked_for(asked.attribute_names or (), is_fifo=topic.is_fifo)
    if any(row.is_count for row in rows):
        subject = Subject(topic, await context.backend.stats(topic))
    else:
        subject = Subject(topic)
    return GetQueueAttributesReply(attributes=show(rows, subject) or None)


ACTION = Action("GetQueueAttributes", run)
