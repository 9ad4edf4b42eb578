"""An HTTP request and its reply as values, between the listener and the handlers."""

import msgspec

from penstock.net.listener import Peer


class HttpRequest(msgspec.Struct, gc=False):
    method: str
    path: str  # percent-encoded, without the query string
    query: str  # after the first "?", percent-encoded
    headers: dict[str, str]  # names in lower case; repeated headers are joined by commas
    body: bytes
    peer: str  # the client's address
    request_id: str
    is_tls: bool = False
    connection: Peer | None = None  # for ``when_lost``; handlers do not write to it


class HttpReply(msgspec.Struct, gc=False):
    status: int
    body: bytes = b""
    content_type: str = "application/x-amz-json-1.0"
    headers: tuple[tuple[str, str], ...] = ()
    pieces: tuple[bytes, ...] = ()  # of a large body, after ``body``: joining them takes long
