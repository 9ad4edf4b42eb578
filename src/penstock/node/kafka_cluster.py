"""What Kafka's admin requests change and ask about a cluster. Every node answers: changes are
written to the store, where the manager finds them, and questions are answered from the store or
from what this node follows of it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from penstock.broker.replicator import Replicator
from penstock.frontend.kafka.brokers import NOBODY, BrokerAt
from penstock.frontend.kafka.cluster_port import Election, Quorum, Reassigned, ReplicaHere
from penstock.manager import wishes
from penstock.manager.decisions import Policy, Topics, wanted
from penstock.manager.in_cluster import Manager
from penstock.manager.reading import read_nodes
from penstock.manager.reassigning import (
    Refused,
    preferred_leader,
    reassignment,
    unclean_leader,
)
from penstock.metadata.cluster_entries import (
    DRAINS_PREFIX,
    PLACES_PREFIX,
    NodeEntry,
    PartitionKey,
    decode_wish,
    node_of,
    partition_of,
)
from penstock.metadata.cluster_view import ClusterView
from penstock.metadata.store import Entry, Store
from penstock.model.errors import Conflict, Damaged, InvalidRequest, NotFound
from penstock.model.ports import ProducerSeen
from penstock.model.topic import Topic
from penstock.node.kafka_brokers import broker_of
from penstock.replication.replica import Role
from penstock.replication.row import Change, View

EPOCH_MAX: Final = 2**31 - 1  # an epoch of Kafka has 32 bits, a revision of the store 64
_UNKNOWN_PORT: Final = -1
_OUTCOMES: Final = {
    None: Election.DONE,
    Refused.NOT_NEEDED: Election.NOT_NEEDED,
    Refused.UNAVAILABLE: Election.UNAVAILABLE,
}


class ClusterChanges:
    """Implements ``frontend.kafka.cluster_port.KafkaCluster``."""

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        catalog: Topics,
        *,
        policy: Policy,
        manager: Callable[[], Manager | None],
        seen: Mapping[int, NodeEntry],
        replica: Callable[[PartitionKey], Replicator | None],
    ) -> None:
        """``seen``: nodes as they last were. ``replica`` returns that of this node."""
        self._store = store
        self._view = view
        self._catalog = catalog
        self._policy = policy
        self._manager = manager
        self._seen = seen
        self._replica = replica

    @property
    def nodes(self) -> Collection[int]:
        return self._view.nodes.keys()

    # ── Where partitions are ─────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def placed(
        self, topic: Topic, places: Mapping[int, Sequence[int]]
    ) -> AsyncIterator[None]:
        in_sync_min = wanted(topic, self._policy).in_sync_min
        is_new = self._catalog.find_id(topic.topic_id) is None
        try:
            await wishes.create(self._store, topic.topic_id, places, in_sync_min=in_sync_min)
            yield
        except (Conflict, InvalidRequest, NotFound):
            # The catalog has said no: nobody will ever use the id of a topic that was to be new.
            # New partitions of another topic may be in use already, if it has grown meanwhile.
            if is_new:
                await wishes.discard(self._store, topic.topic_id)
            raise

    async def moves(self) -> Mapping[tuple[str, int], Reassigned]:
        entries, _ = await self._store.list(PLACES_PREFIX)
        return await asyncio.to_thread(self._moves_in, entries)

    def _moves_in(self, entries: Sequence[Entry]) -> Mapping[tuple[str, int], Reassigned]:
        found: dict[tuple[str, int], Reassigned] = {}
        for entry in entries:
            try:
                key = partition_of(entry.key)
                wish = decode_wish(entry.key, entry.value)
            except Damaged:
                continue  # the manager's log names it
            view = self._view.rows.get(key)
            if view is not None and view.row.replicas != wish.replicas:
                found[key.topic_id, key.index] = Reassigned(*reassignment(view.row, wish))
        return found

    async def move(self, topic: Topic, index: int, replicas: Sequence[int]) -> None:
        await wishes.place(self._store, PartitionKey(topic.topic_id, index), replicas)

    async def cancel_move(self, topic: Topic, index: int) -> int:
        return len(await wishes.cancel_place(self._store, PartitionKey(topic.topic_id, index)))

    async def replica(self, topic: Topic, index: int) -> ReplicaHere | None:
        found = self._replica(PartitionKey(topic.topic_id, index))
        return None if found is None else ReplicaHere(found.log.size_bytes, found.behind_count)

    async def followed_producers(self, topic: Topic, index: int) -> Sequence[ProducerSeen] | None:
        found = self._replica(PartitionKey(topic.topic_id, index))
        if found is None or found.replica.role is not Role.FOLLOWER:
            return None
        return await found.followed.producers()

    # ── Leaders ──────────────────────────────────────────────────────────────────────────────

    async def elect(self, topic: Topic, index: int, *, is_unclean: bool) -> Election:
        nodes, incarnations = await read_nodes(self._store)
        leaving = {node for node, entry in nodes.items() if entry.is_leaving}
        avoided = frozenset(leaving | await self._draining())

        def choose(view: View) -> Change | Refused:
            if is_unclean:
                return unclean_leader(view, incarnations)
            return preferred_leader(view, incarnations, avoided)

        key = PartitionKey(topic.topic_id, index)
        return _OUTCOMES[await wishes.elect(self._store, key, choose)]

    def quorum(self) -> Quorum:
        manager = self._manager()
        leader, epoch = (NOBODY, 0) if manager is None else (manager.manager, manager.tenure_id)
        revision = max(epoch, self._view.revision)
        return Quorum(leader, epoch & EPOCH_MAX, revision, sorted(self.nodes))

    # ── Nodes ────────────────────────────────────────────────────────────────────────────────

    async def stopped(self) -> Sequence[BrokerAt]:
        """A node that is not alive belongs to the cluster as long as it has replicas or is being
        drained."""
        named = {node for view in self._view.rows.values() for node in view.row.replicas}
        named |= await self._draining()
        return [self._stopped_at(node) for node in sorted(named.difference(self.nodes))]

    def _stopped_at(self, node: int) -> BrokerAt:
        """Its address, if this node has seen it alive."""
        entry = self._seen.get(node)
        at = None if entry is None else broker_of(entry)
        return BrokerAt(node, "", _UNKNOWN_PORT) if at is None else at

    async def unregister(self, node: int) -> None:
        nodes, _ = await read_nodes(self._store)
        if node in nodes:
            raise Conflict(f"Node {node} is alive. Stop it first.")
        held = sum(node in view.row.replicas for view in self._view.rows.values())
        if held:
            raise Conflict(
                f"Node {node} has {held} replicas. Empty it first"
                f" (penstock cluster decommission {node})."
            )
        if node not in await self._draining() and node not in self._seen:
            raise NotFound(f"There is no node {node}.")
        await wishes.undrain(self._store, node)

    async def _draining(self) -> set[int]:
        entries, _ = await self._store.list(DRAINS_PREFIX)
        found = set()
        for entry in entries:
            try:
                found.add(node_of(entry.key))
            except Damaged:
                continue  # the manager's log names it
        return found
