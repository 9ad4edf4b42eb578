"""What the admin API tells of the cluster and does to it, on any of its nodes.

Questions are answered from what this node has in memory, so they cost the store next to nothing and
are answered while it is away; an answer says when it may be old. They are worked out in a thread:
going through all partitions may take longer than clients of this node should wait. Whether a node
may stop is the one answer on which somebody acts at once, so a yes is made sure of in the store.

Wishes are written to the store, and whoever manages sees to them (``manager/wishes.py``).
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from penstock.frontend.admin.cluster_port import (
    ClusterShown,
    Drain,
    NodeShown,
    PartitionCounts,
    PartitionShown,
    PartitionState,
    Safety,
    StopRisk,
    Upgrade,
)
from penstock.manager import wishes
from penstock.manager.decisions import Policy, wanted
from penstock.manager.in_cluster import Catalog
from penstock.manager.known import Known, Wish
from penstock.manager.overview import NodeSummary, Overview, overview, risk_of_stopping
from penstock.manager.reading import read_nodes
from penstock.metadata.cluster_entries import (
    DRAINS_PREFIX,
    PARTITIONS_PREFIX,
    PLACES_PREFIX,
    NodeEntry,
    PartitionKey,
    decode_row,
    decode_wish,
    node_of,
    partition_of,
)
from penstock.metadata.cluster_level import ClusterLevel
from penstock.metadata.cluster_view import ClusterView
from penstock.metadata.store import Entry, Store
from penstock.model.errors import Conflict, Damaged, NotFound, Overloaded, PenstockError
from penstock.node.cluster_upgrade import ClusterUpgrade, level_shown
from penstock.replication.row import NOBODY, PartitionRow, View

_STRANGER = NodeEntry(0, "", "")


class _Wishes(NamedTuple):
    draining: frozenset[int] = frozenset()
    places: Mapping[PartitionKey, Wish] = {}


class ClusterAdmin:
    """Implements ``frontend.admin.cluster_port.ClusterPort``."""

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        catalog: Catalog,
        *,
        node: int,
        policy: Policy,
        level: ClusterLevel,
        manager: Callable[[], int | None],
    ) -> None:
        """``manager`` is the node that manages, NOBODY if there is none, None while this node has
        not heard enough to answer anything."""
        self._store = store
        self._view = view
        self._catalog = catalog
        self._node = node
        self._policy = policy
        self._level = level
        self._upgrading = ClusterUpgrade(store, level)
        self._manager = manager
        self._wishes = _Wishes()
        self._wishes_trouble: str | None = None
        self.seen = dict(view.nodes)  # as nodes last were, for those that are away
        self._turn = asyncio.Lock()  # one goes through all partitions at a time
        view.on_nodes(lambda: self.seen.update(view.nodes))

    # ── Questions ────────────────────────────────────────────────────────────────────────────

    async def state(self) -> ClusterShown:
        manager = self._heard()
        async with self._turn:
            known = await self._known()
            summary, counts = await asyncio.to_thread(self._summarize, known)
        numbers = {state.value: counts[state] for state in PartitionState}
        return ClusterShown(
            self._node,
            None if manager == NOBODY else manager,
            self._trouble,
            PartitionCounts(total=summary.partitions, **numbers),
            [self._node_shown(node, manager) for node in summary.nodes],
            level_shown(self._level, self._view.nodes),
        )

    async def partitions(
        self,
        *,
        topic_id: str | None,
        node: int | None,
        state: PartitionState | None,
        after: tuple[str, int] | None,
        limit: int,
    ) -> tuple[Sequence[PartitionShown], bool]:
        self._heard()

        def selected(known: Known) -> tuple[Sequence[PartitionShown], bool]:
            keys = {*known.rows, *self._missing(known)}
            if topic_id is not None:
                keys = {key for key in keys if key.topic_id == topic_id}
            if node is not None:
                keys &= set(known.on(node))
            found: list[PartitionShown] = []
            for key in sorted(key for key in keys if after is None or _place(key) > after):
                shown = self._partition_shown(known, key)
                if state is None or state in shown.states:
                    found.append(shown)
                    if len(found) > limit:
                        return found[:limit], True
            return found, False

        async with self._turn:
            return await asyncio.to_thread(selected, await self._known())

    async def safety(self, node: int | None) -> Safety:
        """A no may be told from memory: it is asked again anyway."""
        self._heard()
        if node is not None and node not in self._view.nodes:
            raise NotFound(f"There is no node {node}, or it is not alive.")
        async with self._turn:
            found = await asyncio.to_thread(self._safety, await self._known(), node)
            if found.is_safe:
                fresh = await self._fresh()
                found = await asyncio.to_thread(self._safety, fresh, node)
        return found

    # ── Changes ──────────────────────────────────────────────────────────────────────────────

    async def drain(self, node: int) -> Drain:
        self._heard()
        await wishes.drain(self._store, node)
        return await self._drain_of(node)

    async def undrain(self, node: int) -> Drain:
        self._heard()
        known = await self._fresh()
        if node not in known.draining and node not in known.nodes:
            raise NotFound(f"There is no node {node}, nor is one being drained by that number.")
        await wishes.undrain(self._store, node)
        return await self._drain_of(node)

    async def decommission(self, node: int) -> Drain:
        self._heard()
        known = await self._fresh()
        stuck = self._stuck(known, node)
        if stuck:
            raise Conflict(
                f"Node {node} cannot be emptied: for {stuck} of its partitions there is no other"
                " node. Add a node first, or lower replication.factor of their topics."
            )
        await wishes.drain(self._store, node)
        return await self._drain_of(node)

    async def rebalance(self) -> int:
        self._heard()
        return await wishes.elect_preferred(self._store)

    async def place(self, topic_id: str, partition: int, replicas: Sequence[int]) -> None:
        self._heard()
        await wishes.place(self._store, PartitionKey(topic_id, partition), replicas)

    async def elect_uncleanly(self, topic_id: str, partition: int, node: int) -> None:
        self._heard()
        await wishes.elect_uncleanly(self._store, PartitionKey(topic_id, partition), node)

    async def upgrade(self, to: int | None, *, is_dry_run: bool) -> Upgrade:
        self._heard()
        known = await self._fresh()
        away = sorted(node for node in known.loads.replicas if node not in known.nodes)
        return await self._upgrading.upgrade(
            to, is_dry_run=is_dry_run, nodes=known.nodes, away=away
        )

    async def _drain_of(self, node: int) -> Drain:
        known = await self._fresh()
        rows = [known.rows[key].row for key in known.on(node)]
        leaders = sum(row.leader == node for row in rows)
        stuck = self._stuck(known, node)
        return Drain(node, node in known.draining, len(rows), leaders, stuck)

    def _stuck(self, known: Known, node: int) -> int:
        """Partitions of a node for which there are too few others, as ``placement.py`` sees it."""
        going = known.draining | {node}
        open_nodes = {host.node for host in known.hosts if host.is_open} - going
        count = 0
        for key in known.on(node):
            wish = known.wishes.get(key)
            replicas = known.rows[key].row.replicas if wish is None else wish.replicas
            kept = {each for each in replicas if each not in going}
            missing = self._factor(key, known.rows[key].row) - len(kept)
            count += node in replicas and missing > len(open_nodes - kept)
        return count

    # ── What is known ────────────────────────────────────────────────────────────────────────

    def _heard(self) -> int:
        """Who manages. Raises Overloaded while this node knows nothing yet."""
        manager = self._manager()
        if manager is None:
            raise Overloaded("The node is starting: it has not heard of its cluster yet.")
        return manager

    @property
    def _trouble(self) -> str | None:
        return self._view.trouble or self._wishes_trouble

    async def _known(self) -> Known:
        """As this node has it in memory, with wishes as the store has them if it answers."""
        try:
            drains, _ = await self._store.list(DRAINS_PREFIX)
            places, _ = await self._store.list(PLACES_PREFIX)
        except PenstockError as error:
            self._wishes_trouble = f"the metadata cannot be read: {error}"
        else:
            self._wishes_trouble = None
            self._wishes = _wishes_in(drains, places)
        view = self._view
        nodes, incarnations, rows = dict(view.nodes), dict(view.incarnations), dict(view.rows)
        return await asyncio.to_thread(_arranged, nodes, incarnations, rows, self._wishes)

    async def _fresh(self) -> Known:
        """As the store has it. As ``manager.reading`` does, but out of the way of clients."""
        nodes, incarnations = await read_nodes(self._store)
        drains, _ = await self._store.list(DRAINS_PREFIX)
        places, _ = await self._store.list(PLACES_PREFIX)
        rows, revision = await self._store.list(PARTITIONS_PREFIX)

        def read() -> Known:
            wished = _wishes_in(drains, places)
            return _arranged(nodes, incarnations, _rows_in(rows, revision), wished)

        return await asyncio.to_thread(read)

    def _summarize(self, known: Known) -> tuple[Overview, Mapping[PartitionState, int]]:
        summary = overview(known, self._catalog, self._catalog.all_topics(), self._policy)
        counts = dict.fromkeys(PartitionState, 0)
        counts[PartitionState.MISSING] = summary.missing.count
        for key in known.rows:
            for state in self._states(known, key):
                counts[state] += 1
        return summary, counts

    def _missing(self, known: Known) -> Iterator[PartitionKey]:
        for topic in self._catalog.all_topics():
            if not topic.is_share:
                keys = (PartitionKey(topic.topic_id, at) for at in range(topic.partition_count))
                yield from (key for key in keys if key not in known.rows)

    def _factor(self, key: PartitionKey, row: PartitionRow) -> int:
        topic = self._catalog.find_id(key.topic_id)
        if topic is None:
            return len(row.replicas)
        return wanted(topic, self._policy, key.index).replicas

    def _states(self, known: Known, key: PartitionKey) -> Iterator[PartitionState]:
        row = known.rows[key].row
        wish = known.wishes.get(key)
        alive = sum(node in known.nodes for node in row.whole)
        # While it moves it has more replicas for a time; those that come are not missed yet.
        aimed = len(row.replicas) if wish is None else min(len(wish.replicas), len(row.replicas))
        if alive < max(self._factor(key, row), aimed):
            yield PartitionState.UNDER_REPLICATED
        if alive < row.in_sync_min:
            yield PartitionState.BELOW_MINIMUM
        if not known.is_led(row):
            yield PartitionState.LEADERLESS
        if not row.whole:
            yield PartitionState.LOST
        if wish is not None:
            yield PartitionState.MOVING
        catalog = self._catalog
        if catalog.find_id(key.topic_id) is None and catalog.tombstone(key.topic_id) is None:
            yield PartitionState.ORPHANED

    def _safety(self, known: Known, node: int | None) -> Safety:
        _, counts = self._summarize(known)
        risks = []
        for each in sorted(known.nodes) if node is None else (node,):
            found = risk_of_stopping(known, each)
            risks.append(StopRisk(each, found.unavailable, found.unsendable, found.only_here))
        now = {
            state.value: counts[state]
            for state in (
                PartitionState.LEADERLESS,
                PartitionState.BELOW_MINIMUM,
                PartitionState.MISSING,
            )
        }
        is_safe = not any(now.values()) and not any(
            risk.unavailable or risk.unsendable for risk in risks
        )
        return Safety(is_safe=is_safe, nodes=risks, **now)

    # ── As it is shown ───────────────────────────────────────────────────────────────────────

    def _node_shown(self, summary: NodeSummary, manager: int) -> NodeShown:
        entry = self._view.nodes.get(summary.node) or self.seen.get(summary.node, _STRANGER)
        return NodeShown(
            node=summary.node,
            name=entry.name,
            is_alive=summary.is_alive,
            is_leaving=entry.is_leaving,
            is_draining=summary.is_draining,
            is_manager=summary.node == manager,
            internal=entry.internal,
            http=entry.http,
            kafka=entry.kafka,
            version=entry.version,
            feature_level=entry.levels.highest,
            rack=entry.rack,
            leaders=summary.leaders,
            preferred=summary.preferred,
            replicas=summary.replicas,
            behind=summary.behind,
            feature_level_min=entry.levels.lowest,
        )

    def _partition_shown(self, known: Known, key: PartitionKey) -> PartitionShown:
        topic = self._catalog.find_id(key.topic_id)
        view = known.rows.get(key)
        row = None if view is None else view.row
        wish = known.wishes.get(key)
        return PartitionShown(
            topic_id=key.topic_id,
            partition=key.index,
            topic=None if topic is None else topic.name,
            account=None if topic is None else topic.account,
            region=None if topic is None else topic.region,
            leader=row.leader if row is not None and known.is_led(row) else None,
            epoch=0 if row is None else row.epoch,
            replicas=() if row is None else row.replicas,
            in_sync=() if row is None else sorted(row.whole),
            in_sync_min=0 if row is None else row.in_sync_min,
            moving_to=None if wish is None else wish.replicas,
            states=(PartitionState.MISSING,) if row is None else tuple(self._states(known, key)),
        )


def _place(key: PartitionKey) -> tuple[str, int]:
    return key.topic_id, key.index


def _arranged(
    nodes: Mapping[int, NodeEntry],
    incarnations: Mapping[int, int],
    rows: Mapping[PartitionKey, View],
    wished: _Wishes,
) -> Known:
    known = Known()
    known.see_nodes(nodes, incarnations)
    known.see_draining(wished.draining)
    for key, view in rows.items():
        known.see_row(key, view)
    for key, wish in wished.places.items():
        known.see_wish(key, wish)
    return known


# What cannot be read is left out: the manager's log names it.


def _rows_in(entries: Sequence[Entry], revision: int) -> dict[PartitionKey, View]:
    found: dict[PartitionKey, View] = {}
    for entry in entries:
        try:
            row = decode_row(entry.key, entry.value)
            found[partition_of(entry.key)] = View(revision, entry.version, row)
        except Damaged:
            continue
    return found


def _wishes_in(drains: Sequence[Entry], places: Sequence[Entry]) -> _Wishes:
    draining: set[int] = set()
    for entry in drains:
        try:
            draining.add(node_of(entry.key))
        except Damaged:
            continue
    wished: dict[PartitionKey, Wish] = {}
    for entry in places:
        try:
            wish = decode_wish(entry.key, entry.value)
            wished[partition_of(entry.key)] = Wish(entry.version, wish.replicas)
        except Damaged:
            continue
    return _Wishes(frozenset(draining), wished)
