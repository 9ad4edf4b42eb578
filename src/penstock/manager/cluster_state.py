"""The state of the cluster as the manager sees it: live nodes, rows (leader and replicas of each
partition), placement requests, and the partitions to check because one of these has changed. The
state may be out of date, which is safe: a decision is written only if everything it relies on is
unchanged (``decisions.py``).

The manager updates the state from watches of the metadata store. Operator commands and stopping
nodes read the whole state once; unreadable entries are skipped and logged."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from penstock.manager.placement import Host, Loads
from penstock.metadata import cluster_entries as stored
from penstock.metadata.cluster_entries import NodeEntry, PartitionKey
from penstock.metadata.store import Entry, Store
from penstock.model.errors import Damaged
from penstock.model.topic import Topic
from penstock.replication.row import PartitionRow, View

K = TypeVar("K")
V = TypeVar("V")

log = logging.getLogger(__name__)


class Requested(NamedTuple):
    version: int
    replicas: tuple[int, ...]


def is_led(row: PartitionRow, incarnations: Mapping[int, int]) -> bool:
    """Return whether the elected leader has all its records, is alive and has not restarted."""
    leader = row.leader
    return leader in row.whole and incarnations.get(leader) == row.leader_incarnation


class ClusterState:
    def __init__(self) -> None:
        self.nodes: Mapping[int, NodeEntry] = {}
        self.incarnations: Mapping[int, int] = {}
        self.draining: frozenset[int] = frozenset()
        self.avoided: frozenset[int] = frozenset()  # nodes that should not lead
        self.hosts: Sequence[Host] = ()  # all live nodes, ordered by id
        self.hosts_for_new: Sequence[Host] = ()
        self.rows: dict[PartitionKey, View] = {}
        self.requests: dict[PartitionKey, Requested] = {}
        self.loads = Loads()
        # Dictionaries serve as ordered sets:
        self.behind: dict[PartitionKey, None] = {}  # partitions with a replica not in sync
        self.unpreferred: dict[PartitionKey, None] = {}  # the leader is not the first replica
        self.waiting: dict[PartitionKey, None] = {}  # not created because no node is available
        self.due: dict[PartitionKey, None] = {}  # partitions to check
        self.is_plan_old = True  # whether anything has changed that placement depends on
        self._on: dict[int, dict[PartitionKey, None]] = {}  # partitions by node
        self._coming: dict[PartitionKey, tuple[int, ...]] = {}  # new rows that are being written

    def see_nodes(self, nodes: Mapping[int, NodeEntry], incarnations: Mapping[int, int]) -> None:
        before, old_incarnations = self.nodes, self.incarnations
        self.nodes, self.incarnations = dict(nodes), dict(incarnations)
        self._arrange()
        for node in {*before, *nodes}:
            is_same = old_incarnations.get(node) == incarnations.get(node)
            if not is_same or before.get(node) != nodes.get(node):
                self._see_node(node)

    def see_draining(self, draining: Iterable[int]) -> None:
        before, self.draining = self.draining, frozenset(draining)
        self._arrange()
        for node in sorted(before ^ self.draining):
            self._see_node(node)

    def _arrange(self) -> None:
        leaving = (node for node, entry in self.nodes.items() if entry.is_leaving)
        self.avoided = self.draining.union(leaving)
        self.hosts = [
            Host(node, self.nodes[node].rack, is_open=node not in self.avoided)
            for node in sorted(self.nodes)
        ]
        willing = [host for host in self.hosts if host.is_open]
        staying = [host for host in self.hosts if host.node not in self.draining]
        # If no other nodes are available, create partitions on nodes that are about to stop.
        self.hosts_for_new = willing or staying or self.hosts

    def _see_node(self, node: int) -> None:
        self.due.update(self._on.get(node, {}))
        self.due.update(self.waiting)
        self.is_plan_old = True

    def see_row(self, key: PartitionKey, view: View | None) -> None:
        before = self.rows.pop(key, None)
        if before is not None:
            self._forget_row(key, before.row)
        if view is not None:
            self._add_row(key, view)
        self.due[key] = None
        self.is_plan_old = True

    def _add_row(self, key: PartitionKey, view: View) -> None:
        self.rows[key] = view
        row = view.row
        self.land(key)
        self.waiting.pop(key, None)
        self.loads.add(key.topic_id, row.replicas)
        for node in row.replicas:
            self._on.setdefault(node, {})[key] = None
        if len(row.whole) < len(row.replicas):
            self.behind[key] = None
        if row.leader != row.replicas[0]:
            self.unpreferred[key] = None

    def _forget_row(self, key: PartitionKey, row: PartitionRow) -> None:
        self.loads.add(key.topic_id, row.replicas, -1)
        for node in row.replicas:
            del self._on[node][key]
            if not self._on[node]:
                del self._on[node]
        self.behind.pop(key, None)
        self.unpreferred.pop(key, None)

    def see_request(self, key: PartitionKey, request: Requested | None) -> None:
        if request is None:
            self.requests.pop(key, None)
        else:
            self.requests[key] = request
        self.due[key] = None
        self.is_plan_old = True

    def mark(self, keys: Iterable[PartitionKey]) -> None:
        self.due.update(dict.fromkeys(keys))

    def launch(self, key: PartitionKey, replicas: tuple[int, ...]) -> None:
        """Count the replicas of a row as load on their nodes while the row is being written."""
        self.land(key)
        self._coming[key] = replicas
        self.loads.add(key.topic_id, replicas)

    def land(self, key: PartitionKey) -> None:
        replicas = self._coming.pop(key, None)
        if replicas is not None:
            self.loads.add(key.topic_id, replicas, -1)

    def on(self, node: int) -> Iterable[PartitionKey]:
        return self._on.get(node, {})

    def missing(self, topics: Iterable[Topic]) -> Iterator[PartitionKey]:
        for topic in topics:
            yield from (key for key in stored.partitions_of(topic) if key not in self.rows)

    def is_led(self, row: PartitionRow) -> bool:
        return is_led(row, self.incarnations)


class Requests(NamedTuple):
    draining: frozenset[int] = frozenset()
    placements: Mapping[PartitionKey, Requested] = {}


def readable(
    entries: Sequence[Entry], key_of: Callable[[str], K], decode: Callable[[str, bytes], V]
) -> Iterator[tuple[K, V, Entry]]:
    for entry in entries:
        try:
            yield key_of(entry.key), decode(entry.key, entry.value), entry
        except Damaged as error:
            log.warning("metadata entry unreadable", extra={"reason": str(error)})


async def read_nodes(store: Store) -> tuple[Mapping[int, NodeEntry], Mapping[int, int]]:
    entries, _ = await store.list(stored.NODES_PREFIX)
    found = list(readable(entries, stored.node_of, stored.decode_node))
    return (
        {node: entry for node, entry, _ in found},
        {node: made.create_revision for node, _, made in found},
    )


async def read_draining(store: Store) -> frozenset[int]:
    entries, _ = await store.list(stored.DRAINS_PREFIX)
    return frozenset(
        node for node, _, _ in readable(entries, stored.node_of, lambda _key, _value: None)
    )


async def read_requests(store: Store) -> Requests:
    draining = await read_draining(store)
    entries, _ = await store.list(stored.PLACEMENTS_PREFIX)
    placements = readable(entries, stored.partition_of, stored.decode_placement)
    return Requests(
        draining,
        {key: Requested(entry.version, request.replicas) for key, request, entry in placements},
    )


def arrange(
    nodes: Mapping[int, NodeEntry],
    incarnations: Mapping[int, int],
    rows: Mapping[PartitionKey, View],
    requests: Requests,
) -> ClusterState:
    state = ClusterState()
    state.see_nodes(nodes, incarnations)
    state.see_draining(requests.draining)
    for key, view in rows.items():
        state.see_row(key, view)
    for key, request in requests.placements.items():
        state.see_request(key, request)
    return state


async def read_cluster_state(store: Store) -> ClusterState:
    """Read the whole state. Rows are decoded in a thread, because there may be a million rows."""
    nodes, incarnations = await read_nodes(store)
    requests = await read_requests(store)
    entries, revision = await store.list(stored.PARTITIONS_PREFIX)

    def read() -> ClusterState:
        rows = {
            key: View(revision, entry.version, row)
            for key, row, entry in readable(entries, stored.partition_of, stored.decode_row)
        }
        return arrange(nodes, incarnations, rows, requests)

    return await asyncio.to_thread(read)
