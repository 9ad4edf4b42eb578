"""Pieces of files straight from the page cache into a connection's socket.

The event loop's transport takes bytes only. So for an answer with pieces of files in it the socket
is written to past the transport, through a descriptor of our own, while the transport has nothing
under way itself; where the socket takes no more, the loop says when it does again. Only for plain
connections: what TLS sends is never as it lies in the file.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from penstock.model.file_slice import FileSlice, Piece

TURN_BYTES_MAX = 8 * 1_048_576  # then others get their turn, however fast the reader is
BUFFERS_MAX = 64  # of one call; far below what the system allows


class SliceSender:
    """One connection's. ``done`` is called with each answer that took more than one turn: with None
    once all of it is sent, or with what went wrong; ``moved`` whenever some of it has gone."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        *,
        moved: Callable[[], None],
        done: Callable[[OSError | None], None],
    ) -> None:
        self._loop = loop
        self._socket = socket.socket(fileno=os.dup(fd))
        self._socket.setblocking(False)
        self._moved = moved
        self._done = done
        self._pieces: deque[Piece] = deque()
        self._sent = 0  # of the first of them
        self._is_watching = False
        self._again: asyncio.Handle | None = None

    @property
    def is_busy(self) -> bool:
        return bool(self._pieces)

    def send(self, pieces: Sequence[Piece]) -> bool:
        """True when all of it is sent; otherwise ``done`` follows. Raises OSError."""
        assert not self._pieces, "one answer at a time"
        self._pieces.extend(pieces)
        self._sent = 0
        try:
            return self._push()
        except OSError:
            self._pieces.clear()
            raise

    def close(self) -> None:
        """Whatever is left is not sent."""
        self._pieces.clear()
        self._unwatch()
        self._socket.close()

    # ── Sending ──────────────────────────────────────────────────────────────────────────────

    def _push(self) -> bool:
        """As much as the socket takes, or as is fair."""
        left = TURN_BYTES_MAX
        try:
            while self._pieces:
                if left <= 0:
                    self._unwatch()
                    self._again = self._loop.call_soon(self._go_on)
                    return False
                first = self._pieces[0]
                sent = (
                    self._send_slice(first)
                    if isinstance(first, FileSlice)
                    else self._send_buffers()
                )
                left -= sent
        except (BlockingIOError, InterruptedError):
            if not self._is_watching:
                self._is_watching = True
                self._loop.add_writer(self._socket, self._go_on)
            return False
        return True

    def _send_slice(self, piece: FileSlice) -> int:
        sent = os.sendfile(
            self._socket.fileno(),
            piece.file.fd,
            piece.position + self._sent,
            piece.size - self._sent,
        )
        if not sent:
            raise OSError("a file has become shorter than what is to be sent of it")
        self._sent += sent
        if self._sent == piece.size:
            self._pieces.popleft()
            self._sent = 0
        return sent

    def _send_buffers(self) -> int:
        """Those up to the next slice, which they travel together with."""
        buffers: list[bytes | memoryview] = []
        flags = 0
        for piece in self._pieces:
            if isinstance(piece, FileSlice):
                flags = socket.MSG_MORE
                break
            if len(buffers) == BUFFERS_MAX:
                break
            buffers.append(piece if buffers else memoryview(piece)[self._sent :])
        sent = rest = self._socket.sendmsg(buffers, (), flags)
        for buffer in buffers:
            if rest < len(buffer):
                self._sent = rest + (self._sent if buffer is buffers[0] else 0)
                break
            rest -= len(buffer)
            self._pieces.popleft()
            self._sent = 0
        return sent

    def _go_on(self) -> None:
        self._again = None
        if not self._pieces:
            return
        self._moved()
        try:
            if not self._push():
                return
        except OSError as error:
            self._pieces.clear()
            self._unwatch()
            self._done(error)
            return
        self._unwatch()
        self._done(None)

    def _unwatch(self) -> None:
        if self._is_watching:
            self._is_watching = False
            self._loop.remove_writer(self._socket)
        if self._again is not None:
            self._again.cancel()
            self._again = None
