"""A replica whose log was found damaged, on its way to being whole again (R5). Pure.

    put aside ──► counted out ──► somebody else leads ──► emptied, and filled again
                            └──► nobody else has everything any more ──► opened again as it is

It asks nobody for anything from when it is put aside. It is counted out in an epoch newer than any
in which it has asked: a leader goes by what was asked in its own epoch, so none can take it for
whole by what it had before it was emptied.
"""

from collections.abc import Mapping
from enum import Enum

import msgspec

from penstock.replication.row import NOBODY, Change, PartitionRow, View


class Mending(Enum):
    RESIGN = "resign"
    WAIT = "wait"
    EMPTY = "empty"
    REOPEN = "reopen"


def is_spare(row: PartitionRow, node: int) -> bool:
    """Whether others have everything, so that this one can be put aside."""
    return bool(row.whole - {node})


def next_step(
    row: PartitionRow, node: int, *, asked_in: int, incarnations: Mapping[int, int]
) -> Mending:
    """Of one that is put aside. ``asked_in``: the last epoch in which it may have asked its leader
    for something. It does not matter how old the row is: from when this one has been counted out in
    a newer epoch nobody counts on it, whatever has happened since."""
    if row.leader == node:
        return Mending.RESIGN
    if not is_spare(row, node):
        return Mending.REOPEN  # the others have lost something meanwhile: what is here counts again
    if node in row.whole or row.epoch <= asked_in:
        return Mending.RESIGN
    # Until somebody leads who lives, this copy may be all that is left.
    is_led = row.leader != NOBODY and incarnations.get(row.leader) == row.leader_incarnation
    return Mending.EMPTY if is_led else Mending.WAIT


def resign(view: View, node: int) -> Change:
    """It leads no more, and is counted on no more as long as others have everything."""
    row = view.row
    changed = msgspec.structs.replace(row, epoch=row.epoch + 1)
    if row.leader == node:
        changed = msgspec.structs.replace(changed, leader=NOBODY, leader_incarnation=0)
    if is_spare(row, node):
        changed = msgspec.structs.replace(changed, lost=row.lost | (row.in_sync & {node}))
    return Change(view.version, changed)
