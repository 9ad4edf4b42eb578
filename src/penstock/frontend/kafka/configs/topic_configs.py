"""The configs of topics: a table with the check, default and documentation of each.

Values are stored as texts under Kafka's names; ``model/stream.py`` turns them into numbers. A row
whose documentation begins with "Kept" is stored and shown, because tools compare what they set with
what they see, and has no effect. ``penstock.queue``, ``penstock.fsync`` and ``penstock.encryption``
are fields of the topic. ``altered_topics.py`` changes topics."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final

import msgspec

from penstock.frontend.kafka.configs.config_values import (
    INT_MAX,
    Read,
    choice,
    cleanup_policies,
    flag,
    is_false,
    one_or_level,
    share,
    throttled_replicas,
    whole,
)
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.errors import ApiError
from penstock.model import stream
from penstock.model.limits import (
    BATCH_BYTES_MAX,
    INDEX_INTERVAL_BYTES,
    SEGMENT_AGE_MS_MAX,
    SEGMENT_BYTES_MAX,
)
from penstock.model.names import is_internal
from penstock.model.replication import AUTO, IN_SYNC_MIN, MANUAL, PLACEMENT, factor_of
from penstock.model.stream import LONG_MAX
from penstock.model.topic import Fsync, Topic
from penstock.wire.kafka.faults import ErrorCode

QUEUE: Final = "penstock.queue"
FSYNC: Final = "penstock.fsync"
ENCRYPTION: Final = "penstock.encryption"
REPLICATION: Final = "penstock.replication"
RETENTION_MS: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"
CLEANUP_POLICY: Final = "cleanup.policy"
TIMESTAMP_TYPE: Final = "message.timestamp.type"


class Source(IntEnum):
    """Where a value comes from. Clients fail upon other numbers."""

    TOPIC = 1
    BROKER = 2  # set for one broker while it runs
    ALL_BROKERS = 3  # set for all brokers
    NODE = 4  # the node's own configuration, fixed while it runs
    DEFAULT = 5
    LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ValueType(IntEnum):
    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


Synonym = tuple[str, str | None, Source]


class ConfigEntry(msgspec.Struct, frozen=True):
    """One config as it is shown. ``synonyms``: the value that applies, then those it overrides."""

    name: str
    value: str | None
    source: Source
    type: ValueType
    documentation: str
    is_read_only: bool = False
    is_sensitive: bool = False
    synonyms: tuple[Synonym, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigRow:
    name: str
    type: ValueType
    default: str | None
    node_name: str | None  # the broker config with the default
    read: Read  # returns the text to store; raises ValueError with what is allowed
    documentation: str

    def entry(self, synonyms: Sequence[Synonym]) -> ConfigEntry:
        """Return the config as it is shown: the first of ``synonyms`` applies."""
        built_in = (self.name, self.default, Source.DEFAULT)
        _, value, source = synonyms[0] if synonyms else built_in
        documentation, found = self.documentation, tuple(synonyms)
        return ConfigEntry(self.name, value, source, self.type, documentation, synonyms=found)


# ── The table ────────────────────────────────────────────────────────────────────────────────
def _long(
    name: str, default: int, node_name: str | None, documentation: str, *, low: int = 0
) -> ConfigRow:
    read = whole(low, LONG_MAX)
    return ConfigRow(name, ValueType.LONG, str(default), node_name, read, documentation)


def _int(
    name: str,
    default: int,
    node_name: str | None,
    documentation: str,
    *,
    low: int = 0,
    high: int = INT_MAX,
) -> ConfigRow:
    read = whole(low, high)
    return ConfigRow(name, ValueType.INT, str(default), node_name, read, documentation)


def _bool(name: str, node_name: str | None, documentation: str) -> ConfigRow:
    return ConfigRow(name, ValueType.BOOLEAN, "false", node_name, flag, documentation)


def _throttled(name: str) -> ConfigRow:
    documentation = "Kept: moves of replicas are not throttled by topic."
    return ConfigRow(name, ValueType.LIST, "", None, throttled_replicas, documentation)


_KEPT_COMPRESSION: Final = "Kept: batches stay as their producer compressed them."
_KEPT_TIERS: Final = "Kept: there is no tiered storage."

_ROWS: Final[tuple[ConfigRow, ...]] = (
    ConfigRow(
        CLEANUP_POLICY,
        ValueType.LIST,
        stream.DELETE,
        "log.cleanup.policy",
        cleanup_policies,
        "delete: records are deleted after their retention; compact: the last record of each key "
        "is kept. Empty: all records are kept.",
    ),
    ConfigRow(
        "compression.gzip.level",
        ValueType.INT,
        "-1",
        "compression.gzip.level",
        one_or_level(-1, 1, 9),
        _KEPT_COMPRESSION,
    ),
    _int("compression.lz4.level", 9, "compression.lz4.level", _KEPT_COMPRESSION, low=1, high=17),
    ConfigRow(
        "compression.type",
        ValueType.STRING,
        "producer",
        "compression.type",
        choice("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        _KEPT_COMPRESSION,
    ),
    _int(
        "compression.zstd.level",
        3,
        "compression.zstd.level",
        _KEPT_COMPRESSION,
        low=-131_072,
        high=22,
    ),
    _long(
        "delete.retention.ms",
        stream.TOMBSTONE_MS_DEFAULT,
        "log.cleaner.delete.retention.ms",
        "How long a compacted log keeps the tombstone of a deleted key.",
    ),
    _long(
        "file.delete.delay.ms",
        60_000,
        "log.segment.delete.delay.ms",
        "Kept: files are deleted as soon as they are not read any more.",
    ),
    _long(
        "flush.messages",
        LONG_MAX,
        "log.flush.interval.messages",
        f"Kept: {FSYNC} decides when records are synced.",
        low=1,
    ),
    _long(
        "flush.ms",
        LONG_MAX,
        "log.flush.interval.ms",
        f"Kept: {FSYNC} says when records are durable.",
    ),
    _throttled("follower.replication.throttled.replicas"),
    _int(
        "index.interval.bytes",
        INDEX_INTERVAL_BYTES,
        "log.index.interval.bytes",
        "Kept: every log has an index entry per 4 KiB.",
    ),
    _throttled("leader.replication.throttled.replicas"),
    _long("local.retention.bytes", -2, "log.local.retention.bytes", _KEPT_TIERS, low=-2),
    _long("local.retention.ms", -2, "log.local.retention.ms", _KEPT_TIERS, low=-2),
    _long(
        "max.compaction.lag.ms",
        LONG_MAX,
        "log.cleaner.max.compaction.lag.ms",
        "Longest time before a record is compacted.",
        low=1,
    ),
    _int(
        "max.message.bytes",
        stream.MESSAGE_BYTES_DEFAULT,
        "message.max.bytes",
        "Size of the largest batch that producers may send, compressed.",
        high=BATCH_BYTES_MAX,
    ),
    _long(
        "message.timestamp.after.max.ms",
        stream.TIMESTAMP_AFTER_MS_DEFAULT,
        "log.message.timestamp.after.max.ms",
        "How far a timestamp may be ahead of the clock of the node.",
    ),
    _long(
        "message.timestamp.before.max.ms",
        stream.TIMESTAMP_BEFORE_MS_DEFAULT,
        "log.message.timestamp.before.max.ms",
        "How far a timestamp may be behind the clock of the node.",
    ),
    ConfigRow(
        TIMESTAMP_TYPE,
        ValueType.STRING,
        stream.CREATE_TIME,
        "log.message.timestamp.type",
        choice(stream.CREATE_TIME, stream.APPEND_TIME),
        "Whether records have the time of their producer or of their append. In a queue it is "
        "always the append.",
    ),
    ConfigRow(
        "min.cleanable.dirty.ratio",
        ValueType.DOUBLE,
        str(stream.DIRTY_RATIO_DEFAULT),
        "log.cleaner.min.cleanable.ratio",
        share,
        "Part of a log that must be new before the log is compacted again.",
    ),
    _long(
        "min.compaction.lag.ms",
        0,
        "log.cleaner.min.compaction.lag.ms",
        "Shortest time before a record is compacted.",
    ),
    _int(
        IN_SYNC_MIN,
        1,
        IN_SYNC_MIN,
        "Number of in-sync replicas that acks=all needs, at least. A single node has one replica.",
        low=1,
        high=9,
    ),
    _bool("preallocate", "log.preallocate", "Kept: segments grow as they are written."),
    _bool("remote.log.copy.disable", None, _KEPT_TIERS),
    _bool("remote.log.delete.on.disable", None, _KEPT_TIERS),
    ConfigRow(
        "remote.storage.enable",
        ValueType.BOOLEAN,
        "false",
        None,
        is_false,
        "Always false: there is no tiered storage.",
    ),
    _long(
        RETENTION_BYTES,
        stream.FOREVER,
        "log.retention.bytes",
        "Size above which the oldest segments of a partition are deleted; -1: no limit.",
        low=stream.FOREVER,
    ),
    _long(
        RETENTION_MS,
        stream.RETENTION_MS_DEFAULT,
        "log.retention.ms",
        "How long records are kept; -1: for ever. In a queue it is the retention period.",
        low=stream.FOREVER,
    ),
    _int(
        "segment.bytes",
        SEGMENT_BYTES_MAX,
        "log.segment.bytes",
        "Size of a segment; at most the default. Retention and compaction work on whole segments.",
        low=14,
    ),
    _int(
        "segment.index.bytes",
        10 * 1_048_576,
        "log.index.size.max.bytes",
        "Kept: an index is as large as its segment needs.",
        low=4,
    ),
    _long("segment.jitter.ms", 0, "log.roll.jitter.ms", "Kept: segments roll without jitter."),
    _long(
        "segment.ms",
        SEGMENT_AGE_MS_MAX,
        "log.roll.ms",
        "Age at which a segment is closed; at most the default.",
        low=1,
    ),
    _bool(
        "unclean.leader.election.enable",
        "unclean.leader.election.enable",
        "Kept: only an operator can start an unclean election.",
    ),
    ConfigRow(
        REPLICATION,
        ValueType.STRING,
        "sync",
        None,
        choice("sync", "async"),
        "Whether a reply waits for the in-sync replicas (sync) or only for the leader (async): "
        "then records that are not replicated yet are lost with the leader.",
    ),
    ConfigRow(
        PLACEMENT,
        ValueType.STRING,
        AUTO,
        None,
        choice(AUTO, MANUAL),
        "auto: the cluster balances partitions over its nodes. manual: it does not; set when a "
        "client assigns replicas.",
    ),
    ConfigRow(
        FSYNC,
        ValueType.STRING,
        None,
        None,
        choice(*(mode.value for mode in Fsync)),
        "When an append is synced: always, interval or never; unset: the default of the node.",
    ),
    ConfigRow(
        ENCRYPTION,
        ValueType.BOOLEAN,
        None,
        None,
        flag,
        "true: values and headers of new records are encrypted at rest, keys are not; unset: the "
        "default of the node.",
    ),
    _bool(QUEUE, None, "true: the topic is also a queue, with leases and acks. Cannot be undone."),
)

TABLE: Final[Mapping[str, ConfigRow]] = MappingProxyType(
    {row.name: row for row in sorted(_ROWS, key=lambda row: row.name)}
)


# Values of queues, whatever the defaults of topics are.
_OF_QUEUES: Final[Mapping[str, str]] = MappingProxyType(
    {
        CLEANUP_POLICY: stream.DELETE,
        RETENTION_BYTES: str(stream.FOREVER),
        TIMESTAMP_TYPE: stream.APPEND_TIME,
    }
)


def row_of(name: str) -> ConfigRow:
    row = TABLE.get(name)
    if row is None:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"There is no topic config {name[:100]!r}.")
    return row


def read_value(name: str, text: str | None) -> str:
    """Return the text to store for the text of a client. Raises ApiError."""
    return read_by(row_of(name), text)


def read_by(row: ConfigRow, text: str | None) -> str:
    """Return the same for a row of any table."""
    if text is None:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"{row.name} needs a value.")
    try:
        return row.read(text.strip())
    except ValueError as error:
        raise ApiError(
            ErrorCode.INVALID_CONFIG, f"{row.name} must be {error}, not {text[:100]!r}."
        ) from None


# ── Showing ──────────────────────────────────────────────────────────────────────────────────
def set_for_brokers(context: KafkaContext, name: str) -> list[Synonym]:
    """Return the values that operators have set for this broker and for all brokers."""
    dynamic = context.dynamic
    found = ((dynamic.own.get(name), Source.BROKER), (dynamic.of_all.get(name), Source.ALL_BROKERS))
    return [(name, value, source) for value, source in found if value is not None]


def entries_of(context: KafkaContext, topic: Topic) -> Iterator[ConfigEntry]:
    """Return every config of a topic, sorted by name."""
    for row in TABLE.values():
        synonyms: list[Synonym] = []
        value = value_of(topic, row.name)
        if value is not None:
            synonyms.append((row.name, value, Source.TOPIC))
        if row.node_name is not None:
            synonyms += _of_node(context, topic, row, row.node_name)
        yield row.entry(synonyms)


def _of_node(
    context: KafkaContext, topic: Topic, row: ConfigRow, node_name: str
) -> Iterator[Synonym]:
    """Return the values that apply if the topic has none. Values of brokers do not apply to
    internal topics, nor to configs that are fixed for queues."""
    if topic.is_queue and row.name in _OF_QUEUES:
        yield node_name, _OF_QUEUES[row.name], Source.DEFAULT
        return
    if row.name == IN_SYNC_MIN:
        default: str | None = str(context.config.in_sync_min_default)
    else:
        default = row.default
    found: list[Synonym] = [(node_name, default, Source.DEFAULT)]
    if not is_internal(topic.name):
        found[:0] = set_for_brokers(context, node_name)
    for name, value, source in found:
        if row.name == IN_SYNC_MIN and value is not None:
            factor = factor_of(topic, None, context.config.replicas_default)
            value = str(max(1, min(int(value), factor)))
        yield name, value, source


def value_of(topic: Topic, name: str) -> str | None:
    """Return the value that is set on the topic, or None."""
    if name == QUEUE:
        return "true" if topic.is_queue else None
    if name == FSYNC:
        return None if topic.fsync is None else topic.fsync.value
    if name == ENCRYPTION:
        return _encryption(topic)
    if name == RETENTION_MS and topic.is_queue:
        return str(topic.settings.retention_ms)
    return topic.configs.get(name)


def _encryption(topic: Topic) -> str | None:
    is_on = True if topic.settings.kms_key else topic.settings.is_sse_managed
    return None if is_on is None else str(is_on).lower()
