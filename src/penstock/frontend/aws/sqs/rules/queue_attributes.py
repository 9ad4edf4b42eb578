"""The attributes of a queue in one table, which is used to parse, check, show and compare values.

A request for ``All`` attributes does not get our own PenstockPartitions and PenstockFsync, because
clients may fail on attributes that AWS does not document."""

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.frontend.aws.sqs.rules import queue_policies
from penstock.model.limits import QUEUE_PARTITIONS_MAX
from penstock.model.topic import DedupScope, Fsync, Kind, QueueSettings, QueueStats, Topic
from penstock.wire.aws.faults import Fault, fault, invalid_value

ALL: Final = "All"


@dataclass(frozen=True, slots=True)
class QueueAttribute:
    name: str
    field: str  # ``name`` of a topic's field, ``settings.name`` or ``stats.name``
    # Parses the value or raises ValueError. None: the attribute cannot be set.
    read: Callable[[str], object] | None = None
    text: Callable[[Any], str | None] = str  # returns None if the attribute is not shown
    same: Callable[[Any, Any], bool] = operator.eq  # compares two values
    is_fifo_only: bool = False
    is_create_only: bool = False
    is_ours: bool = False

    def of(self, topic: Topic, stats: QueueStats) -> Any:
        holder, _, name = self.field.rpartition(".")
        holders = {"": topic, "settings": topic.settings, "stats": stats}
        return getattr(holders[holder], name)

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
    return queue_policies.check_policy(text) if text else None


def _redrive_allow(text: str) -> str | None:
    return None if queue_policies.parse_redrive_allow(text) is None else text


def _same_json(given: str | None, current: str | None) -> bool:
    if given is None or current is None:
        return given == current
    return bool(json.loads(given) == json.loads(current))


def _as_seconds(value_ms: int) -> str:
    return str(value_ms // 1_000)


def _flag(value: object) -> str:
    """Return ``false`` or ``true``. As in SQS, encryption that was never set is shown as true."""
    return "false" if value is False else "true"


def _optional(value: str | None) -> str | None:
    return value or None


def _seconds(low: int, high: int) -> tuple[Callable[[str], int], Callable[[int], str]]:
    """Return the parser and formatter of an attribute shown in seconds, stored in milliseconds."""
    return _whole(low, high, 1_000), _as_seconds


_ROWS = (
    QueueAttribute("QueueArn", "arn"),
    QueueAttribute("CreatedTimestamp", "created_at_ms", text=_as_seconds),
    QueueAttribute("LastModifiedTimestamp", "modified_at_ms", text=_as_seconds),
    QueueAttribute("ApproximateNumberOfMessages", "stats.visible"),
    QueueAttribute("ApproximateNumberOfMessagesNotVisible", "stats.in_flight"),
    QueueAttribute("ApproximateNumberOfMessagesDelayed", "stats.delayed"),
    QueueAttribute("DelaySeconds", "settings.delay_ms", *_seconds(0, 900)),
    QueueAttribute("MaximumMessageSize", "settings.message_bytes_max", _whole(1_024, 1_048_576)),
    QueueAttribute("MessageRetentionPeriod", "settings.retention_ms", *_seconds(60, 1_209_600)),
    QueueAttribute("ReceiveMessageWaitTimeSeconds", "settings.wait_ms", *_seconds(0, 20)),
    QueueAttribute("VisibilityTimeout", "settings.lease_ms", *_seconds(0, 43_200)),
    QueueAttribute("Policy", "settings.policy", _policy, _optional, _same_json),
    QueueAttribute(
        "RedrivePolicy",
        "settings.redrive",
        queue_policies.parse_redrive,
        lambda redrive: None if redrive is None else queue_policies.redrive_text(redrive),
    ),
    QueueAttribute(
        "RedriveAllowPolicy", "settings.redrive_allow", _redrive_allow, _optional, _same_json
    ),
    QueueAttribute("KmsMasterKeyId", "settings.kms_key", _optional, _optional),
    QueueAttribute(
        "KmsDataKeyReusePeriodSeconds",
        "settings.kms_reuse_s",
        _whole(60, 86_400),
        # SQS does not show the default.
        lambda value: None if value == QueueSettings().kms_reuse_s else str(value),
    ),
    QueueAttribute(
        "SqsManagedSseEnabled",
        "settings.is_sse_managed",
        _bool,
        _flag,
        lambda given, current: _flag(given) == _flag(current),
    ),
    QueueAttribute(
        "FifoQueue", "is_fifo", _bool, lambda value: "true" if value else None, is_create_only=True
    ),
    QueueAttribute(
        "ContentBasedDeduplication", "settings.is_content_dedup", _bool, _flag, is_fifo_only=True
    ),
    QueueAttribute("DeduplicationScope", "settings.dedup_scope", DedupScope, is_fifo_only=True),
    QueueAttribute(
        "FifoThroughputLimit", "settings.throughput_limit", _throughput_limit, is_fifo_only=True
    ),
    QueueAttribute(
        "PenstockPartitions",
        "partition_count",
        _whole(1, QUEUE_PARTITIONS_MAX),
        is_create_only=True,
        is_ours=True,
    ),
    QueueAttribute("PenstockFsync", "fsync", Fsync, _optional, is_ours=True),
)

TABLE: Final[Mapping[str, QueueAttribute]] = {row.name: row for row in _ROWS}


def requested(names: Sequence[str], *, is_fifo: bool) -> list[QueueAttribute]:
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
    """Return the changed settings, and a dict of the given attributes that are not settings."""
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
        holder, _, field = row.field.rpartition(".")
        if holder:
            changes[field] = row.value(text)
        else:
            others[name] = row.value(text)
    if changes.get("kms_key"):
        if changes.get("is_sse_managed"):
            text = "You can use one type of server-side encryption (SSE) at one time."
            raise fault("InvalidAttributeName", f"{text} You can either enable KMS SSE or SQS SSE.")
        changes["is_sse_managed"] = False
    elif changes.get("is_sse_managed"):
        changes["kms_key"] = None
    settings: QueueSettings = msgspec.structs.replace(current, **changes)
    is_per_group = settings.throughput_limit == "perMessageGroupId"
    if is_per_group and settings.dedup_scope is not DedupScope.GROUP:
        reason = "This value requires DeduplicationScope messageGroup."
        raise invalid_value("perMessageGroupId", "FifoThroughputLimit", reason)
    return settings, others


def _kind_of_new(name: str, given: Mapping[str, str]) -> Kind:
    text = given.get("FifoQueue")
    if text is not None and not TABLE["FifoQueue"].value(text):
        raise _unknown("FifoQueue")
    if (text is not None) == name.endswith(".fifo"):
        return Kind.STANDARD if text is None else Kind.FIFO
    if text is None:
        wrong = "Can only include alphanumeric characters, hyphens, or underscores."
        raise fault("InvalidParameterValue", f"{wrong} 1 to 80 in length")
    wrong = "The name of a FIFO queue can only include alphanumeric characters, hyphens, or"
    more = "underscores, must end with .fifo suffix and be 1 to 80 in length"
    raise fault("InvalidParameterValue", f"{wrong} {more}")


def read_new(name: str, given: Mapping[str, str]) -> NewQueue:
    kind = _kind_of_new(name, given)
    settings, others = _read(given, QueueSettings(), is_fifo=kind is Kind.FIFO)
    partition_count = others.get("PenstockPartitions")
    if kind is Kind.FIFO and settings.dedup_scope is DedupScope.QUEUE:
        # Duplicates with different groups may go to different partitions, so deduplication over the
        # whole queue needs a single partition.
        if partition_count not in (None, 1):
            reason = "A FIFO queue with several partitions needs DeduplicationScope messageGroup."
            raise invalid_attribute("PenstockPartitions", reason)
        partition_count = 1
    return NewQueue(kind, settings, others.get("PenstockFsync"), partition_count)


def first_difference(given: Mapping[str, str], topic: Topic) -> str | None:
    for name, text in given.items():
        row = TABLE[name]
        if not row.same(row.value(text), row.of(topic, QueueStats())):
            return name
    return None


def is_encryption_new(given: Mapping[str, str], topic: Topic) -> bool:
    """Return True if this request is the first that sets SqsManagedSseEnabled to true."""
    text = given.get("SqsManagedSseEnabled")
    return text is not None and text.lower() == "true" and topic.settings.is_sse_managed is None


def changed(topic: Topic, given: Mapping[str, str], *, now_ms: int) -> Topic:
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
