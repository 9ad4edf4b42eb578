"""The Kafka listener: frames to requests, answers to bytes in the order of the requests, and every
bound in between.

A connection is served one request at a time, with one exception: a producer may have several
requests under way. Each of its frames is begun on the spot, in the order of arrival, as soon as
the one before has said that it is ``written``; then they wait for their commits together, which is
what lets them share a sync. Any other request begins when all before it are answered.

What cannot begin yet waits as a copy, up to a bound, and then in the socket. A frame longer than
allowed, or one that cannot be a request at all (a TLS greeting on the plain port reads as a length
of several hundred megabytes), ends the connection at once. Where clients have to log in, they are
strangers until they are ``admit``-ted: their frames must be small, and their time is short.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from penstock.model.file_slice import FileSlice, Piece, in_memory
from penstock.net.begun import Begun, rest_of
from penstock.net.frames import LENGTH_BYTES, Chunks, FrameReader, FrameRefused
from penstock.net.listener import NO_LIMIT, Listener, Peer
from penstock.net.slice_sender import SliceSender

Buffer = bytes | memoryview
Reply: TypeAlias = Sequence[Piece] | None
# None: nothing is sent back (acks=0). Raising HangUp ends the connection without an answer. A
# frame given as a memoryview is good until ``KafkaConnection.written``, or the end of the answer.
Answer = Callable[["KafkaConnection", Buffer], Coroutine[Any, Any, Reply]]

READ_AHEAD_BYTES_MAX = 1_048_576  # buffered behind the requests being answered
WAITING_OVERHEAD_BYTES = 64  # what a frame that waits costs beyond its bytes
STRANGER_FRAME_BYTES_MAX = 65_536  # what it takes to log in, many times over
UNDER_WAY_MAX = 16  # requests of one producer; clients that care for order send five ahead
COPIED_BYTES_MAX = 16_384  # a frame that is cheaper to copy than to look after
JOINED_BYTES_MAX = 65_536  # an answer that is cheaper to copy than to write in pieces


class HangUp(Exception):
    """The request deserves no answer; the reason goes to the log of whoever wants it."""


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    frame_bytes_max: int = 104_857_600
    connections_max: int = 20_000
    frame_seconds_max: float = 30.0  # from a frame's first byte to its last
    idle_seconds_max: float = 600.0
    write_stall_seconds_max: float = 30.0
    connections_per_address_max: int = 0  # 0: no limit but that of all together
    # Of clients that have yet to log in (STRANGER_FRAME_BYTES_MAX, say); 0: nobody has to.
    stranger_frame_bytes_max: int = 0
    stranger_seconds_max: float = 30.0


class KafkaListener(Listener):
    def __init__(
        self,
        answer: Answer,
        *,
        config: KafkaConfig,
        outlives: Callable[[Buffer], bool] = lambda _frame: False,
    ) -> None:
        """``outlives``: whether a request is a producer's. It is carried out although its sender
        has gone, for a producer that wants no answer sends and closes, and what it sent counts all
        the same; and it may be under way beside others of its kind."""
        super().__init__(
            connections_max=config.connections_max,
            # Counted without a limit as well: an operator may set one while the node runs.
            per_address_max=config.connections_per_address_max or NO_LIMIT,
        )
        self.answer = answer
        self.config = config
        self.outlives = outlives
        self.chunks = Chunks()

    def make_connection(self) -> Peer:
        return KafkaConnection(self)


class _Request:
    """One that is under way, or answered behind one that is."""

    __slots__ = ("error", "is_done", "is_kept", "reply", "task")

    def __init__(self, *, is_kept: bool) -> None:
        self.is_kept = is_kept  # it outlives its sender
        self.is_done = False
        self.reply: Reply = None
        self.error: BaseException | None = None
        self.task: asyncio.Task[Reply] | None = None


class KafkaConnection(Peer, asyncio.BufferedProtocol):
    """One client. What later stages learn about it (its software, who it is) is kept by them in
    ``session``, which lives as long as the connection; what they do at its end is in ``on_lost``.
    """

    def __init__(self, listener: KafkaListener) -> None:
        self.session: dict[str, object] = {}
        self.on_lost: list[Callable[[], None]] = []
        self.peer = ""
        self._listener = listener
        self._config = listener.config
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        config = listener.config
        self._is_stranger = config.stranger_frame_bytes_max > 0
        bytes_max = config.stranger_frame_bytes_max or config.frame_bytes_max
        self._reader = FrameReader(listener.chunks, frame_bytes_max=bytes_max)
        self._requests: deque[_Request] = deque()  # under way, in their order
        self._is_written = True  # the last of them lets others of its kind begin
        self._is_beginning = False
        self._waiting: deque[bytes] = deque()  # frames that may not begin yet
        self._waiting_bytes = 0
        self._is_failed = False  # hung up on; nothing begins until it has gone
        self._is_gone = False
        self._is_ending = False  # closed with its next answer
        self._held_back: asyncio.TimerHandle | None = None  # ends a pause
        self._since = self._opened_at = listener.now
        self._stalled_since: float | None = None
        self._is_reading_paused = False
        self._sender: SliceSender | None = None  # of pieces of files, once there are any

    # ── What later stages have to say ────────────────────────────────────────────────────────

    @property
    def is_tls(self) -> bool:
        return self._listener.is_tls

    @property
    def takes_slices(self) -> bool:
        """Whether pieces of files in an answer save anything."""
        return not self._listener.is_tls

    def admit(self) -> None:
        """It has logged in."""
        self._is_stranger = False
        self._reader.frame_bytes_max = self._config.frame_bytes_max

    def close_when_answered(self) -> None:
        self._is_ending = True

    def hold_back(self, seconds: float) -> None:
        """Called by a request: it is answered at once, and no other begins for a while."""
        loop = self._listener.loop
        ends_at = loop.time() + seconds
        if self._held_back is not None:
            if self._held_back.when() >= ends_at:
                return
            self._held_back.cancel()
        self._held_back = loop.call_at(ends_at, self._go_on)

    def _go_on(self) -> None:
        self._held_back = None
        self._since = self._listener.now
        self._begin_waiting()

    # ── Receiving ────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        if not self._listener.opened(self, self.peer):
            self._transport.abort()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._listener.closed(self)
        self._is_gone = True
        if self._held_back is not None:
            self._held_back.cancel()
        self._reader.close()
        if self._sender is not None:
            self._sender.close()
        for request in self._requests:
            if request.task is not None and not request.is_kept:
                request.task.cancel()
        self._begin_waiting()
        for listener in self.on_lost:
            listener()

    def get_buffer(self, _size_hint: int) -> memoryview:
        return self._reader.room()

    def buffer_updated(self, count: int) -> None:
        reader = self._reader
        if not reader.part_bytes:
            self._since = self._listener.now
        reader.received(count)
        try:
            while (frame := reader.next_frame()) is not None:
                self._since = self._listener.now
                self._arrived(frame)
        except FrameRefused:
            reader.close()
            self._transport.abort()
            return
        reader.settle()
        if (
            (self._requests or self._waiting)
            and self._ahead_bytes > READ_AHEAD_BYTES_MAX
            and self._is_held
            and not self._is_reading_paused
        ):
            self._is_reading_paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        return False

    @property
    def _ahead_bytes(self) -> int:
        return self._waiting_bytes + self._reader.part_bytes

    @property
    def _is_held(self) -> bool:
        """Something waits, or would if it were here."""
        if self._waiting or self._stalled_since is not None or self._held_back is not None:
            return True
        under_way = len(self._requests)
        return under_way > 0 and not (self._is_written and under_way < UNDER_WAY_MAX)

    # ── Beginning ────────────────────────────────────────────────────────────────────────────

    def _arrived(self, frame: memoryview) -> None:
        is_kept = self._listener.outlives(frame)
        if self._waiting or not self._may_begin(is_kept):
            self._waiting.append(bytes(frame))
            self._waiting_bytes += len(frame) + WAITING_OVERHEAD_BYTES
        elif is_kept and len(frame) > COPIED_BYTES_MAX:
            self._begin_kept(frame)
            if self._requests and not self._is_written:
                self._reader.keep()
        elif is_kept:
            self._begin_kept(bytes(frame))
        else:
            self._begin(bytes(frame))

    def _may_begin(self, is_kept: bool) -> bool:
        if self._is_gone:
            is_ready = True
        else:
            is_ready = not (
                self._is_failed
                or self._is_ending
                or self._listener.is_draining
                or self._stalled_since is not None
                or self._held_back is not None
            )
        if not self._requests:
            return is_ready
        # Only a producer's requests ever say that they are written before they are answered.
        return is_ready and is_kept and self._is_written and len(self._requests) < UNDER_WAY_MAX

    def _begin_waiting(self) -> None:
        waiting = self._waiting
        while waiting:
            frame = waiting[0]
            is_kept = self._listener.outlives(frame)
            is_dropped = self._is_gone and not is_kept
            if not is_dropped and not self._may_begin(is_kept):
                break
            waiting.popleft()
            self._waiting_bytes -= len(frame) + WAITING_OVERHEAD_BYTES
            if is_kept:
                self._begin_kept(frame)
            elif not is_dropped:
                self._begin(frame)
        if (
            self._is_reading_paused
            and not self._is_gone
            and (self._ahead_bytes <= READ_AHEAD_BYTES_MAX or not self._is_held)
        ):
            self._is_reading_paused = False
            self._transport.resume_reading()

    def _begin(self, frame: bytes) -> None:
        request = _Request(is_kept=False)
        self._is_written = False
        self._requests.append(request)
        self._follow(request, self._listener.answer(self, frame))

    def _begin_kept(self, frame: Buffer) -> None:
        request = _Request(is_kept=True)
        self._requests.append(request)
        self._is_written = False
        self._is_beginning = True
        try:
            begun = Begun(self._listener.answer(self, frame))
        except (Exception, asyncio.CancelledError) as error:
            request.error = error
            request.is_done = True
        else:
            if begun.is_done:
                request.reply = begun.result
                request.is_done = True
            else:
                self._follow(request, rest_of(begun))
        self._is_beginning = False
        if request.is_done:
            self._is_written = True
            if self._requests[0] is request:
                self._send_ready()

    def _follow(self, request: _Request, coroutine: Coroutine[Any, Any, Reply]) -> None:
        request.task = task = self._listener.loop.create_task(coroutine)
        task.add_done_callback(lambda task: self._answered(request, task))

    def written(self) -> None:
        """Called by the request begun last: its order among others is settled, its frame no longer
        needed. From now on the next may begin."""
        self._is_written = True
        if not self._is_beginning and (self._waiting or self._is_reading_paused):
            self._listener.loop.call_soon(self._begin_waiting)

    # ── Answering ────────────────────────────────────────────────────────────────────────────

    def _answered(self, request: _Request, task: "asyncio.Task[Reply]") -> None:
        request.is_done = True
        request.task = None
        if task.cancelled():
            request.error = asyncio.CancelledError()
        elif (error := task.exception()) is not None:
            request.error = error
        else:
            request.reply = task.result()
        if self._requests[-1] is request:
            self._is_written = True
        if self._requests[0] is request:
            self._send_ready()
        self._begin_waiting()

    def _send_ready(self) -> None:
        """Every reply that has none before it to wait for."""
        requests, transport = self._requests, self._transport
        parts: list[Piece] = []
        size = 0
        error: BaseException | None = None
        while requests and requests[0].is_done:
            request = requests.popleft()
            error = error or request.error
            if request.reply is not None and error is None:
                length = sum(map(len, request.reply))
                parts.append(length.to_bytes(LENGTH_BYTES, "big"))
                parts += request.reply
                size += length
        if transport.is_closing() or self._is_failed:
            return  # nobody is left to be told
        self._since = self._listener.now
        if size:
            self._write(parts, size)
        if error is not None:
            self._fail(error)
        else:
            self._end_if_done()

    def _end_if_done(self) -> None:
        if (self._listener.is_draining or self._is_ending) and self._is_idle:
            self._transport.close()

    @property
    def _is_idle(self) -> bool:
        return not self._requests and (self._sender is None or not self._sender.is_busy)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            self._transport.close()
            return
        if not isinstance(error, HangUp):
            self._listener.loop.call_exception_handler(
                {"message": "a Kafka request handler failed", "exception": error}
            )
        self._is_failed = True
        # In the next turn: what has been answered in this one is on its way by then.
        self._listener.loop.call_soon(self._transport.abort)

    # ── Writing ──────────────────────────────────────────────────────────────────────────────

    def _write(self, parts: list[Piece], size: int) -> None:
        transport = self._transport
        if any(isinstance(part, FileSlice) for part in parts):
            if self.takes_slices and not transport.get_write_buffer_size():
                self._write_slices(parts)
                return
            try:
                parts = [*in_memory(parts)]
            except OSError as error:
                self._fail(error)
                return
        buffers = cast(list[Buffer], parts)
        if size <= JOINED_BYTES_MAX:
            transport.write(b"".join(buffers))
        else:
            transport.writelines(buffers)

    def _write_slices(self, parts: list[Piece]) -> None:
        try:
            sender = self._sender
            if sender is None:
                fd = self._transport.get_extra_info("socket").fileno()
                sender = self._sender = SliceSender(
                    self._listener.loop, fd, moved=self._moved, done=self._sent
                )
            if not sender.send(parts):
                self._stalled_since = self._listener.now
        except OSError:
            self._transport.abort()  # the client has gone, or a file; nothing can be said any more

    def _moved(self) -> None:
        self._stalled_since = self._listener.now

    def _sent(self, error: OSError | None) -> None:
        self._stalled_since = None
        if error is not None:
            self._transport.abort()
            return
        self._since = self._listener.now
        self._end_if_done()
        self._begin_waiting()

    def pause_writing(self) -> None:
        """It reads no answers, so it gets no more of them until it does."""
        self._stalled_since = self._listener.now

    def resume_writing(self) -> None:
        self._stalled_since = None
        self._begin_waiting()

    # ── Ending ───────────────────────────────────────────────────────────────────────────────

    def check_deadline(self, now: float) -> None:
        config = self._config
        stalled = self._stalled_since
        is_stalled = stalled is not None and now - stalled > config.write_stall_seconds_max
        stranger_until = self._opened_at + config.stranger_seconds_max
        if is_stalled or (self._is_stranger and now > stranger_until):
            self.abort()
        elif self._requests or self._held_back is not None:
            return
        elif now - self._since > (
            config.frame_seconds_max
            if self._reader.part_bytes or self._waiting
            else config.idle_seconds_max
        ):
            self.abort()

    def close_if_idle(self) -> None:
        if self._is_idle:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()
