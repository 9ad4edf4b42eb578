"""The model of scale: what a cluster of so many nodes and queues costs, term by term. Pure.

``Size`` is what an operator chooses. Counts follow from it and from bounds that are in the code
(imported from there, so that a change of one changes the model); ``tests/unit/manager`` holds them
against the real manager. ``Constants`` are bytes and microseconds that were measured, and turn
counts into memory and time. ``docs/scaling.md`` says what each term means and what bounds it."""

import math
from typing import Final

import msgspec

from penstock.broker.replicas.fetching import WAIT_MS
from penstock.manager.active_manager import KEYS_PER_ROUND, PLAN_SHARE, Times
from penstock.manager.decision_writer import DECISIONS_PER_TXN_MAX
from penstock.manager.decisions import Policy
from penstock.membership.registration import BEAT_SECONDS, BEATS, TTL_MS
from penstock.metadata.store import CHANGES_PER_TXN_MAX
from penstock.node.process.resources import FILES_PER_PARTITION

STORE_QUOTA_BYTES: Final = 8 * 2**30  # the largest that etcd's makers recommend
# Prefixes that each node of a cluster follows, each with a stream of its own: nodes, rows, topics,
# tombstones, who manages, the level, frontends, moves, tenants, users, keys, scrams, data keys.
WATCHES_PER_NODE: Final = 13
PULSES_PER_SECOND: Final = 1.0  # of each stream on which nothing happens
LEASE_USED_SECONDS: Final = TTL_MS * 0.8 / 1_000  # a loop that is held up for longer loses it


class Size(msgspec.Struct, frozen=True):
    nodes: int
    queues: int
    partitions_per_queue: int = 1
    replicas: int = 3

    @property
    def partitions(self) -> int:
        return self.queues * self.partitions_per_queue

    @property
    def copies(self) -> int:
        """Of one partition: there are no more than nodes."""
        return min(self.replicas, self.nodes)

    @property
    def led(self) -> float:
        """Partitions that a node leads."""
        return self.partitions / self.nodes

    @property
    def held(self) -> float:
        """Replicas on a node, led or followed."""
        return self.copies * self.partitions / self.nodes

    @property
    def title(self) -> str:
        return f"{self.nodes:,} × {self.queues:,}"


SIZES: Final = (Size(3, 1_000), Size(30, 30_000), Size(1_000, 1_000_000))
CELL: Final = Size(100, 100_000)  # one of the clusters that the largest is better divided into


# ── Counts ───────────────────────────────────────────────────────────────────────────────────


def distinct(draws: float, of: int) -> float:
    """How many different ones so many draws are expected to name."""
    return of * (1.0 - (1.0 - 1.0 / of) ** draws) if of else 0.0


def decisions_per_txn(nodes: int, *, named: int, is_dealt: bool = False) -> int:
    """How many decisions go into one transaction, each of which counts on so many registrations: a
    transaction compares two keys for each, every registration once, and the manager's entry. New
    partitions are dealt out, so that they name every node before any of them twice."""
    for count in range(DECISIONS_PER_TXN_MAX, 1, -1):
        draws = count * named
        different = min(draws, nodes) if is_dealt else distinct(draws, nodes)
        if 2 * count + different + 1 <= CHANGES_PER_TXN_MAX:
            return count
    return 1


def decision_txns(decisions: float, nodes: int, *, named: int, is_dealt: bool = False) -> float:
    return decisions / decisions_per_txn(nodes, named=named, is_dealt=is_dealt)


def elections(size: Size) -> float:
    """Rows that the manager changes when a node is lost."""
    return size.led if size.copies > 1 else 0.0


def shrinks(size: Size) -> float:
    """Rows that leaders change then, one transaction each, to count the lost node out."""
    return size.held if size.copies > 1 else 0.0


def loss_changes(size: Size) -> float:
    """Rows changed because a node went; as many again when it is back (taken in, handed back)."""
    return elections(size) + shrinks(size)


def loss_txns(size: Size) -> float:
    return decision_txns(elections(size), size.nodes - 1, named=1) + shrinks(size)


def moves_of_new_node(size: Size) -> float:
    """Partitions that move to a node that is added."""
    return size.copies * size.partitions / (size.nodes + 1)


def moves_of_drain(size: Size) -> float:
    return size.held


def leaders_asked(size: Size) -> float:
    """Nodes that one node follows, so replica fetches that it always has waiting."""
    followed = size.held - size.led
    return distinct(followed, size.nodes - 1) if size.nodes > 1 else 0.0


def fetches_per_second(size: Size) -> float:
    """Calls of one node without any traffic; it answers as many."""
    return leaders_asked(size) * 1_000 / WAIT_MS


def connections(size: Size) -> float:
    """Sockets between a node and the others, both ways: one for followers, one for calls that are
    passed on and one for those that wait, if requests come in everywhere."""
    others = size.nodes - 1
    return 2 * (leaders_asked(size) + 2 * others)


def keep_alives_per_second(size: Size) -> float:
    return size.nodes * BEATS * 1_000 / TTL_MS


def frontend_beats_per_second(size: Size) -> float:
    """Writes; every node hears of each."""
    return size.nodes / BEAT_SECONDS


def watch_streams(size: Size) -> int:
    return size.nodes * WATCHES_PER_NODE


def topics_walked_per_second(size: Size) -> float:
    """By each node, which tells once a minute what those hold that it leads, and knows that of each
    only by looking."""
    return size.queues / 60


def files(size: Size) -> float:
    return size.held * FILES_PER_PARTITION + connections(size)


def files_demanded(size: Size) -> int:
    """The limit that a node asks for at its start: it counts the partitions of the cluster."""
    return size.partitions * FILES_PER_PARTITION


def slow_round_seconds(size: Size) -> float:
    return math.ceil(size.partitions / KEYS_PER_ROUND) * Times().round_ms / 1_000


# ── Bytes and time ───────────────────────────────────────────────────────────────────────────


class Constants(msgspec.Struct, kw_only=True):
    """Measured. Times are of a processor, in microseconds, unless they say otherwise."""

    # Bytes
    row_bytes: float  # key and value
    topic_bytes: float
    node_bytes: float
    store_overhead_bytes: float = 0.0  # of an entry in etcd's file, beside key and value
    event_overhead_bytes: float = 0.0  # of a change on its way to a watch, beside key and value
    view_row_bytes: float  # in memory
    catalog_topic_bytes: float
    known_row_bytes: float
    mirror_topic_bytes: float
    replica_bytes: float = 0.0

    # A node
    fill_row_us: float
    fill_topic_us: float
    take_row_us: float  # one change that a watch brings
    refresh_row_us: float  # in one piece, in which nothing else happens on that node
    collect_us: float  # a full round of the cycle collector, by row and topic

    # The manager
    see_row_us: float
    due_us: float  # an election
    choose_us_per_node: float  # a new partition's place, by nodes
    situation_row_us: float
    plan_row_us: float
    plan_node_us: float

    # The store: of the processor of whoever asks, and of etcd's
    list_entry_us: float = 0.0
    list_entry_store_us: float = 0.0
    txn_us: float = 0.0  # one row
    txn_store_us: float = 0.0
    decisions_txn_us: float = 0.0  # as many rows as the manager puts together
    decisions_txn_store_us: float = 0.0
    txn_per_s: float = 0.0  # by the clock of the machine that measured
    decisions_txn_per_s: float = 0.0
    told_us: float = 0.0  # of etcd's processor, to tell one watch of one change
    pulse_us: float = 0.0  # of etcd's processor, for a sign of life
    keep_alive_us: float = 0.0  # the same

    # Between nodes
    fetch_us: float = 0.0  # a waiting replica fetch, asking end and answering end together
    fetch_ask_us: float = 0.0  # each partition in it


class Term(msgspec.Struct, frozen=True):
    name: str
    unit: str
    value: float
    limit: float | None = None  # beyond it the term does not hold what the cluster promises
    limit_text: str = ""

    @property
    def is_over(self) -> bool:
        return self.limit is not None and self.value > self.limit


def store_bytes(size: Size, c: Constants) -> float:
    """What etcd keeps, without history: it keeps every change until it compacts."""
    over = c.store_overhead_bytes
    return (
        size.queues * (c.topic_bytes + over)
        + size.partitions * (c.row_bytes + over)
        + size.nodes * (c.node_bytes + over)
    )


def node_memory_bytes(size: Size, c: Constants) -> float:
    return (
        size.queues * c.catalog_topic_bytes
        + size.partitions * c.view_row_bytes
        + size.held * c.replica_bytes
    )


def start_seconds(size: Size, c: Constants) -> float:
    """Reading everything: topics once, rows three times (to know them, to find one's own, and as
    they are after the registration)."""
    read = size.queues + 3 * size.partitions
    listed = read * (c.list_entry_us + c.list_entry_store_us)
    made = size.queues * c.fill_topic_us
    made += size.partitions * (c.fill_row_us + 2 * c.refresh_row_us)
    return (listed + made) / 1e6


def held_up_seconds(size: Size, c: Constants) -> float:
    """The longest time in which a node does nothing else: it takes all rows over in one piece,
    after it has registered."""
    return size.partitions * c.refresh_row_us / 1e6


def event_bytes(c: Constants) -> float:
    return c.row_bytes + c.event_overhead_bytes


def loss_bytes_per_node(size: Size, c: Constants) -> float:
    return loss_changes(size) * event_bytes(c)


def loss_bytes_of_store(size: Size, c: Constants) -> float:
    return loss_bytes_per_node(size, c) * size.nodes


def loss_told_seconds(size: Size, c: Constants) -> float:
    """Of etcd's processors, all members together, to tell all nodes."""
    return loss_changes(size) * size.nodes * c.told_us / 1e6


def election_seconds(size: Size, c: Constants) -> float:
    """From the moment the store has let the node go until all of its partitions have a leader in
    the store, and the manager has heard of it; what it takes the store to notice, a lease of six
    seconds, comes before. Many transactions are under way, so the slower of both ends counts."""
    looked_us = size.held * c.due_us + elections(size) * (c.take_row_us + c.see_row_us)
    txns = decision_txns(elections(size), size.nodes - 1, named=1)
    return (looked_us + txns * max(c.decisions_txn_us, c.decisions_txn_store_us)) / 1e6


def shrink_seconds(size: Size, c: Constants) -> float:
    """The same for counting it out. All other nodes do that together, so the store is the end that
    counts; and whoever leads much of what the lost node held has to ask for each of those."""
    most = shrinks(size) / max(1.0, distinct(shrinks(size), size.nodes - 1))
    return max(shrinks(size) * c.txn_store_us, most * c.txn_us) / 1e6


def plan_seconds(size: Size, c: Constants) -> float:
    rows = size.partitions * (c.situation_row_us + c.plan_row_us)
    return (rows + size.nodes * c.plan_node_us) / 1e6


def plan_period_seconds(size: Size, c: Constants) -> float:
    """Between two plans, while there is always something to do."""
    took = plan_seconds(size, c)
    return took + max(Times().plan_ms_min / 1_000, took * PLAN_SHARE)


def balance_seconds(size: Size, c: Constants) -> float:
    """Until a new node has its share, if copying took no time."""
    return moves_of_new_node(size) / Policy().moves_max * plan_period_seconds(size, c)


def hand_back_seconds(size: Size, c: Constants) -> float:
    """Until a node that was restarted leads what it led."""
    return elections(size) / Policy().leader_changes_max * plan_period_seconds(size, c)


def creations_per_second(size: Size, c: Constants) -> float:
    """That the manager's one core is good for."""
    each_us = c.choose_us_per_node * size.nodes + c.see_row_us + c.take_row_us + c.due_us
    return 1e6 / each_us


def idle_fetch_core(size: Size, c: Constants) -> float:
    """The part of one core that a node spends on replica fetches without any traffic."""
    followed = (size.held - size.led) * 1_000 / WAIT_MS
    return (fetches_per_second(size) * c.fetch_us + followed * c.fetch_ask_us) / 1e6


def store_core(size: Size, c: Constants) -> float:
    """The cores that etcd spends on a cluster in which nothing happens."""
    told = frontend_beats_per_second(size) * size.nodes * c.told_us
    pulses = watch_streams(size) * PULSES_PER_SECOND * c.pulse_us
    return (told + pulses + keep_alives_per_second(size) * c.keep_alive_us) / 1e6


def collect_seconds(size: Size, c: Constants) -> float:
    return (size.partitions + size.queues) * c.collect_us / 1e6
