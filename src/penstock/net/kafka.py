"""The Kafka listener: bytes to frames, answers to bytes, and every bound in between.

A connection is served one request at a time and in order, which is what the protocol promises its
clients; what they send ahead waits in a bounded buffer and then in the socket. A frame longer than
allowed, or one that cannot be a request at all (a TLS greeting on the plain port reads as a length
of several hundred megabytes), ends the connection at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from penstock.net.listener import Connection, Listener

Buffer = bytes | memoryview
# None: nothing is sent back (acks=0). Raising HangUp ends the connection without an answer.
Answer = Callable[["KafkaConnection", bytes], Awaitable[Sequence[Buffer] | None]]

LENGTH_BYTES = 4
READ_AHEAD_BYTES_MAX = 1_048_576  # buffered behind the request being answered


class HangUp(Exception):
    """The request deserves no answer; the reason goes to the log of whoever wants it."""


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    frame_bytes_max: int = 104_857_600
    connections_max: int = 20_000
    frame_seconds_max: float = 30.0  # from a frame's first byte to its last
    idle_seconds_max: float = 600.0
    write_stall_seconds_max: float = 30.0


class KafkaListener(Listener):
    def __init__(
        self,
        answer: Answer,
        *,
        config: KafkaConfig,
        outlives: Callable[[bytes], bool] = lambda _frame: False,
    ) -> None:
        """``outlives``: whether a request is carried out although its sender has gone. A producer
        that wants no answer sends and closes; what it sent counts all the same."""
        super().__init__(connections_max=config.connections_max)
        self.answer = answer
        self.config = config
        self.outlives = outlives

    def make_connection(self) -> Connection:
        return KafkaConnection(self)


class KafkaConnection(Connection):
    """One client. What later stages learn about it (its software, who it is) is kept by them in
    ``session``, which lives as long as the connection."""

    def __init__(self, listener: KafkaListener) -> None:
        self.session: dict[str, object] = {}
        self.peer = ""
        self._listener = listener
        self._config = listener.config
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._buffer = bytearray()
        self._wanted = -1  # length of the frame being read; -1: not known yet
        self._task: asyncio.Task[Sequence[Buffer] | None] | None = None
        self._is_kept = False  # the request being answered outlives its sender
        self._is_gone = False
        self._since = listener.now
        self._stalled_since: float | None = None
        self._is_reading_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        if not self._listener.opened(self):
            self._transport.abort()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._listener.closed(self)
        self._is_gone = True
        if self._task is None:
            self._next_frame()
        elif not self._is_kept:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        if not self._buffer:
            self._since = self._listener.now
        self._buffer += data
        if self._task is None and self._stalled_since is None:
            self._next_frame()
        elif len(self._buffer) > READ_AHEAD_BYTES_MAX and not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._stalled_since = self._listener.now

    def resume_writing(self) -> None:
        self._stalled_since = None
        if self._task is None:
            self._go_on()

    def _next_frame(self) -> None:
        """Answer the next whole frame in the buffer, if there is one."""
        while (frame := self._take_frame()) is not None:
            self._is_kept = self._listener.outlives(frame)
            if self._is_gone and not self._is_kept:
                continue
            task: asyncio.Task[Sequence[Buffer] | None] = self._listener.loop.create_task(
                cast(Any, self._listener.answer(self, frame))
            )
            self._task = task
            task.add_done_callback(self._answered)
            return

    def _take_frame(self) -> bytes | None:
        buffer = self._buffer
        if self._wanted < 0:
            if len(buffer) < LENGTH_BYTES:
                return None
            self._wanted = int.from_bytes(buffer[:LENGTH_BYTES], "big", signed=True)
            if not 0 < self._wanted <= self._config.frame_bytes_max:
                self._buffer.clear()
                self._transport.abort()
                return None
        end = LENGTH_BYTES + self._wanted
        if len(buffer) < end:
            return None
        frame = bytes(memoryview(buffer)[LENGTH_BYTES:end])
        del buffer[:end]
        self._wanted = -1
        self._since = self._listener.now
        return frame

    def _answered(self, task: "asyncio.Task[Sequence[Buffer] | None]") -> None:
        self._task = None
        transport = self._transport
        if transport.is_closing():
            if not task.cancelled():
                task.exception()  # nobody is left to be told
            if self._is_gone:
                self._next_frame()
            return
        if task.cancelled():
            transport.close()
            return
        error = task.exception()
        if error is not None:
            if not isinstance(error, HangUp):
                self._listener.loop.call_exception_handler(
                    {"message": "a Kafka request handler failed", "exception": error}
                )
            transport.abort()
            return
        parts = task.result()
        if parts is not None:
            size = sum(len(part) for part in parts)
            transport.writelines([size.to_bytes(LENGTH_BYTES, "big"), *parts])
        if self._listener.is_draining:
            transport.close()
            return
        self._since = self._listener.now
        if self._stalled_since is None:
            # Else: it reads no answers, so it gets no more of them until it does.
            self._go_on()

    def _go_on(self) -> None:
        self._next_frame()
        if self._is_reading_paused and (
            self._task is None or len(self._buffer) <= READ_AHEAD_BYTES_MAX
        ):
            self._is_reading_paused = False
            self._transport.resume_reading()

    def check_deadline(self, now: float) -> None:
        config = self._config
        stalled = self._stalled_since
        if stalled is not None and now - stalled > config.write_stall_seconds_max:
            self.abort()
        elif self._task is not None:
            return
        elif now - self._since > (
            config.frame_seconds_max if self._buffer else config.idle_seconds_max
        ):
            self.abort()

    def close_if_idle(self) -> None:
        if self._task is None:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()
