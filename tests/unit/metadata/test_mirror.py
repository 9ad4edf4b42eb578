"""One prefix as a metadata node keeps it: whatever part is held, and however it came there, it is
what the store has."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.metadata.cluster import until

from penstock.metadata.serving.mirror import HISTORY_BYTES_MAX, Keeps, Mirror, place_of
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Change, Compacted, Entry, StoreUnusable

PREFIX = "/topics/"


def part(number: int) -> Keeps:
    return lambda place: place % 3 == number


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "metadata.db")
    yield store
    await store.close()


class Faulty:
    """A real store whose watches can be made to fail, and whose answers can be held back."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.error: Exception | None = None
        self.lists, self.watches = asyncio.Event(), asyncio.Event()  # let go
        self.lists.set()
        self.watches.set()
        self.list_count = 0
        self.get, self.put = store.get, store.put
        self.delete, self.txn, self.close = store.delete, store.txn, store.close
        self.commit = store.commit
        self.grant, self.keep_alive, self.revoke = store.grant, store.keep_alive, store.revoke

    async def list(self, prefix: str, *, min_revision: int = 0) -> tuple[Sequence[Entry], int]:
        found = await self._store.list(prefix, min_revision=min_revision)
        self.list_count += 1
        await self.lists.wait()
        return found

    async def watch(
        self, prefix: str, *, from_revision: int
    ) -> AsyncGenerator[Sequence[Change], None]:
        async for changes in self._store.watch(prefix, from_revision=from_revision):
            await self.watches.wait()
            if self.error is not None:
                raise self.error
            yield changes


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 11)),
        st.tuples(st.just("delete"), st.integers(0, 11)),
        st.tuples(st.just("hold"), st.integers(0, 2)),
        st.tuples(st.just("whole"), st.just(0)),
        st.tuples(st.just("catch up"), st.just(0)),
        st.tuples(st.just("turn"), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(steps)
def test_what_is_held_is_what_the_store_has(script: list[tuple[str, int]]) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            store = await SqliteStore.open(Path(folder) / "metadata.db")
            mirror = Mirror(
                store, PREFIX, label=lambda value: value.decode(), history_changes_max=4
            )
            await mirror.start()
            told: list[Change] = []
            next_revision = mirror.revision + 1
            tasks: list[asyncio.Task[object]] = []
            revision = 0
            for at, (verb, number) in enumerate(script):
                key = f"{PREFIX}k{number}"
                if verb == "put":
                    revision = await store.put(key, f"{number}:{at}".encode())
                elif verb == "delete":
                    revision = await store.delete(key)
                elif verb == "hold":
                    tasks.append(asyncio.create_task(mirror.hold(part(number))))
                elif verb == "whole":
                    tasks.append(asyncio.create_task(mirror.hold(None)))
                elif verb == "catch up":
                    await mirror.catch_up(revision, seconds=0.0)
                else:
                    await asyncio.sleep(0)
                try:
                    changes, next_revision = mirror.changes(next_revision)
                    told += changes
                except Compacted as gone:
                    next_revision = gone.oldest_revision
            await asyncio.gather(*tasks)
            await mirror.catch_up(revision, seconds=0.05)
            entries, _ = await store.list(PREFIX)
            held = [entry for entry in entries if mirror.holds(entry.key)]
            page, is_end = mirror.page(PREFIX, after="", count_max=100, bytes_max=1 << 20)
            assert is_end
            assert [(one.key, one.value, one.version) for one in page] == [
                (one.key, one.value, one.version) for one in held
            ]
            assert mirror.entry_count == len(entries)
            assert mirror.held_count == len(held)
            for entry in held:
                found = mirror.find_label(entry.value.decode())
                assert found is not None
                assert found.key == entry.key
            versions = [change.version for change in told]
            assert versions == sorted(set(versions))  # each once, in order
            await mirror.stop()
            await store.close()

    asyncio.run(run())


async def test_a_watch_that_fails_is_said_to_and_leaves_a_gap(store: SqliteStore) -> None:
    faulty = Faulty(store)
    gaps: list[int] = []
    mirror = Mirror(faulty, PREFIX, on_gap=lambda: gaps.append(1))
    await mirror.start()
    await store.put(f"{PREFIX}a", b"1")
    await until(lambda: mirror.revision == 1)
    assert len(gaps) == 1  # the first fill
    faulty.error = StoreUnusable("the disk is on fire")
    await store.put(f"{PREFIX}b", b"2")
    await until(lambda: mirror.trouble == "the disk is on fire")
    faulty.error = None
    await until(lambda: mirror.trouble is None)
    assert mirror.get(f"{PREFIX}b") is not None
    assert len(gaps) == 2
    with pytest.raises(Compacted):
        mirror.changes(2)
    assert mirror.changes(3) == ([], 3)
    await mirror.stop()


async def test_who_waits_behind_a_gap_is_not_left_waiting(store: SqliteStore) -> None:
    faulty = Faulty(store)
    mirror = Mirror(faulty, PREFIX)
    await mirror.start()
    waiting = asyncio.create_task(mirror.wait(1, seconds=30.0))
    await asyncio.sleep(0)
    faulty.error = StoreUnusable("for a moment")
    await store.put(f"{PREFIX}a", b"1")
    await until(lambda: mirror.trouble is not None)
    faulty.error = None
    async with asyncio.timeout(5):
        await waiting
    await mirror.stop()


async def test_what_passes_while_the_store_is_read_is_not_lost(store: SqliteStore) -> None:
    faulty = Faulty(store)
    for name in ("a", "b", "c"):
        await store.put(f"{PREFIX}{name}", b"old")
    mirror = Mirror(faulty, PREFIX)
    await mirror.start()
    await mirror.hold(lambda _place: False)
    faulty.lists.clear()
    holding = asyncio.create_task(mirror.hold(None))
    await until(lambda: faulty.list_count == 2)  # read, and on its way
    await store.put(f"{PREFIX}a", b"new")
    await store.delete(f"{PREFIX}b")
    await store.put(f"{PREFIX}d", b"new")
    await until(lambda: mirror.revision == 6)
    faulty.lists.set()
    await holding
    page, _ = mirror.page(PREFIX, after="", count_max=10, bytes_max=1_000)
    assert [(one.key[-1], one.value) for one in page] == [
        ("a", b"new"),
        ("c", b"old"),
        ("d", b"new"),
    ]
    await mirror.stop()


async def test_what_was_read_ahead_of_the_watch_is_not_undone_by_it(store: SqliteStore) -> None:
    faulty = Faulty(store)
    seen: list[bool] = []
    mirror = Mirror(
        faulty, PREFIX, on_change=lambda _change: seen.append(mirror.get(f"{PREFIX}a") is None)
    )
    await mirror.start()
    faulty.watches.clear()
    await store.put(f"{PREFIX}a", b"brief")
    await store.delete(f"{PREFIX}a")
    await mirror.catch_up(2, seconds=0.0)
    assert (mirror.revision, mirror.known_revision) == (0, 2)
    faulty.watches.set()
    await until(lambda: mirror.revision == 2)
    assert seen == [True, True]
    assert len(mirror.changes(1)[0]) == 2  # watchers are told all the same
    await mirror.stop()


async def test_history_is_bounded_by_its_bytes(store: SqliteStore) -> None:
    mirror = Mirror(store, PREFIX)
    await mirror.start()
    value = b"x" * 500_000
    count = 2 * HISTORY_BYTES_MAX // len(value)
    for _ in range(count):
        await store.put(f"{PREFIX}a", value)
    await until(lambda: mirror.revision == count)
    with pytest.raises(Compacted) as caught:
        mirror.changes(1)
    kept = 0
    next_revision = caught.value.oldest_revision
    while next_revision <= count:
        changes, next_revision = mirror.changes(next_revision)
        size = sum(len(change.value) for change in changes)
        assert 0 < size <= 5_000_000
        kept += size
    assert kept <= HISTORY_BYTES_MAX * 5 // 4 + len(value)
    await mirror.stop()


async def test_parts_are_disjoint_and_all_of_it(store: SqliteStore) -> None:
    for n in range(50):
        await store.put(f"{PREFIX}k{n}", b"")
    mirror = Mirror(store, PREFIX)
    await mirror.start()
    counts = []
    for number in range(3):
        await mirror.hold(part(number))
        assert mirror.entry_count == 50
        counts.append(mirror.held_count)
        for n in range(50):
            key = f"{PREFIX}k{n}"
            assert (mirror.get(key) is not None) == (place_of(key) % 3 == number)
    assert sum(counts) == 50
    await mirror.stop()
