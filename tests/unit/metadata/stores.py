"""The stores there are, as the suites that every store must pass open them."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from tests.harness.etcd import EtcdCluster
from tests.unit.metadata.cluster import QUICK, Cluster

from penstock.metadata.serving.remote_store import RemoteStore
from penstock.metadata.serving.service import MetadataConfig
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Change, Store
from penstock.telemetry.clock import SystemClock

HISTORY = 64  # revisions that are kept at least, where the store itself forgets


class Place(Protocol):
    """Where a store's data is."""

    async def open(self, folder: Path) -> Store:
        """The one of this folder, which may have been opened before."""
        ...

    async def forget(self, revision: int) -> None:
        """Let history up to a revision be gone, where that does not happen by itself."""
        ...


class SqlitePlace:
    async def open(self, folder: Path) -> Store:
        return await SqliteStore.open(folder / "metadata.db", history_revisions_max=HISTORY)

    async def forget(self, revision: int) -> None:
        pass


CALL_MS = 60_000  # these tests are not about deadlines, and the machine may be busy


class EtcdPlace:
    """One etcd for all tests, and in it a namespace for each folder."""

    def __init__(self, cluster: EtcdCluster) -> None:
        self._cluster = cluster

    async def open(self, folder: Path) -> Store:
        from penstock.metadata.etcd.links import EtcdConfig
        from penstock.metadata.etcd.store import EtcdStore

        name = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
        config = EtcdConfig(
            endpoints=self._cluster.endpoints, namespace=f"/test/{name}", call_ms=CALL_MS
        )
        return await EtcdStore.open(config)

    async def forget(self, revision: int) -> None:
        await asyncio.to_thread(self._cluster.compact, revision)


class _Remote(RemoteStore):
    """Takes with it what it asks."""

    store: SqliteStore
    cluster: Cluster

    async def close(self) -> None:
        await super().close()
        await self.cluster.stop()
        await self.store.close()


class RemotePlace:
    """A metadata node of its own, asked over sockets. It serves certain entries only."""

    async def open(self, folder: Path) -> Store:
        store = await SqliteStore.open(folder / "metadata.db", history_revisions_max=HISTORY)
        cluster = Cluster(store, MetadataConfig())
        await cluster.join("m1")
        remote = _Remote(cluster.caller("m1"), clock=SystemClock(), config=QUICK)
        remote.store, remote.cluster = store, cluster
        return remote

    async def forget(self, revision: int) -> None:
        pass


@asynccontextmanager
async def opened(place: Place, folder: Path) -> AsyncIterator[Store]:
    store = await place.open(folder)
    try:
        yield store
    finally:
        await store.close()


async def take(watch: AsyncGenerator[Sequence[Change], None], count: int) -> list[Change]:
    """The next changes of a watch, at least so many."""
    changes: list[Change] = []
    async with asyncio.timeout(10):
        while len(changes) < count:
            changes += await anext(watch)
    return changes
