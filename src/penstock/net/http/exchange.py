"""Types for HTTP requests and replies, checks of request headers, and the encoding of replies."""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final

import msgspec
from httptools import HttpRequestParser as Parser

from penstock.net.listener import Peer

# A Host is returned in queue URLs. Accepted values are cached.
_HOST = re.compile(r"[A-Za-z0-9._~%:\[\]-]*")
_HOSTS: set[str] = set()
HOSTS_MAX: Final = 1_024
HOST_CHARS_MAX: Final = 260

TURN_BYTES_MAX: Final = 256 * 1_024  # written at once, which takes well below a millisecond

_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}


class HttpRequest(msgspec.Struct, gc=False):
    method: str
    path: str  # percent-encoded, without the query string
    query: str  # the part after the first "?", percent-encoded
    headers: dict[str, str]  # names in lower case; repeated headers are joined by commas
    body: bytes
    peer: str  # the client's address
    request_id: str
    is_tls: bool = False
    connection: Peer | None = None  # handlers may call ``when_lost``, but not write


class HttpReply(msgspec.Struct, gc=False):
    status: int
    body: bytes = b""
    content_type: str = "application/x-amz-json-1.0"
    headers: tuple[tuple[str, str], ...] = ()
    pieces: tuple[bytes, ...] = ()  # the rest of a large body, which would take long to join


class Refused(Exception):
    """The request is invalid. ``status`` is the HTTP status of the error reply."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def check_head(headers: Mapping[str, str], parser: Parser, body_bytes_max: int) -> None:
    host = headers.get("host")
    if host not in _HOSTS:
        _check_host(host, parser)
    length = headers.get("content-length")
    encoding = headers.get("transfer-encoding")
    if length is not None:
        if encoding is not None:
            raise Refused(400, "a request must not have both content-length and transfer-encoding")
        if int(length) > body_bytes_max:
            raise Refused(413, "the request body is too large")
    elif encoding is not None and (
        encoding.strip().lower() != "chunked" or parser.get_http_version() != "1.1"
    ):
        raise Refused(400, "transfer-encoding must be chunked, and requires HTTP/1.1")


def body_after_upgrade(headers: Mapping[str, str], parser: Parser) -> bytes:
    """Return the header section with which a second parser can read the body of a request that has
    an ``Upgrade`` header, or nothing if there is no body. The first parser stops before the body,
    and bytes in the body that look like a request must not be served as one."""
    method = parser.get_method()
    if method == b"CONNECT":
        raise Refused(400, "this server is not a proxy")
    length = headers.get("content-length")
    if length is not None and int(length):
        framing = f"Content-Length: {length}"
    elif "transfer-encoding" in headers:
        framing = "Transfer-Encoding: chunked"
    else:
        return b""
    head = f" / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{framing}\r\n\r\n"
    return method + head.encode("latin-1")


def _check_host(host: str | None, parser: Parser) -> None:
    if host is None:
        if parser.get_http_version() != "1.0":
            raise Refused(400, "the Host header is missing")
    elif len(host) > HOST_CHARS_MAX or _HOST.fullmatch(host.strip()) is None:
        raise Refused(400, "the Host header is not a valid host name")
    elif len(_HOSTS) < HOSTS_MAX:
        _HOSTS.add(host)


def encode(reply: HttpReply, last_line: str, *, keep_alive: bool) -> bytes:
    status, size = reply.status, len(reply.body)
    if reply.pieces:
        size += sum(map(len, reply.pieces))
    head = (
        f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\n"
        f"Content-Type: {reply.content_type}\r\n"
        f"Content-Length: {size}\r\n"
    )
    for name, value in reply.headers:
        head += f"{name}: {value}\r\n"
    if not keep_alive:
        head += "Connection: close\r\n"
    return (head + last_line).encode("latin-1", "replace") + reply.body


def plain(status: int, message: str) -> bytes:
    body = (message + "\n").encode("utf-8", "replace")
    return (
        f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\n"
        "Content-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode("latin-1") + body


class PieceWriter:
    """Writes a large reply in pieces of at most TURN_BYTES_MAX bytes, then calls ``done``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.WriteTransport,
        pieces: Sequence[bytes],
        *,
        is_paused: bool,
        done: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._pieces: deque[bytes | memoryview] = deque(pieces)
        self._is_paused = is_paused
        self._done = done
        self._again: asyncio.Handle | None = None

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        if self._again is None:
            self._again = self._loop.call_soon(self.write)

    def stop(self) -> None:
        self._pieces.clear()
        if self._again is not None:
            self._again.cancel()

    def write(self) -> None:
        self._again = None
        pieces, left = self._pieces, TURN_BYTES_MAX
        while pieces and left and not self._is_paused:
            piece = pieces.popleft()
            if len(piece) > left:
                whole = memoryview(piece)
                pieces.appendleft(whole[left:])
                piece = whole[:left]
            left -= len(piece)
            self._transport.write(piece)
        if not pieces:
            self._done()
        elif not self._is_paused and self._again is None:
            self._again = self._loop.call_soon(self.write)
