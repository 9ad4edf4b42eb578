"""The base class of all listeners. It counts connections, checks deadlines and drains connections.

One periodic sweep checks the deadlines of all connections, instead of a timer per request. Each
connection notes the time of the last sweep when it enters a phase, such as reading a header."""

import asyncio
import ipaddress
import ssl
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import cast

SWEEP_SECONDS = 0.5
HANDSHAKE_SECONDS_MAX = 5.0
BACKLOG = 4_096
NO_LIMIT = 2**31 - 1


def write_large(transport: asyncio.Transport, buffers: Iterable[bytes | memoryview]) -> None:
    """Write buffers that are too large to be joined. asyncio's own ``writelines`` is not used: in
    Python 3.12 and 3.13 it does not call ``pause_writing`` if the peer does not read."""
    if type(transport).__module__ == "asyncio.selector_events":
        transport.write(b"".join(buffers))
    else:
        transport.writelines(buffers)


class Peer(asyncio.BaseProtocol):
    counted_for: object = None  # the tenant whose quota counts the connection
    _lost: tuple[Callable[[], None], ...] = ()
    _transport: asyncio.Transport = cast(asyncio.Transport, None)  # set by ``connection_made``

    def when_lost(self, listener: Callable[[], None]) -> None:
        self._lost = (*self._lost, listener)

    def notify_lost(self) -> None:
        listeners, self._lost = self._lost, ()
        for listener in listeners:
            listener()

    def close_after_reply(self) -> None: ...

    @abstractmethod
    def check_deadline(self, now: float) -> None:
        """Close the connection if its current phase has lasted too long."""

    @abstractmethod
    def close_if_idle(self) -> None:
        """Close the connection if it is idle, otherwise after the reply to the current request."""

    def abort(self) -> None:
        self._transport.abort()

    def eof_received(self) -> bool:
        # A half-closed socket looks like a closed one. Clients do not half-close, and a parked
        # receive must not lease a message for a client that has gone.
        return False


class Listener:
    def __init__(self, *, connections_max: int, per_address_max: int = 0) -> None:
        """Create a listener. ``per_address_max`` limits connections per address (0: no limit)."""
        self.connections: set[Peer] = set()
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time()  # set by the sweep, so up to half a second old
        self.is_draining = False
        self.is_tls = False
        self._most = self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._per_address: dict[str, int] = {}
        self._addresses: Mapping[str, int] = {}  # limits of single addresses
        self.admits: Callable[[str], bool] | None = None  # whether an address may connect now
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._all_closed = asyncio.Event()

    @abstractmethod
    def make_connection(self) -> Peer: ...

    async def start(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        handshake_seconds_max: float = HANDSHAKE_SECONDS_MAX,
        reuse_port: bool = False,
    ) -> str:
        """Listen on a port and return ``host:port``. ``reuse_port`` lets processes share it."""
        self.is_tls = tls is not None
        self._server = await self.loop.create_server(
            self.make_connection,
            host,
            port,
            ssl=tls,
            backlog=BACKLOG,
            reuse_address=True,
            reuse_port=reuse_port or None,
            ssl_handshake_timeout=None if tls is None else handshake_seconds_max,
        )
        self._sweep()
        bound_host, bound_port = self._server.sockets[0].getsockname()[:2]
        return f"[{bound_host}]:{bound_port}" if ":" in bound_host else f"{bound_host}:{bound_port}"

    async def drain(self, *, seconds_max: float) -> None:
        self.is_draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close_if_idle()
        if self.connections:
            try:
                await asyncio.wait_for(self._all_closed.wait(), seconds_max)
            except TimeoutError:
                pass
        for connection in list(self.connections):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()

    def opened(self, connection: Peer, address: str = "") -> bool:
        """Count a new connection. Return False if the connection must be rejected."""
        if len(self.connections) >= self._connections_max or self.is_draining:
            return False
        if self.admits is not None and address and not self.admits(address):
            return False
        if self._per_address_max and address:
            address = source_of(address)
            count = self._per_address.get(address, 0)
            if count >= self._addresses.get(address, self._per_address_max):
                return False
            self._per_address[address] = count + 1
            connection.when_lost(partial(self._left, address))
        self.connections.add(connection)
        self._all_closed.clear()
        return True

    def limit(
        self, *, connections_max: int, per_address_max: int, addresses: Mapping[str, int]
    ) -> None:
        """Set new limits, without closing connections. The listener must have been created with a
        limit per address, because otherwise it has not counted connections by address."""
        assert self._per_address_max > 0, "addresses are not counted"
        self._connections_max = min(connections_max, self._most)
        self._per_address_max = per_address_max
        self._addresses = {source_of(address): most for address, most in addresses.items()}

    def closed(self, connection: Peer) -> None:
        self.connections.discard(connection)
        connection.notify_lost()
        if not self.connections:
            self._all_closed.set()

    def _left(self, address: str) -> None:
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]

    def _sweep(self) -> None:
        self.now = self.loop.time()
        self.swept()
        for connection in list(self.connections):
            connection.check_deadline(self.now)
        self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep)

    def swept(self) -> None:
        """A hook for subclasses, called at the beginning of each sweep, twice a second."""


def source_of(address: str) -> str:
    """Return the address under which a connection is counted: for IPv6, its /64 network."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found, 64), strict=False))
