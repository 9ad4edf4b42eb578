"""One read of the whole cluster state from the store, for callers that do not manage the cluster: a
command of an operator, or a node that is about to stop.

Unreadable entries are left out and logged, so that one bad entry does not hide the others.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from penstock.manager.cluster_state import ClusterState, Requested
from penstock.metadata.cluster_entries import (
    DRAINS_PREFIX,
    NODES_PREFIX,
    PARTITIONS_PREFIX,
    PLACEMENTS_PREFIX,
    NodeEntry,
    PartitionKey,
    decode_node,
    decode_placement,
    decode_row,
    node_of,
    partition_of,
)
from penstock.metadata.store import Entry, Store
from penstock.model.errors import Damaged
from penstock.replication.row import View

K = TypeVar("K")
V = TypeVar("V")

log = logging.getLogger(__name__)


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
    """Return the live nodes and their incarnations."""
    entries, _ = await store.list(NODES_PREFIX)
    found = list(readable(entries, node_of, decode_node))
    return (
        {node: entry for node, entry, _ in found},
        {node: stored.create_revision for node, _, stored in found},
    )


async def read_draining(store: Store) -> frozenset[int]:
    entries, _ = await store.list(DRAINS_PREFIX)
    return frozenset(node for node, _, _ in readable(entries, node_of, lambda _key, _value: None))


async def read_requests(store: Store) -> Requests:
    draining = await read_draining(store)
    entries, _ = await store.list(PLACEMENTS_PREFIX)
    placements = readable(entries, partition_of, decode_placement)
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
    """Read everything. Rows are decoded in a thread: they may be a million."""
    nodes, incarnations = await read_nodes(store)
    requests = await read_requests(store)
    entries, revision = await store.list(PARTITIONS_PREFIX)

    def read() -> ClusterState:
        rows = {
            key: View(revision, entry.version, row)
            for key, row, entry in readable(entries, partition_of, decode_row)
        }
        return arrange(nodes, incarnations, rows, requests)

    return await asyncio.to_thread(read)
