"""DeleteQueue: the topic and all its messages. The broker sees the catalog change and lets go of
the log; parked receives end."""

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.frontend.sqs.naming import topic_of
from penstock.wire.aws.shapes import DeleteQueueRequest


async def run(context: Context, call: Call, asked: DeleteQueueRequest) -> None:
    topic = topic_of(context, call, asked.queue_url)
    await context.catalog.delete(
        topic.account, topic.region, topic.name, now_ms=context.clock.wall_ms()
    )


ACTION = Action("DeleteQueue", run)
