"""No request keeps the event loop busy for more than 20 ms at a stretch, whoever sends it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from tests.attacks.frames import Wire
from tests.attacks.kit import Operator, exchange, signed
from tests.attacks.stall_requests import KAFKA, SQS, Shape, frame, shapes
from tests.attacks.stalls import LoopServer

from penstock.frontend.sqs.actions import ACTIONS
from penstock.wire.kafka.apis import APIS

KAFKA_CASES = [
    pytest.param(name, shape, id=f"{name}-{shape.path or 'no-array'}-v{shape.version}")
    for name in KAFKA
    for shape in shapes(name)
]
QUEUE = "held"


@pytest.fixture(scope="module", params=["open", "locked"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoopServer]:
    folder = tmp_path_factory.mktemp(request.param)
    with LoopServer(folder, is_auth_on=request.param == "locked") as running:
        yield running


@pytest.fixture(scope="module")
def stranger(server: LoopServer) -> tuple[str, str]:
    """Key and secret of a user without any policy; empty where authentication is off."""
    if not server.root.access_key:
        return "", ""
    _, credentials = Operator(server, server.root).user()
    return str(credentials.access_key), str(credentials.secret_key)


def wire_of(server: LoopServer, login: tuple[str, str]) -> Wire:
    wire = Wire(server)
    if login[0]:
        assert wire.ask("SaslHandshake", 1, mechanism="PLAIN").error_code == 0
        token = "\0".join(("", *login)).encode()
        assert wire.ask("SaslAuthenticate", 2, auth_bytes=token).error_code == 0
    return wire


# ── The table is complete ────────────────────────────────────────────────────────────────────


def test_every_kafka_api_and_every_sqs_action_is_in_the_table() -> None:
    assert set(KAFKA) == {api.name for api in APIS.values()}
    assert set(SQS) == set(ACTIONS)


# ── Kafka ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("name", "shape"), KAFKA_CASES)
def test_a_request_with_100_entries(
    server: LoopServer, stranger: tuple[str, str], name: str, shape: Shape
) -> None:
    sent = frame(name, shape, 100)
    with wire_of(server, stranger) as wire, server.watch() as turns:
        wire.send(sent)
        wire.read_frame()
    turns.check()


# ── SQS ──────────────────────────────────────────────────────────────────────────────────────


def sqs_lines(server: LoopServer, action: str, body: bytes) -> list[tuple[str, str]]:
    if server.root.access_key:
        return signed(server, action, body, credentials=server.root)
    return [
        ("Host", urlsplit(server.url).netloc),
        ("X-Amz-Target", f"AmazonSQS.{action}"),
        ("Content-Type", "application/x-amz-json-1.0"),
    ]


@pytest.mark.parametrize("action", SQS)
def test_an_sqs_action_at_its_largest(server: LoopServer, action: str) -> None:
    def ask(name: str, **fields: object) -> tuple[int, bytes]:
        body = json.dumps(fields).encode()
        return exchange(server, sqs_lines(server, name, body), body)

    status, reply = ask("CreateQueue", QueueName=QUEUE)
    assert status == 200, reply
    body = json.dumps({"QueueUrl": json.loads(reply)["QueueUrl"], **SQS[action]}).encode()
    lines = sqs_lines(server, action, body)
    with server.watch() as turns:
        exchange(server, lines, body)
    turns.check()
