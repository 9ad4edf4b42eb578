"""The configs of groups, and of the metrics that clients push (KIP-714).

Configs of a group may be set before the group exists, because they decide where a share group
starts when its first member joins. Configs of client metrics (which clients push which metrics, and
how often) are stored but have no effect, because telemetry is not supported."""

import re
from collections.abc import Mapping
from typing import Final

from penstock.cursor.coordinator_calls import ChangeConfigs, ReadConfigs
from penstock.cursor.groups import settings
from penstock.cursor.groups.settings import GroupSettings
from penstock.frontend.kafka.configs.rows import (
    ConfigEntry,
    ConfigRow,
    Edit,
    Source,
    Synonym,
    invalid_config,
    read_by,
    store,
    table,
)
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.errors import ApiError, invalid_request
from penstock.frontend.kafka.shares.share_groups import DELIVERIES_MAX
from penstock.metadata.topics.resource_configs import CLIENT_METRICS
from penstock.model.levels import GROUP_CONFIGS_STORED
from penstock.model.limits import MINUTE_MS, SECOND_MS
from penstock.wire.kafka.faults import ErrorCode

STANDBYS_MAX: Final = 2  # this and other bounds are as in Kafka
_DEFAULT: Final = GroupSettings()
_SHARE: Final = settings.SHARE_DEFAULT
_SESSION_MS: Final = f"{_DEFAULT.session_ms_min}..{_DEFAULT.session_ms_max}"
_TIMES: Final = (
    ("consumer", _DEFAULT.consumer_session_ms, _DEFAULT.consumer_heartbeat_ms),
    ("share", _SHARE.session_ms, _SHARE.heartbeat_ms),
    ("streams", _DEFAULT.consumer_session_ms, _DEFAULT.consumer_heartbeat_ms),
)
_TIME_ROWS: Final = "".join(
    f"""\
{kind}.session.timeout.ms | int {_SESSION_MS} | {session_ms} | group.=
    Time without a heartbeat after which a member is removed from the group.
{kind}.heartbeat.interval.ms | int {SECOND_MS}..{5 * MINUTE_MS} | {heartbeat_ms} | group.=
    Interval of heartbeats in a {kind} group.
{kind}.assignment.interval.ms | int 0..{15 * SECOND_MS} | 0 | group.=
    Shortest time between two assignments of a {kind} group.
"""
    for kind, session_ms, heartbeat_ms in _TIMES
)
GROUP_TABLE: Final = table(
    f"""\
{_TIME_ROWS}\
{settings.SHARE_RESET} | string {settings.EARLIEST}/{settings.LATEST} | {settings.LATEST}
    Where a share group starts in a topic that it has not read before.
{settings.SHARE_ISOLATION} | string read_committed/read_uncommitted | read_uncommitted
    Whether a share group reads records of open and aborted transactions.
{settings.SHARE_LOCK} | int {SECOND_MS}..{60 * MINUTE_MS} | {_SHARE.lock_ms} | group.=
    Duration of the lease of a record to a member.
{settings.SHARE_DELIVERIES} | int 2..10 | {DELIVERIES_MAX} | group.=
    Maximum number of deliveries of a record.
{settings.SHARE_LOCKS} | int 100..10000 | {_SHARE.locks_max} | group.=
    Maximum number of records of a partition that are leased at the same time.
{settings.SHARE_RENEW} | boolean | true
    Whether members may extend the lease of a record.
{settings.STREAMS_STANDBYS} | int 0..{STANDBYS_MAX} | 0 | group.=
    Number of standby copies of each task of a streams group.
{settings.STREAMS_DELAY} | int | {_DEFAULT.initial_delay_ms} | group.=
    Time for which a new streams group waits for more members after the first.
"""
)
INTERVAL: Final = "interval.ms"
INTERVAL_MS_MIN, INTERVAL_MS_MAX = 100, 3_600_000  # as in Kafka
_PATTERN: Final = re.compile(r"\s*([a-z_]+)\s*=[^=]+\Z")
_MATCHED: Final = (
    *("client_id", "client_instance_id", "client_software_name", "client_software_version"),
    *("client_source_address", "client_source_port"),
)


async def alter_group(
    context: KafkaContext, group_id: str, current: Mapping[str, str], edit: Edit, *, is_dry: bool
) -> None:
    changes: dict[str, str | None] = {
        name: read_by(_row(name), text) for name, text in edit.given.items()
    }
    changes |= {_row(name).name: None for name in edit.removed}
    for name, text in () if context.groups.has_stored_configs else changes.items():
        # Below feature level 3 an older node may coordinate the group.
        if name not in settings.CONFIGS_OF_ROWS or text == settings.READ_COMMITTED:
            raise invalid_config(
                f"{name}={text} needs feature level {GROUP_CONFIGS_STORED}: upgrade all nodes, then"
                " run penstock cluster upgrade."
            )
    merged: dict[str, str | None] = {**current, **changes}
    for kind, _, _ in _TIMES:
        heartbeat, session = f"{kind}.heartbeat.interval.ms", f"{kind}.session.timeout.ms"
        often_ms, silent_ms = (
            int(merged.get(name) or GROUP_TABLE[name].default or 0) for name in (heartbeat, session)
        )
        if often_ms >= silent_ms:
            raise invalid_config(f"{heartbeat} ({often_ms}) must be below {session} ({silent_ms}).")
    if not is_dry:
        reply = await context.groups.call(ChangeConfigs(group_id, changes))
        if reply.code:
            raise ApiError(ErrorCode(reply.code))


def _row(name: str) -> ConfigRow:
    row = GROUP_TABLE.get(name)
    if row is None:
        raise invalid_config(f"Unknown group config {name[:100]!r}.")
    return row


async def configs_of(context: KafkaContext, group_id: str) -> Mapping[str, str]:
    if not group_id:
        raise invalid_request("The group id is empty.")
    code, configs = await context.groups.call(ReadConfigs(group_id))
    if code is not ErrorCode.NONE:
        raise ApiError(ErrorCode(code))
    return configs


def group_entries(configs: Mapping[str, str]) -> list[ConfigEntry]:
    entries = []
    for row in GROUP_TABLE.values():
        synonyms: list[Synonym] = [(row.node_name or row.name, row.default, Source.DEFAULT)]
        if row.name in configs:
            synonyms.insert(0, (row.name, configs[row.name], Source.GROUP))
        entries.append(row.entry(synonyms))
    return entries


# ── Client metrics ───────────────────────────────────────────────────────────────────────────


def _listed(text: str) -> str:
    return ",".join(part.strip() for part in text.split(",") if part.strip())


def _patterns(text: str) -> str:
    """Check a list of NAME=PATTERN. Patterns have Java's regex syntax, so they are not checked."""
    for part in _listed(text).split(",") if text else ():
        if not (found := _PATTERN.match(part)) or found[1] not in _MATCHED:
            raise ValueError(
                f"the value must be a list of NAME=PATTERN, NAME being one of {', '.join(_MATCHED)}"
            )
    return _listed(text)


METRICS_TABLE: Final = table(
    f"""\
{INTERVAL} | int | 300000
    Interval at which clients push their metrics.
match | list patterns |
    Clients that push metrics: NAME=PATTERN, separated by commas. If empty, all clients.
metrics | list listed |
    Prefixes of the names of the metrics that clients push, separated by commas.
""",
    patterns=_patterns,
    listed=_listed,
)


async def alter_metrics(context: KafkaContext, name: str, edit: Edit, *, is_dry: bool) -> None:
    _check_metrics_name(name)
    changes: dict[str, str | None] = dict.fromkeys(edit.removed)
    for key, text in edit.given.items():
        row = METRICS_TABLE.get(key)
        if row is None:
            raise invalid_request(f"Unknown client metrics config {key[:100]!r}.")
        read = changes[key] = read_by(row, text)
        if key == INTERVAL and not INTERVAL_MS_MIN <= int(read) <= INTERVAL_MS_MAX:
            # As in Kafka, the error code differs from that of a text that is not a number.
            raise invalid_request(
                f"{INTERVAL} must be from {INTERVAL_MS_MIN} to {INTERVAL_MS_MAX}, not {read}."
            )
    await store(context, CLIENT_METRICS, name, changes, is_dry=is_dry)


def metric_entries(context: KafkaContext, name: str) -> list[ConfigEntry]:
    _check_metrics_name(name)
    configs, source = context.dynamic.of(CLIENT_METRICS, name), Source.CLIENT_METRICS
    return [
        row.entry([(key, configs[key], source)] if key in configs else ())
        for key, row in METRICS_TABLE.items()
    ]


def _check_metrics_name(name: str) -> None:
    if not name:
        raise invalid_request("The name of a client metrics subscription must not be empty.")
