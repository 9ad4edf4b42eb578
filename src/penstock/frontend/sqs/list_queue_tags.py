"""ListQueueTags: all tags of a queue."""

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.frontend.sqs.naming import topic_of
from penstock.wire.aws.shapes import ListQueueTagsReply, ListQueueTagsRequest


async def run(context: Context, call: Call, asked: ListQueueTagsRequest) -> ListQueueTagsReply:
    topic = topic_of(context, call, asked.queue_url)
    return ListQueueTagsReply(tags=dict(topic.tags) or None)


ACTION = Action("ListQueueTags", run)
