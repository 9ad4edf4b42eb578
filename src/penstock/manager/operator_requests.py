"""Requests of operators: drain a node, move a partition, elect preferred leaders, and elect a
leader that may lack committed records (for one partition at a time).

The first two are stored, and the manager performs them over time, across restarts. The last two
change rows as the manager does: a change is written if the row is unchanged since it was read, and
retried otherwise."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeVar

import msgspec

from penstock.manager.cluster_state import is_led, read_cluster_state, read_nodes
from penstock.manager.decisions import preferred
from penstock.membership.cluster_view import write_row
from penstock.metadata import cluster_entries as stored
from penstock.metadata.cluster_entries import PartitionKey, PlacementRequest
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
from penstock.replication.row import Change, PartitionRow, View

T = TypeVar("T")

TRIES_MAX: Final = 8  # attempts to write a change that conflicts with others
CHANGES_AT_ONCE: Final = 32


class Reassignment(NamedTuple):
    """A move as Kafka describes it: all replicas during the move, those added and those removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def original(self) -> tuple[int, ...]:
        """The replicas before the move. A cancelled move restores them."""
        return tuple(node for node in self.replicas if node not in self.adding) or self.replicas


class Refused(Enum):
    NOT_NEEDED = "no election is needed"
    UNAVAILABLE = "no eligible replica is available"


def reassignment(row: PartitionRow, request: PlacementRequest) -> Reassignment:
    """Return the move from the row's replicas to the requested ones. A request made by the manager
    does not name the original replicas; then a replica counts as added until it is in sync."""
    wanted = frozenset(request.replicas)
    old = frozenset(request.before) or row.whole
    replicas = (*row.replicas, *(node for node in request.replicas if node not in row.replicas))
    adding = tuple(node for node in replicas if node in wanted and node not in old)
    removing = tuple(node for node in replicas if node not in wanted)
    return Reassignment(replicas, adding, removing)


def cancelled(view: View, request: PlacementRequest) -> Change | None:
    """Return the change that removes the replicas added by a move. Return None if no replicas were
    added, if one of them leads, or if too few of the original replicas are in sync."""
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
    """Return the change that makes the first replica the leader, unless its node is ``avoided``."""
    row, first = view.row, view.row.replicas[0]
    if row.leader == first and is_led(row, incarnations):
        return Refused.NOT_NEEDED
    if first not in row.whole or first not in incarnations or first in avoided:
        return Refused.UNAVAILABLE
    change = election.elect(view, incarnations)
    assert change is not None, "the first replica is eligible"
    return change


def unclean_leader(view: View, incarnations: Mapping[int, int]) -> Change | Refused:
    """Return the change that elects an intact replica or, if none is alive, any live replica,
    in-sync replicas first. Records that the new leader does not have are lost."""
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


async def drain(store: Store, node: int) -> None:
    """Request that all replicas leave a node. Raises NotFound if the node does not exist."""
    state = await read_cluster_state(store)
    if node not in state.nodes and not any(state.on(node)):
        raise NotFound(f"There is no node {node}.")
    await store.put(stored.drain_key(node), b"")


async def undrain(store: Store, node: int) -> None:
    await store.delete(stored.drain_key(node))


async def place(store: Store, key: PartitionKey, replicas: Sequence[int]) -> None:
    """Request that a partition moves to these nodes. Raises NotFound for an unknown partition."""
    view = await _row(store, key)
    nodes, _ = await read_nodes(store)
    if not replicas or len(set(replicas)) != len(replicas):
        raise InvalidRequest("Name at least one node for the partition, and no node twice.")
    if len(replicas) < view.row.in_sync_min:
        raise InvalidRequest(
            f"Partition {key} needs at least {view.row.in_sync_min} replicas, not {len(replicas)}."
        )
    for node in replicas:
        if node not in nodes and node not in view.row.replicas:
            raise InvalidRequest(f"There is no node {node}.")
    entry = await store.get(stored.placement_key(key))
    before = view.row.replicas
    if entry is not None:  # a move is in progress: leave out the replicas that it adds
        before = reassignment(view.row, _requested(entry, view)).original
    request = PlacementRequest(tuple(replicas), before)
    # The row's version is not compared, because most changes of a row do not matter here.
    await store.put(stored.placement_key(key), stored.encode_entry(request))


def _requested(entry: Entry, view: View) -> PlacementRequest:
    """Return the entry's placement request, or one without changes if the entry is unreadable."""
    try:
        return stored.decode_placement(entry.key, entry.value)
    except Damaged:
        return PlacementRequest(view.row.replicas, view.row.replicas)


async def cancel_placement(store: Store, key: PartitionKey) -> Sequence[int]:
    """Cancel a move, and return the original replicas. Raises NotFound if there is no move."""

    async def cancel() -> Sequence[int]:
        view = await _row(store, key)
        row_at, request_at = stored.partition_key(key), stored.placement_key(key)
        entry = await store.get(request_at)
        if entry is None:
            raise NotFound(f"Partition {key} is not moving.")
        request = _requested(entry, view)
        original = reassignment(view.row, request).original
        change = cancelled(view, request)
        puts, deletes = [], [request_at]
        if change is not None:
            puts = [(row_at, stored.encode_entry(change.row))]
        elif view.row.replicas != original:  # the manager must first move the partition back
            puts, deletes = [(request_at, stored.encode_entry(PlacementRequest(original)))], []
        compare = [(row_at, view.version), (request_at, entry.version)]
        await store.txn(compare=compare, puts=puts, deletes=deletes)
        return original

    return await _retried(key, cancel)


async def create(
    store: Store, topic_id: str, places: Mapping[int, Sequence[int]], *, in_sync_min: int
) -> None:
    """Create partitions on given nodes before their topic is created or gets more partitions. A
    partition that an earlier, failed request created on these nodes is accepted. Raises Conflict if
    a partition exists on other nodes, and InvalidRequest if a node is not alive."""
    nodes, incarnations = await read_nodes(store)
    for node in sorted({node for replicas in places.values() for node in replicas}):
        if node not in nodes:
            text = f"There is no node {node}, or it is stopped. Nodes: {sorted(nodes)}."
            raise InvalidRequest(text)
    keys = {PartitionKey(topic_id, index): tuple(places[index]) for index in sorted(places)}
    entries, _ = await store.list(f"{stored.PARTITIONS_PREFIX}{topic_id}/")
    for entry in entries:
        key, there = (
            stored.partition_of(entry.key),
            stored.decode_row(entry.key, entry.value).replicas,
        )
        if keys.pop(key, there) != there:
            raise Conflict(f"Partition {key.index} already exists on nodes {list(there)}.")
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
            compare=[(stored.partition_key(key), change.version) for key, change in some],
            compare_created=[(stored.node_key(node), made) for node, made in counted_on.items()],
            puts=[
                (stored.partition_key(key), stored.encode_entry(change.row)) for key, change in some
            ],
        )


async def discard(store: Store, topic_id: str) -> None:
    """Remove the rows that ``create`` made for a topic that was not created."""
    entries, _ = await store.list(f"{stored.PARTITIONS_PREFIX}{topic_id}/")
    for entry in entries:
        with contextlib.suppress(VersionConflict):
            await store.txn(compare=((entry.key, entry.version),), deletes=(entry.key,))


async def elect(
    store: Store, key: PartitionKey, choose: Callable[[View], Change | Refused]
) -> Refused | None:
    """Elect the leader that ``choose`` selects. Return the reason if it selects none, else None."""

    async def swap() -> Refused | None:
        chosen = choose(await _row(store, key))
        if isinstance(chosen, Refused):
            return chosen
        await write_row(store, key, chosen)
        return None

    return await _retried(key, swap)


async def elect_uncleanly(store: Store, key: PartitionKey, node: int) -> None:
    """Make a node the leader. Records that the node does not have are lost."""

    async def swap() -> None:
        view = await _row(store, key)
        nodes, incarnations = await read_nodes(store)
        if node not in view.row.replicas:
            raise InvalidRequest(f"Node {node} has no replica of {key}.")
        if node not in nodes:
            raise InvalidRequest(f"Node {node} is not alive.")
        change = election.elect_uncleanly(view, node, incarnations)
        assert change is not None, "a live replica can always be elected"
        await write_row(store, key, change)

    await _retried(key, swap)


async def elect_preferred(store: Store, keys: Collection[PartitionKey] | None = None) -> int:
    """Make the first replica the leader of partitions where it can lead; return their number."""
    state = await read_cluster_state(store)
    found = preferred(state, count_max=len(state.rows))
    chosen = [one for one in found if keys is None or one.key in keys]
    room = asyncio.Semaphore(CHANGES_AT_ONCE)

    async def carry_out(key: PartitionKey, change: Change) -> bool:
        async with room:
            try:
                await write_row(store, key, change)
            except VersionConflict:
                return False  # a newer change was written first
            return True

    changes = (carry_out(one.key, one.change) for one in chosen if one.change is not None)
    return sum(await asyncio.gather(*changes))


async def _row(store: Store, key: PartitionKey) -> View:
    entry = await store.get(stored.partition_key(key))
    if entry is None:
        raise NotFound(f"There is no partition {key}.")
    return View(entry.version, entry.version, stored.decode_row(entry.key, entry.value))


async def _retried(key: PartitionKey, step: Callable[[], Awaitable[T]]) -> T:
    for _ in range(TRIES_MAX):
        try:
            return await step()
        except VersionConflict:
            continue
    raise Throttled(f"Partition {key} is being changed by another request; retry.")
