"""Problems of the cluster that a node detects (dead nodes, partitions that accept no messages, a
missing manager, clocks that differ), and the node's metrics about the cluster.

Partitions are counted in a thread, only after a change. After each count there is a pause of fifty
times its duration, so counting uses at most 2 % of a core. There are no metrics of single
partitions, because a cluster has too many partitions."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.manager.cluster_state import is_led
from penstock.manager.decisions import DecisionKind
from penstock.membership.cluster_view import ClusterView
from penstock.metadata.cluster_entries import NodeEntry
from penstock.model import troubles
from penstock.model.troubles import CLOCK_SKEW_MS_MAX, Trouble
from penstock.replication.replica import Role
from penstock.replication.row import NO_NODE, View
from penstock.telemetry import families
from penstock.telemetry.families import Family, Sample

PAUSE_FACTOR: Final = 50
SEEN_MIN: Final = 2  # batches from the future; a single one may be caused by setting a clock
KEPT_WRITES: Final = 3  # such a batch counts for this number of write intervals
_UNKNOWN: Final = NodeEntry(0, "", "")


class Counts(NamedTuple):
    away: Mapping[int, int] = {}  # number of partitions by dead node
    states: Mapping[str, int] = {}  # number of partitions by problem


def count(
    rows: Iterable[View], nodes: Mapping[int, NodeEntry], incarnations: Mapping[int, int]
) -> Counts:
    away: Counter[int] = Counter()
    states: Counter[str] = Counter()
    for view in rows:
        row = view.row
        away.update(node for node in row.replicas if node not in nodes)
        states["below_minimum"] += sum(node in nodes for node in row.whole) < row.in_sync_min
        states["leaderless"] += not is_led(row, incarnations)
        states["lost"] += not row.whole
    return Counts(away, states)


class ClusterTroubles:
    def __init__(
        self, view: ClusterView, seen: Mapping[int, NodeEntry], *, manager: Callable[[], int | None]
    ) -> None:
        # ``seen``: last known entries of nodes, also of dead ones. ``manager`` returns the managing
        # node, NO_NODE if there is none, or None if it is not known yet.
        self._view = view
        self._manager = manager
        self._counts = Counts()
        self._is_old = True
        self._job: asyncio.Task[None] | None = None
        self._next_at = 0.0
        self._unmanaged_looks = 0
        self._seen = seen
        view.on_nodes(self._changed)
        view.on_row(lambda _key, _view: self._changed())

    def _changed(self) -> None:
        self._is_old = True

    def look(self) -> Iterable[Trouble]:
        """Yield the problems that the last count of partitions found. Recount after a change."""
        loop = asyncio.get_running_loop()
        if self._is_old and self._job is None and loop.time() >= self._next_at:
            self._is_old = False
            self._job = loop.create_task(self._count(), name="count partitions in trouble")
        # There is briefly no manager while one hands over to another.
        self._unmanaged_looks = self._unmanaged_looks + 1 if self._manager() == NO_NODE else 0
        if self._unmanaged_looks > 1:
            yield troubles.NO_MANAGER
        for node, partitions in sorted(self._counts.away.items()):
            entry = self._seen.get(node, _UNKNOWN)
            yield troubles.node_dead(node, entry.name, partitions, was_stopped=entry.is_leaving)
        yield from troubles.partition_troubles(self._counts.states)

    async def _count(self) -> None:
        view = self._view
        rows, nodes, made = list(view.rows.values()), dict(view.nodes), dict(view.incarnations)
        began = perf_counter()
        try:
            self._counts = await asyncio.to_thread(count, rows, nodes, made)
        finally:
            took = perf_counter() - began
            self._next_at = asyncio.get_running_loop().time() + PAUSE_FACTOR * took
            self._job = None

    def stop(self) -> None:
        if self._job is not None:
            self._job.cancel()


class ClockSkew:
    """Compares the clocks of other nodes with the clock of this node, without any calls.

    Every node periodically writes to the topic ``__telemetry``, with timestamps of its own clock. A
    batch that has just arrived with a timestamp in the future proves that another node's clock is
    ahead by at least this difference. (A timestamp in the past proves nothing: the batch may have
    been delayed.) So a node detects that its clock is behind, if it has a replica of the topic."""

    def __init__(self, *, write_ms: int) -> None:
        self._kept_ms = KEPT_WRITES * write_ms
        self._newest_ms: int | None = None
        self._seen: deque[tuple[int, int]] = deque(maxlen=SEEN_MIN)  # time and difference

    def look(self, newest_ms: int | None, *, wall_ms: int, mono_ms: int) -> int:
        """Return a lower bound, in ms, of how far another node's clock is ahead, or 0.
        ``newest_ms`` is the latest timestamp in this node's replica of ``__telemetry``, if any."""
        before_ms, self._newest_ms = self._newest_ms, newest_ms
        if newest_ms is not None and before_ms is not None and newest_ms > before_ms:
            ahead_ms = newest_ms - wall_ms
            if ahead_ms > CLOCK_SKEW_MS_MAX:
                self._seen.append((mono_ms, ahead_ms))
        while self._seen and mono_ms - self._seen[0][0] > self._kept_ms:
            self._seen.popleft()
        return self._seen[-1][1] if len(self._seen) == SEEN_MIN else 0


if TYPE_CHECKING:
    from penstock.node.cluster.cluster_role import ClusterRole

Samples = Iterator[tuple[Family, Sample]]

ELECTIONS: Final = (
    DecisionKind.ELECTED,
    DecisionKind.RECOVERED,
    DecisionKind.HANDED_OVER,
    DecisionKind.PREFERRED,
)


def cluster_samples(role: "ClusterRole") -> Iterable[tuple[Family, Sample]]:
    yield from _partitions(role)
    yield from _replication(role)
    yield from _management(role)
    level = role.level
    yield families.FEATURE_LEVEL, ((), level.in_force)
    yield families.FEATURE_LEVEL_MAX, ((), level.levels.highest)
    yield families.STORE_REVISION, ((), role.view.revision)
    yield families.STORE_RESYNCS, ((), role.view.resync_count + level.resync_count)
    yield families.LEASE_LEFT, ((), role.membership.lease_left_ms / 1_000)


def _partitions(role: "ClusterRole") -> Samples:
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


def _replication(role: "ClusterRole") -> Samples:
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


def _management(role: "ClusterRole") -> Samples:
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
