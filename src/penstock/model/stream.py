"""Converts the Kafka configs of a topic (``Topic.configs``) from text to numbers and flags. The
texts were checked by ``frontend/kafka/configs/topic_configs.py``.

Configs that a topic does not set come from ``TopicDefaults``, which operators may change while the
node runs. Internal topics keep the built-in defaults, so that a changed retention does not delete
rows of coordinators.

Records of a queue have the leader's timestamp, which never decreases, because their age is computed
from it. The queue's retention applies, and only age deletes an unacked message."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from penstock.model.limits import SEGMENT_AGE_MS_MAX, SEGMENT_BYTES_MAX
from penstock.model.names import is_internal
from penstock.model.topic import Topic

FOREVER = -1  # "no limit" in configs
LONG_MAX = 2**63 - 1  # "no limit" in other configs

RETENTION_MS_DEFAULT = 7 * 24 * 3_600_000
MESSAGE_BYTES_DEFAULT = 1_048_588  # 1 MiB of records and the header of a batch, as in Kafka
# A clock that is an hour ahead is wrong, but a producer may send old records again.
TIMESTAMP_AFTER_MS_DEFAULT = 3_600_000
TIMESTAMP_BEFORE_MS_DEFAULT = LONG_MAX
TOMBSTONE_MS_DEFAULT = 24 * 3_600_000
DIRTY_RATIO_DEFAULT = 0.5

DELETE = "delete"
COMPACT = "compact"
APPEND_TIME = "LogAppendTime"
CREATE_TIME = "CreateTime"


class StreamSettings(msgspec.Struct, frozen=True):
    retention_ms: int | None = RETENTION_MS_DEFAULT  # None: no limit
    retention_bytes: int | None = None  # for one partition
    is_deleted: bool = True  # whether retention deletes records
    is_compacted: bool = False
    message_bytes_max: int = MESSAGE_BYTES_DEFAULT  # size of one stored batch
    is_append_time: bool = False  # records get the leader's timestamp instead of the producer's
    timestamp_before_ms_max: int = TIMESTAMP_BEFORE_MS_DEFAULT  # age of a producer's timestamp
    timestamp_after_ms_max: int = TIMESTAMP_AFTER_MS_DEFAULT  # how far it may be in the future
    segment_bytes: int = SEGMENT_BYTES_MAX
    segment_ms: int = SEGMENT_AGE_MS_MAX
    # Compaction:
    dirty_ratio_min: float = DIRTY_RATIO_DEFAULT
    compaction_lag_ms_min: int = 0
    compaction_lag_ms_max: int = LONG_MAX
    tombstone_ms: int = TOMBSTONE_MS_DEFAULT  # how long a compacted log keeps tombstones


DEFAULTS = StreamSettings()


def policies_of(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip())


class TopicDefaults:
    def __init__(self, configs: Mapping[str, str] | None = None) -> None:
        self._listeners: list[Callable[[], None]] = []
        self.replace(configs or {})

    def replace(self, configs: Mapping[str, str]) -> None:
        self.configs: Mapping[str, str] = MappingProxyType(dict(configs))
        self.settings = _stream_settings(self.configs) if configs else DEFAULTS
        for listener in self._listeners:
            listener()

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)


BUILT_IN = TopicDefaults()  # never replaced


def settings_of(topic: Topic, defaults: TopicDefaults = BUILT_IN) -> StreamSettings:
    configs = topic.configs
    if not topic.is_queue:
        if defaults.configs and is_internal(topic.name):
            defaults = BUILT_IN
        if not configs:
            return defaults.settings
    if defaults.configs:
        configs = {**defaults.configs, **configs}
    settings = _stream_settings(configs)
    if not topic.is_queue:
        return settings
    return msgspec.structs.replace(
        settings,
        retention_ms=topic.settings.retention_ms,
        retention_bytes=None,
        is_deleted=True,
        is_compacted=False,
        is_append_time=True,
    )


def _stream_settings(configs: Mapping[str, str]) -> StreamSettings:
    policies = policies_of(configs.get("cleanup.policy", DELETE))
    is_deleted = DELETE in policies
    return StreamSettings(
        retention_ms=_bound(configs, "retention.ms", RETENTION_MS_DEFAULT) if is_deleted else None,
        retention_bytes=_bound(configs, "retention.bytes", FOREVER) if is_deleted else None,
        is_deleted=is_deleted,
        is_compacted=COMPACT in policies,
        message_bytes_max=_whole(configs, "max.message.bytes", MESSAGE_BYTES_DEFAULT),
        is_append_time=configs.get("message.timestamp.type") == APPEND_TIME,
        timestamp_before_ms_max=_whole(
            configs, "message.timestamp.before.max.ms", TIMESTAMP_BEFORE_MS_DEFAULT
        ),
        timestamp_after_ms_max=_whole(
            configs, "message.timestamp.after.max.ms", TIMESTAMP_AFTER_MS_DEFAULT
        ),
        # Segments may be smaller than the default, never larger.
        segment_bytes=min(_whole(configs, "segment.bytes", SEGMENT_BYTES_MAX), SEGMENT_BYTES_MAX),
        segment_ms=min(_whole(configs, "segment.ms", SEGMENT_AGE_MS_MAX), SEGMENT_AGE_MS_MAX),
        dirty_ratio_min=float(configs.get("min.cleanable.dirty.ratio", DIRTY_RATIO_DEFAULT)),
        compaction_lag_ms_min=_whole(configs, "min.compaction.lag.ms", 0),
        compaction_lag_ms_max=_whole(configs, "max.compaction.lag.ms", LONG_MAX),
        tombstone_ms=_whole(configs, "delete.retention.ms", TOMBSTONE_MS_DEFAULT),
    )


def _whole(configs: Mapping[str, str], name: str, default: int) -> int:
    return int(configs.get(name, default))


def _bound(configs: Mapping[str, str], name: str, default: int) -> int | None:
    value = _whole(configs, name, default)
    return None if value == FOREVER else value
