"""One connection of the HTTP client: writes a request, reads the reply within all limits.

A reply ends when its framing says so, when the endpoint closes a connection whose reply has no
length, or when it exceeds the limits: then the beginning counts, and the connection is closed. A
connection serves one request at a time and is reusable only if nothing about the last reply was
unusual."""

import asyncio
import ssl
from typing import Final, cast

import httptools

from penstock.net.http.client_messages import ClientReply, FailureReason, RequestFailed

HEAD_BYTES_MAX: Final = 16_384  # of a reply, including interim replies (1xx) before it
BODY_BYTES_MAX: Final = 65_536  # a larger body is cut off, so that no endpoint can send forever
FAILURE_BYTES_KEPT: Final = 1_024  # of the body of a reply that is not 2xx: for the log
# Bytes of one reply on the wire. Chunk sizes and their extensions count here and not as body.
WIRE_BYTES_MAX: Final = HEAD_BYTES_MAX + 2 * BODY_BYTES_MAX

KEPT_HEADERS: Final = frozenset(
    (b"retry-after", b"webhook-allowed-origin", b"webhook-allowed-rate")
)


class _HeadTooLarge(Exception): ...


class _CutOff(Exception): ...


class _ExtraBytes(Exception): ...


class ClientConnection(asyncio.Protocol):
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._transport = cast(asyncio.Transport, None)  # set by ``connection_made``
        self._waiting: asyncio.Future[None] | None = None
        self.key: object = None  # the pool's
        self.idle_since = 0.0  # the pool's
        self.is_open = True
        self._start_reply()

    def _start_reply(self) -> None:
        self.is_answered = False  # a byte of the reply has arrived
        self._status = 0
        self._headers: dict[str, str] = {}
        self._pieces: list[bytes] = []
        self._is_cut = False
        self._head_bytes = 0
        self._wire_bytes = 0
        self._body_bytes = 0
        self._has_head = False
        self._has_framing = False
        self._is_complete = False
        self._keeps_alive = False

    def start(self, data: bytes) -> asyncio.Future[None]:
        """Write a request. The future ends when the reply is complete, or with RequestFailed."""
        assert self._waiting is None, "a connection serves one request at a time"
        self._start_reply()
        self._waiting = waiting = self._loop.create_future()
        if self.is_open:
            self._transport.write(data)
        else:
            self.fail(FailureReason.RESET, "the endpoint closed the connection")
        return waiting

    def take_reply(self, duration_s: float) -> ClientReply:
        """Return the complete reply. An idle connection keeps nothing of it."""
        pieces, self._pieces = self._pieces, []
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        headers, self._headers = self._headers, {}
        return ClientReply(self._status, headers, body, self._is_cut, duration_s)

    def expire(self) -> None:
        self.fail(FailureReason.TIMEOUT, "no complete reply in time")

    def fail(self, reason: FailureReason, detail: str) -> None:
        waiting, self._waiting = self._waiting, None
        self.abort()
        if waiting is not None and not waiting.done():
            waiting.set_exception(RequestFailed(reason, detail, is_sent=True))

    def abort(self) -> None:
        self.is_open = False
        self._transport.abort()

    # ── asyncio.Protocol ─────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        detail = "the endpoint closed the connection" if exc is None else str(exc)
        # An alert, such as for a missing client certificate, which TLS 1.3 checks late.
        is_alert = isinstance(exc, ssl.SSLError) and not isinstance(exc, ssl.SSLEOFError)
        self.fail(FailureReason.TLS if is_alert else FailureReason.RESET, detail)

    def eof_received(self) -> None:
        if self._has_head and not self._has_framing:
            self._finish()

    def data_received(self, data: bytes) -> None:
        if self._waiting is None:  # bytes without a request
            self.abort()
            return
        self.is_answered = True
        self._wire_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._stop(error.__context__)
            return
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._keeps_alive = False
            if not self._is_complete:
                self.fail(FailureReason.PROTOCOL, f"the reply is not HTTP/1: {error}")
                return
        if self._is_complete:
            self._finish()
        elif not self._has_head:
            if self._wire_bytes > HEAD_BYTES_MAX:
                self._stop(_HeadTooLarge())
        elif self._wire_bytes > WIRE_BYTES_MAX:
            self._stop(_CutOff())

    def _stop(self, cause: BaseException | None) -> None:
        self._keeps_alive = False
        if isinstance(cause, _CutOff):
            self._is_cut = True
            self._finish()
        elif isinstance(cause, _ExtraBytes):
            self._finish()
        elif isinstance(cause, _HeadTooLarge):
            detail = f"the head of the reply exceeds {HEAD_BYTES_MAX} bytes"
            self.fail(FailureReason.HEAD_TOO_LARGE, detail)
        else:
            self.fail(FailureReason.PROTOCOL, "the reply cannot be parsed")
            raise AssertionError("a callback failed") from cause

    def _finish(self) -> None:
        waiting, self._waiting = self._waiting, None
        # A reply before the end of the request leaves a part of the request unsent.
        if not self._keeps_alive or self._transport.get_write_buffer_size():
            self.abort()
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    # ── httptools callbacks ──────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        if self._is_complete:
            raise _ExtraBytes

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > HEAD_BYTES_MAX:
            raise _HeadTooLarge
        if self._has_head:
            return  # a trailer
        name = name.lower()
        if name == b"content-length" or (
            name == b"transfer-encoding" and value.lower().endswith(b"chunked")
        ):
            self._has_framing = True
        elif name in KEPT_HEADERS:
            self._headers[name.decode("ascii")] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        parser = self._parser
        self._status = status = parser.get_status_code()
        if status >= 200:
            self._has_head = True
            self._keeps_alive = parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        kept_max = BODY_BYTES_MAX if 200 <= self._status < 300 else FAILURE_BYTES_KEPT
        if self._body_bytes < kept_max:
            self._pieces.append(body[: kept_max - self._body_bytes])
        self._body_bytes += len(body)
        if self._body_bytes > BODY_BYTES_MAX:
            raise _CutOff

    def on_message_complete(self) -> None:
        if self._has_head:
            self._is_complete = True
        else:
            self._headers.clear()  # of an interim reply (1xx); the reply itself follows
            self._has_framing = False
