"""The Kafka listener, which parses frames, sends replies in order and enforces all limits.

A connection is served one request at a time, except for produce requests, several of which may be
in progress. A produce request starts as soon as the produce request before it has called
``written``, so they start in the order of arrival, then wait for their commits together and share a
sync. Any other request starts when all requests before it have their replies.

Starting a task for a produce request would often cost more than the request itself, and a later
task could overtake it. So the first step of the request's coroutine runs at once
(``EagerCoroutine``), up to its first wait or even to its end. This step runs outside of any task,
so it must not use functions that need a task, such as ``asyncio.timeout``.

Requests that cannot start yet are copied, up to READ_AHEAD_BYTES_MAX; then reading pauses. A frame
with a forbidden length closes the connection (a TLS hello on a plain port looks like such a frame).
Until a client has logged in (``admit``), its frames must be small and its time is limited."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar, cast

from penstock.model.file_slice import FileSlice, Piece, in_memory
from penstock.net.frames import LENGTH_BYTES, Chunks, FrameReader, FrameRejected
from penstock.net.kafka.slice_sender import SliceSender
from penstock.net.listener import NO_LIMIT, Listener, Peer, write_large

T = TypeVar("T")
Buffer = bytes | memoryview
Reply: TypeAlias = Sequence[Piece] | None
# A handler returns None if there is no reply (acks=0). A frame given as a memoryview is valid until
# the handler calls ``KafkaConnection.written`` or returns.
Handle = Callable[["KafkaConnection", Buffer], Coroutine[Any, Any, Reply]]

READ_AHEAD_BYTES_MAX = 1_048_576  # in requests that wait
WAITING_OVERHEAD_BYTES = 64  # memory of a waiting frame beyond its bytes
LOGIN_FRAME_BYTES_MAX = 65_536  # many times more than a login needs
IN_PROGRESS_MAX = 16  # produce requests; clients that need their order send at most five at once
COPIED_BYTES_MAX = 16_384  # up to this size a frame is copied instead of keeping its chunk
JOINED_BYTES_MAX = 65_536  # up to this size one copy of a reply is cheaper than several writes


class HangUp(Exception):
    """Raised by a handler to close the connection without a reply."""


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    frame_bytes_max: int = 104_857_600
    connections_max: int = 20_000
    frame_seconds_max: float = 30.0  # from a frame's first byte to its last
    idle_seconds_max: float = 600.0
    write_stall_seconds_max: float = 30.0
    connections_per_address_max: int = 0  # 0: no limit per address
    login_frame_bytes_max: int = 0  # before a client has logged in; 0: no login is needed
    login_seconds_max: float = 30.0


class KafkaListener(Listener):
    def __init__(
        self,
        handle: Handle,
        *,
        config: KafkaConfig,
        outlives: Callable[[Buffer], bool] = lambda _frame: False,
    ) -> None:
        """Create a listener. ``outlives`` returns whether a request is a produce request, which is
        completed even if the client disconnects."""
        super().__init__(
            connections_max=config.connections_max,
            # Addresses are always counted, because an operator may set a limit at any time.
            per_address_max=config.connections_per_address_max or NO_LIMIT,
        )
        self.handle = handle
        self.config = config
        self.outlives = outlives
        self.chunks = Chunks()

    def make_connection(self) -> Peer:
        return KafkaConnection(self)


@dataclass(slots=True, eq=False)
class _Request:
    is_kept: bool  # completed even if the client disconnects
    is_done: bool = False
    reply: Reply = None
    error: BaseException | None = None
    task: "asyncio.Task[Reply] | None" = None


class KafkaConnection(Peer, asyncio.BufferedProtocol):
    """A connection to a client. ``session`` holds what the handlers know about the client."""

    def __init__(self, listener: KafkaListener) -> None:
        self.session: dict[str, object] = {}
        self.on_lost: list[Callable[[], None]] = []
        self.peer = ""
        self._listener = listener
        self._config = listener.config
        config = listener.config
        self._is_anonymous = config.login_frame_bytes_max > 0
        bytes_max = config.login_frame_bytes_max or config.frame_bytes_max
        self._reader = FrameReader(listener.chunks, frame_bytes_max=bytes_max)
        self._requests: deque[_Request] = deque()  # requests in progress, oldest first
        self._is_written = True  # the last request called ``written``: the next may start
        self._is_starting = False
        self._waiting: deque[bytes] = deque()  # frames that may not start yet
        self._waiting_bytes = 0
        self._is_failed = False  # about to be aborted
        self._is_lost = False
        self._is_ending = False  # closed after the next reply
        self._pause: asyncio.TimerHandle | None = None  # ends ``hold_back``
        self._since = self._opened_at = listener.now
        self._stalled_since: float | None = None
        self._is_reading_paused = False
        self._sender: SliceSender | None = None  # sends file slices

    # ── Called by handlers ───────────────────────────────────────────────────────────────────

    @property
    def is_tls(self) -> bool:
        return self._listener.is_tls

    @property
    def takes_slices(self) -> bool:
        return not self._listener.is_tls

    def admit(self) -> None:
        self._is_anonymous = False
        self._reader.frame_bytes_max = self._config.frame_bytes_max

    def close_after_reply(self) -> None:
        self._is_ending = True

    def hold_back(self, seconds: float) -> None:
        loop = self._listener.loop
        ends_at = loop.time() + seconds
        if self._pause is not None:
            if self._pause.when() >= ends_at:
                return
            self._pause.cancel()
        self._pause = loop.call_at(ends_at, self._end_pause)

    def _end_pause(self) -> None:
        self._pause = None
        self._since = self._listener.now
        self._start_waiting()

    # ── Receiving ────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        if not self._listener.opened(self, self.peer):
            self._transport.abort()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._listener.closed(self)
        self._is_lost = True
        if self._pause is not None:
            self._pause.cancel()
        self._reader.close()
        if self._sender is not None:
            self._sender.close()
        for request in self._requests:
            if request.task is not None and not request.is_kept:
                request.task.cancel()
        self._start_waiting()
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
        except FrameRejected:
            reader.close()
            self._transport.abort()
            return
        reader.settle()
        if (
            (self._requests or self._waiting)
            and self._ahead_bytes > READ_AHEAD_BYTES_MAX
            and self._is_blocked
            and not self._is_reading_paused
        ):
            self._is_reading_paused = True
            self._transport.pause_reading()

    @property
    def _ahead_bytes(self) -> int:
        return self._waiting_bytes + self._reader.part_bytes

    @property
    def _is_blocked(self) -> bool:
        if self._waiting or self._stalled_since is not None or self._pause is not None:
            return True
        count = len(self._requests)
        return count > 0 and not (self._is_written and count < IN_PROGRESS_MAX)

    # ── Starting ─────────────────────────────────────────────────────────────────────────────

    def _arrived(self, frame: memoryview) -> None:
        is_kept = self._listener.outlives(frame)
        if self._waiting or not self._may_start(is_kept):
            self._waiting.append(bytes(frame))
            self._waiting_bytes += len(frame) + WAITING_OVERHEAD_BYTES
        elif is_kept and len(frame) > COPIED_BYTES_MAX:
            self._start_kept(frame)
            if self._requests and not self._is_written:
                self._reader.keep()
        elif is_kept:
            self._start_kept(bytes(frame))
        else:
            self._start(bytes(frame))

    def _may_start(self, is_kept: bool) -> bool:
        is_ready = self._is_lost or not (
            self._is_failed
            or self._is_ending
            or self._listener.is_draining
            or self._stalled_since is not None
            or self._pause is not None
        )
        if not self._requests:
            return is_ready
        # Only produce requests call ``written`` before their reply.
        return is_ready and is_kept and self._is_written and len(self._requests) < IN_PROGRESS_MAX

    def _start_waiting(self) -> None:
        waiting = self._waiting
        while waiting:
            frame = waiting[0]
            is_kept = self._listener.outlives(frame)
            is_dropped = self._is_lost and not is_kept
            if not is_dropped and not self._may_start(is_kept):
                break
            waiting.popleft()
            self._waiting_bytes -= len(frame) + WAITING_OVERHEAD_BYTES
            if is_kept:
                self._start_kept(frame)
            elif not is_dropped:
                self._start(frame)
        if (
            self._is_reading_paused
            and not self._is_lost
            and (self._ahead_bytes <= READ_AHEAD_BYTES_MAX or not self._is_blocked)
        ):
            self._is_reading_paused = False
            self._transport.resume_reading()

    def _start(self, frame: bytes) -> None:
        request = _Request(is_kept=False)
        self._is_written = False
        self._requests.append(request)
        self._run(request, self._listener.handle(self, frame))

    def _start_kept(self, frame: Buffer) -> None:
        request = _Request(is_kept=True)
        self._requests.append(request)
        self._is_written = False
        self._is_starting = True
        try:
            started = EagerCoroutine(self._listener.handle(self, frame))
        except (Exception, asyncio.CancelledError) as error:
            request.error = error
            request.is_done = True
        else:
            if started.is_done:
                request.reply = started.result
                request.is_done = True
            else:
                self._run(request, rest_of(started))
        self._is_starting = False
        if request.is_done:
            self._is_written = True
            if self._requests[0] is request:
                self._send_ready()

    def _run(self, request: _Request, coroutine: Coroutine[Any, Any, Reply]) -> None:
        request.task = task = self._listener.loop.create_task(coroutine)
        task.add_done_callback(lambda task: self._served(request, task))

    def written(self) -> None:
        """Let the next produce request start. A produce request calls this once it has offsets."""
        self._is_written = True
        if not self._is_starting and (self._waiting or self._is_reading_paused):
            self._listener.loop.call_soon(self._start_waiting)

    # ── Replying ─────────────────────────────────────────────────────────────────────────────

    def _served(self, request: _Request, task: "asyncio.Task[Reply]") -> None:
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
        self._start_waiting()

    def _send_ready(self) -> None:
        """Send the replies that are complete and do not have to wait for an earlier reply."""
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
            return
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
        # In the next iteration of the event loop, after the replies are written.
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
            write_large(transport, buffers)

    def _write_slices(self, parts: list[Piece]) -> None:
        try:
            sender = self._sender
            if sender is None:
                fd = self._transport.get_extra_info("socket").fileno()
                sender = self._sender = SliceSender(
                    self._listener.loop, fd, moved=self.pause_writing, done=self._sent
                )
            if not sender.send(parts):
                self._stalled_since = self._listener.now
        except OSError:
            self._transport.abort()

    def _sent(self, error: OSError | None) -> None:
        self._stalled_since = None
        if error is not None:
            self._transport.abort()
            return
        self._since = self._listener.now
        self._end_if_done()
        self._start_waiting()

    def pause_writing(self) -> None:
        self._stalled_since = self._listener.now

    def resume_writing(self) -> None:
        self._stalled_since = None
        self._start_waiting()

    # ── Ending ───────────────────────────────────────────────────────────────────────────────

    def check_deadline(self, now: float) -> None:
        config = self._config
        stalled = self._stalled_since
        is_stalled = stalled is not None and now - stalled > config.write_stall_seconds_max
        login_until = self._opened_at + config.login_seconds_max
        if is_stalled or (self._is_anonymous and now > login_until):
            self.abort()
        elif self._requests or self._pause is not None:
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


class EagerCoroutine(Generic[T]):
    """A coroutine whose first step has already run. The constructor runs that step, and raises its
    exceptions. Unless ``is_done`` is set afterwards, the object must be awaited once."""

    __slots__ = ("_awaited", "_coroutine", "is_done", "result")

    result: T

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self.is_done = False
        try:
            self._awaited = coroutine.send(None)
        except StopIteration as end:
            self.is_done = True
            self.result = end.value

    def __await__(self) -> Generator[Any, Any, T]:
        if self.is_done:
            return self.result
        coroutine = self._coroutine
        # Any task may await the future that the first step yielded: a future calls the task that
        # received it last.
        awaited = self._awaited
        try:
            while True:
                try:
                    value = yield awaited
                except GeneratorExit:
                    coroutine.close()
                    raise
                except BaseException as error:
                    awaited = coroutine.throw(error)
                else:
                    awaited = coroutine.send(value)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


async def rest_of(started: EagerCoroutine[T]) -> T:
    return await started
