"""The repair of a replica whose log was found damaged (R5). Pure.

    quarantined ──► marked lost ──► another node leads ──► emptied, and filled again
                            └──► no other node has everything any more ──► opened again as it is

A quarantined replica sends no fetches. It is marked lost in an epoch newer than any in which it has
sent a fetch: a leader relies on fetches of its current epoch only, so no leader considers the
replica whole because of what it had before it was emptied.
"""

from collections.abc import Mapping
from enum import Enum

import msgspec

from penstock.replication.row import NO_NODE, Change, PartitionRow, View


class RepairStep(Enum):
    RESIGN = "resign"
    WAIT = "wait"
    EMPTY = "empty"
    REOPEN = "reopen"


def is_spare(row: PartitionRow, node: int) -> bool:
    """Return whether other replicas have everything, so that this one can be quarantined."""
    return bool(row.whole - {node})


def next_step(
    row: PartitionRow, node: int, *, fetched_in: int, incarnations: Mapping[int, int]
) -> RepairStep:
    """Return the next step of a quarantined replica. ``fetched_in``: the last epoch in which it may
    have sent its leader a fetch. The row may be outdated: once this replica was marked lost in a
    newer epoch, no node relies on it, whatever has happened since."""
    if row.leader == node:
        return RepairStep.RESIGN
    if not is_spare(row, node):
        return RepairStep.REOPEN  # the others have lost records meanwhile: this log counts again
    if node in row.whole or row.epoch <= fetched_in:
        return RepairStep.RESIGN
    # Until a live node leads, this copy may be the only one left.
    is_led = row.leader != NO_NODE and incarnations.get(row.leader) == row.leader_incarnation
    return RepairStep.EMPTY if is_led else RepairStep.WAIT


def resign(view: View, node: int) -> Change:
    """Stop leading, and be marked lost if other replicas have everything."""
    row = view.row
    changed = msgspec.structs.replace(row, epoch=row.epoch + 1)
    if row.leader == node:
        changed = msgspec.structs.replace(changed, leader=NO_NODE, leader_incarnation=0)
    if is_spare(row, node):
        changed = msgspec.structs.replace(changed, lost=row.lost | (row.in_sync & {node}))
    return Change(view.version, changed)
