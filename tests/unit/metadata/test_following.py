"""Following a prefix through a watch that breaks: everything is read again, and counted."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest

from penstock.metadata.following import Following
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Change, Compacted
from penstock.model.errors import PenstockError
from penstock.wire.internal.faults import Unreachable


class Breaking:
    """The watches of a store, of which the first ones break."""

    def __init__(self, store: SqliteStore, breaks: Sequence[PenstockError]) -> None:
        self._store = store
        self._breaks = list(breaks)

    async def watch(
        self, prefix: str, *, from_revision: int
    ) -> AsyncGenerator[Sequence[Change], None]:
        if self._breaks:
            raise self._breaks.pop(0)
        async for changes in self._store.watch(prefix, from_revision=from_revision):
            yield changes


async def test_what_was_read_again_is_counted_and_then_followed(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "store.db")
    breaking = Breaking(store, (Unreachable("away"), Compacted(3)))
    fills, taken = 0, asyncio.Event()
    revision = 0

    async def fill() -> None:
        nonlocal fills, revision
        fills += 1
        _, revision = await store.list("/a/")

    def take(changes: Sequence[Change]) -> None:
        assert [change.key for change in changes] == ["/a/b"]
        taken.set()

    following = Following(
        breaking,  # type: ignore[arg-type]  # of a store it only watches here
        "/a/",
        fill=fill,
        take=take,
        revision=lambda: revision,
    )
    await following.start()
    async with asyncio.timeout(20):
        while following.resync_count < 2:
            await asyncio.sleep(0.01)
    assert (fills, following.trouble) == (3, None)
    await store.put("/a/b", b"")
    async with asyncio.timeout(20):
        await taken.wait()
    assert following.resync_count == 2
    await following.stop()
    await store.close()


async def test_a_change_that_cannot_be_taken_does_not_end_the_watch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await SqliteStore.open(tmp_path / "store.db")
    taken = asyncio.Event()

    async def fill() -> None: ...

    def take(changes: Sequence[Change]) -> None:
        if changes[-1].key == "/a/bad":
            raise KeyError("bad")
        taken.set()

    following = Following(store, "/a/", fill=fill, take=take, revision=lambda: taken_to)
    _, taken_to = await store.list("/a/")
    await following.start()
    await store.put("/a/bad", b"")
    async with asyncio.timeout(20):
        while following.trouble is None:
            await asyncio.sleep(0.01)
    _, taken_to = await store.list("/a/")
    await store.put("/a/good", b"")
    async with asyncio.timeout(20):
        await taken.wait()
    assert following.resync_count == 1
    assert any(record.exc_info and record.levelname == "ERROR" for record in caplog.records)
    await following.stop()
    await store.close()
