"""The cluster as Kafka clients see it: its brokers and the leaders of partitions, from the memory
of this node; and Kafka's admin requests, which are written to the store for the manager."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from penstock.frontend.kafka.ports.cluster import (
    NO_LEADER,
    BrokerAt,
    Brokers,
    Election,
    KafkaCluster,
    Place,
    Quorum,
    Reassigned,
    ReplicaHere,
)
from penstock.manager import operator_requests
from penstock.manager.cluster_state import read_draining, read_nodes, readable
from penstock.manager.decisions import wanted
from penstock.manager.operator_requests import (
    Refused,
    preferred_leader,
    reassignment,
    unclean_leader,
)
from penstock.metadata import cluster_entries
from penstock.metadata.store import Entry
from penstock.model.errors import Conflict, InvalidRequest, LeaderMoved, NotFound
from penstock.model.ports import Catalog, ProducerSeen
from penstock.model.topic import Topic, partition_of_group
from penstock.node.cluster.cluster_role import ClusterRole
from penstock.node.configuration.cluster_config import parse_listen
from penstock.replication.replica import Role
from penstock.replication.row import Change, View

EPOCH_MAX: Final = 2**31 - 1  # an epoch of Kafka has 32 bits, a revision of the store 64
_UNKNOWN_PORT: Final = -1
_OUTCOMES: Final = {
    None: Election.DONE,
    Refused.NOT_NEEDED: Election.NOT_NEEDED,
    Refused.UNAVAILABLE: Election.UNAVAILABLE,
}


@dataclass(frozen=True, slots=True)
class ClusterBrokers(Brokers):
    _cluster: ClusterRole
    _catalog: Catalog
    _namespace: tuple[str, str]  # account and region

    def all(self) -> Sequence[BrokerAt]:
        found = [broker_of(entry) for _, entry in sorted(self._cluster.view.nodes.items())]
        return [one for one in found if one is not None]

    @property
    def controller(self) -> int:
        manager = self._cluster.manager
        return NO_LEADER if manager is None else manager.manager

    def place(self, topic: Topic, index: int) -> Place:
        view = self._cluster.view.of_topic(topic.source_id or topic.topic_id).get(index)
        if view is None:
            return Place(NO_LEADER, -1, (), ())
        row, nodes = view.row, self._cluster.view.nodes
        led = self._cluster.routes.leader(topic, index)
        leader, epoch = (NO_LEADER, row.epoch) if led is None else led
        return Place(
            leader,
            epoch,
            row.replicas,
            sorted(row.in_sync),
            [node for node in row.replicas if node not in nodes],
        )

    def epoch_end(self, topic: Topic, index: int, epoch: int) -> tuple[int, int]:
        found = self._cluster.replicators.find(cluster_entries.PartitionKey(topic.topic_id, index))
        if found is None or found.replica.leader is None:
            # The high watermark of the leader may be too low still. A client would believe that
            # records were truncated, and read everything again.
            raise LeaderMoved("Another node leads this partition; retry.")
        return found.replica.history.end_of(epoch, end_offset=found.replica.end_offset)

    def coordinator(self, internal_topic: str, key: str) -> BrokerAt | None:
        topic = self._catalog.find(*self._namespace, internal_topic)
        if topic is None:
            return None
        led = self._cluster.routes.leader(topic, partition_of_group(key, topic.partition_count))
        entry = None if led is None else self._cluster.view.nodes.get(led[0])
        return None if entry is None else broker_of(entry)


def broker_of(entry: cluster_entries.NodeEntry) -> BrokerAt | None:
    if not entry.kafka:
        return None  # no Kafka listener, or not open yet
    host, port = parse_listen(entry.kafka)
    return BrokerAt(entry.node, host, port, entry.rack or None)


class ClusterChanges(KafkaCluster):
    def __init__(self, cluster: ClusterRole) -> None:
        self._cluster = cluster
        self._store = cluster.store
        self._view = cluster.view
        self._seen = cluster.admin.seen  # last known entries of nodes

    @property
    def nodes(self) -> Collection[int]:
        return self._view.nodes.keys()

    @asynccontextmanager
    async def placed(
        self, topic: Topic, places: Mapping[int, Sequence[int]]
    ) -> AsyncIterator[None]:
        in_sync_min = wanted(topic, self._cluster.policy).in_sync_min
        is_new = self._cluster.catalog.find_id(topic.topic_id) is None
        try:
            await operator_requests.create(
                self._store, topic.topic_id, places, in_sync_min=in_sync_min
            )
            yield
        except (Conflict, InvalidRequest, NotFound):
            # The catalog rejected the change. The partitions of a new topic cannot be in use.
            if is_new:
                await operator_requests.discard(self._store, topic.topic_id)
            raise

    async def moves(self) -> Mapping[tuple[str, int], Reassigned]:
        entries, _ = await self._store.list(cluster_entries.PLACEMENTS_PREFIX)
        return await asyncio.to_thread(self._moves_in, entries)

    def _moves_in(self, entries: Sequence[Entry]) -> Mapping[tuple[str, int], Reassigned]:
        found: dict[tuple[str, int], Reassigned] = {}
        for key, request, _ in readable(
            entries, cluster_entries.partition_of, cluster_entries.decode_placement
        ):
            view = self._view.rows.get(key)
            if view is not None and view.row.replicas != request.replicas:
                found[key.topic_id, key.index] = Reassigned(*reassignment(view.row, request))
        return found

    async def move(self, topic: Topic, index: int, replicas: Sequence[int]) -> None:
        await operator_requests.place(
            self._store, cluster_entries.PartitionKey(topic.topic_id, index), replicas
        )

    async def cancel_move(self, topic: Topic, index: int) -> int:
        key = cluster_entries.PartitionKey(topic.topic_id, index)
        return len(await operator_requests.cancel_placement(self._store, key))

    async def replica(self, topic: Topic, index: int) -> ReplicaHere | None:
        found = self._cluster.replicators.find(cluster_entries.PartitionKey(topic.topic_id, index))
        return None if found is None else ReplicaHere(found.log.size_bytes, found.lag_count)

    async def followed_producers(self, topic: Topic, index: int) -> Sequence[ProducerSeen] | None:
        found = self._cluster.replicators.find(cluster_entries.PartitionKey(topic.topic_id, index))
        if found is None or found.replica.role is not Role.FOLLOWER:
            return None
        return await found.follower_log.producers()

    async def elect(self, topic: Topic, index: int, *, is_unclean: bool) -> Election:
        nodes, incarnations = await read_nodes(self._store)
        leaving = {node for node, entry in nodes.items() if entry.is_leaving}
        avoided = frozenset(leaving | await read_draining(self._store))

        def choose(view: View) -> Change | Refused:
            if is_unclean:
                return unclean_leader(view, incarnations)
            return preferred_leader(view, incarnations, avoided)

        key = cluster_entries.PartitionKey(topic.topic_id, index)
        return _OUTCOMES[await operator_requests.elect(self._store, key, choose)]

    def quorum(self) -> Quorum:
        manager = self._cluster.manager
        leader, epoch = (NO_LEADER, 0) if manager is None else (manager.manager, manager.tenure_id)
        revision = max(epoch, self._view.revision)
        return Quorum(leader, epoch & EPOCH_MAX, revision, sorted(self.nodes))

    async def stopped(self) -> Sequence[BrokerAt]:
        """Return the nodes that are not alive, but have replicas or are being drained."""
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
