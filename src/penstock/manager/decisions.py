"""Decides what to do for a partition: create it, elect a leader, finish a move, delete its row.

Each decision names everything it relies on: versions of the row and of a placement request, and
registrations of nodes. The store writes the decision only if these are unchanged, so outdated
knowledge and several nodes that act as manager do no harm (R1, R3 in docs/replication.md). A
replica that may lack committed records never becomes leader, except by a request of an operator
(``operator_requests.py``).

Other functions plan moves in the whole cluster, with limits on simultaneous changes. A move that
has begun is in the store, as a placement request next to the row, so the next manager continues it.
Requests of operators and moves planned here are treated alike. Planning takes time proportional to
the size of the cluster, so it can run in a thread, with ``Situation`` as its input."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from penstock.manager.cluster_state import ClusterState
from penstock.manager.placement import Host, Placed, choose, plan
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.names import is_internal
from penstock.model.replication import factor_of, in_sync_min_of, is_manual
from penstock.model.topic import Topic
from penstock.replication import election
from penstock.replication.election import ABSENT, Standing
from penstock.replication.row import NO_NODE, Change, View


class Policy(msgspec.Struct):
    """Defaults for topics that do not set them, and limits on simultaneous changes. Operators may
    change ``topics_in_sync_min`` at run time; the manager then checks all partitions again."""

    replication_factor: int = 3
    in_sync_min: int = 2
    topics_in_sync_min: int | None = None  # ``in_sync_min`` of topics that are not internal
    is_balancing: bool = True  # whether to move partitions and leaders for balance
    moves_max: int = 16  # moves at a time, in the whole cluster
    moves_per_pair_max: int = 1  # moves from one node to one other node
    # Missing replicas are a risk, so repairs may use more of the network than moves.
    repairs_per_pair_max: int = 8
    # A change of leader delays clients briefly, so not all leaders change at once for balance.
    leader_changes_max: int = 50


class DecisionKind(StrEnum):
    CREATED = "created"
    ELECTED = "elected"  # the old leader was gone
    RECOVERED = "recovered"  # no in-sync replica was intact; the longest log leads
    HANDED_OVER = "handed_over"  # the leader is about to stop, or the partition moves
    PREFERRED = "preferred"  # the first replica leads again
    BEGUN = "begun"  # replicas were added
    FINISHED = "finished"  # replicas that are no longer needed were removed
    ORDERED = "ordered"  # same replicas, another one first
    SETTINGS = "settings"
    DELETED = "deleted"
    FULFILLED = "fulfilled"  # a placement request is done or not needed


class Decision(NamedTuple):
    """A change of a partition. It is written only if all versions named in it are current."""

    key: PartitionKey
    kind: DecisionKind
    version: int  # version of the row, 0 if there is no row
    change: Change | None = None  # None if the row is unchanged or deleted
    is_row_dropped: bool = False
    request: tuple[int, ...] | None = None  # new placement request to write
    is_request_dropped: bool = False
    request_version: int | None = None  # compared unless None; 0 if there is no placement request


class Ask(NamedTuple):
    """Nodes that must report the end offset of their log before a decision is possible."""

    key: PartitionKey
    nodes: tuple[int, ...]


Found: TypeAlias = Decision | Ask | None


class Topics(Protocol):
    def find_id(self, topic_id: str) -> Topic | None: ...

    def tombstone(self, topic_id: str) -> Topic | None: ...


Standings = Callable[[PartitionKey, View], Mapping[int, Standing]]


class Wanted(NamedTuple):
    replicas: int
    in_sync_min: int


def wanted(topic: Topic, policy: Policy, index: int | None = None) -> Wanted:
    factor = factor_of(topic, index, policy.replication_factor)
    in_sync_min = policy.in_sync_min
    if policy.topics_in_sync_min is not None and not is_internal(topic.name):
        in_sync_min = policy.topics_in_sync_min
    return Wanted(factor, in_sync_min_of(topic, factor, in_sync_min))


def due(
    state: ClusterState, key: PartitionKey, topics: Topics, policy: Policy, standings: Standings
) -> Found:
    """Return the next decision for this partition, or None if nothing can be done now."""
    view = state.rows.get(key)
    if topics.tombstone(key.topic_id) is not None:
        return _deletion(state, key, view)
    topic = topics.find_id(key.topic_id)
    if view is None:
        return _creation(state, key, topic, policy)
    # A row without a topic or a tombstone is kept, because the catalog may be out of date.
    return (
        _leader(state, key, view, standings)
        or _move(state, key, view)
        or _settings(key, view, topic, policy)
    )


def _creation(state: ClusterState, key: PartitionKey, topic: Topic | None, policy: Policy) -> Found:
    if topic is None or topic.is_share or not 0 <= key.index < topic.partition_count:
        return None
    wants = wanted(topic, policy, key.index)
    replicas = choose(state.hosts_for_new, state.loads, key.topic_id, count=wants.replicas)
    if not replicas:
        state.waiting[key] = None
        return None
    change = election.create(replicas, state.incarnations, in_sync_min=wants.in_sync_min)
    return Decision(key, DecisionKind.CREATED, ABSENT, change)


def _deletion(state: ClusterState, key: PartitionKey, view: View | None) -> Decision | None:
    has_row, has_request = view is not None, key in state.requests
    if not has_row and not has_request:
        return None
    version, asked = ABSENT if view is None else view.version, _version(state, key)
    dropped = (None, has_row, None, has_request)
    return Decision(key, DecisionKind.DELETED, version, *dropped, request_version=asked)


def _settings(key: PartitionKey, view: View, topic: Topic | None, policy: Policy) -> Found:
    if topic is None:
        return None
    in_sync_min = wanted(topic, policy, key.index).in_sync_min
    if view.row.in_sync_min == in_sync_min:
        return None
    row = msgspec.structs.replace(view.row, in_sync_min=in_sync_min)
    return Decision(key, DecisionKind.SETTINGS, view.version, Change(view.version, row))


def _leader(state: ClusterState, key: PartitionKey, view: View, standings: Standings) -> Found:
    row = view.row
    if not state.is_led(row):
        change = _election(state, key, view)
        if change is not None:
            return Decision(key, DecisionKind.ELECTED, view.version, change)
        return _recovery(state, key, view, standings)
    change = _election(state, key, view) if row.leader in state.avoided else None
    if change is None or change.row.leader in state.avoided:
        return None
    return Decision(key, DecisionKind.HANDED_OVER, view.version, change)


def _election(state: ClusterState, key: PartitionKey, view: View) -> Change | None:
    """Elect a leader. Avoid nodes that drain or stop, and replicas that a move will remove."""
    avoided = state.avoided
    request = state.requests.get(key)
    if request is not None:
        replicas = frozenset(view.row.replicas)
        for good in (request.replicas[:1], request.replicas):
            bad = avoided | replicas.difference(good)
            change = election.elect(view, state.incarnations, avoiding=bad)
            if change is not None and change.row.leader not in bad:
                return change
    return election.elect(view, state.incarnations, avoiding=avoided)


def _recovery(state: ClusterState, key: PartitionKey, view: View, standings: Standings) -> Found:
    """Elect the replica with the longest log, because no intact replica is alive."""
    members = view.row.in_sync
    if not all(node in state.incarnations for node in members):
        return None
    known = standings(key, view)
    change = election.recover(view, state.incarnations, known)
    if change is not None:
        return Decision(key, DecisionKind.RECOVERED, view.version, change)
    return Ask(key, tuple(node for node in sorted(members) if node not in known))


def _move(state: ClusterState, key: PartitionKey, view: View) -> Decision | None:
    """Return the next step of a move whose new replicas were added. Once they are in sync, the
    first of them becomes leader; then the old replicas and the placement request are removed."""
    request = state.requests.get(key)
    if request is None:
        return None
    row, target = view.row, frozenset(request.replicas)
    ended = Decision(key, DecisionKind.FULFILLED, view.version, is_request_dropped=True)
    ended = ended._replace(request_version=request.version)
    if row.replicas == request.replicas:
        return ended
    if not target <= row.whole:
        return None
    first = request.replicas[0]
    if row.leader != first:
        change = _election(state, key, view)
        chosen = NO_NODE if change is None else change.row.leader
        if chosen == first or (chosen in target and row.leader not in target):
            return Decision(key, DecisionKind.HANDED_OVER, view.version, change)
    change = election.place(view, request.replicas)
    return None if change is None else ended._replace(kind=DecisionKind.FINISHED, change=change)


# ── The whole cluster ────────────────────────────────────────────────────────────────────────

Targets = Mapping[PartitionKey, tuple[int, ...]]


class Situation(NamedTuple):
    partitions: Mapping[PartitionKey, Placed]
    hosts: Sequence[Host]
    draining: frozenset[int]
    policy: Policy


def placed(
    state: ClusterState, keys: Iterable[PartitionKey], topics: Topics, policy: Policy
) -> dict[PartitionKey, Placed]:
    """Return the planner's view of these partitions. A moving partition counts as already moved. A
    partition that is not fully in sync is not moved for balance. If a row changes later,
    ``beginnings`` does not start a move that was planned with the old row."""
    partitions = {}
    for key in keys:
        view, request = state.rows.get(key), state.requests.get(key)
        if view is None or topics.tombstone(key.topic_id) is not None:
            continue
        row, whole = view.row, view.row.whole
        if request is not None:
            # A move to fewer replicas than ``in_sync_min`` could not end, so a replica is added.
            count, has = max(len(request.replicas), row.in_sync_min), frozenset(row.replicas)
            partitions[key] = Placed(request.replicas, count, is_fixed=True, has=has)
            continue
        topic = topics.find_id(key.topic_id)
        count = len(row.replicas) if topic is None else wanted(topic, policy, key.index).replicas
        weak = frozenset(n for n in row.replicas if n not in whole or n not in state.nodes)
        is_fixed = bool(weak) or (topic is not None and is_manual(topic))
        partitions[key] = Placed(row.replicas, count, is_fixed=is_fixed, weak=weak)
    return partitions


def targets(now: Situation) -> Targets:
    """Plan moves and return the new replicas of partitions to move, necessary moves first."""
    return plan(
        now.partitions,
        now.hosts,
        draining=now.draining,
        is_balancing=now.policy.is_balancing,
        # Plan more moves than may begin at once, because limits will block some of them.
        steps_max=4 * max(now.policy.moves_max, now.policy.leader_changes_max),
    )


def beginnings(
    state: ClusterState, now: Situation, planned: Targets, policy: Policy
) -> list[Decision]:
    """Return decisions that start requested and planned moves, as many as the limits permit."""
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
        # All target replicas exist; the placement request removes the others.
        begun = Decision(key, DecisionKind.BEGUN, view.version, request=target)
        return begun._replace(request_version=_version(state, key))
    if room.take_order():
        ordered = msgspec.structs.replace(row, replicas=target)
        return Decision(key, DecisionKind.ORDERED, view.version, Change(view.version, ordered))
    return None


def _begin(
    state: ClusterState, key: PartitionKey, view: View, target: tuple[int, ...], room: "_Room"
) -> Decision | None:
    """Return the decision that starts a move, or None if the move cannot start now."""
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
    # An equal request is not replaced, because it may contain the original replicas.
    is_same = request is not None and request.replicas == target
    asked = None if is_same else target
    return begun._replace(request_version=_version(state, key), request=asked)


def _version(state: ClusterState, key: PartitionKey) -> int:
    request = state.requests.get(key)
    return ABSENT if request is None else request.version


class _Room:
    def __init__(self, state: ClusterState, policy: Policy) -> None:
        self._policy = policy
        self._pairs: Counter[tuple[int, int]] = Counter()
        self._moves = 0
        self._orders = 0
        for key in state.behind:
            row = state.rows[key].row
            # A node that is not alive copies nothing, so it does not count.
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
    """Return decisions that make the first replica the leader, where it could lead but does not."""
    found: list[Decision] = []
    for key in state.unpreferred:
        if len(found) >= count_max:
            break
        view = state.rows[key]
        first = view.row.replicas[0]
        # Moves end with an election, and ``due`` elects leaders of leaderless partitions.
        if first in state.avoided or key in state.requests or not state.is_led(view.row):
            continue
        change = election.elect(view, state.incarnations)
        if change is not None and change.row.leader == first:
            found.append(Decision(key, DecisionKind.PREFERRED, view.version, change))
    return found
