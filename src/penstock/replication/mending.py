"""The repair of a replica whose log was found damaged (R5). Pure.

    put aside ──► counted out ──► another node leads ──► emptied, and filled again
                            └──► no other node has everything any more ──► opened again as it is

A replica that is put aside sends no requests. It is counted out in an epoch newer than any in which
it has sent a request: a leader relies on requests of its current epoch only, so no leader takes the
replica for whole because of what it had before it was emptied.
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
    """Return whether other replicas have everything, so that this one can be put aside."""
    return bool(row.whole - {node})


def next_step(
    row: PartitionRow, node: int, *, asked_in: int, incarnations: Mapping[int, int]
) -> Mending:
    """Return the next step of a replica that is put aside. ``asked_in``: the last epoch in which it
    may have sent its leader a request. The row may be outdated: once this replica was counted out
    in a newer epoch, no node relies on it, whatever has happened since."""
    if row.leader == node:
        return Mending.RESIGN
    if not is_spare(row, node):
        return Mending.REOPEN  # the others have lost records meanwhile: this log counts again
    if node in row.whole or row.epoch <= asked_in:
        return Mending.RESIGN
    # Until a live node leads, this copy may be the only one left.
    is_led = row.leader != NOBODY and incarnations.get(row.leader) == row.leader_incarnation
    return Mending.EMPTY if is_led else Mending.WAIT


def resign(view: View, node: int) -> Change:
    """Stop leading, and be counted out if other replicas have everything."""
    row = view.row
    changed = msgspec.structs.replace(row, epoch=row.epoch + 1)
    if row.leader == node:
        changed = msgspec.structs.replace(changed, leader=NOBODY, leader_incarnation=0)
    if is_spare(row, node):
        changed = msgspec.structs.replace(changed, lost=row.lost | (row.in_sync & {node}))
    return Change(view.version, changed)
