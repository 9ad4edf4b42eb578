"""What operators and administrators change through the admin API is noted in ``__audit`` of a real
server: who, what, how it ended, and no secret."""

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.compat.kafka.locked import ROOT_KEY, ROOT_SECRET, Operator, allow, locked_server
from tests.harness.patience import eventually
from tests.harness.server import Server

from penstock.net.kafka_client.client import KafkaClient, Place, Security
from penstock.record.batch import split_batches
from penstock.record.record import iter_records
from penstock.wire.facts.audit import AuditRecord, breaks, decode

TRAIL = Place("__audit", 0)
ROOT = "arn:aws:iam::000000000000:user/root"
PASSWORD = "a password that must not be seen"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with locked_server(tmp_path_factory.mktemp("noted")) as running:
        yield running
        assert running.stop() == 0, running.stderr_tail()
        running.assert_no_traceback()


def values(server: Server) -> list[bytes]:
    security = Security("SASL_PLAINTEXT", "SCRAM-SHA-256", ROOT_KEY, ROOT_SECRET)
    with KafkaClient(server.kafka, security=security, timeout_s=10.0) as client:
        found = client.fetch({TRAIL: 0}, wait_ms=0, partition_bytes_max=8 * 1_048_576)[TRAIL]
        assert found.error_code == 0
        return [
            each.value or b""
            for data in split_batches([found.records])
            for each in iter_records(data)
        ]


def notes(server: Server, *actions: str) -> list[AuditRecord]:
    """The last of each of these actions, once all of them are written."""
    found: dict[str, AuditRecord] = {}

    def is_written() -> bool:
        found.update({record.action: record for record in map(decode, values(server))})
        return found.keys() >= set(actions)

    eventually(is_written, seconds=120, what=f"{actions} noted")
    return [found[action] for action in actions]


def refused(server: Server, method: str, path: str, body: object, token: str = "") -> int:
    connection = http.client.HTTPConnection(urlsplit(server.admin_url).netloc, timeout=60)
    headers = {"content-type": "application/json"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    try:
        connection.request(method, f"/api/v1/{path}", json.dumps(body), headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_each_change_of_identities_is_noted(server: Server) -> None:
    operator = Operator(server)
    account = operator.tenant()
    user = operator.user(allow("sqs:*"), tenant=account)
    operator.set_password(user, PASSWORD, tenant=account)
    key_id, secret = operator.key(user, tenant=account)
    operator.disable(key_id)
    second = operator.ask("POST", f"keys/{key_id}/rotate", {})
    document = {"Version": "2012-10-17", "Statement": [allow("kafka:Read")]}
    operator.ask("PUT", f"policies/{user}/reading?tenant={account}", document)
    operator.ask("DELETE", f"policies/{user}/reading?tenant={account}")
    operator.ask("PATCH", f"quotas/{account}", {"quotas": {"queues_max": 7}})
    operator.ask("DELETE", f"keys/{key_id}")
    operator.ask("DELETE", f"users/{user}/password?tenant={account}")
    operator.ask("DELETE", f"users/{user}?tenant={account}")
    operator.ask("PATCH", f"tenants/{account}", {"is_suspended": True})
    operator.ask("DELETE", f"tenants/{account}")
    arn = f"arn:penstock:admin:us-east-1:{account}"
    expected = {
        "admin:CreateTenant": f"{arn}:tenant/{account}",
        "admin:CreateUser": f"{arn}:user/{user}",
        "admin:SetPassword": f"{arn}:user/{user}",
        "admin:CreateKey": f"{arn}:key/{key_id}",
        "admin:ChangeKey": f"{arn}:key/{key_id}",
        "admin:RotateKey": f"{arn}:key/{key_id}",
        "admin:PutPolicy": f"{arn}:policy/{user}/reading",
        "admin:DeletePolicy": f"{arn}:policy/{user}/reading",
        "admin:SetQuotas": f"{arn}:tenant/{account}",
        "admin:DeleteKey": f"{arn}:key/{key_id}",
        "admin:DeletePassword": f"{arn}:user/{user}",
        "admin:DeleteUser": f"{arn}:user/{user}",
        "admin:ChangeTenant": f"{arn}:tenant/{account}",
        "admin:DeleteTenant": f"{arn}:tenant/{account}",
    }
    found = {note.action: note for note in notes(server, *expected)}
    for action, resource in expected.items():
        note = found[action]
        assert (note.resource, note.outcome, note.principal) == (resource, "ok", ROOT), note
        assert note.source_ip == "127.0.0.1"
        assert note.request_id
    assert found["admin:RotateKey"].params["new_key"] == second["key_id"]
    assert found["admin:SetQuotas"].params["quotas"] == {"queues_max": 7}
    assert "kafka:Read" in str(found["admin:PutPolicy"].params["document"])
    assert notes(server, "admin:LogIn")[0].params == {"access_key": ROOT_KEY}
    written = values(server)
    assert list(breaks(written)) == []
    told = b"".join(written)
    for hidden in (secret, second["secret"], ROOT_SECRET, PASSWORD):
        assert hidden.encode() not in told


def test_what_was_denied_or_failed_is_noted_as_such(server: Server) -> None:
    operator = Operator(server)
    user = operator.user(allow("sqs:*"))
    key_id, secret = operator.key(user)
    assert refused(server, "POST", "login", {"key_id": key_id, "secret": "wrong"}) == 401
    told = _token(server, key_id, secret)
    assert refused(server, "DELETE", f"users/{user}", {}, told) == 403
    assert refused(server, "PATCH", "tenants/999999999999", {"name": "x"}, "nonsense") == 401
    assert refused(server, "POST", "users", {"nome": "x"}, operator._token) == 400

    who = f"arn:aws:iam::000000000000:user/{user}"
    expected = {
        ("admin:LogIn", "denied", "unauthorized", ""),
        ("admin:DeleteUser", "denied", "access_denied", who),
        ("admin:ChangeTenant", "denied", "unauthorized", ""),
        ("admin:CreateUser", "failed", "invalid_request", ROOT),
    }

    def missing() -> set[tuple[str, str, str, str]]:
        written = map(decode, values(server))
        return expected - {(n.action, n.outcome, n.error_code, n.principal) for n in written}

    eventually(lambda: not missing(), seconds=120, what=str(expected))
    denied = [note for note in map(decode, values(server)) if note.error_code == "unauthorized"]
    assert {"access_key": key_id} in [note.params for note in denied]


def _token(server: Server, key_id: str, secret: str) -> str:
    connection = http.client.HTTPConnection(urlsplit(server.admin_url).netloc, timeout=60)
    try:
        body = json.dumps({"key_id": key_id, "secret": secret})
        connection.request("POST", "/api/v1/login", body, {"content-type": "application/json"})
        found: Any = json.loads(connection.getresponse().read())
        return str(found["token"])
    finally:
        connection.close()


def test_where_nobody_has_to_log_in_the_operator_of_the_node_is_named(tmp_path: Path) -> None:
    with Server(tmp_path, fsync="never", kafka_port=0) as running:
        assert refused(running, "POST", "users", {"name": "ann"}) == 201
        security = Security()

        def found() -> list[AuditRecord]:
            with KafkaClient(running.kafka, security=security, timeout_s=10.0) as client:
                data = client.fetch({TRAIL: 0}, wait_ms=0)[TRAIL].records
            batches = split_batches([data])
            records = [decode(r.value or b"") for each in batches for r in iter_records(each)]
            return [record for record in records if record.action == "admin:CreateUser"]

        eventually(lambda: bool(found()), seconds=120, what="the change noted")
        assert found()[0].principal == "arn:aws:iam::000000000000:user/operator"


def test_a_body_of_more_than_a_mebibyte_is_not_taken(server: Server) -> None:
    parts = urlsplit(server.admin_url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10) as plain:
        plain.sendall(
            b"POST /api/v1/login HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: 1048577\r\n\r\n"
        )
        assert plain.recv(1_000).startswith(b"HTTP/1.1 413")
