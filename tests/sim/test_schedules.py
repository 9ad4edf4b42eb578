"""The replication rules, and the queue over them, under every fault the simulator knows, and a
checker that is itself checked: each rule broken must be noticed. A failing seed is told by
``python -m tests.sim --seed``. ``make test`` runs 600 schedules of each kind, other ones for other
commits, and half as many with a filter and bookmarks; ``make faults`` runs all 13,200.
"""

import pytest
from tests.harness.full import part
from tests.sim.mutations import MUTATIONS, find_seed
from tests.sim.push import PushWorld
from tests.sim.world import STEPS, World

CHUNK = 600  # enough schedules for every kind of fault to happen
SYNCED = range(0, 6_000, CHUNK)  # the first seed of each chunk
UNSYNCED = range(0, 4_200, CHUNK)
PUSH_CHUNK = 300
PUSHED = range(0, 3_000, PUSH_CHUNK)


@pytest.mark.full_set
@pytest.mark.parametrize("first", part(SYNCED, 1))
def test_nothing_that_was_answered_for_is_lost(first: int) -> None:
    _run(first, is_synced=True)


@pytest.mark.full_set
@pytest.mark.parametrize("first", part(UNSYNCED, 1))
def test_nor_where_answers_do_not_wait_for_disks(first: int) -> None:
    """What every copy had only in memory may be; that is said aloud, and ends the schedule."""
    _run(first, is_synced=False)


@pytest.mark.full_set
@pytest.mark.parametrize("first", part(PUSHED, 1))
def test_nor_with_a_filter_and_bookmarks(first: int) -> None:
    _run(first, is_synced=True, world_of=PushWorld, count=PUSH_CHUNK)


def _run(first: int, *, is_synced: bool, world_of: type[World] = World, count: int = CHUNK) -> None:
    totals: dict[str, int] = {}
    flag = "" if is_synced else " --unsynced"
    for seed in range(first, first + count):
        world = world_of(seed, is_synced=is_synced)
        found = world.run(STEPS)
        assert not found, f"{found}; repeat: python -m tests.sim --seed {seed}{flag}"
        for name, count in world.counts.items():
            totals[name] = totals.get(name, 0) + count
    # A run whose faults did not happen proves nothing.
    assert totals["commits"] > 10 * count, totals
    assert totals["answers"] > 10 * count, totals
    assert totals["crashes"] > 2 * count, totals
    assert totals["trims"] > count // 2, totals
    assert totals.pop("reopenings") > 0, totals
    assert min(totals.values()) > count // 100, totals


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_rule_is_noticed(name: str) -> None:
    mutation = MUTATIONS[name]
    found = find_seed(mutation, first=mutation.first, schedules=mutation.schedules)
    assert found is not None, f"nobody notices that {name} ({mutation.rule})"


def test_a_schedule_can_be_told_again() -> None:
    stories = []
    for _ in range(2):
        world = World(17)
        world.story = []
        world.run(STEPS)
        stories.append(world.story)
    assert stories[0] == stories[1]
    assert len(stories[0]) > 50
