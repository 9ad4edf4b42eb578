"""Sends slices of files from the page cache to a socket, without copies (sendfile).

Transports of asyncio accept only bytes. So the sender writes to the socket directly, through a
duplicated descriptor, while the transport has nothing to write. This works only without TLS."""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from penstock.model.file_slice import FileSlice, Piece

TURN_BYTES_MAX = 8 * 1_048_576  # sent in one iteration of the event loop
BUFFERS_MAX = 64  # in one system call


class SliceSender:
    """Sends one reply at a time. Calls ``moved`` after each part, and ``done`` at the end."""

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
        self._sent = 0  # bytes of the first piece that are sent
        self._is_watching = False
        self._again: asyncio.Handle | None = None

    @property
    def is_busy(self) -> bool:
        return bool(self._pieces)

    def send(self, pieces: Sequence[Piece]) -> bool:
        """Send pieces. Return True if all were sent at once; otherwise ``done`` is called later."""
        assert not self._pieces, "one reply at a time"
        self._pieces.extend(pieces)
        self._sent = 0
        try:
            return self._push()
        except OSError:
            self._pieces.clear()
            raise

    def close(self) -> None:
        self._pieces.clear()
        self._unwatch()
        self._socket.close()

    def _push(self) -> bool:
        """Send up to TURN_BYTES_MAX bytes. Return whether nothing is left to send."""
        left = TURN_BYTES_MAX
        try:
            while self._pieces:
                if left <= 0:
                    self._unwatch()
                    self._again = self._loop.call_soon(self._continue)
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
                self._loop.add_writer(self._socket, self._continue)
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
            raise OSError("the file became shorter than the slice to send")
        self._sent += sent
        if self._sent == piece.size:
            self._pieces.popleft()
            self._sent = 0
        return sent

    def _send_buffers(self) -> int:
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

    def _continue(self) -> None:
        self._again = None
        if not self._pieces:
            return
        self._moved()
        failure: OSError | None = None
        try:
            if not self._push():
                return
        except OSError as error:
            self._pieces.clear()
            failure = error
        self._unwatch()
        self._done(failure)

    def _unwatch(self) -> None:
        if self._is_watching:
            self._is_watching = False
            self._loop.remove_writer(self._socket)
        if self._again is not None:
            self._again.cancel()
            self._again = None
