"""A real admin API on a real socket for the commands about access: store, key ring and catalog as
a node has them, in a thread with an event loop of its own."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from tests.unit.frontend.admin.test_api import ListBackend

from penstock.frontend.admin.api import AdminApi
from penstock.frontend.admin.ports import Health
from penstock.frontend.admin.request import Context, Info
from penstock.metadata.security.identities import StoredIdentities
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.topics.catalog import StoredCatalog
from penstock.model.identity import ADMIN_POLICY, Tenant, User
from penstock.net.http.browsers import BrowserGuard
from penstock.net.http.listener import HttpConfig, HttpListener
from penstock.node.keys.keyring import MasterKeyRing
from penstock.telemetry.clock import SystemClock
from penstock.telemetry.metrics import Meter

ACCOUNT = "000000000000"
ACME = "111111111111"

T = TypeVar("T")


class Office:
    """Two tenants: ``default`` with the operator root, ``acme`` with ann, who administers it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.secrets: dict[str, tuple[str, str]] = {}
        self.url = self.run(self._open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def close(self) -> None:
        self.run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> str:
        self._store = await SqliteStore.open(self._folder / "metadata.db")
        self.catalog = StoredCatalog(self._store)
        ring = MasterKeyRing(os.urandom(32))
        self.identities = StoredIdentities(self._store, ring, entropy=os.urandom)
        await self.catalog.start()
        await self.identities.start()
        for tenant in (Tenant(ACCOUNT, "default", 1), Tenant(ACME, "acme", 1)):
            await self.identities.create_tenant(tenant)
        for user in (
            User(ACCOUNT, "root", 1, is_operator=True),
            User(ACME, "ann", 1, policies={"admin": ADMIN_POLICY}),
        ):
            await self.identities.create_user(user)
            made = await self.identities.create_key(user.account, user.name, now_ms=1)
            self.secrets[user.name] = (made.key.key_id, made.secret)
        api = AdminApi(
            Context(
                broker=ListBackend(),
                catalog=self.catalog,
                meter=Meter(),
                health=Health(),
                clock=SystemClock(),
                info=Info("1", "n", "prod", ACCOUNT, "us-east-1", "/data", 0),
                identities=self.identities,
                everything=self.catalog,
            ),
            is_auth_on=True,
        )
        self._listener = HttpListener(
            api.handle,
            config=HttpConfig(),
            name="admin",
            seed=bytes(10),
            guard=BrowserGuard(is_open=True),
        )
        return f"http://{await self._listener.start('127.0.0.1', 0)}"

    async def _close(self) -> None:
        await self._listener.drain(seconds_max=1.0)
        await self.identities.stop()
        await self.catalog.stop()
        await self._store.close()
