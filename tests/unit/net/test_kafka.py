"""The Kafka listener over real sockets: frames in, frames out, in order and within bounds."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from penstock.net.kafka import HangUp, KafkaConfig, KafkaConnection, KafkaListener

Handler = Callable[[KafkaConnection, bytes], Awaitable[Sequence[bytes | memoryview] | None]]


async def echo(_connection: KafkaConnection, frame: bytes) -> Sequence[bytes]:
    return [b"<", frame, b">"]


@asynccontextmanager
async def listening(
    handler: Handler = echo, config: KafkaConfig | None = None
) -> AsyncIterator[tuple[KafkaListener, int]]:
    listener = KafkaListener(handler, config=config or KafkaConfig())
    bound = await listener.start("127.0.0.1", 0)
    try:
        yield listener, int(bound.rpartition(":")[2])
    finally:
        await listener.drain(seconds_max=1.0)


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), 5), "big")
    return await asyncio.wait_for(reader.readexactly(size), 5)


async def test_frames_are_answered_in_order_however_they_are_cut() -> None:
    async with listening() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        stream = b"".join(frame(b"%d" % n * (n + 1)) for n in range(20))
        for at in range(0, len(stream), 7):
            writer.write(stream[at : at + 7])
            await writer.drain()
        for n in range(20):
            assert await read_frame(reader) == b"<" + b"%d" % n * (n + 1) + b">"
        writer.close()


async def test_a_frame_larger_than_the_read_ahead_arrives_behind_a_slow_request() -> None:
    release = asyncio.Event()

    async def slow_first(_connection: KafkaConnection, body: bytes) -> Sequence[bytes]:
        if body == b"first":
            await release.wait()
        return [str(len(body)).encode()]

    async with listening(slow_first) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(b"first") + frame(b"x" * 5_000_000))
        sending = asyncio.create_task(writer.drain())
        await asyncio.sleep(0.05)
        release.set()
        assert await read_frame(reader) == b"5"
        assert await read_frame(reader) == b"5000000"
        await sending
        writer.close()


@pytest.mark.parametrize(
    "head",
    [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x16\x03\x01\x02"],
    ids=["two gigabytes", "negative", "empty", "a TLS greeting"],
)
async def test_an_impossible_length_ends_the_connection_at_once(head: bytes) -> None:
    async with listening() as (_, port):
        good_reader, good_writer = await asyncio.open_connection("127.0.0.1", port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + b"garbage")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asyncio.wait_for(reader.readexactly(1), 5)
        good_writer.write(frame(b"still here"))
        assert await read_frame(good_reader) == b"<still here>"
        writer.close()
        good_writer.close()


async def test_no_answer_is_sent_when_there_is_none_and_a_hang_up_closes() -> None:
    async def handler(_connection: KafkaConnection, body: bytes) -> Sequence[bytes] | None:
        if body == b"hang up":
            raise HangUp("asked to")
        return None if body == b"silent" else [body]

    async with listening(handler) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(b"silent") + frame(b"loud"))
        assert await read_frame(reader) == b"loud"
        writer.write(frame(b"hang up"))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asyncio.wait_for(reader.readexactly(1), 5)
        writer.close()


async def test_a_client_that_leaves_cancels_its_request() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def park(_connection: KafkaConnection, _body: bytes) -> Sequence[bytes] | None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return None

    async with listening(park) as (_, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(b"x"))
        await asyncio.wait_for(started.wait(), 5)
        writer.transport.abort()
        await asyncio.wait_for(cancelled.wait(), 5)


async def test_a_frame_that_never_ends_and_an_idle_connection_are_closed() -> None:
    config = KafkaConfig(frame_seconds_max=0.3, idle_seconds_max=0.6)
    async with listening(config=config) as (_, port):
        slow_reader, slow_writer = await asyncio.open_connection("127.0.0.1", port)
        slow_writer.write(frame(b"whole") + b"\x00\x00\x00\x09half")
        assert await read_frame(slow_reader) == b"<whole>"
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", port)
        for reader in (slow_reader, idle_reader):
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await asyncio.wait_for(reader.readexactly(1), 5)
        slow_writer.close()
        idle_writer.close()


async def test_draining_lets_a_request_finish() -> None:
    release, started = asyncio.Event(), asyncio.Event()

    async def wait(_connection: KafkaConnection, _body: bytes) -> Sequence[bytes]:
        started.set()
        await release.wait()
        return [b"finished"]

    async with listening(wait) as (listener, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(b"x"))
        await started.wait()
        drain = asyncio.create_task(listener.drain(seconds_max=5))
        await asyncio.sleep(0)
        release.set()
        assert await read_frame(reader) == b"finished"
        await asyncio.wait_for(drain, 5)
        writer.close()
