"""Decisions about the whole cluster, with limits on simultaneous changes: which partitions begin to
move, which get another order of replicas, and which return to their preferred leader. Pure.

A move that has begun is in the store, as a placement request beside the row: the next manager
continues it. Requests of operators and moves planned here are handled alike. Planning takes time
proportional to the size of the cluster, so it can run in a thread, with ``Situation`` as its input.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from penstock.manager.cluster_state import ClusterState
from penstock.manager.decisions import Decision, DecisionKind, Policy, Topics, wanted
from penstock.manager.placement import Host, Placed, plan
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.replication import is_manual
from penstock.replication import election
from penstock.replication.election import ABSENT
from penstock.replication.row import Change, View

Targets = Mapping[PartitionKey, tuple[int, ...]]


class Situation(NamedTuple):
    partitions: Mapping[PartitionKey, Placed]
    hosts: Sequence[Host]
    draining: frozenset[int]
    policy: Policy


def situation(state: ClusterState, topics: Topics, policy: Policy) -> Situation:
    whole = placed(state, state.rows, topics, policy)
    return Situation(whole, list(state.hosts), state.draining, policy)


def placed(
    state: ClusterState, keys: Iterable[PartitionKey], topics: Topics, policy: Policy
) -> dict[PartitionKey, Placed]:
    """Return a part of a situation, for callers that cannot block for all of it. Rows may change
    between two parts: moves that were planned with old rows do not begin (``beginnings``)."""
    partitions = {}
    for key in keys:
        view = state.rows.get(key)
        if view is not None and topics.tombstone(key.topic_id) is None:
            partitions[key] = _placed(state, key, view, topics, policy)
    return partitions


def _placed(
    state: ClusterState, key: PartitionKey, view: View, topics: Topics, policy: Policy
) -> Placed:
    """Return the planner's view of a partition. A moving one counts as if it had arrived. One that
    is not fully in sync is not moved for balance: copying it elsewhere would take longer."""
    row = view.row
    request = state.requests.get(key)
    if request is not None:
        # A move to too few replicas could not end: then a replica is added.
        count = max(len(request.replicas), row.in_sync_min)
        return Placed(request.replicas, count, is_fixed=True, has=frozenset(row.replicas))
    topic = topics.find_id(key.topic_id)
    count = len(row.replicas) if topic is None else wanted(topic, policy, key.index).replicas
    whole = row.whole
    weak = frozenset(node for node in row.replicas if node not in whole or node not in state.nodes)
    is_fixed = bool(weak) or (topic is not None and is_manual(topic))
    return Placed(row.replicas, count, is_fixed=is_fixed, weak=weak)


def targets(now: Situation) -> Targets:
    """Return where partitions should go, the necessary moves first."""
    return plan(
        now.partitions,
        now.hosts,
        draining=now.draining,
        is_balancing=now.policy.is_balancing,
        # More than may begin at once, because some of them will be blocked by limits.
        steps_max=4 * max(now.policy.moves_max, now.policy.leader_changes_max),
    )


def beginnings(
    state: ClusterState, now: Situation, planned: Targets, policy: Policy
) -> list[Decision]:
    """Return as many requested and planned moves as the limits permit."""
    room = _Room(state, policy)
    found: list[Decision | None] = []
    for key, request in state.requests.items():
        view = state.rows.get(key)
        if view and key not in planned and not set(request.replicas) <= set(view.row.replicas):
            found.append(_begin(state, key, view, request.replicas, room))
    for key, target in planned.items():
        view = state.rows.get(key)
        # A partition that has changed since it was planned is planned again.
        if (
            view is None
            or now.partitions[key].replicas != (state.requests.get(key) or view.row).replicas
        ):
            continue
        found.append(_toward(state, key, view, target, room))
    return [decision for decision in found if decision is not None]


def _toward(
    state: ClusterState, key: PartitionKey, view: View, target: tuple[int, ...], room: "_Room"
) -> Decision | None:
    row = view.row
    if not set(target) <= set(row.replicas):
        return _begin(state, key, view, target, room)
    if len(target) < len(row.replicas) or key in state.requests:
        # All target replicas are there: the placement request removes the superfluous ones.
        asked = _version(state, key)
        return Decision(
            key, DecisionKind.BEGUN, view.version, request=target, request_version=asked
        )
    if room.take_order():
        ordered = msgspec.structs.replace(row, replicas=target)
        return Decision(key, DecisionKind.ORDERED, view.version, Change(view.version, ordered))
    return None


def _begin(
    state: ClusterState, key: PartitionKey, view: View, target: tuple[int, ...], room: "_Room"
) -> Decision | None:
    """Add the missing replicas, and write a placement request unless nothing else remains to do."""
    row = view.row
    if not state.is_led(row):
        return None
    coming = [node for node in target if node not in row.replicas]
    if not all(node in state.incarnations and node not in state.avoided for node in coming):
        return None
    if not room.take(row.leader, coming, is_repair=set(row.replicas) <= set(target)):
        return None
    change = election.place(view, target)
    assert change is not None, "replicas are missing, so there is a change"
    change = change._replace(incarnations={node: state.incarnations[node] for node in coming})
    begun = Decision(key, DecisionKind.BEGUN, view.version, change)
    request = state.requests.get(key)
    if set(change.row.replicas) == set(target) and request is None:
        return begun
    # An equal request is not replaced: it may contain the original replicas.
    is_same = request is not None and request.replicas == target
    asked = None if is_same else target
    return begun._replace(request_version=_version(state, key), request=asked)


def _version(state: ClusterState, key: PartitionKey) -> int:
    request = state.requests.get(key)
    return ABSENT if request is None else request.version


class _Room:
    """The remaining room under the limits, given the copies in progress."""

    def __init__(self, state: ClusterState, policy: Policy) -> None:
        self._policy = policy
        self._pairs: Counter[tuple[int, int]] = Counter()
        self._moves = 0
        self._orders = 0
        for key in state.behind:
            row = state.rows[key].row
            # A node that is not alive copies nothing, and must not use up the limit.
            coming = [n for n in row.replicas if n not in row.whole and n in state.nodes]
            self._pairs.update((row.leader, node) for node in coming)
            if coming and key in state.requests:
                self._moves += 1

    def take(self, source: int, coming: Sequence[int], *, is_repair: bool) -> bool:
        policy = self._policy
        per_pair = policy.repairs_per_pair_max if is_repair else policy.moves_per_pair_max
        if not is_repair and self._moves >= policy.moves_max:
            return False
        if any(self._pairs[source, node] >= per_pair for node in coming):
            return False
        self._pairs.update((source, node) for node in coming)
        self._moves += not is_repair
        return True

    def take_order(self) -> bool:
        self._orders += 1
        return self._orders <= self._policy.leader_changes_max


def preferred(state: ClusterState, *, count_max: int) -> list[Decision]:
    """Return elections for partitions whose first replica could lead and does not."""
    found: list[Decision] = []
    for key in state.unpreferred:
        if len(found) >= count_max:
            break
        view = state.rows[key]
        first = view.row.replicas[0]
        # Moves end with an election, and leaderless partitions get a separate one.
        if first in state.avoided or key in state.requests or not state.is_led(view.row):
            continue
        change = election.elect(view, state.incarnations)
        if change is not None and change.row.leader == first:
            found.append(Decision(key, DecisionKind.PREFERRED, view.version, change))
    return found
