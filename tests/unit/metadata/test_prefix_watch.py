"""Following a prefix through a watch that breaks: everything is read again, and counted."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest

from penstock.metadata.cache import PrefixWatch
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Change, Compacted, Store
from penstock.model.errors import PenstockError
from penstock.wire.internal.faults import Unreachable


class Breaking:
    """The watches of a store, of which the first ones break."""

    def __init__(self, store: Store, breaks: Sequence[PenstockError]) -> None:
        self._store = store
        self._breaks = list(breaks)

    async def watch(
        self, prefix: str, *, from_revision: int
    ) -> AsyncGenerator[Sequence[Change], None]:
        if self._breaks:
            raise self._breaks.pop(0)
        async for changes in self._store.watch(prefix, from_revision=from_revision):
            yield changes


class Following(PrefixWatch):
    """Counts reads of everything; ``taken`` is set by a change that is not called bad."""

    def __init__(self, store: Store, breaks: Sequence[PenstockError] = ()) -> None:
        super().__init__(store, "/a/")
        self._all = store
        self._store = Breaking(store, breaks)  # type: ignore[assignment]  # it is only watched
        self.fills = 0
        self.taken = asyncio.Event()

    async def _fill(self) -> None:
        self.fills += 1
        _, self.revision = await self._all.list("/a/")

    def _take(self, changes: Sequence[Change]) -> None:
        if changes[-1].key == "/a/bad":
            raise KeyError("bad")
        assert [change.key for change in changes] == ["/a/good"]
        self.taken.set()


async def test_what_was_read_again_is_counted_and_then_followed(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "store.db")
    following = Following(store, (Unreachable("away"), Compacted(3)))
    await following.start()
    async with asyncio.timeout(20):
        while following.resync_count < 2:
            await asyncio.sleep(0.01)
    assert (following.fills, following.trouble) == (3, None)
    await store.put("/a/good", b"")
    async with asyncio.timeout(20):
        await following.taken.wait()
    assert following.resync_count == 2
    await following.stop()
    await store.close()


async def test_a_change_that_cannot_be_taken_does_not_end_the_watch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await SqliteStore.open(tmp_path / "store.db")
    following = Following(store)
    await following.start()
    await store.put("/a/bad", b"")
    async with asyncio.timeout(20):
        while following.resync_count < 1:
            await asyncio.sleep(0.01)
    await store.put("/a/good", b"")
    async with asyncio.timeout(20):
        await following.taken.wait()
    assert following.resync_count == 1
    assert any(record.exc_info and record.levelname == "ERROR" for record in caplog.records)
    await following.stop()
    await store.close()
