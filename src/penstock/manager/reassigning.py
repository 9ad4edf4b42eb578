"""Kafka's admin requests for one partition: reassignments, their cancellation, and elections.
Pure; ``operator_requests.py`` writes the changes.
"""

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

import msgspec

from penstock.manager.cluster_state import is_led
from penstock.metadata.cluster_entries import PlacementRequest
from penstock.replication import election
from penstock.replication.row import Change, PartitionRow, View


class Reassignment(NamedTuple):
    """A move in Kafka's terms: all replicas while it lasts, replicas added, replicas removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def original(self) -> tuple[int, ...]:
        """The replicas without those being added: where a cancelled move ends."""
        return tuple(node for node in self.replicas if node not in self.adding) or self.replicas


class Refused(Enum):
    """Why an election changes nothing."""

    NOT_NEEDED = "no election is needed"
    UNAVAILABLE = "no eligible replica is available"


def reassignment(row: PartitionRow, request: PlacementRequest) -> Reassignment:
    """Return the move from the row's replicas to the requested ones. A request made by the manager
    does not contain the original replicas: then a replica counts as new until it is in sync."""
    wanted = frozenset(request.replicas)
    old = frozenset(request.before) or row.whole
    replicas = (*row.replicas, *(node for node in request.replicas if node not in row.replicas))
    adding = tuple(node for node in replicas if node in wanted and node not in old)
    removing = tuple(node for node in replicas if node not in wanted)
    return Reassignment(replicas, adding, removing)


def cancelled(view: View, request: PlacementRequest) -> Change | None:
    """Return the change that removes the replicas that a move has added. None if there are none, or
    if they are needed: a new replica leads, or too few of the original ones are in sync."""
    row, original = view.row, reassignment(view.row, request).original
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
    """Return the election of the first replica. ``avoided``: nodes that stop or are drained."""
    row, first = view.row, view.row.replicas[0]
    if row.leader == first and is_led(row, incarnations):
        return Refused.NOT_NEEDED
    if first not in row.whole or first not in incarnations or first in avoided:
        return Refused.UNAVAILABLE
    change = election.elect(view, incarnations)
    assert change is not None, "the first replica is eligible"
    return change


def unclean_leader(view: View, incarnations: Mapping[int, int]) -> Change | Refused:
    """Return the election of an intact replica if one is alive. Otherwise elect the first live one,
    in-sync replicas first: records that it does not have are lost."""
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
