"""What no honest client sends: smuggled requests, endless heads, bombs of brackets. Each gets a
4xx in its protocol's form or a closed connection; nothing hidden in it is carried out; another
client's connection does not notice; the server's memory stays bounded."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.harness.client import RawClient
from tests.harness.patience import eventually
from tests.harness.raw_http import RawConnection, RawReply, form_request, json_request
from tests.harness.server import Server

HEADER_SECONDS = 3.0
MIB = 1_048_576
GROWTH_BYTES_MAX = 96 * MIB  # of resident memory over everything in this file


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    env = {
        "PENSTOCK_HTTP__HEADER_MS_MAX": str(int(HEADER_SECONDS * 1_000)),
        "PENSTOCK_HTTP__BODY_MS_MAX": "3000",
    }
    with Server(tmp_path_factory.mktemp("abused"), fsync="never", env=env) as running:
        before = running.rss_bytes()
        yield running
        grown = running.rss_bytes() - before
        assert running.stop() == 0, running.stderr_tail()
        running.assert_no_traceback()
        assert grown < GROWTH_BYTES_MAX, f"memory grew by {grown / MIB:.0f} MiB"


@pytest.fixture
def bystander(server: Server) -> Iterator[RawClient]:
    """Another client: works before, and on the same connection after, whatever a test does."""
    client = RawClient(server.port)
    client.call("ListQueues", {})
    yield client
    client.call("ListQueues", {})
    client.close()


def exchange(server: Server, data: bytes) -> RawReply:
    with RawConnection(server.port) as connection:
        connection.send(data)
        return connection.read_until_closed()


def assert_refused(reply: RawReply) -> None:
    """One 4xx or none at all, and the connection is closed."""
    assert reply.is_closed, f"the connection was left open: {reply.data[:300]!r}"
    assert len(reply.statuses) <= 1, f"a hidden request was answered: {reply.data[:600]!r}"
    assert all(400 <= status < 500 for status in reply.statuses), reply.data[:300]


# ── requests that two parsers would read differently ─────────────────────────────────────────
HEAD = (
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-amz-json-1.0\r\n"
    b"X-Amz-Target: AmazonSQS.ListQueues\r\n"
)
HIDDEN = json_request("CreateQueue", b'{"QueueName": "smuggled"}')
SMUGGLING = {
    "length-and-chunked": HEAD
    + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    + HIDDEN,
    "chunked-and-length": HEAD
    + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"
    + HIDDEN,
    "two-lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 0\r\n\r\n{}" + HIDDEN,
    "two-equal-lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}" + HIDDEN,
    "length-list": HEAD + b"Content-Length: 2, 2\r\n\r\n{}" + HIDDEN,
    "negative-length": HEAD + b"Content-Length: -2\r\n\r\n{}" + HIDDEN,
    "plus-length": HEAD + b"Content-Length: +2\r\n\r\n{}" + HIDDEN,
    "hex-length": HEAD + b"Content-Length: 0x2\r\n\r\n{}" + HIDDEN,
    "empty-length": HEAD + b"Content-Length: \r\n\r\n{}" + HIDDEN,
    "huge-length": HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n{}" + HIDDEN,
    "underscored-length": HEAD + b"Content-Length: 1_0\r\n\r\n{}" + HIDDEN,
    "folded-header": HEAD + b"X-Fold: a\r\n b\r\nContent-Length: 2\r\n\r\n{}" + HIDDEN,
    "bare-line-feed": HEAD.replace(b"\r\n", b"\n") + b"Content-Length: 2\n\n{}" + HIDDEN,
    "bare-carriage-return": HEAD + b"X-Odd: a\rContent-Length: 2\r\n\r\n{}" + HIDDEN,
    "nul-in-header": HEAD + b"X-Odd: a\0b\r\nContent-Length: 2\r\n\r\n{}" + HIDDEN,
    "space-before-colon": HEAD + b"Content-Length : 2\r\n\r\n{}" + HIDDEN,
    "two-hosts": HEAD + b"Host: other\r\nContent-Length: 2\r\n\r\n{}" + HIDDEN,
    "no-host": HEAD.replace(b"Host: localhost\r\n", b"") + b"Content-Length: 2\r\n\r\n{}" + HIDDEN,
    "hex-chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x1\r\n{\r\n0\r\n\r\n" + HIDDEN,
    "plus-chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n+1\r\n{\r\n0\r\n\r\n" + HIDDEN,
    "negative-chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n{\r\n0\r\n\r\n" + HIDDEN,
    "huge-chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n{\r\n" + HIDDEN,
    "chunk-overrun": HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{}}\r\n0\r\n\r\n" + HIDDEN,
    "two-encodings": HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    "odd-encoding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "no-such-version": HEAD.replace(b"HTTP/1.1", b"HTTP/9.1") + b"Content-Length: 0\r\n\r\n",
    "no-such-method": b"\0\1\2\3 / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls-hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "control-in-target": b"GET /\x01 HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("name", SMUGGLING)
def test_a_request_with_two_readings_is_refused(
    server: Server, bystander: RawClient, name: str
) -> None:
    assert_refused(exchange(server, SMUGGLING[name]))
    assert not bystander.call("ListQueues", {"QueueNamePrefix": "smuggled"}).get("QueueUrls")


def test_well_formed_requests_in_one_breath_are_each_answered(
    server: Server, bystander: RawClient
) -> None:
    last = json_request("ListQueues", b"{}", headers="Connection: close\r\n")
    reply = exchange(server, json_request("ListQueues", b"{}") * 3 + last)
    assert reply.statuses == [200] * 4
    assert reply.is_closed


# ── bounds of head and body ──────────────────────────────────────────────────────────────────
def test_a_head_beyond_its_bound_is_refused(server: Server, bystander: RawClient) -> None:
    many = b"".join(b"X-%d: %s\r\n" % (number, b"v" * 100) for number in range(400))
    assert_refused(exchange(server, HEAD + many + b"Content-Length: 2\r\n\r\n{}"))


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "])
def test_a_head_that_never_ends_is_refused(
    server: Server, bystander: RawClient, start: bytes
) -> None:
    with RawConnection(server.port) as connection:
        connection.send(start)
        sent = 0
        while sent < 4 * MIB and connection.send(b"a" * 65_536):
            sent += 65_536
        assert_refused(connection.read_until_closed())


def test_a_head_that_never_ends_behind_a_parked_poll_is_bounded(
    server: Server, bystander: RawClient
) -> None:
    """While an answer is awaited the next request may be read ahead, but not without end."""
    url = bystander.call("CreateQueue", {"QueueName": "parked"})["QueueUrl"]
    poll = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
    before = server.rss_bytes()
    with RawConnection(server.port, seconds=5.0) as connection:
        connection.send(json_request("ReceiveMessage", poll))
        connection.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
        sent = 0
        try:
            while sent < 64 * MIB and connection.send(b"a" * MIB):
                sent += MIB
        except TimeoutError:
            pass  # the server stopped reading, which bounds it as well
        grown = server.rss_bytes() - before
    assert grown < 32 * MIB, f"{grown / MIB:.0f} MiB held for one unfinished head"


@pytest.mark.parametrize("seconds_of", ["head", "body"])
def test_a_slow_request_is_closed_within_its_deadline(
    server: Server, bystander: RawClient, seconds_of: str
) -> None:
    started = time.monotonic()
    with RawConnection(server.port) as connection:
        connection.send(HEAD if seconds_of == "head" else HEAD + b"Content-Length: 100\r\n\r\n{")
        assert_refused(connection.read_until_closed())
    assert time.monotonic() - started < 8.0  # less than what is not set here


def test_a_head_dripping_in_does_not_move_its_deadline(
    server: Server, bystander: RawClient
) -> None:
    started = time.monotonic()
    with RawConnection(server.port, seconds=0.1) as connection:
        connection.send(b"GET / HTTP/1.1\r\n")
        while time.monotonic() - started < 12.0:
            if not connection.send(b"X: y\r\n"):
                break
            if (reply := connection.read_until_closed()).is_closed:
                assert_refused(reply)
                break
    assert time.monotonic() - started < HEADER_SECONDS + 5.0


def test_many_half_open_requests_leave_room_for_others(
    server: Server, bystander: RawClient
) -> None:
    connections = [RawConnection(server.port) for _ in range(200)]
    try:
        for connection in connections:
            connection.send(HEAD)
        started = time.monotonic()
        bystander.call("ListQueues", {})
        assert time.monotonic() - started < HEADER_SECONDS
        for connection in connections:
            assert_refused(connection.read_until_closed())
    finally:
        for connection in connections:
            connection.socket.close()


def test_a_body_beyond_its_bound_is_refused_unread(server: Server, bystander: RawClient) -> None:
    reply = exchange(server, HEAD + b"Content-Length: 900000000\r\n\r\n")
    assert reply.statuses == [413]
    assert_refused(reply)


def test_a_chunked_body_without_end_is_refused(server: Server, bystander: RawClient) -> None:
    with RawConnection(server.port) as connection:
        connection.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"a" * 65_536 + b"\r\n"
        sent = 0
        while sent < 32 * MIB and connection.send(chunk):
            sent += len(chunk)
        assert_refused(connection.read_until_closed())


def test_a_reader_that_takes_nothing_does_not_fill_the_memory(
    server: Server, bystander: RawClient
) -> None:
    url = bystander.call("CreateQueue", {"QueueName": "big"})["QueueUrl"]
    bystander.call("SendMessage", {"QueueUrl": url, "MessageBody": "x" * 1_000_000})
    receive = json.dumps({"QueueUrl": url, "VisibilityTimeout": 0}).encode()
    before = server.rss_bytes()
    with RawConnection(server.port, seconds=3.0) as connection:
        try:
            for _ in range(500):
                connection.send(json_request("ReceiveMessage", receive))
        except TimeoutError:
            pass  # the server stopped reading: as it should
        grown = server.rss_bytes() - before
    assert grown < 80 * MIB, f"{grown / MIB:.0f} MiB of answers nobody reads"
    bystander.call("DeleteQueue", {"QueueUrl": url})


# ── well-formed HTTP with a spoilt inside ────────────────────────────────────────────────────
DEPTH = 10_000
JSON_BODIES = {
    "deep-array": b"[" * DEPTH + b"]" * DEPTH,
    "deep-object": b'{"a":' * DEPTH + b"1" + b"}" * DEPTH,
    "deep-unclosed": b"[" * 1_000_000,
    "deep-attribute": b'{"QueueName":"q","Attributes":' + b'{"a":' * DEPTH + b"1" + b"}" * DEPTH,
    "not-utf8": b'{"QueueName": "\xff\xfe"}',
    "lone-surrogate": b'{"QueueName": "\\ud800"}',
    "half-json": b'{"QueueName": ',
    "empty": b"",
    "null": b"null",
    "number": b"1e999",
    "huge-number": b'{"QueueName": ' + b"9" * 100_000 + b"}",
    "list": b'["QueueName"]',
    "wrong-kinds": b'{"QueueName": {"a": [1, 2]}}',
    "nul": b'{"QueueName": "a\\u0000b"}',
    "path": b'{"QueueName": "../../etc/passwd"}',
    "long-name": b'{"QueueName": "' + b"q" * 1_000_000 + b'"}',
    "many-keys": b"{" + b",".join(b'"k%d":1' % number for number in range(200_000)) + b"}",
}


@pytest.mark.parametrize("operation", ["CreateQueue", "SendMessage", "ReceiveMessage"])
@pytest.mark.parametrize("name", JSON_BODIES)
def test_spoilt_json_is_refused_in_json(
    server: Server, bystander: RawClient, operation: str, name: str
) -> None:
    with RawConnection(server.port) as connection:
        connection.send(json_request(operation, JSON_BODIES[name]))
        reply = connection.read_reply()
    assert reply.statuses, "no answer"
    assert 400 <= reply.statuses[0] < 500, reply.data[:300]
    error = json.loads(reply.data.partition(b"\r\n\r\n")[2])
    assert error["__type"], error
    assert isinstance(error["message"], str)


FORM_BODIES = {
    "million-fields": b"Action=ListQueues&" + b"&".join([b"a=1"] * 1_000_000),
    "million-attributes": b"Action=CreateQueue&QueueName=q&"
    + b"&".join(b"Attribute.%d.Name=x" % number for number in range(100_000)),
    "negative-index": b"Action=SendMessageBatch&SendMessageBatchRequestEntry.-1.Id=a",
    "odd-index": b"Action=SendMessageBatch&SendMessageBatchRequestEntry.1e3.Id=a",
    "deep-names": b"Action=CreateQueue&QueueName=q&Attribute" + b".1" * 100_000 + b"=1",
    "not-utf8": b"Action=CreateQueue&QueueName=%ff%fe",
    "nul": b"Action=CreateQueue&QueueName=a%00b",
    "half-escape": b"Action=CreateQueue&QueueName=%4",
    "no-action": b"QueueName=q",
    "no-such-action": b"Action=DropAllTables",
    "dunder-action": b"Action=__class__",
    "two-actions": b"Action=CreateQueue&QueueName=two&Action=DeleteQueue&QueueName=../x",
    "empty": b"",
    "entity": b"Action=CreateQueue&QueueName=<!DOCTYPE+a+[<!ENTITY+b+SYSTEM+'file:///etc/passwd'>]>",
}


@pytest.mark.parametrize("name", FORM_BODIES)
def test_a_spoilt_form_is_refused_in_xml(server: Server, bystander: RawClient, name: str) -> None:
    with RawConnection(server.port) as connection:
        connection.send(form_request(FORM_BODIES[name]))
        reply = connection.read_reply()
    assert reply.statuses, "no answer"
    assert 400 <= reply.statuses[0] < 500, reply.data[:300]
    if reply.statuses[0] != 413:
        error = ElementTree.fromstring(reply.data.partition(b"\r\n\r\n")[2])
        assert error.tag.endswith("ErrorResponse")
        codes = [found.text for found in error.iter() if found.tag.endswith("Code")]
        assert codes
        assert codes[0]


def test_batches_beyond_every_bound_are_refused(server: Server, bystander: RawClient) -> None:
    url = bystander.call("CreateQueue", {"QueueName": "batches"})["QueueUrl"]
    for count, size in ((11, 1), (5_000, 1), (10, 200_000)):
        entries = [{"Id": str(n), "MessageBody": "x" * size} for n in range(count)]
        body = json.dumps({"QueueUrl": url, "Entries": entries}).encode()
        with RawConnection(server.port) as connection:
            connection.send(json_request("SendMessageBatch", body))
            reply = connection.read_reply()
        assert reply.statuses == [400], reply.data[:300]
    assert not bystander.call("ReceiveMessage", {"QueueUrl": url}).get("Messages")


def test_unknown_operations_and_paths_are_refused(server: Server, bystander: RawClient) -> None:
    for request in (
        json_request("NoSuchOperation", b"{}"),
        json_request("__init__", b"{}"),
        b"GET /favicon.ico HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /%2e%2e/%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ):
        with RawConnection(server.port) as connection:
            connection.send(request)
            reply = connection.read_reply()
        assert reply.statuses, f"no answer to {request[:60]!r}"
        assert 400 <= reply.statuses[0] < 500, reply.data[:300]


def test_forged_receipts_are_refused(server: Server, bystander: RawClient, tmp_path: Path) -> None:
    url = bystander.call("CreateQueue", {"QueueName": "receipts"})["QueueUrl"]
    other = bystander.call("CreateQueue", {"QueueName": "other-receipts"})["QueueUrl"]
    bystander.call("SendMessage", {"QueueUrl": url, "MessageBody": "x"})
    (message,) = bystander.call("ReceiveMessage", {"QueueUrl": url})["Messages"]
    receipt = message["ReceiptHandle"]
    middle = len(receipt) // 2
    changed = receipt[:middle] + ("A" if receipt[middle] != "A" else "B") + receipt[middle + 1 :]
    for target, forged in ((other, receipt), (url, changed), (url, "x" * 2_000), (url, "\u2603")):
        body = json.dumps({"QueueUrl": target, "ReceiptHandle": forged}).encode()
        with RawConnection(server.port) as connection:
            connection.send(json_request("DeleteMessage", body))
            reply = connection.read_reply()
        assert reply.statuses == [404], reply.data[:300]
    counts = bystander.call(
        "GetQueueAttributes",
        {"QueueUrl": url, "AttributeNames": ["ApproximateNumberOfMessagesNotVisible"]},
    )
    assert counts["Attributes"]["ApproximateNumberOfMessagesNotVisible"] == "1"


def test_abandoned_connections_are_forgotten(server: Server, bystander: RawClient) -> None:
    """Clients that vanish in the middle of anything leave no descriptor behind."""
    descriptors = Path(f"/proc/{server.pid}/fd")
    before = len(list(descriptors.iterdir()))
    for number in range(200):
        with RawConnection(server.port) as connection:
            connection.send(HEAD[: 10 + number % 90])
    eventually(
        lambda: len(list(descriptors.iterdir())) <= before + 5,
        seconds=10,
        what="descriptors of abandoned connections closed",
    )
