"""The HTTP/1.1 client that calls endpoints of tenants. It connects only to addresses that the
caller has checked, and reads no more of a reply than the limits allow.

One deadline covers connecting, TLS, writing and reading. The client keeps no cookies, follows no
redirects, decompresses nothing and ignores proxies in the environment. Callers limit the number of
requests under way. The design follows the listener: an ``asyncio.Protocol`` on httptools, because a
client library costs several times as much as everything else in a delivery."""

import asyncio
import ssl
import time
from collections.abc import Sequence
from typing import Final

from penstock.net.http.client_connection import ClientConnection
from penstock.net.http.client_messages import (
    ClientReply,
    ClientRequest,
    FailureReason,
    Origin,
    RequestFailed,
    encode_request,
)
from penstock.net.http.client_pool import ConnectionPool
from penstock.net.http.client_sockets import Proxy, connect_socket

# A name with several addresses: an address that does not react leaves time for the next one.
ADDRESS_SECONDS_MAX: Final = 3.0
ADDRESSES_TRIED_MAX: Final = 4
# An address that failed is tried last for this long.
AVOID_SECONDS: Final = 60.0
AVOIDED_MAX: Final = 1_024


class HttpClient:
    def __init__(self, *, proxy: Proxy | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._proxy = proxy
        self._pool = ConnectionPool()
        self._busy: set[ClientConnection] = set()
        self._avoided: dict[tuple[str, int], float] = {}  # (address, port) → until when

    @property
    def idle_count(self) -> int:
        return len(self._pool)

    async def send(
        self, request: ClientRequest, *, addresses: Sequence[str], timeout_s: float
    ) -> ClientReply:
        """Send a request to one of the addresses of its origin and return the reply. Raises
        RequestFailed, or RequestInvalid. A cancelled call closes its connection."""
        started_at = time.perf_counter()
        ends_at = self._loop.time() + timeout_s
        data = encode_request(request)
        origin = request.origin
        for address in addresses if request.may_resend else ():
            key = (address, origin.port, origin.host, origin.tls)
            connection = self._pool.take(key)
            if connection is None:
                continue
            try:
                await self._exchange(connection, data, ends_at)
            except RequestFailed as failed:
                # The endpoint may have closed the connection before the request reached it.
                if failed.reason is not FailureReason.RESET or connection.is_answered:
                    raise
                break
            return self._reply(connection, key, started_at)
        address, connection = await self._connect(origin, addresses, ends_at)
        await self._exchange(connection, data, ends_at)
        key = (address, origin.port, origin.host, origin.tls)
        return self._reply(connection, key, started_at)

    def close(self) -> None:
        """Close all connections. Requests under way fail."""
        self._pool.close()
        for connection in list(self._busy):
            connection.fail(FailureReason.RESET, "the client was closed")

    async def _exchange(self, connection: ClientConnection, data: bytes, ends_at: float) -> None:
        timer = self._loop.call_at(ends_at, connection.expire)
        self._busy.add(connection)
        try:
            await connection.start(data)
        except asyncio.CancelledError:
            connection.abort()
            raise
        finally:
            timer.cancel()
            self._busy.discard(connection)

    def _reply(self, connection: ClientConnection, key: object, started_at: float) -> ClientReply:
        if connection.is_open:
            self._pool.put(connection, key)
        return connection.take_reply(time.perf_counter() - started_at)

    # ── Connecting ───────────────────────────────────────────────────────────────────────────

    async def _connect(
        self, origin: Origin, addresses: Sequence[str], ends_at: float
    ) -> tuple[str, ClientConnection]:
        now, avoided = self._loop.time(), self._avoided
        # Sorting is stable: the order of the resolver is kept otherwise.
        left = sorted(addresses, key=lambda each: avoided.get((each, origin.port), 0.0) > now)
        del left[ADDRESSES_TRIED_MAX:]
        failure = RequestFailed(FailureReason.CONNECT, "there is no address")
        while left:
            address = left.pop(0)
            wait_s = ends_at - self._loop.time()
            if left:
                wait_s = min(wait_s / 2, ADDRESS_SECONDS_MAX)
            try:
                async with asyncio.timeout(wait_s):
                    return address, await self._open(origin, address)
            except TimeoutError:
                detail = f"no connection to {address} in time"
                failure = RequestFailed(FailureReason.TIMEOUT, detail)
            except RequestFailed as failed:
                if failed.reason is not FailureReason.CONNECT:
                    raise
                failure = failed
            self._avoid(address, origin.port)
        raise failure

    def _avoid(self, address: str, port: int) -> None:
        avoided = self._avoided
        avoided.pop((address, port), None)  # the oldest entry is first
        if len(avoided) >= AVOIDED_MAX:
            del avoided[next(iter(avoided))]
        avoided[address, port] = self._loop.time() + AVOID_SECONDS

    async def _open(self, origin: Origin, address: str) -> ClientConnection:
        if self._proxy is None:
            connected = await connect_socket(address, origin.port)
        else:
            connected = await self._proxy.open_tunnel(address, origin.port)
        tls = origin.tls
        try:
            _, connection = await self._loop.create_connection(
                ClientConnection,
                sock=connected,
                ssl=tls,
                server_hostname=None if tls is None else origin.host,
            )
        except ssl.SSLCertVerificationError as error:
            raise RequestFailed(FailureReason.TLS, f"certificate: {error.verify_message}") from None
        except (OSError, ValueError) as error:  # ValueError: a host that SNI does not allow
            connected.close()
            detail = getattr(error, "reason", None) or str(error) or type(error).__name__
            reason = FailureReason.CONNECT if tls is None else FailureReason.TLS
            raise RequestFailed(reason, detail) from None
        return connection
