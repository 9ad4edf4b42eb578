"""The cluster as a node knows it, from a real store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.unit.broker.replicas.stage import until

from penstock.membership.cluster_view import ClusterView
from penstock.membership.registration import Membership, NodeTaken
from penstock.metadata.cluster_entries import (
    NodeEntry,
    PartitionKey,
    encode_entry,
    node_key,
    partition_key,
)
from penstock.metadata.sqlite import SqliteStore
from penstock.model.errors import VersionConflict
from penstock.model.topic import Kind, Topic
from penstock.node.cluster.cluster_role import ClusterRoutes
from penstock.replication.election import elect
from penstock.replication.row import PartitionRow
from penstock.telemetry.clock import SystemClock

KEY = PartitionKey("a" * 32, 0)
TOPIC = Topic("a" * 32, "0", "r", "t", Kind.STANDARD, 2, 0, 0, b"k")


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[SqliteStore, ClusterView]]:
    store = await SqliteStore.open(folder / "store")
    view = ClusterView(store)
    await view.start()
    try:
        yield store, view
    finally:
        await view.stop()
        await store.close()


def member(
    store: SqliteStore, number: int, *, folder: str = "f", ttl_ms: int = 6_000
) -> Membership:
    entry = NodeEntry(number, f"n{number}", f"127.0.0.1:{number}", folder_id=folder)
    return Membership(store, entry, clock=SystemClock(), on_lost=lambda: None, ttl_ms=ttl_ms)


async def test_R4_a_node_that_comes_back_is_another_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, view):
        first = member(store, 1)
        before = await first.register()
        await until(lambda: view.incarnations.get(1) == before)
        again = member(store, 1)
        await again.clear()
        after = await again.register()
        assert after > before
        await until(lambda: view.incarnations.get(1) == after)
        assert first._task is not None
        first._task.cancel()
        await again.stop()
        await until(lambda: not view.nodes)


async def test_a_number_that_another_folder_uses_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, _):
        first = member(store, 1, ttl_ms=60_000)
        await first.register()
        with pytest.raises(NodeTaken, match=r"cluster\.node"):
            await member(store, 1, folder="another", ttl_ms=1_000).clear()
        await first.stop()


async def test_what_a_node_says_anew_does_not_change_its_incarnation(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, view):
        node = member(store, 1)
        made = await node.register()
        await node.change(is_leaving=True)
        await until(lambda: view.nodes[1].is_leaving)
        assert view.incarnations[1] == made
        await node.stop()


async def test_R20_a_lease_that_ended_early_is_noticed_by_its_entry(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, view):
        lost = asyncio.Event()
        entry = NodeEntry(1, "n1", "127.0.0.1:1")
        node = Membership(store, entry, clock=SystemClock(), on_lost=lost.set)
        await node.register()
        assert node.is_good
        view.on_nodes(lambda: node.seen_gone(view.incarnations.get(1)))
        await store.revoke(node.lease)
        async with asyncio.timeout(5):
            await lost.wait()
        assert not node.is_good


async def test_R1_a_change_of_a_row_that_has_moved_on_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, view):
        node = member(store, 1)
        made = await node.register()
        row = PartitionRow((1,), frozenset((1,)))
        await store.put(partition_key(KEY), encode_entry(row))
        await until(lambda: KEY in view.rows)
        old = view.rows[KEY]
        change = elect(old, {1: made})
        assert change is not None
        await view.propose(KEY, change)
        assert view.rows[KEY].row.leader == 1
        with pytest.raises(VersionConflict):
            await view.propose(KEY, change)
        stale = elect(view.rows[KEY], {1: made - 1})
        assert stale is not None
        with pytest.raises(VersionConflict):  # of a life that is over
            await view.propose(KEY, stale)
        await node.stop()


async def test_an_entry_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, view):
        await store.put("/nodes/none", b"{}")
        await store.put(node_key(2), b"not json")
        await store.put(partition_key(PartitionKey("b" * 32, 1)), b"[]")
        await store.put(partition_key(KEY), encode_entry(PartitionRow((1,), frozenset((1,)))))
        await until(lambda: KEY in view.rows)
        assert list(view.rows) == [KEY]
        assert not view.nodes


async def test_routes_believe_a_hint_until_the_row_says_more(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, view):
        nodes = [member(store, number) for number in (1, 2)]
        for node in nodes:
            await node.register()
        routes = ClusterRoutes(view)
        row = PartitionRow((1, 2), frozenset((1, 2)), leader=1, epoch=3)
        await store.put(partition_key(KEY), encode_entry(row))
        await until(lambda: routes.leader(TOPIC, 0) == (1, 3) and len(view.nodes) == 2)
        assert routes.leaders(TOPIC) == {0: 1}
        waiting = asyncio.ensure_future(routes.wait_changed(5))
        await asyncio.sleep(0)
        routes.note_leader(str(KEY), 2, 4)
        await waiting
        assert routes.leader(TOPIC, 0) == (2, 4)
        routes.note_leader(str(KEY), 1, 2)  # of the past
        assert routes.leader(TOPIC, 0) == (2, 4)
        newer = PartitionRow((1, 2), frozenset((1, 2)), leader=1, epoch=5)
        await store.put(partition_key(KEY), encode_entry(newer))
        await until(lambda: routes.leader(TOPIC, 0) == (1, 5))
        await nodes[0].stop()
        await until(lambda: routes.leader(TOPIC, 0) is None)
        await nodes[1].stop()
