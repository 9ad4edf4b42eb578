"""HTTP bodies as large as they may be: hashing and decoding them does not keep the event loop busy
for more than 20 ms, and a request that is not signed never has its body decoded."""

from __future__ import annotations

import gc
import json
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from tests.attacks.kit import REGION, exchange, send, signed
from tests.attacks.stalls import LoopServer
from tests.harness.client import Fault, RawClient
from tests.harness.raw_http import RawConnection, form_request, json_request

from penstock.model.limits import (
    FORM_BYTES_MAX,
    JSON_ENTRIES_MAX,
    JSON_STRINGS_MAX,
    JSON_STRUCTURE_BYTES_MAX,
    WHOLE_BODY_BYTES_MAX,
)

KIB, MIB = 1_024, 1_048_576


@pytest.fixture(autouse=True)
def garbage_of_tests_is_not_collected_in_the_loop() -> None:
    """The tests' own objects are in the server's process here."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", params=["open", "locked"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoopServer]:
    folder = tmp_path_factory.mktemp(request.param)
    with LoopServer(folder, is_auth_on=request.param == "locked") as running:
        yield running


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopServer]:
    with LoopServer(tmp_path_factory.mktemp("locked"), is_auth_on=True) as running:
        yield running


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopServer]:
    with LoopServer(tmp_path_factory.mktemp("open")) as running:
        yield running


def ask(server: LoopServer, action: str, body: bytes) -> tuple[int, bytes]:
    """As AWS JSON, signed where that is asked for."""
    if server.root.access_key:
        return exchange(server, signed(server, action, body, credentials=server.root), body)
    lines = [("Host", urlsplit(server.url).netloc), ("X-Amz-Target", f"AmazonSQS.{action}")]
    return exchange(server, lines, body)


def ask_form(server: LoopServer, body: bytes) -> tuple[int, bytes]:
    host = urlsplit(server.url).netloc
    given = {"Host": host, "Content-Type": "application/x-www-form-urlencoded"}
    request = AWSRequest("POST", f"http://{host}/", headers=given, data=body)
    if server.root.access_key:
        SigV4Auth(server.root, "sqs", REGION).add_auth(request)
    return exchange(server, list(request.headers.items()), body)


def thrown(server: LoopServer, request: bytes) -> tuple[int, bytes]:
    with RawConnection(server.port) as connection:
        connection.send(request)
        reply = connection.read_reply()
    return reply.statuses[0], reply.data


# ── Without a signature ──────────────────────────────────────────────────────────────────────
MANY_ATTRIBUTES = (
    b'{"QueueName":"q","Attributes":{' + b",".join(b'"a%d":"v"' % n for n in range(500_000)) + b"}}"
)
ESCAPES = b"Action=SendMessage&MessageBody=" + b"%41" * (7 * MIB // 3)
UNSIGNED = {
    "form": form_request(ESCAPES),
    "form-of-percent-signs": form_request(b"Action=SendMessage&MessageBody=" + b"%" * 4_000_000),
    "json": json_request("CreateQueue", MANY_ATTRIBUTES),
    "no-json": json_request("CreateQueue", b"{" * 7 * MIB),
    "small-and-no-json": json_request("CreateQueue", b"{not json"),
    "small-and-no-form": form_request(b"Action=SendMessage&MessageBody=%ff"),
    "query": b"GET /?Action=ListQueues&a="
    + b"%" * 15_000
    + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("attack", UNSIGNED)
def test_a_request_without_a_signature_is_not_decoded(locked: LoopServer, attack: str) -> None:
    with locked.watch() as turns:
        status, reply = thrown(locked, UNSIGNED[attack])
    turns.check()
    assert status == 403
    assert b"MissingAuthenticationToken" in reply


@pytest.mark.parametrize("body", [MANY_ATTRIBUTES, b"{" * 7 * MIB, b"{not json"])
def test_a_request_with_a_wrong_signature_is_not_decoded(locked: LoopServer, body: bytes) -> None:
    lines = signed(locked, "CreateQueue", body, credentials=locked.root)
    spoilt = [
        (name, value[:-4] + "0000" if name == "Authorization" else value) for name, value in lines
    ]
    with locked.watch() as turns:
        status, reply = exchange(locked, spoilt, body)
    turns.check()
    assert status == 403
    assert b"InvalidSignatureException" in reply


def test_a_large_body_that_was_not_signed_is_rejected(locked: LoopServer) -> None:
    """One byte differs from what the signature covers, far behind the first piece."""
    body = b'{"QueueName":"' + b"x" * 2 * MIB + b'"}'
    lines = signed(locked, "CreateQueue", body, credentials=locked.root)
    other = body[: MIB + 7] + b"y" + body[MIB + 8 :]
    assert exchange(locked, lines, other)[0] == 403
    assert b"InvalidSignatureException" in exchange(locked, lines, other)[1]


# ── With one, or where none is asked for ─────────────────────────────────────────────────────
def strings(count: int) -> bytes:
    """That many names and values in quotes."""
    return b'{"Ignored":[' + b",".join([b'"%s"' % (b"v" * 9)] * (count - 1)) + b"]}"


def structure(size: int) -> bytes:
    """That many bytes outside of quotes."""
    text = b'{"Ignored":"' + b"v" * WHOLE_BODY_BYTES_MAX + b'"}'
    return text[:1] + b" " * (size - 3) + text[1:]


AT_BOUND: dict[str, tuple[str, bytes, bytes]] = {
    "entries": (
        "ReceiveMessage",
        json.dumps({"AttributeNames": ["All"] * JSON_ENTRIES_MAX}).encode(),
        json.dumps({"AttributeNames": ["All"] * (JSON_ENTRIES_MAX + 1)}).encode(),
    ),
    "strings": ("ListQueues", strings(JSON_STRINGS_MAX), strings(JSON_STRINGS_MAX + 1)),
    "structure": (
        "ListQueues",
        structure(JSON_STRUCTURE_BYTES_MAX),
        structure(JSON_STRUCTURE_BYTES_MAX + 1),
    ),
}


@pytest.mark.parametrize("bound", AT_BOUND)
def test_a_json_body_at_its_bound_is_served(server: LoopServer, bound: str) -> None:
    action, served, rejected = AT_BOUND[bound]
    _, made = ask(server, "CreateQueue", b'{"QueueName":"bound"}')
    url = b'{"QueueUrl":%s,' % json.dumps(json.loads(made)["QueueUrl"]).encode()
    if action == "ReceiveMessage":
        served, rejected = url + served[1:], url + rejected[1:]
    with server.watch() as turns:
        assert ask(server, action, served)[0] == 200
        status, reply = ask(server, action, rejected)
    turns.check()
    assert (status, b"SerializationException" in reply) == (400, True)


def test_a_form_at_its_bound_is_served(server: LoopServer) -> None:
    form = b"Action=ListQueues&Ignored="
    served = form + b"%41" * ((FORM_BYTES_MAX - len(form)) // 3)
    served += b"x" * (FORM_BYTES_MAX - len(served))
    with server.watch() as turns:
        assert ask_form(server, served)[0] == 200
        assert ask_form(server, served + b"x")[0] == 413
    turns.check()


SLOW_JSON: dict[str, tuple[str, bytes]] = {
    "attributes": ("CreateQueue", MANY_ATTRIBUTES),
    "empty-entries": ("SendMessageBatch", b'{"Entries":[' + b",".join([b"{}"] * 2_000_000) + b"]}"),
    "numbers": ("ListQueues", b'{"x":[' + b",".join([b"1"] * 3_500_000) + b"]}"),
    "backslashes": ("SendMessage", b"\\" * 7 * MIB),
    "quotes": ("SendMessage", b'"' * 7 * MIB),
    "escapes": ("SendMessage", b'{"MessageBody":"' + b"\\n" * (7 * MIB // 2) + b'"}'),
    "escaped-quotes": ("SendMessage", b'{"MessageBody":"' + b'\\"' * (7 * MIB // 2) + b'"}'),
    "truncated": ("SendMessage", b'{"MessageBody":"' + b"\\u0041" * MIB),
    "base64": (
        "SendMessage",
        b'{"MessageBody":"x","MessageAttributes":{"a":{"DataType":"Binary","BinaryValue":"'
        + b"QUJD" * (7 * MIB // 4)
        + b'"}}}',
    ),
}


@pytest.mark.parametrize("attack", SLOW_JSON)
def test_a_slow_json_body_is_rejected_in_turns(server: LoopServer, attack: str) -> None:
    action, body = SLOW_JSON[attack]
    with server.watch() as turns:
        status, _ = ask(server, action, body)
    turns.check()
    assert status in (200 if attack == "numbers" else 400, 400)


SLOW_FORMS = {
    "escapes": b"Action=SendMessage&MessageBody=" + b"%41" * 1_300_000,
    "percent-signs": b"Action=SendMessage&MessageBody=" + b"%" * 4_000_000,
    "fields": b"Action=ListQueues&" + b"&".join(b"a%d=" % n + b"%41" * 1_300 for n in range(900)),
    "no-utf-8": b"Action=SendMessage&MessageBody=" + b"%ff" * 1_300_000,
    "plus-signs": b"Action=SendMessage&MessageBody=" + b"+" * 4_000_000,
}


@pytest.mark.parametrize("attack", SLOW_FORMS)
def test_a_slow_form_is_answered_in_turns(server: LoopServer, attack: str) -> None:
    with server.watch() as turns:
        status, _ = ask_form(server, SLOW_FORMS[attack])
    turns.check()
    assert status == (200 if attack == "fields" else 400)


def test_a_client_that_leaves_during_a_slow_form_costs_no_more(open_server: LoopServer) -> None:
    """Whether to carry on for a client that has left depends on the action in the form."""
    with open_server.watch() as turns:
        with socket.create_connection(("127.0.0.1", open_server.port)) as connection:
            connection.sendall(form_request(SLOW_FORMS["percent-signs"]))
        client = RawClient(open_server.port)
        client.call("ListQueues", {})
        client.close()
        open_server.finish_requests()
    turns.check()


# ── Messages ─────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("text", ["A", "\n", '"', "\\", "é", "😀", "&"])
@pytest.mark.parametrize("style", ["json", "form"])
def test_the_largest_message_comes_back_as_it_was_sent(
    server: LoopServer, text: str, style: str
) -> None:
    """With every character escaped."""
    body = text * (MIB // len(text.encode()))
    name = f"largest-{style}-{ord(text)}"
    _, made = ask(server, "CreateQueue", json.dumps({"QueueName": name}).encode())
    url = json.loads(made)["QueueUrl"]
    if style == "json":
        escaped = "".join(f"\\u{n:04x}" for n in _units(text)) * (MIB // len(text.encode()))
        sent = json.dumps({"QueueUrl": url, "MessageBody": "BODY"}).replace("BODY", escaped)
        sending = partial(ask, server, "SendMessage", sent.encode())
    else:
        escaped = "".join(f"%{n:02X}" for n in text.encode()) * (MIB // len(text.encode()))
        form = f"Action=SendMessage&QueueUrl={url}&MessageBody={escaped}".encode()
        sending = partial(ask_form, server, form)
    with server.watch() as turns:
        status, reply = sending()
        assert status == 200, reply[:300]
        status, found = ask(server, "ReceiveMessage", json.dumps({"QueueUrl": url}).encode())
    turns.check()
    assert json.loads(found)["Messages"][0]["Body"] == body


def _units(text: str) -> list[int]:
    raw = text.encode("utf-16-be")
    return [int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2)]


@pytest.mark.parametrize("text", ['"', "&", "x", "é"])
@pytest.mark.parametrize("style", ["json", "form"])
def test_ten_messages_of_1_mib_are_received(open_server: LoopServer, text: str, style: str) -> None:
    client = RawClient(open_server.port)
    made = client.call("CreateQueue", {"QueueName": f"ten-{style}-{ord(text)}"})
    url = made["QueueUrl"]
    body = text * (MIB // len(text.encode()))
    for _ in range(10):
        client.call("SendMessage", {"QueueUrl": url, "MessageBody": body})
    held: list[Any] = []
    while len(held) < 10:
        asked = {"QueueUrl": url, "MaxNumberOfMessages": 10, "VisibilityTimeout": 600}
        held += client.call("ReceiveMessage", asked)["Messages"]
    for one in held:
        client.call(
            "ChangeMessageVisibility",
            {"QueueUrl": url, "ReceiptHandle": one["ReceiptHandle"], "VisibilityTimeout": 0},
        )
    with open_server.watch() as turns:
        if style == "json":
            asked = {"QueueUrl": url, "MaxNumberOfMessages": 10, "VisibilityTimeout": 0}
            found = client.call("ReceiveMessage", asked)["Messages"]
            assert [one["Body"] for one in found] == [body] * 10
        else:
            form = f"Action=ReceiveMessage&QueueUrl={url}&MaxNumberOfMessages=10"
            host, kind = urlsplit(open_server.url).netloc, "application/x-www-form-urlencoded"
            status, reply, _ = send(host, "POST", "/", form, {"content-type": kind})
            assert (status, reply.count(b"<Message>")) == (200, 10)
            assert reply.count(b"</ReceiveMessageResult>") == 1
    turns.check()
    client.close()


def test_thousands_of_entries_are_rejected_by_a_small_body_too(open_server: LoopServer) -> None:
    client = RawClient(open_server.port)
    with pytest.raises(Fault) as caught:
        client.call("SendMessageBatch", {"QueueUrl": "q", "Entries": [{}] * (JSON_ENTRIES_MAX + 1)})
    assert caught.value.status == 400
    client.close()
