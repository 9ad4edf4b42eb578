"""Counts partitions by problem, and the replicas and leaders of each node, in the state of a
manager or in one read of the store (``cluster_state.py``)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from penstock.manager.cluster_state import ClusterState
from penstock.manager.decisions import Policy, Topics, wanted
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.topic import Topic
from penstock.replication.row import PartitionRow


class NodeSummary(msgspec.Struct, frozen=True):
    node: int
    is_alive: bool
    is_draining: bool
    replicas: int
    leaders: int  # partitions that the node leads now
    preferred: int  # partitions that the node should lead
    behind: int  # replicas that are not up to date


class Overview(msgspec.Struct, frozen=True):
    partitions: int
    nodes: Sequence[NodeSummary]
    states: Mapping[str, int]  # number of partitions in each state


def overview(
    state: ClusterState, topics: Topics, all_topics: Iterable[Topic], policy: Policy
) -> Overview:
    counts: dict[int, list[int]] = {node: [0, 0, 0, 0] for node in state.nodes}
    states = Counter(missing=sum(1 for _ in state.missing(all_topics)))
    for key, view in state.rows.items():
        row = view.row
        states.update(states_of(state, key, topics, policy))
        for node in row.replicas:
            of_node = counts.setdefault(node, [0, 0, 0, 0])
            of_node[0] += 1
            of_node[1] += node == row.leader
            of_node[2] += node == row.replicas[0]
            of_node[3] += node not in row.whole
    nodes = [
        NodeSummary(node, node in state.nodes, node in state.draining, *found)
        for node, found in sorted(counts.items())
    ]
    return Overview(len(state.rows), nodes, states)


def factor_of(key: PartitionKey, row: PartitionRow, topics: Topics, policy: Policy) -> int:
    topic = topics.find_id(key.topic_id)
    return len(row.replicas) if topic is None else wanted(topic, policy, key.index).replicas


def states_of(
    state: ClusterState, key: PartitionKey, topics: Topics, policy: Policy
) -> Iterator[str]:
    """Yield the problems of a partition, as values of ``frontend.admin.ports.PartitionState``."""
    row, request = state.rows[key].row, state.requests.get(key)
    alive = sum(node in state.nodes for node in row.whole)
    # While a partition moves, replicas that are being added do not count as missing.
    aimed = len(row.replicas if request is None else min(request.replicas, row.replicas, key=len))
    if alive < max(factor_of(key, row, topics, policy), aimed):
        yield "under_replicated"
    if alive < row.in_sync_min:
        yield "below_minimum"
    if not state.is_led(row):
        yield "leaderless"
    if not row.whole:
        yield "lost"
    if request is not None:
        yield "moving"
    if topics.find_id(key.topic_id) is None and topics.tombstone(key.topic_id) is None:
        yield "orphaned"


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
