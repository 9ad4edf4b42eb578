"""The configs of groups: one table row each, as those of topics have.

What is set for a group stands with the groups themselves, and may be set before the group is there:
where a share group begins is decided when its first member comes. The configs of consumer groups
are the node's, shown and fixed."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from penstock.cursor.group.codes import Code
from penstock.cursor.group.settings import (
    EARLIEST,
    LATEST,
    SHARE_DEFAULT,
    SHARE_HEARTBEAT,
    SHARE_ISOLATION,
    SHARE_LOCK,
    SHARE_RESET,
    SHARE_SESSION,
    GroupSettings,
    share_settings,
)
from penstock.frontend.kafka.configs import (
    ConfigEntry,
    Source,
    TopicConfig,
    ValueType,
    choice,
    read_by,
    whole,
)
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.refusal import Refusal
from penstock.model.limits import MINUTE_MS, SECOND_MS
from penstock.wire.kafka.faults import ErrorCode

UNCOMMITTED: Final = "read_uncommitted"
LOCK_MS_MAX: Final = 60 * MINUTE_MS
HEARTBEAT_MS_MAX: Final = 5 * MINUTE_MS


def _isolation(text: str) -> str:
    if text != UNCOMMITTED:
        raise ValueError(f"{UNCOMMITTED}: shares hand out the records of open transactions, too")
    return text


_ROWS: Final = (
    TopicConfig(
        SHARE_RESET,
        ValueType.STRING,
        LATEST,
        None,
        choice(EARLIEST, LATEST),
        "Where a share group begins in a topic that it has not read before.",
    ),
    TopicConfig(
        SHARE_HEARTBEAT,
        ValueType.INT,
        str(SHARE_DEFAULT.heartbeat_ms),
        "group.share.heartbeat.interval.ms",
        whole(SECOND_MS, HEARTBEAT_MS_MAX),
        "How often a member of a share group says that it is there.",
    ),
    TopicConfig(
        SHARE_ISOLATION,
        ValueType.STRING,
        UNCOMMITTED,
        None,
        _isolation,
        "Which records of transactions a share group reads: all of them.",
    ),
    TopicConfig(
        SHARE_LOCK,
        ValueType.INT,
        str(SHARE_DEFAULT.lock_ms),
        "group.share.record.lock.duration.ms",
        whole(SECOND_MS, LOCK_MS_MAX),
        "How long a record is leased to a member before it is given to another.",
    ),
    TopicConfig(
        SHARE_SESSION,
        ValueType.INT,
        str(SHARE_DEFAULT.session_ms),
        "group.share.session.timeout.ms",
        whole(GroupSettings().session_ms_min, GroupSettings().session_ms_max),
        "How long a member may be silent before its partitions go to others.",
    ),
)

GROUP_TABLE: Final[Mapping[str, TopicConfig]] = MappingProxyType({row.name: row for row in _ROWS})


async def alter_group(
    context: KafkaContext,
    group_id: str,
    given: Mapping[str, str | None],
    *,
    removed: Collection[str] = (),
    is_dry: bool,
) -> None:
    """``given`` is set and ``removed`` goes back to its default. Raises Refusal."""
    changes: dict[str, str | None] = {
        name: read_by(_row(name), text) for name, text in given.items()
    }
    for name in removed:
        _row(name)
        changes[name] = None
    current = await configs_of(context, group_id)
    merged = {**current, **changes}
    after = share_settings({name: text for name, text in merged.items() if text is not None})
    if after.heartbeat_ms >= after.session_ms:
        raise Refusal(
            ErrorCode.INVALID_CONFIG,
            f"{SHARE_HEARTBEAT} ({after.heartbeat_ms}) must be below {SHARE_SESSION} "
            f"({after.session_ms}).",
        )
    if not is_dry:
        reply = await context.groups.change_configs(group_id, changes)
        if reply.code:
            raise Refusal(ErrorCode(reply.code))


async def configs_of(context: KafkaContext, group_id: str) -> Mapping[str, str]:
    """What is set, by name. Raises Refusal."""
    if not group_id:
        raise Refusal(ErrorCode.INVALID_REQUEST, "A group has a name.")
    code, configs = await context.groups.configs(group_id)
    if code is not Code.NONE:
        raise Refusal(ErrorCode(code))
    return configs


def group_entries(configs: Mapping[str, str]) -> list[ConfigEntry]:
    """Sorted by name."""
    entries = [*_fixed(), *(_entry(row, configs.get(row.name)) for row in _ROWS)]
    return sorted(entries, key=lambda entry: entry.name)


def _entry(row: TopicConfig, value: str | None) -> ConfigEntry:
    synonyms: tuple[tuple[str, str | None, Source], ...] = ()
    if value is not None:
        synonyms = ((row.name, value, Source.GROUP),)
    if row.node_name is not None:
        synonyms = (*synonyms, (row.node_name, row.default, Source.DEFAULT))
    return ConfigEntry(
        row.name,
        row.default if value is None else value,
        Source.DEFAULT if value is None else Source.GROUP,
        row.type,
        row.documentation,
        synonyms=synonyms,
    )


def _fixed() -> list[ConfigEntry]:
    settings = GroupSettings()
    rows = (
        (
            "consumer.heartbeat.interval.ms",
            str(settings.consumer_heartbeat_ms),
            "How often a member of a consumer group says that it is there.",
        ),
        (
            "consumer.session.timeout.ms",
            str(settings.consumer_session_ms),
            "How long a member may be silent before its partitions go to others.",
        ),
    )
    return [
        ConfigEntry(
            name,
            value,
            Source.DEFAULT,
            ValueType.INT,
            documentation,
            is_read_only=True,
            synonyms=((name, value, Source.DEFAULT),),
        )
        for name, value, documentation in rows
    ]


def _row(name: str) -> TopicConfig:
    row = GROUP_TABLE.get(name)
    if row is None:
        raise Refusal(ErrorCode.INVALID_CONFIG, f"There is no group config {name[:100]!r} to set.")
    return row
