"""What is due for a partition now: to be created, to get a leader, to finish a move, to be
forgotten. Pure, and one partition at a time: the fall of a node costs what it led, not what there
is.

Each decision names everything it counts on: the version of the row, the registrations of nodes, the
version of a wish. The store carries it out if all of that is still so, and otherwise nothing has
happened. So it does not matter how old the knowledge was, nor how many managers believe to be the
one (R1, R3).

Nobody leads who may lack something committed. The only way around that is an operator's own word,
in ``wishes.py``. Which moves are begun, and when, is decided in ``moving.py``.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from penstock.manager.known import Known
from penstock.manager.placement import choose
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.names import is_internal
from penstock.model.replication import factor_of, in_sync_min_of
from penstock.model.topic import Topic
from penstock.replication import election
from penstock.replication.election import ABSENT, Standing
from penstock.replication.row import NOBODY, Change, View


class Policy(msgspec.Struct):
    """What holds for topics that say nothing of it, and how much may happen at a time. Operators
    may change ``topics_in_sync_min`` while the cluster runs; the manager is told to look again."""

    replication_factor: int = 3
    in_sync_min: int = 2
    topics_in_sync_min: int | None = None  # of topics that are not the nodes' own; None: the same
    is_balancing: bool = True  # moves partitions when nodes come, and hands leaders back
    moves_max: int = 16  # at a time, in the whole cluster
    moves_per_pair_max: int = 1  # copied from one node to one other
    # Copies that are missing are a danger, moves are not: they may take more of the network.
    repairs_per_pair_max: int = 8
    # Each change of a leader is a short wait for its clients: not all of them at once for order's
    # sake alone.
    leader_changes_max: int = 50


class Why(StrEnum):
    CREATED = "created"
    ELECTED = "elected"  # the leader was gone
    RECOVERED = "recovered"  # everybody in sync had lost something; the furthest leads
    HANDED_OVER = "handed_over"  # the leader is about to stop, or the partition to move
    PREFERRED = "preferred"  # the first replica leads again
    BEGUN = "begun"  # replicas were added
    FINISHED = "finished"  # those that are not wanted any more were dropped
    ORDERED = "ordered"  # the same replicas, another one first
    SETTINGS = "settings"
    DELETED = "deleted"
    FULFILLED = "fulfilled"  # a wish, or it has become pointless


class Decision(NamedTuple):
    """What to change, and what has to be so still: the row's version, the registrations in
    ``change``, and the version of the wish where one matters."""

    key: PartitionKey
    why: Why
    version: int  # of the row; 0: there is none
    change: Change | None = None  # None: the row stays as it is, or goes
    is_row_dropped: bool = False
    wish: tuple[int, ...] | None = None  # to be written down: where it shall be
    is_wish_dropped: bool = False
    wish_version: int | None = None  # compared unless None; 0: there is none


class Ask(NamedTuple):
    """Before anything can be decided these nodes have to say how far their logs go (R6)."""

    key: PartitionKey
    nodes: tuple[int, ...]


class Topics(Protocol):
    """The part of the catalog that matters here."""

    def find_id(self, topic_id: str) -> Topic | None: ...

    def tombstone(self, topic_id: str) -> Topic | None: ...


Standings = Callable[[PartitionKey, View], Mapping[int, Standing]]


class Wanted(NamedTuple):
    replicas: int
    in_sync_min: int


def wanted(topic: Topic, policy: Policy, index: int | None = None) -> Wanted:
    """As its owner says of this partition, else as the cluster does."""
    factor = factor_of(topic, index, policy.replication_factor)
    in_sync_min = policy.in_sync_min
    if policy.topics_in_sync_min is not None and not is_internal(topic.name):
        in_sync_min = policy.topics_in_sync_min
    return Wanted(factor, in_sync_min_of(topic, factor, in_sync_min))


def due(
    known: Known, key: PartitionKey, topics: Topics, policy: Policy, standings: Standings
) -> Decision | Ask | None:
    """The next thing to do for this partition; None when there is nothing, or nothing yet."""
    view = known.rows.get(key)
    if topics.tombstone(key.topic_id) is not None:
        return _deletion(known, key, view)
    topic = topics.find_id(key.topic_id)
    if view is None:
        return _creation(known, key, topic, policy)
    # A row without a topic and without a tombstone is a catalog that is behind: it is kept going.
    return (
        _leader(known, key, view, standings)
        or _move(known, key, view)
        or _settings(key, view, topic, policy)
    )


# ── Coming and going ─────────────────────────────────────────────────────────────────────────


def _creation(
    known: Known, key: PartitionKey, topic: Topic | None, policy: Policy
) -> Decision | None:
    if topic is None or topic.is_share or not 0 <= key.index < topic.partition_count:
        return None
    wants = wanted(topic, policy, key.index)
    replicas = choose(known.hosts_for_new, known.loads, key.topic_id, count=wants.replicas)
    if not replicas:
        known.waiting[key] = None
        return None
    change = election.create(replicas, known.incarnations, in_sync_min=wants.in_sync_min)
    return Decision(key, Why.CREATED, ABSENT, change)


def _deletion(known: Known, key: PartitionKey, view: View | None) -> Decision | None:
    wish = known.wishes.get(key)
    if view is None and wish is None:
        return None
    return Decision(
        key,
        Why.DELETED,
        ABSENT if view is None else view.version,
        is_row_dropped=view is not None,
        is_wish_dropped=wish is not None,
        wish_version=ABSENT if wish is None else wish.version,
    )


def _settings(
    key: PartitionKey, view: View, topic: Topic | None, policy: Policy
) -> Decision | None:
    if topic is None:
        return None
    in_sync_min = wanted(topic, policy, key.index).in_sync_min
    if view.row.in_sync_min == in_sync_min:
        return None
    row = msgspec.structs.replace(view.row, in_sync_min=in_sync_min)
    return Decision(key, Why.SETTINGS, view.version, Change(view.version, row))


# ── Leaders ──────────────────────────────────────────────────────────────────────────────────


def _leader(
    known: Known, key: PartitionKey, view: View, standings: Standings
) -> Decision | Ask | None:
    row = view.row
    if not known.is_led(row):
        change = _election(known, key, view)
        if change is not None:
            return Decision(key, Why.ELECTED, view.version, change)
        return _recovery(known, key, view, standings)
    if row.leader in known.avoided:
        change = _election(known, key, view)
        if change is not None and change.row.leader not in known.avoided:
            return Decision(key, Why.HANDED_OVER, view.version, change)
    return None


def _election(known: Known, key: PartitionKey, view: View) -> Change | None:
    """Rather one that is not about to stop, and when the partition moves rather the one that shall
    lead it there, or at least one that stays."""
    avoided = known.avoided
    wish = known.wishes.get(key)
    if wish is not None:
        replicas = frozenset(view.row.replicas)
        for good in (wish.replicas[:1], wish.replicas):
            bad = avoided | replicas.difference(good)
            change = election.elect(view, known.incarnations, avoiding=bad)
            if change is not None and change.row.leader not in bad:
                return change
    return election.elect(view, known.incarnations, avoiding=avoided)


def _recovery(
    known: Known, key: PartitionKey, view: View, standings: Standings
) -> Decision | Ask | None:
    """Whoever is whole would have been elected, so it is away or there is none."""
    members = view.row.in_sync
    if not all(node in known.incarnations for node in members):
        return None
    said = standings(key, view)
    change = election.recover(view, known.incarnations, said)
    if change is not None:
        return Decision(key, Why.RECOVERED, view.version, change)
    return Ask(key, tuple(node for node in sorted(members) if node not in said))


# ── Moves that have begun ────────────────────────────────────────────────────────────────────


def _move(known: Known, key: PartitionKey, view: View) -> Decision | None:
    """The next step of one that has all its new replicas: when they are in sync, the first of them
    leads if it can, and then those that are left over go together with the wish (R23)."""
    wish = known.wishes.get(key)
    if wish is None:
        return None
    row, target = view.row, frozenset(wish.replicas)
    ended = Decision(
        key, Why.FULFILLED, view.version, is_wish_dropped=True, wish_version=wish.version
    )
    if row.replicas == wish.replicas:
        return ended
    if not target <= row.whole:
        return None
    first = wish.replicas[0]
    if row.leader != first:
        change = _election(known, key, view)
        chosen = NOBODY if change is None else change.row.leader
        if chosen == first or (chosen in target and row.leader not in target):
            return Decision(key, Why.HANDED_OVER, view.version, change)
    change = election.place(view, wish.replicas)
    return None if change is None else ended._replace(why=Why.FINISHED, change=change)
