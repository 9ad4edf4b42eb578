"""Requests that a web page can make a browser send to a server without authentication: a table of
port, Host, Origin, Sec-Fetch-Site and action. ``test_chromium.py`` does the same with a browser."""

from __future__ import annotations

import http.client
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.attacks.kit import ROOT, code_of, send, sqs_as
from tests.harness.client import RawClient
from tests.harness.roles import MetadataServer
from tests.harness.server import Server

EXTERNAL = "queue.corp.example.com"
SERVED = (
    "127.0.0.1:9324",
    "127.0.0.1",
    "127.1.2.3:9324",
    "[::1]:9324",
    "[::ffff:127.0.0.1]:9324",
    "localhost:9324",
    "LOCALHOST",
    "localhost.",
    "192.0.2.7:9324",
    "[2001:db8::7]:9324",
    "penstock:9324",
    "queue.localhost",
    "queue.localdomain",
    "host.docker.internal:9324",
    "printer.local",
    "queue.lan",
    "queue.test",
    "queue.home.arpa",
    EXTERNAL,
    f"{EXTERNAL}:9324",
    "sqs.eu-central-1.amazonaws.com",
    "sqs.us-gov-west-1.amazonaws.com:443",
    "us-east-1.queue.amazonaws.com",
    "queue.amazonaws.com",
    "localhost.localstack.cloud:4566",
    "sqs.us-east-1.localhost.localstack.cloud:4566",
)
REJECTED = (
    "0.0.0.0:9324",
    "0.0.0.0",
    "[::]:9324",
    "[::ffff:0.0.0.0]:9324",
    "[0:0:0:0:0:0:0:0]",
    "attacker.example",
    "attacker.example:9324",
    "ATTACKER.example.",
    "127.0.0.1.attacker.example",
    "localhost.attacker.example",
    "attackerlocalhost.localstack.cloud",
    "localstack.cloud",
    "attacker%2eexample",
    "sqs.us-east-1.attacker.example",
    "sqs.s3.amazonaws.com",
    "us-east-1.attacker.amazonaws.com",
    "attacker.sqs.us-east-1.amazonaws.com",
    "queue.amazonaws.com.attacker.example",
    f"x.{EXTERNAL}",
    "corp.example.com",
)
OWN = "http://{host}"
ORIGINS = ("", OWN, "https://attacker.example", "null", "http://{host}1")
SITES = ("", "none", "same-origin", "same-site", "cross-site")
FORM = {"content-type": "application/x-www-form-urlencoded"}
JSON = {"content-type": "application/json"}
BROWSER = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64) Chrome/156.0.0.0 Safari/537.36"}


@dataclass(frozen=True)
class Action:
    method: str
    path: str
    body: bytes
    headers: dict[str, str]
    statuses: tuple[int, ...] = (200,)  # of a request that is served


def _json(operation: str, **fields: object) -> Action:
    headers = {
        "content-type": "application/x-amz-json-1.0",
        "x-amz-target": f"AmazonSQS.{operation}",
    }
    return Action("POST", "/", json.dumps(fields).encode(), headers)


def _form(text: str) -> Action:
    return Action("POST", "/", text.encode(), FORM)


ACTIONS = {
    "sqs": {
        "get": Action("GET", "/?Action=CreateQueue&QueueName=attacked", b"", {}),
        "create": _form("Action=CreateQueue&QueueName=attacked"),
        "send": _form("Action=SendMessage&QueueUrl=/000000000000/victim&MessageBody=x"),
        "list": _json("ListQueues"),
        "receive": _json("ReceiveMessage", QueueUrl="/000000000000/victim"),
        "health": Action("GET", "/_penstock/health", b"", {}),
    },
    "admin": {
        "list": Action("GET", "/api/v1/queues", b"", {}),
        "peek": Action("GET", "/api/v1/queues/victim/messages", b"", {}),
        "metrics": Action("GET", "/metrics", b"", {}),
        "health": Action("GET", "/healthz", b"", {}),
        "create": Action("POST", "/api/v1/users", b'{"name":"attacked"}', JSON, (201, 409)),
    },
}
CASES = [(port, action) for port, actions in ACTIONS.items() for action in actions]


@pytest.fixture(scope="module")
def open_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of this module alone, with an external URL, because reset deletes every queue."""
    env = {"PENSTOCK_HTTP__EXTERNAL_URL": f"https://{EXTERNAL}"}
    with Server(tmp_path_factory.mktemp("browsers"), fsync="never", env=env) as server:
        yield server


@pytest.fixture
def victim(open_own: Server) -> Iterator[RawClient]:
    """A client, and a queue ``victim`` that holds one message."""
    send(address(open_own, "sqs"), "POST", "/_penstock/reset", None, {})
    client = RawClient(open_own.port)
    made = client.call("CreateQueue", {"QueueName": "victim"})
    client.call("SendMessage", {"QueueUrl": made["QueueUrl"], "MessageBody": "secret"})
    yield client
    client.close()


def address(server: Server, port: str) -> str:
    return urlsplit(server.url if port == "sqs" else server.admin_url).netloc


def ask(
    connection: http.client.HTTPConnection, action: Action, headers: dict[str, str]
) -> tuple[int, bytes]:
    length = {"content-length": str(len(action.body))}
    connection.putrequest(action.method, action.path, skip_host=True)
    for name, value in {**length, **action.headers, **headers}.items():
        connection.putheader(name, value)
    connection.endheaders(action.body)
    reply = connection.getresponse()
    return reply.status, reply.read()


def head(host: str, origin: str, site: str) -> dict[str, str]:
    headers = {"host": host}
    if origin:
        headers["origin"] = origin.format(host=host)
    if site:
        headers["sec-fetch-site"] = site
    return headers


@pytest.mark.parametrize(("port", "name"), CASES)
def test_every_combination_of_headers(
    open_own: Server, victim: RawClient, port: str, name: str
) -> None:
    action = ACTIONS[port][name]
    connection = http.client.HTTPConnection(address(open_own, port), timeout=15)
    wrong = []
    for host, origin, site in itertools.product((*SERVED, *REJECTED), ORIGINS, SITES):
        is_served = (
            host in SERVED and origin in ("", OWN) and site not in ("same-site", "cross-site")
        )
        status, answer = ask(connection, action, head(host, origin, site))
        # A name with a region in it names queues of that region.
        served = (*action.statuses, 400) if "us-" in host or "eu-" in host else action.statuses
        if status not in (served if is_served else (403,)):
            wrong.append((host, origin, site, status, answer))
    connection.close()
    assert not wrong, f"{len(wrong)} wrong, such as {wrong[:3]}"


def test_a_rejected_action_changes_nothing_and_shows_nothing(
    open_own: Server, victim: RawClient
) -> None:
    queues = victim.call("ListQueues", {})
    hosts = {port: address(open_own, port) for port in ("sqs", "admin")}
    changes = {
        "sqs": (
            _form("Action=CreateQueue&QueueName=by-a-page"),
            Action("GET", "/?Action=CreateQueue&QueueName=by-a-page", b"", {}),
            _form("Action=DeleteQueue&QueueUrl=/000000000000/victim"),
            _form("Action=PurgeQueue&QueueUrl=/000000000000/victim"),
            _json("ReceiveMessage", QueueUrl="/000000000000/victim"),
            Action("POST", "/_penstock/reset", b"", {}),
            Action("POST", "/moto-api/reset", b"", {}),
        ),
        "admin": (
            Action("POST", "/api/v1/users", b'{"name":"by-a-page"}', JSON),
            Action("GET", "/api/v1/queues/victim/messages", b"", {}),
        ),
    }
    foreign = (
        head("attacker.example", "", "same-origin"),
        head("attacker.example", "http://attacker.example", ""),
        head("0.0.0.0", "https://attacker.example", ""),
        head("localhost", "https://attacker.example", ""),
        head("localhost", "null", "cross-site"),
    )
    for port, actions in changes.items():
        connection = http.client.HTTPConnection(hosts[port], timeout=15)
        for action, headers in itertools.product(actions, foreign):
            status, answer = ask(connection, action, headers)
            assert status == 403, (action, headers, answer)
            assert b"secret" not in answer
        connection.close()
    assert victim.call("ListQueues", {}) == queues
    received = victim.call(
        "ReceiveMessage", {"QueueUrl": "/000000000000/victim", "AttributeNames": ["All"]}
    )
    assert received["Messages"][0]["Body"] == "secret"
    assert received["Messages"][0]["Attributes"]["ApproximateReceiveCount"] == "1"
    status, answer, _ = send(hosts["admin"], "GET", "/api/v1/users/by-a-page", None, {})
    assert status == 404, answer


def test_rejections_are_counted_and_worded_for_the_client(
    open_own: Server, victim: RawClient
) -> None:
    def count() -> float:
        return sum(
            value
            for name, value in open_own.metrics().items()
            if name.startswith("penstock_requests_total") and 'code="AccessDenied"' in name
        )

    before = count()
    client = sqs_as(open_own, ROOT)
    client.meta.events.register(
        "before-send.sqs.*",
        lambda request, **_: request.headers.__setitem__("Origin", "https://attacker.example"),
    )
    assert code_of(client.list_queues).startswith("AccessDenied")
    client.close()
    headers = {"host": "attacker.example"}
    _, answer, shown = send(address(open_own, "admin"), "GET", "/api/v1/queues", None, headers)
    assert json.loads(answer)["error"]["code"] == "forbidden"
    assert "http.external_url" in json.loads(answer)["error"]["message"]
    assert shown["x-content-type-options"] == "nosniff"
    assert count() == before + 1
    victim.call("ListQueues", {})


# ── GET by a page, which carries no Origin ───────────────────────────────────────────────────


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_browser_that_names_no_page_cannot_act_by_query_string(
    open_own: Server, victim: RawClient, method: str
) -> None:
    """Browsers send no Sec-Fetch-Site to http://penstock, which may resolve to this machine."""
    path = "/?Action=CreateQueue&QueueName=by-an-image"
    for host in ("localhost.localstack.cloud:9324", "penstock:9324", "192.0.2.7:9324"):
        headers = {**BROWSER, "host": host}
        assert send(address(open_own, "sqs"), method, path, None, headers)[0] == 403, host
    assert not victim.call("ListQueues", {"QueueNamePrefix": "by-an-image"}).get("QueueUrls")
    # A person may open the address, and operators read the admin port with a query string.
    headers = {**BROWSER, "host": "penstock:9324"}
    assert send(address(open_own, "sqs"), "GET", "/", None, headers)[0] == 200
    path = "/api/v1/queues?limit=1"
    assert send(address(open_own, "admin"), "GET", path, None, headers)[0] == 200


# ── Reset ────────────────────────────────────────────────────────────────────────────────────

RESETS = ("/_penstock/reset", "/moto-api/reset")
FORMS = (
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "text/plain",
    "Text/Plain;charset=UTF-8",
)


@pytest.mark.parametrize("path", RESETS)
def test_reset_rejects_every_origin_and_every_form(
    open_own: Server, victim: RawClient, path: str
) -> None:
    host = address(open_own, "sqs")
    for origin in (f"http://{host}", "http://localhost", "null", "https://attacker.example"):
        assert send(host, "POST", path, None, {"origin": origin})[0] == 403, origin
    for kind in FORMS:
        assert send(host, "POST", path, b"", {"content-type": kind})[0] == 415, kind
        assert send(host, "POST", path, b"a=b", {"content-type": kind})[0] == 415, kind
    assert victim.call("ListQueues", {})["QueueUrls"]


@pytest.mark.parametrize("path", RESETS)
@pytest.mark.parametrize("headers", [{}, JSON], ids=["curl", "json"])
def test_reset_serves_test_suites(
    open_own: Server, victim: RawClient, path: str, headers: dict[str, str]
) -> None:
    assert victim.call("ListQueues", {})["QueueUrls"]
    status, answer, _ = send(address(open_own, "sqs"), "POST", path, None, headers)
    assert status == 200, answer
    assert not victim.call("ListQueues", {}).get("QueueUrls")


# ── Authentication on ────────────────────────────────────────────────────────────────────────


def test_with_authentication_on_any_name_is_served(locked: Server) -> None:
    """A page cannot sign a request; behind a proxy the server has names of its operator."""
    headers = {"host": "queue.example.com", "origin": "https://queue.example.com"}
    for port in ("sqs", "admin"):
        path = "/_penstock/health" if port == "sqs" else "/healthz"
        assert send(address(locked, port), "GET", path, None, headers)[0] == 200
    assert send(address(locked, "admin"), "GET", "/api/v1/queues", None, headers)[0] == 401
    foreign = {**headers, "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert send(address(locked, "admin"), "GET", "/healthz", None, foreign)[0] == 403


def test_a_metadata_node_has_the_same_guard(tmp_path: Path) -> None:
    with MetadataServer(tmp_path / "data") as server:
        host = address(server, "admin")
        for path in ("/healthz", "/api/v1/config"):
            assert send(host, "GET", path, None, {})[0] == 200
            assert send(host, "GET", path, None, {"host": "attacker.example"})[0] == 403
            assert send(host, "GET", path, None, {"origin": "https://attacker.example"})[0] == 403
