"""Requests with two readings, one for a proxy and one for us: the second request hidden in them
must never be carried out. Whether it was is seen in the server's state, for the hidden request
makes a queue. Through a real proxy they would differ only in what gets this far."""

from __future__ import annotations

import pytest
from tests.attacks.kit import throw
from tests.harness.client import RawClient
from tests.harness.raw_http import json_request
from tests.harness.server import Server

HOST = b"Host: localhost\r\n"
CALL = b"Content-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS.ListQueues\r\n"
LINE = b"POST / HTTP/1.1\r\n"
HEAD = LINE + HOST + CALL
HIDDEN = json_request("CreateQueue", b'{"QueueName": "smuggled"}')
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def sized(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


# 400, the connection closed, and nothing else.
REFUSED = {
    # Which length counts?
    "length-and-chunked": HEAD + b"Content-Length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n" + HIDDEN,
    "chunked-and-length": HEAD + CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two-lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 0\r\n\r\n{}" + HIDDEN,
    "two-equal-lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}" + HIDDEN,
    "length-list": HEAD + b"Content-Length: 2, 2\r\n\r\n{}" + HIDDEN,
    "length-with-blank": HEAD + b"Content-Length: 2 2\r\n\r\n{}" + HIDDEN,
    "negative-length": HEAD + b"Content-Length: -2\r\n\r\n{}" + HIDDEN,
    "plus-length": HEAD + b"Content-Length: +2\r\n\r\n{}" + HIDDEN,
    "hex-length": HEAD + b"Content-Length: 0x2\r\n\r\n{}" + HIDDEN,
    "empty-length": HEAD + b"Content-Length: \r\n\r\n{}" + HIDDEN,
    "overflowing-length": HEAD + b"Content-Length: 18446744073709551618\r\n\r\n{}" + HIDDEN,
    "underscored-length": HEAD + b"Content-Length: 1_0\r\n\r\n{}" + HIDDEN,
    # Which encoding?
    "two-encodings": HEAD + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n" + HIDDEN,
    "encoding-list": HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    "encoding-not-decoded": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "encoding-identity": HEAD + b"Transfer-Encoding: identity\r\n\r\n" + HIDDEN,
    "encoding-odd": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "encoding-quoted": HEAD + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n' + HIDDEN,
    "encoding-vertical-tab": HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "encoding-in-http-1.0": HEAD.replace(b"HTTP/1.1", b"HTTP/1.0")
    + b"Connection: keep-alive\r\n" + CHUNKED + b"\r\n0\r\n\r\n" + HIDDEN,
    # Where does a line end?
    "folded-header": HEAD + b"X-Fold: a\r\n b\r\n" + sized(b"{}") + HIDDEN,
    "folded-encoding": HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "bare-line-feeds": HEAD.replace(b"\r\n", b"\n") + b"Content-Length: 2\n\n{}" + HIDDEN,
    "one-bare-line-feed": HEAD + b"X-Odd: a\n" + sized(b"{}") + HIDDEN,
    "bare-line-feed-at-the-end": HEAD + b"Content-Length: 2\r\n\n{}" + HIDDEN,
    "bare-carriage-return": HEAD + b"X-Odd: a\rContent-Length: 2\r\n\r\n{}" + HIDDEN,
    "nul-in-header": HEAD + b"X-Odd: a\0b\r\n" + sized(b"{}") + HIDDEN,
    "nul-in-name": HEAD + b"Transfer-Encoding\0: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    # Which name is it?
    "space-before-colon": HEAD + b"Content-Length : 2\r\n\r\n{}" + HIDDEN,
    "tab-before-colon": HEAD + b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "space-before-first-header": LINE + b" " + HOST + CALL + sized(b"{}") + HIDDEN,
    "no-name": HEAD + b": x\r\n" + sized(b"{}") + HIDDEN,
    "no-colon": HEAD + b"nonsense\r\n" + sized(b"{}") + HIDDEN,
    "not-ascii-name": HEAD + b"X-\xc3\xa9: x\r\n" + sized(b"{}") + HIDDEN,
    # For whom?
    "two-hosts": HEAD + b"Host: other\r\n" + sized(b"{}") + HIDDEN,
    "no-host": LINE + CALL + sized(b"{}") + HIDDEN,
    "host-that-is-none": LINE + b"Host: a b/c\r\n" + CALL + sized(b"{}") + HIDDEN,
    "two-targets": HEAD + b"X-Amz-Target: AmazonSQS.PurgeQueue\r\n" + sized(b"{}") + HIDDEN,
    # Where does a chunk end?
    "hex-chunk": HEAD + CHUNKED + b"\r\n0x1\r\n{\r\n0\r\n\r\n" + HIDDEN,
    "plus-chunk": HEAD + CHUNKED + b"\r\n+1\r\n{\r\n0\r\n\r\n" + HIDDEN,
    "negative-chunk": HEAD + CHUNKED + b"\r\n-1\r\n{\r\n0\r\n\r\n" + HIDDEN,
    "overflowing-chunk": HEAD + CHUNKED + b"\r\n10000000000000002\r\n{}\r\n0\r\n\r\n" + HIDDEN,
    "chunk-too-long": HEAD + CHUNKED + b"\r\n1\r\n{}}\r\n0\r\n\r\n" + HIDDEN,
    "chunk-without-end": HEAD + CHUNKED + b"\r\n2\r\n{}0\r\n\r\n" + HIDDEN,
    "chunk-with-blank": HEAD + CHUNKED + b"\r\n2 \r\n{}\r\n0\r\n\r\n" + HIDDEN,
    "chunk-line-feeds": HEAD + CHUNKED + b"\r\n2\n{}\n0\n\n" + HIDDEN,
    "extension-line-feed": HEAD + CHUNKED + b"\r\n2;a\n{}\r\n0\r\n\r\n" + HIDDEN,
    "extension-carriage-return": HEAD + CHUNKED + b"\r\n2;a=\rb\r\n{}\r\n0\r\n\r\n" + HIDDEN,
    "length-in-trailer": HEAD + CHUNKED + b"\r\n0\r\nContent-Length: 9\r\n\r\n" + HIDDEN,
    # Which protocol?
    "http-0.9": b"GET /\r\n\r\n" + HIDDEN,
    "no-such-version": HEAD.replace(b"HTTP/1.1", b"HTTP/9.1") + sized(b"{}") + HIDDEN,
    "http-2-preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN,
    "no-such-method": b"\0\1\2\3 / HTTP/1.1\r\n" + HOST + b"\r\n" + HIDDEN,
    "tabs-for-blanks": b"GET\t/\tHTTP/1.1\r\n" + HOST + b"\r\n" + HIDDEN,
    "control-in-target": b"GET /\x01 HTTP/1.1\r\n" + HOST + b"\r\n" + HIDDEN,
    "tunnel": b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n" + HIDDEN,
    "tunnel-by-path": b"CONNECT / HTTP/1.1\r\n" + HOST + sized(HIDDEN),
    "tls-hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500) + HIDDEN,
}  # fmt: skip


@pytest.mark.parametrize("attack", REFUSED)
def test_a_request_with_two_readings_is_refused(
    open_server: Server, bystander: RawClient, attack: str
) -> None:
    reply = throw(open_server.port, REFUSED[attack])
    assert reply.is_closed, "the connection was left open"
    assert reply.statuses == [400], reply.data[:600]
    assert_nothing_hidden_was_done(bystander)


# Of one reading, answered once: what looks like a request in there is none.
UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
CLOSE = b"Connection: close\r\n"
HARMLESS = {
    "in-the-body-of-a-get": b"GET / HTTP/1.1\r\n" + HOST + CLOSE + sized(HIDDEN),
    "behind-a-close": HEAD + CLOSE + sized(b"{}") + HIDDEN,
    "behind-a-close-malformed": HEAD + CLOSE + sized(b"{}") + b"\0\0\0" + HIDDEN,
    "in-the-body-of-an-upgrade": HEAD + UPGRADE + sized(HIDDEN),
    "in-the-chunks-of-an-upgrade": HEAD + UPGRADE + CHUNKED
    + b"\r\n%x\r\n" % len(HIDDEN) + HIDDEN + b"\r\n0\r\n\r\n",
    "behind-the-body-of-an-upgrade": HEAD + UPGRADE + sized(b"{}") + HIDDEN,
    "in-a-chunk-extension": HEAD + CLOSE + CHUNKED
    + b"\r\n2;a=" + HIDDEN.partition(b"\r\n")[0] + b"\r\n{}\r\n0\r\n\r\n",
    "in-a-trailer": b"POST / HTTP/1.1\r\n" + HOST + CLOSE + CHUNKED
    + b'\r\n19\r\n{"QueueName": "smuggled"}\r\n0\r\n'
    b"Content-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS.CreateQueue\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("attack", HARMLESS)
def test_what_looks_like_a_request_inside_another_is_not_one(
    open_server: Server, bystander: RawClient, attack: str
) -> None:
    reply = throw(open_server.port, HARMLESS[attack])
    assert reply.is_closed, "the connection was left open"
    assert len(reply.statuses) == 1, reply.data[:600]
    assert_nothing_hidden_was_done(bystander)


def test_nothing_behind_a_refused_request_is_carried_out(
    open_server: Server, bystander: RawClient
) -> None:
    """Whole requests before it are, in their order."""
    first = json_request("ListQueues", b"{}")
    spoilt = HEAD + b"Content-Length: x\r\n\r\n"
    reply = throw(open_server.port, spoilt + HIDDEN * 3)
    assert (reply.statuses, reply.is_closed) == ([400], True)
    reply = throw(open_server.port, first + spoilt + HIDDEN * 3)
    assert reply.is_closed
    assert reply.statuses in ([], [200], [200, 400])
    assert_nothing_hidden_was_done(bystander)


def test_many_offers_to_upgrade_in_one_breath_are_each_answered(
    open_server: Server, bystander: RawClient
) -> None:
    """Each begins a new parser; that must not go deeper and deeper."""
    offer = b"GET / HTTP/1.1\r\n" + HOST + UPGRADE + b"\r\n"
    last = b"GET / HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n"
    reply = throw(open_server.port, offer * 3_000 + last)
    assert reply.statuses == [200] * 3_001


def assert_nothing_hidden_was_done(bystander: RawClient) -> None:
    found = bystander.call("ListQueues", {"QueueNamePrefix": "smuggled"}).get("QueueUrls")
    assert not found, "the hidden request was carried out"


def test_the_hidden_request_would_be_seen_if_it_were_carried_out(
    open_server: Server, bystander: RawClient
) -> None:
    """So that the tests above cannot all be passing for want of a good request in them."""
    whole = json_request(
        "CreateQueue", b'{"QueueName": "smuggled"}', headers="Connection: close\r\n"
    )
    assert throw(open_server.port, whole).statuses == [200]
    (url,) = bystander.call("ListQueues", {"QueueNamePrefix": "smuggled"})["QueueUrls"]
    bystander.call("DeleteQueue", {"QueueUrl": url})
