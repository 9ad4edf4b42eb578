"""What a node of a cluster tells the meter of its part in it. Asked at a scrape, and answered from
memory: levels are counted over the replicas of this node, as they are looked at for the in-sync
sets every half second anyway; everything that grows was counted where it happened.

Nothing here is told of a single partition: a cluster has too many. Which ones are meant,
``penstock cluster partitions`` says.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from penstock.broker.replicators import Replicators
from penstock.manager.decisions import Why
from penstock.manager.in_cluster import Manager
from penstock.metadata.cluster_level import ClusterLevel
from penstock.metadata.cluster_view import ClusterView
from penstock.metadata.membership import Membership
from penstock.net.internal import InternalListener
from penstock.node.cluster_peers import ClusterPeers
from penstock.replication.replica import Role
from penstock.telemetry import families
from penstock.telemetry.exposition import Sample
from penstock.telemetry.families import Family

Told = Iterator[tuple[Family, Sample]]

ELECTIONS: Final = (Why.ELECTED, Why.RECOVERED, Why.HANDED_OVER, Why.PREFERRED)


@dataclass(frozen=True, slots=True)
class ClusterMetrics:
    """Of a node that has been started."""

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
        yield from self._calls()
        yield from self._management()
        yield from self._store()

    def _partitions(self) -> Told:
        alive = self.view.nodes.keys()
        now_ms = self.replicators.now_ms()
        held = led = halted = under = below = lag_records = lag_ms = behind = 0
        for one in self.replicators.all():
            held += 1
            replica = one.replica
            leader = replica.leader
            if leader is None:
                halted += replica.role is Role.HALTED
                behind = max(behind, one.behind_count)
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

    def _replication(self) -> Told:
        counts = self.replicators.counts
        yield families.IN_SYNC_CHANGES, (("joined",), counts.joined)
        yield families.IN_SYNC_CHANGES, (("left",), counts.left)
        yield families.IN_SYNC_CHANGES, (("refused",), counts.refused)
        yield families.LEADER_EPOCHS, ((), counts.epochs)
        yield families.REPLICA_FETCHES, (("asked",), counts.fetches_asked)
        yield families.REPLICA_FETCHES, (("unanswered",), counts.fetches_unanswered)
        yield families.REPLICA_FETCHES, (("served",), counts.fetches_served)
        yield families.REPLICATED_BYTES, (("in",), counts.bytes_in)
        yield families.REPLICATED_BYTES, (("out",), counts.bytes_out)
        yield families.REPLICA_CUTS, (("truncated",), counts.truncations)
        yield families.REPLICA_CUTS, (("restarted",), counts.restarts)

    def _calls(self) -> Told:
        for outcome, count in self.peers.passed_on.items():
            yield families.PASSED_ON, ((outcome,), count)
        yield families.INTERNAL_CONNECTIONS, (("in",), len(self.listener.connections))
        yield families.INTERNAL_CONNECTIONS, (("out",), self.peers.connection_count)

    def _management(self) -> Told:
        manager, tenure = self.manager, self.manager.tenure
        yield families.MANAGER, ((), int(tenure is not None))
        passes = manager.passes
        if tenure is not None:
            seconds = (self.replicators.now_ms() - tenure.began_ms) / 1_000
            leaderless = len(tenure.leaderless)
            passes += tenure.passes
            yield families.MANAGER_TENURE, ((), seconds)
            yield families.MANAGER_MOVES, ((), len(tenure.known.wishes))
            led = max(0, len(tenure.known.rows) - leaderless)
            yield families.CLUSTER_PARTITIONS, (("led",), led)
            yield families.CLUSTER_PARTITIONS, (("leaderless",), leaderless)
        yield families.MANAGER_PASSES, ((), passes)
        for why in Why:
            family = families.ELECTIONS if why in ELECTIONS else families.PARTITION_CHANGES
            yield family, ((why.value,), manager.counts[why])

    def _store(self) -> Told:
        yield families.FEATURE_LEVEL, ((), self.level.in_force)
        yield families.FEATURE_LEVEL_MAX, ((), self.level.levels.highest)
        yield families.STORE_REVISION, ((), self.view.revision)
        resyncs = self.view.resync_count + self.level.resync_count
        yield families.STORE_RESYNCS, ((), resyncs)
        yield families.LEASE_LEFT, ((), self.membership.lease_left_ms / 1_000)
