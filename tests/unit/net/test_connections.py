"""How many connections a listener bears from one address, and who is told of their end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from penstock.net.http.browsers import BrowserGuard
from penstock.net.http.exchange import HttpReply, HttpRequest
from penstock.net.http.listener import HttpConfig, HttpListener
from penstock.net.kafka.listener import KafkaConfig, KafkaListener
from penstock.net.listener import Listener

ASK = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def serving(listener: Listener) -> AsyncIterator[Callable[[], "asyncio.Future[Pair]"]]:
    bound = await listener.start("127.0.0.1", 0)
    port = int(bound.rpartition(":")[2])
    opened: list[asyncio.StreamWriter] = []

    async def connect() -> Pair:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        opened.append(writer)
        return reader, writer

    try:
        yield lambda: asyncio.ensure_future(connect())
    finally:
        for writer in opened:
            writer.close()
        await asyncio.gather(*(w.wait_closed() for w in opened), return_exceptions=True)
        await listener.drain(seconds_max=1.0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


async def ok(_request: HttpRequest) -> HttpReply:
    return HttpReply(200, b"ok", "text/plain")


def http(answer: Callable[..., object] = ok, **config: int) -> HttpListener:
    return HttpListener(
        answer,  # type: ignore[arg-type]
        config=HttpConfig(**config),
        name="test",
        seed=bytes(10),
        guard=BrowserGuard(is_open=True),
    )


async def ask(pair: Pair) -> bytes:
    reader, writer = pair
    writer.write(ASK)
    return await asyncio.wait_for(reader.read(4_096), 5)


async def test_one_address_has_so_many_connections_and_gets_another_when_one_ends() -> None:
    listener = http(connections_per_address_max=2)
    async with serving(listener) as connect:
        first, second = await connect(), await connect()
        assert (await ask(first)).startswith(b"HTTP/1.1 200")
        assert (await ask(second)).startswith(b"HTTP/1.1 200")
        refused, _ = await connect()
        assert (await asyncio.wait_for(refused.read(), 5)).startswith(b"HTTP/1.1 503")
        assert (await ask(first)).startswith(b"HTTP/1.1 200"), "the others go on"
        second[1].close()
        await until(lambda: len(listener.connections) == 1)
        assert (await ask(await connect())).startswith(b"HTTP/1.1 200")
    await until(lambda: not listener.connections)
    assert not listener._per_address, "an address without connections is forgotten"


async def test_a_kafka_listener_has_the_same_limit_and_hangs_up() -> None:
    async def answer(_connection: object, _frame: object) -> None:
        return None

    listener = KafkaListener(answer, config=KafkaConfig(connections_per_address_max=1))
    async with serving(listener) as connect:
        await connect()
        await until(lambda: len(listener.connections) == 1)
        reader, _ = await connect()
        assert await asyncio.wait_for(_until_closed(reader), 5)


async def test_limits_of_a_kafka_listener_change_while_it_serves() -> None:
    async def answer(_connection: object, _frame: object) -> None:
        return None

    listener = KafkaListener(answer, config=KafkaConfig(connections_max=3))

    async def is_accepted() -> bool:
        count = len(listener.connections)
        reader, _ = await connect()
        closed = asyncio.ensure_future(_until_closed(reader))
        await until(lambda: closed.done() or len(listener.connections) > count)
        return not closed.done()

    def limit(connections_max: int = 100, per_ip: int = 100, own: int | None = None) -> None:
        by_address = {} if own is None else {"::ffff:127.0.0.1": own}
        listener.limit(
            connections_max=connections_max, per_address_max=per_ip, addresses=by_address
        )

    async with serving(listener) as connect:
        assert await is_accepted()
        limit(connections_max=1)
        assert not await is_accepted()
        limit(per_ip=1)
        assert not await is_accepted(), "those before the limit are counted"
        limit(per_ip=1, own=2)
        assert await is_accepted()
        assert not await is_accepted()
        limit(own=0)
        assert not await is_accepted()
        limit()
        listener.admits = lambda address: address != "127.0.0.1"
        assert not await is_accepted(), "too many a second"
        listener.admits = None
        assert await is_accepted()
        assert not await is_accepted(), "more than the listener was made for"
        assert len(listener.connections) == 3, "those that were open stay"


async def _until_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


async def test_whoever_answers_can_end_the_connection_behind_the_answer() -> None:
    async def last(request: HttpRequest) -> HttpReply:
        assert request.connection is not None
        request.connection.close_after_reply()
        return HttpReply(403, b"no", "text/plain")

    async with serving(http(last)) as connect:
        reader, writer = await connect()
        writer.write(ASK)
        reply = await asyncio.wait_for(reader.read(), 5)  # to the end of the connection
        assert reply.startswith(b"HTTP/1.1 403")
        assert b"Connection: close" in reply


async def test_the_end_of_a_connection_is_told_once_to_everybody_who_asked() -> None:
    told: list[str] = []

    async def listen(request: HttpRequest) -> HttpReply:
        assert request.connection is not None
        for name in "ab":
            request.connection.when_lost(lambda name=name: told.append(name))  # type: ignore[misc]
        return HttpReply(200)

    listener = http(listen)
    async with serving(listener) as connect:
        pair = await connect()
        await ask(pair)
        assert told == []
        pair[1].close()
        await until(lambda: not listener.connections)
        assert told == ["a", "b"]


async def test_a_request_that_outlives_its_client_is_carried_out_and_others_are_not() -> None:
    begun, gate = asyncio.Semaphore(0), asyncio.Event()
    ended: list[str] = []

    async def slow(request: HttpRequest) -> HttpReply:
        begun.release()
        try:
            await gate.wait()
        except asyncio.CancelledError:
            ended.append(f"{request.path} cancelled")
            raise
        ended.append(f"{request.path} done")
        return HttpReply(200)

    listener = http(slow)
    listener.outlives = lambda request: request.path == "/send"
    async with serving(listener) as connect:
        for path in ("/send", "/receive"):
            _, writer = await connect()
            writer.write(ASK.replace(b"/ ", path.encode() + b" ", 1))
            await begun.acquire()
            writer.transport.abort()
        await until(lambda: not listener.connections and len(ended) == 1)
        gate.set()
        await until(lambda: len(ended) == 2)
    assert ended == ["/receive cancelled", "/send done"]
