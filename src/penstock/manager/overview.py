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
    problems: list[list[PartitionKey]] = [[] for _ in range(5)]
    under, below, leaderless, lost, orphaned = problems
    counts: dict[int, list[int]] = {}  # replicas, leaders, preferred leaders, lagging
    for key, view in state.rows.items():
        row = view.row
        topic = topics.find_id(key.topic_id)
        if topic is None and topics.tombstone(key.topic_id) is None:
            orphaned.append(key)
        alive = sum(node in state.nodes for node in row.whole)
        factor = len(row.replicas) if topic is None else wanted(topic, policy, key.index).replicas
        if alive < max(factor, len(row.replicas)):
            under.append(key)
        if alive < row.in_sync_min:
            below.append(key)
        if not state.is_led(row):
            leaderless.append(key)
        if not row.whole:
            lost.append(key)
        for node in row.replicas:
            of_node = counts.setdefault(node, [0, 0, 0, 0])
            of_node[0] += 1
            of_node[1] += node == row.leader
            of_node[2] += node == row.replicas[0]
            of_node[3] += node not in row.whole
    return Overview(
        len(state.rows),
        tuple(_summary(state, node, counts) for node in sorted({*state.nodes, *counts})),
        *map(_named, (under, below, leaderless, lost)),
        *map(_named, (state.requests, state.missing(all_topics), orphaned)),
    )


def _summary(state: ClusterState, node: int, counts: dict[int, list[int]]) -> NodeSummary:
    entry = state.nodes.get(node)
    is_leaving = entry is not None and entry.is_leaving
    is_draining, found = node in state.draining, counts.get(node, (0, 0, 0, 0))
    return NodeSummary(node, entry is not None, is_leaving, is_draining, *found)


def _named(keys: Iterable[PartitionKey]) -> Named:
    keys = list(keys)
    return Named(len(keys), tuple(sorted(keys[:NAMED_MAX])))


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
