"""The configs of groups, in a table. They may be set before the group exists: where a share group
starts is decided when its first member joins."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from penstock.cursor.coordinator_calls import ChangeConfigs, ReadConfigs
from penstock.cursor.groups import settings
from penstock.cursor.groups.settings import GroupSettings
from penstock.frontend.kafka.configs.config_values import INT_MAX, Read, choice, flag, whole
from penstock.frontend.kafka.configs.resources import Edit
from penstock.frontend.kafka.configs.topic_configs import (
    ConfigEntry,
    ConfigRow,
    Source,
    Synonym,
    ValueType,
    read_by,
)
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.errors import ApiError, invalid_request
from penstock.frontend.kafka.shares.share_groups import DELIVERIES_MAX
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


def _int(name: str, default: int, node_name: str | None, read: Read, text: str) -> ConfigRow:
    return ConfigRow(name, ValueType.INT, str(default), node_name, read, text)


def _times(
    kind: str, session: tuple[str, int], heartbeat: tuple[str, int], assignment: str
) -> tuple[ConfigRow, ...]:
    """Return the three timeouts of groups of one kind."""
    return (
        _int(
            *session,
            f"group.{kind}.session.timeout.ms",
            _session,
            "Time without a heartbeat after which a member is removed.",
        ),
        _int(
            *heartbeat,
            f"group.{kind}.heartbeat.interval.ms",
            _heartbeat,
            f"Interval of heartbeats in a {kind} group.",
        ),
        _int(
            assignment,
            0,
            f"group.{kind}.assignment.interval.ms",
            _assignment,
            f"Shortest time between two assignments of a {kind} group.",
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
    ConfigRow(
        settings.SHARE_RESET,
        ValueType.STRING,
        settings.LATEST,
        None,
        choice(settings.EARLIEST, settings.LATEST),
        "Where a share group starts in a topic that it has not read before.",
    ),
    ConfigRow(
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
        "How long a record is leased to a member.",
    ),
    _int(
        settings.SHARE_DELIVERIES,
        DELIVERIES_MAX,
        "group.share.delivery.count.limit",
        whole(DELIVERIES_LIMIT_MIN, DELIVERIES_LIMIT_MAX),
        "How often a record is delivered at most.",
    ),
    _int(
        settings.SHARE_LOCKS,
        _SHARE.locks_max,
        "group.share.partition.max.record.locks",
        whole(LOCKS_MIN, LOCKS_MAX),
        "Records of a partition that may be leased at the same time.",
    ),
    ConfigRow(
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
        "Standby copies of each task of a streams group.",
    ),
    _int(
        settings.STREAMS_DELAY,
        _DEFAULT.initial_delay_ms,
        "group.streams.initial.rebalance.delay.ms",
        whole(0, INT_MAX),
        "How long an empty streams group waits for more members after the first.",
    ),
)

GROUP_TABLE: Final[Mapping[str, ConfigRow]] = MappingProxyType({row.name: row for row in _ROWS})
_PAIRS: Final = (
    (settings.CONSUMER_HEARTBEAT, settings.CONSUMER_SESSION),
    (settings.SHARE_HEARTBEAT, settings.SHARE_SESSION),
    (settings.STREAMS_HEARTBEAT, settings.STREAMS_SESSION),
)


async def alter_group(
    context: KafkaContext, group_id: str, current: Mapping[str, str], edit: Edit, *, is_dry: bool
) -> None:
    """Raises ApiError."""
    changes: dict[str, str | None] = {
        name: read_by(_row(name), text) for name, text in edit.given.items()
    }
    for name in edit.removed:
        _row(name)
        changes[name] = None
    if not context.groups.has_stored_configs:
        _check_known_to_rows(changes)
    merged: dict[str, str | None] = {**current, **changes}
    for heartbeat, session in _PAIRS:
        often_ms, silent_ms = (
            int(merged.get(name) or GROUP_TABLE[name].default or 0) for name in (heartbeat, session)
        )
        if often_ms >= silent_ms:
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"{heartbeat} ({often_ms}) must be below {session} ({silent_ms}).",
            )
    if not is_dry:
        reply = await context.groups.call(ChangeConfigs(group_id, changes))
        if reply.code:
            raise ApiError(ErrorCode(reply.code))


def _check_known_to_rows(changes: Mapping[str, str | None]) -> None:
    """Below feature level 3 an older node may coordinate the group. Raises ApiError."""
    for name, text in changes.items():
        if name not in settings.CONFIGS_OF_ROWS or text == settings.READ_COMMITTED:
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"{name}={text} needs feature level {GROUP_CONFIGS_STORED}: upgrade all nodes, then"
                " run penstock cluster upgrade.",
            )


async def configs_of(context: KafkaContext, group_id: str) -> Mapping[str, str]:
    """Return the configs that are set, by name. Raises ApiError."""
    if not group_id:
        raise invalid_request("The group id is empty.")
    code, configs = await context.groups.call(ReadConfigs(group_id))
    if code is not ErrorCode.NONE:
        raise ApiError(ErrorCode(code))
    return configs


def group_entries(configs: Mapping[str, str]) -> list[ConfigEntry]:
    """Return all configs of a group, sorted by name."""
    entries = []
    for row in sorted(_ROWS, key=lambda row: row.name):
        synonyms: list[Synonym] = [(row.node_name or row.name, row.default, Source.DEFAULT)]
        if row.name in configs:
            synonyms.insert(0, (row.name, configs[row.name], Source.GROUP))
        entries.append(row.entry(synonyms))
    return entries


def _row(name: str) -> ConfigRow:
    row = GROUP_TABLE.get(name)
    if row is None:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"There is no group config {name[:100]!r} to set.")
    return row
