"""One HTTP request and its reply, as values. The listener makes the one and writes the other; it
knows nothing of queues, and whoever answers knows nothing of sockets."""

import msgspec


class HttpRequest(msgspec.Struct, gc=False):
    method: str
    path: str  # still percent-encoded, without the query string
    query: str  # what follows the first "?", still percent-encoded
    headers: dict[str, str]  # names in lower case; a repeated header was refused by the listener
    body: bytes
    peer: str  # the client's address
    request_id: str
    is_tls: bool = False


class HttpReply(msgspec.Struct, gc=False):
    status: int
    body: bytes = b""
    content_type: str = "application/x-amz-json-1.0"
    headers: tuple[tuple[str, str], ...] = ()
