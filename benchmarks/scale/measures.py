"""What a row, a topic, a decision cost in one process: measured with the real classes over a store
in memory. Processor time and resident memory, so that others on the machine do not matter much."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from benchmarks.scale import population
from benchmarks.scale.memory_store import MemoryStore
from benchmarks.scale.model import Constants, Size
from penstock.manager import decisions
from penstock.manager.cluster_state import ClusterState
from penstock.manager.decisions import Policy, due
from penstock.manager.placement import Host, choose, plan
from penstock.membership.cluster_view import ClusterView
from penstock.metadata.cluster_entries import (
    NODES_PREFIX,
    PARTITIONS_PREFIX,
    PartitionKey,
    encode_entry,
    partition_key,
)
from penstock.metadata.serving.mirror import Mirror, Ring, place_of
from penstock.metadata.store import CHANGES_PER_TXN_MAX, Store
from penstock.metadata.topics.catalog import TOPICS_PREFIX, StoredCatalog
from penstock.replication.election import Standing
from penstock.replication.row import View

PAGE_BYTES: Final = 4_096
CHOICES: Final = 200
TAKEN: Final = 5_000  # changes that a watch brings

T = TypeVar("T")


class RingCost(msgspec.Struct, frozen=True):
    """The metadata service's ring, of as many members as there are nodes."""

    build_seconds: float
    bytes: float
    owner_us: float
    spread: float  # the largest share, in means


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


async def grown(work: Callable[[], Awaitable[T]]) -> tuple[T, float, int]:
    """What it made, with its processor seconds and by how much memory has grown."""
    gc.collect()
    before, cpu = resident_bytes(), time.process_time()
    made = await work()
    return made, time.process_time() - cpu, resident_bytes() - before


def measured_apart(size: Size) -> Constants:
    """In a process of its own: memory that an earlier measurement gave back would hide growth."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measured, size).result()


def _measured(size: Size) -> Constants:
    return asyncio.run(measured(size))


async def measured(size: Size) -> Constants:
    """Of a cluster of this size, each figure by partition, topic or node."""
    store = MemoryStore()
    await population.fill(store, size)
    store.is_copying = True
    rows, topics = size.partitions, size.queues
    gc.collect()
    gc.freeze()  # as a node does, once it has started: the store is not what is looked at

    async def followed() -> ClusterView:
        view = ClusterView(store)
        await view.start()
        return view

    async def catalogued() -> StoredCatalog:
        catalog = StoredCatalog(store, topics_max=topics + 1)
        await catalog.start()
        return catalog

    async def mirrored() -> Mirror:
        mirror = Mirror(store, TOPICS_PREFIX)
        await mirror.start()
        return mirror

    view, view_s, view_bytes = await grown(followed)
    catalog, catalog_s, catalog_bytes = await grown(catalogued)
    collect_s = _seconds(gc.collect)
    known, see_s, known_bytes = await grown(lambda: _known(view))
    mirror, _, mirror_bytes = await grown(mirrored)
    figures = _manager(size, known, catalog)
    refresh_s = await _awaited(_refreshed(store, view))
    take_s = await _taken(store, view)
    await mirror.stop()
    await catalog.stop()
    await view.stop()
    gc.unfreeze()
    return Constants(
        row_bytes=await _entry_bytes(store, PARTITIONS_PREFIX),
        topic_bytes=await _entry_bytes(store, TOPICS_PREFIX),
        node_bytes=await _entry_bytes(store, NODES_PREFIX),
        view_row_bytes=view_bytes / rows,
        catalog_topic_bytes=catalog_bytes / topics,
        known_row_bytes=known_bytes / rows,
        mirror_topic_bytes=mirror_bytes / topics,
        fill_row_us=view_s / rows * 1e6,
        fill_topic_us=catalog_s / topics * 1e6,
        take_row_us=take_s / min(TAKEN, rows) * 1e6,
        refresh_row_us=refresh_s / rows * 1e6,
        collect_us=collect_s / (rows + topics) * 1e6,
        see_row_us=see_s / rows * 1e6,
        **figures,
    )


def _seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


async def _awaited(work: Awaitable[object]) -> float:
    begun = time.process_time()
    await work
    return time.process_time() - begun


async def _entry_bytes(store: Store, prefix: str) -> float:
    entries, _ = await store.list(prefix)
    return sum(len(each.key) + len(each.value) for each in entries) / len(entries)


async def _known(view: ClusterView) -> ClusterState:
    known = ClusterState()
    known.see_nodes(view.nodes, view.incarnations)
    for key, each in view.rows.items():
        known.see_row(key, each)
    known.due.clear()
    return known


async def _refreshed(store: MemoryStore, view: ClusterView) -> None:
    """As after a registration: something has changed since, so every row is seen anew."""
    await store.put("/other", b"")
    await view.refresh_rows()


async def _taken(store: MemoryStore, view: ClusterView) -> float:
    """Seconds until the watch has brought rows that others have changed, all of them. Without the
    cycle collector, which is a term of its own."""
    some = list(islice(view.rows.items(), TAKEN))
    puts = [(partition_key(key), encode_entry(each.row)) for key, each in some]
    gc.collect()
    gc.disable()
    begun = time.process_time()
    for start in range(0, len(puts), CHANGES_PER_TXN_MAX):
        revision = await store.txn(puts=puts[start : start + CHANGES_PER_TXN_MAX])
    written_s = time.process_time() - begun
    last = some[-1][0]
    while view.rows[last].version < revision:
        await asyncio.sleep(0)
    gc.enable()
    return time.process_time() - begun - written_s


def _no_standings(_key: PartitionKey, _view: View) -> dict[int, Standing]:
    return {}


def _manager(size: Size, known: ClusterState, catalog: StoredCatalog) -> dict[str, float]:
    policy = Policy()
    found = {}
    begun = time.process_time()
    partitions = decisions.placed(known, known.rows, catalog, policy)
    now = decisions.Situation(partitions, list(known.hosts), known.draining, policy)
    found["situation_row_us"] = (time.process_time() - begun) / size.partitions * 1e6
    plan_s = _seconds(lambda: decisions.targets(now))
    # What nodes cost by themselves: a plan of next to nothing, on as many.
    few = {key: now.partitions[key] for key in list(now.partitions)[:10]}
    nodes_s = _seconds(lambda: plan(few, now.hosts, steps_max=200))
    found["plan_node_us"] = nodes_s / size.nodes * 1e6
    found["plan_row_us"] = max(0.0, plan_s - nodes_s) / size.partitions * 1e6
    hosts = [Host(node) for node in sorted(known.nodes)]
    chosen_s = _seconds(
        lambda: [choose(hosts, known.loads, "new", count=size.replicas) for _ in range(CHOICES)]
    )
    found["choose_us_per_node"] = chosen_s / CHOICES / size.nodes * 1e6
    lost = sorted(known.nodes)[0]
    nodes = {node: entry for node, entry in known.nodes.items() if node != lost}
    made = {node: known.incarnations[node] for node in nodes}

    def lose() -> None:
        known.see_nodes(nodes, made)
        for key in known.due:
            due(known, key, catalog, policy, _no_standings)

    lost_s = _seconds(lose)
    found["due_us"] = lost_s / len(known.due) * 1e6
    return found


def ring(members: int, *, keys: int = 20_000) -> RingCost:
    gc.collect()
    before, begun = resident_bytes(), time.process_time()
    made = Ring(f"node-{number}" for number in range(members))
    build_s, size = time.process_time() - begun, resident_bytes() - before
    owned: dict[str, int] = {}
    begun = time.process_time()
    for number in range(keys):
        key = f"/topics/{population.ACCOUNT}/{population.REGION}/{number}"
        owner = made.owner_at(place_of(key))
        owned[owner] = owned.get(owner, 0) + 1
    owner_us = (time.process_time() - begun) / keys * 1e6
    shares = _shares(made)
    return RingCost(build_s, size, owner_us, max(shares.values()) * members)


def _shares(made: Ring) -> dict[str, float]:
    """Each member's part of the circle, from evenly placed probes."""
    probes = 2_000 * len(made.members)
    counts: dict[str, int] = {}
    for number in range(probes):
        owner = made.owner_at(number * (2**64 // probes))
        counts[owner] = counts.get(owner, 0) + 1
    return {owner: count / probes for owner, count in counts.items()}
