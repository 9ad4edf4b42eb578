"""The admin API as a target: nobody let in without a token, nothing that a browser could be talked
into, nothing that an answer could do to a browser, and no body without end."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from tests.attacks.kit import EVERYTHING, ROOT, Operator, allow, send
from tests.harness.client import RawClient
from tests.harness.server import Server

from penstock.frontend.admin.api import ADMIN_ROUTES, ANY, OPEN, Route

MIB = 1_048_576
JSON = {"content-type": "application/json"}


ROUTES = {f"{route.method} /{'/'.join(route.path)}": route for route in ADMIN_ROUTES}
GUARDED = [name for name, route in ROUTES.items() if route.right != OPEN]
CHANGING = [name for name, route in ROUTES.items() if route.method != "GET"]


def host_of(server: Server) -> str:
    return urlsplit(server.admin_url).netloc


def path_of(route: Route) -> str:
    return "/" + "/".join("x" if part == ANY else part for part in route.path)


# ── S22: who ─────────────────────────────────────────────────────────────────────────────────
BAD_TOKENS = {
    "none": "",
    "empty": "Bearer ",
    "guessed": "Bearer guessed",
    "basic": "Basic cm9vdDpyb290",
    "forged-session": "Bearer psat1.eyJrZXlfaWQiOiJ4In0.AAAA",
    "signature": "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/sqs/aws4_request",
}


@pytest.mark.parametrize("name", GUARDED)
def test_nothing_is_answered_without_a_token(locked: Server, name: str) -> None:
    route = ROUTES[name]
    for token in BAD_TOKENS.values():
        headers = {**JSON, "authorization": token} if token else JSON
        body = None if route.method == "GET" else b"{}"
        status, answer, _ = send(host_of(locked), route.method, path_of(route), body, headers)
        assert status == 401, f"{token!r}: {status} {answer!r}"


def test_what_is_open_tells_next_to_nothing(locked: Server) -> None:
    for name, route in ROUTES.items():
        if route.right == OPEN and route.method == "GET":
            status, answer, _ = send(host_of(locked), "GET", path_of(route), None, {})
            assert status == 200, name
            assert set(json.loads(answer)) <= {"status", "reasons", "percent"}


def test_a_user_of_a_tenant_is_no_operator(locked: Server, operator: Operator) -> None:
    _, credentials = operator.user(EVERYTHING, tenant=operator.tenant())
    theirs = Operator(locked, credentials)
    for method, path, body in (
        ("GET", "config", None),
        ("POST", "tenants", {"name": "mine-too"}),
        ("POST", "users", {"name": "boss", "is_operator": True}),
    ):
        assert theirs.try_(method, path, body)[0] == 403, path
    headers = {"authorization": f"Bearer {theirs.token}"}
    assert send(host_of(locked), "GET", "/metrics", None, headers)[0] == 403
    status, shown, _ = send(host_of(locked), "GET", "/metrics/objects", None, headers)
    assert (status, shown) == (200, b""), "queues of other tenants are shown"


def test_a_user_without_rights_cannot_give_itself_any(locked: Server, operator: Operator) -> None:
    name, credentials = operator.user(allow("sqs:SendMessage"))
    theirs = Operator(locked, credentials)
    for method, path, body in (
        ("PUT", f"policies/{name}/p", {"Version": "2012-10-17", "Statement": [EVERYTHING]}),
        ("POST", "keys", {"user": "root"}),
        ("POST", "users", {"name": "second"}),
        ("DELETE", "users/root", None),
    ):
        assert theirs.try_(method, path, body)[0] == 403, path


# ── S22: browsers ────────────────────────────────────────────────────────────────────────────
PATHS = ("/healthz", "/metrics", "/api/v1/queues", "/api/v1/no-such", "/", "/api/v1/queues/x")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "HEAD"])
def test_no_answer_can_be_run_framed_or_guessed_at(
    open_server: Server, method: str, path: str
) -> None:
    _, _, headers = send(host_of(open_server), method, path, None, {})
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["content-type"].startswith(("application/json", "text/plain"))
    assert not [name for name in headers if name.startswith("access-control-")]


@pytest.mark.parametrize("name", CHANGING)
def test_a_change_is_json_or_none(open_server: Server, name: str) -> None:
    """A form on another site's page sends one of these without asking anybody."""
    route = ROUTES[name]
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        headers = {"content-type": kind} if kind else {}
        status = send(host_of(open_server), route.method, path_of(route), b"{}", headers)[0]
        if route.method == "DELETE":  # which no form can send
            assert status == 404
        else:
            assert status == 415, kind


FOREIGN = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
DOWN = "/?Action=CreateQueue&QueueName=by-a-page"


def test_pages_of_other_sites_are_not_served_where_everybody_is_believed(
    open_server: Server, bystander: RawClient
) -> None:
    """Not even by a picture's address: a queue can be made with a GET. A link may be followed."""
    sqs, admin = urlsplit(open_server.url).netloc, host_of(open_server)
    form = {"content-type": "application/x-www-form-urlencoded"}
    body = b"Action=CreateQueue&QueueName=by-a-page"
    for method, path, data, headers in (
        ("GET", DOWN, None, FOREIGN),
        ("GET", DOWN, None, LINK),
        ("GET", DOWN, None, {**LINK, "sec-fetch-site": "same-site"}),
        ("POST", "/", body, {**form, **FOREIGN}),
        ("POST", "/", body, {**form, **LINK}),
        ("POST", "/_penstock/reset", b"", FOREIGN),
    ):
        assert send(sqs, method, path, data, headers)[0] == 403, headers
    assert send(admin, "GET", "/api/v1/queues", None, FOREIGN)[0] == 403
    assert send(sqs, "GET", "/", None, LINK)[0] == 200
    assert send(sqs, "GET", "/", None, {"sec-fetch-site": "none"})[0] == 200
    asked = {"QueueNamePrefix": "by-a-page"}
    assert not bystander.call("ListQueues", asked).get("QueueUrls")


def test_a_name_that_was_pointed_at_this_machine_is_not_answered(open_server: Server) -> None:
    """A page may have its own name resolve to a loopback address: to the browser that is the same
    site, so the name is all that tells."""
    for path in ("/api/v1/queues", "/metrics"):
        for name in ("attacker.example", "attacker.example:9325", "127.0.0.1.attacker.example"):
            assert send(host_of(open_server), "GET", path, None, {"host": name})[0] == 403, name
        for name in (
            "localhost",
            "127.0.0.1:9325",
            "[::1]:9325",
            "penstock",
            "host.docker.internal",
        ):
            assert send(host_of(open_server), "GET", path, None, {"host": name})[0] == 200, name


def test_what_is_shown_cannot_leave_its_quotes(
    open_server: Server, bystander: RawClient, name: Callable[..., str]
) -> None:
    """A message's body is shown to operators: as JSON, whatever it holds."""
    queue = name()
    url = bystander.call("CreateQueue", {"QueueName": queue})["QueueUrl"]
    nasty = "</script><script>alert(1)</script>\"'\u2028\x1b[2J"
    bystander.call("SendMessage", {"QueueUrl": url, "MessageBody": nasty.replace("\x1b", "")})
    path = f"/api/v1/queues/{queue}/messages"
    status, answer, headers = send(host_of(open_server), "GET", path, None, {})
    assert status == 200
    assert headers["content-type"] == "application/json"
    assert headers["x-content-type-options"] == "nosniff"
    assert nasty.replace("\x1b", "") in json.dumps(json.loads(answer), ensure_ascii=False).replace(
        '\\"', '"'
    )


# ── S23: how much ────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("path", ["/api/v1/login", "/api/v1/users", "/api/v1/policies/x/p"])
def test_a_body_has_a_bound(locked: Server, operator: Operator, path: str) -> None:
    method = "PUT" if "policies" in path else "POST"
    headers = {**JSON, "authorization": f"Bearer {operator.token}"}
    large = b'{"a":"' + b"x" * MIB + b'"}'
    assert send(host_of(locked), method, path, large, headers)[0] == 413
    # One that is promised and never sent is not waited for either.
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000000\r\n\r\n"
    address = urlsplit(locked.admin_url)
    with socket.create_connection((address.hostname, address.port), timeout=5) as raw:
        raw.sendall(head.encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 413")


BODIES = {
    "deep": b"[" * 10_000 + b"]" * 10_000,
    "half": b'{"name": ',
    "not-text": b"\xff\xfe",
    "list": b"[]",
    "null": b"null",
    "unknown-field": b'{"name": "x", "is_root": true}',
    "wrong-kind": b'{"name": {"a": 1}}',
    "nothing": b"",
    "two-names": b'{"name": 1, "name": "y"}',
}


@pytest.mark.parametrize("attack", BODIES)
def test_a_spoilt_body_is_named_as_such(locked: Server, operator: Operator, attack: str) -> None:
    headers = {**JSON, "authorization": f"Bearer {operator.token}"}
    for path in ("/api/v1/users", "/api/v1/tenants", "/api/v1/keys"):
        status, answer, _ = send(host_of(locked), "POST", path, BODIES[attack], headers)
        if (path, attack) == ("/api/v1/tenants", "two-names"):
            continue  # the last one counts, as everywhere
        assert status == 400, f"{path}: {status} {answer!r}"
        assert json.loads(answer)["error"]["code"]


def test_guessing_secrets_gets_the_same_words_for_every_mistake(locked: Server) -> None:
    told = set()
    for key, secret in (
        (str(ROOT.access_key), "guessed"),
        ("PENSTOCKNOBODYSKEY01", "guessed"),
        (str(ROOT.access_key), ""),
        ("", ""),
        (str(ROOT.access_key), "x" * 100_000),
    ):
        body = json.dumps({"key_id": key, "secret": secret}).encode()
        status, answer, _ = send(host_of(locked), "POST", "/api/v1/login", body, JSON)
        assert status == 401
        told.add(answer)
    assert len(told) == 1


def test_two_requests_with_different_rights_do_not_mix_on_one_connection(
    locked: Server, operator: Operator
) -> None:
    connection = http.client.HTTPConnection(host_of(locked), timeout=10)
    try:
        for token, expected in ((operator.token, 200), ("", 401), (operator.token, 200)):
            headers = {"authorization": f"Bearer {token}"} if token else {}
            connection.request("GET", "/api/v1/config", headers=headers)
            reply = connection.getresponse()
            reply.read()
            assert reply.status == expected
    finally:
        connection.close()
