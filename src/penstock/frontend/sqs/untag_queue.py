"""UntagQueue: remove tags by key; keys that are not there are no fault."""

import msgspec

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.frontend.sqs.naming import topic_of
from penstock.frontend.sqs.tags import check_tag_keys
from penstock.model.topic import Topic
from penstock.wire.aws.faults import missing
from penstock.wire.aws.shapes import UntagQueueRequest


async def run(context: Context, call: Call, asked: UntagQueueRequest) -> None:
    topic = topic_of(context, call, asked.queue_url)
    if asked.tag_keys is None:
        raise missing("TagKeys")
    check_tag_keys(asked.tag_keys)
    keys = frozenset(asked.tag_keys)

    def untag(current: Topic) -> Topic:
        kept = {key: value for key, value in current.tags.items() if key not in keys}
        return msgspec.structs.replace(current, tags=kept)

    await context.catalog.change(topic.account, topic.region, topic.name, untag)


ACTION = Action("UntagQueue", run)
