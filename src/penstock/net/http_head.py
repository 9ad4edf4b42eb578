"""Check that the head of a request has one meaning only and a host that can be one. Raises
``Refused``, which carries the status that the connection ends with; ``http.py`` has the connection,
``browsers.py`` rejects what web pages send.
"""

import re
from collections.abc import Mapping
from typing import Final, Protocol

# What a host may consist of; it comes back in queue URLs. Known ones are not looked at again.
_HOST = re.compile(r"[A-Za-z0-9._~%:\[\]-]*")
_HOSTS: set[str] = set()
HOSTS_MAX: Final = 1_024
HOST_CHARS_MAX: Final = 260


class Parser(Protocol):
    """What is asked of httptools'."""

    def get_http_version(self) -> str: ...
    def get_method(self) -> bytes: ...
    def should_upgrade(self) -> bool: ...


class Refused(Exception):
    """Raised inside parser callbacks; carries the status that the connection ends with."""

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
        raise Refused(400, "the only transfer-encoding is chunked, in HTTP/1.1")


def body_behind_upgrade(headers: Mapping[str, str], parser: Parser) -> bytes:
    """For a request that offers to go on in another protocol. The parser takes its body for what
    follows in that; but we go on in this one, and what looks like a request in there must not
    become one. So a second parser is told of the body, and that nothing follows it, by the head
    that this returns; empty when there is no body."""
    method = parser.get_method()
    if method == b"CONNECT":
        raise Refused(400, "this is no proxy")
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
        raise Refused(400, "header host names no host")
    elif len(_HOSTS) < HOSTS_MAX:
        _HOSTS.add(host)
