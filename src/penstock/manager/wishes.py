"""Requests of operators: drain a node, move a partition, elect preferred leaders, and, for one
named partition at a time, elect a leader that may lack committed records.

The first two are stored, and the manager performs them over time, across restarts. The last two
change rows as the manager does: a change is written if the row is unchanged since it was read, and
retried otherwise.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from penstock.manager import moving
from penstock.manager.reading import read_known, read_nodes
from penstock.manager.reassigning import Refused, cancelled, reassignment
from penstock.metadata.cluster_entries import (
    PARTITIONS_PREFIX,
    PartitionKey,
    PlaceWish,
    decode_row,
    decode_wish,
    drain_key,
    encode_entry,
    node_key,
    partition_key,
    partition_of,
    place_key,
)
from penstock.metadata.store import CHANGES_PER_TXN_MAX, Entry, Store
from penstock.model.errors import (
    Conflict,
    Damaged,
    InvalidRequest,
    NotFound,
    Throttled,
    VersionConflict,
)
from penstock.replication import election
from penstock.replication.row import Change, View

TRIES_MAX: Final = 8  # attempts of a change that conflicts with others
CHANGES_AT_ONCE: Final = 32


async def drain(store: Store, node: int) -> None:
    """Request that no replica is on this node. The node may be gone forever: its replicas are then
    replaced. Raises NotFound if the node is not alive and has no replicas."""
    known = await read_known(store)
    if node not in known.nodes and not any(known.on(node)):
        raise NotFound(f"There is no node {node}.")
    await store.put(drain_key(node), b"")


async def undrain(store: Store, node: int) -> None:
    await store.delete(drain_key(node))


async def place(store: Store, key: PartitionKey, replicas: Sequence[int]) -> None:
    """Request that a partition be on these nodes, led by the first. The request ends when it is
    done. Raises NotFound, InvalidRequest."""
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
    before = await _before(store, key, view)
    wish = PlaceWish(tuple(replicas), before)
    # The row's version is not compared: most changes of a row do not matter here.
    await store.put(place_key(key), encode_entry(wish))


async def _before(store: Store, key: PartitionKey, view: View) -> tuple[int, ...]:
    """Return the replicas of a partition, without those that a move in progress adds."""
    entry = await store.get(place_key(key))
    if entry is not None:
        with contextlib.suppress(Damaged):  # an unreadable request moves nothing
            return reassignment(view.row, decode_wish(entry.key, entry.value)).original
    return view.row.replicas


async def cancel_place(store: Store, key: PartitionKey) -> Sequence[int]:
    """End a move: the partition returns to its original replicas, which are returned. Raises
    NotFound if it is not moving."""
    for _ in range(TRIES_MAX):
        view = _view(await _row(store, key))
        entry = await store.get(place_key(key))
        if entry is None:
            raise NotFound(f"{key} is not moving.")
        wish = decode_wish(entry.key, entry.value)
        original = reassignment(view.row, wish).original
        change = cancelled(view, wish)
        compare = [(partition_key(key), view.version), (place_key(key), entry.version)]
        try:
            if change is not None:
                rows = ((partition_key(key), encode_entry(change.row)),)
                await store.txn(compare=compare, puts=rows, deletes=(place_key(key),))
            elif view.row.replicas == original:
                await store.txn(compare=compare, deletes=(place_key(key),))
            else:  # not possible yet: the manager moves the partition back
                back = ((place_key(key), encode_entry(PlaceWish(original))),)
                await store.txn(compare=compare, puts=back)
        except VersionConflict:
            continue
        return original
    raise Throttled(f"{key} is being changed elsewhere.")


async def create(
    store: Store, topic_id: str, places: Mapping[int, Sequence[int]], *, in_sync_min: int
) -> None:
    """Create partitions on given nodes, before their topic is created or grown: the manager then
    creates only missing partitions. A partition that exists already, because an earlier request
    failed half-way, is accepted if it is on these nodes. Raises InvalidRequest for a node that is
    not alive, and Conflict."""
    nodes, incarnations = await read_nodes(store)
    for node in sorted({node for replicas in places.values() for node in replicas}):
        if node not in nodes:
            raise InvalidRequest(
                f"There is no node {node}, or it is stopped. Nodes: {sorted(nodes)}."
            )
    keys = {PartitionKey(topic_id, index): tuple(places[index]) for index in sorted(places)}
    entries, _ = await store.list(f"{PARTITIONS_PREFIX}{topic_id}/")
    for entry in entries:
        key, there = partition_of(entry.key), decode_row(entry.key, entry.value).replicas
        if keys.pop(key, there) != there:
            raise Conflict(f"Partition {key.index} is there already, on nodes {list(there)}.")
    changes = [
        (key, election.create(replicas, incarnations, in_sync_min=in_sync_min))
        for key, replicas in keys.items()
    ]
    widest = max(map(len, places.values()), default=1)
    count = CHANGES_PER_TXN_MAX // (1 + widest)  # each change compares its row and all of its nodes
    for start in range(0, len(changes), count):
        some = changes[start : start + count]
        counted_on = dict(pair for _, change in some for pair in change.incarnations.items())
        await store.txn(
            compare=[(partition_key(key), change.version) for key, change in some],
            compare_created=[(node_key(node), made) for node, made in counted_on.items()],
            puts=[(partition_key(key), encode_entry(change.row)) for key, change in some],
        )


async def discard(store: Store, topic_id: str) -> None:
    """Remove the rows that ``create`` made for a topic that was not created."""
    entries, _ = await store.list(f"{PARTITIONS_PREFIX}{topic_id}/")
    for entry in entries:
        with contextlib.suppress(VersionConflict):
            await store.txn(compare=((entry.key, entry.version),), deletes=(entry.key,))


async def elect(
    store: Store, key: PartitionKey, choose: Callable[[View], Change | Refused]
) -> Refused | None:
    """Elect the leader that ``choose`` returns for the newest row; None: done. Raises NotFound."""
    for _ in range(TRIES_MAX):
        chosen = choose(_view(await _row(store, key)))
        if isinstance(chosen, Refused):
            return chosen
        try:
            await _swap(store, key, chosen)
        except VersionConflict:
            continue
        return None
    raise Throttled(f"{key} is being changed elsewhere.")


async def elect_uncleanly(store: Store, key: PartitionKey, node: int) -> None:
    """Make a node the leader; records it lacks are lost. Raises NotFound, InvalidRequest."""
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
    """Elect the first replica wherever it can lead, of all partitions or of these. Returns the
    number of leaders changed."""
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
                return False  # a newer change was written first
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
