"""Too much of everything: heads, bodies, depth, fields, entries. Each is refused as what it is, and
costs no more than it sent. Bodies that are no JSON or no form at all are in
tests/faults/test_bad_input.py."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.attacks.kit import throw
from tests.harness.client import Fault, RawClient
from tests.harness.raw_http import RawConnection, form_request, json_request
from tests.harness.server import Server

KIB, MIB = 1_024, 1_048_576
DEPTH = 10_000
START = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
CLOSE = "Connection: close\r\n"


def nested(opening: bytes, closing: bytes, middle: bytes = b"") -> bytes:
    return opening * DEPTH + middle + closing * DEPTH


ENTITY = (
    b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd"><!ENTITY c "&b;&b;&b;&b;">]><a>&c;</a>'
)
REFUSED: dict[str, tuple[bytes, set[int]]] = {
    "head-of-17-kib": (
        START + b"X: " + b"a" * 17 * KIB + b"\r\nContent-Length: 0\r\n\r\n",
        {431},
    ),
    "head-of-many-lines": (
        START + b"".join(b"X-%d: y\r\n" % n for n in range(2_000)) + b"\r\n",
        {431},
    ),
    "target-of-17-kib": (b"GET /" + b"a" * 17 * KIB + b" HTTP/1.1\r\nHost: h\r\n\r\n", {431}),
    "body-of-900-mb": (START + b"Content-Length: 900000000\r\n\r\n", {413}),
    "body-of-9-mib": (json_request("SendMessage", bytes(9 * MIB)), {413}),
    "deep-arrays": (json_request("CreateQueue", nested(b"[", b"]"), headers=CLOSE), {400}),
    "deep-objects": (
        json_request("CreateQueue", nested(b'{"a":', b"}", b"1"), headers=CLOSE),
        {400},
    ),
    "deep-in-a-field": (
        json_request(
            "CreateQueue",
            b'{"QueueName":"q","Attributes":' + nested(b'{"a":', b"}", b"1") + b"}",
            headers=CLOSE,
        ),
        {400},
    ),
    "deep-and-unclosed": (json_request("CreateQueue", b"[" * 1_000_000, headers=CLOSE), {400}),
    "number-without-end": (
        json_request("ReceiveMessage", b'{"MaxNumberOfMessages":' + b"9" * 500_000 + b"}"),
        {400},
    ),
    "form-of-a-million-fields": (
        form_request(b"Action=ListQueues&" + b"&".join([b"a=1"] * 1_000_000)),
        {400},
    ),
    "form-of-attributes": (
        form_request(
            b"Action=CreateQueue&QueueName=q&"
            + b"&".join(b"Attribute.%d.Name=x" % n for n in range(100_000))
        ),
        {400},
    ),
    "form-with-a-huge-index": (
        form_request(b"Action=SendMessageBatch&SendMessageBatchRequestEntry.2147483647.Id=a"),
        {400},
    ),
    "xml-for-a-form": (form_request(ENTITY), {400}),
    "xml-for-json": (json_request("CreateQueue", ENTITY), {400}),
}


@pytest.mark.parametrize("attack", REFUSED)
def test_too_much_is_refused(open_server: Server, bystander: RawClient, attack: str) -> None:
    request, statuses = REFUSED[attack]
    before, began = open_server.rss_bytes(), time.monotonic()
    with RawConnection(open_server.port) as connection:
        connection.send(request)
        reply = connection.read_reply()
    assert set(reply.statuses) == statuses, reply.data[:300]
    assert b"root:" not in reply.data
    assert time.monotonic() - began < 5.0
    assert open_server.rss_bytes() - before < 64 * MIB


def entries(count: int, size: int = 1, **more: Any) -> list[dict[str, Any]]:
    return [{"Id": str(n), "MessageBody": "x" * size, **more} for n in range(count)]


ATTRIBUTE = {"DataType": "String", "StringValue": "v"}
TOO_MANY: dict[str, tuple[str, dict[str, Any]]] = {
    "eleven-entries": ("SendMessageBatch", {"Entries": entries(11)}),
    "thousands-of-entries": ("SendMessageBatch", {"Entries": entries(5_000)}),
    "entries-of-2-mib": ("SendMessageBatch", {"Entries": entries(10, 200 * KIB)}),
    "no-entries": ("SendMessageBatch", {"Entries": []}),
    "same-id-twice": ("SendMessageBatch", {"Entries": entries(1) * 2}),
    "message-of-2-mib": ("SendMessage", {"MessageBody": "x" * 2 * MIB}),
    "attributes-of-2-mib": (
        "SendMessage",
        {
            "MessageBody": "x",
            "MessageAttributes": {"a": {"DataType": "String", "StringValue": "v" * 2 * MIB}},
        },
    ),
    "eleven-attributes": (
        "SendMessage",
        {"MessageBody": "x", "MessageAttributes": {f"a{n}": ATTRIBUTE for n in range(11)}},
    ),
    "a-thousand-attributes": (
        "SendMessage",
        {"MessageBody": "x", "MessageAttributes": {f"a{n}": ATTRIBUTE for n in range(1_000)}},
    ),
    "eleven-deletes": (
        "DeleteMessageBatch",
        {"Entries": [{"Id": str(n), "ReceiptHandle": "x"} for n in range(11)]},
    ),
    "receipt-of-1-mib": ("DeleteMessage", {"ReceiptHandle": "x" * MIB}),
    "eleven-messages": ("ReceiveMessage", {"MaxNumberOfMessages": 11}),
    "wait-of-a-day": ("ReceiveMessage", {"WaitTimeSeconds": 86_400}),
    "negative-wait": ("ReceiveMessage", {"WaitTimeSeconds": -1}),
    "lease-of-a-year": ("ReceiveMessage", {"VisibilityTimeout": 31_536_000}),
    "number-beyond-64-bits": ("ReceiveMessage", {"VisibilityTimeout": 2**70}),
    "fifty-one-tags": ("TagQueue", {"Tags": {f"k{n}": "v" for n in range(51)}}),
    "tag-of-1-mib": ("TagQueue", {"Tags": {"k": "v" * MIB}}),
    "policy-of-1-mib": (
        "SetQueueAttributes",
        {"Attributes": {"Policy": json.dumps({"Statement": [], "x": "y" * MIB})}},
    ),
    "policy-too-deep": (
        "SetQueueAttributes",
        {"Attributes": {"Policy": nested(b"[", b"]").decode()}},
    ),
    "redrive-too-deep": (
        "SetQueueAttributes",
        {"Attributes": {"RedrivePolicy": nested(b'{"a":', b"}", b"1").decode()}},
    ),
    "no-such-attribute": ("SetQueueAttributes", {"Attributes": {"__class__": "x"}}),
}


@pytest.mark.parametrize("attack", TOO_MANY)
def test_too_many_are_refused_and_nothing_is_done(
    bystander: RawClient, name: Callable[..., str], attack: str
) -> None:
    operation, asked = TOO_MANY[attack]
    url = bystander.call("CreateQueue", {"QueueName": name()})["QueueUrl"]
    with pytest.raises(Fault) as caught:
        bystander.call(operation, {"QueueUrl": url, **asked})
    assert 400 <= caught.value.status < 500
    assert len(caught.value.message) < 2_000
    assert not bystander.call("ReceiveMessage", {"QueueUrl": url}).get("Messages")
    assert not bystander.call("ListQueueTags", {"QueueUrl": url}).get("Tags")


def test_tokens_of_lists_are_not_believed(bystander: RawClient) -> None:
    for token in ("x", "A" * 100_000, "../../x", "eyJhIjoxfQ==", "\u0000"):
        with pytest.raises(Fault) as caught:
            bystander.call("ListQueues", {"NextToken": token, "MaxResults": 1})
        assert caught.value.status == 400


def test_pipelining_without_end_is_answered_in_order(
    open_server: Server, bystander: RawClient
) -> None:
    request = json_request("ListQueues", b'{"QueueNamePrefix":"no-such"}')
    last = json_request("ListQueues", b'{"QueueNamePrefix":"no-such"}', headers=CLOSE)
    reply = throw(open_server.port, request * 999 + last)
    assert reply.statuses == [200] * 1_000
