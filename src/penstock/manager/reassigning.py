"""What Kafka's admin requests ask about one partition: where it is moving, how a move is cancelled,
who leads it after an election. Pure; ``wishes.py`` carries the changes out.
"""

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

import msgspec

from penstock.manager.known import is_led
from penstock.metadata.cluster_entries import PlaceWish
from penstock.replication import election
from penstock.replication.row import Change, PartitionRow, View


class Reassignment(NamedTuple):
    """A move in the terms of Kafka: all replicas while it lasts, those that come, those that go."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def original(self) -> tuple[int, ...]:
        """The replicas without those that come: where a cancelled move ends."""
        return tuple(node for node in self.replicas if node not in self.adding) or self.replicas


class Refused(Enum):
    """Why an election changes nothing."""

    NOT_NEEDED = "the leader is the right one"
    UNAVAILABLE = "no replica that may lead is available"


def reassignment(row: PartitionRow, wish: PlaceWish) -> Reassignment:
    """Return the move from the row's replicas to those wished for. A wish of the manager's own does
    not say where the partition was: then a replica counts as new until it is in sync."""
    wanted = frozenset(wish.replicas)
    old = frozenset(wish.before) or row.whole
    replicas = (*row.replicas, *(node for node in wish.replicas if node not in row.replicas))
    adding = tuple(node for node in replicas if node in wanted and node not in old)
    removing = tuple(node for node in replicas if node not in wanted)
    return Reassignment(replicas, adding, removing)


def cancelled(view: View, wish: PlaceWish) -> Change | None:
    """Return the change that drops what a move has added. None if there is nothing to drop, or if
    the partition cannot do without: a new replica leads, or too few of the others are in sync."""
    row, original = view.row, reassignment(view.row, wish).original
    kept = row.whole.intersection(original)
    if row.replicas == original or row.leader not in kept or len(kept) < row.in_sync_min:
        return None
    staying = frozenset(original)
    back = msgspec.structs.replace(
        row, replicas=original, in_sync=row.in_sync & staying, lost=row.lost & staying
    )
    return Change(view.version, back)


def preferred_leader(
    view: View, incarnations: Mapping[int, int], avoided: frozenset[int]
) -> Change | Refused:
    """``avoided``: nodes that are about to stop or being drained, which lead nothing."""
    row, first = view.row, view.row.replicas[0]
    if row.leader == first and is_led(row, incarnations):
        return Refused.NOT_NEEDED
    if first not in row.whole or first not in incarnations or first in avoided:
        return Refused.UNAVAILABLE
    change = election.elect(view, incarnations)
    assert change is not None, "the first replica is able to"
    return change


def unclean_leader(view: View, incarnations: Mapping[int, int]) -> Change | Refused:
    """A replica that has everything leads if one is alive. Otherwise the first one that is alive,
    of those in sync before the others: what it does not have is lost."""
    row = view.row
    if is_led(row, incarnations):
        return Refused.NOT_NEEDED
    clean = election.elect(view, incarnations)
    if clean is not None:
        return clean
    ordered = sorted(row.replicas, key=lambda node: node not in row.in_sync)
    alive = [node for node in ordered if node in incarnations]
    change = election.elect_uncleanly(view, alive[0], incarnations) if alive else None
    return Refused.UNAVAILABLE if change is None else change
