"""The attributes of an SNS topic in one table, which is used to check, compare and show values.

Attributes are stored as texts, as the client gave them; booleans in lower case. CreateTopic and
SetTopicAttributes reject a bad value with the same reason after different words."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from penstock.access import evaluation
from penstock.access.conditions import MalformedPolicy
from penstock.model.limits import QUEUE_PARTITIONS_MAX
from penstock.model.names import sns_arn
from penstock.model.topic import Topic
from penstock.wire.aws.sns import delivery_policy
from penstock.wire.aws.sns.faults import ON_CREATE, ON_SET, cut, fault, invalid
from penstock.wire.webhooks.content import timestamp

MESSAGE_BYTES_DEFAULT: Final = 262_144
NAME_CHARS_MAX: Final = 100  # of DisplayName
TEXT_CHARS_MAX: Final = 2_048  # of an attribute without a limit of its own: ARNs, small documents
ARCHIVE_DAYS_MAX: Final = 365
DAY_MS: Final = 24 * 3_600_000
KMS_KEY: Final = "KmsMasterKeyId"
SCOPE, PER_GROUP = "FifoThroughputScope", "MessageGroup"  # of deduplication
STREAM, PARTITIONS, RETENTION = "PenstockStream", "PenstockPartitions", "PenstockRetentionMs"
# What the default policy allows the owner, in the order of SNS.
OWNER_ACTIONS: Final = (
    "GetTopicAttributes",
    "SetTopicAttributes",
    "AddPermission",
    "RemovePermission",
    "DeleteTopic",
    "Subscribe",
    "ListSubscriptionsByTopic",
    "Publish",
)


class Bad(ValueError):
    """The reason why a value is rejected."""


def _boolean(text: str) -> str:
    if text.lower() not in ("true", "false"):
        raise Bad(f"Invalid value [{text}]. Must be true or false.")
    return text.lower()


def _one_of(*values: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in values:
            raise Bad(f"Invalid value [{text}]. Must be one of {', '.join(values)}.")
        return text

    return check


def _whole(low: int, high: int) -> Callable[[str], str]:
    def check(text: str) -> str:
        is_number = text.isascii() and text.isdigit() and len(text) <= 15
        if not is_number or not low <= int(text) <= high:
            raise Bad(f"Invalid value [{text}]. Must be a number from {low} to {high}.")
        return text

    return check


def _display_name(text: str) -> str:
    if len(text) > NAME_CHARS_MAX or any(ord(each) < 32 for each in text):
        raise Bad(f"must have at most {NAME_CHARS_MAX} characters and no control characters.")
    return text


def _policy(text: str) -> str:
    if not text:
        return text
    try:
        evaluation.compile_policy(text, evaluation.Kind.RESOURCE)
    except MalformedPolicy as error:
        raise Bad(str(error)) from None
    return text


def _archive(text: str) -> str:
    document = json_object(text) if text else {}
    if document == {}:
        return ""  # ends the archive
    days = None if document is None else document.get("MessageRetentionPeriod")
    if document is None or len(document) != 1 or not isinstance(days, str | int):
        raise Bad('must be {"MessageRetentionPeriod": "DAYS"}.')
    try:
        _whole(1, ARCHIVE_DAYS_MAX)(str(days))
    except Bad:
        text = f"MessageRetentionPeriod must be from 1 to {ARCHIVE_DAYS_MAX}."
        raise Bad(text) from None
    return text


def _any(text: str) -> str:
    return text


class _Row(msgspec.Struct, frozen=True):
    check: Callable[[str], str]  # returns the text to store, or raises Bad
    is_fifo_only: bool = False
    is_create_only: bool = False


_FEEDBACK: Final = {
    f"{protocol}{name}": _Row(_whole(0, 100) if name.endswith("Rate") else _any)
    for protocol in ("HTTP", "SQS", "Lambda", "Firehose", "Application")
    for name in ("SuccessFeedbackRoleArn", "FailureFeedbackRoleArn", "SuccessFeedbackSampleRate")
}
_TABLE: Final[Mapping[str, _Row]] = {
    "DisplayName": _Row(_display_name),
    "Policy": _Row(_policy),
    "DeliveryPolicy": _Row(_any),  # checked by ``_checked``, which knows the words before
    "FifoTopic": _Row(_boolean, is_create_only=True),
    "ContentBasedDeduplication": _Row(_boolean, is_fifo_only=True),
    SCOPE: _Row(_one_of("Topic", PER_GROUP), is_fifo_only=True),
    "SignatureVersion": _Row(_one_of("1", "2")),
    KMS_KEY: _Row(_any),
    "TracingConfig": _Row(_one_of("PassThrough", "Active")),
    "MaximumMessageSize": _Row(_whole(1_024, 1_048_576)),
    "ArchivePolicy": _Row(_archive),
    STREAM: _Row(_any, is_create_only=True),
    PARTITIONS: _Row(_whole(1, QUEUE_PARTITIONS_MAX), is_create_only=True),
    RETENTION: _Row(_whole(1, 2**53), is_create_only=True),
    **_FEEDBACK,
}


def is_fifo(given: Mapping[str, str]) -> bool:
    return given.get("FifoTopic", "").lower() == "true"


def read_new(given: Mapping[str, str]) -> dict[str, str]:
    """Check the attributes of a new topic, and return those to store."""
    kept: dict[str, str] = {}
    for name, text in given.items():
        row = _TABLE.get(name)
        if row is None or (row.is_fifo_only and not is_fifo(given)):
            raise invalid("Attributes", f"Unknown attribute {name}")
        kept[name] = _checked(name, row, text, prefix=ON_CREATE)
    if not is_fifo(given):
        kept.pop("FifoTopic", None)
    _check_partitions(kept)
    return {name: text for name, text in kept.items() if text}


def _check_partitions(kept: Mapping[str, str]) -> None:
    if STREAM in kept and not {PARTITIONS, RETENTION, "FifoTopic"}.isdisjoint(kept):
        text = f"{STREAM}: cannot be given with FifoTopic, {PARTITIONS} or {RETENTION}."
        raise invalid("Attributes", text)
    if is_one_partition(kept) and kept.get(PARTITIONS, "1") != "1":
        text = f"{PARTITIONS}: several partitions need FifoThroughputScope MessageGroup."
        raise invalid("Attributes", text)


def is_one_partition(attributes: Mapping[str, str]) -> bool:
    """Return whether a topic has a single partition, because its messages are deduplicated over all
    groups."""
    return "FifoTopic" in attributes and attributes.get(SCOPE) != PER_GROUP


def changed(topic: Topic, name: str, text: str) -> dict[str, str]:
    """Return the attributes of a topic after SetTopicAttributes."""
    assert topic.sns is not None
    row = _TABLE.get(name)
    if row is None or row.is_create_only or (row.is_fifo_only and not topic.is_fifo):
        raise invalid("AttributeName")
    kept = _checked(name, row, text, prefix=ON_SET)
    if name == SCOPE and kept != PER_GROUP and topic.partition_count > 1:
        text = f"{SCOPE}: a topic with {topic.partition_count} partitions needs {PER_GROUP}."
        raise invalid(text)
    others = {one: value for one, value in topic.sns.attributes.items() if one != name}
    return others | {name: kept} if kept else others


def _checked(name: str, row: _Row, text: str, *, prefix: str) -> str:
    if name == "DeliveryPolicy" and text:
        delivery_policy.read_topic_policy(text, prefix=prefix)
    try:
        if name not in ("DeliveryPolicy", "Policy") and len(text) > TEXT_CHARS_MAX:
            raise Bad(f"must have at most {TEXT_CHARS_MAX:,} characters.")
        return row.check(text)
    except Bad as error:
        raise fault("InvalidParameter", f"{prefix}{name}: {cut(str(error))}") from None


def first_difference(given: Mapping[str, str], topic: Topic) -> str | None:
    """Return the first attribute of a CreateTopic request that an existing topic does not have."""
    assert topic.sns is not None
    checked = read_new(given)
    # Without a value, an attribute is shown in its default.
    shown = show(topic, {}, now_ms=0) | {STREAM: topic.name, PARTITIONS: str(topic.partition_count)}
    for name in given:
        if name == "FifoTopic" and not is_fifo(given):
            continue
        text, current = checked.get(name, ""), shown.get(name, "")
        if name == "DeliveryPolicy":
            is_same = _delivery(checked) == _delivery(topic.sns.attributes)
        else:
            is_same = text == current or json_object(text) == (json_object(current) or ())
        if not is_same:
            return name
    return None


def message_bytes_max(topic: Topic) -> int:
    assert topic.sns is not None
    return int(topic.sns.attributes.get("MaximumMessageSize", MESSAGE_BYTES_DEFAULT))


def policy_of(topic: Topic) -> str:
    assert topic.sns is not None
    return topic.sns.attributes.get("Policy") or default_policy(topic)


def default_policy(topic: Topic) -> str:
    """Return the policy of SNS for a topic without one: its owner may do everything."""
    assert topic.sns is not None
    statement = {
        "Sid": "__default_statement_ID",
        "Effect": "Allow",
        "Principal": {"AWS": "*"},
        "Action": [f"SNS:{action}" for action in OWNER_ACTIONS],
        "Resource": sns_arn(topic.account, topic.region, topic.sns.name),
        "Condition": {"StringEquals": {"AWS:SourceOwner": topic.account}},
    }
    document = {"Version": "2008-10-17", "Id": "__default_policy_ID", "Statement": [statement]}
    return json.dumps(document, separators=(",", ":"))


def archive_ms(attributes: Mapping[str, str]) -> int | None:
    """Return the retention period that the ArchivePolicy of a topic sets."""
    policy = json_object(attributes.get("ArchivePolicy") or "{}") or {}
    days = policy.get("MessageRetentionPeriod")
    return None if days is None else int(days) * DAY_MS


def show(topic: Topic, counts: Mapping[str, int], *, now_ms: int) -> dict[str, str]:
    """Return all attributes. ``counts`` are the numbers of subscriptions by state."""
    assert topic.sns is not None
    given = topic.sns.attributes
    shown = {
        "TopicArn": sns_arn(topic.account, topic.region, topic.sns.name),
        "Owner": topic.account,
        "DisplayName": "",
        "SubscriptionsConfirmed": str(counts.get("confirmed", 0)),
        "SubscriptionsPending": str(counts.get("pending", 0)),
        "SubscriptionsDeleted": str(counts.get("deleted", 0)),
        **{name: text for name, text in given.items() if name in _TABLE},
        "Policy": policy_of(topic),
        "EffectiveDeliveryPolicy": delivery_policy.effective_topic_text(_delivery(given)),
    }
    policy = _delivery(given)
    if policy is not None:
        shown["DeliveryPolicy"] = delivery_policy.topic_text(policy)
    if topic.is_fifo:
        shown.setdefault("ContentBasedDeduplication", "false")
    if PARTITIONS in given:
        shown[PARTITIONS] = str(topic.partition_count)  # partitions may have been added
    archived_ms = archive_ms(given)
    if archived_ms is not None:
        begin_ms = max(topic.sns.created_at_ms, now_ms - archived_ms)
        shown["BeginningArchiveTime"] = timestamp(begin_ms)
    return shown


def _delivery(attributes: Mapping[str, str]) -> delivery_policy.TopicPolicy | None:
    text = attributes.get("DeliveryPolicy")
    return delivery_policy.read_topic_policy(text, prefix=ON_SET) if text else None


def json_object(text: str) -> dict[str, Any] | None:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
