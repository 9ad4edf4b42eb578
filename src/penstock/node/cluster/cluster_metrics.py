"""A node's metrics about its cluster. Single partitions have no metrics: there are too many."""

from collections.abc import Iterator
from typing import Final

from penstock.manager.decisions import DecisionKind
from penstock.node.cluster.cluster_role import ClusterRole
from penstock.replication.replica import Role
from penstock.telemetry import families
from penstock.telemetry.families import Family, Sample

Samples = Iterator[tuple[Family, Sample]]

ELECTIONS: Final = (
    DecisionKind.ELECTED,
    DecisionKind.RECOVERED,
    DecisionKind.HANDED_OVER,
    DecisionKind.PREFERRED,
)


def cluster_samples(role: ClusterRole) -> Samples:
    yield from _partitions(role)
    yield from _replication(role)
    yield from _management(role)
    level = role.level
    yield families.FEATURE_LEVEL, ((), level.in_force)
    yield families.FEATURE_LEVEL_MAX, ((), level.levels.highest)
    yield families.STORE_REVISION, ((), role.view.revision)
    yield families.STORE_RESYNCS, ((), role.view.resync_count + level.resync_count)
    yield families.LEASE_LEFT, ((), role.membership.lease_left_ms / 1_000)


def _partitions(role: ClusterRole) -> Samples:
    alive = role.view.nodes.keys()
    now_ms = role.replicators.now_ms()
    held = led = halted = under = below = lag_records = lag_ms = behind = 0
    for one in role.replicators.all():
        held += 1
        replica = one.replica
        leader = replica.leader
        if leader is None:
            halted += replica.role is Role.HALTED
            behind = max(behind, one.lag_count)
            continue
        led += 1
        row = leader.row
        if row.lost or len(row.in_sync) < len(row.replicas) or not row.in_sync <= alive:
            whole = len(row.whole & alive)
            under += whole < len(row.replicas)
            below += whole < row.in_sync_min
        records, ms = leader.worst_lag(now_ms=now_ms)
        lag_records, lag_ms = max(lag_records, records), max(lag_ms, ms)
    yield families.PARTITIONS_LED, ((), led)
    yield families.REPLICAS, ((), held)
    yield families.REPLICAS_HALTED, ((), halted)
    yield families.PARTITIONS_UNDER_REPLICATED, ((), under)
    yield families.PARTITIONS_BELOW_MINIMUM, ((), below)
    yield families.REPLICA_LAG_RECORDS, ((), lag_records)
    yield families.REPLICA_LAG_SECONDS, ((), lag_ms / 1_000)
    yield families.REPLICA_BEHIND_RECORDS, ((), behind)


def _replication(role: ClusterRole) -> Samples:
    counts = role.replicators.counts
    for family, label, count in (
        (families.IN_SYNC_CHANGES, "joined", counts.joined),
        (families.IN_SYNC_CHANGES, "left", counts.left),
        (families.IN_SYNC_CHANGES, "refused", counts.refused),
        (families.REPLICA_FETCHES, "asked", counts.fetches_asked),
        (families.REPLICA_FETCHES, "unanswered", counts.fetches_unanswered),
        (families.REPLICA_FETCHES, "served", counts.fetches_served),
        (families.REPLICATED_BYTES, "in", counts.bytes_in),
        (families.REPLICATED_BYTES, "out", counts.bytes_out),
        (families.REPLICA_CUTS, "truncated", counts.truncations),
        (families.REPLICA_CUTS, "restarted", counts.restarts),
        (families.INTERNAL_CONNECTIONS, "in", len(role.listener.connections)),
        (families.INTERNAL_CONNECTIONS, "out", role.peers.connection_count),
        *((families.PASSED_ON, *passed) for passed in role.peers.passed_on.items()),
    ):
        yield family, ((label,), count)
    yield families.LEADER_EPOCHS, ((), counts.epochs)


def _management(role: ClusterRole) -> Samples:
    manager = role.manager
    assert manager is not None, "the role must be started first"
    active = manager.active
    yield families.MANAGER, ((), int(active is not None))
    passes = manager.passes
    if active is not None:
        leaderless = len(active.leaderless)
        passes += active.passes
        seconds = (role.replicators.now_ms() - active.began_ms) / 1_000
        yield families.MANAGER_TENURE, ((), seconds)
        yield families.MANAGER_MOVES, ((), len(active.state.requests))
        led = max(0, len(active.state.rows) - leaderless)
        yield families.CLUSTER_PARTITIONS, (("led",), led)
        yield families.CLUSTER_PARTITIONS, (("leaderless",), leaderless)
    yield families.MANAGER_PASSES, ((), passes)
    for kind in DecisionKind:
        family = families.ELECTIONS if kind in ELECTIONS else families.PARTITION_CHANGES
        yield family, ((kind.value,), manager.counts[kind])
