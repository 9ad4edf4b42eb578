"""Attributes, permissions and tags of a queue: GetQueueAttributes, SetQueueAttributes,
AddPermission, RemovePermission, TagQueue, UntagQueue and ListQueueTags."""

from collections.abc import Callable

import msgspec

from penstock.frontend.sqs.context import Call, Context
from penstock.frontend.sqs.rules import queue_policies
from penstock.frontend.sqs.rules.queue_attributes import changed, requested, show
from penstock.frontend.sqs.rules.queue_policies import check_tag_keys, checked_tags, merged_tags
from penstock.frontend.sqs.rules.requests import topic_of
from penstock.model.calls import Stats
from penstock.model.topic import QueueStats, Topic
from penstock.wire.aws import shapes as aws
from penstock.wire.aws.faults import missing


async def _change(context: Context, topic: Topic, change: Callable[[Topic], Topic]) -> None:
    await context.catalog.change(topic.account, topic.region, topic.name, change)


async def get_queue_attributes(
    context: Context, call: Call, request: aws.GetQueueAttributesRequest
) -> aws.GetQueueAttributesReply:
    """Return the attributes that the request names; without names, none."""
    topic = topic_of(context, call, request.queue_url)
    rows = requested(request.attribute_names or (), is_fifo=topic.is_fifo)
    stats = QueueStats()
    if any(row.is_count for row in rows):
        stats = await context.broker.call(Stats(topic))
    return aws.GetQueueAttributesReply(attributes=show(rows, topic, stats) or None)


async def set_queue_attributes(
    context: Context, call: Call, request: aws.SetQueueAttributesRequest
) -> None:
    topic = topic_of(context, call, request.queue_url)
    given = request.attributes
    if not given:
        raise missing("Attributes")
    now_ms = context.clock.wall_ms()

    def change(current: Topic) -> Topic:
        after = changed(current, given, now_ms=now_ms)
        if "RedrivePolicy" in given and after.settings.redrive is not None:
            queue_policies.check_target(context.catalog, after, after.settings.redrive)
        return after

    change(topic)  # raises the caller's faults before the metadata store is called
    await _change(context, topic, change)


async def add_permission(context: Context, call: Call, request: aws.AddPermissionRequest) -> None:
    topic = topic_of(context, call, request.queue_url)
    label, accounts, actions = request.label, request.aws_account_ids, request.actions
    if not label:
        raise missing("Label")
    if accounts is None:
        raise missing("AWSAccountIds")
    if not actions:
        raise missing("Actions")

    def permit(current: Topic) -> Topic:
        policy = queue_policies.add_permission(
            current.settings.policy,
            arn=current.arn,
            label=label,
            accounts=accounts,
            actions=actions,
        )
        return current.with_settings(now_ms=context.clock.wall_ms(), policy=policy)

    await _change(context, topic, permit)


async def remove_permission(
    context: Context, call: Call, request: aws.RemovePermissionRequest
) -> None:
    topic = topic_of(context, call, request.queue_url)
    label = request.label
    if not label:
        raise missing("Label")

    def revoke(current: Topic) -> Topic:
        policy = queue_policies.remove_permission(current.settings.policy, label=label)
        return current.with_settings(now_ms=context.clock.wall_ms(), policy=policy)

    await _change(context, topic, revoke)


async def tag_queue(context: Context, call: Call, request: aws.TagQueueRequest) -> None:
    topic = topic_of(context, call, request.queue_url)
    if not request.tags:
        raise missing("Tags")
    tags = checked_tags(request.tags)

    def tag(current: Topic) -> Topic:
        after = merged_tags(current.tags, tags, queue_name=current.name)
        return msgspec.structs.replace(current, tags=after)

    await _change(context, topic, tag)


async def untag_queue(context: Context, call: Call, request: aws.UntagQueueRequest) -> None:
    """Remove tags by key. A key that the queue does not have is not an error."""
    topic = topic_of(context, call, request.queue_url)
    if request.tag_keys is None:
        raise missing("TagKeys")
    check_tag_keys(request.tag_keys)
    keys = frozenset(request.tag_keys)

    def untag(current: Topic) -> Topic:
        kept = {key: value for key, value in current.tags.items() if key not in keys}
        return msgspec.structs.replace(current, tags=kept)

    await _change(context, topic, untag)


async def list_queue_tags(
    context: Context, call: Call, request: aws.ListQueueTagsRequest
) -> aws.ListQueueTagsReply:
    topic = topic_of(context, call, request.queue_url)
    return aws.ListQueueTagsReply(tags=dict(topic.tags) or None)
