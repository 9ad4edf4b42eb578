"""Changes of a topic's configs: pure, so that the catalog can apply them to the newest value.

``penstock.queue=true`` makes a topic a queue, and it stays one: consumers may hold leases on it. A
config that a queue cannot have is rejected, not ignored, because such configs decide when messages
may be lost."""

from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from penstock.frontend.kafka.checks import check_not_internal, topic_named
from penstock.frontend.kafka.configs.resources import Edit
from penstock.frontend.kafka.configs.topic_configs import (
    CLEANUP_POLICY,
    ENCRYPTION,
    FSYNC,
    QUEUE,
    RETENTION_BYTES,
    RETENTION_MS,
    TIMESTAMP_TYPE,
    read_value,
    row_of,
)
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.errors import ApiError
from penstock.model import stream
from penstock.model.limits import QUEUE_PARTITIONS_MAX
from penstock.model.names import FIFO_SUFFIX, is_queue_name
from penstock.model.topic import Fsync, Kind, QueueSettings, Topic
from penstock.wire.kafka.faults import ErrorCode

# The bounds of a queue's retention period, in whole seconds as SQS clients see it.
QUEUE_RETENTION_MS_MIN: Final = 60_000
QUEUE_RETENTION_MS_MAX: Final = 14 * 24 * 3_600_000
SECOND_MS: Final = 1_000
OWN_FIELDS: Final = (QUEUE, FSYNC, ENCRYPTION)  # not among the topic's configs


def with_configs(topic: Topic, edit: Edit, *, now_ms: int, defaults: Mapping[str, str]) -> Topic:
    """Return the topic with changed configs. ``defaults``: values that operators have set for
    topics without a value. Raises ApiError."""
    removed = edit.removed
    texts = {name: read_value(name, text) for name, text in edit.given.items()}
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
        _check_queue_configs(configs)
    kind = Kind.STANDARD if becomes_queue else topic.kind
    after: Topic = msgspec.structs.replace(
        topic, kind=kind, fsync=fsync, settings=settings, configs=configs
    )
    return after if after == topic else msgspec.structs.replace(after, modified_at_ms=now_ms)


async def reconfigure(
    context: KafkaContext, name: str, change: Callable[[Topic], Topic], *, is_dry: bool
) -> None:
    """Apply ``change`` to the stored topic, or only check it. Raises ApiError and PenstockError."""
    topic = topic_named(context, name)
    check_not_internal(name)
    change(topic)  # reports errors of the request before the store is called
    if not is_dry:
        await context.catalog.change(topic.account, topic.region, name, change)


def _with_encryption(
    settings: QueueSettings, texts: Mapping[str, str], removed: Collection[str]
) -> QueueSettings:
    """SQS clients share the setting; they may have named a KMS key, which also means encryption."""
    text = texts.get(ENCRYPTION)
    if text is None:
        if ENCRYPTION not in removed:
            return settings
        return msgspec.structs.replace(settings, kms_key=None, is_sse_managed=None)
    if text == "true" and settings.kms_key is not None:
        return settings
    return msgspec.structs.replace(settings, kms_key=None, is_sse_managed=text == "true")


def _becomes_queue(topic: Topic, texts: Mapping[str, str], removed: Collection[str]) -> bool:
    """Return whether the change turns the stream into a queue."""
    if topic.is_queue:
        if texts.get(QUEUE) == "false" or QUEUE in removed:
            raise _invalid(f"{topic.name} is a queue and cannot become a stream again.")
        return False
    if texts.get(QUEUE) != "true":
        return False
    if not is_queue_name(topic.name) or topic.name.endswith(FIFO_SUFFIX):
        raise _invalid(
            f"{QUEUE}: a queue's name has 1 to 80 of the characters a-z A-Z 0-9 _ -, which "
            f"{topic.name} has not."
        )
    if topic.partition_count > QUEUE_PARTITIONS_MAX:
        raise _invalid(
            f"{QUEUE}: a queue has at most {QUEUE_PARTITIONS_MAX} partitions and {topic.name} has "
            f"{topic.partition_count}."
        )
    return True


def _queue_retention(topic: Topic, text: str | None, removed: Collection[str]) -> int:
    """Return the retention of the queue: as given, or as it is, or that of the stream."""
    if text is not None:
        retention_ms = int(text)
    elif topic.is_queue:
        is_removed = RETENTION_MS in removed
        return QueueSettings().retention_ms if is_removed else topic.settings.retention_ms
    else:
        retention_ms = stream.RETENTION_MS_DEFAULT
    is_whole = retention_ms % SECOND_MS == 0
    if not is_whole or not QUEUE_RETENTION_MS_MIN <= retention_ms <= QUEUE_RETENTION_MS_MAX:
        raise _invalid(
            f"{RETENTION_MS} of a queue is from {QUEUE_RETENTION_MS_MIN} to "
            f"{QUEUE_RETENTION_MS_MAX} in whole seconds, not {retention_ms}."
        )
    return retention_ms


def _check_queue_configs(configs: Mapping[str, str]) -> None:
    if stream.COMPACT in stream.policies_of(configs.get(CLEANUP_POLICY, stream.DELETE)):
        raise _invalid(f"{CLEANUP_POLICY}: a queue cannot be compacted.")
    if int(configs.get(RETENTION_BYTES, stream.FOREVER)) != stream.FOREVER:
        raise _invalid(f"{RETENTION_BYTES}: a queue does not drop messages because of its size.")
    if configs.get(TIMESTAMP_TYPE, stream.APPEND_TIME) != stream.APPEND_TIME:
        raise _invalid(f"{TIMESTAMP_TYPE}: messages of a queue carry the time of their append.")


def check_lags(configs: Mapping[str, str]) -> None:
    lag_ms_min = int(configs.get("min.compaction.lag.ms", 0))
    lag_ms_max = int(configs.get("max.compaction.lag.ms", stream.LONG_MAX))
    if lag_ms_min > lag_ms_max:
        raise _invalid(
            f"min.compaction.lag.ms ({lag_ms_min}) is above max.compaction.lag.ms ({lag_ms_max})."
        )


def _invalid(reason: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_CONFIG, reason)
