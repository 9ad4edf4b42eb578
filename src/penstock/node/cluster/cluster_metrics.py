"""Metrics of a node's part in its cluster, read from memory at a scrape. Levels are counted over
the replicas of this node; no metric is per partition, because a cluster has too many of them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from penstock.broker.replicas.replicators import Replicators
from penstock.calls.internal.listener import InternalListener
from penstock.manager.decisions import DecisionKind
from penstock.manager.in_cluster import Manager
from penstock.membership.cluster_view import ClusterLevel, ClusterView
from penstock.membership.registration import Membership
from penstock.node.cluster.routes import ClusterPeers
from penstock.replication.replica import Role
from penstock.telemetry import families
from penstock.telemetry.exposition import Sample
from penstock.telemetry.families import Family

Samples = Iterator[tuple[Family, Sample]]

ELECTIONS: Final = (
    DecisionKind.ELECTED,
    DecisionKind.RECOVERED,
    DecisionKind.HANDED_OVER,
    DecisionKind.PREFERRED,
)


@dataclass(frozen=True, slots=True)
class ClusterMetrics:
    level: ClusterLevel
    listener: InternalListener
    manager: Manager
    membership: Membership
    peers: ClusterPeers
    replicators: Replicators
    view: ClusterView

    def samples(self) -> Iterable[tuple[Family, Sample]]:
        yield from self._partitions()
        yield from self._replication()
        yield from self._management()
        yield from self._store()

    def _partitions(self) -> Samples:
        alive = self.view.nodes.keys()
        now_ms = self.replicators.now_ms()
        held = led = halted = under = below = lag_records = lag_ms = behind = 0
        for one in self.replicators.all():
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
            records, ms = leader.worst_lag(
                start_offset=replica.start_offset, end_offset=replica.end_offset, now_ms=now_ms
            )
            lag_records, lag_ms = max(lag_records, records), max(lag_ms, ms)
        yield families.PARTITIONS_LED, ((), led)
        yield families.REPLICAS, ((), held)
        yield families.REPLICAS_HALTED, ((), halted)
        yield families.PARTITIONS_UNDER_REPLICATED, ((), under)
        yield families.PARTITIONS_BELOW_MINIMUM, ((), below)
        yield families.REPLICA_LAG_RECORDS, ((), lag_records)
        yield families.REPLICA_LAG_SECONDS, ((), lag_ms / 1_000)
        yield families.REPLICA_BEHIND_RECORDS, ((), behind)

    def _replication(self) -> Samples:
        counts = self.replicators.counts
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
            (families.INTERNAL_CONNECTIONS, "in", len(self.listener.connections)),
            (families.INTERNAL_CONNECTIONS, "out", self.peers.connection_count),
            *((families.PASSED_ON, *passed) for passed in self.peers.passed_on.items()),
        ):
            yield family, ((label,), count)
        yield families.LEADER_EPOCHS, ((), counts.epochs)

    def _management(self) -> Samples:
        manager, active = self.manager, self.manager.active
        yield families.MANAGER, ((), int(active is not None))
        passes = manager.passes
        if active is not None:
            leaderless = len(active.leaderless)
            passes += active.passes
            seconds = (self.replicators.now_ms() - active.began_ms) / 1_000
            yield families.MANAGER_TENURE, ((), seconds)
            yield families.MANAGER_MOVES, ((), len(active.state.requests))
            led = max(0, len(active.state.rows) - leaderless)
            yield families.CLUSTER_PARTITIONS, (("led",), led)
            yield families.CLUSTER_PARTITIONS, (("leaderless",), leaderless)
        yield families.MANAGER_PASSES, ((), passes)
        for kind in DecisionKind:
            family = families.ELECTIONS if kind in ELECTIONS else families.PARTITION_CHANGES
            yield family, ((kind.value,), manager.counts[kind])

    def _store(self) -> Samples:
        yield families.FEATURE_LEVEL, ((), self.level.in_force)
        yield families.FEATURE_LEVEL_MAX, ((), self.level.levels.highest)
        yield families.STORE_REVISION, ((), self.view.revision)
        resyncs = self.view.resync_count + self.level.resync_count
        yield families.STORE_RESYNCS, ((), resyncs)
        yield families.LEASE_LEFT, ((), self.membership.lease_left_ms / 1_000)
