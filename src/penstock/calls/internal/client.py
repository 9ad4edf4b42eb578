"""The client for calls to another node, with one connection for many calls in progress.

The first call opens the connection. After a failure the client reconnects after a pause that grows
with each failure and has a random part, so that clients do not all reconnect at the same moment. A
call during the pause fails at once with Unreachable.

If the connection is lost during a call, the call is sent once more if it is idempotent, and raises
OutcomeUnknown otherwise. Cancelling a call here also cancels it at the other node."""

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock.calls.internal.connection import NodeConnection, NodeEnd
from penstock.model.errors import Draining, InvalidRequest, PenstockError, Throttled
from penstock.net.frames import Chunks
from penstock.wire.internal import faults
from penstock.wire.internal.calls import PING, Call, Caller, Nothing, Q, R, encode
from penstock.wire.internal.frame import HEADER_BYTES, Header, Hello, Kind, Side, read_header

WATCH_SECONDS = 1.0  # between checks of a connection


class _Pending(NamedTuple):
    future: "asyncio.Future[Any]"
    call: Call[Any, Any]
    deadline: float


class _Waiting(NamedTuple):
    room: "asyncio.Future[None]"
    deadline: float
    size: int


class _Calling(NodeConnection):
    side = Side.CALLER

    def __init__(self, client: "InternalClient") -> None:
        super().__init__(client.end, client.chunks)
        self.ready: asyncio.Future[None] = self._loop.create_future()  # done after the hello
        self._client = client
        self._pending: dict[int, _Pending] = {}
        self._in_flight_max = 1
        self._next_id = 1
        self._waiting: deque[_Waiting] = deque()  # calls that wait for room
        self._admitted = 0  # calls that waited, have room now, and are about to be sent
        self._admitted_bytes = 0
        self._watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.send_hello()

    def read_first(self, frame: memoryview) -> Hello:
        header = read_header(frame)
        if header.kind is Kind.ERROR:
            raise faults.HelloRefused(str(faults.decode_failure(frame[HEADER_BYTES:], more={})))
        return super().read_first(frame)

    def refuse(self, error: faults.HelloRefused) -> None: ...

    def greeted(self, hello: Hello) -> None:
        wanted = self._client.node_id
        if wanted is not None and hello.node_id != wanted:
            raise faults.HelloRefused(f"Node {hello.node_id} replied instead of node {wanted}.")
        self._in_flight_max = min(self._config.in_flight_max, hello.in_flight_max)
        self._watch = self._loop.call_later(WATCH_SECONDS, self._look)
        if not self.ready.done():
            self.ready.set_result(None)

    def lost(self, reason: str) -> None:
        where = self._client.place
        if self._watch is not None:
            self._watch.cancel()
        if not self.ready.done():
            if self.end_reason is None:
                # TLS does not say why it rejects a client: a wrong certificate looks like this.
                reason += "; perhaps it needs TLS, or another certificate"
            self.ready.set_exception(faults.Unreachable(f"{where}: {reason}."))
            self.ready.exception()  # so that asyncio does not warn if nothing awaits the future
        pending, self._pending = self._pending, {}
        for one in pending.values():
            if not one.future.done():
                one.future.set_exception(
                    faults.OutcomeUnknown(f"{where} was lost during {one.call.name}: {reason}.")
                )
        waiting, self._waiting = self._waiting, deque()
        for waits in waiting:
            if not waits.room.done():
                waits.room.set_exception(faults.Unreachable(f"{where}: {reason}."))

    # ── Calls ────────────────────────────────────────────────────────────────────────────────

    async def ask(self, call: Call[Q, R], payload: bytes, *, deadline: float) -> R:
        if not self.fits(payload):
            raise InvalidRequest(
                f"The {call.name} request of {len(payload):,} bytes is too large for"
                f" {self._client.place}."
            )
        if self._waiting or not self._has_room:
            await self._wait(deadline, len(payload))
            if self.is_ending:
                raise faults.Unreachable(
                    f"{self._client.place}: the connection was lost before the call was sent."
                )
        request_id = self._next_id
        self._next_id += 1
        future: asyncio.Future[R] = self._loop.create_future()
        self._pending[request_id] = _Pending(future, call, deadline)
        left_ms = max(1, int((deadline - self._loop.time()) * 1_000))
        self.send(Kind.REQUEST, call.number, request_id, payload, deadline_ms=left_ms)
        if self._tick is None:
            self.arm()
        try:
            return await future
        except asyncio.CancelledError:
            if self._pending.pop(request_id, None) is not None:
                if not self.is_ending:
                    self.send(Kind.CANCEL, call.number, request_id, b"")
                self._admit()
            elif future.done() and not future.cancelled():
                future.exception()  # so that asyncio does not warn about a late reply
            raise

    @property
    def _has_room(self) -> bool:
        return (
            len(self._pending) + self._admitted < self._in_flight_max
            and self._stalled_since is None
            and self._parts_bytes + self._admitted_bytes <= self._config.write_bytes_high
        )

    async def _wait(self, deadline: float, size: int) -> None:
        if len(self._waiting) >= self._config.waiting_max:
            raise Throttled(f"Too many calls are waiting to be sent to {self._client.place}.")
        room: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(_Waiting(room, deadline, size))
        self.arm()
        try:
            await room
        except asyncio.CancelledError:
            if room.done() and not room.cancelled() and room.exception() is None:
                self._leave(size)
                self._admit()
            raise
        self._leave(size)

    def _leave(self, size: int) -> None:
        self._admitted -= 1
        self._admitted_bytes -= size

    def _admit(self) -> None:
        waiting = self._waiting
        while waiting and self._has_room:
            one = waiting.popleft()
            if not one.room.done():
                self._admitted += 1
                self._admitted_bytes += one.size
                one.room.set_result(None)

    def flushed(self) -> None:
        if self._waiting:
            self._admit()

    def arrived(self, header: Header, payload: memoryview) -> None:
        kind = header.kind
        if kind is not Kind.REPLY and kind is not Kind.ERROR:
            raise faults.MalformedFrame(f"the called node sent an unexpected {kind.name} frame")
        one = self._pending.pop(header.request_id, None)
        if one is None:
            return  # the call was cancelled, or its time is over
        future = one.future
        if kind is Kind.REPLY:
            reply = one.call.decode_reply(payload)
            if not future.done():
                future.set_result(reply)
        else:
            error = faults.decode_failure(payload, more=one.call.errors)
            if not future.done():
                future.set_exception(error)
        if self._waiting:
            self._admit()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._admit()

    # ── Deadlines ────────────────────────────────────────────────────────────────────────────

    def expire(self, now: float) -> bool:
        late = [item for item in self._pending.items() if now >= item[1].deadline]
        for request_id, one in late:
            del self._pending[request_id]
            if not self.is_ending:
                self.send(Kind.CANCEL, one.call.number, request_id, b"")
            if not one.future.done():
                one.future.set_exception(
                    faults.DeadlineExceeded(
                        f"{self._client.place} did not reply to {one.call.name} in time."
                    )
                )
        for waits in self._waiting:
            if now >= waits.deadline and not waits.room.done():
                waits.room.set_exception(
                    faults.Unreachable(f"{self._client.place} has too many calls in progress.")
                )
        if late or self._waiting:
            self._waiting = deque(waits for waits in self._waiting if not waits.room.done())
            self._admit()
        return bool(self._pending or self._waiting)

    def _look(self) -> None:
        now = self._loop.time()
        self.check_deadline(now)
        if self.is_ending:
            return
        if now - self._heard_at > self._config.ping_seconds:
            self.send(Kind.REQUEST, PING.number, self._next_id, _PING, deadline_ms=1_000)
            self._next_id += 1
        self._watch = self._loop.call_later(WATCH_SECONDS, self._look)

    def close_if_idle(self) -> None:
        if not self._pending:
            self._transport.close()


_PING = encode(Nothing())


class InternalClient:
    def __init__(
        self,
        host: str,
        port: int,
        end: NodeEnd,
        *,
        node_id: str | None = None,
        tls: ssl.SSLContext | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Create a client. ``node_id`` is the expected id of the other node."""
        self.place = f"Node {node_id} at {host}:{port}" if node_id else f"The node at {host}:{port}"
        self.node_id = node_id
        self.end = end
        self.chunks = Chunks()
        self.trouble: str | None = None  # why the last attempt to connect failed
        self._host = host
        self._port = port
        self._tls = tls
        self._chance = chance
        self._loop = asyncio.get_running_loop()
        self._wire: _Calling | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._is_closed = False

    @property
    def is_connected(self) -> bool:
        return self._wire is not None and not self._wire.is_ending

    async def call(self, call: Call[Q, R], request: Q, *, timeout_ms: int) -> R:
        deadline = self._loop.time() + timeout_ms / 1_000
        payload = encode(request)
        wire = self._wire
        if wire is None or wire.is_ending:
            wire = await self._connected(deadline)
        try:
            return await wire.ask(call, payload, deadline=deadline)
        except faults.OutcomeUnknown:
            if not call.is_idempotent or self._is_closed:
                raise
        except faults.Unreachable:
            # The connection was lost before the call was sent, or there was no room in time.
            if self._loop.time() >= deadline:
                raise
        wire = await self._connected(deadline)
        return await wire.ask(call, payload, deadline=deadline)

    async def close(self) -> None:
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait((self._connecting,))
        if self._wire is not None:
            self._wire.abort()
            self._wire = None

    # ── Connecting ───────────────────────────────────────────────────────────────────────────

    async def _connected(self, deadline: float) -> _Calling:
        now = self._loop.time()
        if self._is_closed:
            raise faults.Unreachable(f"{self.place} was not called: this node is stopping.")
        if self._wire is not None and not self._wire.is_ending:
            return self._wire
        if self._connecting is None:
            if now < self._retry_at:
                raise faults.Unreachable(self.trouble or f"{self.place} is not reachable.")
            self._connecting = self._loop.create_task(
                self._connect(), name=f"connect to {self._host}:{self._port}"
            )
        # A caller that is cancelled here does not cancel the attempt.
        await asyncio.wait((self._connecting,), timeout=max(0.0, deadline - now))
        if self._wire is None or self._wire.is_ending:
            raise faults.Unreachable(self.trouble or f"{self.place} was not reached in time.")
        return self._wire

    async def _connect(self) -> None:
        wire: _Calling | None = None
        try:
            async with asyncio.timeout(self.end.config.connect_seconds_max):
                _, wire = await self._loop.create_connection(
                    lambda: _Calling(self), self._host, self._port, ssl=self._tls
                )
                await wire.ready
        except (OSError, PenstockError, ssl.SSLError) as error:
            if wire is not None:
                wire.end("the hello failed")
            self._failed(error)
        except asyncio.CancelledError:
            if wire is not None:
                wire.abort()
            raise
        else:
            self._wire = wire
            self._failures = 0
            self.trouble = None
        finally:
            self._connecting = None

    def _failed(self, error: Exception) -> None:
        config = self.end.config
        pause = min(config.retry_seconds_min * 2.0**self._failures, config.retry_seconds_max)
        self._failures = min(self._failures + 1, 30)
        self._retry_at = self._loop.time() + pause * (0.5 + self._chance() / 2)
        if isinstance(error, faults.Unreachable):
            self.trouble = str(error)
        elif isinstance(error, TimeoutError):
            self.trouble = f"{self.place} did not reply in time."
        else:
            self.trouble = f"{self.place} is not reachable: {error}."


class FirstReachable:
    """Calls one of several equivalent nodes. After a failed call, the next node is used."""

    def __init__(
        self,
        choices: Callable[[], Sequence[Caller]],
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._choices = choices
        self._at = int(chance() * 1_000_000)
        self._loop = asyncio.get_running_loop()

    async def call(self, call: Call[Q, R], request: Q, *, timeout_ms: int) -> R:
        deadline = self._loop.time() + timeout_ms / 1_000
        choices = self._choices()
        last: PenstockError = faults.Unreachable("There is no node to call.")
        for _ in range(len(choices)):
            at = self._at
            left_ms = int((deadline - self._loop.time()) * 1_000)
            if left_ms <= 0:
                break
            try:
                return await choices[at % len(choices)].call(call, request, timeout_ms=left_ms)
            except (faults.Unreachable, faults.DeadlineExceeded, Draining) as error:
                last = error
                if self._at == at:  # another call may have moved on already
                    self._at = at + 1
                is_unknown = isinstance(error, faults.OutcomeUnknown) and not call.is_idempotent
                if is_unknown or isinstance(error, faults.DeadlineExceeded):
                    break
        raise last
