"""One client of the load generator: a request out, its reply to a callback, never two under way.

The connection is kept alive. A server that closes after each reply (some do) is asked again on a
new connection, and the time to open it counts: that is what its clients would wait for.
"""

import asyncio
from collections.abc import Callable

from benchmarks.reply import parse_reply

OnReply = Callable[[int, bytes], None]
OnLost = Callable[[str], None]
OPEN_ATTEMPTS_MAX = 5


class Channel:
    def __init__(self, host: str, port: int, *, on_lost: OnLost) -> None:
        self._address = (host, port)
        self._on_lost = on_lost  # for good: the server is gone or refuses
        self._wire: _Wire | None = None
        self._request = b""  # under way; empty when none is
        self._on_reply: OnReply | None = None
        self._opening: asyncio.Task[None] | None = None

    async def open(self) -> None:
        host, port = self._address
        loop = asyncio.get_running_loop()
        _, self._wire = await loop.create_connection(lambda: _Wire(self), host, port)

    def exchange(self, request: bytes, on_reply: OnReply) -> None:
        self._request = request
        self._on_reply = on_reply
        if self._wire is not None:
            self._wire.transport.write(request)
        elif self._opening is None:
            loop = asyncio.get_running_loop()
            self._opening = loop.create_task(self._open_again(), name="reopen")

    def shut(self) -> None:
        self._on_reply = None
        self._request = b""
        if self._opening is not None:
            self._opening.cancel()
        if self._wire is not None:
            wire, self._wire = self._wire, None
            wire.transport.abort()

    def answered(self, status: int, body: bytes) -> None:
        on_reply = self._on_reply
        if on_reply is not None:
            self._request = b""
            on_reply(status, body)

    def closed(self, wire: "_Wire", reason: str) -> None:
        """The wire is no longer of use; an old one may say so late, and then it is no news."""
        if wire is not self._wire:
            return
        self._wire = None
        if self._request:
            self._on_lost(f"connection lost with a request under way: {reason}")

    async def _open_again(self) -> None:
        problem: OSError | None = None
        for _ in range(OPEN_ATTEMPTS_MAX):
            try:
                await self.open()
            except OSError as error:
                problem = error
                continue
            self._opening = None
            if self._wire is not None and self._request:
                self._wire.transport.write(self._request)
            return
        self._opening = None
        self._on_lost(f"cannot connect: {problem}")


class _Wire(asyncio.Protocol):
    """One connection of a channel. Separate, because a closing one can outlive its successor's
    beginning, and the loop does not say whose end it reports."""

    transport: asyncio.Transport

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._held = b""  # the part of a reply that has arrived

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # TCP: always a full transport

    def data_received(self, data: bytes) -> None:
        if self._held:
            data = self._held + data
        reply = parse_reply(data)
        if reply is None:
            self._held = data
            return
        self._held = b""
        status, body, is_last = reply
        if is_last:
            self._forget()
        self._channel.answered(status, body)

    def connection_lost(self, exc: Exception | None) -> None:
        reply = parse_reply(self._held, at_end=True) if self._held else None
        if reply is None:
            self._channel.closed(self, str(exc or "closed by the server"))
        else:
            self._forget()
            status, body, _ = reply
            self._channel.answered(status, body)

    def _forget(self) -> None:
        """Make the channel open another connection for its next request."""
        channel = self._channel
        if channel._wire is self:
            channel._wire = None
        self.transport.close()
