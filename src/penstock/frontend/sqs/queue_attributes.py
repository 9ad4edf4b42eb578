"""The attributes of a queue: one table row each, from which parsing, checking, showing and the
comparison for CreateQueue all follow.

Values travel as strings. A row says how a string becomes the setting's value (``read``, absent on
what can only be looked at), how the value is taken from a topic (``of``) and how it is shown
(``text``; None is not shown). Two attributes are our own, PenstockPartitions and PenstockFsync:
``All`` leaves them out, because clients that know the documented list may trip over others.

Rules that join several attributes stand below the table, in ``_settle``."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.frontend.context import PARTITIONS_MAX
from penstock.model.topic import DedupScope, Fsync, Kind, QueueSettings, QueueStats, Redrive, Topic
from penstock.wire.aws import policy
from penstock.wire.aws.faults import Fault, fault

ALL: Final = "All"


class Subject(msgspec.Struct, frozen=True):
    """What attributes are shown of: the topic, and its counts when a count was asked for."""

    topic: Topic
    stats: QueueStats = QueueStats()


@dataclass(frozen=True, slots=True)
class QueueAttribute:
    name: str
    of: Callable[[Subject], object]
    text: Callable[[Any], str | None] = str
    read: Callable[[str], object] | None = None
    setting: str | None = None  # the field of QueueSettings that holds it
    is_fifo_only: bool = False
    is_create_only: bool = False
    is_count: bool = False  # shown from QueueStats
    is_ours: bool = False
    # Equal in meaning, not in spelling: JSON may differ in spaces.
    same: Callable[[object, object], bool] = lambda given, current: given == current


def invalid_value(name: str, reason: str = "") -> Fault:
    suffix = f" Reason: {reason}" if reason else ""
    return fault("InvalidAttributeValue", f"Invalid value for the parameter {name}.{suffix}")


def _only_fifo(name: str) -> Fault:
    """The two newer FIFO attributes are refused with a reason, the older one is just unknown."""
    if name == "ContentBasedDeduplication":
        return unknown(name)
    return fault(
        "InvalidAttributeName", f"You can specify the {name} only when FifoQueue is set to true."
    )


def unknown(name: str) -> Fault:
    return fault("InvalidAttributeName", f"Unknown Attribute {name}.")


# ── How values are read and shown ────────────────────────────────────────────────────────────
def _whole(name: str, low: int, high: int, unit: int = 1) -> Callable[[str], int]:
    def read(text: str) -> int:
        is_number = text.isascii() and text.isdigit() and len(text) <= 9
        if not is_number or not low <= int(text) <= high:
            raise invalid_value(name)
        return int(text) * unit

    return read


def _choice(name: str, choices: Mapping[str, object]) -> Callable[[str], object]:
    def read(text: str) -> object:
        if text not in choices:
            raise invalid_value(name)
        return choices[text]

    return read


def _bool(name: str) -> Callable[[str], object]:
    def read(text: str) -> bool:
        lower = text.lower()
        if lower not in ("true", "false"):
            raise invalid_value(name)
        return lower == "true"

    return read


def _policy(text: str) -> str | None:
    if not text:
        return None
    policy.check_policy(text)
    return text


def _redrive_allow(text: str) -> str | None:
    """Checked here, kept as the text it came as."""
    return None if policy.parse_redrive_allow(text) is None else text


def _redrive_text(redrive: Redrive | None) -> str | None:
    return None if redrive is None else policy.redrive_text(redrive)


def _same_json(given: object, current: object) -> bool:
    if isinstance(given, str) and isinstance(current, str):
        return bool(json.loads(given) == json.loads(current))
    return given == current


def _seconds(value_ms: int) -> str:
    return str(value_ms // 1_000)


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _sse_text(value: object) -> str:
    """Where it was never said, the original says true."""
    return "false" if value is False else "true"


def _optional(value: str | None) -> str | None:
    return value or None


# ── The table ────────────────────────────────────────────────────────────────────────────────
def _setting(
    name: str,
    field: str,
    read: Callable[[str], object],
    text: Callable[[Any], str | None] = str,
    **more: Any,
) -> QueueAttribute:
    return QueueAttribute(
        name,
        of=lambda subject: getattr(subject.topic.settings, field),
        text=text,
        read=read,
        setting=field,
        **more,
    )


def _timed(name: str, field: str, low: int, high: int) -> QueueAttribute:
    return _setting(name, field, _whole(name, low, high, 1_000), _seconds)


def _shown(
    name: str, of: Callable[[Subject], object], text: Callable[[Any], str | None] = str
) -> QueueAttribute:
    return QueueAttribute(name, of=of, text=text)


def _count(name: str, of: Callable[[Subject], object]) -> QueueAttribute:
    return QueueAttribute(name, of=of, is_count=True)


_ROWS = (
    _shown("QueueArn", lambda s: s.topic.arn),
    _shown("CreatedTimestamp", lambda s: s.topic.created_at_ms, _seconds),
    _shown("LastModifiedTimestamp", lambda s: s.topic.modified_at_ms, _seconds),
    _count("ApproximateNumberOfMessages", lambda s: s.stats.visible),
    _count("ApproximateNumberOfMessagesNotVisible", lambda s: s.stats.in_flight),
    _count("ApproximateNumberOfMessagesDelayed", lambda s: s.stats.delayed),
    _timed("DelaySeconds", "delay_ms", 0, 900),
    _setting(
        "MaximumMessageSize",
        "message_bytes_max",
        _whole("MaximumMessageSize", 1_024, 1_048_576),
    ),
    _timed("MessageRetentionPeriod", "retention_ms", 60, 1_209_600),
    _timed("ReceiveMessageWaitTimeSeconds", "wait_ms", 0, 20),
    _timed("VisibilityTimeout", "lease_ms", 0, 43_200),
    _setting("Policy", "policy", _policy, _optional, same=_same_json),
    _setting("RedrivePolicy", "redrive", policy.parse_redrive, _redrive_text),
    _setting(
        "RedriveAllowPolicy",
        "redrive_allow",
        _redrive_allow,
        _optional,
        same=_same_json,
    ),
    _setting("KmsMasterKeyId", "kms_key", _optional, _optional),
    _setting(
        "KmsDataKeyReusePeriodSeconds",
        "kms_reuse_s",
        _whole("KmsDataKeyReusePeriodSeconds", 60, 86_400),
        # Hidden while it is the default, as in recorded answers.
        lambda value: None if value == QueueSettings().kms_reuse_s else str(value),
    ),
    _setting(
        "SqsManagedSseEnabled",
        "is_sse_managed",
        _bool("SqsManagedSseEnabled"),
        _sse_text,
        same=lambda given, current: _sse_text(given) == _sse_text(current),
    ),
    QueueAttribute(
        "FifoQueue",
        of=lambda s: s.topic.is_fifo,
        text=lambda value: "true" if value else None,
        read=_bool("FifoQueue"),
        is_create_only=True,
    ),
    _setting(
        "ContentBasedDeduplication",
        "is_content_dedup",
        _bool("ContentBasedDeduplication"),
        _flag,
        is_fifo_only=True,
    ),
    _setting(
        "DeduplicationScope",
        "dedup_scope",
        _choice("DeduplicationScope", {scope.value: scope for scope in DedupScope}),
        is_fifo_only=True,
    ),
    _setting(
        "FifoThroughputLimit",
        "throughput_limit",
        _choice(
            "FifoThroughputLimit",
            {"perQueue": "perQueue", "perMessageGroupId": "perMessageGroupId"},
        ),
        is_fifo_only=True,
    ),
    QueueAttribute(
        "PenstockPartitions",
        of=lambda s: s.topic.partition_count,
        read=_whole("PenstockPartitions", 1, PARTITIONS_MAX),
        is_create_only=True,
        is_ours=True,
    ),
    QueueAttribute(
        "PenstockFsync",
        of=lambda s: s.topic.fsync,
        text=_optional,
        read=_choice("PenstockFsync", {mode.value: mode for mode in Fsync}),
        is_ours=True,
    ),
)

TABLE: Final[Mapping[str, QueueAttribute]] = {row.name: row for row in _ROWS}


# ── Showing ──────────────────────────────────────────────────────────────────────────────────
def asked_for(names: Sequence[str], *, is_fifo: bool) -> list[QueueAttribute]:
    """The rows to show for the names of a request; unknown names are the caller's fault."""
    rows: dict[str, QueueAttribute] = {}
    for name in names:
        if name == ALL:
            rows.update({row.name: row for row in _ROWS if not row.is_ours})
        elif name in TABLE:
            rows[name] = TABLE[name]
        else:
            raise unknown(name)
    return [row for row in rows.values() if is_fifo or not row.is_fifo_only]


def show(rows: Sequence[QueueAttribute], subject: Subject) -> dict[str, str]:
    texts = ((row.name, row.text(row.of(subject))) for row in rows)
    return {name: text for name, text in texts if text is not None}


# ── Reading ──────────────────────────────────────────────────────────────────────────────────
class Changes(msgspec.Struct, frozen=True):
    """Attributes of one request, read and checked one by one."""

    settings: dict[str, Any]
    fsync: Fsync | None = None
    partition_count: int | None = None


def _value(row: QueueAttribute, text: str) -> object:
    assert row.read is not None
    return row.read(text)


def _read(given: Mapping[str, str], *, is_fifo: bool) -> Changes:
    settings: dict[str, Any] = {}
    fsync: Fsync | None = None
    partition_count: int | None = None
    for name, text in given.items():
        row = TABLE.get(name)
        if row is None or row.read is None:
            raise unknown(name)
        if row.is_fifo_only and not is_fifo:
            raise _only_fifo(name)
        value = _value(row, text)
        if row.setting is not None:
            settings[row.setting] = value
        elif isinstance(value, Fsync):
            fsync = value
        elif name == "PenstockPartitions" and isinstance(value, int):
            partition_count = value
    return Changes(settings, fsync, partition_count)


def _settle(changes: dict[str, Any], current: QueueSettings) -> QueueSettings:
    """Apply changes and the rules that join attributes."""
    if changes.get("kms_key"):
        if changes.get("is_sse_managed"):
            raise fault(
                "InvalidAttributeName",
                "You can use one type of server-side encryption (SSE) at one time. "
                "You can either enable KMS SSE or SQS SSE.",
            )
        changes = {**changes, "is_sse_managed": False}
    elif changes.get("is_sse_managed"):
        changes = {**changes, "kms_key": None}
    settings: QueueSettings = msgspec.structs.replace(current, **changes)
    is_per_group = settings.throughput_limit == "perMessageGroupId"
    if is_per_group and settings.dedup_scope is not DedupScope.GROUP:
        raise fault(
            "InvalidParameterValue",
            "Value perMessageGroupId for parameter FifoThroughputLimit is invalid. Reason: it "
            "needs DeduplicationScope to be messageGroup.",
        )
    return settings


def kind_of_new(name: str, given: Mapping[str, str]) -> Kind:
    """A FIFO queue says so twice, in its name and in its attribute; else the name is refused."""
    text = given.get("FifoQueue")
    if text is not None and not _value(TABLE["FifoQueue"], text):
        raise unknown("FifoQueue")
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


class NewQueue(msgspec.Struct, frozen=True):
    kind: Kind
    settings: QueueSettings
    fsync: Fsync | None
    partition_count: int | None


def read_new(name: str, given: Mapping[str, str]) -> NewQueue:
    kind = kind_of_new(name, given)
    changes = _read(given, is_fifo=kind is Kind.FIFO)
    settings = _settle(changes.settings, QueueSettings())
    partition_count = changes.partition_count
    if kind is Kind.FIFO and settings.dedup_scope is DedupScope.QUEUE:
        partition_count = _undivided(partition_count)
    return NewQueue(kind, settings, changes.fsync, partition_count)


def _undivided(partition_count: int | None) -> int:
    """A duplicate may come in another group than its first, so under another partition: ids that
    count for the whole queue need the whole queue in one, whatever the default says."""
    if partition_count is not None and partition_count != 1:
        raise invalid_value(
            "PenstockPartitions",
            "A FIFO queue of several partitions needs DeduplicationScope messageGroup.",
        )
    return 1


def first_difference(given: Mapping[str, str], topic: Topic) -> str | None:
    """The first given attribute whose value is not the queue's own. Absent ones do not matter."""
    subject = Subject(topic)
    for name, text in given.items():
        row = TABLE[name]
        if not row.same(_value(row, text), row.of(subject)):
            return name
    return None


def is_encryption_new(given: Mapping[str, str], topic: Topic) -> bool:
    """Whether encryption is asked for by name now and never was: no difference in what is shown,
    but messages are encrypted from here on."""
    text = given.get("SqsManagedSseEnabled")
    return text is not None and text.lower() == "true" and topic.settings.is_sse_managed is None


def check_settable(topic: Topic, given: Mapping[str, str]) -> None:
    for name, text in given.items():
        row = TABLE.get(name)
        if name == "FifoQueue" and topic.is_fifo:
            if not _value(TABLE[name], text):
                raise invalid_value("FifoQueue", "Modifying queue type is not supported.")
        elif row is None or row.is_create_only:
            raise unknown(name)


def changed(topic: Topic, given: Mapping[str, str], *, now_ms: int) -> Topic:
    """The topic with the given attributes set. The dedup scope in force stays as created."""
    check_settable(topic, given)
    changes = _read(given, is_fifo=topic.is_fifo)
    settings = _settle(changes.settings, topic.settings)
    fsync = topic.fsync if changes.fsync is None else changes.fsync
    return msgspec.structs.replace(topic, settings=settings, fsync=fsync, modified_at_ms=now_ms)
