"""The HTTP listener, which parses requests, encodes replies and enforces all limits.

The listener is an ``asyncio.Protocol`` on httptools (llhttp), because a web framework would cost
several times as much as everything else in a request. A handler gets only complete requests, within
the limits on size and time, in which the headers in ``_SINGLE`` occur at most once. An invalid
request gets an error reply, and its connection is closed."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any, cast

import httptools

from penstock.model import limits
from penstock.model.quotas import SharedLimit
from penstock.net.http.browsers import BrowserGuard
from penstock.net.http.exchange import (
    HttpReply,
    HttpRequest,
    PieceWriter,
    Refused,
    body_after_upgrade,
    check_head,
    encode,
    plain,
)
from penstock.net.listener import Listener, Peer, source_of

Handle = Callable[[HttpRequest], Coroutine[Any, Any, HttpReply]]
Forbid = Callable[[HttpRequest, str], HttpReply]

PIPELINED_MAX = 32  # requests read ahead of the one being served, then reading pauses
READ_AHEAD_BYTES_MAX = 1_048_576  # bytes in the bodies of requests read ahead
QUESTION_MARK = ord("?")  # searching bytes for a number is eight times as fast as for bytes
LINGER_SECONDS_MAX = 1.0  # reading after an error reply, so that a reset does not discard the reply

# Phases of a connection; each but SERVING has a deadline. In CLOSING the last reply is written.
IDLE, HEAD, BODY, SERVING, LINGERING, CLOSING = range(6)

# Headers that may appear only once: two of them would give a request two meanings.
_SIGNED = ("x-amz-target", "x-amz-date", "x-amz-content-sha256", "x-amz-security-token")
_SINGLE = frozenset(("host", "content-length", "authorization", "date", *_SIGNED))

# Decoded header names, cached because clients send the same few names in every request.
_NAMES: dict[bytes, str] = {}
NAMES_MAX = 512


@dataclass(frozen=True, slots=True)
class HttpConfig:
    header_bytes_max: int = limits.HEADER_BYTES_MAX
    request_bytes_max: int = limits.REQUEST_BYTES_MAX
    connections_max: int = limits.CONNECTIONS_MAX
    header_seconds_max: float = limits.HEADER_SECONDS_MAX
    body_seconds_max: float = limits.BODY_SECONDS_MAX
    idle_seconds_max: float = limits.IDLE_SECONDS_MAX
    connections_per_address_max: int = 0  # 0: no limit per address
    bodies_bytes_max: int = limits.BODIES_BYTES_MAX  # in incomplete bodies of all connections
    bodies_per_address_percent: int = 100  # part of bodies_bytes_max for one address
    write_stall_seconds_max: float = limits.WRITE_STALL_SECONDS_MAX


class HttpListener(Listener):
    """Runs ``handle`` for each request, in a task that is cancelled when the client disconnects."""

    def __init__(
        self,
        handle: Handle,
        *,
        config: HttpConfig,
        name: str,
        seed: bytes,
        guard: BrowserGuard,
        forbid: Forbid = lambda _request, reason: HttpReply(403, reason.encode(), "text/plain"),
        outlives: Callable[[HttpRequest], bool] = lambda _request: False,
    ) -> None:
        """Create a listener. ``forbid`` creates the reply to a request that ``guard`` rejects.
        ``outlives`` returns whether a request is completed even if its client disconnects."""
        super().__init__(
            connections_max=config.connections_max,
            per_address_max=config.connections_per_address_max,
        )
        self.bodies = SharedLimit(
            config.bodies_bytes_max, config.bodies_per_address_percent, own_account=""
        )
        self.handle = handle
        self.guard = guard
        self.forbid = forbid
        self.outlives = outlives
        self.config = config
        self.name = name
        self.last_line = "\r\n"  # ends the header section of every reply; contains the date
        text = seed.hex()  # ten random bytes, so that request ids differ between processes
        self._request_prefix = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-"
        self._request_count = 0

    def make_connection(self) -> Peer:
        return _HttpConnection(self)

    def swept(self) -> None:
        self.last_line = f"Date: {formatdate(usegmt=True)}\r\n\r\n"

    def next_request_id(self) -> str:
        self._request_count += 1
        return f"{self._request_prefix}{self._request_count:012x}"


class _HttpConnection(Peer, asyncio.Protocol):
    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener
        self._config = listener.config
        self._parser = httptools.HttpRequestParser(self)
        self._phase = IDLE
        self._phase_since = listener.now
        self._stalled_since: float | None = None
        self._peer = ""
        # The request being read:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._head = self._headers  # the headers once complete
        self._forbidden: str | None = None  # why the guard rejects the request
        self._header_bytes = 0
        self._unparsed_bytes = 0
        self._counts_headers = False  # whether header bytes are counted: not in a short read
        self._is_in_head = False
        self._is_in_body = False
        self._is_resuming = False  # a second parser is fed ``_owed_head``
        self._owed_head = b""  # see ``body_after_upgrade``
        self._is_last = False  # bytes after this request are ignored
        self._has_completed = False  # the bytes just read complete a request
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._held_bytes = 0  # counted in ``listener.bodies``
        # Requests that wait while ``_task`` serves an earlier one:
        self._waiting: deque[tuple[HttpRequest, bool, str | None]] = deque()
        self._waiting_bytes = 0
        self._task: asyncio.Task[HttpReply] | None = None
        self._request: HttpRequest | None = None  # the request that is served
        self._writer: PieceWriter | None = None  # writes a large reply
        self._keep_alive = True
        self._is_reading_paused = False

    # ── asyncio.Protocol ─────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._peer = peer[0] if isinstance(peer, tuple) else ""
        if not self._listener.opened(self, self._peer):
            self._transport.write(plain(503, "there are too many connections, try again later"))
            self._transport.close()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._listener.closed(self)
        self._waiting.clear()
        self._release_body()
        if self._writer is not None:
            self._writer.stop()
        task, request = self._task, self._request
        if task is not None and request is not None and not self._listener.outlives(request):
            task.cancel()  # a parked receive must not lease a message for a client that has gone

    def data_received(self, data: bytes) -> None:
        if self._phase == LINGERING or self._is_last:
            return
        if self._phase == IDLE:
            self._counts_headers = False
            self._enter(HEAD)
        if len(data) > self._config.header_bytes_max or self._unparsed_bytes:
            if self._is_in_head and not self._counts_headers:
                self._header_bytes += sum(len(k) + len(v) + 4 for k, v in self._headers.items())
            self._counts_headers = True
        try:
            rest = self._feed(data)
            while rest and not self._is_last:
                rest = self._feed(rest)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if not isinstance(cause, Refused):
                raise
            self._refuse(cause.status, str(cause))
        except httptools.HttpParserError as error:
            if not self._is_last:  # else these are bytes after the last request
                self._refuse(400, f"the request is malformed: {error}")

    def _feed(self, data: bytes | memoryview) -> memoryview | None:
        try:
            self._has_completed = False
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # Only HTTP/1.1 is supported: an upgrade is ignored, and the request is served.
            self._parser = httptools.HttpRequestParser(self)
            if self._owed_head:
                url, self._is_resuming = self._url, True
                self._parser.feed_data(self._owed_head)
                self._url, self._is_resuming = url, False
                self._owed_head = b""
            return memoryview(data)[upgrade.args[0] :]
        if self._is_in_head and not self._has_completed:
            # The parser keeps an incomplete header section in memory, so count its bytes.
            self._unparsed_bytes += len(data)
            if self._unparsed_bytes > self._config.header_bytes_max:
                self._refuse(431, "the request header is too large")
        elif self._is_in_body:
            self._hold()
        return None

    def pause_writing(self) -> None:
        self._stalled_since = self._listener.now
        if self._writer is not None:
            self._writer.pause()

    def resume_writing(self) -> None:
        self._stalled_since = None
        if self._writer is not None:
            self._writer.resume()
        elif self._waiting and self._task is None and not self._transport.is_closing():
            self._serve_next()

    # ── httptools callbacks ──────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        if self._is_resuming:
            return
        self._is_in_head = True
        self._url = b""
        self._headers = {}
        self._body = []
        self._body_bytes = 0
        if self._phase == IDLE:
            self._enter(HEAD)

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._header_bytes += len(url)
        if self._header_bytes > self._config.header_bytes_max:
            raise Refused(431, "the request target is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._counts_headers:
            self._header_bytes += len(name) + len(value) + 4
            if self._header_bytes > self._config.header_bytes_max:
                raise Refused(431, "the request header is too large")
        try:
            key = _NAMES[name]
        except KeyError:
            key = name.decode("latin-1").lower()
            if len(_NAMES) < NAMES_MAX:
                _NAMES[name] = key
        text = value.decode("latin-1")
        headers = self._headers
        if key in headers:
            if key in _SINGLE:
                raise Refused(400, f"the header {key} occurs twice")
            # Trimmed and joined without a space, which is the form that signatures cover.
            headers[key] = f"{headers[key].strip()},{text.strip()}"
        else:
            headers[key] = text

    def on_headers_complete(self) -> None:
        if self._is_resuming:
            return
        self._is_in_head = False
        self._is_in_body = True
        self._header_bytes = self._unparsed_bytes = 0
        self._head = headers = self._headers
        parser = self._parser
        check_head(headers, parser, self._config.request_bytes_max)
        guard = self._listener.guard
        if (
            headers.get("host") in guard.served
            and "origin" not in headers
            and "sec-fetch-site" not in headers
            and QUESTION_MARK not in self._url
        ):
            self._forbidden = None  # almost every request takes this path
        else:
            self._forbidden = guard.refusal(headers, self._url, parser)
        if parser.should_upgrade():
            self._owed_head = body_after_upgrade(headers, parser)
        if self._owed_head or "transfer-encoding" in headers:
            self._headers = {}  # trailers after the body are not headers
            self._counts_headers = True
        if self._phase == HEAD:
            self._enter(BODY)
        if "expect" in headers and headers["expect"].lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._config.request_bytes_max:
            raise Refused(413, "the request body is too large")
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._owed_head:
            return  # the second parser reads the body
        self._has_completed = True
        self._is_in_body = False
        body = self._body
        url = self._url.decode("latin-1")
        if not url.startswith("/"):
            # The absolute form, as sent to proxies: use the part after the authority.
            scheme, separator, rest = url.partition("://")
            if not separator or scheme not in ("http", "https"):
                raise Refused(400, "the request target is malformed")
            slash = rest.find("/")
            url = rest[slash:] if slash >= 0 else "/"
        path, _, query = url.partition("?")
        request = HttpRequest(
            method=self._parser.get_method().decode("ascii"),
            path=path,
            query=query,
            headers=self._head,
            body=body[0] if len(body) == 1 else b"".join(body),
            peer=self._peer,
            request_id=self._listener.next_request_id(),
            is_tls=self._listener.is_tls,
            connection=self,
        )
        keep_alive = self._parser.should_keep_alive()
        self._is_last = not keep_alive
        self._waiting.append((request, keep_alive, self._forbidden))
        self._waiting_bytes += len(request.body)
        if self._task is None and self._stalled_since is None:
            self._serve_next()
        elif self._is_far_ahead and not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()

    @property
    def _is_far_ahead(self) -> bool:
        ahead_bytes = self._waiting_bytes
        return len(self._waiting) >= PIPELINED_MAX or ahead_bytes > READ_AHEAD_BYTES_MAX

    # ── Serving ──────────────────────────────────────────────────────────────────────────────

    def _serve_next(self) -> None:
        request, self._keep_alive, forbidden = self._waiting.popleft()
        self._waiting_bytes -= len(request.body)
        self._request = request
        listener = self._listener
        self._phase, self._phase_since = SERVING, listener.now
        if forbidden is None:
            coroutine = listener.handle(request)
        else:
            coroutine = _forbidden(listener.forbid, request, forbidden)
        task = self._task = listener.loop.create_task(coroutine)
        task.add_done_callback(self._served)

    def _served(self, task: "asyncio.Task[HttpReply]") -> None:
        self._task = self._request = None
        transport = self._transport
        if task.cancelled() or transport.is_closing():
            if not transport.is_closing():
                transport.close()
            return
        error = task.exception()
        if error is not None:
            # A bug: handlers turn every error into a reply.
            self._listener.loop.call_exception_handler(
                {"message": "a request handler failed", "exception": error}
            )
            transport.write(plain(500, "internal error"))
            self._close()
            return
        keep_alive = self._keep_alive and not self._listener.is_draining
        reply = task.result()
        transport.write(encode(reply, self._listener.last_line, keep_alive=keep_alive))
        if reply.pieces:
            self._task = task  # no other request is served before the pieces are written
            pieces, reply.pieces = reply.pieces, ()  # each is released when it is written
            is_paused, loop = self._stalled_since is not None, self._listener.loop
            self._writer = PieceWriter(
                loop, transport, pieces, is_paused=is_paused, done=self._end_pieces
            )
            self._writer.write()
            return
        self._next(keep_alive)

    def _end_pieces(self) -> None:
        self._task = self._writer = None
        if not self._transport.is_closing():
            self._next(self._keep_alive and not self._listener.is_draining)

    def _next(self, keep_alive: bool) -> None:
        if not keep_alive:
            self._close()
            return
        self._phase, self._phase_since = IDLE, self._listener.now
        if self._held_bytes and not self._waiting and not self._is_in_body:
            self._release_body()
        if self._is_reading_paused and not self._is_far_ahead:
            self._is_reading_paused = False
            self._transport.resume_reading()
        if self._waiting and self._stalled_since is None:
            self._serve_next()

    # ── Limits ───────────────────────────────────────────────────────────────────────────────

    def _enter(self, phase: int) -> None:
        self._phase = phase
        self._phase_since = self._listener.now

    def check_deadline(self, now: float) -> None:
        config = self._config
        elapsed = now - self._phase_since
        phase = self._phase
        stalled = self._stalled_since
        if stalled is not None and now - stalled > config.write_stall_seconds_max:
            self.abort()
        elif phase == SERVING:
            return
        elif phase == IDLE and elapsed > config.idle_seconds_max:
            self._close()
        elif phase == HEAD and elapsed > config.header_seconds_max:
            self._refuse(408, "the request header took too long")
        elif phase == BODY and elapsed > config.body_seconds_max:
            self._refuse(408, "the request body took too long")
        elif (phase == CLOSING and elapsed > config.write_stall_seconds_max) or (
            phase == LINGERING and elapsed > LINGER_SECONDS_MAX
        ):
            self.abort()

    def _hold(self) -> None:
        """Count the bytes of an incomplete body, and reject the body if a limit is exceeded."""
        bodies, address = self._listener.bodies, source_of(self._peer)
        bodies.add(address, self._body_bytes - self._held_bytes)
        self._held_bytes = self._body_bytes
        if bodies.is_full(0):
            self._refuse(503, "too many request bodies are arriving, try again later")
        elif bodies.is_used_up(address, 0):
            self._refuse(
                503,
                f"{bodies.of(address):,} of {bodies.most:,} bytes of request bodies are arriving"
                " from this address, try again later",
            )

    def _release_body(self) -> None:
        if self._held_bytes:
            self._listener.bodies.add(source_of(self._peer), -self._held_bytes)
            self._held_bytes = 0

    def _close(self) -> None:
        self._enter(CLOSING)
        self._transport.close()

    def _refuse(self, status: int, message: str) -> None:
        """Send an error reply and ignore all later bytes, which could contain a hidden request."""
        if self._phase == LINGERING or self._transport.is_closing():
            return
        if self._task is not None:
            self.abort()  # an error reply must not overtake the reply of an earlier request
            return
        self._waiting.clear()
        self._body = []
        self._release_body()
        self._enter(LINGERING)
        self._transport.write(plain(status, message))
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def close_after_reply(self) -> None:
        self._keep_alive = False

    def close_if_idle(self) -> None:
        if self._phase in (IDLE, LINGERING) and self._task is None:
            self._transport.close()


async def _forbidden(forbid: Forbid, request: HttpRequest, reason: str) -> HttpReply:
    return forbid(request, reason)
