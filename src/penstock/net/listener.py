"""What every listener does alike: bind, count its connections, sweep their deadlines, drain.

Deadlines are kept by one sweep over all connections rather than by a timer per request: a
connection only notes, on the sweep's coarse clock, when its phase began.
"""

import asyncio
import ipaddress
import ssl
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial

SWEEP_SECONDS = 0.5
HANDSHAKE_SECONDS_MAX = 5.0
BACKLOG = 4_096
NO_LIMIT = 2**31 - 1


class Peer(asyncio.BaseProtocol):
    """One client's connection, as its listener sees it. How it gets its bytes is its own affair:
    in pieces that the loop makes (``Connection``), or into memory of its own."""

    counted_for: object = None  # the tenant for which ``quotas.claim`` was called last
    _lost: tuple[Callable[[], None], ...] = ()  # most have none, and share this one

    def when_lost(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` once, when the connection has ended."""
        self._lost = (*self._lost, listener)

    def tell_lost(self) -> None:
        told, self._lost = self._lost, ()
        for listener in told:
            listener()

    def close_when_answered(self) -> None:
        """End it behind the answer to the request under way. Where a protocol has no answer for
        this, whoever asks hangs up instead."""

    @abstractmethod
    def check_deadline(self, now: float) -> None:
        """End it if it has been in its phase for too long."""

    @abstractmethod
    def close_if_idle(self) -> None:
        """End it unless a request is being answered, which ends it afterwards."""

    @abstractmethod
    def abort(self) -> None: ...


class Connection(Peer, asyncio.Protocol):
    """One that is handed its bytes."""


class Listener:
    def __init__(self, *, connections_max: int, per_address_max: int = 0) -> None:
        """``per_address_max``: connections of one client address; 0: no limit."""
        self.connections: set[Peer] = set()
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time()  # moved by the sweep only: good to half a second, free to read
        self.is_draining = False
        self.is_tls = False
        self._most = self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._per_address: dict[str, int] = {}
        self._addresses: Mapping[str, int] = {}  # those with a limit of their own
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
        """Bind and serve; returns the bound ``host:port``. ``reuse_port``: other processes that say
        so too may have the same one, and the kernel spreads connections over all of them."""
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
        """Stop accepting, let requests under way finish, then close what is left."""
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
        """False: there are too many, in all or from that address, or too many a second, or the node
        is stopping."""
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
        """Set other limits; connections that are open stay. More connections than the listener was
        made for are never accepted. It must have had a limit by address from the start, or it has
        not counted who is there."""
        assert self._per_address_max > 0, "addresses are not counted"
        self._connections_max = min(connections_max, self._most)
        self._per_address_max = per_address_max
        self._addresses = {source_of(address): most for address, most in addresses.items()}

    def closed(self, connection: Peer) -> None:
        self.connections.discard(connection)
        connection.tell_lost()
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
        """What else a listener renews twice a second."""


def source_of(address: str) -> str:
    """Whose an address is, as far as it tells: of IPv6 everybody has 2^64."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found, 64), strict=False))
