"""One read of the whole cluster state from the store, for callers that do not manage the cluster: a
command of an operator, or a node that is about to stop.

Unreadable entries are left out and logged, so that one bad entry does not hide the others.
"""

import logging
from collections.abc import Mapping

from penstock.manager.known import Known, Wish
from penstock.metadata.cluster_entries import (
    DRAINS_PREFIX,
    NODES_PREFIX,
    PARTITIONS_PREFIX,
    PLACES_PREFIX,
    NodeEntry,
    decode_node,
    decode_row,
    decode_wish,
    node_of,
    partition_of,
)
from penstock.metadata.store import Store
from penstock.model.errors import Damaged
from penstock.replication.row import View

log = logging.getLogger(__name__)


async def read_nodes(store: Store) -> tuple[Mapping[int, NodeEntry], Mapping[int, int]]:
    """Return the live nodes and their incarnations."""
    entries, _ = await store.list(NODES_PREFIX)
    nodes: dict[int, NodeEntry] = {}
    incarnations: dict[int, int] = {}
    for entry in entries:
        try:
            node = node_of(entry.key)
            nodes[node] = decode_node(entry.key, entry.value)
            incarnations[node] = entry.create_revision
        except Damaged as error:
            log.warning("an entry cannot be read", extra={"why": str(error)})
    return nodes, incarnations


async def read_known(store: Store) -> Known:
    known = Known()
    known.see_nodes(*await read_nodes(store))
    drains, _ = await store.list(DRAINS_PREFIX)
    places, _ = await store.list(PLACES_PREFIX)
    rows, revision = await store.list(PARTITIONS_PREFIX)
    draining: list[int] = []
    for entry in drains:
        try:
            draining.append(node_of(entry.key))
        except Damaged as error:
            log.warning("an entry cannot be read", extra={"why": str(error)})
    known.see_draining(draining)
    for entry in rows:
        try:
            row = decode_row(entry.key, entry.value)
            known.see_row(partition_of(entry.key), View(revision, entry.version, row))
        except Damaged as error:
            log.warning("an entry cannot be read", extra={"why": str(error)})
    for entry in places:
        try:
            wish = decode_wish(entry.key, entry.value)
            known.see_wish(partition_of(entry.key), Wish(entry.version, wish.replicas))
        except Damaged as error:
            log.warning("an entry cannot be read", extra={"why": str(error)})
    return known
