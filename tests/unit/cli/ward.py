"""A real admin API on a real socket whose node belongs to a cluster of registrations, rows and
managers, in a thread with an event loop of its own: for the commands about clusters."""

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from tests.unit.frontend.admin.test_api import ListBackend
from tests.unit.manager.cluster import Cluster, topic, until

from penstock.frontend.admin.api import AdminApi
from penstock.frontend.admin.ports import Health
from penstock.frontend.admin.request import Context, Info
from penstock.manager.decisions import Policy
from penstock.metadata.sqlite import SqliteStore
from penstock.model.levels import Levels
from penstock.net.http.browsers import BrowserGuard
from penstock.net.http.listener import HttpConfig, HttpListener
from penstock.node.cluster.cluster_admin import ClusterAdmin
from penstock.replication.row import NO_NODE
from penstock.telemetry.clock import SystemClock
from penstock.telemetry.metrics import Meter

ACCOUNT = "1" * 12

T = TypeVar("T")


class Ward:
    """Four nodes, and the topic ``a`` with eight partitions on three of them each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.url = self.run(self._open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def close(self) -> None:
        self.run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> str:
        self._store = await SqliteStore.open(self._folder / "cluster.db")
        policy = Policy(replication_factor=3, in_sync_min=2, is_balancing=False)
        self.cluster = Cluster(self._store, policy=policy)
        for number in (1, 2, 3, 4):
            await self.cluster.join(number)
        await self.cluster.create(topic("a", 8))
        node = self.cluster.nodes[1]
        api = AdminApi(
            Context(
                broker=ListBackend(),
                catalog=node.catalog,
                meter=Meter(),
                health=Health(),
                clock=SystemClock(),
                info=Info("1", "n1", "prod", ACCOUNT, "us-east-1", "/data", 0),
                cluster=ClusterAdmin(
                    node.line,
                    node.view,
                    node.catalog,
                    node=1,
                    policy=policy,
                    level=node.level,
                    manager=lambda: NO_NODE if node.manager is None else node.manager.manager,
                ),
                everything=node.catalog,
            ),
        )
        self._listener = HttpListener(
            api.handle,
            config=HttpConfig(),
            name="admin",
            seed=bytes(10),
            guard=BrowserGuard(is_open=True),
        )
        return f"http://{await self._listener.start('127.0.0.1', 0)}"

    async def rejoin(self, number: int, levels: Levels) -> None:
        """Restarted as another version."""
        node = self.cluster.nodes[number]
        node.level.levels = levels
        node.membership.entry = msgspec.structs.replace(
            node.membership.entry,
            feature_level=levels.highest,
            feature_level_min=levels.lowest,
        )
        await node.register()
        await until(lambda: all(self.cluster.is_led(row) for row in self.cluster.rows("a")))

    async def _close(self) -> None:
        await self._listener.drain(seconds_max=1.0)
        await self.cluster.stop()
        await self._store.close()
