"""Tenants, quotas, users, keys, policies and passwords through the admin API."""

import base64
import hashlib
import json
from typing import Any

import msgspec
import pytest

from penstock.frontend.admin import identities
from penstock.frontend.admin.api import BODY_BYTES_MAX, AdminApi
from penstock.frontend.admin.request import Context, Info
from penstock.model.identity import Rate

from .conftest import ACME, EVIL, SEND_ONLY, Office
from .test_api import ACCOUNT, REGION

# ── Tenants and quotas ───────────────────────────────────────────────────────────────────────


async def test_a_tenant_is_made_renamed_suspended_and_deleted(office: Office) -> None:
    made = await office.ok("root", "POST", "tenants", {"name": "new one"})
    assert len(made["account"]) == 12
    assert made["is_suspended"] is False
    account = made["account"]
    changed = await office.ok(
        "root", "PATCH", "tenants/new%20one", {"name": "newer", "is_suspended": True}
    )
    assert (changed["name"], changed["is_suspended"]) == ("newer", True)
    assert (await office.ok("root", "GET", "tenants/newer"))["account"] == account
    await office.no(404, "root", "GET", "tenants/new%20one")
    assert (await office.ok("root", "DELETE", "tenants/newer"))["deleted"] is True
    await office.no(404, "root", "DELETE", f"tenants/{account}")
    await office.no(409, "root", "POST", "tenants", {"name": "x", "account": ACME})
    await office.no(400, "root", "POST", "tenants", {"name": "x", "account": "12"})
    await office.no(400, "root", "PATCH", "tenants/acme", {"nmae": "x"})


async def test_a_tenant_with_queues_or_users_stays(office: Office) -> None:
    assert "still has 3 users" in await office.no(409, "root", "DELETE", "tenants/acme")
    topic = await office.topic("q")
    await office.catalog.create(
        msgspec.structs.replace(topic, topic_id="other", account=EVIL, name="left")
    )
    assert "1 queues and topics" in await office.no(409, "root", "DELETE", f"tenants/{EVIL}")


async def test_tenants_are_paged_without_loss(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identities, "TENANTS_MAX", 2)
    first = await office.ok("root", "GET", "tenants")
    second = await office.ok("root", "GET", f"tenants?after={first['next']}")
    names = [t["name"] for t in (*first["tenants"], *second["tenants"])]
    assert (names, second["next"]) == (["default", "acme", "evil"], None)


async def test_quotas_change_only_where_they_are_named(office: Office) -> None:
    before = await office.ok("ann", "GET", f"quotas/{ACME}")
    assert before["limits"]["tenant_requests"] == {"per_s": 2_000.0, "burst": 4_000.0}
    assert before["quotas"]["queues_max"] == 500
    own = await office.ok("root", "GET", "quotas/default")
    assert set(own["quotas"].values()) == {0}, "the node's own tenant has none"
    await office.ok(
        "root",
        "PATCH",
        "quotas/acme",
        {
            "limits": {
                "tenant_requests": {"per_s": 100, "burst": 200},
                "operations": {"sqs:SendMessage": {"per_s": 5}, "sqs:PurgeQueue": {"per_s": 1}},
            },
            "quotas": {"queues_max": 7},
        },
    )
    after = await office.ok(
        "root",
        "PATCH",
        "quotas/acme",
        {"limits": {"operations": {"sqs:PurgeQueue": None}}, "quotas": {"waits_max": 9}},
    )
    assert after["limits"]["tenant_requests"] == {"per_s": 100.0, "burst": 200.0}
    assert after["limits"]["operations"] == {"sqs:SendMessage": {"per_s": 5.0, "burst": 0.0}}
    assert (after["quotas"]["queues_max"], after["quotas"]["waits_max"]) == (7, 9)
    tenant = office.identities.tenant(ACME)
    assert tenant is not None
    assert tenant.limits.tenant_requests == Rate(100, 200)
    unset = {"limits": {"tenant_requests": None}, "quotas": {"queues_max": None}}
    default = await office.ok("root", "PATCH", "quotas/acme", unset)
    assert (default["limits"], default["quotas"]["queues_max"]) == (
        {**before["limits"], "operations": after["limits"]["operations"]},
        500,
    )
    for bad in (
        {"limits": {"tenant_requests": {"per_s": -1}}},
        {"limits": {"tenant_reqests": {"per_s": 1}}},
        {"quotas": {"queues_max": "many"}},
        {"quotas": {"queues_max": -1}},
    ):
        await office.no(400, "root", "PATCH", "quotas/acme", bad)
    await office.no(404, "root", "GET", "quotas/nobody")


# ── Users, keys, policies, passwords ─────────────────────────────────────────────────────────


async def test_a_secret_is_in_one_answer_only(office: Office) -> None:
    made = await office.ok("ann", "POST", "keys", {"user": "bob"})
    assert len(made["secret"]) == 40
    rotated = await office.ok("ann", "POST", f"keys/{made['key_id']}/rotate", {})
    assert rotated["secret"] != made["secret"]
    assert rotated["user"] == "bob"
    for target in ("keys", "keys?user=bob", f"keys/{made['key_id']}", "users", "users/bob"):
        text = (await office.ask("ann", "GET", target)).body.decode()
        for secret in (made["secret"], rotated["secret"], *dict(office.secrets.values()).values()):
            assert secret not in text
        assert "sealed" not in text
    session = await office.log_in(made["key_id"], made["secret"])
    assert session["user"] == "bob"


async def test_a_key_shows_when_it_was_last_used(office: Office) -> None:
    key_id, secret = office.secrets["bob"]
    assert (await office.ok("ann", "GET", f"keys/{key_id}"))["last_used_at_ms"] is None
    await office.log_in(key_id, secret)
    await office.identities.flush()
    minute = office.clock.now_ms - office.clock.now_ms % 60_000
    assert (await office.ok("ann", "GET", f"keys/{key_id}"))["last_used_at_ms"] == minute


async def test_a_user_is_made_shown_and_deleted(office: Office) -> None:
    made = await office.ok(
        "root", "POST", "users", {"name": "new", "tenant": "acme", "policies": {"p": SEND_ONLY}}
    )
    assert made["arn"] == f"arn:aws:iam::{ACME}:user/new"
    assert made["policies"] == ["p"]
    shown = await office.ok("ann", "GET", "users/new")
    assert shown["policies"] == {"p": SEND_ONLY}
    await office.no(409, "ann", "POST", "users", {"name": "new"})
    await office.no(400, "ann", "POST", "users", {"name": "a/b"})
    await office.no(400, "ann", "POST", "users", {"name": "x", "policies": {"p": "{}"}})
    await office.no(404, "root", "POST", "users", {"name": "x", "tenant": "nobody"})
    await office.no(404, "root", "POST", "users", {"name": "x", "tenant": "999999999999"})
    await office.ok("ann", "DELETE", "users/new")
    await office.no(404, "ann", "GET", "users/new")


async def test_a_policy_is_kept_as_it_was_written(office: Office) -> None:
    text = SEND_ONLY.replace(",", ",\n  ").encode()
    reply = await office.ask("ann", "PUT", "policies/bob/p%40x", text)
    assert reply.status == 200, reply.body
    assert (await office.ok("ann", "GET", "policies/bob/p%40x"))["text"] == text.decode()
    assert set((await office.ok("ann", "GET", "policies/bob"))["policies"]) == {"send", "p@x"}
    assert (await office.ok("ann", "DELETE", "policies/bob/p%40x"))["policies"] == ["send"]
    await office.no(404, "ann", "DELETE", "policies/bob/p%40x")
    await office.no(404, "ann", "GET", "policies/bob/p%40x")
    for bad in (b"\xff", b"", b"{}", b'{"Statement":[{"Effect":"Allow"}]}'):
        await office.no(400, "ann", "PUT", "policies/bob/p", bad)


async def test_a_password_comes_derived_and_goes_with_all_its_mechanisms(office: Office) -> None:
    def derived(mechanism: str, size: int) -> dict[str, object]:
        key = base64.b64encode(hashlib.sha512(b"x").digest()[:size]).decode()
        return {
            "mechanism": mechanism,
            "iterations": 8_192,
            "salt": base64.b64encode(bytes(16)).decode(),
            "stored_key": key,
            "server_key": key,
        }

    both = [derived("SCRAM-SHA-256", 32), derived("SCRAM-SHA-512", 64)]
    after = await office.ok("ann", "PUT", "users/bob/password", {"credentials": both})
    assert after["mechanisms"] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    kept = office.identities.scram(ACME, "bob", "SCRAM-SHA-512")
    assert kept is not None
    assert kept.stored_key == hashlib.sha512(b"x").digest()
    for bad in ([], both * 2, [derived("SCRAM-SHA-1", 20)], [derived("SCRAM-SHA-256", 31)]):
        await office.no(400, "ann", "PUT", "users/bob/password", {"credentials": bad})
    assert (await office.ok("ann", "DELETE", "users/bob/password"))["mechanisms"] == []


# ── Would it be allowed? ─────────────────────────────────────────────────────────────────────


async def test_a_question_is_answered_with_the_statement_that_settles_it(office: Office) -> None:
    async def ask(action: str, **more: object) -> Any:
        question = {"user": "bob", "action": action, "resource": "orders", **more}
        return await office.ok("ann", "POST", "policies/test", question)

    allowed = await ask("sqs:SendMessage")
    assert allowed["is_allowed"] is True
    assert (allowed["policy"], allowed["statement"]) == ("send", "Send")
    assert allowed["resource"] == f"arn:aws:sqs:{REGION}:{ACME}:orders"
    assert allowed["principal"] == f"arn:aws:iam::{ACME}:user/bob"
    wanting = await ask("sqs:DeleteQueue")
    assert (wanting["is_allowed"], wanting["is_explicit"]) == (False, False)
    deny = {
        "Version": "2012-10-17",
        "Statement": {
            "Sid": "NotFromThere",
            "Effect": "Deny",
            "Action": "*",
            "Resource": "*",
            "Condition": {
                "IpAddress": {"aws:SourceIp": "10.0.0.0/8"},
                "Bool": {"aws:SecureTransport": "false"},
            },
        },
    }
    await office.ok("ann", "PUT", "policies/bob/deny", deny)
    denied = await ask("sqs:SendMessage", source_ip="10.1.2.3")
    assert (denied["is_allowed"], denied["is_explicit"]) == (False, True)
    assert (denied["policy"], denied["statement"]) == ("deny", "NotFromThere")
    assert (await ask("sqs:SendMessage", source_ip="10.1.2.3", is_tls=True))["is_allowed"] is True
    assert (await ask("sqs:SendMessage", source_ip="9.9.9.9"))["is_allowed"] is True


async def test_a_queues_own_policy_counts_and_another_tenants_is_not_shown(
    office: Office,
) -> None:
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "Inside",
                "Effect": "Deny",
                "Principal": {"AWS": ACME},
                "Action": "sqs:*",
                "Resource": "*",
            }
        ],
    }
    topic = (await office.topic("q")).with_settings(now_ms=1, policy=json.dumps(policy))
    theirs = msgspec.structs.replace(topic, topic_id="t", account=EVIL, name="theirs")
    await office.catalog.create(theirs)
    question = {
        "user": "bob",
        "tenant": "acme",
        "action": "sqs:SendMessage",
        "resource": theirs.arn,
    }
    answer = await office.ok("root", "POST", "policies/test", question)
    assert (answer["source"], answer["statement"]) == ("resource", "Inside")
    answer = await office.ok("ann", "POST", "policies/test", {**question, "tenant": ""})
    assert (answer["is_allowed"], answer["source"], answer["statement"]) == (False, "resource", "")
    await office.no(
        400, "ann", "POST", "policies/test", {**question, "tenant": "", "resource": "arn:x"}
    )
    await office.no(404, "ann", "POST", "policies/test", {**question, "tenant": "", "user": "zoe"})


# ── Bodies and methods ───────────────────────────────────────────────────────────────────────


async def test_a_change_that_a_browser_could_be_tricked_into_is_refused(office: Office) -> None:
    office.api = office.build(is_auth_on=False)
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        reply = await office.ask("", "POST", "users", b'{"name":"x"}', kind=kind)
        assert reply.status == 415
    reply = await office.ask("", "POST", "users", b'{"name":"x"}', kind="Application/JSON; a=b")
    assert reply.status == 201


async def test_a_body_has_a_bound(office: Office) -> None:
    reply = await office.ask("root", "POST", "users", b" " * (BODY_BYTES_MAX + 1))
    assert reply.status == 413
    await office.no(400, "root", "POST", "users", b"[" * 100_000)


async def test_each_path_says_what_can_be_done_there(office: Office) -> None:
    reply = await office.ask("root", "PUT", "tenants/acme", {})
    assert reply.status == 405
    assert ("allow", "GET, HEAD, DELETE, PATCH") in reply.headers
    reply = await office.ask("root", "GET", "login")
    assert ("allow", "POST") in reply.headers
    assert (await office.ask("root", "HEAD", "tenants")).body == b""
    await office.ok("ann", "POST", "users", {"name": "test"})
    assert (await office.ok("ann", "GET", "policies/test"))["user"] == "test"


async def test_a_node_without_identities_says_so(office: Office) -> None:
    api = AdminApi(
        Context(
            broker=office.backend,
            catalog=office.catalog,
            meter=office.meter,
            health=office.health,
            clock=office.clock,
            info=Info("1", "n", "dev", ACCOUNT, REGION, "/data", 0),
            everything=office.catalog,
        ),
    )
    office.api = api
    for target in ("tenants", "users", "keys"):
        await office.no(404, "", "GET", target)
    await office.no(401, "", "POST", "login", {"key_id": "x", "secret": "y"})


async def test_a_question_about_policies_is_no_change_in_the_log(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    arn = (await office.topic("q")).arn
    question = {"user": "ann", "tenant": "acme", "action": "sqs:SendMessage", "resource": arn}
    await office.ok("root", "POST", "policies/test", question)
    assert "admin change made" not in caplog.messages
    await office.ok("root", "POST", "users", {"name": "new", "tenant": "acme"})
    assert "admin change made" in caplog.messages
