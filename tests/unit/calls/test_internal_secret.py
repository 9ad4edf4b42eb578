"""Connections between processes that share a secret, over real sockets: both ends prove it, and
nobody who lacks it is answered, calls, or learns it."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest

from penstock.calls.internal.client import InternalClient
from penstock.calls.internal.connection import NodeEnd
from penstock.calls.internal.listener import InternalListener
from penstock.wire.internal.calls import PING, CallHandlers, Nothing
from penstock.wire.internal.faults import Unreachable, decode_failure
from penstock.wire.internal.frame import (
    HEADER_BYTES,
    NONCE_BYTES,
    Hello,
    Kind,
    Side,
    decode_hello,
    encode_hello,
    pack_header,
    prove,
    read_header,
)

SECRET, OTHER = b"s" * 32, b"o" * 32
ALLOWED_SECONDS = 5.0


@asynccontextmanager
async def listening(secret: bytes | None, *, node_id: str = "n1") -> AsyncIterator[int]:
    listener = InternalListener(CallHandlers(), NodeEnd(node_id, "c", secret=secret))
    _, _, port = (await listener.start("127.0.0.1", 0)).rpartition(":")
    try:
        yield int(port)
    finally:
        await listener.drain(seconds_max=0)


@asynccontextmanager
async def calling(port: int, secret: bytes | None) -> AsyncIterator[InternalClient]:
    client = InternalClient("127.0.0.1", port, NodeEnd("n2", "c", secret=secret))
    try:
        yield client
    finally:
        await client.close()


async def ping(port: int, secret: bytes | None) -> None:
    async with calling(port, secret) as client:
        assert await client.call(PING, Nothing(), timeout_ms=5_000) == Nothing()


class Raw:
    """A process that speaks the protocol by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def frame(self) -> bytes:
        """The next one without its length; empty when the connection has ended."""
        async with asyncio.timeout(ALLOWED_SECONDS):
            try:
                length = int.from_bytes(await self._reader.readexactly(4))
                return await self._reader.readexactly(length)
            except (asyncio.IncompleteReadError, ConnectionError):
                return b""

    async def hello(self) -> Hello:
        return decode_hello(await self.frame())

    async def refusal(self) -> str:
        frame = await self.frame()
        assert frame, "ended without a reason"
        assert read_header(frame).kind is Kind.ERROR
        assert await self.frame() == b"", "and the connection is closed"
        return str(decode_failure(frame[HEADER_BYTES:], more={}))


@asynccontextmanager
async def raw(port: int) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def greeting(**more: object) -> Hello:
    return msgspec.structs.replace(
        Hello(version_min=1, version_max=1, cluster_id="c", node_id="n2"), **more
    )


def fresh() -> Hello:
    return greeting(nonce=os.urandom(NONCE_BYTES))


async def test_two_that_know_the_secret_talk() -> None:
    async with listening(SECRET) as port:
        await ping(port, SECRET)


@pytest.mark.parametrize(
    ("theirs", "ours"), [(SECRET, None), (SECRET, OTHER), (None, SECRET)],
    ids=["a caller without it", "a caller with another", "an answerer without it"],
)  # fmt: skip
async def test_whoever_lacks_the_secret_is_refused(
    theirs: bytes | None, ours: bytes | None
) -> None:
    async with listening(theirs) as port:
        with pytest.raises(Unreachable, match="secret"):
            await ping(port, ours)
        await ping(port, theirs)  # the others are served as before


async def test_a_greeting_that_is_known_from_clusters_is_refused() -> None:
    async with listening(SECRET) as port, raw(port) as peer:
        peer.send(encode_hello(greeting()))
        assert "prove their shared secret" in await peer.refusal()


async def test_a_call_before_the_proof_is_not_carried_out() -> None:
    ping = pack_header(1, Kind.REQUEST, PING.number, 1, 1_000, payload_bytes=1) + b"\x80"
    async with listening(SECRET) as port, raw(port) as peer:
        peer.send(encode_hello(fresh()))
        assert (await peer.hello()).proof
        peer.send(ping)
        assert await peer.frame() == b"", "no answer: the connection has ended"


async def test_the_answerers_own_proof_is_no_proof_of_a_caller() -> None:
    async with listening(SECRET) as port, raw(port) as peer:
        own = fresh()
        peer.send(encode_hello(own))
        theirs = await peer.hello()
        peer.send(encode_hello(msgspec.structs.replace(own, proof=theirs.proof)))
        assert "did not prove" in await peer.refusal()


async def test_a_proof_counts_for_one_connection_and_one_name() -> None:
    async with listening(SECRET) as port:

        async def greet(shown: Hello | None = None, **more: object) -> tuple[str, Hello]:
            own = fresh() if shown is None else shown
            async with raw(port) as peer:
                peer.send(encode_hello(msgspec.structs.replace(own, proof=b"")))
                theirs = await peer.hello()
                if shown is None:
                    proof = prove(SECRET, Side.CALLER, caller=own, answerer=theirs, port=port)
                    own = msgspec.structs.replace(own, proof=proof)
                peer.send(encode_hello(msgspec.structs.replace(own, **more)))
                frame = await peer.frame()
                header = read_header(frame)
                if header.kind is Kind.HELLO:
                    return "", own
                return str(decode_failure(frame[HEADER_BYTES:], more={})), own

        accepted, used = await greet()
        assert accepted == ""
        again, _ = await greet(used)
        assert "did not prove" in again, "another connection has another nonce"
        renamed, _ = await greet(node_id="n3")
        assert "differs from its first" in renamed


async def test_a_process_that_took_a_port_cannot_pass_the_greeting_on() -> None:
    """It sits between a caller and another listener that knows the secret. Either end would take
    the other's proof for good if the port were not in it."""
    async with listening(SECRET) as port:

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)

            async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
                while data := await source.read(65_536):
                    target.write(data)
                target.close()

            await asyncio.gather(
                copy(reader, there_writer), copy(there_reader, writer), return_exceptions=True
            )

        thief = await asyncio.start_server(pass_on, "127.0.0.1", 0)
        async with thief:
            taken = thief.sockets[0].getsockname()[1]
            with pytest.raises(Unreachable, match="did not prove"):
                await ping(taken, SECRET)


async def test_a_process_that_took_a_port_learns_nothing_it_can_use() -> None:
    """It is sent a nonce and no proof, whatever it answers."""
    heard: list[Hello] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Raw(reader, writer)
        heard.append(await peer.hello())
        peer.send(encode_hello(greeting(node_id="n1", nonce=b"n" * 32, proof=b"p" * 32)))
        assert await peer.frame() == b""
        writer.close()

    thief = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with thief:
        taken = thief.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable, match="did not prove"):
            await ping(taken, SECRET)
    assert [(len(one.nonce), one.proof) for one in heard] == [(NONCE_BYTES, b"")]
    assert SECRET not in encode_hello(heard[0])


async def test_a_greeting_without_a_secret_is_the_one_of_clusters() -> None:
    """Nodes of an earlier version read it and are read: fields that they do not send are empty."""
    async with listening(None) as port, raw(port) as peer:
        said = msgspec.structs.asdict(greeting())
        old = {key: value for key, value in said.items() if key not in ("nonce", "proof")}
        payload = msgspec.msgpack.encode(old)
        peer.send(pack_header(0, Kind.HELLO, 0, 0, 0, payload_bytes=len(payload)) + payload)
        theirs = await peer.hello()
        assert (theirs.nonce, theirs.proof) == (b"", b"")
        assert theirs.node_id == "n1"
