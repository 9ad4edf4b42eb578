"""Checks that the head of an HTTP request is unambiguous and has a valid Host."""

import re
from collections.abc import Mapping
from typing import Final, Protocol

# A Host is returned in queue URLs. Accepted values are remembered.
_HOST = re.compile(r"[A-Za-z0-9._~%:\[\]-]*")
_HOSTS: set[str] = set()
HOSTS_MAX: Final = 1_024
HOST_CHARS_MAX: Final = 260


class Parser(Protocol):
    """The part of httptools' parser that is used here."""

    def get_http_version(self) -> str: ...
    def get_method(self) -> bytes: ...
    def should_upgrade(self) -> bool: ...


class Refused(Exception):
    """Raised inside parser callbacks, with the status of the error reply."""

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
            raise Refused(400, "content-length and transfer-encoding together")
        if int(length) > body_bytes_max:
            raise Refused(413, "request body too large")
    elif encoding is not None and (
        encoding.strip().lower() != "chunked" or parser.get_http_version() != "1.1"
    ):
        raise Refused(400, "the only supported transfer-encoding is chunked, in HTTP/1.1")


def body_after_upgrade(headers: Mapping[str, str], parser: Parser) -> bytes:
    """Return a head that makes a second parser read the body of a request that offers an upgrade.
    The first parser takes the body for bytes of the other protocol, and bytes in it that look like
    a request must not become one. Empty if there is no body."""
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
            raise Refused(400, "header host is missing")
    elif len(host) > HOST_CHARS_MAX or _HOST.fullmatch(host.strip()) is None:
        raise Refused(400, "header host is not a host name")
    elif len(_HOSTS) < HOSTS_MAX:
        _HOSTS.add(host)
