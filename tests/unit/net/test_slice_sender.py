"""Answers with pieces of files in them, over real sockets: every byte in its place, whatever the
reader's pace, and no harm to anybody when a client or a file goes away."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.unit.net.test_kafka import frame, listening, read_frame

from penstock.log.storage.files import DISK, SharedFile
from penstock.model.file_slice import FileSlice, Piece
from penstock.net.kafka.listener import Buffer, Handle, KafkaConfig, KafkaConnection

SIZE = 12 * 1_048_576  # more than one turn, and than any socket holds
SMALL_BUFFER = 4_096


class Shelf:
    """A file, and an answer that is made of it: what was asked, slices, and words between them."""

    def __init__(self, path: Path) -> None:
        self.data = os.urandom(1_048_576) * (SIZE // 1_048_576)
        path.write_bytes(self.data)
        self.path = path
        self.answered = asyncio.Event()

    def pieces(self, text: bytes) -> list[Piece]:
        file = SharedFile(DISK.open(self.path), DISK)
        half = SIZE // 2 + 11
        return [
            text,
            FileSlice(file, 0, half),
            *[b"word"] * 100,
            memoryview(b"<view>")[1:5],
            FileSlice(file, half, SIZE - half),
            b"end",
        ]

    def expected(self, text: bytes) -> bytes:
        half = SIZE // 2 + 11
        return text + self.data[:half] + b"word" * 100 + b"view" + self.data[half:] + b"end"

    async def answer(self, _connection: KafkaConnection, asked: Buffer) -> list[Piece]:
        self.answered.set()
        text = bytes(asked)
        return self.pieces(text) if text.startswith(b"file") else [b"plain " + text]


@asynccontextmanager
async def serving(shelf: Shelf, answer: Handle | None = None) -> AsyncIterator[int]:
    config = KafkaConfig(write_stall_seconds_max=5.0)
    async with listening(answer or shelf.answer, config) as (_, port):
        yield port


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "file")


async def test_slices_and_buffers_arrive_in_their_order(shelf: Shelf) -> None:
    async with serving(shelf) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=SIZE)
        for text in (b"file 1", b"x", b"file 2", b"y"):
            writer.write(frame(text))
        assert await read_frame(reader) == shelf.expected(b"file 1")
        assert await read_frame(reader) == b"plain x"
        assert await read_frame(reader) == shelf.expected(b"file 2")
        assert await read_frame(reader) == b"plain y"
        writer.close()


async def test_a_slow_reader_gets_it_all_and_holds_up_nobody(shelf: Shelf) -> None:
    loop = asyncio.get_running_loop()
    async with serving(shelf) as port:
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
            slow.setblocking(False)
            await loop.sock_connect(slow, ("127.0.0.1", port))
            await loop.sock_sendall(slow, frame(b"file") + frame(b"after"))
            await shelf.answered.wait()
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=SIZE)
            writer.write(frame(b"quick"))
            assert await read_frame(reader) == b"plain quick"
            writer.close()
            got = bytearray()
            wanted = frame(shelf.expected(b"file")) + frame(b"plain after")
            while len(got) < len(wanted):
                part = await asyncio.wait_for(loop.sock_recv(slow, 65_536), 5)
                assert part, "the connection was closed early"
                got += part
            assert got == wanted


async def test_a_client_that_leaves_in_the_middle_harms_nobody(shelf: Shelf) -> None:
    async with serving(shelf) as port:
        for _ in range(3):
            leaving, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(frame(b"file"))
            await asyncio.wait_for(leaving.readexactly(1_000), 5)
            writer.transport.abort()
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=SIZE)
        writer.write(frame(b"file"))
        assert await read_frame(reader) == shelf.expected(b"file")
        writer.close()


async def test_a_file_that_was_cut_ends_the_connection_instead_of_lying(shelf: Shelf) -> None:
    async with serving(shelf) as port:
        os.truncate(shelf.path, SIZE - 1_000)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=SIZE)
        writer.write(frame(b"file"))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await read_frame(reader)
        writer.close()


async def test_an_answer_under_way_is_finished_before_the_listener_ends(shelf: Shelf) -> None:
    async def last(connection: KafkaConnection, asked: Buffer) -> list[Piece]:
        connection.close_after_reply()
        return await shelf.answer(connection, asked)

    async with serving(shelf, last) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=SIZE)
        writer.write(frame(b"file"))
        assert await read_frame(reader) == shelf.expected(b"file")
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


async def test_the_file_is_closed_once_it_is_sent(shelf: Shelf) -> None:
    async with serving(shelf) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=SIZE)
        writer.write(frame(b"file"))
        await read_frame(reader)
        writer.write(frame(b"x"))  # answered behind it
        await read_frame(reader)
        held = [
            name
            for fd in os.listdir("/proc/self/fd")
            if (name := _target(fd)) == os.fspath(shelf.path)
        ]
        assert held == []
        writer.close()


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""
