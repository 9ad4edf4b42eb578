"""Actions that create, list, change and delete SNS topics and their permissions.

The SNS topic ``orders`` is the stream ``sns.orders``, which Kafka clients can read and write.
CreateTopic accepts an existing topic if no given attribute or tag differs."""

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Final

import msgspec

from penstock.access.decisions import Postponed
from penstock.frontend.aws.context import Call
from penstock.frontend.aws.sns.actions.tags import read_tags
from penstock.frontend.aws.sns.rules import topic_attributes
from penstock.frontend.aws.sns.rules.topic_attributes import (
    KMS_KEY,
    OWNER_ACTIONS,
    RETENTION,
    archive_ms,
    json_object,
    policy_of,
)
from penstock.model.errors import TopicExists, TopicNotFound
from penstock.model.identity import Circumstances
from penstock.model.names import SNS_PREFIX, is_account, is_for_operators, sns_arn
from penstock.model.stream import settings_of
from penstock.model.subscription import SubscriptionState
from penstock.model.topic import DedupScope, Kind, SnsTopic, Topic
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.sns import arns, shapes
from penstock.wire.aws.sns.faults import (
    fault,
    invalid,
    null_value,
    topic_not_found,
)

PAGE: Final = 100  # topics of one reply
RECEIPT_KEY_BYTES: Final = 32
STREAM_CHARS_MAX: Final = 249  # of a Kafka topic name; SNS names can be longer
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
    tags = read_tags(request.tags or ())
    protection = _checked_protection(call, request.data_protection_policy)
    everything, account, region = call.context.everything, call.account, call.region
    topic = everything.find_sns(account, region, name)
    if topic is None:
        if protection:
            attributes[DATA_PROTECTION] = protection
        make = _adopt if topic_attributes.STREAM in attributes else _create
        topic = await make(call, SnsTopic(name, call.context.clock.wall_ms(), attributes, tags))
    _check_same(topic, given, tags)
    if protection and protection != _protection(topic):
        raise _different()
    return shapes.CreateTopicReply(topic_arn=sns_arn(account, region, name))


async def _create(call: Call, sns: SnsTopic) -> Topic:
    context, attributes = call.context, sns.attributes
    is_one = topic_attributes.is_one_partition(attributes)
    count = attributes.get(topic_attributes.PARTITIONS, context.config.partitions_default)
    retention_ms = context.config.sns_retention_ms
    new = Topic(
        topic_id=context.entropy(16).hex(),
        account=call.account,
        region=call.region,
        name=stream_name(sns.name),
        kind=Kind.FIFO_STREAM if "FifoTopic" in attributes else Kind.STREAM,
        partition_count=1 if is_one else int(count),
        created_at_ms=sns.created_at_ms,
        modified_at_ms=sns.created_at_ms,
        receipt_key=context.entropy(RECEIPT_KEY_BYTES),
        configs={} if retention_ms is None else {RETENTION_MS: str(retention_ms)},
        sns=msgspec.structs.replace(sns, attributes={}),
    )
    new = _with_attributes(call, new, attributes)
    try:
        return await context.everything.create(new)
    except TopicExists:  # another request was faster, or a stream has this name
        topic = context.everything.find_sns(call.account, call.region, sns.name)
        if topic is not None:
            return topic
        text = f"The stream {new.name} exists already: adopt it with the attribute PenstockStream,"
        raise invalid("Topic Name", f"{text} or choose another name") from None


async def _adopt(call: Call, sns: SnsTopic) -> Topic:
    """Make an existing stream an SNS topic. DeleteTopic leaves the stream as it was."""
    everything, stream = call.context.everything, sns.attributes[topic_attributes.STREAM]
    topic = everything.find(call.account, call.region, stream)
    if topic is None or topic.kind is not Kind.STREAM or is_for_operators(stream):
        raise invalid("Attributes", f"PenstockStream: The stream {stream} does not exist")
    await _check_may_adopt(call, topic)

    def adopt(current: Topic) -> Topic:
        if current.sns is not None and current.sns.name != sns.name:
            text = f"PenstockStream: The stream {stream} is the SNS topic {current.sns.name}"
            raise invalid("Attributes", text)
        if settings_of(current).is_compacted:
            text = f"PenstockStream: The stream {stream} is compacted"
            raise invalid("Attributes", f"{text}, so it cannot be an SNS topic")
        if current.sns is not None:
            return current  # another request was faster
        bare = msgspec.structs.replace(current, sns=msgspec.structs.replace(sns, attributes={}))
        return _with_attributes(call, bare, sns.attributes)

    return await everything.change(topic.account, topic.region, topic.name, adopt)


async def _check_may_adopt(call: Call, stream: Topic) -> None:
    """Raise a fault unless the caller may read and write the stream: those who may publish to the
    topic or subscribe to it will do so."""
    context, http = call.context, call.http
    decisions = context.decisions

    def circumstances() -> Circumstances:
        return Circumstances(http.peer, http.is_tls, context.clock.wall_ms())

    for permission in ("sqs:ReceiveMessage", "sqs:SendMessage"):
        decide = partial(
            decisions.decide_on_queue,
            context.everything,
            call.caller,
            permission,
            arn=stream.arn,
            owner=stream.account,
            topic=stream,
            circumstances=circumstances,
        )
        try:
            decision = decide()
        except Postponed as postponed:
            asks, found = await asyncio.to_thread(postponed.evaluate)
            decisions.keep(postponed, asks, found)
            with decisions.at_once():
                decision = decide()
        if not decision.is_allowed:
            text = f"The caller needs {permission} on {stream.arn} to make it an SNS topic."
            raise fault("AuthorizationError", text)


def stream_name(name: str) -> str:
    """Return the name of a topic's stream. Of a long name, the end is replaced by a hash."""
    full = SNS_PREFIX + name
    if len(full) <= STREAM_CHARS_MAX:
        return full
    digest = sha256(name.encode()).hexdigest()[:32]
    return f"{full[: STREAM_CHARS_MAX - len(digest) - 1]}-{digest}"


def _retention(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the Kafka config that the attributes of a topic set."""
    archived_ms = archive_ms(attributes)
    if archived_ms is not None:
        return {RETENTION_MS: str(archived_ms)}
    given = attributes.get(RETENTION)
    return {} if given is None else {RETENTION_MS: given}


def _check_same(topic: Topic, given: Mapping[str, str], tags: Mapping[str, str]) -> None:
    assert topic.sns is not None
    if topic_attributes.first_difference(given, topic) is not None:
        raise _different()
    if not tags.items() <= topic.sns.tags.items():
        raise invalid("Tags", "Topic already exists with different tags")


def _different() -> Fault:
    return invalid("Attributes", "Topic already exists with different attributes")


async def delete_topic(call: Call, request: shapes.DeleteTopicRequest) -> None:
    address = arns.parse_topic(request.topic_arn, caller=call.account, region=call.region)
    everything = call.context.everything
    topic = everything.find_sns(address.account, address.region, address.name)
    if topic is None:
        return
    assert topic.sns is not None
    if topic.sns.attributes.get("ArchivePolicy"):
        raise fault("InvalidState", "Invalid state: Cannot delete a topic with an ArchivePolicy")
    now_ms, place = call.context.clock.wall_ms(), (topic.account, topic.region, topic.name)
    with suppress(TopicNotFound):  # deleted by another request
        if topic_attributes.STREAM in topic.sns.attributes:
            await everything.change(*place, _released)
        else:
            await everything.delete(*place, now_ms=now_ms)
    await call.context.subscriptions.delete_of_topic(topic.topic_id)


def _released(adopted: Topic) -> Topic:
    """Return an adopted stream as it was before."""
    assert adopted.sns is not None
    settings = adopted.settings
    if KMS_KEY in adopted.sns.attributes:
        settings = msgspec.structs.replace(settings, kms_key=None)
    return msgspec.structs.replace(adopted, settings=settings, sns=None)


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
    now_ms = call.context.clock.wall_ms()
    shown = topic_attributes.show(topic, counts, now_ms=now_ms)
    return shapes.GetTopicAttributesReply(attributes=shown)


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
    """Return a topic with other SNS attributes. Settings of its stream change with the attributes
    on which they depend: Kafka clients may have changed them too."""
    assert topic.sns is not None
    before, configs, settings = topic.sns.attributes, dict(topic.configs), topic.settings
    is_archived, was_archived = (archive_ms(each) is not None for each in (attributes, before))
    if is_archived and not was_archived:
        # Remember the retention of the stream until the archive ends.
        kept = configs.get(RETENTION_MS, attributes.get(RETENTION, ""))
        attributes = {name: text for name, text in attributes.items() if name != RETENTION}
        attributes |= {RETENTION: kept} if kept else {}
    retention = _retention(attributes)
    if retention != _retention(before):
        configs.pop(RETENTION_MS, None)
        configs |= retention
    key = attributes.get(KMS_KEY)
    if key != before.get(KMS_KEY):
        settings = msgspec.structs.replace(settings, kms_key=key)
    is_per_group = attributes.get(topic_attributes.SCOPE) == topic_attributes.PER_GROUP
    return msgspec.structs.replace(
        topic,
        settings=settings,
        configs=configs,
        dedup_scope=DedupScope.GROUP if is_per_group else DedupScope.QUEUE,
        sns=msgspec.structs.replace(topic.sns, attributes=attributes),
        modified_at_ms=call.context.clock.wall_ms(),
    )


async def _change(call: Call, topic: Topic, change: Callable[[Topic], Topic]) -> None:
    everything = call.context.everything
    await everything.change(topic.account, topic.region, topic.name, change)


# ── Permissions ──────────────────────────────────────────────────────────────────────────────


async def add_permission(call: Call, request: shapes.AddPermissionRequest) -> None:
    topic = topic_of(call, request.topic_arn)
    label, accounts, actions = request.label, request.aws_account_id, request.action_name
    if not label:
        raise null_value("label")
    if not accounts:
        raise null_value("aWSAccountId")
    if not actions:
        raise null_value("actionName")
    if not all(map(is_account, accounts)):
        raise invalid("AWSAccountId")
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
    if not label:
        raise null_value("label")

    def revoke(current: Topic) -> Topic:
        document, statements = _statements(current)
        kept = [one for one in statements if _sid(one) != label]
        if len(kept) == len(statements):
            return current
        return _with_policy(call, current, document | {"Statement": kept} if kept else {})

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
    """Return the topic with a policy; an empty one is replaced by the default policy."""
    text = json.dumps(document, separators=(",", ":")) if document else ""
    return _with_attributes(call, topic, topic_attributes.changed(topic, "Policy", text))


# ── Data protection ──────────────────────────────────────────────────────────────────────────

DATA_PROTECTION: Final = "DataProtectionPolicy"
DATA_PROTECTION_CHARS_MAX: Final = 30_720  # as in SNS


async def put_data_protection(call: Call, request: shapes.PutDataProtectionPolicyRequest) -> None:
    topic = topic_of(call, request.resource_arn)
    text = _checked_protection(call, request.data_protection_policy or "{}")

    def change(current: Topic) -> Topic:
        assert current.sns is not None
        others = {k: v for k, v in current.sns.attributes.items() if k != DATA_PROTECTION}
        return _with_attributes(call, current, others | ({DATA_PROTECTION: text} if text else {}))

    await _change(call, topic, change)


def _checked_protection(call: Call, text: str | None) -> str:
    """Return the policy to store. In development mode, test suites expect that it is stored.
    Elsewhere it is rejected, because messages are not inspected."""
    if not text:
        return ""
    if not call.context.config.is_dev:
        raise invalid(DATA_PROTECTION, "this server does not inspect messages")
    if len(text) > DATA_PROTECTION_CHARS_MAX:
        text = f"must have at most {DATA_PROTECTION_CHARS_MAX:,} characters"
        raise invalid(DATA_PROTECTION, text)
    document = json_object(text)
    if document is None:
        raise invalid(DATA_PROTECTION, "failed to parse JSON.")
    return text if document else ""


async def get_data_protection(
    call: Call, request: shapes.GetDataProtectionPolicyRequest
) -> shapes.GetDataProtectionPolicyReply:
    text = _protection(topic_of(call, request.resource_arn))
    return shapes.GetDataProtectionPolicyReply(data_protection_policy=text)


def _protection(topic: Topic) -> str:
    assert topic.sns is not None
    return topic.sns.attributes.get(DATA_PROTECTION, "")
