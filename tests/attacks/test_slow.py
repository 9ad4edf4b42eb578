"""Clients that take their time, or take everything: half a head, a body by drops, a handshake that
never goes on, answers that nobody reads, connections without end. Each ends at its deadline or
bound, and others do not notice.

What the settings of a server reach is tried on a real one; the rest on the listeners themselves,
with deadlines short enough to wait for."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.attacks.conftest import BODY_SECONDS, HEADER_SECONDS
from tests.harness.client import RawClient
from tests.harness.patience import eventually
from tests.harness.raw_http import RawConnection, json_request
from tests.harness.server import Server

from penstock.net.http.browsers import BrowserGuard
from penstock.net.http.exchange import HttpReply, HttpRequest
from penstock.net.http.listener import PIPELINED_MAX, READ_AHEAD_BYTES_MAX, HttpConfig, HttpListener
from penstock.net.kafka.listener import Buffer, KafkaConfig, KafkaConnection, KafkaListener
from penstock.net.listener import Listener, source_of
from penstock.net.tls import Certificates, TlsFiles

KIB, MIB = 1_024, 1_048_576
SWEEP_SECONDS = 1.0  # deadlines are looked at twice a second; a loaded machine may be late
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
HEAD = (
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-amz-json-1.0\r\n"
    b"X-Amz-Target: AmazonSQS.ListQueues\r\n"
)


# ── S12: a real server ───────────────────────────────────────────────────────────────────────
SLOW: dict[str, tuple[bytes, bytes, float]] = {
    "half-a-request-line": (b"PO", b"", HEADER_SECONDS),
    "half-a-head": (HEAD, b"", HEADER_SECONDS),
    "a-head-by-drops": (HEAD, b"X: y\r\n", HEADER_SECONDS),
    "half-a-body": (HEAD + b"Content-Length: 100\r\n\r\n{", b"", BODY_SECONDS),
    "a-body-by-drops": (HEAD + b"Content-Length: 9999\r\n\r\n", b" ", BODY_SECONDS),
    "chunks-by-drops": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n", BODY_SECONDS),
    "an-extension-by-drops": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;", b"a", BODY_SECONDS),
    "trailers-by-drops": (
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n",
        b"X: y\r\n",
        BODY_SECONDS,
    ),
}


def test_a_slow_request_ends_at_its_deadline(open_server: Server, bystander: RawClient) -> None:
    """All at once: the time is spent waiting."""
    with ThreadPoolExecutor(len(SLOW)) as pool:
        found = dict(zip(SLOW, pool.map(partial(patiently, open_server), SLOW), strict=True))
    for attack, (statuses, took) in found.items():
        seconds = SLOW[attack][2]
        assert statuses in ([408], []), attack
        assert seconds - SWEEP_SECONDS < took < seconds + 8 * SWEEP_SECONDS, (
            f"{attack}: {took:.1f} s"
        )


def patiently(server: Server, attack: str) -> tuple[list[int], float]:
    """What came back, and after how long the connection was ended."""
    start, drop, seconds = SLOW[attack]
    began = time.monotonic()
    with RawConnection(server.port, seconds=0.05) as connection:
        connection.send(start)
        reply = connection.read_until_closed()
        while not reply.is_closed and time.monotonic() - began < seconds + 10:
            if drop and not connection.send(drop):
                break
            reply = connection.read_until_closed()
    return reply.statuses, time.monotonic() - began


def test_many_slow_clients_leave_room_for_others(open_server: Server, bystander: RawClient) -> None:
    connections = [RawConnection(open_server.port) for _ in range(300)]
    try:
        for connection in connections:
            connection.send(HEAD)
        began = time.monotonic()
        for _ in range(20):
            bystander.call("ListQueues", {})
        assert time.monotonic() - began < 10.0
        for connection in connections:
            assert connection.read_until_closed().statuses == [408]
    finally:
        for connection in connections:
            connection.socket.close()


def test_many_parked_receives_leave_room_for_others(
    open_server: Server, bystander: RawClient, name: Callable[..., str]
) -> None:
    url = bystander.call("CreateQueue", {"QueueName": name()})["QueueUrl"]
    other = bystander.call("CreateQueue", {"QueueName": name()})["QueueUrl"]
    poll = json_request(
        "ReceiveMessage", b'{"QueueUrl": "%s", "WaitTimeSeconds": 20}' % url.encode()
    )
    connections = [RawConnection(open_server.port) for _ in range(300)]
    try:
        for connection in connections:
            connection.send(poll)
        began = time.monotonic()
        for number in range(20):
            bystander.call("SendMessage", {"QueueUrl": other, "MessageBody": str(number)})
        assert time.monotonic() - began < 10.0
    finally:
        for connection in connections:
            connection.socket.close()
    # Those who have left take nothing with them.
    sent = bystander.call("SendMessage", {"QueueUrl": url, "MessageBody": "for who is there"})

    def got() -> bool:
        found = bystander.call("ReceiveMessage", {"QueueUrl": url}).get("Messages", [])
        return [message["MessageId"] for message in found] == [sent["MessageId"]]

    eventually(got, seconds=5, what="the message is there for the next")


# ── S12: the listeners themselves ────────────────────────────────────────────────────────────
@asynccontextmanager
async def listening(listener: Listener, **more: Any) -> AsyncIterator[int]:
    bound = await listener.start("127.0.0.1", 0, **more)
    assert listener._server is not None
    for listening_socket in listener._server.sockets:  # inherited by what it accepts
        listening_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * KIB)
        listening_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * KIB)
    try:
        yield int(bound.rpartition(":")[2])
    finally:
        await listener.drain(seconds_max=0.1)


def http_listener(answer: Any, **config: Any) -> HttpListener:
    return HttpListener(
        answer,
        config=HttpConfig(**config),
        name="t",
        seed=bytes(10),
        guard=BrowserGuard(is_open=True),
    )


async def dial(port: int) -> socket.socket:
    """A client whose kernel keeps hardly anything for it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * KIB)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
    return client


# How large an answer is, what asks for it, and for how long a connection may be idle: beyond what
# asyncio buffers before it says that nobody reads, and below, where it never does.
UNREAD = {
    "large": (MIB, GET, 60.0),
    "small": (40 * KIB, GET, 0.5),
    "small-and-last": (40 * KIB, LAST, 60.0),
    "large-and-last": (MIB, LAST, 60.0),
}


async def test_an_answer_that_nobody_reads_ends_the_connection() -> None:
    async def one(attack: str) -> None:
        size, request, idle = UNREAD[attack]

        async def answer(_request: HttpRequest) -> HttpReply:
            return HttpReply(200, bytes(size))

        listener = http_listener(answer, write_stall_seconds_max=0.5, idle_seconds_max=idle)
        async with listening(listener) as port:
            await is_ended(listener, port, request, attack)

    await asyncio.gather(*map(one, UNREAD))


async def is_ended(listener: Listener, port: int, start: bytes, attack: str) -> None:
    """A client that says this and then nothing, and reads nothing."""
    entered, opened = asyncio.Event(), listener.opened

    def enter(connection: Any, address: str = "") -> bool:
        entered.set()
        return opened(connection, address)

    listener.opened = enter  # type: ignore[method-assign]
    client = await dial(port)
    try:
        await asyncio.get_running_loop().sock_sendall(client, start)
        async with asyncio.timeout(10):
            await entered.wait()
        try:
            async with asyncio.timeout(20):  # less than what is not set here
                while listener.connections:
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pytest.fail(f"{attack}: the connection is still there")
    finally:
        client.close()


async def test_who_reads_no_answers_gets_no_more_of_them() -> None:
    asked = 0

    async def answer(_request: HttpRequest) -> HttpReply:
        nonlocal asked
        asked += 1
        return HttpReply(200, bytes(MIB))

    async with listening(http_listener(answer)) as port:
        client = await dial(port)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, GET * (PIPELINED_MAX - 1) + LAST)
        await asyncio.sleep(0.3)
        assert asked <= 2, f"{asked} MiB of answers that nobody reads"
        # And all of them once it reads.
        received = 0
        async with asyncio.timeout(60):
            while chunk := await loop.sock_recv(client, MIB):
                received += len(chunk)
        assert received > PIPELINED_MAX * MIB
        client.close()


async def test_requests_are_read_ahead_up_to_a_bound() -> None:
    parked = asyncio.Event()

    async def answer(_request: HttpRequest) -> HttpReply:
        await parked.wait()
        return HttpReply(200)

    body = bytes(MIB // 2)
    request = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with listening(http_listener(answer)) as port:
        client = await dial(port)
        sent = 0
        data = memoryview(request * 20)
        while data:
            try:
                async with asyncio.timeout(0.3):
                    await asyncio.get_running_loop().sock_sendall(client, data[: 64 * KIB])
            except TimeoutError:
                break
            sent += 64 * KIB
            data = data[64 * KIB :]
        assert sent < READ_AHEAD_BYTES_MAX + 3 * len(request), f"{sent / MIB:.1f} MiB read ahead"
        parked.set()
        client.close()


async def test_bodies_under_way_are_bounded_over_all_connections() -> None:
    async def answer(request: HttpRequest) -> HttpReply:
        return HttpReply(200, str(len(request.body)).encode())

    listener = http_listener(answer, bodies_bytes_max=2 * MIB)
    head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % MIB
    async with listening(listener) as port:
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for _, writer in pairs[:2]:
            writer.write(head + bytes(MIB - 1))
        async with asyncio.timeout(5):
            while listener.bodies.total < 2 * MIB - 2:
                await asyncio.sleep(0.01)
        third_reader, third = pairs[2]
        third.write(head + bytes(64 * KIB))
        assert (await asyncio.wait_for(third_reader.read(), 5)).startswith(b"HTTP/1.1 503")
        for reader, writer in pairs[:2]:
            writer.write(b"x")
            assert str(MIB).encode() in await asyncio.wait_for(reader.readuntil(b"048576"), 5)
        assert listener.bodies.total == 0
        for _, writer in pairs:
            writer.close()


async def test_one_address_has_a_share_of_the_bodies_under_way() -> None:
    async def answer(request: HttpRequest) -> HttpReply:
        return HttpReply(200, str(len(request.body)).encode())

    listener = http_listener(answer, bodies_bytes_max=8 * MIB, bodies_per_address_percent=25)
    head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % MIB
    async with listening(listener) as port:
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for _, writer in pairs[:2]:
            writer.write(head + bytes(MIB - 1))
        async with asyncio.timeout(5):
            while listener.bodies.total < 2 * MIB - 2:
                await asyncio.sleep(0.01)
        pairs[2][1].write(head + bytes(64 * KIB))
        refusal = await asyncio.wait_for(pairs[2][0].read(), 5)
        assert refusal.startswith(b"HTTP/1.1 503")
        assert b"of 2,097,152 bytes" in refusal
        other, writer = await asyncio.open_connection(
            "127.0.0.1", port, local_addr=("127.0.0.2", 0)
        )
        pairs.append((other, writer))
        writer.write(head + bytes(MIB - 1))
        async with asyncio.timeout(5):
            while listener.bodies.total < 3 * MIB - 3:
                await asyncio.sleep(0.01)
        writer.write(b"x")
        assert str(MIB).encode() in await asyncio.wait_for(other.readuntil(b"048576"), 5)
        for _, writer in pairs:
            writer.close()


async def test_a_handshake_that_does_not_go_on_ends(certificates: Path) -> None:
    async def answer(_request: HttpRequest) -> HttpReply:
        return HttpReply(200)

    files = TlsFiles(certificates / "penstock.pem", certificates / "penstock-key.pem")
    context = Certificates(files).context
    hello = hello_of(ssl.create_default_context(cafile=str(certificates / "ca.pem")))
    listener = http_listener(answer)
    async with listening(listener, tls=context, handshake_seconds_max=0.5) as port:
        for start in (b"", hello[:20], hello):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(start)
            began = time.monotonic()
            await asyncio.wait_for(reader.read(), 15)
            assert time.monotonic() - began < 4.5  # 5 s unless it is set
            writer.close()


def hello_of(context: ssl.SSLContext) -> bytes:
    """What a client says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


async def no_answer(_connection: KafkaConnection, frame: Buffer) -> list[Buffer]:
    return [bytes(frame)]


async def large_answer(_connection: KafkaConnection, _frame: Buffer) -> list[Buffer]:
    return [bytes(MIB)]


FRAME = b"\0\0\0\2hi"
KAFKA: dict[str, tuple[Any, dict[str, Any], bytes]] = {
    "half-a-length": (no_answer, {"frame_seconds_max": 0.5}, b"\0\0"),
    "half-a-frame": (no_answer, {"frame_seconds_max": 0.5}, b"\0\0\1\0abc"),
    "idle": (no_answer, {"idle_seconds_max": 0.5}, FRAME),
    "unread": (large_answer, {"write_stall_seconds_max": 0.5}, FRAME * 5),
    "never-logged-in": (
        no_answer,
        {"login_frame_bytes_max": 65_536, "login_seconds_max": 0.5},
        b"",
    ),
    "never-logged-in-but-busy": (
        no_answer,
        {"login_frame_bytes_max": 65_536, "login_seconds_max": 0.5},
        FRAME * 3,
    ),
}


async def test_a_slow_kafka_client_ends_at_its_deadline() -> None:
    async def one(attack: str) -> None:
        answer, config, start = KAFKA[attack]
        listener = KafkaListener(answer, config=KafkaConfig(**config))
        async with listening(listener) as port:
            await is_ended(listener, port, start, attack)

    await asyncio.gather(*map(one, KAFKA))


# ── S13: how many ────────────────────────────────────────────────────────────────────────────
async def fine(_request: HttpRequest) -> HttpReply:
    return HttpReply(200)


CAPS: dict[str, Callable[[], Listener]] = {
    "http-in-all": lambda: http_listener(fine, connections_max=5),
    "http-of-one-address": lambda: http_listener(fine, connections_per_address_max=5),
    "kafka-in-all": lambda: KafkaListener(no_answer, config=KafkaConfig(connections_max=5)),
    "kafka-of-one-address": lambda: KafkaListener(
        no_answer, config=KafkaConfig(connections_per_address_max=5)
    ),
}


@pytest.mark.parametrize("cap", CAPS)
async def test_connections_beyond_a_cap_are_refused_and_come_back_when_others_go(cap: str) -> None:
    listener = CAPS[cap]()
    question, reply = (GET, b"HTTP/1.1 200") if cap.startswith("http") else (FRAME, FRAME)
    async with listening(listener) as port:
        kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        for reader, writer in kept:
            writer.write(question)
            assert (await reader.readexactly(len(reply))) == reply
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            refusal = await asyncio.wait_for(read_all(reader), 15)
            assert refusal == b"" or refusal.startswith(b"HTTP/1.1 503")
            writer.close()
        assert len(listener.connections) == 5
        kept[0][1].close()
        async with asyncio.timeout(15):
            while len(listener.connections) > 4:
                await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(question)
        assert (await reader.readexactly(len(reply))) == reply
        for _, one in [*kept, (reader, writer)]:
            one.close()


async def read_all(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


def test_addresses_of_one_network_count_as_one() -> None:
    assert source_of("2001:db8::1") == source_of("2001:db8::ffff:1") != source_of("2001:db9::1")
    assert source_of("::ffff:10.0.0.1") == source_of("10.0.0.1") == "10.0.0.1"
