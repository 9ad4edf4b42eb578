"""Makes calls to another node: one connection, many calls under way, answers in any order.

The connection is made when there is a call for it and made again when it was lost, after a pause
that grows with each failure and is never quite the same, so that the callers of a node that comes
back do not come all at once. A call during the pause is refused on the spot: whoever can go on
without that node, or has another, should not wait to hear it.

A call that was lost with its connection is made once more if that is harmless, and ends as
OutcomeUnknown if it is not. A caller that goes away takes its call with it: the other side is told.
"""

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock.model.errors import Draining, InvalidRequest, PenstockError, Throttled
from penstock.model.levels import Levels
from penstock.net.frames import Chunks
from penstock.net.internal.certificate import PeerCheck, name_in_certificate
from penstock.net.internal.wire import NO_LEVELS, InternalConfig, Wire, own_hello
from penstock.wire.internal.calls import PING, Call, Caller, Nothing, Q, R, encode
from penstock.wire.internal.faults import (
    DeadlineExceeded,
    HelloRefused,
    MalformedFrame,
    OutcomeUnknown,
    Unreachable,
    decode_failure,
)
from penstock.wire.internal.frame import HEADER_BYTES, Header, Hello, Kind, read_header
from penstock.wire.internal.proof import Side

WATCH_SECONDS = 1.0  # between looks at whether the connection still lives
CLIENTS_MAX = 1_024  # of one node: a cluster has fewer


class _Pending(NamedTuple):
    future: "asyncio.Future[Any]"
    call: Call[Any, Any]
    deadline: float


class _Waiting(NamedTuple):
    room: "asyncio.Future[None]"
    deadline: float
    size: int


class _Calling(Wire):
    """The calling end of a connection."""

    side = Side.CALLER

    def __init__(self, client: "InternalClient") -> None:
        super().__init__(
            client.own,
            config=client.config,
            chunks=client.chunks,
            check_peer=client.check_peer,
            secret=client.secret,
        )
        self.ready: asyncio.Future[None] = self._loop.create_future()  # greeted, or refused
        self._client = client
        self._pending: dict[int, _Pending] = {}
        self._in_flight_max = 1
        self._next_id = 1
        self._waiting: deque[_Waiting] = deque()  # for room, in order
        self._admitted = 0  # of those, let in and about to begin
        self._admitted_bytes = 0
        self._watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.send_hello()

    def read_first(self, frame: memoryview) -> Hello:
        header = read_header(frame)
        if header.kind is Kind.ERROR:
            raise HelloRefused(str(decode_failure(frame[HEADER_BYTES:], more={})))
        return super().read_first(frame)

    def refuse(self, error: HelloRefused) -> None:
        """A node that was called needs no reason why it is not called further."""

    def greeted(self, hello: Hello) -> None:
        wanted = self._client.node_id
        if wanted is not None and hello.node_id != wanted:
            raise HelloRefused(f"Node {hello.node_id} answers where node {wanted} was expected.")
        self._client.check_hello(hello)
        self._in_flight_max = min(self._config.in_flight_max, hello.in_flight_max)
        self._watch = self._loop.call_later(WATCH_SECONDS, self._look)
        if not self.ready.done():
            self.ready.set_result(None)

    def lost(self, why: str) -> None:
        where = self._client.place
        if self._watch is not None:
            self._watch.cancel()
        if not self.ready.done():
            if self.ended_by is None:
                # TLS tells nobody who is refused: a certificate that does not fit looks like this.
                why += "; perhaps it wants TLS, or another certificate"
            self.ready.set_exception(Unreachable(f"{where}: {why}."))
            self.ready.exception()  # heard: whoever still waits gets it all the same
        pending, self._pending = self._pending, {}
        for one in pending.values():
            if not one.future.done():
                one.future.set_exception(
                    OutcomeUnknown(f"{where} was lost during {one.call.name}: {why}.")
                )
        waiting, self._waiting = self._waiting, deque()
        for waits in waiting:
            if not waits.room.done():
                waits.room.set_exception(Unreachable(f"{where}: {why}."))

    # ── Calls ────────────────────────────────────────────────────────────────────────────────

    async def ask(self, call: Call[Q, R], payload: bytes, *, deadline: float) -> R:
        await self._prepare(call, payload, deadline)
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
                future.exception()  # came too late to be heard, which is no oversight
            raise

    async def tell(self, call: Call[Q, R], payload: bytes, *, deadline: float) -> None:
        await self._prepare(call, payload, deadline)
        left_ms = max(1, int((deadline - self._loop.time()) * 1_000))
        self.send(Kind.ONE_WAY, call.number, self._next_id, payload, deadline_ms=left_ms)
        self._next_id += 1

    async def _prepare(self, call: Call[Any, Any], payload: bytes, deadline: float) -> None:
        if not self.fits(payload):
            raise InvalidRequest(
                f"{call.name}: {len(payload)} bytes are more than {self._client.place} takes."
            )
        if self._waiting or not self._has_room:
            await self._wait(deadline, len(payload))
            if self.is_ending:
                raise Unreachable(f"{self._client.place} was lost before its turn came.")

    @property
    def _has_room(self) -> bool:
        return len(self._pending) + self._admitted < self._in_flight_max and self.has_write_room(
            self._admitted_bytes
        )

    async def _wait(self, deadline: float, size: int) -> None:
        """For one of the calls under way to end, or for the peer to read."""
        if len(self._waiting) >= self._config.waiting_max:
            raise Throttled(f"Too many calls wait for {self._client.place}.")
        room: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(_Waiting(room, deadline, size))
        self.arm()
        try:
            await room
        except asyncio.CancelledError:
            if room.done() and not room.cancelled() and room.exception() is None:
                self._begun(size)
                self._admit()  # let in and gone at once: the next may have the place
            raise
        self._begun(size)

    def _begun(self, size: int) -> None:
        self._admitted -= 1
        self._admitted_bytes -= size

    def _admit(self) -> None:
        """As many as there is room for; each has its place from now on."""
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
            raise MalformedFrame(f"a {kind.name} frame from a node that was called")
        one = self._pending.pop(header.request_id, None)
        if one is None:
            return  # nobody waits any more: it was cancelled, or too late
        future = one.future
        if kind is Kind.REPLY:
            reply = one.call.decode_reply(payload)
            if not future.done():
                future.set_result(reply)
        else:
            error = decode_failure(payload, more=one.call.errors)
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
                    DeadlineExceeded(
                        f"{self._client.place} did not answer {one.call.name} in time."
                    )
                )
        for waits in self._waiting:
            if now >= waits.deadline and not waits.room.done():
                waits.room.set_exception(
                    Unreachable(f"{self._client.place} had no room for another call in time.")
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
    """A ``Caller`` of one node."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        own_id: str,
        cluster_id: str,
        features: tuple[str, ...] = (),
        levels: Levels = NO_LEVELS,
        node_id: str | None = None,
        config: InternalConfig | None = None,
        tls: ssl.SSLContext | None = None,
        check_peer: PeerCheck = name_in_certificate,
        check_hello: Callable[[Hello], None] = lambda _hello: None,
        chance: Callable[[], float] = random.random,
        chunks: Chunks | None = None,
        secret: bytes | None = None,
    ) -> None:
        """``node_id``: who must answer there, if that is known. With ``tls`` the id of the node
        that answers must pass ``check_peer``; a host name in its certificate is then not needed.
        ``check_hello``: raises HelloRefused for a node that says of itself what does not fit.
        ``chunks``: memory to receive into, which the clients of a node may share. ``secret``:
        the node that answers must prove that it knows it, and is proved the same."""
        self.place = f"Node {node_id} at {host}:{port}" if node_id else f"The node at {host}:{port}"
        self.node_id = node_id
        self.config = config or InternalConfig()
        self.own = own_hello(
            node_id=own_id,
            cluster_id=cluster_id,
            features=features,
            levels=levels,
            config=self.config,
        )
        self.check_peer = check_peer
        self.check_hello = check_hello
        self.secret = secret
        self.chunks = chunks or Chunks()
        self.trouble: str | None = None  # why there was no connection the last time one was tried
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
        except OutcomeUnknown:
            if not call.is_idempotent or self._is_closed:
                raise
        except Unreachable:
            # Lost while it waited for its turn; or there was no turn for it in time.
            if self._loop.time() >= deadline:
                raise
        wire = await self._connected(deadline)
        return await wire.ask(call, payload, deadline=deadline)

    async def tell(self, call: Call[Q, R], request: Q, *, timeout_ms: int) -> None:
        """Without an answer: whether it arrives, and what becomes of it, is not heard here."""
        deadline = self._loop.time() + timeout_ms / 1_000
        wire = self._wire
        if wire is None or wire.is_ending:
            wire = await self._connected(deadline)
        await wire.tell(call, encode(request), deadline=deadline)

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
            raise Unreachable(f"{self.place}: this node is stopping.")
        if self.is_connected:
            assert self._wire is not None
            return self._wire
        if self._connecting is None:
            if now < self._retry_at:
                raise Unreachable(self.trouble or f"{self.place} cannot be reached.")
            self._connecting = self._loop.create_task(
                self._connect(), name=f"connect to {self._host}:{self._port}"
            )
        # Not awaited itself: who is cancelled here leaves the attempt to the others.
        await asyncio.wait((self._connecting,), timeout=max(0.0, deadline - now))
        if not self.is_connected:
            raise Unreachable(self.trouble or f"{self.place} could not be reached in time.")
        assert self._wire is not None
        return self._wire

    async def _connect(self) -> None:
        wire: _Calling | None = None
        try:
            async with asyncio.timeout(self.config.connect_seconds_max):
                _, wire = await self._loop.create_connection(
                    lambda: _Calling(self), self._host, self._port, ssl=self._tls
                )
                await wire.ready
        except (OSError, PenstockError, ssl.SSLError) as error:
            if wire is not None:
                wire.end("the greeting failed")
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
        config = self.config
        pause = min(config.retry_seconds_min * 2.0**self._failures, config.retry_seconds_max)
        self._failures = min(self._failures + 1, 30)
        self._retry_at = self._loop.time() + pause * (0.5 + self._chance() / 2)
        if isinstance(error, Unreachable):
            self.trouble = str(error)
        elif isinstance(error, TimeoutError):
            self.trouble = f"{self.place} did not answer in time."
        else:
            self.trouble = f"{self.place} cannot be reached: {error}."


class InternalClients:
    """One client for each node that is called, made when it is first asked for."""

    def __init__(self, make: Callable[[str, int], InternalClient]) -> None:
        self._make = make
        self._clients: dict[tuple[str, int], InternalClient] = {}

    def to(self, host: str, port: int) -> InternalClient:
        """Raises Throttled beyond any number of nodes that a cluster has."""
        client = self._clients.get((host, port))
        if client is None:
            if len(self._clients) >= CLIENTS_MAX:
                raise Throttled("This node calls as many others as it may.")
            client = self._clients[host, port] = self._make(host, port)
        return client

    async def forget(self, host: str, port: int) -> None:
        """The node is no more."""
        client = self._clients.pop((host, port), None)
        if client is not None:
            await client.close()

    async def close(self) -> None:
        clients = list(self._clients.values())
        self._clients.clear()
        for client in clients:
            await client.close()


class FirstReachable:
    """A ``Caller`` of several nodes that answer alike: keeps to one while it answers, and goes on
    to the next when it is away or about to stop. Where it begins is chance, so that callers spread
    over the nodes."""

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
        last: PenstockError = Unreachable("There is no node to ask.")
        for _ in range(len(choices)):
            at = self._at
            left_ms = int((deadline - self._loop.time()) * 1_000)
            if left_ms <= 0:
                break
            try:
                return await choices[at % len(choices)].call(call, request, timeout_ms=left_ms)
            except OutcomeUnknown as error:
                last = error
                self._leave(at)
                if not call.is_idempotent:
                    break
            except (Unreachable, Draining) as error:
                last = error
                self._leave(at)
            except DeadlineExceeded:
                self._leave(at)  # too late for this call; the next one need not wait as well
                raise
        raise last

    def _leave(self, at: int) -> None:
        if self._at == at:  # unless another caller has gone on already
            self._at = at + 1
