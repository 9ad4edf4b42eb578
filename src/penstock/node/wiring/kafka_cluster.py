"""Kafka's admin requests about the cluster, on any node: changes are written to the store, where
the manager finds them; queries read the store or this node's view of it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from penstock.broker.replicas.replicator import Replicator
from penstock.frontend.kafka.ports.cluster import (
    NO_LEADER,
    BrokerAt,
    Election,
    Quorum,
    Reassigned,
    ReplicaHere,
)
from penstock.manager import operator_requests
from penstock.manager.decisions import Policy, Topics, wanted
from penstock.manager.in_cluster import Manager
from penstock.manager.reassigning import (
    Refused,
    preferred_leader,
    reassignment,
    unclean_leader,
)
from penstock.manager.state_reader import read_draining, read_nodes, readable
from penstock.membership.cluster_view import ClusterView
from penstock.metadata.cluster_entries import (
    PLACEMENTS_PREFIX,
    NodeEntry,
    PartitionKey,
    decode_placement,
    partition_of,
)
from penstock.metadata.store import Entry, Store
from penstock.model.errors import Conflict, InvalidRequest, NotFound
from penstock.model.ports import ProducerSeen
from penstock.model.topic import Topic
from penstock.node.wiring.kafka_brokers import broker_of
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
    """Implements ``frontend.kafka.ports.cluster.KafkaCluster``."""

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
        """``seen``: last known entries of nodes. ``replica`` returns this node's replica."""
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
            await operator_requests.create(
                self._store, topic.topic_id, places, in_sync_min=in_sync_min
            )
            yield
        except (Conflict, InvalidRequest, NotFound):
            # The catalog refused: the id of a new topic will never be used. New partitions of an
            # existing topic may be in use already, if it has grown meanwhile.
            if is_new:
                await operator_requests.discard(self._store, topic.topic_id)
            raise

    async def moves(self) -> Mapping[tuple[str, int], Reassigned]:
        entries, _ = await self._store.list(PLACEMENTS_PREFIX)
        return await asyncio.to_thread(self._moves_in, entries)

    def _moves_in(self, entries: Sequence[Entry]) -> Mapping[tuple[str, int], Reassigned]:
        found: dict[tuple[str, int], Reassigned] = {}
        for key, request, _ in readable(entries, partition_of, decode_placement):
            view = self._view.rows.get(key)
            if view is not None and view.row.replicas != request.replicas:
                found[key.topic_id, key.index] = Reassigned(*reassignment(view.row, request))
        return found

    async def move(self, topic: Topic, index: int, replicas: Sequence[int]) -> None:
        await operator_requests.place(self._store, PartitionKey(topic.topic_id, index), replicas)

    async def cancel_move(self, topic: Topic, index: int) -> int:
        return len(
            await operator_requests.cancel_placement(
                self._store, PartitionKey(topic.topic_id, index)
            )
        )

    async def replica(self, topic: Topic, index: int) -> ReplicaHere | None:
        found = self._replica(PartitionKey(topic.topic_id, index))
        return None if found is None else ReplicaHere(found.log.size_bytes, found.lag_count)

    async def followed_producers(self, topic: Topic, index: int) -> Sequence[ProducerSeen] | None:
        found = self._replica(PartitionKey(topic.topic_id, index))
        if found is None or found.replica.role is not Role.FOLLOWER:
            return None
        return await found.follower_log.producers()

    # ── Leaders ──────────────────────────────────────────────────────────────────────────────

    async def elect(self, topic: Topic, index: int, *, is_unclean: bool) -> Election:
        nodes, incarnations = await read_nodes(self._store)
        leaving = {node for node, entry in nodes.items() if entry.is_leaving}
        avoided = frozenset(leaving | await read_draining(self._store))

        def choose(view: View) -> Change | Refused:
            if is_unclean:
                return unclean_leader(view, incarnations)
            return preferred_leader(view, incarnations, avoided)

        key = PartitionKey(topic.topic_id, index)
        return _OUTCOMES[await operator_requests.elect(self._store, key, choose)]

    def quorum(self) -> Quorum:
        manager = self._manager()
        leader, epoch = (NO_LEADER, 0) if manager is None else (manager.manager, manager.tenure_id)
        revision = max(epoch, self._view.revision)
        return Quorum(leader, epoch & EPOCH_MAX, revision, sorted(self.nodes))

    # ── Nodes ────────────────────────────────────────────────────────────────────────────────

    async def stopped(self) -> Sequence[BrokerAt]:
        """Return nodes that are not alive but have replicas or are being drained."""
        named = {node for view in self._view.rows.values() for node in view.row.replicas}
        named |= await read_draining(self._store)
        return [self._stopped_at(node) for node in sorted(named.difference(self.nodes))]

    def _stopped_at(self, node: int) -> BrokerAt:
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
        if node not in await read_draining(self._store) and node not in self._seen:
            raise NotFound(f"There is no node {node}.")
        await operator_requests.undrain(self._store, node)
