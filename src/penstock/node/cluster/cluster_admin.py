"""Queries and changes of the cluster for the admin API, on any node.

Queries read the memory of this node, so they also work while the store is not reachable; a reply
states if it may be out of date. They are computed in a thread, because a cluster may have very many
partitions. Only the reply that a node may safely be stopped is checked against the store. Changes
are requests in the store, which the manager performs (``manager/operator_requests.py``)."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import asdict

from penstock.frontend.admin import ports as port
from penstock.frontend.admin.ports import PartitionState
from penstock.manager import operator_requests
from penstock.manager.cluster_state import (
    ClusterState,
    Requests,
    arrange,
    read_cluster_state,
    read_requests,
)
from penstock.manager.decisions import Policy
from penstock.manager.in_cluster import Catalog
from penstock.manager.overview import (
    NodeSummary,
    Overview,
    factor_of,
    overview,
    risk_of_stopping,
    states_of,
)
from penstock.membership.cluster_view import ClusterLevel, ClusterView
from penstock.metadata.cluster_entries import (
    LEVEL_KEY,
    LevelEntry,
    NodeEntry,
    PartitionKey,
    encode_entry,
)
from penstock.metadata.store import Store
from penstock.model import errors
from penstock.replication.row import NO_NODE

WAIT_SECONDS = 10.0  # time for the manager to raise the feature level
NAMED_MAX = 10  # number of nodes that an error names
_STRANGER = NodeEntry(0, "", "")


@dataclass(eq=False, slots=True)
class ClusterAdmin:
    """Implements ``frontend.admin.ports.ClusterPort``."""

    _store: Store
    _view: ClusterView
    _catalog: Catalog
    node: int
    policy: Policy
    level: ClusterLevel
    # Returns the managing node, NO_NODE if there is none, or None if it is not known yet.
    manager: Callable[[], int | None]
    seen: dict[int, NodeEntry] = field(init=False)  # last known nodes, including dead ones
    _requests: Requests = field(default_factory=Requests)
    _requests_trouble: str | None = None
    # Held by a query while it goes through all partitions.
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.seen = dict(self._view.nodes)
        self._view.on_nodes(lambda: self.seen.update(self._view.nodes))

    # ── Queries ──────────────────────────────────────────────────────────────────────────────

    async def state(self) -> dict[str, Any]:
        manager = self._heard()
        async with self._turn:
            cluster = await self._state()
            summary, counts = await asyncio.to_thread(self._summarize, cluster)
        numbers = {state.value: counts[state] for state in PartitionState}
        return {
            "node": self.node,
            "manager": None if manager == NO_NODE else manager,
            "trouble": self._view.trouble or self._requests_trouble,  # the state may be outdated
            "partitions": {"total": summary.partitions, **numbers},
            "nodes": [self._node_shown(node, manager) for node in summary.nodes],
            "level": level_shown(self.level, self._view.nodes),
        }

    async def partitions(
        self,
        *,
        topic_id: str | None,
        node: int | None,
        state: PartitionState | None,
        after: tuple[str, int] | None,
        limit: int,
    ) -> tuple[Sequence[port.PartitionShown], bool]:
        self._heard()

        def selected(cluster: ClusterState) -> tuple[Sequence[port.PartitionShown], bool]:
            keys = {*cluster.rows, *cluster.missing(self._catalog.all_topics())}
            if topic_id is not None:
                keys = {key for key in keys if key.topic_id == topic_id}
            if node is not None:
                keys &= set(cluster.on(node))
            found: list[port.PartitionShown] = []
            for key in sorted(
                key for key in keys if after is None or (key.topic_id, key.index) > after
            ):
                shown = self._partition_shown(cluster, key)
                if state is None or state in shown.states:
                    found.append(shown)
                    if len(found) > limit:
                        return found[:limit], True
            return found, False

        async with self._turn:
            return await asyncio.to_thread(selected, await self._state())

    async def safety(self, node: int | None) -> port.Safety:
        self._heard()
        if node is not None and node not in self._view.nodes:
            raise errors.NotFound(f"There is no node {node}, or it is not alive.")
        async with self._turn:
            found = await asyncio.to_thread(self._safety, await self._state(), node)
            if found.is_safe:
                fresh = await read_cluster_state(self._store)
                found = await asyncio.to_thread(self._safety, fresh, node)
        return found

    # ── Changes ──────────────────────────────────────────────────────────────────────────────

    async def drain(self, node: int) -> port.Drain:
        self._heard()
        await operator_requests.drain(self._store, node)
        return await self._drain_of(node)

    async def undrain(self, node: int) -> port.Drain:
        self._heard()
        cluster = await read_cluster_state(self._store)
        if node not in cluster.draining and node not in cluster.nodes:
            raise errors.NotFound(
                f"Node {node} is not alive, and no node of this number is being drained."
            )
        await operator_requests.undrain(self._store, node)
        return await self._drain_of(node)

    async def decommission(self, node: int) -> port.Drain:
        self._heard()
        cluster = await read_cluster_state(self._store)
        stuck = self._stuck(cluster, node)
        if stuck:
            raise errors.Conflict(
                f"Node {node} cannot be emptied: {stuck} of its partitions have no other node to"
                " move to. Add a node first, or lower the replication factor of their topics."
            )
        await operator_requests.drain(self._store, node)
        return await self._drain_of(node)

    async def rebalance(self) -> int:
        self._heard()
        return await operator_requests.elect_preferred(self._store)

    async def place(self, topic_id: str, partition: int, replicas: Sequence[int]) -> None:
        self._heard()
        await operator_requests.place(self._store, PartitionKey(topic_id, partition), replicas)

    async def elect_uncleanly(self, topic_id: str, partition: int, node: int) -> None:
        self._heard()
        await operator_requests.elect_uncleanly(
            self._store, PartitionKey(topic_id, partition), node
        )

    async def upgrade(self, to: int | None, *, is_dry_run: bool) -> port.Upgrade:
        self._heard()
        cluster = await read_cluster_state(self._store)
        away = sorted(node for node in cluster.loads.replicas if node not in cluster.nodes)
        return await upgrade(
            self._store, self.level, to, is_dry_run=is_dry_run, nodes=cluster.nodes, away=away
        )

    async def _drain_of(self, node: int) -> port.Drain:
        cluster = await read_cluster_state(self._store)
        rows = [cluster.rows[key].row for key in cluster.on(node)]
        leaders = sum(row.leader == node for row in rows)
        stuck = self._stuck(cluster, node)
        return port.Drain(node, node in cluster.draining, len(rows), leaders, stuck)

    def _stuck(self, cluster: ClusterState, node: int) -> int:
        """Return how many of the node's partitions have too few other nodes to move to."""
        going = cluster.draining | {node}
        open_nodes = {host.node for host in cluster.hosts if host.is_open} - going
        count = 0
        for key in cluster.on(node):
            request = cluster.requests.get(key)
            replicas = cluster.rows[key].row.replicas if request is None else request.replicas
            kept = {each for each in replicas if each not in going}
            factor = factor_of(key, cluster.rows[key].row, self._catalog, self.policy)
            missing = factor - len(kept)
            count += node in replicas and missing > len(open_nodes - kept)
        return count

    def _heard(self) -> int:
        """Return the manager's node id, or NO_NODE. Raises Overloaded if it is not known yet."""
        manager = self.manager()
        if manager is None:
            raise errors.Overloaded(
                "The node is starting: the state of the cluster is not known yet."
            )
        return manager

    async def _state(self) -> ClusterState:
        """Return the state of the cluster. Only operators' requests are read from the store."""
        try:
            self._requests = await read_requests(self._store)
            self._requests_trouble = None
        except errors.PenstockError as error:
            self._requests_trouble = f"the metadata cannot be read: {error}"
        view = self._view
        nodes, incarnations, rows = dict(view.nodes), dict(view.incarnations), dict(view.rows)
        return await asyncio.to_thread(arrange, nodes, incarnations, rows, self._requests)

    def _summarize(self, cluster: ClusterState) -> tuple[Overview, Mapping[str, int]]:
        found = overview(cluster, self._catalog, self._catalog.all_topics(), self.policy)
        return found, found.states

    def _safety(self, cluster: ClusterState, node: int | None) -> port.Safety:
        _, counts = self._summarize(cluster)
        nodes = sorted(cluster.nodes) if node is None else (node,)
        risks = {each: risk_of_stopping(cluster, each) for each in nodes}
        states = (PartitionState.LEADERLESS, PartitionState.BELOW_MINIMUM, PartitionState.MISSING)
        now = {state.value: counts[state] for state in states}
        is_safe = not any(now.values()) and not any(
            risk.unavailable or risk.unsendable for risk in risks.values()
        )
        shown = [{"node": each, **asdict(risk)} for each, risk in risks.items()]
        return port.Safety(is_safe=is_safe, nodes=shown, **now)

    def _node_shown(self, summary: NodeSummary, manager: int) -> dict[str, Any]:
        entry = self._view.nodes.get(summary.node) or self.seen.get(summary.node, _STRANGER)
        names = ("name", "is_leaving", "internal", "http", "kafka", "version", "rack")
        return {
            **asdict(summary),
            **{name: getattr(entry, name) for name in names},
            "is_manager": summary.node == manager,
            "feature_level": entry.levels.highest,
            "feature_level_min": entry.levels.lowest,
        }

    def _partition_shown(self, cluster: ClusterState, key: PartitionKey) -> port.PartitionShown:
        topic = self._catalog.find_id(key.topic_id)
        view = cluster.rows.get(key)
        row = None if view is None else view.row
        request = cluster.requests.get(key)
        states: Iterable[str] = (PartitionState.MISSING,)
        if row is not None:
            states = states_of(cluster, key, self._catalog, self.policy)
        return port.PartitionShown(
            topic_id=key.topic_id,
            partition=key.index,
            topic=None if topic is None else topic.name,
            account=None if topic is None else topic.account,
            region=None if topic is None else topic.region,
            leader=row.leader if row is not None and cluster.is_led(row) else None,
            epoch=0 if row is None else row.epoch,
            replicas=() if row is None else row.replicas,
            in_sync=() if row is None else sorted(row.whole),
            in_sync_min=0 if row is None else row.in_sync_min,
            moving_to=None if request is None else request.replicas,
            states=tuple(map(PartitionState, states)),
        )


def level_shown(level: ClusterLevel, nodes: Mapping[int, NodeEntry]) -> dict[str, int | None]:
    """Return the feature levels: in force, requested, and the highest that all nodes support."""
    wanted, latest = level.entry.wanted or None, latest_of(level, nodes)
    return {"in_force": level.entry.level, "wanted": wanted, "latest": latest}


def latest_of(level: ClusterLevel, nodes: Mapping[int, NodeEntry]) -> int:
    spoken = min((entry.levels.highest for entry in nodes.values()), default=level.in_force)
    return max(level.in_force, spoken)


async def upgrade(
    store: Store,
    level: ClusterLevel,
    to: int | None,
    *,
    is_dry_run: bool,
    nodes: Mapping[int, NodeEntry],
    away: Sequence[int],
) -> port.Upgrade:
    """Request a new feature level, and wait until the manager has set it. Raises Conflict if a node
    does not support it, or if ``away`` (dead nodes with partitions) is not empty."""
    await level.refresh()
    entry, version = level.entry, level.version
    wanted = latest_of(level, nodes) if to is None else to
    if wanted < entry.level:
        raise errors.InvalidRequest(
            f"The cluster is at feature level {entry.level}, which cannot be lowered."
        )
    obstacles = [] if wanted == entry.level else _obstacles(wanted, nodes, away)
    if is_dry_run or wanted == entry.level:
        return port.Upgrade(entry.level, wanted, wanted == entry.level, is_dry_run, obstacles)
    if obstacles:
        raise errors.Conflict(
            f"The feature level cannot be raised to {wanted}: {'; '.join(obstacles)}."
        )
    request = encode_entry(LevelEntry(entry.level, wanted))
    try:
        requested_at = await store.put(LEVEL_KEY, request, if_version=version)
    except errors.VersionConflict:
        raise errors.Conflict("The feature level was changed by another request; retry.") from None
    is_done = await _wait(level, wanted, requested_at)
    return port.Upgrade(entry.level, wanted, is_done, is_dry_run, obstacles)


async def _wait(level: ClusterLevel, wanted: int, requested_at: int) -> bool:
    """Return True when the level is in force, or False after a timeout. Raises Conflict if the
    manager rejects the level."""
    changed = asyncio.Event()
    end = level.on_change(changed.set)
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while level.in_force < wanted:
                if level.version > requested_at and not level.entry.wanted:
                    raise errors.Conflict(
                        "The feature level was not raised: a node that does not support it has"
                        " registered."
                    )
                changed.clear()
                await changed.wait()
    except TimeoutError:
        return False
    finally:
        end()
    return True


def _obstacles(wanted: int, nodes: Mapping[int, NodeEntry], away: Sequence[int]) -> Sequence[str]:
    found = [
        f"node {node} ({entry.name}) has version {entry.version or '?'} and supports {entry.levels}"
        for node, entry in sorted(nodes.items())
        if wanted not in entry.levels
    ]
    found += [
        f"node {node} is dead and has partitions: start it, or decommission it" for node in away
    ]
    if len(found) > NAMED_MAX:
        found[NAMED_MAX:] = [f"and {len(found) - NAMED_MAX} more nodes"]
    return found
