"""Decisions about a partition's replicas: which one leads, which ones may have lost records, and on
which nodes they are. Each decision is a ``Change`` of the partition's row, which the metadata store
applies or rejects, so decisions with outdated information are safe. The functions do no I/O.

The repair of a damaged replica:

    quarantined ──► marked lost ──► another node leads ──► emptied, and filled again (rule R5)
             └──► no other node has all records any more ──► opened again as it is

A quarantined replica sends no fetches. It is marked lost in a later epoch than its last fetch, so
no leader counts records that the replica had before it was emptied."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from msgspec.structs import replace

from penstock.replication.row import NO_NODE, Change, PartitionRow, View

ABSENT: Final = 0  # version of a row that does not exist


class Standing(NamedTuple):
    """The last epoch and end offset of a replica's log, as the replica reports them."""

    last_epoch: int
    end_offset: int


class Found(NamedTuple):
    is_there: bool
    is_whole: bool  # no damage, no gap, no epoch out of order
    end_offset: int
    recovery_point: int
    was_stopped: bool  # the last process stopped cleanly
    is_synced: bool  # replies waited for fsync


def loss_of(row: PartitionRow, found: Found) -> str | None:
    """Return why a replica may lack committed records, or None if it has them all (rule R5)."""
    if not found.is_there:
        return "the log is missing"
    if not found.is_whole:
        return "the log is damaged"
    if found.end_offset < found.recovery_point:
        return "the log ends before the recovery point"
    if found.end_offset < row.watermark_floor:
        return "the log ends before the last known committed offset"
    if not found.is_synced and not found.was_stopped:
        return "the node crashed with records that were not synced"
    return None


def declare_loss(view: View, node: int) -> Change | None:
    """Return a change that notes that a node may lack records, or None if not needed (rule R5)."""
    row = view.row
    if node not in row.whole:
        return None
    return Change(view.version, replace(row, lost=row.lost | {node}))


def create(replicas: Sequence[int], incarnations: Mapping[int, int], *, in_sync_min: int) -> Change:
    """Return the first row of a partition, with all replicas in sync. All nodes must be alive."""
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
    """Elect the first live replica with all committed records, if possible not in ``avoiding``."""
    row = view.row
    able = [node for node in row.replicas if node in row.whole and node in incarnations]
    chosen = next((node for node in able if node not in avoiding), able[0] if able else None)
    if chosen is None:
        return None
    return _led_by(view, chosen, incarnations, compared=(chosen,), found=row.lost)


def recover(
    view: View, incarnations: Mapping[int, int], standings: Mapping[int, Standing]
) -> Change | None:
    """Elect the replica with the longest log if all in-sync replicas may have lost records and all
    have reported their logs (rule R6). Returns None while a report is missing."""
    row = view.row
    if row.whole or not all(node in incarnations and node in standings for node in row.in_sync):
        return None
    best = max(sorted(row.in_sync), key=lambda node: standings[node])
    return _led_by(view, best, incarnations, compared=sorted(row.in_sync), found=row.lost - {best})


def elect_uncleanly(view: View, node: int, incarnations: Mapping[int, int]) -> Change | None:
    """Elect a node on an operator's request. Records that only other replicas have are lost."""
    row = view.row
    if node not in row.replicas or node not in incarnations:
        return None
    alone = replace(row, in_sync=frozenset((node,)), lost=frozenset(), watermark_floor=0)
    view = view._replace(row=alone)
    return _led_by(view, node, incarnations, compared=(node,), found=frozenset())


def _led_by(
    view: View,
    node: int,
    incarnations: Mapping[int, int],
    *,
    compared: Sequence[int],
    found: frozenset[int],
) -> Change:
    row = replace(
        view.row,
        leader=node,
        leader_incarnation=incarnations[node],
        epoch=view.row.epoch + 1,
        lost=found,
    )
    return Change(view.version, row, {each: incarnations[each] for each in compared})


def place(view: View, replicas: Sequence[int]) -> Change | None:
    """Return the next step of moving a partition to other nodes (rule R23), or None to wait. New
    replicas are added first. Old ones are removed once all new ones are in sync and one leads."""
    row = view.row
    target = tuple(replicas)
    assert target, "a partition needs at least one replica"
    missing = [node for node in target if node not in row.replicas]
    if missing:
        more = replace(row, replicas=(*row.replicas, *missing))
        return Change(view.version, more)
    if row.replicas == target:
        return None
    kept = row.in_sync & set(target)
    if not set(target) <= row.whole or row.leader not in target or len(kept) < row.in_sync_min:
        return None
    less = replace(row, replicas=target, in_sync=kept, lost=frozenset())
    return Change(view.version, less)


class RepairStep(Enum):
    RESIGN = "resign"
    WAIT = "wait"
    EMPTY = "empty"
    REOPEN = "reopen"


def is_spare(row: PartitionRow, node: int) -> bool:
    """Return whether another replica has all records, so that this one can be quarantined."""
    return bool(row.whole - {node})


def next_step(
    row: PartitionRow, node: int, *, fetched_in: int, incarnations: Mapping[int, int]
) -> RepairStep:
    """Return the next step in the repair of a quarantined replica. ``fetched_in`` is the last epoch
    in which it may have sent a fetch. Once marked lost in a later epoch, it can be emptied."""
    if row.leader == node:
        return RepairStep.RESIGN
    if not is_spare(row, node):
        return RepairStep.REOPEN  # the other replicas have lost records, so this log is needed
    if node in row.whole or row.epoch <= fetched_in:
        return RepairStep.RESIGN
    # Until a live node leads, this log may be the only copy.
    is_led = row.leader != NO_NODE and incarnations.get(row.leader) == row.leader_incarnation
    return RepairStep.EMPTY if is_led else RepairStep.WAIT


def resign(view: View, node: int) -> Change:
    """Return a change that begins a new epoch, without a leader if this node was the leader. If
    another replica has all records, this node is marked lost."""
    row = view.row
    changed = replace(row, epoch=row.epoch + 1)
    if row.leader == node:
        changed = replace(changed, leader=NO_NODE, leader_incarnation=0)
    if is_spare(row, node):
        changed = replace(changed, lost=row.lost | (row.in_sync & {node}))
    return Change(view.version, changed)
