"""The listener over real sockets: what it answers, what it refuses, and that others go on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.net.http.browsers import BrowserGuard
from penstock.net.http.exchange import HttpReply, HttpRequest
from penstock.net.http.listener import HttpConfig, HttpListener

Handler = Callable[[HttpRequest], Coroutine[Any, Any, HttpReply]]


async def echo(request: HttpRequest) -> HttpReply:
    text = f"{request.method} {request.path} {request.query} {request.body.decode()}"
    return HttpReply(200, text.encode(), "text/plain")


@asynccontextmanager
async def listening(
    handler: Handler = echo, config: HttpConfig | None = None
) -> AsyncIterator[tuple[HttpListener, int]]:
    listener = HttpListener(
        handler,
        config=config or HttpConfig(),
        name="test",
        seed=bytes(10),
        guard=BrowserGuard(is_open=True),
    )
    bound = await listener.start("127.0.0.1", 0)
    try:
        yield listener, int(bound.rpartition(":")[2])
    finally:
        await listener.drain(seconds_max=1.0)


async def exchange(port: int, data: bytes) -> bytes:
    """Send bytes and read until the server closes or has answered without closing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(), 5)
    finally:
        writer.close()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


CLOSE = b"Connection: close\r\n"
POST = b"POST /a?b=c HTTP/1.1\r\nHost: h\r\n" + CLOSE


async def test_a_request_reaches_the_handler_whole_and_its_reply_comes_back() -> None:
    async with listening() as (_, port):
        answer = await exchange(port, POST + b"Content-Length: 5\r\n\r\nhello")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert status_of(answer) == 200
    assert body == b"POST /a b=c hello"
    assert b"Content-Length: 17" in head
    assert b"Date: " in head


async def test_a_body_in_chunks_and_in_many_reads_is_put_together() -> None:
    async with listening() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for part in (
            POST,
            b"Transfer-Encoding: chunked\r\n",
            b"\r\n5\r\nhel",
            b"lo\r\n",
            b"0\r\n\r\n",
        ):
            writer.write(part)
            await writer.drain()
        answer = await reader.read()
        writer.close()
    assert answer.endswith(b"hello")


async def test_a_header_that_comes_twice_is_joined_as_signatures_cover_it() -> None:
    async def note(request: HttpRequest) -> HttpReply:
        return HttpReply(200, request.headers["x-note"].encode())

    async with listening(note) as (_, port):
        answer = await exchange(port, POST + b"X-Note: a  b \r\nx-note:\t c,d\r\n\r\n")
    assert answer.endswith(b"\r\n\r\na  b,c,d")


@pytest.mark.parametrize(
    "name", [b"Authorization", b"X-Amz-Date", b"Date", b"X-Amz-Target", b"X-Amz-Content-Sha256"]
)
async def test_a_header_that_decides_who_asks_may_not_come_twice(name: bytes) -> None:
    line = name + b": x\r\n"
    async with listening() as (_, port):
        assert status_of(await exchange(port, POST + line + line.lower() + b"\r\n")) == 400


async def test_pipelined_requests_are_answered_in_order() -> None:
    release = asyncio.Event()

    async def slow_first(request: HttpRequest) -> HttpReply:
        if request.path == "/0":
            await release.wait()
        return HttpReply(200, request.path.encode(), "text/plain")

    async with listening(slow_first) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        count = 100  # more than are read ahead
        for n in range(count):
            close = CLOSE if n == count - 1 else b""
            writer.write(b"GET /%d HTTP/1.1\r\nHost: h\r\n%b\r\n" % (n, close))
        release.set()
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
    bodies = [part.split(b"HTTP/1.1")[0] for part in answer.split(b"\r\n\r\n")[1:]]
    assert bodies == [b"/%d" % n for n in range(count)]


async def test_a_client_that_leaves_cancels_its_request() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def park(_request: HttpRequest) -> HttpReply:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError

    async with listening(park) as (_, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        await asyncio.wait_for(started.wait(), 5)
        writer.transport.abort()
        await asyncio.wait_for(cancelled.wait(), 5)


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 1\r\nContent-Length: 2\r\n",
        b"Content-Length: +3\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 1_0\r\n",
        b"Content-Length: 0x3\r\n",
        b"Host: other\r\n",
        b"X: a\r\n folded\r\n",
        b"X: a\x00b\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"No colon here\r\n",
    ],
    ids=lambda head: head.decode("latin-1").strip(),
)
async def test_ambiguous_requests_are_refused_and_nothing_behind_them_runs(head: bytes) -> None:
    seen: list[str] = []

    async def note(request: HttpRequest) -> HttpReply:
        seen.append(request.path)
        return HttpReply(200)

    async with listening(note) as (_, port):
        data = b"POST /first HTTP/1.1\r\nHost: h\r\n" + head + b"\r\n" + SMUGGLED
        answer = await exchange(port, data)
    assert status_of(answer) == 400
    assert b"Connection: close" in answer
    assert "/smuggled" not in seen
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("size", [b"0x1", b"-1", b"ffffffffffffffffff", b"zz"])
async def test_malformed_chunk_sizes_are_refused(size: bytes) -> None:
    async with listening() as (_, port):
        data = POST + b"Transfer-Encoding: chunked\r\n\r\n" + size + b"\r\na\r\n0\r\n\r\n"
        assert status_of(await exchange(port, data)) == 400


async def test_a_missing_host_is_refused_in_http_1_1_and_accepted_in_1_0() -> None:
    async with listening() as (_, port):
        assert status_of(await exchange(port, b"GET / HTTP/1.1\r\n\r\n")) == 400
        assert status_of(await exchange(port, b"GET / HTTP/1.0\r\n\r\n")) == 200


async def test_a_header_beyond_its_bound_is_refused_at_once_or_in_drips() -> None:
    config = HttpConfig(header_bytes_max=1_000)
    async with listening(config=config) as (_, port):
        whole = b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 2_000 + b"\r\n\r\n"
        assert status_of(await exchange(port, whole)) == 431
        many = b"GET / HTTP/1.1\r\nHost: h\r\n" + b"X: a\r\n" * 400
        assert status_of(await exchange(port, many)) == 431
        endless = b"GET /" + b"a" * 5_000
        assert status_of(await exchange(port, endless)) == 431


@pytest.mark.parametrize("piece_bytes", [1, 7, 90, 400, 999, 1_000, 5_000])
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
async def test_the_bound_of_a_header_holds_however_it_is_cut(
    piece_bytes: int, is_first: bool
) -> None:
    def head_of(size: int, more: bytes = b"") -> bytes:
        return b"GET / HTTP/1.1\r\nHost: h\r\n" + more + b"Xx: abcde\r\n" * size + b"\r\n"

    chunked = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
    cases = {
        head_of(80, CLOSE): 200,  # 11 bytes each, and the first two lines
        head_of(200): 431,
        chunked + b"Xx: abcde\r\n" * 200 + b"\r\n": 431,
    }
    for data, status in cases.items():
        async with listening(config=HttpConfig(header_bytes_max=1_000)) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                if not is_first:
                    writer.write(head_of(10))
                    await reader.readuntil(b"GET / ")  # the body
                for at in range(0, len(data), piece_bytes):
                    writer.write(data[at : at + piece_bytes])
                    await asyncio.sleep(0)  # the server reads piece by piece
                answer = await asyncio.wait_for(reader.read(), 10)
            finally:
                writer.close()
        assert status_of(answer[answer.index(b"HTTP/1.1 ") :]) == status, (data[:60], answer)


async def test_a_body_beyond_its_bound_is_refused_by_length_and_by_chunks() -> None:
    async with listening(config=HttpConfig(request_bytes_max=1_000)) as (_, port):
        declared = POST + b"Content-Length: 1001\r\n\r\n"
        assert status_of(await exchange(port, declared)) == 413
        chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"400\r\n" + b"a" * 1_024 + b"\r\n"
        assert status_of(await exchange(port, chunked)) == 413
        huge = POST + b"Content-Length: 99999999999999999999999\r\n\r\n"
        assert status_of(await exchange(port, huge)) in (400, 413)


async def test_a_large_body_behind_a_small_head_is_not_mistaken_for_a_header() -> None:
    async with listening(config=HttpConfig(header_bytes_max=500)) as (_, port):
        body = b"a" * 100_000
        answer = await exchange(port, POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert status_of(answer) == 200


async def test_slow_headers_and_slow_bodies_end_at_their_deadline() -> None:
    config = HttpConfig(header_seconds_max=0.3, body_seconds_max=0.3)
    async with listening(config=config) as (_, port):
        assert status_of(await exchange(port, b"GET / HTTP/1.1\r\nHost:")) == 408
        assert status_of(await exchange(port, POST + b"Content-Length: 9\r\n\r\nab")) == 408


async def test_idle_connections_are_closed_and_an_answering_one_is_not() -> None:
    async def late(_request: HttpRequest) -> HttpReply:
        await asyncio.sleep(1.2)
        return HttpReply(200, b"late")

    async with listening(late, HttpConfig(idle_seconds_max=0.3)) as (_, port):
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", port)
        answer = await exchange(port, b"GET / HTTP/1.1\r\nHost: h\r\n" + CLOSE + b"\r\n")
        assert answer.endswith(b"late")
        assert await asyncio.wait_for(idle_reader.read(), 5) == b""
        idle_writer.close()


async def test_connections_beyond_the_limit_get_503_and_the_others_go_on() -> None:
    async with listening(config=HttpConfig(connections_max=1)) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /one HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await reader.readuntil(b"GET /one")).startswith(b"HTTP/1.1 200")
        assert status_of(await exchange(port, b"")) == 503
        writer.write(b"GET /two HTTP/1.1\r\nHost: h\r\n\r\n")
        assert b"200" in await reader.readuntil(b"GET /two")
        writer.close()


async def test_expect_continue_is_granted() -> None:
    async with listening() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(POST + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        writer.write(b"ok")
        assert (await reader.read()).endswith(b"ok")
        writer.close()


async def test_an_offer_to_upgrade_is_ignored_and_the_request_answered() -> None:
    async with listening() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"GET /%s HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
        writer.write(head % b"one")
        await reader.readuntil(b"GET /one")
        writer.write(head % b"two")
        await reader.readuntil(b"GET /two")
        writer.close()


async def test_a_failing_handler_is_answered_with_500_and_reported() -> None:
    reported: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: reported.append(context["message"]))

    async def fail(_request: HttpRequest) -> HttpReply:
        raise RuntimeError("secret detail")

    async with listening(fail) as (_, port):
        answer = await exchange(port, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert status_of(answer) == 500
    assert b"secret" not in answer
    assert reported == ["a request handler failed"]


async def test_draining_closes_idle_connections_and_lets_a_request_finish() -> None:
    release, started = asyncio.Event(), asyncio.Event()

    async def wait(_request: HttpRequest) -> HttpReply:
        started.set()
        await release.wait()
        return HttpReply(200, b"finished")

    async with listening(wait) as (listener, port):
        idle, idle_writer = await asyncio.open_connection("127.0.0.1", port)
        busy, busy_writer = await asyncio.open_connection("127.0.0.1", port)
        busy_writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        await started.wait()
        drain = asyncio.create_task(listener.drain(seconds_max=5))
        assert await asyncio.wait_for(idle.read(), 5) == b""
        release.set()
        answer = await asyncio.wait_for(busy.read(), 5)
        await asyncio.wait_for(drain, 5)
        assert answer.endswith(b"finished")
        assert b"Connection: close" in answer
        idle_writer.close()
        busy_writer.close()


async def test_request_ids_are_distinct_and_uuid_shaped() -> None:
    ids: list[str] = []

    async def note(request: HttpRequest) -> HttpReply:
        ids.append(request.request_id)
        return HttpReply(200)

    async with listening(note) as (_, port):
        for _ in range(3):
            await exchange(port, b"GET / HTTP/1.1\r\nHost: h\r\n" + CLOSE + b"\r\n")
    assert len(set(ids)) == 3
    assert all(len(text) == 36 and text.count("-") == 4 for text in ids)
