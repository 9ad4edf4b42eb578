"""The attributes of a queue: one table, used to parse, check, show and compare values.

Values are strings on the wire. Two attributes are ours, PenstockPartitions and PenstockFsync:
``All`` does not include them, because clients may fail on attributes that AWS does not document."""

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.frontend.sqs.rules import queue_policies
from penstock.model.limits import QUEUE_PARTITIONS_MAX
from penstock.model.topic import DedupScope, Fsync, Kind, QueueSettings, QueueStats, Redrive, Topic
from penstock.wire.aws.faults import Fault, fault

ALL: Final = "All"


@dataclass(frozen=True, slots=True)
class QueueAttribute:
    name: str
    of: Callable[[Topic, QueueStats], object]
    text: Callable[[Any], str | None] = str  # None: not shown
    # Parses the value; ValueError: invalid. None: the attribute cannot be set.
    read: Callable[[str], object] | None = None
    setting: str | None = None  # the field of QueueSettings that has the value
    is_fifo_only: bool = False
    is_create_only: bool = False
    is_count: bool = False  # shown from QueueStats
    is_ours: bool = False
    same: Callable[[Any, Any], bool] = operator.eq  # of two values

    def value(self, text: str) -> object:
        assert self.read is not None, "the attribute can be set"
        try:
            return self.read(text)
        except ValueError:
            raise invalid_attribute(self.name) from None


def invalid_attribute(name: str, reason: str = "") -> Fault:
    suffix = f" Reason: {reason}" if reason else ""
    return fault("InvalidAttributeValue", f"Invalid value for the parameter {name}.{suffix}")


def _unknown(name: str) -> Fault:
    return fault("InvalidAttributeName", f"Unknown Attribute {name}.")


def _whole(low: int, high: int, unit: int = 1) -> Callable[[str], int]:
    def read(text: str) -> int:
        is_number = text.isascii() and text.isdigit() and len(text) <= 9
        if not is_number or not low <= int(text) <= high:
            raise ValueError(text)
        return int(text) * unit

    return read


def _bool(text: str) -> bool:
    return ("false", "true").index(text.lower()) == 1


def _throughput_limit(text: str) -> str:
    if text not in ("perQueue", "perMessageGroupId"):
        raise ValueError(text)
    return text


def _policy(text: str) -> str | None:
    if not text:
        return None
    queue_policies.check_policy(text)
    return text


def _redrive_allow(text: str) -> str | None:
    return None if queue_policies.parse_redrive_allow(text) is None else text


def _redrive_text(redrive: Redrive | None) -> str | None:
    return None if redrive is None else queue_policies.redrive_text(redrive)


def _same_json(given: str | None, current: str | None) -> bool:
    if given is None or current is None:
        return given == current
    return bool(json.loads(given) == json.loads(current))


def _seconds(value_ms: int) -> str:
    return str(value_ms // 1_000)


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _sse_text(value: object) -> str:
    """Show a value that was never set as true, as SQS does."""
    return "false" if value is False else "true"


def _optional(value: str | None) -> str | None:
    return value or None


def _setting(
    name: str,
    field: str,
    read: Callable[[str], object],
    text: Callable[[Any], str | None] = str,
    **more: Any,
) -> QueueAttribute:
    return QueueAttribute(
        name, lambda topic, _: getattr(topic.settings, field), text, read, field, **more
    )


def _timed(name: str, field: str, low: int, high: int) -> QueueAttribute:
    return _setting(name, field, _whole(low, high, 1_000), _seconds)


def _count(name: str, of: Callable[[QueueStats], int]) -> QueueAttribute:
    return QueueAttribute(name, lambda _, stats: of(stats), is_count=True)


_ROWS = (
    QueueAttribute("QueueArn", lambda topic, _: topic.arn),
    QueueAttribute("CreatedTimestamp", lambda topic, _: topic.created_at_ms, _seconds),
    QueueAttribute("LastModifiedTimestamp", lambda topic, _: topic.modified_at_ms, _seconds),
    _count("ApproximateNumberOfMessages", lambda stats: stats.visible),
    _count("ApproximateNumberOfMessagesNotVisible", lambda stats: stats.in_flight),
    _count("ApproximateNumberOfMessagesDelayed", lambda stats: stats.delayed),
    _timed("DelaySeconds", "delay_ms", 0, 900),
    _setting("MaximumMessageSize", "message_bytes_max", _whole(1_024, 1_048_576)),
    _timed("MessageRetentionPeriod", "retention_ms", 60, 1_209_600),
    _timed("ReceiveMessageWaitTimeSeconds", "wait_ms", 0, 20),
    _timed("VisibilityTimeout", "lease_ms", 0, 43_200),
    _setting("Policy", "policy", _policy, _optional, same=_same_json),
    _setting("RedrivePolicy", "redrive", queue_policies.parse_redrive, _redrive_text),
    _setting("RedriveAllowPolicy", "redrive_allow", _redrive_allow, _optional, same=_same_json),
    _setting("KmsMasterKeyId", "kms_key", _optional, _optional),
    _setting(
        "KmsDataKeyReusePeriodSeconds",
        "kms_reuse_s",
        _whole(60, 86_400),
        # SQS does not show the default.
        lambda value: None if value == QueueSettings().kms_reuse_s else str(value),
    ),
    _setting(
        "SqsManagedSseEnabled",
        "is_sse_managed",
        _bool,
        _sse_text,
        same=lambda given, current: _sse_text(given) == _sse_text(current),
    ),
    QueueAttribute(
        "FifoQueue",
        lambda topic, _: topic.is_fifo,
        lambda value: "true" if value else None,
        _bool,
        is_create_only=True,
    ),
    _setting("ContentBasedDeduplication", "is_content_dedup", _bool, _flag, is_fifo_only=True),
    _setting("DeduplicationScope", "dedup_scope", DedupScope, is_fifo_only=True),
    _setting("FifoThroughputLimit", "throughput_limit", _throughput_limit, is_fifo_only=True),
    QueueAttribute(
        "PenstockPartitions",
        lambda topic, _: topic.partition_count,
        read=_whole(1, QUEUE_PARTITIONS_MAX),
        is_create_only=True,
        is_ours=True,
    ),
    QueueAttribute("PenstockFsync", lambda topic, _: topic.fsync, _optional, Fsync, is_ours=True),
)

TABLE: Final[Mapping[str, QueueAttribute]] = {row.name: row for row in _ROWS}


def requested(names: Sequence[str], *, is_fifo: bool) -> list[QueueAttribute]:
    """Return the rows that a request names. Raises InvalidAttributeName for an unknown name."""
    rows: dict[str, QueueAttribute] = {}
    for name in names:
        if name == ALL:
            rows.update({row.name: row for row in _ROWS if not row.is_ours})
        elif name in TABLE:
            rows[name] = TABLE[name]
        else:
            raise _unknown(name)
    return [row for row in rows.values() if is_fifo or not row.is_fifo_only]


def show(rows: Sequence[QueueAttribute], topic: Topic, stats: QueueStats) -> dict[str, str]:
    texts = ((row.name, row.text(row.of(topic, stats))) for row in rows)
    return {name: text for name, text in texts if text is not None}


class NewQueue(msgspec.Struct, frozen=True):
    kind: Kind
    settings: QueueSettings
    fsync: Fsync | None
    partition_count: int | None


def _read(
    given: Mapping[str, str], current: QueueSettings, *, is_fifo: bool
) -> tuple[QueueSettings, dict[str, Any]]:
    """Return the settings with the given values, and values that are not settings, by name."""
    changes: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, text in given.items():
        row = TABLE.get(name)
        if row is None or row.read is None:
            raise _unknown(name)
        if row.is_fifo_only and not is_fifo:
            # SQS has a text for the two newer FIFO attributes only.
            if name == "ContentBasedDeduplication":
                raise _unknown(name)
            text = f"You can specify the {name} only when FifoQueue is set to true."
            raise fault("InvalidAttributeName", text)
        if row.setting is not None:
            changes[row.setting] = row.value(text)
        else:
            others[name] = row.value(text)
    if changes.get("kms_key"):
        if changes.get("is_sse_managed"):
            raise fault(
                "InvalidAttributeName",
                "You can use one type of server-side encryption (SSE) at one time. "
                "You can either enable KMS SSE or SQS SSE.",
            )
        changes["is_sse_managed"] = False
    elif changes.get("is_sse_managed"):
        changes["kms_key"] = None
    settings: QueueSettings = msgspec.structs.replace(current, **changes)
    is_per_group = settings.throughput_limit == "perMessageGroupId"
    if is_per_group and settings.dedup_scope is not DedupScope.GROUP:
        raise fault(
            "InvalidParameterValue",
            "Value perMessageGroupId for parameter FifoThroughputLimit is invalid. Reason: it "
            "needs DeduplicationScope to be messageGroup.",
        )
    return settings, others


def _kind_of_new(name: str, given: Mapping[str, str]) -> Kind:
    """A FIFO queue needs both the suffix of its name and the attribute FifoQueue."""
    text = given.get("FifoQueue")
    if text is not None and not TABLE["FifoQueue"].value(text):
        raise _unknown("FifoQueue")
    if text is None:
        if name.endswith(".fifo"):
            raise fault(
                "InvalidParameterValue",
                "Can only include alphanumeric characters, hyphens, or underscores. "
                "1 to 80 in length",
            )
        return Kind.STANDARD
    if not name.endswith(".fifo"):
        raise fault(
            "InvalidParameterValue",
            "The name of a FIFO queue can only include alphanumeric characters, hyphens, or "
            "underscores, must end with .fifo suffix and be 1 to 80 in length",
        )
    return Kind.FIFO


def read_new(name: str, given: Mapping[str, str]) -> NewQueue:
    kind = _kind_of_new(name, given)
    settings, others = _read(given, QueueSettings(), is_fifo=kind is Kind.FIFO)
    partition_count = others.get("PenstockPartitions")
    if kind is Kind.FIFO and settings.dedup_scope is DedupScope.QUEUE:
        # A duplicate may have another group, so another partition, than its first: deduplication
        # over the whole queue needs a single partition, whatever the default is.
        if partition_count not in (None, 1):
            raise invalid_attribute(
                "PenstockPartitions",
                "A FIFO queue of several partitions needs DeduplicationScope messageGroup.",
            )
        partition_count = 1
    return NewQueue(kind, settings, others.get("PenstockFsync"), partition_count)


def first_difference(given: Mapping[str, str], topic: Topic) -> str | None:
    for name, text in given.items():
        row = TABLE[name]
        if not row.same(row.value(text), row.of(topic, QueueStats())):
            return name
    return None


def is_encryption_new(given: Mapping[str, str], topic: Topic) -> bool:
    """Return True if encryption is requested explicitly for the first time: the shown value stays
    the same, but messages are encrypted from now on."""
    text = given.get("SqsManagedSseEnabled")
    return text is not None and text.lower() == "true" and topic.settings.is_sse_managed is None


def changed(topic: Topic, given: Mapping[str, str], *, now_ms: int) -> Topic:
    """Return the topic with the given attributes. ``Topic.dedup_scope`` stays as created."""
    for name, text in given.items():
        row = TABLE.get(name)
        if name == "FifoQueue" and topic.is_fifo:
            if not TABLE[name].value(text):
                raise invalid_attribute("FifoQueue", "Modifying queue type is not supported.")
        elif row is None or row.is_create_only:
            raise _unknown(name)
    settings, others = _read(given, topic.settings, is_fifo=topic.is_fifo)
    fsync = others.get("PenstockFsync", topic.fsync)
    return msgspec.structs.replace(topic, settings=settings, fsync=fsync, modified_at_ms=now_ms)
