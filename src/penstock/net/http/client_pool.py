"""Idle connections of the HTTP client, by the server that they lead to.

The connection that was used last is taken first, so that the others can expire. A pool may hold
more than KEPT_PER_KEY connections for BURST_SECONDS: the requests of a busy subscription end
together and start again a moment later, and a TLS handshake for each of them would cost more than
the request."""

import asyncio
from typing import Final

from penstock.net.http.client_connection import ClientConnection

IDLE_SECONDS_MAX: Final = 30.0  # servers commonly close idle connections after 60 s
KEPT_PER_KEY: Final = 8
BURST_SECONDS: Final = 1.0
IDLE_MAX: Final = 1_024  # of all keys, because each takes a file descriptor here and there
SWEEP_SECONDS: Final = 1.0


class ConnectionPool:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._by_key: dict[object, list[ClientConnection]] = {}
        self._idle: dict[ClientConnection, None] = {}  # the one that is idle for longest is first
        self._sweeper: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._idle)

    def take(self, key: object) -> ClientConnection | None:
        idle = self._by_key.get(key)
        while idle:
            connection = idle.pop()
            del self._idle[connection]
            if not idle:
                del self._by_key[key]
            if connection.is_open:
                return connection
        return None

    def put(self, connection: ClientConnection, key: object) -> None:
        if len(self._idle) >= IDLE_MAX:
            self._close(next(iter(self._idle)))
        connection.key = key
        connection.idle_since = self._loop.time()
        self._idle[connection] = None
        try:
            self._by_key[key].append(connection)
        except KeyError:
            self._by_key[key] = [connection]
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_SECONDS, self.sweep)

    def close(self) -> None:
        for connection in list(self._idle):
            self._close(connection)
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def sweep(self) -> None:
        now = self._loop.time()
        for connection in list(self._idle):
            idle_s = now - connection.idle_since
            is_spare = len(self._by_key[connection.key]) > KEPT_PER_KEY
            if (
                not connection.is_open
                or idle_s > IDLE_SECONDS_MAX
                or (is_spare and idle_s > BURST_SECONDS)
            ):
                self._close(connection)
        self._sweeper = self._loop.call_later(SWEEP_SECONDS, self.sweep) if self._idle else None

    def _close(self, connection: ClientConnection) -> None:
        self._remove(connection)
        connection.abort()

    def _remove(self, connection: ClientConnection) -> None:
        del self._idle[connection]
        idle = self._by_key[connection.key]
        idle.remove(connection)
        if not idle:
            del self._by_key[connection.key]
