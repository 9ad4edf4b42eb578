"""The configs of topics: their table, their values for DescribeConfigs, and their changes.

Values are stored as texts under Kafka's names; ``model/stream.py`` turns them into numbers. Configs
documented as "No effect" are stored and shown, because tools compare what they set with what they
see. ``penstock.queue``, ``penstock.fsync`` and ``penstock.encryption`` are fields of the topic.

Changes are pure functions, so that the catalog can apply them to the newest version of a topic. A
queue cannot become a stream again, because consumers may hold leases. Configs that queues do not
support are rejected, not ignored, because they decide when messages are deleted."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

import msgspec

from penstock.frontend.kafka.checks import check_not_internal, topic_named
from penstock.frontend.kafka.configs import rows
from penstock.frontend.kafka.context import KafkaContext
from penstock.model import stream
from penstock.model.limits import (
    BATCH_BYTES_MAX,
    INDEX_INTERVAL_BYTES,
    QUEUE_PARTITIONS_MAX,
    SEGMENT_AGE_MS_MAX,
    SEGMENT_BYTES_MAX,
)
from penstock.model.names import FIFO_SUFFIX, is_internal, is_queue_name
from penstock.model.replication import AUTO, IN_SYNC_MIN, MANUAL, PLACEMENT, factor_of
from penstock.model.stream import DIRTY_RATIO_DEFAULT, LONG_MAX
from penstock.model.topic import Fsync, Kind, QueueSettings, Topic

QUEUE: Final = "penstock.queue"
FSYNC: Final = "penstock.fsync"
ENCRYPTION: Final = "penstock.encryption"
RETENTION_MS: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"
CLEANUP_POLICY: Final = "cleanup.policy"
TIMESTAMP_TYPE: Final = "message.timestamp.type"
OWN_FIELDS: Final = (QUEUE, FSYNC, ENCRYPTION)  # not among the topic's configs
# The bounds of a queue's retention period. It is in whole seconds, as SQS clients set it.
QUEUE_RETENTION_MS_MIN: Final = 60_000
QUEUE_RETENTION_MS_MAX: Final = 14 * 24 * 3_600_000
SECOND_MS: Final = 1_000
THROTTLED_CHARS_MAX: Final = 32_768  # enough for 1,024 partitions with three replicas
_THROTTLED: Final = re.compile(r"\d{1,10}:\d{1,10}\Z")
# Values that all queues have, whatever the defaults of topics are.
_OF_QUEUES: Final[Mapping[str, str]] = {
    CLEANUP_POLICY: stream.DELETE,
    RETENTION_BYTES: str(stream.FOREVER),
    TIMESTAMP_TYPE: stream.APPEND_TIME,
}


def _policies(text: str) -> str:
    """Check a ``cleanup.policy``. An empty policy is valid and means that all records are kept."""
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(","))) if text else ()
    if not set(parts) <= {stream.DELETE, stream.COMPACT}:
        raise ValueError("the value must be delete, compact, 'compact,delete' or empty")
    return ",".join(parts)


def _throttled(text: str) -> str:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    is_right = parts == ["*"] or all(map(_THROTTLED.match, parts))
    if not is_right or len(text) > THROTTLED_CHARS_MAX:
        raise ValueError(
            "the value must be * or a comma-separated list of PARTITION:NODE with at most"
            f" {THROTTLED_CHARS_MAX:,} characters"
        )
    return ",".join(parts)


def _is_false(text: str) -> str:
    if text.lower() != "false":
        raise ValueError("the value must be false (there is no tiered storage)")
    return "false"


def _gzip_level(text: str) -> str:
    if text == "-1":
        return text
    try:
        return rows.whole(1, 9)(text)
    except ValueError:
        raise ValueError("the value must be -1 or a whole number from 1 to 9") from None


TABLE: Final = rows.table(
    f"""\
{CLEANUP_POLICY} | list policies | {stream.DELETE} | log.cleanup.policy
    delete: records are deleted after their retention; compact: the last record of each key is
    kept. Empty: all records are kept.
compression.gzip.level | int gzip_level | -1 | =
compression.lz4.level | int 1..17 | 9 | =
compression.type | string producer/uncompressed/gzip/snappy/lz4/zstd | producer | =
compression.zstd.level | int -131072..22 | 3 | =
    No effect: batches stay as their producer compressed them.
delete.retention.ms | long | {stream.TOMBSTONE_MS_DEFAULT} | log.cleaner.delete.retention.ms
    Time in milliseconds for which a compacted log keeps the tombstone of a deleted key.
file.delete.delay.ms | long | 60000 | log.segment.delete.delay.ms
    No effect: files are deleted as soon as no client reads them.
flush.messages | long 1.. | {LONG_MAX} | log.flush.interval.messages
    No effect: {FSYNC} decides when records are synced to disk.
flush.ms | long | {LONG_MAX} | log.flush.interval.ms
    No effect: {FSYNC} decides when records are synced to disk.
follower.replication.throttled.replicas | list throttled |
leader.replication.throttled.replicas | list throttled |
    No effect: moves of replicas are limited by number, not by rate.
index.interval.bytes | int | {INDEX_INTERVAL_BYTES} | log.index.interval.bytes
    No effect: every log has an index entry per 4 KiB.
local.retention.bytes | long -2.. | -2 | log.local.retention.bytes
local.retention.ms | long -2.. | -2 | log.local.retention.ms
remote.log.copy.disable | boolean | false
remote.log.delete.on.disable | boolean | false
    No effect: there is no tiered storage.
max.compaction.lag.ms | long 1.. | {LONG_MAX} | log.cleaner.max.compaction.lag.ms
    Maximum age in milliseconds at which a record is compacted.
max.message.bytes | int 0..{BATCH_BYTES_MAX} | {stream.MESSAGE_BYTES_DEFAULT} | message.max.bytes
    Maximum size in bytes of a batch that producers send, after compression.
message.timestamp.after.max.ms | long | {stream.TIMESTAMP_AFTER_MS_DEFAULT} | log.=
    Maximum time in milliseconds by which a timestamp may be ahead of the clock of the node.
message.timestamp.before.max.ms | long | {stream.TIMESTAMP_BEFORE_MS_DEFAULT} | log.=
    Maximum time in milliseconds by which a timestamp may be behind the clock of the node.
{TIMESTAMP_TYPE} | string {stream.CREATE_TIME}/{stream.APPEND_TIME} | {stream.CREATE_TIME} | log.=
    Timestamp of records: set by the producer (CreateTime) or by the node when it appends them
    (LogAppendTime). Queues always have LogAppendTime.
min.cleanable.dirty.ratio | double 0..1 | {DIRTY_RATIO_DEFAULT} | log.cleaner.min.cleanable.ratio
    Fraction of a log that must be new before the log is compacted again.
min.compaction.lag.ms | long | 0 | log.cleaner.min.compaction.lag.ms
    Minimum age in milliseconds at which a record is compacted.
{IN_SYNC_MIN} | int 1..9 | 1 | =
    Minimum number of in-sync replicas for acks=all. A single node has one replica.
preallocate | boolean | false | log.preallocate
    No effect: segments grow as they are written.
remote.storage.enable | boolean is_false | false
    Always false: there is no tiered storage.
{RETENTION_BYTES} | long {stream.FOREVER}.. | {stream.FOREVER} | log.retention.bytes
    Size in bytes above which the oldest segments of a partition are deleted; -1: no limit.
{RETENTION_MS} | long {stream.FOREVER}.. | {stream.RETENTION_MS_DEFAULT} | log.retention.ms
    Time in milliseconds after which records are deleted; -1: never. Also applies to queues.
segment.bytes | int 14.. | {SEGMENT_BYTES_MAX} | log.segment.bytes
    Maximum size of a segment in bytes, up to the default. Only whole segments are deleted.
segment.index.bytes | int 4.. | {10 * 1_048_576} | log.index.size.max.bytes
    No effect: an index is as large as its segment needs.
segment.jitter.ms | long | 0 | log.roll.jitter.ms
    No effect: segments are closed without jitter.
segment.ms | long 1.. | {SEGMENT_AGE_MS_MAX} | log.roll.ms
    Age in milliseconds at which a segment is closed, up to the default.
unclean.leader.election.enable | boolean | false | =
    No effect: only an operator can start an unclean election.
penstock.replication | string sync/async | sync
    Whether a reply waits for the in-sync replicas (sync) or only for the leader (async). With
    async, records that are not replicated yet are lost if the leader fails.
{PLACEMENT} | string {AUTO}/{MANUAL} | {AUTO}
    auto: the cluster moves partitions to balance its nodes. manual: partitions stay where a
    client placed them; set when a client assigns replicas.
{FSYNC} | string {"/".join(mode.value for mode in Fsync)} | -
    When records are synced to disk: always, interval or never. If unset, the default of the node.
{ENCRYPTION} | boolean | -
    Whether values and headers of new records are encrypted at rest; keys are not. If unset, the
    default of the node.
{QUEUE} | boolean | false
    Whether the topic is also a queue, with leases and acks. Cannot be undone.
""",
    policies=_policies,
    gzip_level=_gzip_level,
    throttled=_throttled,
    is_false=_is_false,
)


def row_of(name: str) -> rows.ConfigRow:
    row = TABLE.get(name)
    if row is None:
        raise rows.invalid_config(f"Unknown topic config {name[:100]!r}.")
    return row


def set_for_brokers(context: KafkaContext, name: str) -> list[rows.Synonym]:
    """Return the values that operators have set: for this broker, then for all brokers."""
    dynamic = context.dynamic
    found = (
        (dynamic.own.get(name), rows.Source.BROKER),
        (dynamic.of_all.get(name), rows.Source.ALL_BROKERS),
    )
    return [(name, value, source) for value, source in found if value is not None]


def entries_of(context: KafkaContext, topic: Topic) -> Iterator[rows.ConfigEntry]:
    for row in TABLE.values():
        value = value_of(topic, row.name)
        own: list[rows.Synonym] = [(row.name, value, rows.Source.TOPIC)]
        synonyms = [] if value is None else own
        if row.node_name is not None:
            synonyms += _of_node(context, topic, row, row.node_name)
        yield row.entry(synonyms)


def _of_node(
    context: KafkaContext, topic: Topic, row: rows.ConfigRow, node_name: str
) -> list[rows.Synonym]:
    """Return the values that apply if the topic does not set the config, highest priority first.
    Values set for brokers do not apply to internal topics, nor to configs fixed for queues."""
    if topic.is_queue and row.name in _OF_QUEUES:
        return [(node_name, _OF_QUEUES[row.name], rows.Source.DEFAULT)]
    set_by_operators = [] if is_internal(topic.name) else set_for_brokers(context, node_name)
    if row.name != IN_SYNC_MIN:
        return [*set_by_operators, (node_name, row.default, rows.Source.DEFAULT)]
    default = str(context.config.in_sync_min_default)
    factor = factor_of(topic, None, context.config.replicas_default)
    return [
        (name, str(max(1, min(int(value or 1), factor))), source)
        for name, value, source in (*set_by_operators, (node_name, default, rows.Source.DEFAULT))
    ]


def value_of(topic: Topic, name: str) -> str | None:
    if name == QUEUE:
        return "true" if topic.is_queue else None
    if name == FSYNC:
        return None if topic.fsync is None else topic.fsync.value
    if name == ENCRYPTION:
        is_on = True if topic.settings.kms_key else topic.settings.is_sse_managed
        return None if is_on is None else str(is_on).lower()
    if name == RETENTION_MS and topic.is_queue:
        return str(topic.settings.retention_ms)
    return topic.configs.get(name)


def with_configs(
    topic: Topic, edit: rows.Edit, *, now_ms: int, defaults: Mapping[str, str]
) -> Topic:
    """Return the topic with changed configs. ``defaults`` has the defaults set by operators."""
    removed = edit.removed
    texts = {name: rows.read_by(row_of(name), text) for name, text in edit.given.items()}
    for name in removed:
        row_of(name)
    becomes_queue = _becomes_queue(topic, texts, removed)
    fsync = topic.fsync
    if FSYNC in texts:
        fsync = Fsync(texts[FSYNC])
    elif FSYNC in removed:
        fsync = None
    configs = {name: text for name, text in topic.configs.items() if name not in removed}
    configs.update((name, text) for name, text in texts.items() if name not in OWN_FIELDS)
    check_lags(configs)
    settings = _with_encryption(topic.settings, texts, removed)
    if topic.is_queue or becomes_queue:
        given_ms = configs.pop(RETENTION_MS, None)
        if given_ms is None and becomes_queue:
            given_ms = defaults.get(RETENTION_MS)
        retention = _queue_retention(topic, given_ms, removed)
        settings = msgspec.structs.replace(settings, retention_ms=retention)
        wrong = None
        if stream.COMPACT in stream.policies_of(configs.get(CLEANUP_POLICY, stream.DELETE)):
            wrong = f"{CLEANUP_POLICY}: a queue cannot be compacted."
        elif int(configs.get(RETENTION_BYTES, stream.FOREVER)) != stream.FOREVER:
            wrong = f"{RETENTION_BYTES}: a queue cannot delete messages because of its size."
        elif configs.get(TIMESTAMP_TYPE, stream.APPEND_TIME) != stream.APPEND_TIME:
            wrong = f"{TIMESTAMP_TYPE}: messages of a queue always have LogAppendTime."
        if wrong is not None:
            raise rows.invalid_config(wrong)
    kind = Kind.STANDARD if becomes_queue else topic.kind
    after: Topic = msgspec.structs.replace(
        topic, kind=kind, fsync=fsync, settings=settings, configs=configs
    )
    return after if after == topic else msgspec.structs.replace(after, modified_at_ms=now_ms)


async def reconfigure(
    context: KafkaContext, name: str, change: Callable[[Topic], Topic], *, is_dry: bool
) -> None:
    """Apply ``change`` to the stored topic, or only check the change if ``is_dry`` is set."""
    topic = topic_named(context, name)
    check_not_internal(name)
    change(topic)  # reports errors of the request before the store is called
    if not is_dry:
        await context.catalog.change(topic.account, topic.region, name, change)


def _with_encryption(
    settings: QueueSettings, texts: Mapping[str, str], removed: Collection[str]
) -> QueueSettings:
    """Return the settings with encryption on, off or unset. ``true`` keeps an existing KMS key."""
    text = texts.get(ENCRYPTION)
    if text is None:
        if ENCRYPTION not in removed:
            return settings
        return msgspec.structs.replace(settings, kms_key=None, is_sse_managed=None)
    if text == "true" and settings.kms_key is not None:
        return settings
    return msgspec.structs.replace(settings, kms_key=None, is_sse_managed=text == "true")


def _becomes_queue(topic: Topic, texts: Mapping[str, str], removed: Collection[str]) -> bool:
    if topic.is_queue:
        if texts.get(QUEUE) == "false" or QUEUE in removed:
            raise rows.invalid_config(f"{topic.name} is a queue and cannot become a stream again.")
        return False
    if texts.get(QUEUE) != "true":
        return False
    if topic.is_fifo:
        raise rows.invalid_config(f"{QUEUE}: {topic.name} is a FIFO topic, not a stream.")
    if not is_queue_name(topic.name) or topic.name.endswith(FIFO_SUFFIX):
        raise rows.invalid_config(
            f"{QUEUE}: '{topic.name}' is not a valid queue name: use 1 to 80 of the characters"
            " a-z A-Z 0-9 _ -",
        )
    if topic.partition_count > QUEUE_PARTITIONS_MAX:
        raise rows.invalid_config(
            f"{QUEUE}: a queue can have at most {QUEUE_PARTITIONS_MAX} partitions, but"
            f" {topic.name} has {topic.partition_count}."
        )
    return True


def _queue_retention(topic: Topic, text: str | None, removed: Collection[str]) -> int:
    if text is not None:
        retention_ms = int(text)
    elif topic.is_queue:
        is_removed = RETENTION_MS in removed
        return QueueSettings().retention_ms if is_removed else topic.settings.retention_ms
    else:
        retention_ms = stream.RETENTION_MS_DEFAULT
    is_whole = retention_ms % SECOND_MS == 0
    if not is_whole or not QUEUE_RETENTION_MS_MIN <= retention_ms <= QUEUE_RETENTION_MS_MAX:
        raise rows.invalid_config(
            f"{RETENTION_MS} of a queue must be a multiple of 1000 from"
            f" {QUEUE_RETENTION_MS_MIN} to {QUEUE_RETENTION_MS_MAX}, not {retention_ms}."
        )
    return retention_ms


def check_lags(configs: Mapping[str, str]) -> None:
    lag_ms_min = int(configs.get("min.compaction.lag.ms", 0))
    lag_ms_max = int(configs.get("max.compaction.lag.ms", stream.LONG_MAX))
    if lag_ms_min > lag_ms_max:
        raise rows.invalid_config(
            f"min.compaction.lag.ms ({lag_ms_min}) is above max.compaction.lag.ms ({lag_ms_max})."
        )
