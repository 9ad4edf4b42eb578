"""TagQueue, UntagQueue and ListQueueTags."""

import msgspec

from penstock.frontend.sqs.call import Action, Call
from penstock.frontend.sqs.context import Context
from penstock.frontend.sqs.rules.names import topic_of
from penstock.frontend.sqs.rules.tags import check_tag_keys, checked_tags, merged
from penstock.model.topic import Topic
from penstock.wire.aws.faults import missing
from penstock.wire.aws.shapes import (
    ListQueueTagsReply,
    ListQueueTagsRequest,
    TagQueueRequest,
    UntagQueueRequest,
)


async def tag_queue(context: Context, call: Call, request: TagQueueRequest) -> None:
    topic = topic_of(context, call, request.queue_url)
    if not request.tags:
        raise missing("Tags")
    tags = checked_tags(request.tags)

    def tag(current: Topic) -> Topic:
        return msgspec.structs.replace(
            current, tags=merged(current.tags, tags, queue_name=current.name)
        )

    await context.catalog.change(topic.account, topic.region, topic.name, tag)


async def untag_queue(context: Context, call: Call, request: UntagQueueRequest) -> None:
    """Remove tags by key. A key that the queue does not have is not an error."""
    topic = topic_of(context, call, request.queue_url)
    if request.tag_keys is None:
        raise missing("TagKeys")
    check_tag_keys(request.tag_keys)
    keys = frozenset(request.tag_keys)

    def untag(current: Topic) -> Topic:
        kept = {key: value for key, value in current.tags.items() if key not in keys}
        return msgspec.structs.replace(current, tags=kept)

    await context.catalog.change(topic.account, topic.region, topic.name, untag)


async def list_queue_tags(
    context: Context, call: Call, request: ListQueueTagsRequest
) -> ListQueueTagsReply:
    topic = topic_of(context, call, request.queue_url)
    return ListQueueTagsReply(tags=dict(topic.tags) or None)


ACTIONS = (
    Action("TagQueue", tag_queue),
    Action("UntagQueue", untag_queue),
    Action("ListQueueTags", list_queue_tags),
)
