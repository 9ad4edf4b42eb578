"""What is decided, carried out by a store that is only a dictionary: whatever happens to nodes in
between, no rule is broken on the way, and once they are left in peace everything comes to rest."""

import random
from collections import Counter
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.manager.cluster import is_empty, is_safe_to_stop, situation, topic

from penstock.manager import decisions as deciding
from penstock.manager.cluster_state import ClusterState, Requested
from penstock.manager.decisions import Ask, Decision, DecisionKind, Policy, due, wanted
from penstock.manager.overview import overview
from penstock.metadata.cluster_entries import NodeEntry, PartitionKey
from penstock.model.topic import Topic
from penstock.replication.election import Standing
from penstock.replication.row import PartitionRow, View

KEY = PartitionKey("a", 0)
POLICY = Policy(replication_factor=3, in_sync_min=2)


class Topics:
    def __init__(self, *topics: Topic) -> None:
        self.there = {each.topic_id: each for each in topics}
        self.tombs: dict[str, Topic] = {}

    def find_id(self, topic_id: str) -> Topic | None:
        return self.there.get(topic_id)

    def tombstone(self, topic_id: str) -> Topic | None:
        return self.tombs.get(topic_id)

    def delete(self, topic_id: str) -> None:
        self.tombs[topic_id] = self.there.pop(topic_id)


def nobody_asked(_key: PartitionKey, _view: View) -> Mapping[int, Standing]:
    return {}


def alive(*nodes: int, leaving: int = 0) -> tuple[dict[int, NodeEntry], dict[int, int]]:
    entries = {node: NodeEntry(node, f"n{node}", "", is_leaving=node == leaving) for node in nodes}
    return entries, {node: 10 * node for node in nodes}


def known_of(row: PartitionRow | None, *nodes: int, leaving: int = 0) -> ClusterState:
    state = ClusterState()
    state.see_nodes(*alive(*nodes, leaving=leaving))
    if row is not None:
        state.see_row(KEY, View(7, 7, row))
    return state


def a_row(**changes: object) -> PartitionRow:
    row = PartitionRow(
        (1, 2, 3),
        frozenset({1, 2, 3}),
        leader=1,
        leader_incarnation=10,
        epoch=4,
        in_sync_min=2,
    )
    return msgspec.structs.replace(row, **changes)


def decided(state: ClusterState, topics: Topics | None = None) -> Decision | None:
    found = due(state, KEY, topics or Topics(topic("a", 1)), POLICY, nobody_asked)
    assert not isinstance(found, Ask)
    return found


class TestOnePartition:
    def test_that_is_well_needs_nothing(self) -> None:
        assert decided(known_of(a_row(), 1, 2, 3)) is None

    def test_is_created_with_everybody_counted_on(self) -> None:
        decision = decided(known_of(None, 1, 2, 3, 4))
        assert decision is not None
        assert decision.change is not None
        assert (decision.kind, decision.version) == (DecisionKind.CREATED, 0)
        row = decision.change.row
        assert decision.change.incarnations == {node: 10 * node for node in row.replicas}
        assert row.leader_incarnation == 10 * row.leader

    @pytest.mark.parametrize("replicas", [1, 3])
    @pytest.mark.parametrize(("partitions", "nodes"), [(4, 2), (7, 3), (2, 5), (64, 9)])
    def test_of_a_new_topic_is_one_of_those_that_all_nodes_lead_alike(
        self, partitions: int, nodes: int, replicas: int
    ) -> None:
        """Also where one node has been there for longer and leads everything else."""
        state = known_of(a_row(replicas=(1,), in_sync=frozenset({1})), *range(1, nodes + 1))
        topics = Topics(topic("a", 1), topic("new", partitions))
        policy = Policy(replication_factor=replicas, in_sync_min=1)
        led: Counter[int] = Counter()
        for index in range(partitions):
            key = PartitionKey("new", index)
            decision = due(state, key, topics, policy, nobody_asked)
            assert isinstance(decision, Decision)
            assert decision.change is not None
            row = decision.change.row
            led[row.leader] += 1
            if index % 2:
                state.launch(key, row.replicas)  # on its way
            else:
                state.see_row(key, View(8 + index, 8 + index, row))
        counts = [led[node] for node in range(1, nodes + 1)]
        assert max(counts) - min(counts) <= 1

    def test_waits_for_a_node_to_be_created_on(self) -> None:
        state = known_of(None)
        assert decided(state) is None
        state.due.clear()
        state.see_nodes(*alive(5))
        assert KEY in state.due
        assert decided(state) is not None

    def test_of_a_share_or_behind_the_last_one_is_not_created(self) -> None:
        share = msgspec.structs.replace(topic("a", 1), source_id="b")
        assert decided(known_of(None, 1), Topics(share)) is None
        state = known_of(None, 1)
        behind = PartitionKey("a", 1)
        assert due(state, behind, Topics(topic("a", 1)), POLICY, nobody_asked) is None

    def test_whose_leader_is_gone_is_led_by_the_next_R7(self) -> None:
        decision = decided(known_of(a_row(), 2, 3))
        assert decision is not None
        assert decision.change is not None
        assert decision.kind is DecisionKind.ELECTED
        row = decision.change.row
        assert (row.leader, row.leader_incarnation, row.epoch) == (2, 20, 5)
        assert row.in_sync == {1, 2, 3}
        assert decision.change.incarnations == {2: 20}

    def test_whose_leader_has_declared_a_loss_is_led_by_another(self) -> None:
        decision = decided(known_of(a_row(lost=frozenset({1})), 1, 2, 3))
        assert decision is not None
        assert decision.change is not None
        assert decision.change.row.leader == 2

    @pytest.mark.parametrize("how", ["leaving", "draining"])
    def test_is_handed_over_when_its_leader_shall_not_lead(self, how: str) -> None:
        state = known_of(a_row(), 1, 2, 3, leaving=1 if how == "leaving" else 0)
        if how == "draining":
            state.see_draining({1})
        decision = decided(state)
        assert decision is not None
        assert decision.change is not None
        assert decision.kind is DecisionKind.HANDED_OVER
        assert decision.change.row.leader == 2

    def test_stays_with_a_leader_that_leaves_when_there_is_no_other(self) -> None:
        assert decided(known_of(a_row(in_sync=frozenset({1})), 1, 2, 3, leaving=1)) is None

    def test_is_led_by_one_that_leaves_rather_than_by_nobody(self) -> None:
        decision = decided(known_of(a_row(in_sync=frozenset({1, 2})), 2, 3, leaving=2))
        assert decision is not None
        assert decision.change is not None
        assert decision.change.row.leader == 2

    def test_of_which_nobody_is_whole_waits_for_everybody_R6(self) -> None:
        row = a_row(lost=frozenset({1, 2, 3}))
        topics = Topics(topic("a", 1))
        assert due(known_of(row, 1, 2), KEY, topics, POLICY, nobody_asked) is None
        state = known_of(row, 1, 2, 3)
        assert due(state, KEY, topics, POLICY, nobody_asked) == Ask(KEY, (1, 2, 3))
        said = {1: Standing(4, 9), 2: Standing(4, 10)}
        assert due(state, KEY, topics, POLICY, lambda *_: said) == Ask(KEY, (3,))
        said[3] = Standing(3, 99)
        decision = due(state, KEY, topics, POLICY, lambda *_: said)
        assert isinstance(decision, Decision)
        assert decision.change is not None
        assert (decision.kind, decision.change.row.leader) == (DecisionKind.RECOVERED, 2)
        assert decision.change.incarnations == {1: 10, 2: 20, 3: 30}

    def test_that_is_not_whole_never_gets_a_leader_from_outside(self) -> None:
        state = known_of(a_row(in_sync=frozenset({1}), in_sync_min=1), 2, 3)
        assert decided(state, Topics()) is None

    def test_of_a_deleted_topic_goes(self) -> None:
        topics = Topics(topic("a", 1))
        topics.delete("a")
        state = known_of(a_row(), 1, 2, 3)
        state.see_request(KEY, Requested(9, (1, 2)))
        assert decided(state, topics) == Decision(
            KEY,
            DecisionKind.DELETED,
            7,
            is_row_dropped=True,
            is_request_dropped=True,
            request_version=9,
        )
        state.see_row(KEY, None)
        state.see_request(KEY, None)
        assert decided(state, topics) is None

    @pytest.mark.parametrize(
        ("configs", "expected"),
        [
            ({}, (3, 2)),
            ({"replication.factor": "1"}, (1, 1)),
            ({"replication.factor": "5", "min.insync.replicas": "4"}, (5, 4)),
            ({"min.insync.replicas": "9"}, (3, 3)),
            ({"replication.factor": "0", "min.insync.replicas": "-1"}, (1, 1)),
            ({"replication.factor": "many"}, (3, 2)),
            ({"replication.factor": "999"}, (32, 2)),
        ],
    )
    def test_has_as_many_replicas_as_its_topic_says(
        self, configs: dict[str, str], expected: tuple[int, int]
    ) -> None:
        assert wanted(msgspec.structs.replace(topic("a", 1), configs=configs), POLICY) == expected


class TestBeginnings:
    def test_are_not_made_of_what_was_planned_for_another_place(self) -> None:
        """The plan was to even leaders out; meanwhile the partition has moved."""
        topics = Topics(topic("a", 1))
        state = known_of(a_row(), 1, 2, 3, 4)
        now = situation(state, topics, POLICY)
        planned = {KEY: (2, 1, 3)}
        [ordered] = deciding.beginnings(state, now, planned, POLICY)
        assert ordered.change is not None
        assert ordered.change.row.replicas == (2, 1, 3)
        state.see_row(KEY, View(8, 8, a_row(replicas=(1, 2, 4), in_sync=frozenset({1, 2, 4}))))
        assert deciding.beginnings(state, now, planned, POLICY) == []

    def test_are_not_made_towards_a_node_that_is_away_or_leaving(self) -> None:
        topics = Topics(topic("a", 1))
        for state in (known_of(a_row(), 1, 2, 3), known_of(a_row(), 1, 2, 3, 4, leaving=4)):
            state.see_request(KEY, Requested(9, (1, 2, 4)))
            now = situation(state, topics, POLICY)
            assert deciding.beginnings(state, now, {}, POLICY) == []

    def test_write_down_where_a_partition_goes_with_the_first_step(self) -> None:
        topics = Topics(topic("a", 1))
        state = known_of(a_row(), 1, 2, 3, 4)
        now = situation(state, topics, POLICY)
        [begun] = deciding.beginnings(state, now, {KEY: (1, 2, 4)}, POLICY)
        assert begun.change is not None
        assert begun.change.row.replicas == (1, 2, 3, 4)
        assert begun.change.row.in_sync == {1, 2, 3}
        assert begun.change.incarnations == {4: 40}
        assert (begun.request, begun.request_version) == ((1, 2, 4), 0)

    def test_write_down_nothing_when_replicas_are_only_added(self) -> None:
        topics = Topics(topic("a", 1))
        row = a_row(replicas=(1, 2), in_sync=frozenset({1, 2}))
        state = known_of(row, 1, 2, 3)
        now = situation(state, topics, POLICY)
        [begun] = deciding.beginnings(state, now, deciding.targets(now), POLICY)
        assert begun.request is None
        assert begun.change is not None
        assert begun.change.row.replicas == (1, 2, 3)

    def test_are_as_many_as_there_is_room_for(self) -> None:
        topics = Topics(topic("a", 40))
        state = known_of(None, 1, 2, 3, 4)
        for index in range(40):
            state.see_row(PartitionKey("a", index), View(index, index, a_row()))
        now = situation(state, topics, POLICY)
        planned = {PartitionKey("a", index): (1, 2, 4) for index in range(40)}
        assert len(deciding.beginnings(state, now, planned, POLICY)) == 1
        wide = msgspec.structs.replace(POLICY, moves_per_pair_max=100, moves_max=7)
        assert len(deciding.beginnings(state, now, planned, wide)) == 7
        # One that is being copied that way counts already.
        busy = a_row(replicas=(1, 2, 3, 4))
        state.see_row(PartitionKey("a", 39), View(99, 99, busy))
        del planned[PartitionKey("a", 39)]
        assert deciding.beginnings(state, now, planned, POLICY) == []


class World:
    """Nodes that live and die, partitions, and a manager's decisions carried out at random."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.state = ClusterState()
        self.topics = Topics()
        self.policy = Policy(replication_factor=3, in_sync_min=2, moves_max=4)
        self.revision = 1
        self.nodes: dict[int, NodeEntry] = {}
        self.incarnations: dict[int, int] = {}
        self.draining: set[int] = set()
        self.begun: Counter[DecisionKind] = Counter()
        for number in range(1, self.chance.randint(3, 6)):
            self.start(number)
        for at in range(self.chance.randint(1, 4)):
            made = topic(f"t{at}", self.chance.randint(1, 6))
            self.topics.there[made.topic_id] = made
            self.state.mark(PartitionKey(made.topic_id, i) for i in range(made.partition_count))

    def tick(self) -> int:
        self.revision += 1
        return self.revision

    # ── What happens ─────────────────────────────────────────────────────────────────────────

    def start(self, number: int) -> None:
        rack = self.chance.choice(["", "a", "b"])
        self.nodes[number] = NodeEntry(number, f"n{number}", "", rack=rack)
        self.incarnations[number] = self.tick()
        self.state.see_nodes(self.nodes, self.incarnations)

    def fall(self, number: int) -> None:
        self.nodes.pop(number, None)
        self.incarnations.pop(number, None)
        self.state.see_nodes(self.nodes, self.incarnations)

    def change_in_sync(self, key: PartitionKey, *, is_growing: bool) -> None:
        """As its leader does."""
        row = self.state.rows[key].row
        if not self.state.is_led(row):
            return
        others = [
            node
            for node in row.replicas
            if node != row.leader and (node not in row.whole) == is_growing
        ]
        if is_growing:
            others = [node for node in others if node in self.nodes]
        elif len(row.in_sync) <= row.in_sync_min:
            return
        if others:
            node = self.chance.choice(others)
            in_sync = row.in_sync | {node} if is_growing else row.in_sync - {node}
            self.write(key, msgspec.structs.replace(row, in_sync=in_sync, lost=row.lost - {node}))

    def write(self, key: PartitionKey, row: PartitionRow) -> None:
        version = self.tick()
        self.state.see_row(key, View(version, version, row))

    def disturb(self) -> None:
        drawn = self.chance.random()
        numbers = list(range(1, 7))
        rows = list(self.state.rows)
        if drawn < 0.15:
            self.fall(self.chance.choice(numbers))
        elif drawn < 0.35:
            self.start(self.chance.choice(numbers))
        elif drawn < 0.4:
            self.draining ^= {self.chance.choice(numbers)}
            self.state.see_draining(self.draining)
        elif drawn < 0.45 and rows and len(self.nodes) >= 2:
            key = self.chance.choice(rows)
            count = min(len(self.nodes), max(2, self.state.rows[key].row.in_sync_min))
            request = Requested(self.tick(), tuple(self.chance.sample(sorted(self.nodes), count)))
            self.state.see_request(key, request)
        elif drawn < 0.47 and len(self.topics.there) > 1:
            self.topics.delete(self.chance.choice(sorted(self.topics.there)))
            self.state.mark(rows)
        elif rows:
            self.change_in_sync(self.chance.choice(rows), is_growing=self.chance.random() < 0.7)

    # ── What is done about it ────────────────────────────────────────────────────────────────

    def manage(self) -> int:
        """One turn of a manager; returns how much it had to do."""
        done = 0
        for key in list(self.state.due):
            del self.state.due[key]
            found = due(self.state, key, self.topics, self.policy, nobody_asked)
            if isinstance(found, Decision):
                done += self.carry_out(found)
        return done

    def plan(self) -> int:
        now = situation(self.state, self.topics, self.policy)
        planned = deciding.targets(now)
        decisions = deciding.beginnings(self.state, now, planned, self.policy)
        decisions += deciding.preferred(self.state, count_max=self.policy.leader_changes_max)
        self.check_copies(decisions)
        done = 0
        for decision in decisions:
            view = self.state.rows.get(decision.key)
            if view is not None and view.version == decision.version:
                done += self.carry_out(decision)
        return done

    def check_copies(self, decisions: list[Decision]) -> None:
        pairs: Counter[tuple[int, int]] = Counter()
        for decision in decisions:
            if decision.kind is DecisionKind.BEGUN and decision.change is not None:
                before = self.state.rows[decision.key].row
                added = set(decision.change.row.replicas).difference(before.replicas)
                pairs.update((before.leader, node) for node in added)
                assert added <= set(self.nodes)
                assert not added & self.state.avoided
        assert max(pairs.values(), default=0) <= self.policy.repairs_per_pair_max

    def carry_out(self, decision: Decision) -> bool:
        key = decision.key
        view = self.state.rows.get(key)
        assert decision.version == (0 if view is None else view.version)
        request = self.state.requests.get(key)
        if decision.request_version is not None:
            assert decision.request_version == (0 if request is None else request.version)
        if decision.change is not None:
            self.check(None if view is None else view.row, decision)
            self.write(key, decision.change.row)
        if decision.is_row_dropped:
            self.tick()
            self.state.see_row(key, None)
        if decision.request is not None:
            self.state.see_request(key, Requested(self.tick(), decision.request))
        elif decision.is_request_dropped:
            self.state.see_request(key, None)
        self.begun[decision.kind] += 1
        return True

    def check(self, before: PartitionRow | None, decision: Decision) -> None:
        assert decision.change is not None
        after = decision.change.row
        assert len(set(after.replicas)) == len(after.replicas)
        for node, incarnation in decision.change.incarnations.items():
            assert self.incarnations[node] == incarnation
        if before is None:
            assert after.epoch == 1
            return
        assert after.in_sync <= before.in_sync, "only a leader brings somebody in"
        assert after.epoch in (before.epoch, before.epoch + 1)
        if after.epoch > before.epoch:
            assert after.leader in before.whole
            assert after.in_sync == before.in_sync
            assert after.leader in decision.change.incarnations
        else:
            assert after.leader == before.leader
        if after.in_sync != before.in_sync:
            assert len(after.in_sync) >= after.in_sync_min
            assert after.whole == set(after.replicas)
            assert after.leader in after.in_sync

    def settle(self) -> None:
        """All are there and nobody is to be emptied; leaders bring their followers in."""
        for number in range(1, 7):
            if number not in self.nodes:
                self.start(number)
        self.draining.clear()
        self.state.see_draining(())
        for _ in range(400):
            done = self.manage()
            for key in list(self.state.rows):
                self.change_in_sync(key, is_growing=True)
                self.change_in_sync(key, is_growing=True)
            if not done + self.plan() and not self.state.due:
                return
        raise AssertionError(f"it does not come to rest: {self.begun}")


class TestACluster:
    @given(seed=st.integers(0, 2**32))
    @settings(max_examples=150, deadline=None)
    def test_keeps_every_rule_and_comes_to_rest(self, seed: int) -> None:
        world = World(seed)
        for _ in range(60):
            world.disturb()
            if world.chance.random() < 0.7:
                world.manage()
            if world.chance.random() < 0.3:
                world.plan()
        world.settle()
        state = world.state
        assert not state.requests
        assert not state.behind
        assert not state.unpreferred
        seen = overview(state, world.topics, world.topics.there.values(), world.policy)
        assert not any(seen.states[one] for one in ("leaderless", "under_replicated", "missing"))
        assert seen.partitions == sum(each.partition_count for each in world.topics.there.values())
        assert all(len(view.row.replicas) == 3 for view in state.rows.values())
        assert sum(node.leaders for node in seen.nodes) == seen.partitions
        assert all(is_safe_to_stop(state, node) for node in state.nodes)

    @given(seed=st.integers(0, 2**32))
    @settings(max_examples=40, deadline=None)
    def test_a_drain_ends_with_an_empty_node(self, seed: int) -> None:
        world = World(seed)
        world.settle()
        world.state.see_draining({2})
        for _ in range(200):
            done = world.manage()
            for key in list(world.state.rows):
                world.change_in_sync(key, is_growing=True)
            if not done + world.plan() and not world.state.due:
                break
        assert is_empty(world.state, 2)
        assert all(len(view.row.whole) == 3 for view in world.state.rows.values())


class TestKnown:
    @given(seed=st.integers(0, 2**32))
    @settings(max_examples=50, deadline=None)
    def test_counts_as_one_would_who_looks_at_everything(self, seed: int) -> None:
        world = World(seed)
        for _ in range(40):
            world.disturb()
            world.manage()
            world.plan()
        state = world.state
        rows = {key: view.row for key, view in state.rows.items()}
        assert state.loads.replicas == Counter(n for row in rows.values() for n in row.replicas)
        assert state.loads.leaders == Counter(row.replicas[0] for row in rows.values())
        assert set(state.behind) == {k for k, row in rows.items() if row.whole != set(row.replicas)}
        assert set(state.unpreferred) == {
            key for key, row in rows.items() if row.leader != row.replicas[0]
        }
        for node in range(1, 7):
            assert set(state.on(node)) == {k for k, row in rows.items() if node in row.replicas}

    def test_what_is_on_its_way_counts_until_it_has_landed(self) -> None:
        state = known_of(None, 1, 2, 3)
        state.launch(KEY, (1, 2))
        assert state.loads.replicas == {1: 1, 2: 1}
        state.see_row(KEY, View(7, 7, a_row()))
        assert state.loads.replicas == {1: 1, 2: 1, 3: 1}
        state.launch(PartitionKey("a", 1), (1, 2))
        state.land(PartitionKey("a", 1))
        assert state.loads.replicas == {1: 1, 2: 1, 3: 1}

    def test_only_partitions_of_a_node_are_due_when_it_changes(self) -> None:
        state = known_of(a_row(), 1, 2, 3, 4)
        state.due.clear()
        state.see_nodes(*alive(1, 2, 3))
        assert not state.due
        state.see_nodes(*alive(1, 2))
        assert list(state.due) == [KEY]
