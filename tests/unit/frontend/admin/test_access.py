"""Who is let into the admin API, and how far: log-ins, tokens, tenants kept apart."""

import base64
import json
from typing import Any

import msgspec
import pytest

from penstock.frontend.admin.api import ADMIN_ROUTES, ANY, OPEN
from penstock.frontend.admin.login import TOKEN_MS
from penstock.frontend.admin.request import METRICS
from penstock.model.errors import NotLeader
from penstock.model.identity import ADMIN_POLICY, Caller, KeyStatus, Limits, Rate, User
from penstock.model.message import Message
from penstock.model.topic import Obstacles, QueueStats, Topic

from .conftest import ACME, EVIL, Office
from .test_api import ACCOUNT

# ── Logging in ───────────────────────────────────────────────────────────────────────────────


async def test_a_log_in_gives_a_token_that_says_who_and_ends_after_twelve_hours(
    office: Office,
) -> None:
    session = await office.log_in(*office.secrets["ann"])
    assert (session["account"], session["user"], session["is_operator"]) == (ACME, "ann", False)
    assert session["expires_at_ms"] == office.clock.now_ms + TOKEN_MS
    assert office.secrets["ann"][1] not in json.dumps(session)
    await office.ok("ann", "GET", "users")
    office.clock.now_ms += TOKEN_MS - 1
    await office.ok("ann", "GET", "users")
    office.clock.now_ms += 1
    assert "log in" in await office.no(401, "ann", "GET", "users")


async def test_every_wrong_log_in_reads_the_same(office: Office) -> None:
    key_id, secret = office.secrets["ann"]
    disabled, its_secret = office.secrets["bob"]
    await office.identities.set_key_status(disabled, KeyStatus.DISABLED)
    messages = {
        (await office.log_in(*pair, status=401))["error"]["message"]
        for pair in (
            (key_id, "wrong"),
            (key_id, ""),
            ("PSAKNOBODY", secret),
            (key_id, secret + "x"),
            (disabled, its_secret),
            ("", ""),
        )
    }
    assert len(messages) == 1
    bodies: list[Any] = [{}, {"key_id": key_id}, {"key_id": 1, "secret": secret}, [], b"nonsense"]
    for body in bodies:
        assert secret not in await office.no(400, "", "POST", "login", body)


@pytest.mark.parametrize("how", ["disable", "delete", "delete user", "suspend"])
async def test_a_token_ends_with_the_next_request_once_its_key_does(
    office: Office, how: str
) -> None:
    await office.ok("ann", "GET", "users")
    key_id = office.secrets["ann"][0]
    if how == "disable":
        await office.ok("root", "PATCH", f"keys/{key_id}", {"status": "disabled"})
    elif how == "delete":
        await office.ok("root", "DELETE", f"keys/{key_id}")
    elif how == "delete user":
        await office.ok("root", "DELETE", f"users/ann?tenant={ACME}")
    else:
        await office.ok("root", "PATCH", "tenants/acme", {"is_suspended": True})
    await office.no(401, "ann", "GET", "users")
    await office.log_in(*office.secrets["ann"], status=401)
    if how in ("disable", "suspend"):
        undo = {"disable": (f"keys/{key_id}", {"status": "active"})}.get(
            how, ("tenants/acme", {"is_suspended": False})
        )
        await office.ok("root", "PATCH", *undo)
        await office.ok("ann", "GET", "users")


async def test_an_operator_of_a_suspended_tenant_can_still_resume_it(office: Office) -> None:
    await office.ok("root", "PATCH", "tenants/default", {"is_suspended": True})
    await office.ok("root", "PATCH", "tenants/default", {"is_suspended": False})


async def test_a_token_that_was_tampered_with_is_refused(office: Office) -> None:
    token = await office.token("bob")
    scheme, body, mac = token.split(".")
    claims = msgspec.json.decode(base64.urlsafe_b64decode(body + "=="))
    forged = base64.urlsafe_b64encode(
        msgspec.json.encode({**claims, "expires_at_ms": claims["expires_at_ms"] + 1})
    ).decode()
    root = base64.urlsafe_b64encode(
        msgspec.json.encode({**claims, "user": "root", "account": ACCOUNT})
    ).decode()
    for bad in (
        f"{scheme}.{forged.rstrip('=')}.{mac}",
        f"{scheme}.{root.rstrip('=')}.{mac}",
        f"{scheme}.{body}.",
        f"{scheme}.{body}.{mac[:-2]}",
        f"{scheme}.{body}.{'A' * len(mac)}",
        f"{scheme}.{body}",
        f"{scheme}..",
        f"{scheme}.%%.{mac}",
        f"{scheme}." + "A" * 10_000 + f".{mac}",
        token + ".x",
        "",
        "x",
    ):
        office.tokens["bob"] = bad
        await office.no(401, "bob", "GET", "info")


async def test_the_operators_token_stays_good_and_only_the_whole_of_it(office: Office) -> None:
    office.api = office.build(token="s3cret")
    office.tokens["x"] = "s3cret"
    assert len((await office.ok("x", "GET", "tenants"))["tenants"]) == 3
    office.tokens["x"] = "s3cre"
    await office.no(401, "x", "GET", "tenants")
    await office.ok("root", "GET", "tenants")


async def test_with_authentication_off_and_no_token_everybody_is_the_operator(
    office: Office,
) -> None:
    office.api = office.build(is_auth_on=False)
    assert len((await office.ok("", "GET", "tenants"))["tenants"]) == 3
    made = await office.ok("", "POST", "users", {"name": "zoe"})
    assert made["account"] == ACCOUNT


@pytest.mark.parametrize("target", ["info", "config", "queues", "tenants", "users", "keys"])
async def test_with_authentication_on_nothing_is_open_but_the_probes(
    office: Office, target: str
) -> None:
    await office.no(401, "", "GET", target)
    assert (await office.send("/healthz")).status == 200
    assert (await office.send("/metrics")).status == 401


# ── Tenants are apart ────────────────────────────────────────────────────────────────────────


async def test_an_administrator_sees_one_tenant_and_an_operator_all(office: Office) -> None:
    assert [t["name"] for t in (await office.ok("root", "GET", "tenants"))["tenants"]] == [
        "default",
        "acme",
        "evil",
    ]
    mine = (await office.ok("ann", "GET", "tenants"))["tenants"]
    assert [(t["name"], t["user_count"]) for t in mine] == [("acme", 3)]
    assert [u["name"] for u in (await office.ok("ann", "GET", "users"))["users"]] == [
        "ann",
        "bob",
        "ops",
    ]
    assert [u["name"] for u in (await office.ok("root", "GET", "users?tenant=evil"))["users"]] == [
        "eve"
    ]


async def test_nothing_of_another_tenant_can_be_seen_or_changed(office: Office) -> None:
    eve_key = office.secrets["eve"][0]
    for method, target, body in (
        ("GET", f"users?tenant={EVIL}", None),
        ("GET", "users?tenant=evil", None),
        ("GET", f"users/eve?tenant={EVIL}", None),
        ("DELETE", f"users/eve?tenant={EVIL}", None),
        ("POST", "users", {"name": "spy", "tenant": EVIL}),
        ("POST", "keys", {"user": "eve", "tenant": EVIL}),
        ("GET", f"keys?tenant={EVIL}", None),
        ("GET", f"policies/eve/admin?tenant={EVIL}", None),
        ("PUT", f"policies/eve/admin?tenant={EVIL}", {"Statement": []}),
        ("GET", f"tenants/{EVIL}", None),
        ("GET", "quotas/evil", None),
        ("GET", f"queues?account={EVIL}", None),
        ("GET", f"queues/q?account={EVIL}", None),
        ("GET", f"queues/q/messages?account={EVIL}", None),
        (
            "POST",
            "policies/test",
            {"user": "eve", "tenant": EVIL, "action": "a:b", "resource": "q"},
        ),
    ):
        assert "only access your own tenant" in await office.no(403, "ann", method, target, body)
        # Whether there is such a tenant is not to be learnt either.
        other = target.replace(EVIL, "333333333333").replace("evil", "nobody")
        if other != target:
            assert "only access your own tenant" in await office.no(403, "ann", method, other, body)
    for method, target, body in (
        ("GET", f"keys/{eve_key}", None),
        ("PATCH", f"keys/{eve_key}", {"status": "disabled"}),
        ("DELETE", f"keys/{eve_key}", None),
        ("POST", f"keys/{eve_key}/rotate", {}),
    ):
        real = await office.no(404, "ann", method, target, body)
        fake = await office.no(404, "ann", method, target.replace(eve_key, "PSAKNOBODY"), body)
        assert real.replace(eve_key, "PSAKNOBODY") == fake


async def test_an_administrator_cannot_become_an_operator(office: Office) -> None:
    ops_key = office.secrets["ops"][0]
    for method, target, body in (
        ("POST", "users", {"name": "me", "is_operator": True}),
        ("POST", "keys", {"user": "ops"}),
        ("POST", f"keys/{ops_key}/rotate", {}),
        ("PATCH", f"keys/{ops_key}", {"status": "disabled"}),
        ("DELETE", f"keys/{ops_key}", None),
        ("DELETE", "users/ops", None),
        ("PUT", "policies/ops/p", json.loads(ADMIN_POLICY)),
        ("DELETE", "policies/ops/p", None),
        ("PUT", "users/ops/password", {"credentials": []}),
        ("DELETE", "users/ops/password", None),
        ("PATCH", "tenants/acme", {"is_suspended": False}),
        ("PATCH", "quotas/acme", {}),
        ("DELETE", "tenants/acme", None),
        ("POST", "tenants", {"name": "mine"}),
        ("GET", "config", None),
    ):
        await office.no(403, "ann", method, target, body)
    assert (await office.send("/metrics")).status == 401
    token = await office.token("ann")
    assert (await office.send("/metrics", authorization=f"Bearer {token}")).status == 403
    await office.ok("ann", "GET", "users/ops")  # looking is no harm


async def test_a_user_without_a_policy_for_it_is_denied_by_name(office: Office) -> None:
    for method, target, body in (
        ("GET", "users", None),
        ("GET", "users/bob", None),
        ("POST", "keys", {"user": "bob"}),
        ("PUT", "policies/bob/more", json.loads(ADMIN_POLICY)),
        ("GET", "tenants", None),
        ("GET", "queues", None),
        ("GET", "queues/q/messages", None),
    ):
        assert "bob may not perform" in await office.no(403, "bob", method, target, body)
    await office.ok("bob", "GET", "info")


async def test_rights_can_be_given_in_part(office: Office) -> None:
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": ["admin:*", "sqs:ListQueues"],
                "Resource": ["arn:penstock:admin:*:*:user/job-*", "arn:aws:sqs:*:*:*"],
            },
        ],
    }
    await office.ok("ann", "PUT", "policies/bob/helper", policy)
    made = await office.ok("bob", "POST", "users", {"name": "job-1"})
    assert made["account"] == ACME
    await office.ok("bob", "POST", "keys", {"user": "job-1"})
    await office.no(403, "bob", "POST", "users", {"name": "boss"})
    await office.no(403, "bob", "POST", "keys", {"user": "ann"})
    await office.no(403, "bob", "GET", "users")
    assert await office.ok("bob", "GET", "queues") == {"queues": [], "next": None}
    await office.ok("ann", "DELETE", "policies/bob/helper")
    await office.no(403, "bob", "POST", "users", {"name": "job-2"})


async def test_queues_are_those_of_the_callers_account(office: Office) -> None:
    topic = await office.topic("theirs", visible=1)
    office.backend.add(topic, Message(message_id=bytes(16), body=b"secret"))
    own = msgspec.structs.replace(topic, topic_id="own", account=ACME, name="ours")
    await office.catalog.create(own)
    office.backend.counts["own"] = office.backend.counts[topic.topic_id]
    seen = await office.ok("ann", "GET", "queues")
    assert [queue["name"] for queue in seen["queues"]] == ["ours"]
    assert len((await office.ok("root", "GET", "queues"))["queues"]) == 2
    await office.ok("ann", "GET", "queues/ours")
    await office.ok("ann", "GET", "queues/ours/messages")
    await office.no(404, "ann", "GET", "queues/theirs/messages")
    assert (await office.ok("root", "GET", "queues/theirs/messages"))["messages"]


async def _ours(office: Office) -> Topic:
    """A queue of the tenant acme with one available message."""
    topic = await office.topic("theirs")
    own = msgspec.structs.replace(topic, topic_id="own", account=ACME, name="ours")
    office.backend.counts["own"] = QueueStats(visible=1, obstacles=Obstacles(available=1))
    return await office.catalog.create(own)


async def test_an_explanation_names_the_policy_that_keeps_the_caller_out(office: Office) -> None:
    ours = await _ours(office)
    looks = {
        "Effect": "Allow",
        "Action": ["sqs:GetQueueAttributes", "admin:Read"],
        "Resource": "*",
    }
    await office.ok("ann", "PUT", "policies/bob/look", {"Statement": [looks]})
    told = await office.ok("bob", "GET", "queues/ours/explain")
    assert not told["is_delivering"]
    denied = told["reasons"][0]
    assert denied["code"] == "denied"
    assert denied["text"] == (
        f"bob may not perform sqs:ReceiveMessage on {ours.arn}: no policy allows it"
    )
    assert told["summary"] == denied["text"]
    # For somebody else, as an administrator or operator asks it.
    for who in ("ann", "root"):
        target = f"queues/ours/explain?account={ACME}"
        told = await office.ok(who, "GET", target)
        assert told["is_delivering"], told
        assert not (await office.ok(who, "GET", f"{target}&user=bob"))["is_delivering"]
    await office.no(404, "ann", "GET", "queues/ours/explain?user=nobody")
    refused = {**looks, "Effect": "Deny", "Action": "sqs:ReceiveMessage"}
    await office.ok("ann", "PUT", "policies/bob/no", {"Statement": [refused]})
    told = await office.ok("bob", "GET", "queues/ours/explain")
    assert told["summary"].endswith("the identity-based policy denies it")


async def test_an_explanation_names_the_limit_that_is_used_up(office: Office) -> None:
    ours = await _ours(office)
    limits = Limits(operations={"sqs:ReceiveMessage": Rate(1, 1)})
    await office.identities.change_tenant(ACME, lambda t: msgspec.structs.replace(t, limits=limits))
    assert (await office.ok("ann", "GET", "queues/ours/explain"))["is_delivering"]
    now_ms = office.clock.mono_ms()
    tenant = office.identities.tenant(ACME)
    office.throttler.check(
        tenant, Caller(ACME, "ann"), "sqs:ReceiveMessage", ours.arn, now_ms=now_ms
    )
    told = await office.ok("ann", "GET", "queues/ours/explain")
    assert not told["is_delivering"]
    assert told["reasons"][0]["code"] == "throttled"
    assert "the operation limit is used up" in told["summary"]
    office.clock.now_ms += 1_000
    assert (await office.ok("ann", "GET", "queues/ours/explain"))["is_delivering"]


async def test_an_explanation_without_a_leader_says_so(office: Office) -> None:
    ours = await _ours(office)
    office.backend.failure = NotLeader(f"{ours.topic_id}/2")
    told = await office.ok("ann", "GET", "queues/ours/explain")
    assert not told["is_delivering"]
    assert told["summary"].startswith("partition 2 has no leader")
    assert "visible" not in told


# ── Metrics ──────────────────────────────────────────────────────────────────────────────────

SCRAPE = json.dumps(
    {"Statement": [{"Effect": "Allow", "Action": "admin:Metrics", "Resource": "*"}]}
)


def _basic(key_id: str, secret: str) -> str:
    return f"Basic {base64.b64encode(f'{key_id}:{secret}'.encode()).decode()}"


async def _scraper(office: Office, account: str) -> str:
    await office.identities.create_user(User(account, "prom", 1, policies={"metrics": SCRAPE}))
    made = await office.identities.create_key(account, "prom", now_ms=1)
    return _basic(made.key.key_id, made.secret)


async def test_a_key_for_metrics_reads_metrics_and_nothing_else(office: Office) -> None:
    await office.topic("jobs", visible=1)
    key = await _scraper(office, ACCOUNT)
    for path, series in (
        ("/metrics", b"penstock_queues 1"),
        ("/metrics/objects", b'queue="jobs"'),
        ("/metrics/objects?prefix=j", b'queue="jobs"'),
    ):
        reply = await office.send(path, authorization=key)
        assert reply.status == 200
        assert series in reply.body
    tried = set()
    (own,) = office.identities.keys(ACCOUNT, "prom")
    for route in ADMIN_ROUTES:
        name = own.key_id if "keys" in route.path else "prom"
        path = "/" + "/".join(name if part == ANY else part for part in route.path)
        if route.right not in (OPEN, METRICS) and path != "/api/v1/info":
            status = (await office.send(path, route.method, authorization=key)).status
            # A resource may look at the body of a change before it looks at rights.
            allowed = {403} if route.method in ("GET", "DELETE") else {400, 403, 415}
            assert status in allowed, f"{route.method} {path}: {status}"
            tried.add(route.method)
    assert tried == {"GET", "POST", "PUT", "PATCH", "DELETE"}


async def test_a_tenant_reads_metrics_of_its_own_queues_only(office: Office) -> None:
    theirs = await office.topic("theirs", visible=1)
    own = msgspec.structs.replace(theirs, topic_id="own", account=ACME, name="ours")
    await office.catalog.create(own)
    office.backend.counts["own"] = QueueStats()
    key = await _scraper(office, ACME)
    assert (await office.send("/metrics", authorization=key)).status == 403
    shown = (await office.send("/metrics/objects", authorization=key)).body
    assert b'"ours"' in shown
    assert b'"theirs"' not in shown
    other = f"/metrics/objects?account={ACCOUNT}"
    assert (await office.send(other, authorization=key)).status == 403
    bare = _basic(*office.secrets["bob"])
    assert (await office.send("/metrics/objects", authorization=bare)).status == 403


async def test_a_key_by_http_basic_must_be_whole_right_and_enabled(office: Office) -> None:
    key_id, secret = office.secrets["root"]
    right = _basic(key_id, secret)
    assert (await office.send("/metrics", authorization=right)).status == 200
    for wrong in (
        _basic(key_id, ""),
        _basic(key_id, secret[:-1]),
        _basic(key_id, secret + "x"),
        _basic("", secret),
        _basic("", ""),
        _basic("PSAKNOBODY", secret),
        right.removesuffix("=")[:-2],
        "Basic",
        "Basic //79",  # not UTF-8
        "Basic ä",
    ):
        assert (await office.send("/metrics", authorization=wrong)).status == 401, wrong
    await office.identities.set_key_status(key_id, KeyStatus.DISABLED)
    assert (await office.send("/metrics", authorization=right)).status == 401
    office.api = office.build(is_auth_on=False)
    of_a_proxy = _basic("somebody", "known to a proxy")
    assert (await office.send("/metrics", authorization=of_a_proxy)).status == 200
