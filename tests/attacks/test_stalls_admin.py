"""No request to the admin API keeps the event loop busy for more than 20 ms, on a node with
thousands of queues and hundreds of users."""

from __future__ import annotations

import gc
import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.attacks.frames import Wire
from tests.attacks.kit import Operator, exchange, send, signed
from tests.attacks.stalls import LoopServer

from penstock.frontend.admin.api import ADMIN_ROUTES, BODY_BYTES_MAX
from penstock.metadata.security.identities import StoredIdentities
from penstock.metadata.security.identity_entries import POLICY_BYTES_MAX
from penstock.model.identity import Tenant, User
from penstock.model.limits import SUBSCRIPTION_BYTES_MAX, TENANT_SUBSCRIPTIONS_MAX
from penstock.wire.aws.sns.filter_policy import POLICY_BYTES_MAX as FILTER_BYTES_MAX
from penstock.wire.aws.sns.filter_policy import SYMBOLS_MAX
from penstock.wire.kafka.generated.create_topics import CreatableTopic, CreatableTopicConfig
from penstock.wire.webhooks.settings import PEM_CHARS_MAX

QUEUES = 2_000  # the most that one page of a list has is 1,000
USERS = 500
TENANTS = 300
KEYS_PER_USER = 2
WEBHOOKS = TENANT_SUBSCRIPTIONS_MAX - 20  # room for those that the tests create
QUEUE = "queue-0"  # has messages
ACCOUNT = "000000000000"
OPEN_SECONDS = 120  # for the first request that opens all logs, on a busy machine
MESSAGES = 6  # of 1 MiB, more than one reply has


@dataclass(frozen=True)
class Unmeasured:
    """A route that is left out, and why: as a rule because its work does not depend on what the
    node holds."""

    reason: str


@dataclass(frozen=True)
class Asked:
    """A request at the largest size that the route serves. ``{key}``, ``{tenant}``, ``{backup}``,
    ``{topic}`` and ``{webhook}`` are filled in; ``{new tenant}`` and so on with one that a repeated
    test does not find deleted."""

    path: str
    body: object = None
    status: int = 200


def _large(start: dict[str, Any], name: str, value: object) -> dict[str, Any]:
    """A body of almost ``BODY_BYTES_MAX`` bytes: ``start`` with a map of many entries."""
    count = (BODY_BYTES_MAX - 1_024) // (len(json.dumps(value)) + 16)
    return {**start, name: {f"n{number:07}": value for number in range(count)}}


def _settings(policy: object) -> dict[str, Any]:
    text = json.dumps(policy, separators=(",", ":"))
    assert len(text) <= FILTER_BYTES_MAX
    settings = {"filter": text, "filter_scope": "MessageBody"}
    assert len(json.dumps(settings)) <= SUBSCRIPTION_BYTES_MAX
    return settings


# As many bytes as a document of settings can have, and almost as many as can be stored, where
# escaped characters are escaped again.
LONG_SETTINGS = _settings({"a": [f"{number}" + "\n" * 1_080 for number in range(120)]})
assert len(json.dumps(LONG_SETTINGS)) > 0.98 * SUBSCRIPTION_BYTES_MAX
STORED_SETTINGS = {
    **_settings({"a": [f"{number}" + "\n" * 150 + "x" * 1_800 for number in range(120)]}),
    "ca": "-----BEGIN CERTIFICATE-----" + "A" * (PEM_CHARS_MAX - 100),
}
WEBHOOK = {"source": QUEUE, "endpoint": "https://example.com/hook", "paused": True}
MANY_OFFSETS = _large({}, "start_offsets", 1)
RATE = {"per_s": 1.0, "burst": 1.0}
MANY_RATES = {"limits": _large({}, "operations", RATE)}
ONE_NODE = Unmeasured("a node by itself has no cluster: 404")
BY_ID = Unmeasured("changes one entry; the body has a few fields")

# By method and path as in ``api.py``. A new route has to be added here.
ROUTES: dict[str, Asked | Unmeasured] = {
    "GET healthz": Asked("/healthz"),
    "GET readyz": Asked("/readyz"),
    "GET startupz": Asked("/startupz"),
    "POST api/v1/login": Asked("/api/v1/login", _large({"key_id": "k"}, "more", 1), 400),
    "GET metrics": Asked("/metrics"),
    "GET metrics/objects": Asked("/metrics/objects"),
    "GET api/v1/info": Asked("/api/v1/info"),
    "GET api/v1/config": Asked("/api/v1/config"),
    "GET api/v1/callees": Asked("/api/v1/callees"),
    "GET api/v1/cluster": ONE_NODE,
    "GET api/v1/cluster/partitions": ONE_NODE,
    "GET api/v1/cluster/safety": ONE_NODE,
    "POST api/v1/cluster/nodes/*/drain": ONE_NODE,
    "POST api/v1/cluster/nodes/*/undrain": ONE_NODE,
    "POST api/v1/cluster/nodes/*/decommission": ONE_NODE,
    "POST api/v1/cluster/rebalance": ONE_NODE,
    "POST api/v1/cluster/place": ONE_NODE,
    "POST api/v1/cluster/unclean-elect": ONE_NODE,
    "POST api/v1/cluster/upgrade": ONE_NODE,
    "POST api/v1/backups": Unmeasured("a backup has the ends of all logs at one moment"),
    "GET api/v1/backups/*/partitions": Asked("/api/v1/backups/{backup}/partitions"),
    "GET api/v1/backups/*/definitions": Asked("/api/v1/backups/{backup}/definitions"),
    "GET api/v1/backups/*/records": Asked(
        "/api/v1/backups/{backup}/records?topic_id={topic}&partition=0&offset=0"
    ),
    "DELETE api/v1/backups/*": Asked("/api/v1/backups/{new backup}"),
    "GET api/v1/coordinators/*/*": Asked("/api/v1/coordinators/__groups/0"),
    "POST api/v1/coordinators/*/*/skip": BY_ID,
    "GET api/v1/queues": Asked("/api/v1/queues"),
    "GET api/v1/queues/*": Asked(f"/api/v1/queues/{QUEUE}"),
    "GET api/v1/queues/*/messages": Asked(f"/api/v1/queues/{QUEUE}/messages?count=100"),
    "GET api/v1/queues/*/explain": Asked(f"/api/v1/queues/{QUEUE}/explain"),
    "POST api/v1/queues/*/rotate": BY_ID,
    "GET api/v1/subscriptions": Asked("/api/v1/subscriptions"),
    "GET api/v1/subscriptions/*": Asked("/api/v1/subscriptions/{webhook}"),
    "GET api/v1/subscriptions/*/deliveries": Asked(
        "/api/v1/subscriptions/{webhook}/deliveries?limit=1000"
    ),
    # The queue has a webhook to this endpoint.
    "POST api/v1/subscriptions": Asked(
        "/api/v1/subscriptions", {**WEBHOOK, "settings": LONG_SETTINGS}, 409
    ),
    "PATCH api/v1/subscriptions/*": Asked("/api/v1/subscriptions/{webhook}", STORED_SETTINGS),
    "POST api/v1/subscriptions/*/pause": BY_ID,
    "POST api/v1/subscriptions/*/resume": BY_ID,
    "POST api/v1/subscriptions/*/rotate": BY_ID,
    "POST api/v1/subscriptions/*/confirm": BY_ID,
    "DELETE api/v1/subscriptions/*": Asked("/api/v1/subscriptions/{new webhook}"),
    "POST api/v1/subscriptions/*/test": Asked(
        "/api/v1/subscriptions/{webhook}/test", {"body": "\n" * 500_000}
    ),
    "POST api/v1/subscriptions/*/redeliver": BY_ID,
    "POST api/v1/subscriptions/*/replay": Asked(
        "/api/v1/subscriptions/{webhook}/replay", MANY_OFFSETS, 400
    ),
    "GET api/v1/tenants": Asked("/api/v1/tenants"),
    "POST api/v1/tenants": Asked("/api/v1/tenants", {"name": "x" * 1_000_000}, 400),
    "GET api/v1/tenants/*": Asked("/api/v1/tenants/{tenant}"),
    "PATCH api/v1/tenants/*": BY_ID,
    "DELETE api/v1/tenants/*": Asked("/api/v1/tenants/{new tenant}"),
    "GET api/v1/quotas/*": Asked("/api/v1/quotas/000000000000"),
    "PATCH api/v1/quotas/*": Asked("/api/v1/quotas/000000000000", MANY_RATES, 400),
    "GET api/v1/users": Asked("/api/v1/users"),
    "POST api/v1/users": Asked("/api/v1/users", _large({"name": "many"}, "policies", "{}"), 400),
    "GET api/v1/users/*": Asked("/api/v1/users/user-0"),
    "DELETE api/v1/users/*": Asked("/api/v1/users/{new user}"),
    "PUT api/v1/users/*/password": BY_ID,
    "DELETE api/v1/users/*/password": BY_ID,
    "GET api/v1/keys": Asked("/api/v1/keys"),
    "POST api/v1/keys": BY_ID,
    "GET api/v1/keys/*": Asked("/api/v1/keys/{key}"),
    "PATCH api/v1/keys/*": BY_ID,
    "DELETE api/v1/keys/*": BY_ID,
    "POST api/v1/keys/*/rotate": BY_ID,
    "POST api/v1/policies/test": Asked(
        "/api/v1/policies/test",
        {"user": "user-0", "action": "sqs:SendMessage", "resource": QUEUE},
    ),
    "GET api/v1/policies/*": Asked("/api/v1/policies/user-0"),
    "GET api/v1/policies/*/*": Asked("/api/v1/policies/user-0/p0"),
    "PUT api/v1/policies/*/*": Asked("/api/v1/policies/user-2/p", _large({}, "Statement", {}), 400),
    "DELETE api/v1/policies/*/*": BY_ID,
}
MEASURED = {name: asked for name, asked in ROUTES.items() if isinstance(asked, Asked)}


def test_every_admin_route_is_in_the_table() -> None:
    assert set(ROUTES) == {f"{each.method} {'/'.join(each.path)}" for each in ADMIN_ROUTES}


# ── A node with much on it ───────────────────────────────────────────────────────────────────


class Filled:
    def __init__(self, server: LoopServer) -> None:
        self.server = server
        self.operator = Operator(server, server.root)
        self._make_topics()
        self._make_identities()
        self._send_messages()
        self._make_webhooks()
        self._backup = ""

    def _make_topics(self) -> None:
        queue = [CreatableTopicConfig("penstock.queue", "true")]
        topics = [CreatableTopic(f"queue-{n}", 1, 1, configs=queue) for n in range(QUEUES)]
        credentials = self.server.root
        with Wire(self.server) as wire:
            wire.socket.settimeout(120)
            assert wire.ask("SaslHandshake", 1, mechanism="PLAIN").error_code == 0
            token = f"\0{credentials.access_key}\0{credentials.secret_key}".encode()
            assert wire.ask("SaslAuthenticate", 2, auth_bytes=token).error_code == 0
            for start in range(0, len(topics), 500):
                page = topics[start : start + 500]
                made = wire.ask("CreateTopics", 5, topics=page, timeout_ms=30_000)
                assert {each.error_code for each in made.topics} == {0}

    def _make_identities(self) -> None:
        statement = {"Effect": "Deny", "Action": "sqs:a*b*c*", "Resource": "arn:aws:sqs:*:*:*x*y*"}
        text = json.dumps({"Statement": [statement] * 150})
        assert POLICY_BYTES_MAX / 2 < len(text) < POLICY_BYTES_MAX

        async def make(identities: StoredIdentities) -> None:
            for number in range(USERS):
                policies = {f"p{each}": text for each in range(10)} if number == 0 else {}
                name = f"user-{number}"
                await identities.create_user(User(ACCOUNT, name, 1, policies=policies))
                for _ in range(KEYS_PER_USER):
                    made = await identities.create_key(ACCOUNT, name, now_ms=1)
                    self.key = made.key.key_id
            for number in range(TENANTS):
                await identities.create_tenant(Tenant(f"{number + 1:012}", f"t-{number}", 1))

        self.server.change_identities(make)
        self.tenant = self.operator.tenant()

    def _make_webhooks(self) -> None:
        """As many as a tenant can have but a few. The first has the largest settings."""
        self.webhook = self._make_webhook(WEBHOOK["endpoint"], STORED_SETTINGS)
        for number in range(WEBHOOKS):
            self._make_webhook(f"https://example.com/hook-{number}")

    def _make_webhook(self, endpoint: object = "", settings: object = None) -> str:
        url = endpoint or f"https://example.com/{uuid.uuid4().hex}"
        body = {**WEBHOOK, "endpoint": url, "settings": settings or {}}
        return str(self.operator.ask("POST", "subscriptions", body)["id"])

    def _make_user(self) -> str:
        name = f"user-{uuid.uuid4().hex[:8]}"
        self.operator.ask("POST", "users", {"name": name})
        for _ in range(KEYS_PER_USER):
            self.operator.ask("POST", "keys", {"user": name})
        return name

    def _begin_backup(self) -> str:
        host, path = self.operator.host, "/api/v1/backups"
        begun = send(host, "POST", path, "{}", self.headers, seconds=OPEN_SECONDS)
        return str(json.loads(begun[1])["id"])

    def _send_messages(self) -> None:
        url = f"{self.server.url}/{ACCOUNT}/{QUEUE}"
        text = json.dumps({"QueueUrl": url, "MessageBody": '"' * 1_048_576}).encode()
        for _ in range(MESSAGES):
            lines = signed(self.server, "SendMessage", text, credentials=self.server.root)
            assert exchange(self.server, lines, text)[0] == 200

    @property
    def headers(self) -> dict[str, str]:
        return {
            "content-type": "application/json",
            "authorization": f"Bearer {self.operator.token}",
        }

    def filled_in(self, path: str) -> str:
        if "{backup}" in path and not self._backup:
            self._backup = self._begin_backup()
        values: dict[str, Callable[[], str]] = {
            "{backup}": lambda: self._backup,
            "{topic}": lambda: str(self.operator.ask("GET", f"queues/{QUEUE}")["topic_id"]),
            "{key}": lambda: self.key,
            "{tenant}": lambda: self.tenant,
            "{new backup}": self._begin_backup,
            "{new tenant}": self.operator.tenant,
            "{new user}": self._make_user,
            "{webhook}": lambda: self.webhook,
            "{new webhook}": self._make_webhook,
        }
        for name, value in values.items():
            if name in path:
                path = path.replace(name, value())
        return path


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    with LoopServer(tmp_path_factory.mktemp("filled"), is_auth_on=True) as running:
        yield Filled(running)
        running.stop(seconds=OPEN_SECONDS)


@pytest.mark.parametrize("name", MEASURED)
def test_an_admin_request_is_served_without_a_stall(filled: Filled, name: str) -> None:
    asked = MEASURED[name]
    path = filled.filled_in(asked.path)
    gc.collect()
    gc.freeze()
    host, headers = filled.operator.host, filled.headers
    body = None if asked.body is None else json.dumps(asked.body)
    began = time.monotonic()
    with filled.server.watch() as turns:
        method = name.split()[0]
        status, reply, _ = send(host, method, path, body, headers, seconds=OPEN_SECONDS)
    took = time.monotonic() - began
    print(f"{name}: {turns.longest_ms:.1f} ms a turn, {len(reply):,} bytes, {took:.2f} s")
    assert status == asked.status, reply[:300]
    turns.check()


HOSTILE_SETTINGS: dict[str, object] = {
    "many symbols": _settings({"a": [[]] * (SYMBOLS_MAX - 10)}),
    "many values": _settings({"a": [*range(SYMBOLS_MAX - 10)]}),
    "deep": {"filter": '{"a":' * 20_000, "filter_scope": "MessageBody"},
    "wildcards": _settings({"a": [{"wildcard": "*\n" * 400}, {"wildcard": "x*" * 99}]}),
    "alternatives": _settings({"$or": [{f"k{n}": [{"prefix": "\n" * 900}]} for n in range(140)]}),
    "unknown members": _large({}, "more", 1),
    "many headers": {"headers": {f"h{number}": "\n" for number in range(3_900)}},
    "certificates": {"ca": "-----BEGIN CERTIFICATE-----" + "\n" * 100_000},
    "a wrong type": [{}] * 100_000,
}


@pytest.mark.parametrize("name", HOSTILE_SETTINGS)
def test_hostile_settings_of_a_webhook_cause_no_stall(filled: Filled, name: str) -> None:
    body = json.dumps(HOSTILE_SETTINGS[name])
    path = f"/api/v1/subscriptions/{filled.webhook}"
    with filled.server.watch() as turns:
        status, reply, _ = send(filled.operator.host, "PATCH", path, body, filled.headers)
    print(f"{name}: {turns.longest_ms:.1f} ms a turn, {status}, {reply[:120]!r}")
    turns.check()
    assert status in (200, 400), reply[:300]


@pytest.mark.parametrize("name", ["POST /api/v1/users", "PUT /api/v1/policies/user-0/p0"])
@pytest.mark.parametrize("byte", [b"1", b"\xff"])
def test_the_body_of_an_unknown_caller_is_not_decoded(
    filled: Filled, name: str, byte: bytes
) -> None:
    method, path = name.split()
    body = b'{"x":[' + b",".join([byte] * (BODY_BYTES_MAX // 2 - 10)) + b"]}"
    with filled.server.watch() as turns:
        status, _, _ = send(
            filled.operator.host, method, path, body, {"content-type": "application/json"}
        )
    turns.check()
    assert status == 401
