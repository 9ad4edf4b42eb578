"""What a manager knows of its cluster, arranged for the questions it has: who is alive, who has
what, what an operator wishes, and which partitions have to be looked at again because one of those
has changed. Pure; whoever follows the store tells it.

All of it was true once and may not be any more. That does no harm: what is decided by it is carried
out only if it still holds (``decisions.py``).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.manager.placement import Host, Loads
from penstock.metadata.cluster_entries import NodeEntry, PartitionKey
from penstock.replication.row import PartitionRow, View


class Wish(NamedTuple):
    """Where a partition shall be."""

    version: int
    replicas: tuple[int, ...]


def is_led(row: PartitionRow, incarnations: Mapping[int, int]) -> bool:
    """Whether whoever was elected is still there, in the same life, and has everything."""
    leader = row.leader
    return leader in row.whole and incarnations.get(leader) == row.leader_incarnation


class Known:
    def __init__(self) -> None:
        self.nodes: Mapping[int, NodeEntry] = {}
        self.incarnations: Mapping[int, int] = {}
        self.draining: frozenset[int] = frozenset()
        self.avoided: frozenset[int] = frozenset()  # they shall lead nothing, if that can be
        self.hosts: Sequence[Host] = ()  # every node that is alive, in the order of their numbers
        self.hosts_for_new: Sequence[Host] = ()
        self.rows: dict[PartitionKey, View] = {}
        self.wishes: dict[PartitionKey, Wish] = {}
        self.loads = Loads()
        # Dictionaries stand for sets that keep their order:
        self.behind: dict[PartitionKey, None] = {}  # some replica does not have everything
        self.unpreferred: dict[PartitionKey, None] = {}  # led by another than the first replica
        self.waiting: dict[PartitionKey, None] = {}  # for a node to be created on
        self.due: dict[PartitionKey, None] = {}  # to be looked at again
        self.is_plan_old = True  # whether anything has changed that placement depends on
        self._on: dict[int, dict[PartitionKey, None]] = {}  # rows by the nodes they name
        self._coming: dict[PartitionKey, tuple[int, ...]] = {}  # rows on their way into the store

    # ── What has been seen ───────────────────────────────────────────────────────────────────

    def see_nodes(self, nodes: Mapping[int, NodeEntry], incarnations: Mapping[int, int]) -> None:
        """All that are alive."""
        before, before_incarnations = self.nodes, self.incarnations
        self.nodes, self.incarnations = dict(nodes), dict(incarnations)
        self._arrange()
        for node in {*before, *nodes}:
            if (
                before.get(node) != nodes.get(node)
                or before_incarnations.get(node) != incarnations.get(node)
            ):  # fmt: skip
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
        # A partition on a node that is about to stop is still better than none.
        self.hosts_for_new = willing or staying or self.hosts

    def _see_node(self, node: int) -> None:
        self.due.update(self._on.get(node, {}))
        self.due.update(self.waiting)
        self.is_plan_old = True

    def see_row(self, key: PartitionKey, view: View | None) -> None:
        before = self.rows.get(key)
        if before is not None:
            self._forget_row(key, before.row)
        if view is not None:
            self.rows[key] = view
            self._index_row(key, view.row)
        self.due[key] = None
        self.is_plan_old = True

    def _index_row(self, key: PartitionKey, row: PartitionRow) -> None:
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
        del self.rows[key]
        self.loads.remove(key.topic_id, row.replicas)
        for node in row.replicas:
            del self._on[node][key]
            if not self._on[node]:
                del self._on[node]
        self.behind.pop(key, None)
        self.unpreferred.pop(key, None)

    def see_wish(self, key: PartitionKey, wish: Wish | None) -> None:
        if wish is None:
            self.wishes.pop(key, None)
        else:
            self.wishes[key] = wish
        self.due[key] = None
        self.is_plan_old = True

    def mark(self, keys: Iterable[PartitionKey]) -> None:
        """Have these looked at again."""
        self.due.update(dict.fromkeys(keys))

    # ── Rows under way: the next new one should not go to the same nodes ─────────────────────

    def launch(self, key: PartitionKey, replicas: tuple[int, ...]) -> None:
        self.land(key)
        self._coming[key] = replicas
        self.loads.add(key.topic_id, replicas)

    def land(self, key: PartitionKey) -> None:
        replicas = self._coming.pop(key, None)
        if replicas is not None:
            self.loads.remove(key.topic_id, replicas)

    # ── Questions ────────────────────────────────────────────────────────────────────────────

    def on(self, node: int) -> Iterable[PartitionKey]:
        """Partitions whose rows name it."""
        return self._on.get(node, {})

    def is_led(self, row: PartitionRow) -> bool:
        return is_led(row, self.incarnations)
