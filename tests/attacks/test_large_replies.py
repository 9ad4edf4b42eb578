"""Replies of many MiB: a turn of the event loop writes a bounded part of one, and the node keeps no
more than that for a client that does not read."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from penstock.net.http.browsers import BrowserGuard
from penstock.net.http.exchange import TURN_BYTES_MAX, HttpReply, HttpRequest, PieceWriter
from penstock.net.http.listener import HttpConfig, HttpListener
from penstock.net.tls import Certificates, TlsFiles

KIB, MIB = 1_024, 1_048_576
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
PIECES = (*(bytes([65 + n % 26]) * (64 * KIB + n) for n in range(300)), b"z" * 20 * MIB)
WHOLE = b"".join(PIECES)


async def answer(request: HttpRequest) -> HttpReply:
    if request.path == "/last":
        return HttpReply(200, b"last", "text/plain")
    return HttpReply(200, b"", "text/plain", pieces=PIECES)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> asyncio.Runner:
    """On the loop that serves, and on the one of the tests."""
    return asyncio.Runner(loop_factory=request.param)


@asynccontextmanager
async def listening(
    tls: ssl.SSLContext | None = None, **config: float
) -> AsyncIterator[tuple[HttpListener, int]]:
    listener = HttpListener(
        answer,
        config=HttpConfig(**config),  # type: ignore[arg-type]
        name="test",
        seed=bytes(10),
        guard=BrowserGuard(is_open=True),
    )
    bound = await listener.start("127.0.0.1", 0, tls=tls)
    try:
        yield listener, int(bound.rpartition(":")[2])
    finally:
        await listener.drain(seconds_max=1.0)


def check_replies(received: bytes) -> None:
    """The large reply and the one behind it, whole and in order."""
    head, _, rest = received.partition(b"\r\n\r\n")
    assert b"Content-Length: %d" % len(WHOLE) in head
    assert rest[: len(WHOLE)] == WHOLE
    assert rest[len(WHOLE) :].startswith(b"HTTP/1.1 200")
    assert rest.endswith(b"\r\n\r\nlast")


class Counting(asyncio.Transport):
    """A transport that counts what it is given, and never asks for a pause."""

    def __init__(self) -> None:
        super().__init__()
        self.turn_bytes = 0
        self.written = bytearray()
        self.is_closed = False

    def write(self, data: object) -> None:
        assert isinstance(data, bytes | memoryview)
        self.turn_bytes += len(data)
        self.written += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


async def test_a_turn_writes_a_bounded_part_of_a_large_reply() -> None:
    transport, ended = Counting(), asyncio.Event()
    writer = PieceWriter(
        asyncio.get_running_loop(), transport, PIECES, is_paused=False, done=ended.set
    )
    total = 0
    writer.write()
    while transport.turn_bytes:
        assert transport.turn_bytes <= TURN_BYTES_MAX
        total += transport.turn_bytes
        transport.turn_bytes = 0
        await asyncio.sleep(0)
    assert ended.is_set()
    assert total == len(WHOLE)


async def test_a_request_that_comes_during_a_large_reply_is_answered_after_it() -> None:
    async with listening() as (listener, _):
        connection, transport = listener.make_connection(), Counting()
        assert isinstance(connection, asyncio.Protocol)
        connection.connection_made(transport)
        connection.data_received(GET)
        while not transport.written:
            await asyncio.sleep(0)
        connection.data_received(LAST)
        async with asyncio.timeout(30):
            while not transport.is_closed:
                await asyncio.sleep(0)
        connection.connection_lost(None)
        check_replies(bytes(transport.written))


def test_a_large_reply_waits_for_its_reader(runner: asyncio.Runner) -> None:
    async def run() -> None:
        async with listening() as (listener, port):
            loop = asyncio.get_running_loop()
            client = socket.create_connection(("127.0.0.1", port))
            client.setblocking(False)
            await loop.sock_sendall(client, GET + LAST)
            await asyncio.sleep(0.3)
            (connection,) = listener.connections
            held = connection._transport.get_write_buffer_size()
            assert 0 < held <= TURN_BYTES_MAX + 64 * KIB, f"{held:,} bytes are held"
            received = bytearray()
            async with asyncio.timeout(30):
                while chunk := await loop.sock_recv(client, MIB):
                    received += chunk
            client.close()
            check_replies(bytes(received))

    with runner:
        runner.run(run())


def test_a_large_reply_goes_out_over_tls(runner: asyncio.Runner, certificates: Path) -> None:
    async def run() -> None:
        files = TlsFiles(certificates / "penstock.pem", certificates / "penstock-key.pem")
        trusted = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        async with listening(Certificates(files).context) as (_, port):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=trusted, server_hostname="localhost"
            )
            writer.write(GET + LAST)
            check_replies(await asyncio.wait_for(reader.read(), 30))
            writer.close()

    with runner:
        runner.run(run())


def test_a_reader_that_stops_in_a_large_reply_is_cut_off(runner: asyncio.Runner) -> None:
    async def run() -> None:
        async with listening(write_stall_seconds_max=0.5) as (listener, port):
            client = socket.create_connection(("127.0.0.1", port))
            client.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(client, GET)
            async with asyncio.timeout(10):
                while not listener.connections:
                    await asyncio.sleep(0.01)
                while listener.connections:
                    await asyncio.sleep(0.02)
            client.close()

    with runner:
        runner.run(run())


def test_a_drain_lets_a_large_reply_finish(runner: asyncio.Runner) -> None:
    async def run() -> None:
        async with listening() as (listener, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET)
            first = await reader.readexactly(MIB)
            draining = asyncio.create_task(listener.drain(seconds_max=30.0))
            received = first + await asyncio.wait_for(reader.read(), 20)
            await asyncio.wait_for(draining, 5)
            writer.close()
            assert received.partition(b"\r\n\r\n")[2] == WHOLE

    with runner:
        runner.run(run())
