"""Requests and replies of the HTTP client, and the checks of what callers may put into a request.

Headers, target and host can come from tenants, so no part of a request may add a line to its head
or change how the endpoint finds the end of its body."""

import re
import ssl
from enum import StrEnum
from typing import Final

import msgspec

METHODS: Final = frozenset(("GET", "OPTIONS", "POST", "PUT"))
# The client writes these, or does not support what they ask for.
_RESERVED: Final = (
    "accept-encoding connection content-length expect host keep-alive proxy-authenticate"
    " proxy-authorization proxy-connection te trailer transfer-encoding upgrade"
)
RESERVED_HEADERS: Final = frozenset(_RESERVED.split())
HEADERS_BYTES_MAX: Final = 16_384  # servers commonly reject a head of more than 8 or 16 KiB

_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
# Checked header names, cached because the same few are in every request.
_NAMES: Final[set[str]] = set()
NAMES_MAX: Final = 512


class FailureReason(StrEnum):
    DNS = "dns"  # the name has no address, or the lookup took too long
    REFUSED_ADDRESS = "refused address"  # the address guard does not allow the destination
    CONNECT = "connect"
    TLS = "tls"
    TIMEOUT = "timeout"
    PROTOCOL = "protocol"  # the reply is not HTTP/1
    RESET = "reset"  # the connection was closed before the reply was complete
    HEAD_TOO_LARGE = "head too large"


class RequestFailed(Exception):
    """There is no complete reply. ``detail`` is for operators: it can contain addresses. The
    endpoint may have got the request if ``is_sent``."""

    def __init__(self, reason: FailureReason, detail: str, *, is_sent: bool = False) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.is_sent = is_sent


class RequestInvalid(ValueError):
    """The request must not be sent. The text contains no header value, which may be a secret."""


class Origin(msgspec.Struct, frozen=True):
    """The server of a request. Its name goes into the Host header, into SNI and into the check of
    the certificate; the address of the connection is chosen separately."""

    host: str  # a DNS name in ASCII, or an address without brackets
    port: int
    tls: ssl.SSLContext | None = None  # None: plain HTTP

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (80 if self.tls is None else 443) else f"{host}:{self.port}"


class ClientRequest(msgspec.Struct, frozen=True, kw_only=True):
    origin: Origin
    method: str = "POST"
    target: str = "/"  # path and query, percent-encoded
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    # Whether the request may be sent again if the endpoint closes the idle connection on which it
    # was sent. False for a message that must not be delivered twice: it gets a new connection,
    # because on one that the endpoint is closing it would be lost.
    may_resend: bool = True


class ClientReply(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]  # only those in KEPT_HEADERS, names in lower case
    body: bytes  # possibly cut off; of a reply that is not 2xx, only the beginning is kept
    is_cut: bool  # the endpoint sent more than the limit
    duration_s: float


def encode_request(request: ClientRequest) -> bytes:
    """Return head and body. Raises RequestInvalid."""
    method, target = request.method, request.target
    authority = request.origin.authority
    if method not in METHODS:
        raise RequestInvalid(f"the method must be one of {', '.join(sorted(METHODS))}")
    if not (target.startswith("/") and _is_plain(target) and " " not in target):
        raise RequestInvalid("the target must begin with / and be printable ASCII without spaces")
    if not (_is_plain(authority) and " " not in authority and authority):
        raise RequestInvalid("the host must be printable ASCII without spaces")
    head = f"{method} {target} HTTP/1.1\r\nHost: {authority}\r\nAccept-Encoding: identity\r\n"
    for name, value in request.headers:
        if name not in _NAMES:
            _check_name(name)
        if not (value.isascii() and value.isprintable()):
            raise RequestInvalid(f"the value of header {name} must be printable ASCII")
        head += f"{name}: {value}\r\n"
    if len(head) > HEADERS_BYTES_MAX:
        raise RequestInvalid(f"the request head exceeds {HEADERS_BYTES_MAX} bytes")
    return f"{head}Content-Length: {len(request.body)}\r\n\r\n".encode("ascii") + request.body


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _check_name(name: str) -> None:
    if _TOKEN.fullmatch(name) is None:
        raise RequestInvalid("a header name must have 1 to 128 letters, digits or !#$%&'*+-.^_`|~")
    if name.lower() in RESERVED_HEADERS:
        raise RequestInvalid(f"the header {name} is set by the client and cannot be given")
    if len(_NAMES) < NAMES_MAX:
        _NAMES.add(name)
