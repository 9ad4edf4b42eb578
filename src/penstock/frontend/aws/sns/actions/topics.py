"""Actions that create, list, change and delete SNS topics, their permissions and tags.

The SNS topic ``orders`` is the stream ``sns.orders``, which Kafka clients can read and write.
CreateTopic accepts an existing topic if no given attribute or tag differs."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Final

import msgspec

from penstock.frontend.aws.context import Call
from penstock.frontend.aws.sns.rules import topic_attributes
from penstock.frontend.aws.sns.rules.topic_attributes import OWNER_ACTIONS, json_object, policy_of
from penstock.model.errors import TopicExists, TopicNotFound
from penstock.model.levels import PUSH
from penstock.model.limits import TAGS_MAX
from penstock.model.names import SNS_PREFIX, is_account, sns_arn
from penstock.model.subscription import SubscriptionState
from penstock.model.topic import Kind, QueueSettings, SnsTopic, Topic
from penstock.wire.aws.sns import arns, shapes
from penstock.wire.aws.sns.faults import (
    duplicate_tags,
    fault,
    invalid,
    no_value,
    null_value,
    topic_not_found,
)

PAGE: Final = 100  # topics of one reply
RECEIPT_KEY_BYTES: Final = 32
DAY_MS: Final = 24 * 3_600_000
STREAM_CHARS_MAX: Final = 249  # of a Kafka topic name; SNS names can be longer
TAG_KEY_MAX, TAG_VALUE_MAX = 128, 256  # characters
RETENTION_MS: Final = "retention.ms"
_PERMITTED: Final = frozenset((*OWNER_ACTIONS, "Receive"))


def topic_of(call: Call, arn: str | None) -> Topic:
    address = arns.parse_topic(arn, caller=call.account, region=call.region)
    topic = call.context.everything.find_sns(address.account, address.region, address.name)
    if topic is None:
        raise topic_not_found()
    return topic


async def create_topic(call: Call, request: shapes.CreateTopicRequest) -> shapes.CreateTopicReply:
    given = request.attributes or {}
    name = arns.check_topic_name(request.name, is_fifo=topic_attributes.is_fifo(given))
    attributes = topic_attributes.read_new(given)
    tags = _tags(request.tags or ())
    if len(tags) > TAGS_MAX:
        raise fault("TagLimitExceeded")
    everything, account, region = call.context.everything, call.account, call.region
    topic = everything.find_sns(account, region, name)
    if topic is None:
        if call.context.level() < PUSH:
            text = f"SNS topics need feature level {PUSH}: upgrade all nodes, then run"
            raise fault("ServiceUnavailable", f"{text} penstock cluster upgrade.")
        new = _new_topic(call, name, attributes, tags)
        try:
            topic = await everything.create(new)
        except TopicExists:  # another request was faster, or a stream has this name
            topic = everything.find_sns(account, region, name)
            if topic is None:
                text = f"The stream {new.name} exists already: delete it or choose another name"
                raise invalid("Topic Name", text) from None
    _check_same(topic, given, tags)
    return shapes.CreateTopicReply(topic_arn=sns_arn(account, region, name))


def _new_topic(call: Call, name: str, attributes: dict[str, str], tags: Mapping[str, str]) -> Topic:
    context, now_ms = call.context, call.context.clock.wall_ms()
    is_fifo = "FifoTopic" in attributes
    is_one_line = is_fifo and attributes.get("FifoThroughputScope") != "MessageGroup"
    count = int(attributes.pop(topic_attributes.PARTITIONS, context.config.partitions_default))
    retention_ms = attributes.pop(topic_attributes.RETENTION, None)
    configs = {} if retention_ms is None else {RETENTION_MS: retention_ms}
    return Topic(
        topic_id=context.entropy(16).hex(),
        account=call.account,
        region=call.region,
        name=stream_name(name),
        kind=Kind.FIFO_STREAM if is_fifo else Kind.STREAM,
        partition_count=1 if is_one_line else count,
        created_at_ms=now_ms,
        modified_at_ms=now_ms,
        receipt_key=context.entropy(RECEIPT_KEY_BYTES),
        settings=QueueSettings(kms_key=attributes.get("KmsMasterKeyId") or None),
        configs=configs | _archive(attributes),
        sns=SnsTopic(name, now_ms, attributes, dict(tags)),
    )


def stream_name(name: str) -> str:
    """Return the name of a topic's stream. Of a long name, the end is replaced by a hash."""
    full = SNS_PREFIX + name
    if len(full) <= STREAM_CHARS_MAX:
        return full
    digest = sha256(name.encode()).hexdigest()[:32]
    return f"{full[: STREAM_CHARS_MAX - len(digest) - 1]}-{digest}"


def _archive(attributes: Mapping[str, str]) -> dict[str, str]:
    policy = json_object(attributes.get("ArchivePolicy") or "{}")
    days = None if policy is None else policy.get("MessageRetentionPeriod")
    return {} if days is None else {RETENTION_MS: str(int(days) * DAY_MS)}


def _check_same(topic: Topic, given: Mapping[str, str], tags: Mapping[str, str]) -> None:
    assert topic.sns is not None
    if topic_attributes.first_difference(given, topic) is not None:
        raise invalid("Attributes", "Topic already exists with different attributes")
    if not tags.items() <= topic.sns.tags.items():
        raise invalid("Tags", "Topic already exists with different tags")


async def delete_topic(call: Call, request: shapes.DeleteTopicRequest) -> None:
    address = arns.parse_topic(request.topic_arn, caller=call.account, region=call.region)
    everything = call.context.everything
    topic = everything.find_sns(address.account, address.region, address.name)
    if topic is None:
        return
    assert topic.sns is not None
    if topic.sns.attributes.get("ArchivePolicy"):
        raise fault("InvalidState", "Invalid state: Cannot delete a topic with an ArchivePolicy")
    now_ms = call.context.clock.wall_ms()
    with suppress(TopicNotFound):  # deleted by another request
        await everything.delete(topic.account, topic.region, topic.name, now_ms=now_ms)
    await call.context.subscriptions.delete_of_topic(topic.topic_id)


async def list_topics(call: Call, request: shapes.ListTopicsRequest) -> shapes.ListTopicsReply:
    token = request.next_token or "0"
    if not (token.isascii() and token.isdigit() and len(token) <= 9):
        raise invalid("NextToken")
    start = int(token)
    found = call.context.everything.sns_topics(
        call.account, call.region, start=start, count=PAGE + 1
    )
    shown = [shapes.Topic(topic_arn=topic.sns_arn or "") for topic in found[:PAGE]]
    next_token = str(start + PAGE) if len(found) > PAGE else None
    return shapes.ListTopicsReply(topics=shown, next_token=next_token)


async def get_topic_attributes(
    call: Call, request: shapes.GetTopicAttributesRequest
) -> shapes.GetTopicAttributesReply:
    topic = topic_of(call, request.topic_arn)
    count = call.context.subscriptions.count
    counts = {state.value: count(topic.topic_id, state) for state in SubscriptionState}
    return shapes.GetTopicAttributesReply(attributes=topic_attributes.show(topic, counts))


async def set_topic_attributes(call: Call, request: shapes.SetTopicAttributesRequest) -> None:
    topic = topic_of(call, request.topic_arn)
    name, text = request.attribute_name, request.attribute_value or ""
    if not name:
        raise null_value("attributeName")

    def change(current: Topic) -> Topic:
        return _with_attributes(call, current, topic_attributes.changed(current, name, text))

    change(topic)  # raises the caller's faults before the metadata store is called
    await _change(call, topic, change)


def _with_attributes(call: Call, topic: Topic, attributes: dict[str, str]) -> Topic:
    assert topic.sns is not None
    archive, others = _archive(attributes), dict(topic.configs)
    if not archive and _archive(topic.sns.attributes):
        del others[RETENTION_MS]  # the archive ends
    return msgspec.structs.replace(
        topic,
        settings=msgspec.structs.replace(
            topic.settings, kms_key=attributes.get("KmsMasterKeyId") or None
        ),
        configs=others | archive,
        sns=msgspec.structs.replace(topic.sns, attributes=attributes),
        modified_at_ms=call.context.clock.wall_ms(),
    )


async def _change(call: Call, topic: Topic, change: Callable[[Topic], Topic]) -> None:
    everything = call.context.everything
    await everything.change(topic.account, topic.region, topic.name, change)


# ── Permissions ──────────────────────────────────────────────────────────────────────────────


async def add_permission(call: Call, request: shapes.AddPermissionRequest) -> None:
    topic = topic_of(call, request.topic_arn)
    label = request.label
    accounts, actions = request.aws_account_id or (), request.action_name or ()
    if not label:
        raise no_value("Label")
    if not accounts or not all(map(is_account, accounts)):
        raise invalid("AWSAccountId")
    if not actions:
        raise no_value("ActionName")
    if not _PERMITTED.issuperset(actions):
        raise invalid("Policy statement action out of service scope!")
    statement = {
        "Sid": label,
        "Effect": "Allow",
        "Principal": {"AWS": _one_or_many([f"arn:aws:iam::{one}:root" for one in accounts])},
        "Action": _one_or_many([f"SNS:{one}" for one in actions]),
        "Resource": topic.sns_arn,
    }

    def permit(current: Topic) -> Topic:
        document, statements = _statements(current)
        if any(_sid(one) == label for one in statements):
            raise invalid("Statement already exists")
        return _with_policy(call, current, document | {"Statement": [*statements, statement]})

    await _change(call, topic, permit)


async def remove_permission(call: Call, request: shapes.RemovePermissionRequest) -> None:
    topic, label = topic_of(call, request.topic_arn), request.label

    def revoke(current: Topic) -> Topic:
        document, statements = _statements(current)
        kept = [one for one in statements if _sid(one) != label]
        if len(kept) == len(statements):
            return current
        return _with_policy(call, current, document | {"Statement": kept})

    await _change(call, topic, revoke)


def _statements(topic: Topic) -> tuple[dict[str, object], list[object]]:
    document = json_object(policy_of(topic)) or {}
    found = document.get("Statement", [])
    return document, found if isinstance(found, list) else [found]


def _sid(statement: object) -> object:
    return statement.get("Sid") if isinstance(statement, dict) else None


def _one_or_many(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values


def _with_policy(call: Call, topic: Topic, document: dict[str, object]) -> Topic:
    text = json.dumps(document, separators=(",", ":"))
    return _with_attributes(call, topic, topic_attributes.changed(topic, "Policy", text))


# ── Tags ─────────────────────────────────────────────────────────────────────────────────────


def _tagged(call: Call, arn: str | None) -> Topic:
    address = arns.parse_tagged(arn, caller=call.account, region=call.region)
    topic = call.context.everything.find_sns(address.account, address.region, address.name)
    if topic is None:
        raise fault("ResourceNotFound")
    return topic


def _tags(given: Sequence[shapes.Tag]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for place, tag in enumerate(given, 1):
        if tag.key is None or tag.value is None:
            member = "key" if tag.key is None else "value"
            raise null_value(f"tags.{place}.member.{member}")
        if tag.key in tags:
            raise duplicate_tags()
        if not 1 <= len(tag.key) <= TAG_KEY_MAX or len(tag.value) > TAG_VALUE_MAX:
            text = f"a key has 1 to {TAG_KEY_MAX} characters, a value at most {TAG_VALUE_MAX}"
            raise invalid("Tags", text)
        tags[tag.key] = tag.value
    return tags


async def tag_resource(call: Call, request: shapes.TagResourceRequest) -> shapes.TagResourceReply:
    topic = _tagged(call, request.resource_arn)
    if request.tags is None:
        raise null_value("tags")
    tags = _tags(request.tags)

    def tag(current: Topic) -> Topic:
        return _with_tags(current, {**_current_tags(current), **tags})

    tag(topic)
    await _change(call, topic, tag)
    return shapes.TagResourceReply()


async def untag_resource(
    call: Call, request: shapes.UntagResourceRequest
) -> shapes.UntagResourceReply:
    topic = _tagged(call, request.resource_arn)
    if request.tag_keys is None:
        raise null_value("tagKeys")
    keys = frozenset(request.tag_keys)

    def untag(current: Topic) -> Topic:
        kept = {key: text for key, text in _current_tags(current).items() if key not in keys}
        return _with_tags(current, kept)

    await _change(call, topic, untag)
    return shapes.UntagResourceReply()


async def list_tags(
    call: Call, request: shapes.ListTagsForResourceRequest
) -> shapes.ListTagsForResourceReply:
    tags = _current_tags(_tagged(call, request.resource_arn))
    shown = [shapes.Tag(key=key, value=value) for key, value in tags.items()]
    return shapes.ListTagsForResourceReply(tags=shown)


def _current_tags(topic: Topic) -> Mapping[str, str]:
    assert topic.sns is not None
    return topic.sns.tags


def _with_tags(topic: Topic, tags: Mapping[str, str]) -> Topic:
    if len(tags) > TAGS_MAX:
        raise fault("TagLimitExceeded")
    assert topic.sns is not None
    return msgspec.structs.replace(topic, sns=msgspec.structs.replace(topic.sns, tags=dict(tags)))


# ── Data protection ──────────────────────────────────────────────────────────────────────────

DATA_PROTECTION: Final = "DataProtectionPolicy"


async def put_data_protection(call: Call, request: shapes.PutDataProtectionPolicyRequest) -> None:
    """Store a policy in development mode, where test suites expect it. Elsewhere it is rejected,
    because messages are not inspected."""
    topic, text = topic_of(call, request.resource_arn), request.data_protection_policy or ""
    if not call.context.config.is_dev:
        raise invalid(DATA_PROTECTION, "this server does not inspect messages")
    if text and json_object(text) is None:
        raise invalid(DATA_PROTECTION, "failed to parse JSON.")

    def change(current: Topic) -> Topic:
        assert current.sns is not None
        attributes = {k: v for k, v in current.sns.attributes.items() if k != DATA_PROTECTION}
        return _with_attributes(
            call, current, attributes | ({DATA_PROTECTION: text} if text else {})
        )

    await _change(call, topic, change)


async def get_data_protection(
    call: Call, request: shapes.GetDataProtectionPolicyRequest
) -> shapes.GetDataProtectionPolicyReply:
    topic = topic_of(call, request.resource_arn)
    assert topic.sns is not None
    text = topic.sns.attributes.get(DATA_PROTECTION, "")
    return shapes.GetDataProtectionPolicyReply(data_protection_policy=text)
