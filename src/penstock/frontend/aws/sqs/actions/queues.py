"""Actions that create, list, change and delete queues, their permissions and tags.

CreateQueue accepts an existing queue if no given attribute differs. If ``recreate_guard_ms`` is
set, the name of a deleted queue cannot be used for that time, because URLs of the old queue would
reach the new one. A page token has the page's last queue name, so any frontend can continue."""

import base64
import binascii
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from penstock.frontend.aws.context import Call, invalid, topic_of, url_of
from penstock.frontend.aws.sqs.rules import queue_attributes, queue_policies
from penstock.frontend.aws.sqs.rules.queue_attributes import NewQueue, changed, requested, show
from penstock.frontend.aws.sqs.rules.queue_policies import check_tag_keys, checked_tags, merged_tags
from penstock.model.calls import OpenShare, Purge, Stats
from penstock.model.errors import PurgeInProgress, TopicDeletedRecently, TopicExists, TopicNotFound
from penstock.model.limits import DELETED_NAME_MS
from penstock.model.names import is_for_operators, is_queue_name, is_share_name, split_share
from penstock.model.ports import EARLIEST, LATEST
from penstock.model.topic import Kind, QueueStats, Topic
from penstock.wire.aws import shapes as aws
from penstock.wire.aws.faults import fault, invalid_value, missing

PAGE_MAX: Final = 1_000
RECEIPT_KEY_BYTES: Final = 32
START: Final = "PenstockStart"
_STARTS: Final[Mapping[str, int]] = {"earliest": EARLIEST, "latest": LATEST}
# Attributes that a share does not have, because it has no messages of its own.
_NOT_OF_SHARES: Final = (
    "FifoQueue",
    "PenstockPartitions",
    "PenstockFsync",
    "MessageRetentionPeriod",
    "MaximumMessageSize",
    "DelaySeconds",
)
_PAGE_VERSION: Final = "1:"
T = TypeVar("T")
Page = tuple[list[T], str | None]  # the rows, and the token of the next page
Tags = dict[str, str]
Topics = Sequence[Topic]


async def create_queue(call: Call, request: aws.CreateQueueRequest) -> aws.Reply:
    name = request.queue_name
    if name is None:
        raise missing("QueueName")
    if is_share_name(name):
        return await _create_share(call, request, name)
    if not is_queue_name(name):
        text = "Can only include alphanumeric characters, hyphens, or underscores."
        raise invalid(f"{text} 1 to 80 in length")
    given = request.attributes or {}
    new = queue_attributes.read_new(name, given)
    account, region = call.account, call.region
    topic = call.context.catalog.find(account, region, name)
    if topic is None:
        if is_for_operators(name):
            text = f"{name} is reserved for the server's own topics: choose another queue name."
            raise invalid(text)
        tags = queue_policies.checked_tags(request.tags or {})
        _check_not_just_deleted(call, account, region, name)
        tags = queue_policies.merged_tags({}, tags, queue_name=name)
        topic = _new_topic(call, name, new, tags)
        if topic.settings.redrive is not None:
            queue_policies.check_target(call.context.catalog, topic, topic.settings.redrive)
        try:
            topic = await call.context.catalog.create(topic)
            return aws.CreateQueueReply(queue_url=url_of(call, topic))
        except TopicExists:  # another request was faster
            topic = call.context.catalog.find(account, region, name)
            if topic is None:
                text = "A topic with this name exists, but it is not a queue."
                raise fault("QueueNameExists", text) from None
    _check_same(given, topic)
    if queue_attributes.is_encryption_new(given, topic):
        now_ms = call.context.clock.wall_ms()
        await call.context.catalog.change(
            account, region, name, lambda t: t.with_settings(now_ms=now_ms, is_sse_managed=True)
        )
    return aws.CreateQueueReply(queue_url=url_of(call, topic))


def _new_topic(call: Call, name: str, new: NewQueue, tags: Tags) -> Topic:
    now_ms = call.context.clock.wall_ms()
    return Topic(
        topic_id=call.context.entropy(16).hex(),
        account=call.account,
        region=call.region,
        name=name,
        kind=new.kind,
        partition_count=new.partition_count or call.context.config.partitions_default,
        created_at_ms=now_ms,
        modified_at_ms=now_ms,
        receipt_key=call.context.entropy(RECEIPT_KEY_BYTES),
        fsync=new.fsync,
        settings=new.settings,
        dedup_scope=new.settings.dedup_scope,
        tags=tags,
    )


def _check_same(given: Mapping[str, str], topic: Topic) -> None:
    different = queue_attributes.first_difference(given, topic)
    if different is not None:
        text = "A queue already exists with the same name and a different value for attribute"
        raise fault("QueueNameExists", f"{text} {different}")


def _check_not_just_deleted(call: Call, account: str, region: str, name: str) -> None:
    now_ms = call.context.clock.wall_ms()
    guard_ms = min(call.context.config.recreate_guard_ms, now_ms - call.context.reset_at_ms)
    if guard_ms <= 0:
        return
    # The catalog guards names for DELETED_NAME_MS. Pass a later time to shorten this.
    as_of_ms = now_ms + max(0, DELETED_NAME_MS - guard_ms)
    if call.context.catalog.recently_deleted(account, region, name, now_ms=as_of_ms):
        text = "You must wait 60 seconds after deleting a queue before you can create another"
        raise TopicDeletedRecently(f"{text} with the same name.")


async def _create_share(call: Call, request: Any, name: str) -> aws.Reply:
    """Create the share ``topic:group``, a queue that delivers the messages of a topic."""
    given = dict(request.attributes or {})
    start = given.pop(START, "latest")
    if start not in _STARTS:
        raise queue_attributes.invalid_attribute(START, "The value must be earliest or latest.")
    for attribute in _NOT_OF_SHARES:
        if attribute in given:
            text = f"{attribute} is an attribute of the source topic, not of the share {name}."
            raise fault("InvalidAttributeName", text)
    settings = queue_attributes.read_new(name, given).settings
    parts = split_share(name)
    assert parts is not None, "is_share_name() is true"
    topic_name, group = parts
    source = call.context.everything.find(call.account, call.region, topic_name)
    if source is None:
        raise TopicNotFound(topic_name)
    share = call.context.broker.find_share(source, group)
    if share is None:
        tags = queue_policies.checked_tags(request.tags or {})
        tags = queue_policies.merged_tags({}, tags, queue_name=name)
        if settings.redrive is not None:
            reader = msgspec.structs.replace(source, name=name, kind=Kind.STANDARD)
            queue_policies.check_target(call.context.catalog, reader, settings.redrive)
        share = await call.context.broker.call(
            OpenShare(source, 0, group, start=_STARTS[start], settings=settings, tags=tags)
        )
    _check_same(given, share)
    return aws.CreateQueueReply(queue_url=url_of(call, share))


async def delete_queue(call: Call, request: aws.DeleteQueueRequest) -> None:
    topic = topic_of(call, request.queue_url)
    now_ms = call.context.clock.wall_ms()
    await call.context.catalog.delete(topic.account, topic.region, topic.name, now_ms=now_ms)


async def purge_queue(call: Call, request: aws.PurgeQueueRequest) -> None:
    topic = topic_of(call, request.queue_url)
    call.context.purges.begin(topic.topic_id, name=topic.name, now_ms=call.context.clock.mono_ms())
    try:
        await call.context.broker.call(Purge(topic))
    except PurgeInProgress:
        raise  # another frontend started a purge, so the minute is not cancelled
    except BaseException:
        call.context.purges.cancel(topic.topic_id)
        raise


async def get_queue_url(call: Call, request: aws.GetQueueUrlRequest) -> aws.Reply:
    name = request.queue_name
    if not name:
        raise missing("QueueName")
    account = request.queue_owner_aws_account_id or call.account
    topic = call.context.catalog.find(account, call.region, name)
    if topic is None:
        raise TopicNotFound(name)
    return aws.GetQueueUrlReply(queue_url=url_of(call, topic))


async def list_queues(call: Call, request: aws.ListQueuesRequest) -> aws.Reply:
    topics = call.context.catalog.topics(call.account, call.region, request.queue_name_prefix or "")
    urls, next_token = _page_of_urls(call, topics, request)
    return aws.ListQueuesReply(queue_urls=urls or None, next_token=next_token)


async def list_sources(call: Call, request: aws.ListDeadLetterSourceQueuesRequest) -> aws.Reply:
    sources = queue_policies.sources_of(call.context.catalog, topic_of(call, request.queue_url))
    urls, next_token = _page_of_urls(call, sources, request)
    # The only list that is in the reply even if empty: botocore's paginator indexes it.
    return aws.ListDeadLetterSourceQueuesReply(queue_urls=urls, next_token=next_token)


def _page_of_urls(call: Call, topics: Topics, request: Any) -> Page[str]:
    shown, next_token = page(topics, request.next_token, request.max_results)
    return [url_of(call, topic) for topic in shown], next_token


def page(topics: Topics, next_token: str | None, max_results: int | None) -> Page[Topic]:
    """Return a page of topics and, only if ``max_results`` is given, the token of the next page."""
    if max_results is not None and not 1 <= max_results <= PAGE_MAX:
        reason = f"MaxResults must be between 1 and {PAGE_MAX}, if provided."
        raise invalid_value(max_results, "MaxResults", reason)
    if next_token:
        topics = topics[bisect_right(topics, _name_in(next_token), key=lambda t: t.name) :]
    size = PAGE_MAX if max_results is None else max_results
    shown = list(topics[:size])
    if max_results is None or len(topics) <= size:
        return shown, None
    return shown, base64.urlsafe_b64encode((_PAGE_VERSION + shown[-1].name).encode()).decode()


def _name_in(token: str) -> str:
    try:
        text = base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        text = ""
    name = text.removeprefix(_PAGE_VERSION)
    if not text.startswith(_PAGE_VERSION) or not is_queue_name(name):
        raise invalid("Invalid or expired next token.")
    return name


async def _change(call: Call, topic: Topic, change: Callable[[Topic], Topic]) -> None:
    await call.context.catalog.change(topic.account, topic.region, topic.name, change)


async def get_queue_attributes(call: Call, request: aws.GetQueueAttributesRequest) -> aws.Reply:
    topic = topic_of(call, request.queue_url)
    rows = requested(request.attribute_names or (), is_fifo=topic.is_fifo)
    stats = QueueStats()
    if any(row.field.startswith("stats.") for row in rows):
        stats = await call.context.broker.call(Stats(topic))
    return aws.GetQueueAttributesReply(attributes=show(rows, topic, stats) or None)


async def set_queue_attributes(call: Call, request: aws.SetQueueAttributesRequest) -> None:
    topic = topic_of(call, request.queue_url)
    given = request.attributes
    if not given:
        raise missing("Attributes")
    now_ms = call.context.clock.wall_ms()

    def change(current: Topic) -> Topic:
        after = changed(current, given, now_ms=now_ms)
        if "RedrivePolicy" in given and after.settings.redrive is not None:
            queue_policies.check_target(call.context.catalog, after, after.settings.redrive)
        return after

    change(topic)  # raises the caller's faults before the metadata store is called
    await _change(call, topic, change)


async def add_permission(call: Call, request: aws.AddPermissionRequest) -> None:
    topic = topic_of(call, request.queue_url)
    label, accounts, actions = request.label, request.aws_account_ids, request.actions
    if not label:
        raise missing("Label")
    if accounts is None:
        raise missing("AWSAccountIds")
    if not actions:
        raise missing("Actions")

    def permit(current: Topic) -> Topic:
        named = partial(queue_policies.add_permission, arn=current.arn, label=label)
        policy = named(current.settings.policy, accounts=accounts, actions=actions)
        return current.with_settings(now_ms=call.context.clock.wall_ms(), policy=policy)

    await _change(call, topic, permit)


async def remove_permission(call: Call, request: aws.RemovePermissionRequest) -> None:
    topic = topic_of(call, request.queue_url)
    label = request.label
    if not label:
        raise missing("Label")

    def revoke(current: Topic) -> Topic:
        policy = queue_policies.remove_permission(current.settings.policy, label=label)
        return current.with_settings(now_ms=call.context.clock.wall_ms(), policy=policy)

    await _change(call, topic, revoke)


async def tag_queue(call: Call, request: aws.TagQueueRequest) -> None:
    topic = topic_of(call, request.queue_url)
    if not request.tags:
        raise missing("Tags")
    tags = checked_tags(request.tags)

    def tag(current: Topic) -> Topic:
        after = merged_tags(current.tags, tags, queue_name=current.name)
        return msgspec.structs.replace(current, tags=after)

    await _change(call, topic, tag)


async def untag_queue(call: Call, request: aws.UntagQueueRequest) -> None:
    topic = topic_of(call, request.queue_url)
    if request.tag_keys is None:
        raise missing("TagKeys")
    check_tag_keys(request.tag_keys)
    keys = frozenset(request.tag_keys)

    def untag(current: Topic) -> Topic:
        kept = {key: value for key, value in current.tags.items() if key not in keys}
        return msgspec.structs.replace(current, tags=kept)

    await _change(call, topic, untag)


async def list_queue_tags(call: Call, request: aws.QueueRequest) -> aws.Reply:
    topic = topic_of(call, request.queue_url)
    return aws.ListQueueTagsReply(tags=dict(topic.tags) or None)
