"""PurgeQueue: every message of the queue, waiting, delayed or leased."""

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.frontend.sqs.naming import topic_of
from penstock.model.errors import PurgeInProgress
from penstock.wire.aws.shapes import PurgeQueueRequest


async def run(context: Context, call: Call, asked: PurgeQueueRequest) -> None:
    topic = topic_of(context, call, asked.queue_url)
    context.purges.enter(topic.topic_id, name=topic.name, now_ms=context.clock.mono_ms())
    try:
        await context.backend.purge(topic)
    except PurgeInProgress:
        raise  # someone else's purge: the minute counts
    except BaseException:
        context.purges.leave(topic.topic_id)
        raise


ACTION = Action("PurgeQueue", run)
