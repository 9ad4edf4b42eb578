"""Who shall lead, who is to be counted out, where replicas belong: the decisions of the in-cluster
manager and of a node that starts. Pure; each is a ``Change`` for the store to carry out or refuse,
so it does not matter how many managers there are, nor how much of what they know is old.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from penstock.replication.row import Change, PartitionRow, View

ABSENT: Final = 0  # the version of a row that is not there


class Standing(NamedTuple):
    """How far a replica's log goes, as it says itself."""

    last_epoch: int
    end_offset: int


class Found(NamedTuple):
    """What a node finds of a partition when it starts."""

    is_there: bool
    is_whole: bool  # no damage, no gap, no epoch out of order
    end_offset: int
    recovery_point: int
    was_stopped: bool  # by a clean stop, as opposed to a crash
    is_synced: bool  # answers waited for the disk


def loss_of(row: PartitionRow, found: Found) -> str | None:
    """Why a replica that is in sync may lack something committed; None if it cannot (R5)."""
    if not found.is_there:
        return "the log is not there"
    if not found.is_whole:
        return "the log is damaged"
    if found.end_offset < found.recovery_point:
        return "the log ends before what was known to be on disk"
    if found.end_offset < row.watermark_floor:
        return "the log ends before what is known to be committed"
    if not found.is_synced and not found.was_stopped:
        return "not everything was on disk when the node ended"
    return None


def declare_loss(view: View, node: int) -> Change | None:
    """To be done before the node registers (R4, R5): from then on it might be elected."""
    row = view.row
    if node not in row.whole:
        return None
    return Change(view.version, msgspec.structs.replace(row, lost=row.lost | {node}))


def create(replicas: Sequence[int], incarnations: Mapping[int, int], *, in_sync_min: int) -> Change:
    """Nothing was ever written, so all replicas have everything: a partition starts with a leader,
    the first one, and with all of them in sync. They are counted on to be alive, for nothing
    commits without them."""
    first = replicas[0]
    row = PartitionRow(
        tuple(replicas),
        frozenset(replicas),
        leader=first,
        leader_incarnation=incarnations[first],
        epoch=1,
        in_sync_min=in_sync_min,
    )
    return Change(ABSENT, row, {node: incarnations[node] for node in replicas})


def elect(
    view: View, incarnations: Mapping[int, int], *, avoiding: frozenset[int] = frozenset()
) -> Change | None:
    """A live replica that holds everything committed leads from now on (R7), the first in the order
    of preference. Safe at any time. ``avoiding``: nodes that are about to stop, taken only if there
    is nobody else. None when there is nobody."""
    row = view.row
    able = [node for node in row.replicas if node in row.whole and node in incarnations]
    chosen = next((node for node in able if node not in avoiding), able[0] if able else None)
    if chosen is None:
        return None
    return _led_by(view, chosen, incarnations, compared=(chosen,), found=row.lost)


def recover(
    view: View, incarnations: Mapping[int, int], standings: Mapping[int, Standing]
) -> Change | None:
    """When everybody in sync has said that it may have lost something: the one whose log goes
    furthest, once every one of them has been asked (R6). Whoever is whole among them cannot lose
    against one that is not. None as long as somebody is missing."""
    row = view.row
    if row.whole or not all(node in incarnations and node in standings for node in row.in_sync):
        return None
    best = max(sorted(row.in_sync), key=lambda node: standings[node])
    return _led_by(view, best, incarnations, compared=sorted(row.in_sync), found=row.lost - {best})


def elect_uncleanly(view: View, node: int, incarnations: Mapping[int, int]) -> Change | None:
    """By the word of an operator: this one leads, and what it does not have is lost."""
    row = view.row
    if node not in row.replicas or node not in incarnations:
        return None
    alone = msgspec.structs.replace(
        row, in_sync=frozenset((node,)), lost=frozenset(), watermark_floor=0
    )
    return _led_by(
        view._replace(row=alone), node, incarnations, compared=(node,), found=frozenset()
    )


def _led_by(
    view: View,
    node: int,
    incarnations: Mapping[int, int],
    *,
    compared: Sequence[int],
    found: frozenset[int],
) -> Change:
    row = msgspec.structs.replace(
        view.row,
        leader=node,
        leader_incarnation=incarnations[node],
        epoch=view.row.epoch + 1,
        lost=found,
    )
    return Change(view.version, row, {each: incarnations[each] for each in compared})


def place(view: View, replicas: Sequence[int]) -> Change | None:
    """The next step of moving a partition to other nodes (R23): first those that come are added,
    then, when all of them are in sync and one of them leads, those that leave are dropped. None
    while there is nothing to do but wait."""
    row = view.row
    target = tuple(replicas)
    assert target, "a partition is somewhere"
    missing = [node for node in target if node not in row.replicas]
    if missing:
        more = msgspec.structs.replace(row, replicas=(*row.replicas, *missing))
        return Change(view.version, more)
    if row.replicas == target:
        return None
    kept = row.in_sync & set(target)
    if not set(target) <= row.whole or row.leader not in target or len(kept) < row.in_sync_min:
        return None
    less = msgspec.structs.replace(row, replicas=target, in_sync=kept, lost=frozenset())
    return Change(view.version, less)
