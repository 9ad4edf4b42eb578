"""What an operator may ask of a cluster: to empty a node, to put a partition somewhere, to have
leaders where they belong, and, by name and one partition at a time, to let somebody lead who may
lack what was committed.

The first two are written down, and the manager sees to them in its own time, across restarts. The
last two are changes of rows like the manager's own: carried out if everything is still as it was
looked at, and otherwise looked at again.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from penstock.manager import moving
from penstock.manager.reading import read_known, read_nodes
from penstock.metadata.cluster_entries import (
    PartitionKey,
    PlaceWish,
    decode_row,
    drain_key,
    encode_entry,
    node_key,
    partition_key,
    place_key,
)
from penstock.metadata.store import Entry, Store
from penstock.model.errors import InvalidRequest, NotFound, Throttled, VersionConflict
from penstock.replication import election
from penstock.replication.row import Change, View

TRIES_MAX: Final = 8  # of a change that others keep overtaking
CHANGES_AT_ONCE: Final = 32


async def drain(store: Store, node: int) -> None:
    """Nothing shall be on this node any more. It may be gone for good: that is how its replicas are
    replaced. Raises NotFound for a node that neither is there nor has anything."""
    known = await read_known(store)
    if node not in known.nodes and not any(known.on(node)):
        raise NotFound(f"There is no node {node}.")
    await store.put(drain_key(node), b"")


async def undrain(store: Store, node: int) -> None:
    await store.delete(drain_key(node))


async def place(store: Store, key: PartitionKey, replicas: Sequence[int]) -> None:
    """Have a partition on these nodes, the first of which leads it. That ends when it is there.
    Raises NotFound, InvalidRequest."""
    view = _view(await _row(store, key))
    nodes, _ = await read_nodes(store)
    if not replicas or len(set(replicas)) != len(replicas):
        raise InvalidRequest("A partition is on one node at least, and on each of them once.")
    if len(replicas) < view.row.in_sync_min:
        raise InvalidRequest(
            f"{key} has to be in sync on {view.row.in_sync_min} nodes; it cannot be on fewer."
        )
    for node in replicas:
        if node not in nodes and node not in view.row.replicas:
            raise InvalidRequest(f"There is no node {node}.")
    wish = PlaceWish(tuple(replicas))
    # The row's version is not compared: it may change for many reasons that do not matter here.
    await store.put(place_key(key), encode_entry(wish))


async def cancel_place(store: Store, key: PartitionKey) -> None:
    """Replicas that were added and are too many go again."""
    await store.delete(place_key(key))


async def elect_uncleanly(store: Store, key: PartitionKey, node: int) -> None:
    """This node leads, and whatever it does not have is lost. Raises NotFound, InvalidRequest."""
    for _ in range(TRIES_MAX):
        view = _view(await _row(store, key))
        nodes, incarnations = await read_nodes(store)
        if node not in view.row.replicas:
            raise InvalidRequest(f"Node {node} has no replica of {key}.")
        if node not in nodes:
            raise InvalidRequest(f"Node {node} is not alive.")
        change = election.elect_uncleanly(view, node, incarnations)
        assert change is not None, "a replica that is alive"
        try:
            await _swap(store, key, change)
        except VersionConflict:
            continue
        return
    raise Throttled(f"{key} is being changed elsewhere.")


async def elect_preferred(store: Store, keys: Collection[PartitionKey] | None = None) -> int:
    """Have the first replica lead wherever it can, at once; of all partitions, or of these. Returns
    how many leaders changed."""
    known = await read_known(store)
    chosen = [
        decision
        for decision in moving.preferred(known, count_max=len(known.rows))
        if keys is None or decision.key in keys
    ]
    room = asyncio.Semaphore(CHANGES_AT_ONCE)

    async def carry_out(key: PartitionKey, change: Change) -> bool:
        async with room:
            try:
                await _swap(store, key, change)
            except VersionConflict:
                return False  # somebody was faster, and knew more
            return True

    changed = await asyncio.gather(
        *(carry_out(one.key, one.change) for one in chosen if one.change is not None)
    )
    return sum(changed)


async def _row(store: Store, key: PartitionKey) -> Entry:
    entry = await store.get(partition_key(key))
    if entry is None:
        raise NotFound(f"There is no partition {key}.")
    return entry


def _view(entry: Entry) -> View:
    return View(entry.version, entry.version, decode_row(entry.key, entry.value))


async def _swap(store: Store, key: PartitionKey, change: Change) -> None:
    await store.txn(
        compare=((partition_key(key), change.version),),
        compare_created=[(node_key(node), made) for node, made in change.incarnations.items()],
        puts=((partition_key(key), encode_entry(change.row)),),
    )
