"""How a topic behaves as a stream: ``Topic.configs`` resolved into values that code can use.

A topic keeps its stream settings as Kafka's names and texts, checked when they were given
(``frontend/kafka/configs.py``); here they become numbers and flags, with the defaults filled in.
Who appends and who cleans asks ``settings_of`` and needs to know neither the names nor whether the
topic is a queue.

A queue differs from a stream in what its other readers rely on: its records carry the time of the
leader and never go back (a lease cursor counts ages by it), its retention is the queue's own, and
nothing but age may take a message that nobody has acknowledged."""

import msgspec

from penstock.model.limits import SEGMENT_AGE_MS_MAX, SEGMENT_BYTES_MAX
from penstock.model.topic import Topic

FOREVER = -1  # how configs write "no bound"
LONG_MAX = 2**63 - 1  # how configs of Kafka write it elsewhere

RETENTION_MS_DEFAULT = 7 * 24 * 3_600_000
# One MiB of records and the header of a batch: what producers take for granted.
MESSAGE_BYTES_DEFAULT = 1_048_588
# A clock an hour ahead is wrong; a producer may well replay what happened years ago.
TIMESTAMP_AFTER_MS_DEFAULT = 3_600_000
TIMESTAMP_BEFORE_MS_DEFAULT = LONG_MAX
TOMBSTONE_MS_DEFAULT = 24 * 3_600_000
DIRTY_RATIO_DEFAULT = 0.5

DELETE = "delete"
COMPACT = "compact"
APPEND_TIME = "LogAppendTime"
CREATE_TIME = "CreateTime"


class StreamSettings(msgspec.Struct, frozen=True):
    retention_ms: int | None = RETENTION_MS_DEFAULT  # None: records do not grow too old
    retention_bytes: int | None = None  # of one partition
    is_deleted: bool = True  # by retention; False: only compaction removes anything
    is_compacted: bool = False
    message_bytes_max: int = MESSAGE_BYTES_DEFAULT  # of one batch as it is stored
    is_append_time: bool = False  # records get the leader's time instead of their producer's
    timestamp_before_ms_max: int = TIMESTAMP_BEFORE_MS_DEFAULT  # how old a producer's time may be
    timestamp_after_ms_max: int = TIMESTAMP_AFTER_MS_DEFAULT  # how far ahead
    segment_bytes: int = SEGMENT_BYTES_MAX
    segment_ms: int = SEGMENT_AGE_MS_MAX
    # Compaction:
    dirty_ratio_min: float = DIRTY_RATIO_DEFAULT
    compaction_lag_ms_min: int = 0
    compaction_lag_ms_max: int = LONG_MAX
    tombstone_ms: int = TOMBSTONE_MS_DEFAULT  # how long a compacted log keeps that a key is gone


DEFAULTS = StreamSettings()


def policies_of(text: str) -> frozenset[str]:
    """The parts of a ``cleanup.policy``."""
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def settings_of(topic: Topic) -> StreamSettings:
    """Cheap for a topic without configs; others are best asked once per call, not per record."""
    configs = topic.configs
    if not configs and not topic.is_queue:
        return DEFAULTS
    policies = policies_of(configs.get("cleanup.policy", DELETE))
    return StreamSettings(
        retention_ms=_retention_ms(topic, is_deleted=DELETE in policies),
        retention_bytes=_retention_bytes(topic, is_deleted=DELETE in policies),
        is_deleted=topic.is_queue or DELETE in policies,
        is_compacted=not topic.is_queue and COMPACT in policies,
        message_bytes_max=int(configs.get("max.message.bytes", MESSAGE_BYTES_DEFAULT)),
        is_append_time=topic.is_queue or configs.get("message.timestamp.type") == APPEND_TIME,
        timestamp_before_ms_max=_whole(
            topic, "message.timestamp.before.max.ms", TIMESTAMP_BEFORE_MS_DEFAULT
        ),
        timestamp_after_ms_max=_whole(
            topic, "message.timestamp.after.max.ms", TIMESTAMP_AFTER_MS_DEFAULT
        ),
        # A segment may be asked to be smaller than ours, never larger.
        segment_bytes=min(_whole(topic, "segment.bytes", SEGMENT_BYTES_MAX), SEGMENT_BYTES_MAX),
        segment_ms=min(_whole(topic, "segment.ms", SEGMENT_AGE_MS_MAX), SEGMENT_AGE_MS_MAX),
        dirty_ratio_min=float(configs.get("min.cleanable.dirty.ratio", DIRTY_RATIO_DEFAULT)),
        compaction_lag_ms_min=_whole(topic, "min.compaction.lag.ms", 0),
        compaction_lag_ms_max=_whole(topic, "max.compaction.lag.ms", LONG_MAX),
        tombstone_ms=_whole(topic, "delete.retention.ms", TOMBSTONE_MS_DEFAULT),
    )


def _whole(topic: Topic, name: str, default: int) -> int:
    return int(topic.configs.get(name, default))


def _retention_ms(topic: Topic, *, is_deleted: bool) -> int | None:
    if topic.is_queue:
        return topic.settings.retention_ms
    asked_ms = _whole(topic, "retention.ms", RETENTION_MS_DEFAULT)
    return asked_ms if is_deleted and asked_ms != FOREVER else None


def _retention_bytes(topic: Topic, *, is_deleted: bool) -> int | None:
    if topic.is_queue:
        return None
    asked_bytes = _whole(topic, "retention.bytes", FOREVER)
    return asked_bytes if is_deleted and asked_bytes != FOREVER else None
