"""Which faults, in which order, and what a run of them must have gone through. A profile and a seed
give the plan; how threads and processes race in it is up to the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from tests.lab import (
    client_faults,
    clock_faults,
    disk_faults,
    faults,
    link_faults,
    manager_faults,
    member_faults,
    store_faults,
)
from tests.lab.faults import Fault
from tests.lab.judge import DARK_EXTRA_MS, Minima

Kind = type[Fault]

ALL: tuple[Kind, ...] = (
    faults.KillLeader,
    faults.KillAll,
    disk_faults.PowerCut,
    faults.StopLeader,
    link_faults.CutLeaderFromStore,
    link_faults.CutLeaderFromFollowers,
    link_faults.CutOneWay,
    link_faults.CutBridge,
    link_faults.BadNetwork,
    link_faults.ResetStorm,
    disk_faults.FullDisk,
    disk_faults.FullDisks,
    disk_faults.SlowDisk,
    disk_faults.TornTail,
    disk_faults.FlippedBit,
    disk_faults.WipedDisk,
    clock_faults.WrongClock,
    store_faults.KillStoreLeader,
    store_faults.StopStoreLeader,
    store_faults.LoseStoreQuorum,
    member_faults.ReplaceNodeDuringKill,
    faults.RollingRestart,
    manager_faults.KillManager,
    client_faults.RestlessConsumers,
)
# For a run of their own: one takes an operator to undo, the other a cluster of another size.
ALONE: tuple[Kind, ...] = (
    store_faults.RestoredStore,
    manager_faults.KillManagerOfMany,
)
SMOKE: tuple[Kind, ...] = (
    faults.KillLeader,
    faults.StopLeader,
    link_faults.CutLeaderFromFollowers,
    store_faults.KillStoreLeader,
)


@dataclass(frozen=True)
class Profile:
    name: str
    minima: Minima
    seconds: float  # that faults go on for; 0: each of the plan once
    pause_seconds: tuple[float, float]  # between the end of one and the next
    calls_between: int  # that every process must have had answered before the next fault
    dark_extra_ms: int = DARK_EXTRA_MS  # beyond a lease, until a queue takes messages again


PROFILES = {
    "smoke": Profile(
        "smoke",
        Minima(sends=500, failovers=3, in_sync_changes=3),
        seconds=0.0,
        pause_seconds=(0.0, 0.0),
        calls_between=100,
        dark_extra_ms=10_000,  # ten processes beside other tests; what timed out takes 15 s
    ),
    "chaos": Profile(
        "chaos",
        Minima(sends=5_000, failovers=20, in_sync_changes=10, truncations=5),
        seconds=600.0,
        pause_seconds=(5.0, 15.0),
        calls_between=50,
    ),
    # One fault by name, or a few: for whoever looks for the cause of something.
    "chosen": Profile(
        "chosen", Minima(sends=100), seconds=0.0, pause_seconds=(0.0, 0.0), calls_between=100
    ),
}


def drawn(chance: Random, usable: Sequence[Kind]) -> Callable[[], Kind]:
    """Every usable fault once in some order, then again in another: none is left to luck. A kill
    of the leader comes after each of the others, for a failover is what most of them disturb."""
    left: list[Kind] = []

    def draw() -> Kind:
        if not left:
            others = [kind for kind in usable if kind is not faults.KillLeader]
            chance.shuffle(others)
            for kind in others:
                left.extend((kind, faults.KillLeader))
        return left.pop()

    return draw


def usable(
    kinds: Sequence[Kind], *, has_net: bool, has_disks: bool, has_faketime: bool
) -> list[Kind]:
    return [
        kind
        for kind in kinds
        if (has_net or not kind.needs_net)
        and (has_disks or not kind.needs_disks)
        and (has_faketime or not kind.needs_faketime)
    ]
