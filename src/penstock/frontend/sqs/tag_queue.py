"""TagQueue: add tags, or replace those of the same key."""

import msgspec

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.frontend.sqs.naming import topic_of
from penstock.frontend.sqs.tags import checked_tags, merged
from penstock.model.topic import Topic
from penstock.wire.aws.faults import missing
from penstock.wire.aws.shapes import TagQueueRequest


async def run(context: Context, call: Call, asked: TagQueueRequest) -> None:
    topic = topic_of(context, call, asked.queue_url)
    if not asked.tags:
        raise missing("Tags")
    tags = checked_tags(asked.tags)

    def tag(current: Topic) -> Topic:
        return msgspec.structs.replace(
            current, tags=merged(current.tags, tags, queue_name=current.name)
        )

    await context.catalog.change(topic.account, topic.region, topic.name, tag)


ACTION = Action("TagQueue", run)
