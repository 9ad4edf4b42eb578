"""What is shown of a move, how it is cancelled, and who is elected on request: pure decisions."""

from collections.abc import Mapping

import msgspec
import pytest
from tests.unit.manager.cluster import situation, topic

from penstock.manager import decisions as deciding
from penstock.manager.cluster_state import ClusterState
from penstock.manager.decisions import Policy, wanted
from penstock.manager.operator_requests import (
    Reassignment,
    Refused,
    cancelled,
    preferred_leader,
    reassignment,
    unclean_leader,
)
from penstock.metadata.cluster_entries import NodeEntry, PartitionKey, PlacementRequest
from penstock.model.replication import factor_of, with_factors
from penstock.model.topic import Topic
from penstock.replication.row import Change, PartitionRow, View

MOVE = PlacementRequest((4, 2, 3), (1, 2, 3))
ALIVE = {1: 10, 2: 20, 3: 30, 4: 40}


def row_of(
    *replicas: int, in_sync: tuple[int, ...] = (), lost: tuple[int, ...] = (), leader: int = 0
) -> PartitionRow:
    leader = leader or replicas[0]
    return PartitionRow(
        replicas,
        frozenset(in_sync or replicas),
        frozenset(lost),
        leader=leader,
        leader_incarnation=10 * leader,
        epoch=5,
        in_sync_min=2,
    )


def viewed(row: PartitionRow) -> View:
    return View(9, 7, row)


class TestAMove:
    @pytest.mark.parametrize(
        ("row", "target", "before", "expected"),
        [
            # not begun, begun, and the new replica in sync: the same is shown all the time
            (row_of(1, 2, 3), (4, 2, 3), (1, 2, 3), ((1, 2, 3, 4), (4,), (1,))),
            (
                row_of(1, 2, 3, 4, in_sync=(1, 2, 3)),
                (4, 2, 3),
                (1, 2, 3),
                ((1, 2, 3, 4), (4,), (1,)),
            ),
            (row_of(1, 2, 3, 4), (4, 2, 3), (1, 2, 3), ((1, 2, 3, 4), (4,), (1,))),
            # another order, fewer replicas, more replicas
            (row_of(1, 2, 3), (3, 1, 2), (1, 2, 3), ((1, 2, 3), (), ())),
            (row_of(1, 2, 3), (2, 3), (1, 2, 3), ((1, 2, 3), (), (1,))),
            (row_of(1, 2, 3), (2, 3), (1, 2), ((1, 2, 3), (3,), (1,))),
            (row_of(1, 2), (1, 2, 3), (1, 2), ((1, 2, 3), (3,), ())),
            # of the manager itself
            (row_of(1, 2, 3), (4, 2, 3), (), ((1, 2, 3, 4), (4,), (1,))),
            (row_of(1, 2, 3, 4, in_sync=(1, 2, 3)), (4, 2, 3), (), ((1, 2, 3, 4), (4,), (1,))),
        ],
    )
    def test_is_shown_with_what_comes_and_what_goes(
        self,
        row: PartitionRow,
        target: tuple[int, ...],
        before: tuple[int, ...],
        expected: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    ) -> None:
        assert reassignment(row, PlacementRequest(target, before)) == Reassignment(*expected)

    def test_that_is_cancelled_drops_what_it_added(self) -> None:
        change = cancelled(viewed(row_of(1, 2, 3, 4)), MOVE)
        assert change is not None
        assert change.version == 7, "compared by the store"
        assert change.row.replicas == (1, 2, 3)
        assert change.row.in_sync == {1, 2, 3}
        assert (change.row.leader, change.row.epoch) == (1, 5)

    def test_that_is_cancelled_keeps_what_is_committed(self) -> None:
        """The leader and enough of those in sync have to be among the original replicas."""
        led_by_new = row_of(1, 2, 3, 4, leader=4)
        assert cancelled(viewed(led_by_new), MOVE) is None
        too_few = row_of(1, 2, 3, 4, in_sync=(1, 4))
        assert cancelled(viewed(too_few), MOVE) is None
        lossy = row_of(1, 2, 3, 4, lost=(2, 3))
        assert cancelled(viewed(lossy), MOVE) is None
        one_away = row_of(1, 2, 3, 4, in_sync=(1, 2, 4))
        change = cancelled(viewed(one_away), MOVE)
        assert change is not None
        assert change.row.in_sync == {1, 2}

    def test_that_has_not_begun_leaves_the_row_alone(self) -> None:
        assert cancelled(viewed(row_of(1, 2, 3)), MOVE) is None


class TestAPreferredElection:
    def test_makes_the_first_replica_lead(self) -> None:
        change = preferred_leader(viewed(row_of(2, 3, 1, leader=3)), ALIVE, frozenset())
        assert isinstance(change, Change)
        assert (change.row.leader, change.row.epoch, change.incarnations) == (2, 6, {2: 20})

    @pytest.mark.parametrize(
        ("row", "avoided", "expected"),
        [
            (row_of(2, 3, 1), frozenset[int](), Refused.NOT_NEEDED),
            (row_of(2, 3, 1), frozenset({2}), Refused.NOT_NEEDED),
            (row_of(9, 3, 1, leader=3), frozenset[int](), Refused.UNAVAILABLE),
            (row_of(2, 3, 1, leader=3, in_sync=(3, 1)), frozenset[int](), Refused.UNAVAILABLE),
            (row_of(2, 3, 1, leader=3, lost=(2,)), frozenset[int](), Refused.UNAVAILABLE),
            (row_of(2, 3, 1, leader=3), frozenset({2}), Refused.UNAVAILABLE),
        ],
    )
    def test_changes_nothing_otherwise(
        self, row: PartitionRow, avoided: frozenset[int], expected: Refused
    ) -> None:
        assert preferred_leader(viewed(row), ALIVE, avoided) is expected

    def test_is_needed_when_the_preferred_leader_came_back(self) -> None:
        """It was elected in an earlier life: nobody leads."""
        found = preferred_leader(viewed(row_of(2, 3, 1)), {**ALIVE, 2: 21}, frozenset())
        assert isinstance(found, Change)
        assert found.row.leader_incarnation == 21


class TestAnUncleanElection:
    def test_is_not_needed_while_there_is_a_leader(self) -> None:
        assert unclean_leader(viewed(row_of(2, 3, 1)), ALIVE) is Refused.NOT_NEEDED

    def test_takes_a_replica_that_has_everything_first(self) -> None:
        change = unclean_leader(viewed(row_of(9, 3, 1)), ALIVE)
        assert isinstance(change, Change)
        assert change.row.leader == 3
        assert change.row.in_sync == {9, 3, 1}

    def test_takes_any_other_that_is_alive(self) -> None:
        change = unclean_leader(viewed(row_of(9, 3, 1, in_sync=(9,))), ALIVE)
        assert isinstance(change, Change)
        assert change.row.leader == 3
        assert change.row.in_sync == {3}

    def test_takes_one_that_was_in_sync_before_others(self) -> None:
        row = row_of(9, 3, 1, in_sync=(9, 1), lost=(1,))
        change = unclean_leader(viewed(row), ALIVE)
        assert isinstance(change, Change)
        assert change.row.leader == 1

    def test_has_nobody_to_elect(self) -> None:
        assert unclean_leader(viewed(row_of(8, 9)), ALIVE) is Refused.UNAVAILABLE


class TestTheNumberOfReplicas:
    def test_of_one_partition_may_differ(self) -> None:
        policy = Policy(replication_factor=3, in_sync_min=2)
        changed = with_factors(topic("a", 3), {1: 1}, 3)
        assert [wanted(changed, policy, at) for at in range(3)] == [(3, 2), (1, 1), (3, 2)]
        assert factor_of(changed, None, 3) == 3, "of partitions to come"
        assert with_factors(changed, {1: 3}, 3) == topic("a", 3)

    def test_of_all_partitions_is_that_of_the_topic(self) -> None:
        changed = topic("a", 2)
        for index in range(2):
            changed = with_factors(changed, {index: 2}, 3)
        assert changed.configs == {"replication.factor": "2"}
        grown = msgspec.structs.replace(changed, partition_count=3)
        assert factor_of(grown, 2, 3) == 2

    def test_is_left_alone_by_the_manager(self) -> None:
        assert planned(topic("a", 2), {0: (3, 2), 1: (1, 2, 3)}) == {0}
        changed = with_factors(topic("a", 2), {0: 2}, 3)
        assert planned(changed, {0: (3, 2), 1: (1, 2, 3)}) == set()
        assert planned(changed, {0: (3, 2), 1: (1, 2)}) == {1}


def planned(one: Topic, places: Mapping[int, tuple[int, ...]]) -> set[int]:
    """Partitions that the manager would move or give other replicas."""
    state = ClusterState()
    state.see_nodes({node: NodeEntry(node, f"n{node}", "") for node in (1, 2, 3)}, ALIVE)
    for index, replicas in places.items():
        state.see_row(PartitionKey(one.topic_id, index), viewed(row_of(*replicas)))
    return {key.index for key in deciding.targets(situation(state, Only(one), Policy()))}


class Only:
    def __init__(self, one: Topic) -> None:
        self._one = one

    def find_id(self, topic_id: str) -> Topic | None:
        return self._one if topic_id == self._one.topic_id else None

    def tombstone(self, topic_id: str) -> Topic | None:
        return None


class TestBalance:
    def test_does_not_move_what_was_assigned(self) -> None:
        places = dict.fromkeys(range(3), (1,))
        assert planned(topic("a", 3, replication_factor="1"), places)
        manual = topic("a", 3, replication_factor="1", penstock_placement="manual")
        assert not planned(manual, places)

    def test_does_not_change_the_order_of_what_was_assigned(self) -> None:
        places = dict.fromkeys(range(6), (1, 2, 3))
        assert planned(topic("a", 6), places)
        assert not planned(topic("a", 6, penstock_placement="manual"), places)
