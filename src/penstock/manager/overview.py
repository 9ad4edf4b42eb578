"""A summary of a cluster with counts and the names of affected partitions, computed from a
manager's state or from one read of the store (``cluster_state.py``)."""

from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.manager.cluster_state import ClusterState
from penstock.manager.decisions import Policy, Topics, wanted
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.topic import Topic

NAMED_MAX: Final = 100  # partitions listed per problem; the count includes all


class Named(msgspec.Struct, frozen=True):
    count: int = 0
    partitions: tuple[PartitionKey, ...] = ()


class NodeSummary(msgspec.Struct, frozen=True):
    node: int
    is_alive: bool
    is_leaving: bool
    is_draining: bool
    replicas: int
    leaders: int  # partitions that the node leads now
    preferred: int  # partitions that the node should lead
    behind: int  # replicas that are not up to date


class Overview(msgspec.Struct, frozen=True):
    partitions: int
    nodes: tuple[NodeSummary, ...]
    under_replicated: Named  # a replica is missing, lagging or not alive
    below_minimum: Named  # too few replicas are in sync to accept messages
    leaderless: Named
    lost: Named  # no replica is known to be intact
    moving: Named
    missing: Named  # partitions that are not created yet
    orphaned: Named  # partitions without a topic or a tombstone


def overview(
    state: ClusterState, topics: Topics, all_topics: Iterable[Topic], policy: Policy
) -> Overview:
    under, below, leaderless, lost, orphaned = (_Names() for _ in range(5))
    counts: dict[int, list[int]] = {}  # replicas, leaders, preferred leaders, lagging
    for key, view in state.rows.items():
        row = view.row
        topic = topics.find_id(key.topic_id)
        if topic is None and topics.tombstone(key.topic_id) is None:
            orphaned.add(key)
        alive = sum(node in state.nodes for node in row.whole)
        factor = len(row.replicas) if topic is None else wanted(topic, policy, key.index).replicas
        if alive < max(factor, len(row.replicas)):
            under.add(key)
        if alive < row.in_sync_min:
            below.add(key)
        if not state.is_led(row):
            leaderless.add(key)
        if not row.whole:
            lost.add(key)
        for node in row.replicas:
            of_node = counts.setdefault(node, [0, 0, 0, 0])
            of_node[0] += 1
            of_node[1] += node == row.leader
            of_node[2] += node == row.replicas[0]
            of_node[3] += node not in row.whole
    return Overview(
        len(state.rows),
        tuple(_summary(state, node, counts) for node in sorted({*state.nodes, *counts})),
        under.named(),
        below.named(),
        leaderless.named(),
        lost.named(),
        _Names(state.requests).named(),
        _Names(state.missing(all_topics)).named(),
        orphaned.named(),
    )


def _summary(state: ClusterState, node: int, counts: dict[int, list[int]]) -> NodeSummary:
    entry = state.nodes.get(node)
    is_leaving = entry is not None and entry.is_leaving
    is_draining, found = node in state.draining, counts.get(node, (0, 0, 0, 0))
    return NodeSummary(node, entry is not None, is_leaving, is_draining, *found)


class _Names:
    def __init__(self, keys: Iterable[PartitionKey] = ()) -> None:
        self._count = 0
        self._keys: list[PartitionKey] = []
        for key in keys:
            self.add(key)

    def add(self, key: PartitionKey) -> None:
        self._count += 1
        if len(self._keys) < NAMED_MAX:
            self._keys.append(key)

    def named(self) -> Named:
        return Named(self._count, tuple(sorted(self._keys)))


class StopRisk(msgspec.Struct, frozen=True):
    """Numbers of partitions that would be affected if this node stopped now."""

    unavailable: int  # no other live node has an intact replica
    unsendable: int  # too few other live nodes have intact replicas to accept messages
    only_here: int  # the topic has a replication factor of one, so waiting does not help


def risk_of_stopping(state: ClusterState, node: int) -> StopRisk:
    unavailable = unsendable = only_here = 0
    for key in state.on(node):
        row = state.rows[key].row
        if row.replicas == (node,):
            only_here += 1
            continue
        others = sum(each in state.nodes for each in row.whole if each != node)
        if not others:
            unavailable += 1
        elif others < row.in_sync_min:
            unsendable += 1
    return StopRisk(unavailable, unsendable, only_here)
