"""Decisions about the whole cluster, with limits on simultaneous changes: which partitions begin to
move, which get another order of replicas, and which return to their preferred leader. Pure.

A move that has begun is in the store, as a placement request beside the row: the next manager
continues it and does not plan it again. Requests of operators and moves planned here are handled
alike from then on. A request ends when the partition is where it was requested.

Planning takes time proportional to the size of the cluster. ``Situation`` is a snapshot of the
planner's input, so that planning can run in a thread.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from penstock.manager.decisions import Decision, Policy, Topics, Why, wanted
from penstock.manager.known import Known
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


def situation(known: Known, topics: Topics, policy: Policy) -> Situation:
    whole = placed(known, known.rows, topics, policy)
    return Situation(whole, list(known.hosts), known.draining, policy)


def placed(
    known: Known, keys: Iterable[PartitionKey], topics: Topics, policy: Policy
) -> dict[PartitionKey, Placed]:
    """Return a part of a situation, for callers that cannot block for all of it. Rows may change
    between two parts: moves that were planned with old rows do not begin (``beginnings``)."""
    partitions = {}
    for key in keys:
        view = known.rows.get(key)
        if view is not None and topics.tombstone(key.topic_id) is None:
            partitions[key] = _placed(known, key, view, topics, policy)
    return partitions


def _placed(known: Known, key: PartitionKey, view: View, topics: Topics, policy: Policy) -> Placed:
    """Return the planner's view of a partition. A moving one counts as if it had arrived. One that
    is not fully in sync is not moved for balance: copying it elsewhere would take longer."""
    row = view.row
    wish = known.wishes.get(key)
    if wish is not None:
        # A move to too few replicas could not end: then a replica is added.
        count = max(len(wish.replicas), row.in_sync_min)
        return Placed(wish.replicas, count, is_fixed=True, has=frozenset(row.replicas))
    topic = topics.find_id(key.topic_id)
    count = len(row.replicas) if topic is None else wanted(topic, policy, key.index).replicas
    whole = row.whole
    weak = frozenset(node for node in row.replicas if node not in whole or node not in known.nodes)
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


def beginnings(known: Known, now: Situation, planned: Targets, policy: Policy) -> list[Decision]:
    """Return as many requested and planned moves as the limits permit."""
    room = _Room(known, policy)
    found: list[Decision] = []
    for key, wish in known.wishes.items():
        view = known.rows.get(key)
        if view is None or key in planned:
            continue
        if not set(wish.replicas) <= set(view.row.replicas):
            _append(found, _begin(known, key, view, wish.replicas, room))
    for key, target in planned.items():
        view = known.rows.get(key)
        # A partition that has changed since it was planned is planned again.
        if view is not None and _heading(known, key, view) == now.partitions[key].replicas:
            _append(found, _toward(known, key, view, target, room))
    return found


def _heading(known: Known, key: PartitionKey, view: View) -> tuple[int, ...]:
    wish = known.wishes.get(key)
    return view.row.replicas if wish is None else wish.replicas


def _append(found: list[Decision], decision: Decision | None) -> None:
    if decision is not None:
        found.append(decision)


def _toward(
    known: Known, key: PartitionKey, view: View, target: tuple[int, ...], room: "_Room"
) -> Decision | None:
    row = view.row
    if not set(target) <= set(row.replicas):
        return _begin(known, key, view, target, room)
    if len(target) < len(row.replicas) or key in known.wishes:
        # All target replicas are there: the placement request removes the superfluous ones.
        version = _version(known, key)
        return Decision(key, Why.BEGUN, view.version, wish=target, wish_version=version)
    if room.take_order():
        ordered = msgspec.structs.replace(row, replicas=target)
        return Decision(key, Why.ORDERED, view.version, Change(view.version, ordered))
    return None


def _begin(
    known: Known, key: PartitionKey, view: View, target: tuple[int, ...], room: "_Room"
) -> Decision | None:
    """Add the missing replicas, and write a placement request unless nothing else remains to do."""
    row = view.row
    if not known.is_led(row):
        return None
    coming = [node for node in target if node not in row.replicas]
    if not all(node in known.incarnations and node not in known.avoided for node in coming):
        return None
    if not room.take(row.leader, coming, is_repair=set(row.replicas) <= set(target)):
        return None
    change = election.place(view, target)
    assert change is not None, "somebody is missing"
    counted_on = {node: known.incarnations[node] for node in coming}
    begun = Decision(key, Why.BEGUN, view.version, change._replace(incarnations=counted_on))
    if set(change.row.replicas) == set(target) and key not in known.wishes:
        return begun
    begun = begun._replace(wish_version=_version(known, key))
    wish = known.wishes.get(key)
    # An equal request is not replaced: it may contain the original replicas.
    return begun if wish is not None and wish.replicas == target else begun._replace(wish=target)


def _version(known: Known, key: PartitionKey) -> int:
    wish = known.wishes.get(key)
    return ABSENT if wish is None else wish.version


class _Room:
    """The remaining room under the limits, given the copies in progress."""

    def __init__(self, known: Known, policy: Policy) -> None:
        self._policy = policy
        self._pairs: Counter[tuple[int, int]] = Counter()
        self._moves = 0
        self._orders = 0
        for key in known.behind:
            row = known.rows[key].row
            # A node that is not alive copies nothing, and must not use up the limit.
            coming = [n for n in row.replicas if n not in row.whole and n in known.nodes]
            self._pairs.update((row.leader, node) for node in coming)
            if coming and key in known.wishes:
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


def preferred(known: Known, *, count_max: int) -> list[Decision]:
    """Return elections for partitions whose first replica could lead and does not."""
    found: list[Decision] = []
    for key in known.unpreferred:
        if len(found) >= count_max:
            break
        view = known.rows[key]
        first = view.row.replicas[0]
        # Moves end with an election, and leaderless partitions get a separate one.
        if first in known.avoided or key in known.wishes or not known.is_led(view.row):
            continue
        change = election.elect(view, known.incarnations)
        if change is not None and change.row.leader == first:
            found.append(Decision(key, Why.PREFERRED, view.version, change))
    return found
