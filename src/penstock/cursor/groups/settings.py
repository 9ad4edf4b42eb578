"""Settings of consumer groups that an operator can change, and fixed limits."""

from collections.abc import Mapping

import msgspec

from penstock.model.limits import MINUTE_MS, SECOND_MS

DAY_MS = 24 * 60 * MINUTE_MS

# How long a new member is kept without a reply to its first join. Clients of the first protocol
# versions do not know their member id before that reply, so they return as another member.
NEW_MEMBER_MS_MAX = 5 * MINUTE_MS
GENERATION_MAX = 2**31 - 1  # a signed 32-bit field on the wire
GROUP_ID_CHARS_MAX = 1_024
MEMBER_PROTOCOLS_MAX = 64
COMMIT_METADATA_BYTES_MAX = 4_096  # of the text that clients may attach to an offset
FENCES_MAX = 50_000  # producers whose last marker is remembered, per coordinator partition
FENCE_MS = DAY_MS  # partitions remember an idle producer for the same time


class GroupSettings(msgspec.Struct, frozen=True):
    session_ms_min: int = 6 * SECOND_MS
    session_ms_max: int = 30 * MINUTE_MS
    rebalance_ms_max: int = 24 * 60 * MINUTE_MS  # so that no client blocks a group for weeks
    # How long a read of committed offsets waits for a coordinator that moves: longer than a
    # failover takes, and well below the timeout of clients.
    fetch_ms_max: int = 10 * SECOND_MS
    # How long an empty group waits for more members after the first.
    initial_delay_ms: int = 3 * SECOND_MS
    members_max: int = 2_000  # per group
    groups_max: int = 10_000  # per coordinator partition
    offsets_max: int = 100_000  # committed and pending, per group
    offsets_retention_ms: int = 7 * DAY_MS
    consumer_session_ms: int = 45 * SECOND_MS
    consumer_heartbeat_ms: int = 5 * SECOND_MS
    share_members_max: int = 200  # per share group
    configs_max: int = 10_000  # groups with configs, per coordinator partition


# Configs of one group, under Kafka's names.
CONSUMER_SESSION = "consumer.session.timeout.ms"
CONSUMER_HEARTBEAT = "consumer.heartbeat.interval.ms"
CONSUMER_ASSIGNMENT = "consumer.assignment.interval.ms"
SHARE_RESET = "share.auto.offset.reset"
SHARE_LOCK = "share.record.lock.duration.ms"
SHARE_SESSION = "share.session.timeout.ms"
SHARE_HEARTBEAT = "share.heartbeat.interval.ms"
SHARE_ASSIGNMENT = "share.assignment.interval.ms"
SHARE_ISOLATION = "share.isolation.level"
SHARE_DELIVERIES = "share.delivery.count.limit"
SHARE_LOCKS = "share.partition.max.record.locks"
SHARE_RENEW = "share.renew.acknowledge.enable"
STREAMS_SESSION = "streams.session.timeout.ms"
STREAMS_HEARTBEAT = "streams.heartbeat.interval.ms"
STREAMS_ASSIGNMENT = "streams.assignment.interval.ms"
STREAMS_STANDBYS = "streams.num.standby.replicas"
STREAMS_DELAY = "streams.initial.rebalance.delay.ms"
EARLIEST = "earliest"
LATEST = "latest"
READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"

# Configs that older nodes know, which store configs as rows instead of in the metadata store.
CONFIGS_OF_ROWS = frozenset(
    (SHARE_RESET, SHARE_LOCK, SHARE_SESSION, SHARE_HEARTBEAT, SHARE_ISOLATION)
)


class ConsumerSettings(msgspec.Struct, frozen=True, gc=False):
    session_ms: int
    heartbeat_ms: int
    assignment_ms: int = 0  # minimum time between two assignments


def consumer_settings(configs: Mapping[str, str], default: GroupSettings) -> ConsumerSettings:
    session_ms = int(configs.get(CONSUMER_SESSION, default.consumer_session_ms))
    heartbeat_ms = int(configs.get(CONSUMER_HEARTBEAT, default.consumer_heartbeat_ms))
    return ConsumerSettings(session_ms, heartbeat_ms, int(configs.get(CONSUMER_ASSIGNMENT, 0)))


class StreamsSettings(ConsumerSettings, frozen=True, gc=False):
    delay_ms: int = 0  # how long an empty group waits for more members after the first
    standbys: int = 0  # number of standby copies of each stateful task


def streams_settings(configs: Mapping[str, str], default: GroupSettings) -> StreamsSettings:
    return StreamsSettings(
        session_ms=int(configs.get(STREAMS_SESSION, default.consumer_session_ms)),
        heartbeat_ms=int(configs.get(STREAMS_HEARTBEAT, default.consumer_heartbeat_ms)),
        delay_ms=int(configs.get(STREAMS_DELAY, default.initial_delay_ms)),
        assignment_ms=int(configs.get(STREAMS_ASSIGNMENT, 0)),
        standbys=int(configs.get(STREAMS_STANDBYS, 0)),
    )


class ShareSettings(msgspec.Struct, frozen=True, gc=False):
    session_ms: int = 45 * SECOND_MS
    heartbeat_ms: int = 5 * SECOND_MS
    lock_ms: int = 30 * SECOND_MS  # how long a record is leased to a member
    is_earliest: bool = False  # whether to read new topics from their beginning
    assignment_ms: int = 0  # minimum time between two assignments
    is_committed: bool = False  # hides records of open and aborted transactions
    deliveries_max: int | None = None  # per record; if None, the limit of the share applies
    locks_max: int = 2_000  # records of one partition that are leased at the same time
    is_renewable: bool = True  # whether members may extend their leases


SHARE_DEFAULT = ShareSettings()


def share_settings(configs: Mapping[str, str]) -> ShareSettings:
    default = SHARE_DEFAULT
    if not configs:
        return default
    deliveries = configs.get(SHARE_DELIVERIES)
    return ShareSettings(
        session_ms=int(configs.get(SHARE_SESSION, default.session_ms)),
        heartbeat_ms=int(configs.get(SHARE_HEARTBEAT, default.heartbeat_ms)),
        lock_ms=int(configs.get(SHARE_LOCK, default.lock_ms)),
        is_earliest=configs.get(SHARE_RESET, LATEST) == EARLIEST,
        assignment_ms=int(configs.get(SHARE_ASSIGNMENT, 0)),
        is_committed=configs.get(SHARE_ISOLATION, READ_UNCOMMITTED) == READ_COMMITTED,
        deliveries_max=None if deliveries is None else int(deliveries),
        locks_max=int(configs.get(SHARE_LOCKS, default.locks_max)),
        is_renewable=configs.get(SHARE_RENEW, "true") == "true",
    )
