"""The feature level of a cluster: who may be in it, and how it is raised, over a real store."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.membership.cluster_view import ClusterLevel, LevelRefused
from penstock.membership.registration import Membership
from penstock.metadata.cluster_entries import (
    LEVEL_KEY,
    LevelEntry,
    NodeEntry,
    PartitionKey,
    decode_level,
    decode_node,
    encode_entry,
    node_key,
    partition_key,
)
from penstock.metadata.serving.entry_rules import check_txn
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Store, Txn
from penstock.model.errors import Damaged, InvalidRequest
from penstock.model.levels import Levels
from penstock.replication.row import PartitionRow
from penstock.telemetry.clock import SystemClock
from penstock.wire.internal.faults import HelloRefused
from penstock.wire.internal.frame import Hello

OLD, NEW = Levels(1, 1), Levels(1, 2)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await SqliteStore.open(tmp_path / "store.db")
    yield store
    await store.close()


async def started(store: Store, levels: Levels) -> ClusterLevel:
    level = ClusterLevel(store, levels)
    await level.start()
    return level


def membership(store: Store, level: ClusterLevel, *, number: int = 1) -> Membership:
    entry = NodeEntry(number, f"n{number}", "127.0.0.1:1", feature_level=level.levels.highest)
    return Membership(
        store, entry, clock=SystemClock(), on_lost=lambda: None, ttl_ms=60_000, admit=level.admit
    )


async def raise_to(store: Store, level: int, *, wanted: int = 0) -> None:
    await store.put(LEVEL_KEY, encode_entry(LevelEntry(level, wanted)))


async def heard(level: ClusterLevel, wanted: int) -> None:
    changed = asyncio.Event()
    end = level.on_change(changed.set)
    async with asyncio.timeout(10):
        while level.in_force != wanted:
            changed.clear()
            await changed.wait()
    end()


class TestBeginning:
    async def test_a_new_cluster_is_at_the_highest_level_of_its_first_node(
        self, store: Store
    ) -> None:
        first = await started(store, NEW)
        second = await started(store, Levels(1, 5))
        assert (first.in_force, second.in_force) == (2, 2)
        await first.stop()
        await second.stop()

    async def test_a_cluster_from_before_there_were_levels_is_at_the_first(
        self, store: Store
    ) -> None:
        row = PartitionRow((1,), frozenset((1,)))
        await store.put(partition_key(PartitionKey("t", 0)), encode_entry(row))
        level = await started(store, NEW)
        assert level.in_force == 1
        assert await store.get(LEVEL_KEY) is None
        await level.stop()

    async def test_of_nodes_that_start_together_one_decides(self, store: Store) -> None:
        levels = [ClusterLevel(store, NEW) for _ in range(5)]
        await asyncio.gather(*(level.start() for level in levels))
        assert {level.version for level in levels} == {levels[0].version}
        for level in levels:
            await level.stop()

    async def test_an_entry_that_cannot_be_read_is_no_level(self, store: Store) -> None:
        await store.put(LEVEL_KEY, b"{")
        with pytest.raises(Damaged):
            await started(store, NEW)


class TestWhoMayBeThere:
    async def test_a_node_that_is_too_old_or_too_new_is_refused(self, store: Store) -> None:
        await raise_to(store, 2)
        with pytest.raises(LevelRefused, match="at level 2: run a newer version"):
            await started(store, OLD)
        with pytest.raises(LevelRefused, match=r"levels 3 to 4.* at level 2: run an older version"):
            await started(store, Levels(3, 4))

    async def test_what_is_wanted_is_asked_of_whoever_comes(self, store: Store) -> None:
        await raise_to(store, 1, wanted=2)
        with pytest.raises(LevelRefused, match="about to be at level 2"):
            await started(store, OLD)
        level = await started(store, NEW)
        assert level.in_force == 1
        await level.stop()

    async def test_a_wish_that_comes_during_a_registration_is_not_missed(
        self, store: Store
    ) -> None:
        await raise_to(store, 1)
        level = await started(store, OLD)
        admitted = level.admit
        seen: list[int] = []

        async def admit_late() -> tuple[str, int]:
            found = await admitted()
            seen.append(found[1])
            if len(seen) == 1:
                await raise_to(store, 1, wanted=2)
            return found

        level.admit = admit_late  # type: ignore[method-assign]
        late = membership(store, level)
        with pytest.raises(LevelRefused):
            await late.register()
        assert await store.get(node_key(1)) is None
        assert not late.is_good
        await level.stop()

    async def test_one_that_speaks_what_is_wanted_registers_all_the_same(
        self, store: Store
    ) -> None:
        await raise_to(store, 1, wanted=2)
        level = await started(store, NEW)
        node = membership(store, level)
        assert await node.register() > 0
        await node.stop()
        await level.stop()

    async def test_greetings_are_refused_by_the_level_in_force(self, store: Store) -> None:
        level = await started(store, NEW)
        level.check_hello(Hello(1, 1, "c", "new", level_min=1, level_max=2))
        with pytest.raises(HelloRefused, match="Node old supports feature level 1"):
            level.check_hello(Hello(1, 1, "c", "old"))
        await level.stop()


class TestRaising:
    async def test_is_heard_by_the_others(self, store: Store) -> None:
        await raise_to(store, 1)
        level = await started(store, NEW)
        await raise_to(store, 2)
        await heard(level, 2)
        await level.stop()

    async def test_is_never_taken_back(self, store: Store) -> None:
        level = await started(store, NEW)
        await raise_to(store, 1)
        await level.refresh()
        assert level.in_force == 2
        await store.delete(LEVEL_KEY)
        await level.refresh()
        assert level.in_force == 2
        await level.stop()


class TestEntries:
    def test_a_metadata_node_takes_no_level_that_is_none(self) -> None:
        def put(value: bytes, *, lease: int = 0) -> Txn:
            return Txn(((LEVEL_KEY, 3),), ((LEVEL_KEY, value),), (), (), lease)

        check_txn(put(encode_entry(LevelEntry(1, 2))))
        for bad in (b"[]", b'{"level":0}', b'{"level":2,"wanted":2}', b'{"level":2,"wanted":1}'):
            with pytest.raises(InvalidRequest):
                check_txn(put(bad))
        with pytest.raises(InvalidRequest):
            check_txn(put(encode_entry(LevelEntry(2)), lease=7))

    @settings(max_examples=50)
    @given(level=st.integers(1, 9), wanted=st.integers(0, 9))
    def test_what_is_written_is_read_again(self, level: int, wanted: int) -> None:
        entry = LevelEntry(level, wanted)
        assert decode_level(LEVEL_KEY, encode_entry(entry)) == entry

    def test_a_node_from_before_speaks_the_first_level(self) -> None:
        before = msgspec.json.encode({"node": 1, "name": "n", "internal": "h:1"})
        assert decode_node(node_key(1), before).levels == OLD
        said = msgspec.json.encode(
            {"node": 1, "name": "n", "internal": "h:1", "feature_level": 1, "new_field": True}
        )
        assert decode_node(node_key(1), said).levels == OLD
