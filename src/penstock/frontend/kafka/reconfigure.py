"""A topic with other configs: pure, so that the catalog can apply it to the newest value. And the
loop over resources that both APIs which change configs have in common.

Also the one place that knows how configs and a queue go together. A topic is opened as a queue by
``penstock.queue=true`` and stays one: consumers may hold leases on it. Whatever a queue cannot do
is refused with a reason instead of being taken and ignored, because what would be ignored here are
rules about when messages may be lost."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import msgspec

from penstock.frontend.context import PARTITIONS_MAX as QUEUE_PARTITIONS_MAX
from penstock.frontend.kafka.configs import (
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
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.named import (
    check_group,
    check_not_internal,
    check_not_repeated,
    check_operator,
    check_topic,
    repeated,
    topic_named,
)
from penstock.frontend.kafka.permissions import Operation
from penstock.frontend.kafka.refusal import REFUSALS, Refusal, refusal_of
from penstock.frontend.kafka.resources import ResourceType, check_alterable
from penstock.model import stream
from penstock.model.names import FIFO_SUFFIX, is_queue_name
from penstock.model.topic import Fsync, Kind, QueueSettings, Topic
from penstock.wire.kafka.faults import ErrorCode

# The bounds of a queue's retention period, in whole seconds as SQS clients see it.
QUEUE_RETENTION_MS_MIN: Final = 60_000
QUEUE_RETENTION_MS_MAX: Final = 14 * 24 * 3_600_000
SECOND_MS: Final = 1_000
OWN_FIELDS: Final = (QUEUE, FSYNC, ENCRYPTION)  # not among the topic's configs


class _Config(Protocol):
    @property
    def name(self) -> str: ...


class _Resource(Protocol):
    """What the requests of the two APIs have in common; the codecs have a class for each."""

    @property
    def resource_type(self) -> int: ...

    @property
    def resource_name(self) -> str: ...

    @property
    def configs(self) -> Sequence[_Config]: ...


ResourceT = TypeVar("ResourceT", bound=_Resource)
AnswerT = TypeVar("AnswerT")


async def alter_all(
    context: KafkaContext,
    call: KafkaCall,
    resources: Sequence[ResourceT],
    alter: Callable[[ResourceT], Awaitable[None]],
    answer: Callable[[int, str | None, int, str], AnswerT],
) -> Sequence[AnswerT]:
    """Alter each resource, one after the other; what is refused does not stop the rest."""
    twice = repeated(map(_named, resources))
    answers = []
    async for resource in call.slices.each(resources):
        code, message = ErrorCode.NONE, None
        try:
            check_not_repeated(_named(resource), twice)
            _check_allowed(context, call, resource)
            check_alterable(resource.resource_type)
            for name in repeated(config.name for config in resource.configs):
                raise Refusal(ErrorCode.INVALID_REQUEST, f"{name} is given more than once.")
            await alter(resource)
        except REFUSALS as error:
            refusal = refusal_of(error)
            code, message = refusal.code, refusal.message
        answers.append(answer(code, message, resource.resource_type, resource.resource_name))
    return answers


def _check_allowed(context: KafkaContext, call: KafkaCall, resource: _Resource) -> None:
    operation, name = Operation.ALTER_CONFIGS, resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        check_topic(context, call, operation, name)
    elif resource.resource_type == ResourceType.GROUP:
        check_group(context, call, operation, name)
    else:
        check_operator(context, call, operation)


def _named(resource: _Resource) -> str:
    return f"{resource.resource_type} {resource.resource_name}"


def with_configs(
    topic: Topic,
    given: Mapping[str, str | None],
    *,
    now_ms: int,
    defaults: Mapping[str, str],
    removed: Collection[str] = (),
) -> Topic:
    """The topic with ``given`` set and ``removed`` back at their defaults. ``defaults``: what
    operators have set for topics without a value. Raises Refusal."""
    texts = {name: read_value(name, text) for name, text in given.items()}
    for name in removed:
        row_of(name)
    is_opened = _is_opened(topic, texts, removed)
    fsync = topic.fsync
    if FSYNC in texts:
        fsync = Fsync(texts[FSYNC])
    elif FSYNC in removed:
        fsync = None
    configs = {name: text for name, text in topic.configs.items() if name not in removed}
    configs.update((name, text) for name, text in texts.items() if name not in OWN_FIELDS)
    check_lags(configs)
    settings = _with_encryption(topic.settings, texts, removed)
    if topic.is_queue or is_opened:
        given_ms = configs.pop(RETENTION_MS, None)
        if given_ms is None and is_opened:
            given_ms = defaults.get(RETENTION_MS)
        retention = _queue_retention(topic, given_ms, removed)
        settings = msgspec.structs.replace(settings, retention_ms=retention)
        _check_queue_configs(configs)
    kind = Kind.STANDARD if is_opened else topic.kind
    after: Topic = msgspec.structs.replace(
        topic, kind=kind, fsync=fsync, settings=settings, configs=configs
    )
    return after if after == topic else msgspec.structs.replace(after, modified_at_ms=now_ms)


async def reconfigure(
    context: KafkaContext, name: str, change: Callable[[Topic], Topic], *, is_dry: bool
) -> None:
    """Apply ``change`` to the stored topic, or only see whether it could be. Raises Refusal and
    model errors."""
    topic = topic_named(context, name)
    check_not_internal(name)
    change(topic)  # the caller's faults come before the store is asked for anything
    if not is_dry:
        await context.catalog.change(topic.account, topic.region, name, change)


def _with_encryption(
    settings: QueueSettings, texts: Mapping[str, str], removed: Collection[str]
) -> QueueSettings:
    """One setting with SQS clients, who may have named a KMS key: that is encrypted as well."""
    text = texts.get(ENCRYPTION)
    if text is None:
        if ENCRYPTION not in removed:
            return settings
        return msgspec.structs.replace(settings, kms_key=None, is_sse_managed=None)
    if text == "true" and settings.kms_key is not None:
        return settings
    return msgspec.structs.replace(settings, kms_key=None, is_sse_managed=text == "true")


def _is_opened(topic: Topic, texts: Mapping[str, str], removed: Collection[str]) -> bool:
    """Whether the stream becomes a queue now."""
    if topic.is_queue:
        if texts.get(QUEUE) == "false" or QUEUE in removed:
            raise _invalid(f"{topic.name} is a queue and cannot be turned into a mere stream.")
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
    """What the queue keeps messages for: as given now, or as it stands, or what the stream had."""
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


def _invalid(reason: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_CONFIG, reason)
