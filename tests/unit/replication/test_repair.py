"""A damaged copy on its way to being whole again: what may be done next."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from penstock.replication import election
from penstock.replication.election import RepairStep
from penstock.replication.row import NO_NODE, PartitionRow, View

NODES = (1, 2, 3)
ALIVE = {1: 100, 2: 101, 3: 102}
ASIDE = 1

subsets = st.frozensets(st.sampled_from(NODES))


@st.composite
def rows(draw: st.DrawFn) -> PartitionRow:
    in_sync = draw(subsets.filter(bool))
    lost = draw(subsets) & in_sync
    leader = draw(st.sampled_from((NO_NODE, *sorted(in_sync - lost))))
    return PartitionRow(
        NODES,
        in_sync,
        lost=lost,
        leader=leader,
        leader_incarnation=ALIVE.get(leader, 0),
        epoch=draw(st.integers(0, 6)),
    )


def step(row: PartitionRow, *, fetched_in: int = 3, alive: dict[int, int] = ALIVE) -> RepairStep:
    return election.next_step(row, ASIDE, fetched_in=fetched_in, incarnations=alive)


@given(rows(), st.integers(-1, 6), subsets)
def test_nothing_is_emptied_that_somebody_counts_on(
    row: PartitionRow, fetched_in: int, living: frozenset[int]
) -> None:
    alive = {node: ALIVE[node] for node in living}
    if step(row, fetched_in=fetched_in, alive=alive) is RepairStep.EMPTY:
        assert ASIDE not in row.whole, "it may be elected"
        assert row.whole, "it may be asked how far it is"
        assert row.epoch > fetched_in, "its leader may take it for whole by what it has asked"
        assert row.leader in living - {ASIDE}, "it may be all that is left"


@given(rows())
def test_it_ends(row: PartitionRow) -> None:
    """Emptied or opened again, after two changes at most and somebody's election."""
    view, fetched_in = View(1, 1, row), row.epoch
    for _ in range(2):
        if step(view.row, fetched_in=fetched_in) is RepairStep.RESIGN:
            view = View(2, 2, election.resign(view, ASIDE).row)
    found = step(view.row, fetched_in=fetched_in)
    if found is RepairStep.WAIT:
        leader = min(view.row.whole)
        led = msgspec.structs.replace(view.row, leader=leader, leader_incarnation=ALIVE[leader])
        found = step(led, fetched_in=fetched_in)
    assert found in (RepairStep.EMPTY, RepairStep.REOPEN)
    assert (found is RepairStep.EMPTY) == election.is_spare(row, ASIDE)


def test_a_leader_that_has_died_since_is_no_reason_to_empty_what_may_be_needed() -> None:
    row = PartitionRow(
        NODES,
        frozenset(NODES),
        lost=frozenset((ASIDE,)),
        leader=2,
        leader_incarnation=ALIVE[2],
        epoch=4,
    )
    assert step(row) is RepairStep.EMPTY
    assert step(row, alive={1: 100, 3: 102}) is RepairStep.WAIT
    assert step(row, alive={**ALIVE, 2: 140}) is RepairStep.WAIT, "it is another one by now"
