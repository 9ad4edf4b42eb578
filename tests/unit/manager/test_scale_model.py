"""What the model of scale says of counts, held against the real manager: at ten and a hundred
nodes, and at a thousand in a full run. And that nothing a manager does grows faster than what there
is, counted in calls and not in time."""

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from types import FrameType
from typing import Any

import msgspec
import pytest
from benchmarks.scale import model, population
from benchmarks.scale.memory_store import MemoryStore
from benchmarks.scale.model import Size
from tests.harness.full import FULL
from tests.unit.manager.cluster import situation, until

from penstock.manager import decisions as deciding
from penstock.manager.active_manager import KEYS_PER_SLICE, Times
from penstock.manager.cluster_state import ClusterState
from penstock.manager.decisions import Decision, DecisionKind, Policy, due
from penstock.manager.in_cluster import Manager
from penstock.manager.placement import Host, Placed, plan
from penstock.membership.cluster_view import ClusterView
from penstock.metadata.cluster_entries import PartitionKey, encode_entry, partition_key
from penstock.metadata.topics.catalog import StoredCatalog
from penstock.model.errors import Overloaded
from penstock.model.topic import Topic
from penstock.replication.election import Standing
from penstock.replication.epochs import EpochHistory
from penstock.replication.leader import Leader
from penstock.replication.replica import Replica
from penstock.replication.row import View
from penstock.telemetry.clock import SystemClock

SIZES = (Size(10, 1_000), Size(100, 10_000), Size(1_000, 50_000))[: 3 if FULL else 2]
QUIET = Policy(is_balancing=False)
QUICK = Times(settle_ms=20, plan_ms_min=10, refused_ms=20, failed_ms=30, round_ms=60_000)
LOST = 7
NEW_PARTITIONS = 240

at_every_size = pytest.mark.parametrize("size", SIZES, ids=lambda size: size.title)
pytestmark = [pytest.mark.full_set, pytest.mark.slow]


async def nobody_answers(
    _node: int, _keys: Sequence[PartitionKey]
) -> Mapping[PartitionKey, Standing]:
    raise Overloaded("there are no brokers here")


class Scaled:
    """A cluster of that size in a store, seen and managed by one of its nodes."""

    def __init__(self, store: MemoryStore, registered: Mapping[int, tuple[int, int]]) -> None:
        self.store = store
        self.registered = registered
        self.view = ClusterView(store)
        self.catalog = StoredCatalog(store)
        self.manager = Manager(
            store,
            1,
            view=self.view,
            catalog=self.catalog,
            lease=lambda: registered[1][0],
            ask_standings=nobody_answers,
            clock=SystemClock(),
            policy=QUIET,
            times=QUICK,
        )

    async def start(self) -> None:
        await self.catalog.start()
        await self.view.start()
        await self.manager.start()
        await until(self._is_at_rest)

    def _is_at_rest(self) -> bool:
        if self.manager.active is None:
            return False
        state = self.manager.active.state
        return len(state.rows) == len(self.view.rows) and not state.due

    async def stop(self) -> None:
        await self.manager.stop()
        await self.view.stop()
        await self.catalog.stop()
        await self.store.close()

    async def lose(self, node: int) -> list[PartitionKey]:
        """Returns what it held, when everything has a leader again."""
        held = [key for key, view in self.view.rows.items() if node in view.row.replicas]
        await self.store.revoke(self.registered[node][0])
        await until(lambda: node not in self.view.nodes)
        await until(lambda: all(self.is_led(self.view.rows[key]) for key in held))
        elected = sum(self.view.rows[key].row.epoch == 2 for key in held)
        await until(lambda: self.manager.counts[DecisionKind.ELECTED] == elected)
        return held

    def is_led(self, view: View) -> bool:
        return self.view.incarnations.get(view.row.leader) == view.row.leader_incarnation

    async def count_out(self, node: int, held: Sequence[PartitionKey]) -> None:
        """What the leaders do then, by their own rules."""
        for key in held:
            view = self.view.rows[key]
            replica = Replica(
                view.row.leader,
                view.row.leader_incarnation,
                history=EpochHistory(),
                start_offset=0,
                end_offset=0,
                durable_offset=0,
                high_watermark=0,
            )
            change = Leader(replica, view, now_ms=0).propose(now_ms=0, gone=(node,))
            assert change is not None, "it is in sync and gone"
            await self.view.propose(key, change)


@asynccontextmanager
async def scaled(size: Size) -> AsyncIterator[Scaled]:
    store = MemoryStore()
    cluster = Scaled(store, await population.fill(store, size))
    await cluster.start()
    store.begin_count()
    try:
        yield cluster
    finally:
        await cluster.stop()


@cache
def placed(size: Size) -> Mapping[PartitionKey, Placed]:
    places = population.places(size)
    return {
        key: Placed(place, size.copies)
        for key, place in zip(population.keys(size), places, strict=True)
    }


def hosts(size: Size, *, more: int = 0) -> list[Host]:
    return [Host(node) for node in range(1, size.nodes + 1 + more)]


def known_of(size: Size) -> ClusterState:
    state = ClusterState()
    nodes = range(1, size.nodes + 1)
    state.see_nodes({node: population.node_entry(node) for node in nodes}, {n: n for n in nodes})
    for key, one in placed(size).items():
        state.see_row(key, View(1, 1, population.row(one.replicas, one.replicas[0])))
    state.due.clear()
    return state


class Queues:
    """Implements the part of a catalog that decisions ask."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    def find_id(self, _topic_id: str) -> Topic:
        return self._topic

    def tombstone(self, _topic_id: str) -> None:
        return None


QUEUES = Queues(population.queue(0))


def calls_of(work: Callable[[], Any]) -> int:
    """How many functions are called by it, Python's own among them: the same in every run."""
    count = 0

    def called(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


# ── Counts ───────────────────────────────────────────────────────────────────────────────────


@at_every_size
class TestANodeThatIsLost:
    async def test_costs_what_it_led_and_held_and_nothing_else(self, size: Size) -> None:
        async with scaled(size) as cluster:
            other = ClusterView(cluster.store)
            await other.start()
            cluster.store.begin_count()
            counts = cluster.store.counts
            held = await cluster.lose(LOST)
            elected = cluster.manager.counts[DecisionKind.ELECTED]
            assert elected == counts.changed == pytest.approx(model.elections(size), abs=3)
            txns = model.decision_txns(elected, size.nodes - 1, named=1)
            assert counts.txns == pytest.approx(txns, rel=0.15, abs=1)
            await cluster.count_out(LOST, held)
            assert len(held) == pytest.approx(model.shrinks(size), abs=1)
            assert counts.changed == elected + len(held)
            assert counts.txns == pytest.approx(model.loss_txns(size), rel=0.15, abs=2)
            assert not any(LOST in view.row.in_sync for view in cluster.view.rows.values())
            # Nobody read everything for it, and nobody was in another's way.
            assert (counts.lists, counts.refused) == (0, 0)
            # Each of two views hears of every row that changed, once, and of the node that went.
            newest = {key: cluster.view.rows[key].version for key in held}
            await until(lambda: all(other.rows[key].version == newest[key] for key in held))
            await until(lambda: counts.told >= 2 * (counts.changed + 1))
            await other.stop()
            assert counts.told == 2 * (counts.changed + 1)
            assert counts.changed_bytes / counts.changed == pytest.approx(
                sum(len(partition_key(key)) for key in held) / len(held)
                + sum(len(encode_entry(other.rows[key].row)) for key in held) / len(held),
                rel=0.03,
            )
            told = 2 * model.loss_changes(size) * counts.changed_bytes / counts.changed
            assert counts.told_bytes == pytest.approx(told, rel=0.05)

    def test_scatters_over_the_others(self, size: Size) -> None:
        state = known_of(size)
        nodes = {node: entry for node, entry in state.nodes.items() if node != LOST}
        state.see_nodes(nodes, {node: node for node in nodes})
        heirs: Counter[int] = Counter()
        for key in state.due:
            found = due(state, key, QUEUES, QUIET, lambda _key, _view: {})
            if isinstance(found, Decision) and found.change is not None:
                heirs[found.change.row.leader] += 1
        total = heirs.total()
        assert total == pytest.approx(size.led, abs=3)
        reached = model.distinct(total, size.nodes - 1)
        assert len(heirs) == pytest.approx(reached, rel=0.2, abs=1)
        mean = total / (size.nodes - 1)
        assert max(heirs.values()) <= mean + 5 * mean**0.5 + 3


@at_every_size
async def test_new_partitions_take_as_many_transactions_as_the_model_says(size: Size) -> None:
    async with scaled(size) as cluster:
        before = Counter(view.row.leader for view in cluster.view.rows.values())
        created = population.queue(size.queues, partitions=NEW_PARTITIONS)
        await cluster.catalog.create(created)
        rows = cluster.view.of_topic(created.topic_id)
        await until(lambda: len(cluster.view.of_topic(created.topic_id)) == NEW_PARTITIONS)
        rows = cluster.view.of_topic(created.topic_id)
        counts = cluster.store.counts
        txns = model.decision_txns(NEW_PARTITIONS, size.nodes, named=size.copies, is_dealt=True)
        assert counts.txns - 1 == pytest.approx(txns, rel=0.15, abs=1)
        assert counts.changed == NEW_PARTITIONS + 1
        assert counts.refused == 0
        row_bytes = sum(
            len(partition_key(PartitionKey(created.topic_id, at))) + len(encode_entry(view.row))
            for at, view in rows.items()
        )
        assert counts.changed_bytes == pytest.approx(row_bytes, rel=0.05)
        # Leaders of the new topic are on as many nodes as there are, or as it has partitions.
        led = Counter(view.row.leader for view in rows.values())
        assert max(led.values()) - min((led[node] for node in before), default=0) <= 2


@at_every_size
class TestMoves:
    def test_to_a_new_node_are_its_share(self, size: Size) -> None:
        partitions = placed(size)
        targets = plan(partitions, hosts(size, more=1))
        moved = [
            key for key, place in targets.items() if set(place) != set(partitions[key].replicas)
        ]
        assert len(moved) == pytest.approx(model.moves_of_new_node(size), abs=1)
        new = size.nodes + 1
        assert all(new in targets[key] for key in moved)
        led = Counter(targets.get(key, one.replicas)[0] for key, one in partitions.items())
        assert max(led.values()) - min(led.values()) <= 1

    def test_off_a_node_are_what_it_had(self, size: Size) -> None:
        partitions = placed(size)
        targets = plan(partitions, hosts(size), draining=frozenset({LOST}))
        moved = [
            key for key, place in targets.items() if set(place) != set(partitions[key].replicas)
        ]
        assert len(moved) == pytest.approx(model.moves_of_drain(size), abs=2)
        assert not any(LOST in place for place in targets.values())


@at_every_size
def test_a_node_follows_as_many_others_as_the_model_says(size: Size) -> None:
    leaders: dict[int, set[int]] = {}
    for place in population.places(size):
        for node in place[1:]:
            leaders.setdefault(node, set()).add(place[0])
    mean = sum(map(len, leaders.values())) / size.nodes
    assert mean == pytest.approx(model.leaders_asked(size), rel=0.03)


@at_every_size
def test_what_is_dealt_out_is_even(size: Size) -> None:
    replicas: Counter[int] = Counter()
    led: Counter[int] = Counter()
    for place in population.places(size):
        assert len(set(place)) == size.copies
        replicas.update(place)
        led[place[0]] += 1
    assert max(replicas.values()) - min(replicas.values()) <= 1
    assert max(led.values()) - min(led.values()) <= 3


# ── Growth ───────────────────────────────────────────────────────────────────────────────────


class TestCalls:
    def test_of_a_plan_grow_with_partitions_and_not_with_nodes(self) -> None:
        """Fifty times the partitions and a hundred times the nodes: fifty times the calls."""
        calls = {}
        for size in SIZES:
            partitions, open_hosts = placed(size), hosts(size)
            calls[size] = calls_of(partial(plan, partitions, open_hosts, steps_max=200))
        each = [count / size.partitions for size, count in calls.items()]
        assert max(each) < 1.6 * min(each), calls

    def test_of_a_plan_that_has_something_to_do_stay_in_proportion(self) -> None:
        """A new node: two hundred steps of each kind, each of which may look at every node."""
        calls = {}
        for size in SIZES:
            partitions, open_hosts = placed(size), hosts(size, more=1)
            calls[size] = calls_of(partial(plan, partitions, open_hosts, steps_max=200))
        steps = 200
        for size, count in calls.items():
            assert count < 25 * size.partitions + steps * 25 * size.nodes, calls

    @pytest.mark.parametrize("racks", [2, 3])
    def test_of_a_plan_with_racks_grow_no_faster(self, racks: int) -> None:
        """With two racks every partition has two replicas in one of them, for want of a third."""
        each = []
        for size in (Size(12, 600), Size(96, 2_400), Size(996, 4_980)):
            chance = random.Random(1)
            nodes = [list(range(first, size.nodes + 1, 3)) for first in (1, 2, 3)]
            partitions: dict[PartitionKey, Placed] = {}
            for at, key in enumerate(population.keys(size)):
                if at % len(nodes[0]) == 0:
                    for some in nodes:
                        chance.shuffle(some)
                place = [some[at % len(some)] for some in nodes]
                partitions[key] = Placed(tuple(place[at % 3 :] + place[: at % 3]), 3)
            racked = [Host(node, f"rack {node % 3 % racks}") for node in range(1, size.nodes + 1)]
            each.append(calls_of(partial(plan, partitions, racked, steps_max=200)) / size.queues)
        # Eighty times the nodes; up to two hundred steps of a plan look at every one of them.
        assert max(each) < 3 * min(each), each

    def test_for_a_lost_node_grow_with_what_it_held(self) -> None:
        each = []
        for size in SIZES:
            state = known_of(size)
            nodes = {node: entry for node, entry in state.nodes.items() if node != LOST}

            def lose(state: ClusterState = state, nodes: Mapping[int, Any] = nodes) -> None:
                state.see_nodes(nodes, {node: node for node in nodes})
                for key in state.due:
                    due(state, key, QUEUES, QUIET, lambda _key, _view: {})

            calls = calls_of(lose)
            each.append((calls - 6 * size.nodes) / size.held)
        assert max(each) < 1.5 * min(each), each

    def test_for_a_new_partition_grow_with_nodes_alone(self) -> None:
        each = []
        for size in SIZES:
            state = known_of(size)
            key = PartitionKey("new", 0)
            calls = calls_of(partial(due, state, key, QUEUES, QUIET, _no_standings))
            each.append(calls / size.nodes)
        assert each[-1] < 1.2 * each[0], each


def _no_standings(_key: PartitionKey, _view: View) -> Mapping[int, Standing]:
    return {}


# ── In parts ─────────────────────────────────────────────────────────────────────────────────


def test_a_situation_noted_in_parts_is_the_whole_one() -> None:
    state = known_of(SIZES[0])
    keys = list(state.rows)
    whole = situation(state, QUEUES, QUIET).partitions
    parts: dict[PartitionKey, Placed] = {}
    for start in range(0, len(keys), 7):
        parts.update(deciding.placed(state, keys[start : start + 7], QUEUES, QUIET))
    assert parts == whole
    gone = PartitionKey("gone meanwhile", 0)
    assert deciding.placed(state, [gone], QUEUES, QUIET) == {}


async def test_planning_lets_others_have_their_turns() -> None:
    size = Size(10, 5_000)
    async with scaled(size) as cluster:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(count())
        tenure = cluster.manager.active
        assert tenure is not None
        now = await tenure._situation()
        other.cancel()
        assert turns >= size.partitions // KEYS_PER_SLICE
        assert len(now.partitions) == size.partitions


async def test_what_changes_while_a_situation_is_noted_is_not_begun() -> None:
    """The part that was noted first is overtaken; nothing of it is acted upon."""
    state = known_of(Size(4, 8))
    keys = list(state.rows)
    partitions = deciding.placed(state, keys[:4], QUEUES, Policy())
    view = state.rows[keys[0]]
    others = tuple(reversed(view.row.replicas))
    state.see_row(keys[0], View(2, 2, msgspec.structs.replace(view.row, replicas=others)))
    partitions.update(deciding.placed(state, keys[4:], QUEUES, Policy()))
    now = deciding.Situation(partitions, state.hosts, state.draining, Policy())
    target = {keys[0]: tuple(n for n in range(1, 5) if n != view.row.replicas[1])}
    assert deciding.beginnings(state, now, target, Policy()) == []
