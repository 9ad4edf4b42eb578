"""The configs of groups: one table row each, as those of topics have.

What is set for a group is kept apart from the group, and may be set before the group exists: where
a share group begins is decided when its first member comes."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from penstock.cursor.group import settings
from penstock.cursor.group.codes import Code
from penstock.cursor.group.settings import GroupSettings
from penstock.frontend.kafka.config_values import INT_MAX, Read, choice, flag, whole
from penstock.frontend.kafka.configs import (
    ConfigEntry,
    Source,
    TopicConfig,
    ValueType,
    read_by,
)
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.refusal import Refusal
from penstock.frontend.kafka.share_groups import DELIVERIES_MAX
from penstock.model.levels import GROUP_CONFIGS_STORED
from penstock.model.limits import MINUTE_MS, SECOND_MS
from penstock.wire.kafka.faults import ErrorCode

LOCK_MS_MAX: Final = 60 * MINUTE_MS
HEARTBEAT_MS_MAX: Final = 5 * MINUTE_MS
ASSIGNMENT_MS_MAX: Final = 15 * SECOND_MS  # as in Kafka
LOCKS_MIN, LOCKS_MAX = 100, 10_000  # as in Kafka
DELIVERIES_LIMIT_MIN, DELIVERIES_LIMIT_MAX = 2, 10  # as in Kafka
STANDBYS_MAX: Final = 2  # as in Kafka
_DEFAULT: Final = GroupSettings()
_SHARE: Final = settings.SHARE_DEFAULT
_session: Final = whole(_DEFAULT.session_ms_min, _DEFAULT.session_ms_max)
_heartbeat: Final = whole(SECOND_MS, HEARTBEAT_MS_MAX)
_assignment: Final = whole(0, ASSIGNMENT_MS_MAX)


def _int(name: str, default: int, node_name: str | None, read: Read, text: str) -> TopicConfig:
    return TopicConfig(name, ValueType.INT, str(default), node_name, read, text)


def _times(
    kind: str, session: tuple[str, int], heartbeat: tuple[str, int], assignment: str
) -> tuple[TopicConfig, ...]:
    """The three times that groups of each kind have."""
    return (
        _int(
            *session,
            f"group.{kind}.session.timeout.ms",
            _session,
            "How long a member may be silent before its partitions go to others.",
        ),
        _int(
            *heartbeat,
            f"group.{kind}.heartbeat.interval.ms",
            _heartbeat,
            f"How often a member of a {kind} group says that it is there.",
        ),
        _int(
            assignment,
            0,
            f"group.{kind}.assignment.interval.ms",
            _assignment,
            f"How long a {kind} group keeps an assignment at least, whoever comes or goes.",
        ),
    )


_ROWS: Final = (
    *_times(
        "consumer",
        (settings.CONSUMER_SESSION, _DEFAULT.consumer_session_ms),
        (settings.CONSUMER_HEARTBEAT, _DEFAULT.consumer_heartbeat_ms),
        settings.CONSUMER_ASSIGNMENT,
    ),
    *_times(
        "share",
        (settings.SHARE_SESSION, _SHARE.session_ms),
        (settings.SHARE_HEARTBEAT, _SHARE.heartbeat_ms),
        settings.SHARE_ASSIGNMENT,
    ),
    *_times(
        "streams",
        (settings.STREAMS_SESSION, _DEFAULT.consumer_session_ms),
        (settings.STREAMS_HEARTBEAT, _DEFAULT.consumer_heartbeat_ms),
        settings.STREAMS_ASSIGNMENT,
    ),
    TopicConfig(
        settings.SHARE_RESET,
        ValueType.STRING,
        settings.LATEST,
        None,
        choice(settings.EARLIEST, settings.LATEST),
        "Where a share group begins in a topic that it has not read before.",
    ),
    TopicConfig(
        settings.SHARE_ISOLATION,
        ValueType.STRING,
        settings.READ_UNCOMMITTED,
        None,
        choice(settings.READ_COMMITTED, settings.READ_UNCOMMITTED),
        "Whether a share group reads records of open and aborted transactions.",
    ),
    _int(
        settings.SHARE_LOCK,
        _SHARE.lock_ms,
        "group.share.record.lock.duration.ms",
        whole(SECOND_MS, LOCK_MS_MAX),
        "How long a record is leased to a member before it is given to another.",
    ),
    _int(
        settings.SHARE_DELIVERIES,
        DELIVERIES_MAX,
        "group.share.delivery.count.limit",
        whole(DELIVERIES_LIMIT_MIN, DELIVERIES_LIMIT_MAX),
        "How often a record is delivered before the group is finished with it.",
    ),
    _int(
        settings.SHARE_LOCKS,
        _SHARE.locks_max,
        "group.share.partition.max.record.locks",
        whole(LOCKS_MIN, LOCKS_MAX),
        "How many records of a partition are leased to members at the same time.",
    ),
    TopicConfig(
        settings.SHARE_RENEW,
        ValueType.BOOLEAN,
        "true",
        None,
        flag,
        "Whether members may extend the lease of a record.",
    ),
    _int(
        settings.STREAMS_STANDBYS,
        0,
        "group.streams.num.standby.replicas",
        whole(0, STANDBYS_MAX),
        "How many standby copies each task of a streams group has.",
    ),
    _int(
        settings.STREAMS_DELAY,
        _DEFAULT.initial_delay_ms,
        "group.streams.initial.rebalance.delay.ms",
        whole(0, INT_MAX),
        "How long an empty streams group waits for more members after the first.",
    ),
)

GROUP_TABLE: Final[Mapping[str, TopicConfig]] = MappingProxyType({row.name: row for row in _ROWS})
_PAIRS: Final = (
    (settings.CONSUMER_HEARTBEAT, settings.CONSUMER_SESSION),
    (settings.SHARE_HEARTBEAT, settings.SHARE_SESSION),
    (settings.STREAMS_HEARTBEAT, settings.STREAMS_SESSION),
)


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
    if not context.groups.has_stored_configs:
        _check_known_to_rows(changes)
    merged: dict[str, str | None] = {**await configs_of(context, group_id), **changes}
    for heartbeat, session in _PAIRS:
        often_ms, silent_ms = (
            int(merged.get(name) or GROUP_TABLE[name].default or 0) for name in (heartbeat, session)
        )
        if often_ms >= silent_ms:
            raise Refusal(
                ErrorCode.INVALID_CONFIG,
                f"{heartbeat} ({often_ms}) must be below {session} ({silent_ms}).",
            )
    if not is_dry:
        reply = await context.groups.change_configs(group_id, changes)
        if reply.code:
            raise Refusal(ErrorCode(reply.code))


def _check_known_to_rows(changes: Mapping[str, str | None]) -> None:
    """Below feature level 3 an older node may coordinate the group. Raises Refusal."""
    for name, text in changes.items():
        if name not in settings.CONFIGS_OF_ROWS or text == settings.READ_COMMITTED:
            raise Refusal(
                ErrorCode.INVALID_CONFIG,
                f"{name}={text} needs feature level {GROUP_CONFIGS_STORED}: upgrade all nodes, then"
                " run penstock cluster upgrade.",
            )


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
    entries = (_entry(row, configs.get(row.name)) for row in _ROWS)
    return sorted(entries, key=lambda entry: entry.name)


def _entry(row: TopicConfig, value: str | None) -> ConfigEntry:
    synonyms: tuple[tuple[str, str | None, Source], ...] = ()
    if value is not None:
        synonyms = ((row.name, value, Source.GROUP),)
    synonyms = (*synonyms, (row.node_name or row.name, row.default, Source.DEFAULT))
    return ConfigEntry(
        row.name,
        row.default if value is None else value,
        Source.DEFAULT if value is None else Source.GROUP,
        row.type,
        row.documentation,
        synonyms=synonyms,
    )


def _row(name: str) -> TopicConfig:
    row = GROUP_TABLE.get(name)
    if row is None:
        raise Refusal(ErrorCode.INVALID_CONFIG, f"There is no group config {name[:100]!r} to set.")
    return row
