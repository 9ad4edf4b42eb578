"""HTTP replies as bytes. A large body is written in pieces, as fast as the client reads it."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final

from penstock.net.http.exchange import HttpReply

TURN_BYTES_MAX: Final = 256 * 1_024  # written in one turn of the loop: well below a millisecond

_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}


def encode(reply: HttpReply, last_line: str, *, keep_alive: bool) -> bytes:
    """Return the head and ``reply.body``. ``last_line`` ends the head and contains the date."""
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
    """Return a plain-text reply that ends the connection."""
    body = (message + "\n").encode("utf-8", "replace")
    return (
        f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\n"
        "Content-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode("latin-1") + body


class PieceWriter:
    """Writes the pieces of one reply: at most ``TURN_BYTES_MAX`` in one turn of the loop, and
    nothing while the transport asks for a pause. ``done`` is called after the last piece."""

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
        """Drop the pieces that are left."""
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
