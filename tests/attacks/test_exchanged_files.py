"""A person who can write to the disk exchanges the segment files of two encrypted queues while the
server is stopped. ``docs/security.md`` says what happens, under "Encryption at rest"."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.attacks.kit import EVERYTHING, ROOT, Operator, sqs_as
from tests.compat.test_encryption import (
    SSE,
    new_queue,
    quarantined,
    receive,
    replace_segment,
    sealed_segments,
)
from tests.harness.server import Server, stable_port

# The bodies differ in length, and so do the segments: that tells which is whose.
SHORT, LONG = "short", "long" * 50


class Tenant:
    def __init__(self, server: Server, operator: Operator) -> None:
        _, self._credentials = operator.user(EVERYTHING, tenant=operator.tenant())
        self._server = server

    def client(self) -> Any:
        return sqs_as(self._server, self._credentials)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    secret = tmp_path / "secret"
    secret.write_text(str(ROOT.secret_key))
    secret.chmod(0o600)
    env = {
        "PENSTOCK_ROOT_KEY_ID": str(ROOT.access_key),
        "PENSTOCK_ROOT_SECRET_FILE": str(secret),
    }
    arguments = ["--auth", "on"]
    data = tmp_path / "data"
    with Server(data, port=stable_port(), arguments=arguments, env=env) as running:
        yield running
        running.assert_no_traceback()


def fill(client: Any, name: str, body: str) -> str:
    url = new_queue(client, name, **SSE)
    client.send_message(QueueUrl=url, MessageBody=body)
    return url


def exchange_segments(server: Server) -> None:
    """Stop the server, exchange the two sealed segments, start the server."""
    assert server.stop() == 0
    one, other = sealed_segments(server.data)
    contents = one.read_bytes(), other.read_bytes()
    assert len(contents[0]) != len(contents[1])
    replace_segment(one, contents[1])
    replace_segment(other, contents[0])
    server.start()


def count_of(server: Server) -> float:
    token = Operator(server).token
    return quarantined(server, token=token)


def test_exchanged_files_of_two_tenants_deliver_nothing(server: Server) -> None:
    operator = Operator(server)
    clients = [Tenant(server, operator).client() for _ in range(2)]
    urls = [fill(clients[0], "q", SHORT), fill(clients[1], "q", LONG)]
    exchange_segments(server)
    for client, url in zip(clients, urls, strict=True):
        assert receive(client, url) == []
    assert count_of(server) == 2
    for client in clients:
        client.close()


def test_exchanged_files_of_one_tenant_deliver_the_messages_of_the_other_queue(
    server: Server,
) -> None:
    client = Tenant(server, Operator(server)).client()
    urls = [fill(client, "one", SHORT), fill(client, "other", LONG)]
    exchange_segments(server)
    assert [m["Body"] for m in receive(client, urls[0])] == [LONG]
    assert [m["Body"] for m in receive(client, urls[1])] == [SHORT]
    assert count_of(server) == 0
    client.close()
