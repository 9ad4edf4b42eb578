"""The topic configs of Kafka that are served: one table row each, from which checking, defaults
and what DescribeConfigs shows all follow.

Values travel and are stored as texts, under Kafka's names; ``model/stream.py`` makes numbers of
them. A row whose documentation says "kept" is taken from clients and told back to them, for tools
compare what they set with what they see, and has no effect here. Three rows are our own and live in
fields of the topic: ``penstock.queue``, ``penstock.fsync`` and ``penstock.encryption``.

How a change of configs changes a topic, and what a queue cannot be told, is in reconfigure.py."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final, Protocol

import msgspec

from penstock.frontend.kafka.config_values import (
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
from penstock.frontend.kafka.refusal import Refusal
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
    """Where a value comes from, as the protocol numbers it. Clients trip over any other."""

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
    """One config as it is shown. ``synonyms``: what holds, then what would hold without it."""

    name: str
    value: str | None
    source: Source
    type: ValueType
    documentation: str
    is_read_only: bool = False
    is_sensitive: bool = False
    synonyms: tuple[Synonym, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicConfig:
    name: str
    type: ValueType
    default: str | None
    node_name: str | None  # the broker's config of the same meaning
    read: Read  # the text to store; raises ValueError with what would be right
    documentation: str


# ── The table ────────────────────────────────────────────────────────────────────────────────
def _long(
    name: str, default: int, node_name: str | None, documentation: str, *, low: int = 0
) -> TopicConfig:
    read = whole(low, LONG_MAX)
    return TopicConfig(name, ValueType.LONG, str(default), node_name, read, documentation)


def _int(
    name: str,
    default: int,
    node_name: str | None,
    documentation: str,
    *,
    low: int = 0,
    high: int = INT_MAX,
) -> TopicConfig:
    read = whole(low, high)
    return TopicConfig(name, ValueType.INT, str(default), node_name, read, documentation)


def _bool(name: str, node_name: str | None, documentation: str) -> TopicConfig:
    return TopicConfig(name, ValueType.BOOLEAN, "false", node_name, flag, documentation)


def _throttled(name: str) -> TopicConfig:
    documentation = "Kept: moves of replicas are not throttled by topic."
    return TopicConfig(name, ValueType.LIST, "", None, throttled_replicas, documentation)


_KEPT_COMPRESSION: Final = "Kept: batches stay as their producer compressed them."
_KEPT_TIERS: Final = "Kept: there is no tiered storage."

_ROWS: Final[tuple[TopicConfig, ...]] = (
    TopicConfig(
        CLEANUP_POLICY,
        ValueType.LIST,
        stream.DELETE,
        "log.cleanup.policy",
        cleanup_policies,
        "delete: records go when they are past retention; compact: the last record of each key "
        "stays. Empty: all records stay.",
    ),
    TopicConfig(
        "compression.gzip.level",
        ValueType.INT,
        "-1",
        "compression.gzip.level",
        one_or_level(-1, 1, 9),
        _KEPT_COMPRESSION,
    ),
    _int(
        "compression.lz4.level",
        9,
        "compression.lz4.level",
        _KEPT_COMPRESSION,
        low=1,
        high=17,
    ),
    TopicConfig(
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
        "How long a compacted log tells that a key is gone.",
    ),
    _long(
        "file.delete.delay.ms",
        60_000,
        "log.segment.delete.delay.ms",
        "Kept: files go as soon as nobody reads them.",
    ),
    _long(
        "flush.messages",
        LONG_MAX,
        "log.flush.interval.messages",
        f"Kept: {FSYNC} says when records are durable.",
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
    _long(
        "local.retention.bytes",
        -2,
        "log.local.retention.bytes",
        _KEPT_TIERS,
        low=-2,
    ),
    _long("local.retention.ms", -2, "log.local.retention.ms", _KEPT_TIERS, low=-2),
    _long(
        "max.compaction.lag.ms",
        LONG_MAX,
        "log.cleaner.max.compaction.lag.ms",
        "After this time a record is compacted, however little else there is to do.",
        low=1,
    ),
    _int(
        "max.message.bytes",
        stream.MESSAGE_BYTES_DEFAULT,
        "message.max.bytes",
        "The largest batch that producers may send, as compressed.",
        high=BATCH_BYTES_MAX,
    ),
    _long(
        "message.timestamp.after.max.ms",
        stream.TIMESTAMP_AFTER_MS_DEFAULT,
        "log.message.timestamp.after.max.ms",
        "How far ahead of this node's clock a producer's time may be.",
    ),
    _long(
        "message.timestamp.before.max.ms",
        stream.TIMESTAMP_BEFORE_MS_DEFAULT,
        "log.message.timestamp.before.max.ms",
        "How far behind this node's clock a producer's time may be.",
    ),
    TopicConfig(
        TIMESTAMP_TYPE,
        ValueType.STRING,
        stream.CREATE_TIME,
        "log.message.timestamp.type",
        choice(stream.CREATE_TIME, stream.APPEND_TIME),
        "Whether records carry their producer's time or that of their append. In a queue it is "
        "always the latter.",
    ),
    TopicConfig(
        "min.cleanable.dirty.ratio",
        ValueType.DOUBLE,
        str(stream.DIRTY_RATIO_DEFAULT),
        "log.cleaner.min.cleanable.ratio",
        share,
        "How much of a log must be new before it is compacted again.",
    ),
    _long(
        "min.compaction.lag.ms",
        0,
        "log.cleaner.min.compaction.lag.ms",
        "How long a record is safe from compaction.",
    ),
    _int(
        IN_SYNC_MIN,
        1,
        IN_SYNC_MIN,
        "How many replicas must have a record before acks=all is answered, at least. A node by "
        "itself has one.",
        low=1,
        high=9,
    ),
    _bool("preallocate", "log.preallocate", "Kept: segments grow as they are written."),
    _bool("remote.log.copy.disable", None, _KEPT_TIERS),
    _bool("remote.log.delete.on.disable", None, _KEPT_TIERS),
    TopicConfig(
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
        "How large a partition may grow before its oldest segments go; -1: without bound.",
        low=stream.FOREVER,
    ),
    _long(
        RETENTION_MS,
        stream.RETENTION_MS_DEFAULT,
        "log.retention.ms",
        "How long records stay; -1: forever. In a queue it is the queue's retention period.",
        low=stream.FOREVER,
    ),
    _int(
        "segment.bytes",
        SEGMENT_BYTES_MAX,
        "log.segment.bytes",
        "How large a segment grows. Retention and compaction work on whole segments. More than "
        "the default counts as the default.",
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
        "How old a segment grows before the next one begins. More than the default counts as the "
        "default.",
        low=1,
    ),
    _bool(
        "unclean.leader.election.enable",
        "unclean.leader.election.enable",
        "Kept: a replica that may lack something leads only when an operator says so by name.",
    ),
    TopicConfig(
        REPLICATION,
        ValueType.STRING,
        "sync",
        None,
        choice("sync", "async"),
        "Whether an answer waits for the replicas that are in sync, or for the leader alone: then "
        "what they did not have yet is lost with it. A node by itself has one replica.",
    ),
    TopicConfig(
        PLACEMENT,
        ValueType.STRING,
        AUTO,
        None,
        choice(AUTO, MANUAL),
        "auto: the cluster moves partitions to even out its nodes. manual: it does not; set when a "
        "client assigns replicas.",
    ),
    TopicConfig(
        FSYNC,
        ValueType.STRING,
        None,
        None,
        choice(*(mode.value for mode in Fsync)),
        "When an append counts as durable: always, interval or never; unset: as the node does.",
    ),
    TopicConfig(
        ENCRYPTION,
        ValueType.BOOLEAN,
        None,
        None,
        flag,
        "true: values and headers are encrypted at rest from here on, keys are not; unset: as the "
        "node does.",
    ),
    _bool(
        QUEUE,
        None,
        "true: the topic is a queue as well, for leases and acknowledgements. There is no way "
        "back.",
    ),
)

TABLE: Final[Mapping[str, TopicConfig]] = MappingProxyType(
    {row.name: row for row in sorted(_ROWS, key=lambda row: row.name)}
)


# What a queue has, whatever is the default of topics.
_OF_QUEUES: Final[Mapping[str, str]] = MappingProxyType(
    {
        CLEANUP_POLICY: stream.DELETE,
        RETENTION_BYTES: str(stream.FOREVER),
        TIMESTAMP_TYPE: stream.APPEND_TIME,
    }
)


def row_of(name: str) -> TopicConfig:
    row = TABLE.get(name)
    if row is None:
        raise Refusal(ErrorCode.INVALID_CONFIG, f"There is no topic config {name[:100]!r}.")
    return row


def read_value(name: str, text: str | None) -> str:
    """The text to store for what a client gave. Raises Refusal."""
    return read_by(row_of(name), text)


def read_by(row: TopicConfig, text: str | None) -> str:
    """The same for a row of any table."""
    if text is None:
        raise Refusal(ErrorCode.INVALID_CONFIG, f"{row.name} needs a value.")
    try:
        return row.read(text.strip())
    except ValueError as error:
        raise Refusal(
            ErrorCode.INVALID_CONFIG, f"{row.name} must be {error}, not {text[:100]!r}."
        ) from None


# ── Showing ──────────────────────────────────────────────────────────────────────────────────
class Defaults(Protocol):
    """What the cluster gives topics that do not say so themselves (``KafkaContext``)."""

    @property
    def replicas_default(self) -> int: ...

    @property
    def in_sync_min_default(self) -> int: ...

    def set_for_brokers(self, name: str) -> Sequence[Synonym]:
        """What operators have set for this broker and for all, by the name of a broker config."""
        ...


def entries_of(topic: Topic, defaults: Defaults) -> Iterator[ConfigEntry]:
    """Every config of a topic, sorted by name."""
    for row in TABLE.values():
        synonyms: list[Synonym] = []
        value = value_of(topic, row.name)
        if value is not None:
            synonyms.append((row.name, value, Source.TOPIC))
        if row.node_name is not None:
            synonyms += _of_node(topic, row, row.node_name, defaults)
        built_in = (row.name, row.default, Source.DEFAULT)
        _, shown, source = synonyms[0] if synonyms else built_in
        yield ConfigEntry(
            name=row.name,
            value=shown,
            source=source,
            type=row.type,
            documentation=row.documentation,
            synonyms=tuple(synonyms),
        )


def _of_node(
    topic: Topic, row: TopicConfig, node_name: str, defaults: Defaults
) -> Iterator[Synonym]:
    """What the topic would get without a value of its own. What operators set for brokers does not
    reach topics of the node's own, nor what a queue has by its nature."""
    if topic.is_queue and row.name in _OF_QUEUES:
        yield node_name, _OF_QUEUES[row.name], Source.DEFAULT
        return
    if row.name == IN_SYNC_MIN:
        default: str | None = str(defaults.in_sync_min_default)
    else:
        default = row.default
    found: list[Synonym] = [(node_name, default, Source.DEFAULT)]
    if not is_internal(topic.name):
        found[:0] = defaults.set_for_brokers(node_name)
    for name, value, source in found:
        if row.name == IN_SYNC_MIN and value is not None:
            factor = factor_of(topic, None, defaults.replicas_default)
            value = str(max(1, min(int(value), factor)))
        yield name, value, source


def value_of(topic: Topic, name: str) -> str | None:
    """What is set on the topic itself, or None."""
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
    """The queue's own setting, seen from here."""
    is_on = True if topic.settings.kms_key else topic.settings.is_sse_managed
    return None if is_on is None else str(is_on).lower()
