"""An office of three tenants behind the admin API, over a real store, key ring and catalog."""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.frontend.admin.api import AdminApi
from penstock.frontend.admin.request import Context, Info
from penstock.frontend.limits.throttler import Throttler
from penstock.metadata.security.identities import StoredIdentities
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.topics.catalog import StoredCatalog
from penstock.model.identity import ADMIN_POLICY, Tenant, User
from penstock.net.http.exchange import HttpReply, HttpRequest
from penstock.node.keys.keyring import MasterKeyRing

from .test_api import ACCOUNT, REGION, World

ACME = "111111111111"
EVIL = "222222222222"
JSON = "application/json"
SEND_ONLY = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {"Sid": "Send", "Effect": "Allow", "Action": "sqs:SendMessage", "Resource": "*"}
        ],
    }
)


class Office(World):
    """Three tenants with one administrator each (root is an operator), bob may only send."""

    def __init__(self, catalog: StoredCatalog, identities: StoredIdentities) -> None:
        self.identities = identities
        self.throttler = Throttler()
        self.secrets: dict[str, tuple[str, str]] = {}
        self.tokens: dict[str, str] = {}
        super().__init__(catalog)

    def build(self, token: str = "", *, is_auth_on: bool = True) -> AdminApi:
        return AdminApi(
            Context(
                broker=self.backend,
                catalog=self.catalog,
                meter=self.meter,
                health=self.health,
                clock=self.clock,
                info=Info(
                    version="1",
                    node="n",
                    mode="prod",
                    account=ACCOUNT,
                    region=REGION,
                    data="/data",
                    started_at_ms=0,
                ),
                identities=self.identities,
                throttler=self.throttler,
                everything=self.catalog,
            ),
            token=token,
            is_auth_on=is_auth_on,
        )

    async def furnish(self) -> None:
        for account, name in ((ACCOUNT, "default"), (ACME, "acme"), (EVIL, "evil")):
            await self.identities.create_tenant(Tenant(account, name, 1))
        admin = {"admin": ADMIN_POLICY}
        for user in (
            User(ACCOUNT, "root", 1, is_operator=True),
            User(ACME, "ann", 1, policies=admin),
            User(ACME, "bob", 1, policies={"send": SEND_ONLY}),
            User(ACME, "ops", 1, is_operator=True),
            User(EVIL, "eve", 1, policies=admin),
        ):
            await self.identities.create_user(user)
            made = await self.identities.create_key(user.account, user.name, now_ms=1)
            self.secrets[user.name] = (made.key.key_id, made.secret)

    async def ask(
        self,
        who: str,
        method: str,
        target: str,
        body: Any = None,
        *,
        kind: str = JSON,
    ) -> HttpReply:
        path, _, query = target.partition("?")
        headers = {"content-type": kind} if body is not None else {}
        if who:
            headers["authorization"] = f"Bearer {await self.token(who)}"
        data = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        request = HttpRequest(method, f"/api/v1/{path}", query, headers, data, "10.0.0.9", "r1")
        return await self.api.handle(request)

    async def token(self, who: str) -> str:
        if who not in self.tokens:
            self.tokens[who] = (await self.log_in(*self.secrets[who]))["token"]
        return self.tokens[who]

    async def log_in(self, key_id: str, secret: str, status: int = 200) -> Any:
        reply = await self.ask("", "POST", "login", {"key_id": key_id, "secret": secret})
        assert reply.status == status, reply.body
        return json.loads(reply.body)

    async def ok(self, who: str, method: str, target: str, body: Any = None) -> Any:
        reply = await self.ask(who, method, target, body)
        assert reply.status in (200, 201), reply.body
        return json.loads(reply.body)

    async def no(self, status: int, who: str, method: str, target: str, body: Any = None) -> str:
        reply = await self.ask(who, method, target, body)
        assert reply.status == status, (reply.status, reply.body)
        error = json.loads(reply.body)["error"]
        return str(error["message"])


@pytest.fixture
async def office(tmp_path: Path) -> AsyncIterator[Office]:
    store = await SqliteStore.open(tmp_path / "metadata.db")
    catalog = StoredCatalog(store)
    identities = StoredIdentities(store, MasterKeyRing(bytes(32)), entropy=os.urandom)
    await catalog.start()
    await identities.start()
    office = Office(catalog, identities)
    await office.furnish()
    yield office
    await identities.stop()
    await catalog.stop()
    await store.close()
