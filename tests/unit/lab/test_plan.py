"""A seed gives a plan; every usable fault is in it; none that cannot be made here is."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab import plan
from tests.lab.faults import Fault, KillLeader


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_a_round_of_chaos_has_every_fault_once_and_a_kill_with_each(seed: int) -> None:
    draw = plan.drawn(Random(seed), plan.ALL)
    others = len(plan.ALL) - 1
    round_ = [draw() for _ in range(2 * others)]
    assert sorted(kind.name for kind in round_ if kind is not KillLeader) == sorted(
        kind.name for kind in plan.ALL if kind is not KillLeader
    )
    assert round_.count(KillLeader) == others
    again = plan.drawn(Random(seed), plan.ALL)
    assert [again() for _ in range(2 * others)] == round_


def test_what_needs_a_network_or_disks_is_left_out_where_there_are_none() -> None:
    left = plan.usable(plan.ALL, has_net=False, has_disks=False, has_faketime=False)
    assert KillLeader in left
    assert not any(kind.needs_net or kind.needs_disks or kind.needs_faketime for kind in left)
    whole = plan.usable(plan.ALL, has_net=True, has_disks=True, has_faketime=True)
    assert whole == list(plan.ALL)


def test_every_fault_has_a_name_of_its_own_and_says_what_it_does() -> None:
    kinds = (*plan.ALL, *plan.ALONE)
    names = [kind.name for kind in kinds]
    assert len(set(names)) == len(names)
    assert all(kind.inject is not Fault.inject for kind in kinds)


def test_every_fault_of_the_table_is_there_and_chaos_is_invalid_below_its_minima() -> None:
    numbers = {kind.name.split()[0] for kind in (*plan.ALL, *plan.ALONE)}
    assert numbers == {f"F{number}" for number in range(1, 21)}
    minima = plan.PROFILES["chaos"].minima
    assert (minima.failovers, minima.truncations, minima.in_sync_changes) == (20, 5, 10)
