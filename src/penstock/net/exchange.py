"""One HTTP request and its reply, as values. The listener makes the one and writes the other; it
knows nothing of queues, and whoever answers knows nothing of sockets."""

import msgspec

from penstock.net.listener import Peer


class HttpRequest(msgspec.Struct, gc=False):
    method: str
    path: str  # still percent-encoded, without the query string
    query: str  # what follows the first "?", still percent-encoded
    # Names in lower case. One that came several times was refused by the listener where it decides
    # something, and joined by commas otherwise.
    headers: dict[str, str]
    body: bytes
    peer: str  # the client's address
    request_id: str
    is_tls: bool = False
    connection: Peer | None = None  # what it came on, to be told of its end; not to be written to


class HttpReply(msgspec.Struct, gc=False):
    status: int
    body: bytes = b""
    content_type: str = "application/x-amz-json-1.0"
    headers: tuple[tuple[str, str], ...] = ()
    pieces: tuple[bytes, ...] = ()  # of a large body, behind ``body``: to join them takes long
