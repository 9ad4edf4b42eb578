"""The Kafka listener over real sockets: frames in, frames out, in order and within bounds."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from penstock.net.kafka.listener import (
    COPIED_BYTES_MAX,
    IN_PROGRESS_MAX,
    Buffer,
    Handle,
    HangUp,
    KafkaConfig,
    KafkaConnection,
    KafkaListener,
)


async def echo(_connection: KafkaConnection, frame: Buffer) -> Sequence[Buffer]:
    return [b"<", bytes(frame), b">"]


def is_produce(frame: Buffer) -> bool:
    """In these tests: what begins with a P."""
    return frame[:1] == b"P"


@asynccontextmanager
async def listening(
    handler: Handle = echo, config: KafkaConfig | None = None
) -> AsyncIterator[tuple[KafkaListener, int]]:
    listener = KafkaListener(handler, config=config or KafkaConfig(), outlives=is_produce)
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

    async def slow_first(_connection: KafkaConnection, body: Buffer) -> Sequence[bytes]:
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
    async def handler(_connection: KafkaConnection, body: Buffer) -> Sequence[bytes] | None:
        if body == b"hang up":
            raise HangUp("asked to")
        return None if body == b"silent" else [bytes(body)]

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

    async def park(_connection: KafkaConnection, _body: Buffer) -> Sequence[bytes] | None:
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

    async def wait(_connection: KafkaConnection, _body: Buffer) -> Sequence[bytes]:
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


# ── Several of a producer's requests under way ───────────────────────────────────────────────


class Appends:
    """A handler that writes what a producer sends at once, or when told, and answers when the
    commit of that frame is let through."""

    def __init__(self, *, opens_first: bool = False) -> None:
        self.begun: list[bytes] = []
        self.written: list[bytes] = []
        self.is_open = asyncio.Event()
        if not opens_first:
            self.is_open.set()
        self.commits: dict[bytes, asyncio.Event] = {}

    async def answer(self, connection: KafkaConnection, frame: Buffer) -> Sequence[Buffer]:
        name = bytes(frame[:3])
        self.begun.append(name)
        if is_produce(frame):
            if not self.is_open.is_set():
                await self.is_open.wait()
            self.written.append(bytes(frame))
            connection.written()
            await self.commit(name).wait()
        return [name]

    def commit(self, name: bytes) -> asyncio.Event:
        return self.commits.setdefault(name, asyncio.Event())

    async def until_begun(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.begun) < count:
                await asyncio.sleep(0.001)


async def test_a_producers_requests_are_under_way_together_and_answered_in_order() -> None:
    appends = Appends()
    async with listening(appends.answer) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        bodies = [b"P%02d" % n + b"x" * 40_000 for n in range(5)]
        writer.write(b"".join(map(frame, bodies)))
        await appends.until_begun(5)
        assert appends.written == bodies
        for name in (b"P01", b"P03", b"P04"):
            appends.commit(name).set()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(1), 0.05)
        appends.commit(b"P00").set()
        assert [await read_frame(reader) for _ in range(2)] == [b"P00", b"P01"]
        appends.commit(b"P02").set()
        assert [await read_frame(reader) for _ in range(3)] == [b"P02", b"P03", b"P04"]
        writer.close()


async def test_other_requests_wait_for_all_before_them_and_hold_back_all_behind() -> None:
    appends = Appends()
    async with listening(appends.answer) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for name in (b"P00", b"P01", b"M02", b"P03"):
            writer.write(frame(name))
        await appends.until_begun(2)
        appends.commit(b"P00").set()
        assert await read_frame(reader) == b"P00"
        assert appends.begun == [b"P00", b"P01"]
        appends.commit(b"P01").set()
        appends.commit(b"P03").set()
        assert [await read_frame(reader) for _ in range(3)] == [b"P01", b"M02", b"P03"]
        assert appends.begun == [b"P00", b"P01", b"M02", b"P03"]
        writer.close()


@pytest.mark.parametrize("size", [3, COPIED_BYTES_MAX + 1, 300_000])
async def test_one_that_cannot_write_yet_is_not_overtaken_nor_its_frame_overwritten(
    size: int,
) -> None:
    appends = Appends(opens_first=True)
    async with listening(appends.answer) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", port)
        bodies = [b"P%02d" % n + bytes([n + 1]) * size for n in range(4)]
        writer.write(b"".join(map(frame, bodies)))
        await appends.until_begun(1)
        other_writer.write(frame(b"M" + b"z" * 500_000))
        assert await read_frame(other_reader) == b"Mzz"
        assert appends.begun[0] == b"P00"
        assert appends.written == []
        for n in range(4):
            appends.commit(b"P%02d" % n).set()
        appends.is_open.set()
        assert [await read_frame(reader) for _ in range(4)] == [b"P%02d" % n for n in range(4)]
        assert appends.written == bodies
        writer.close()
        other_writer.close()


async def test_no_more_than_so_many_are_under_way() -> None:
    appends = Appends()
    async with listening(appends.answer) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        names = [b"P%02d" % n for n in range(2 * IN_PROGRESS_MAX)]
        writer.write(b"".join(map(frame, names)))
        await appends.until_begun(IN_PROGRESS_MAX)
        await asyncio.sleep(0.02)
        assert appends.begun == names[:IN_PROGRESS_MAX]
        for name in names:
            appends.commit(name).set()
        assert [await read_frame(reader) for _ in names] == names
        writer.close()


async def test_a_producer_that_is_held_back_fills_no_memory() -> None:
    appends = Appends()
    async with listening(appends.answer) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        names = [b"P%02d" % n for n in range(60)]
        sending = asyncio.create_task(_send_all(writer, [n + b"x" * 1_000_000 for n in names]))
        await appends.until_begun(IN_PROGRESS_MAX)
        await asyncio.sleep(0.1)
        assert not sending.done(), "sixty megabytes were taken although nothing is committed"
        for name in names:
            appends.commit(name).set()
        assert [await read_frame(reader) for _ in names] == names
        await asyncio.wait_for(sending, 5)
        writer.close()


async def _send_all(writer: asyncio.StreamWriter, bodies: Sequence[bytes]) -> None:
    for body in bodies:
        writer.write(frame(body))
        await writer.drain()


async def test_a_hang_up_comes_behind_the_answers_before_it() -> None:
    async def handler(connection: KafkaConnection, body: Buffer) -> Sequence[Buffer]:
        if body == b"Pbad":
            raise HangUp("asked to")
        connection.written()
        return [bytes(body)]

    async with listening(handler) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(b"Pone") + frame(b"Ptwo") + frame(b"Pbad") + frame(b"Pthree"))
        assert await read_frame(reader) == b"Pone"
        assert await read_frame(reader) == b"Ptwo"
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asyncio.wait_for(reader.readexactly(1), 5)
        writer.close()


async def test_what_a_producer_sent_is_written_although_it_has_left() -> None:
    appends = Appends(opens_first=True)
    async with listening(appends.answer) as (listener, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        names = [b"P00", b"M01", b"P02", b"P03"]
        writer.write(b"".join(map(frame, names)))
        await appends.until_begun(1)
        writer.transport.abort()
        async with asyncio.timeout(5):
            while listener.connections:
                await asyncio.sleep(0.001)
        for name in names:
            appends.commit(name).set()
        appends.is_open.set()
        await appends.until_begun(3)
        assert appends.written == [b"P00", b"P02", b"P03"]


async def test_draining_waits_for_all_that_is_under_way() -> None:
    appends = Appends()
    async with listening(appends.answer) as (listener, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(b"P00") + frame(b"P01"))
        await appends.until_begun(2)
        drain = asyncio.create_task(listener.drain(seconds_max=5))
        await asyncio.sleep(0)
        appends.commit(b"P01").set()
        appends.commit(b"P00").set()
        assert [await read_frame(reader) for _ in range(2)] == [b"P00", b"P01"]
        await asyncio.wait_for(drain, 5)
        writer.close()
