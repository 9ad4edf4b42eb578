"""CreateQueue: a new topic read through a lease cursor, or the one that is there already.

Asking again is harmless as long as nothing contradicts: only the attributes given are compared,
tags never are. A name stays taken for a while after its queue was deleted, where the settings say
so: a new queue of the same name could otherwise be reached with URLs of the old one."""

from penstock.frontend.call import Action, Call
from penstock.frontend.context import Context
from penstock.frontend.sqs.naming import url_of
from penstock.frontend.sqs.queue_attributes import (
    NewQueue,
    first_difference,
    is_encryption_new,
    read_new,
)
from penstock.frontend.sqs.redrive import check_target
from penstock.frontend.sqs.share_queue import create_share
from penstock.frontend.sqs.tags import checked_tags, merged
from penstock.model.errors import TopicDeletedRecently, TopicExists
from penstock.model.limits import DELETED_NAME_MS
from penstock.model.names import is_for_operators, is_queue_name, is_share_name
from penstock.model.topic import Topic
from penstock.wire.aws.faults import fault, missing
from penstock.wire.aws.shapes import CreateQueueReply, CreateQueueRequest

RECEIPT_KEY_BYTES = 32


async def run(context: Context, call: Call, asked: CreateQueueRequest) -> CreateQueueReply:
    name = asked.queue_name
    if name is None:
        raise missing("QueueName")
    if is_share_name(name):
        return await create_share(context, call, asked, name)
    if not is_queue_name(name):
        raise fault(
            "InvalidParameterValue",
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
        )
    given = asked.attributes or {}
    new = read_new(name, given)
    account, region = call.account, call.region
    topic = context.catalog.find(account, region, name)
    if topic is None:
        if is_for_operators(name):
            raise fault(
                "InvalidParameterValue",
                f"{name} is reserved for the server's own topics: choose another queue name.",
            )
        tags = checked_tags(asked.tags or {})
        _check_not_just_deleted(context, account, region, name)
        topic = _new_topic(context, call, name, new, merged({}, tags, queue_name=name))
        if topic.settings.redrive is not None:
            check_target(context.catalog, topic, topic.settings.redrive)
        try:
            topic = await context.catalog.create(topic)
            return CreateQueueReply(queue_url=url_of(context, call, topic))
        except TopicExists:  # another request was faster
            topic = context.catalog.find(account, region, name)
            if topic is None:
                raise fault(
                    "QueueNameExists", "The name belongs to a topic that is not a queue."
                ) from None
    different = first_difference(given, topic)
    if different is not None:
        raise fault(
            "QueueNameExists",
            "A queue already exists with the same name and a different value for attribute "
            f"{different}",
        )
    if is_encryption_new(given, topic):
        now_ms = context.clock.wall_ms()
        await context.catalog.change(
            account, region, name, lambda t: t.with_settings(now_ms=now_ms, is_sse_managed=True)
        )
    return CreateQueueReply(queue_url=url_of(context, call, topic))


def _new_topic(
    context: Context, call: Call, name: str, new: NewQueue, tags: dict[str, str]
) -> Topic:
    now_ms = context.clock.wall_ms()
    return Topic(
        topic_id=context.entropy(16).hex(),
        account=call.account,
        region=call.region,
        name=name,
        kind=new.kind,
        partition_count=new.partition_count or context.config.partitions_default,
        created_at_ms=now_ms,
        modified_at_ms=now_ms,
        receipt_key=context.entropy(RECEIPT_KEY_BYTES),
        fsync=new.fsync,
        settings=new.settings,
        dedup_scope=new.settings.dedup_scope,
        tags=tags,
    )


def _check_not_just_deleted(context: Context, account: str, region: str, name: str) -> None:
    now_ms = context.clock.wall_ms()
    guard_ms = min(context.config.recreate_guard_ms, now_ms - context.reset_at_ms)
    if guard_ms <= 0:
        return
    # The catalog knows deletions of the last minute; a shorter guard asks as if it were later.
    asked_at_ms = now_ms + max(0, DELETED_NAME_MS - guard_ms)
    if context.catalog.recently_deleted(account, region, name, now_ms=asked_at_ms):
        raise TopicDeletedRecently(
            "You must wait 60 seconds after deleting a queue before you can create another with "
            "the same name."
        )


ACTION = Action("CreateQueue", run)
