"""CreateQueue of ``topic:group``: another way to read the messages of a topic or a queue.

The topic must be there. Each group gets every message once, leased and deleted as from any queue,
and none of the groups sees what another has done. A new one begins behind the latest message;
PenstockStart=earliest gives it what the topic still has."""

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.frontend.call import Call
from penstock.frontend.context import Context
from penstock.frontend.sqs.naming import url_of
from penstock.frontend.sqs.queue_attributes import first_difference, invalid_value, read_new
from penstock.frontend.sqs.redrive import check_target
from penstock.frontend.sqs.tags import checked_tags, merged
from penstock.model.errors import TopicNotFound
from penstock.model.names import split_share
from penstock.model.ports import EARLIEST, LATEST
from penstock.model.topic import Kind
from penstock.wire.aws.faults import fault
from penstock.wire.aws.shapes import CreateQueueReply, CreateQueueRequest

START: Final = "PenstockStart"
_STARTS: Final[Mapping[str, int]] = {"earliest": EARLIEST, "latest": LATEST}
# What only those have that keep messages themselves.
_NOT_HERE: Final = (
    "FifoQueue",
    "PenstockPartitions",
    "PenstockFsync",
    "MessageRetentionPeriod",
    "MaximumMessageSize",
    "DelaySeconds",
)


async def create_share(
    context: Context, call: Call, asked: CreateQueueRequest, name: str
) -> CreateQueueReply:
    given = dict(asked.attributes or {})
    start = given.pop(START, "latest")
    if start not in _STARTS:
        raise invalid_value(START, "It is earliest or latest.")
    for attribute in _NOT_HERE:
        if attribute in given:
            raise fault(
                "InvalidAttributeName",
                f"{attribute} belongs to the topic that {name} reads, not to the reader.",
            )
    settings = read_new(name, given).settings
    parts = split_share(name)
    assert parts is not None, "is_share_name() says that it has two"
    topic_name, group = parts
    source = context.everything.find(call.account, call.region, topic_name)
    if source is None:
        raise TopicNotFound(topic_name)
    share = context.shares.find_share(source, group)
    if share is None:
        tags = checked_tags(asked.tags or {})
        if settings.redrive is not None:
            reader = msgspec.structs.replace(source, name=name, kind=Kind.STANDARD)
            check_target(context.catalog, reader, settings.redrive)
        share = await context.shares.open_share(
            source,
            group,
            start=_STARTS[start],
            settings=settings,
            tags=merged({}, tags, queue_name=name),
        )
    different = first_difference(given, share)
    if different is not None:
        raise fault(
            "QueueNameExists",
            "A queue already exists with the same name and a different value for attribute "
            f"{different}",
        )
    return CreateQueueReply(queue_url=url_of(context, call, share))
