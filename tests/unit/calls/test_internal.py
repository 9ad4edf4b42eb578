"""Calls between nodes over real sockets: any order, every bound, and what happens when one end goes
away in the middle."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.harness.server import stable_port

from penstock.calls.internal.client import FirstReachable, InternalClient
from penstock.calls.internal.connection import InternalConfig, NodeEnd
from penstock.calls.internal.listener import InternalListener
from penstock.model.errors import Draining, InvalidRequest, Throttled, TopicNotFound
from penstock.wire.internal.calls import Call, Caller, CallerInfo, CallHandlers, Q, R, encode
from penstock.wire.internal.faults import (
    DeadlineExceeded,
    Failure,
    OutcomeUnknown,
    PeerFailed,
    Unreachable,
)
from penstock.wire.internal.frame import (
    HEADER_BYTES,
    Header,
    Hello,
    Kind,
    encode_hello,
    pack_header,
    read_header,
)


class Text(msgspec.Struct, frozen=True, array_like=True):
    text: str


ECHO = Call(0x7001, "test.echo", Text, Text, is_idempotent=True)
ONCE = Call(0x7002, "test.once", Text, Text, is_idempotent=False)
UNANSWERED = Call(0x7003, "test.unanswered", Text, Text, is_idempotent=True)

FAST = InternalConfig(retry_seconds_min=0.02, retry_seconds_max=0.1, connect_seconds_max=20.0)


class Role:
    """Serves ECHO as the text says, and keeps count of what it is doing."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self.at_once = 0
        self.at_once_most = 0
        self.told: list[Text] = []
        self.asked: list[CallerInfo] = []
        self._moved = asyncio.Event()

    def answers(self) -> CallHandlers:
        answers = CallHandlers()
        answers.add(ECHO, self._answer)
        answers.add(ONCE, self._answer)
        return answers

    def _answer(self, request: Text, asked: CallerInfo) -> Text | Coroutine[Any, Any, Text]:
        self.asked.append(asked)
        verb, _, rest = request.text.partition(" ")
        if verb == "missing":
            raise TopicNotFound(rest)
        if verb == "bug":
            raise KeyError(rest)
        if verb == "long":
            return Text("x" * int(rest))
        if verb == "tell":
            self.told.append(request)
            self._move()
            return request
        if verb in ("wait", "late-bug"):
            return self._wait(request, verb)
        return request

    async def _wait(self, request: Text, verb: str) -> Text:
        self.begun.append(request.text)
        self.at_once += 1
        self.at_once_most = max(self.at_once, self.at_once_most)
        self._move()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.append(request.text)
            raise
        finally:
            self.at_once -= 1
            self._move()
        if verb == "late-bug":
            raise KeyError(request.text)
        return request

    def _move(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await self._moved.wait()


@asynccontextmanager
async def listening(
    role: Role, *, config: InternalConfig = FAST, port: int = 0, cluster_id: str = "c1", **more: Any
) -> AsyncIterator[tuple[InternalListener, int]]:
    tls = more.pop("tls", None)
    listener = InternalListener(
        role.answers(), NodeEnd("server", cluster_id, config=config, **more)
    )
    bound = await listener.start("127.0.0.1", port, tls=tls)
    try:
        yield listener, int(bound.rpartition(":")[2])
    finally:
        await listener.drain(seconds_max=0.2)


@asynccontextmanager
async def calling(
    port: int, *, config: InternalConfig = FAST, cluster_id: str = "c1", **more: Any
) -> AsyncIterator[InternalClient]:
    client = InternalClient("127.0.0.1", port, NodeEnd("caller", cluster_id, config=config), **more)
    try:
        yield client
    finally:
        await client.close()


async def ask(client: Caller, text: str, *, call: Call = ECHO, timeout_ms: int = 5_000) -> str:
    return str((await client.call(call, Text(text), timeout_ms=timeout_ms)).text)


class Raw:
    """A caller that keeps to no rule but the bytes of a frame."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, *, hello: Hello | None = None) -> "Raw":
        raw = cls(*await asyncio.open_connection("127.0.0.1", port))
        raw.writer.write(encode_hello(hello or Hello(1, 1, "c1", "raw")))
        return raw

    def request(
        self, request_id: int, text: str, *, deadline_ms: int = 5_000, call: int = ECHO.number
    ) -> None:
        self.send(Kind.REQUEST, request_id, encode(Text(text)), deadline_ms, call=call)

    def send(
        self,
        kind: Kind,
        request_id: int,
        payload: bytes = b"",
        deadline_ms: int = 0,
        *,
        call: int = ECHO.number,
        version: int = 1,
    ) -> None:
        header = pack_header(
            version, kind, call, request_id, deadline_ms, payload_bytes=len(payload)
        )
        self.writer.write(header + payload)

    async def read(self) -> tuple[Header, bytes]:
        async with asyncio.timeout(5):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            frame = await self.reader.readexactly(size)
        return read_header(frame), frame[HEADER_BYTES:]

    async def read_text(self) -> tuple[int, str]:
        header, payload = await self.read()
        assert header.kind is Kind.REPLY
        return header.request_id, ECHO.decode_reply(payload).text

    async def read_failure(self) -> tuple[Header, Failure]:
        header, payload = await self.read()
        assert header.kind is Kind.ERROR
        return header, msgspec.msgpack.decode(payload, type=Failure)

    async def is_ended(self, *, seconds: float = 5.0) -> bool:
        async with asyncio.timeout(seconds):
            try:
                while await self.reader.read(65_536):
                    pass
            except ConnectionResetError:
                pass
        return True

    def close(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def raw_caller(port: int, *, hello: Hello | None = None) -> AsyncIterator[Raw]:
    raw = await Raw.open(port, hello=hello)
    try:
        header, _ = await raw.read()
        assert header.kind is Kind.HELLO
        yield raw
    finally:
        raw.close()


# ── Calls ────────────────────────────────────────────────────────────────────────────────────


async def test_many_calls_share_a_connection_and_are_answered_in_any_order() -> None:
    role = Role()
    async with listening(role) as (listener, port), calling(port) as client:
        slow = asyncio.create_task(ask(client, "wait first"))
        await role.until(lambda: role.begun == ["wait first"])
        texts = [f"quick {n}" for n in range(500)]
        assert await asyncio.gather(*(ask(client, text) for text in texts)) == texts
        assert not slow.done()
        role.release.set()
        assert await slow == "wait first"
        assert len(listener.connections) == 1


async def test_who_asks_and_how_long_it_waits_is_known_to_the_answering_role() -> None:
    role = Role()
    async with listening(role) as (_, port), calling(port) as client:
        await ask(client, "hello", timeout_ms=20_000)
        assert role.asked[0].node_id == "caller"
        assert 0 < role.asked[0].timeout_ms <= 20_000


async def test_bytes_that_dribble_in_make_the_same_calls() -> None:
    role = Role()
    async with listening(role) as (_, port), raw_caller(port) as raw:
        payload = encode(Text("slowly"))
        header = pack_header(1, Kind.REQUEST, ECHO.number, 7, 5_000, payload_bytes=len(payload))
        for byte in header + payload:
            raw.writer.write(bytes((byte,)))
            await raw.writer.drain()
            await asyncio.sleep(0)
        assert await raw.read_text() == (7, "slowly")


async def test_errors_of_the_role_are_raised_at_the_caller() -> None:
    role = Role()
    async with listening(role) as (_, port), calling(port) as client:
        with pytest.raises(TopicNotFound) as caught:
            await ask(client, "missing orders")
        assert caught.value.name == "orders"
        assert await ask(client, "and goes on") == "and goes on"


@pytest.mark.parametrize("verb", ["bug", "late-bug"])
async def test_a_bug_in_the_role_is_told_to_its_log_and_costs_one_call(verb: str) -> None:
    role = Role()
    role.release.set()
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    async with listening(role) as (_, port), calling(port) as client:
        with pytest.raises(PeerFailed):
            await ask(client, f"{verb} here")
        assert isinstance(told[0]["exception"], KeyError)
        assert await ask(client, "and goes on") == "and goes on"


async def test_a_call_that_a_node_does_not_answer_is_an_invalid_request() -> None:
    role = Role()
    async with listening(role) as (_, port), calling(port) as client:
        with pytest.raises(InvalidRequest, match="0x7003"):
            await ask(client, "anybody", call=UNANSWERED)


async def test_an_unreadable_payload_costs_one_call_and_not_the_connection() -> None:
    role = Role()
    async with listening(role) as (_, port), raw_caller(port) as raw:
        raw.send(Kind.REQUEST, 1, b"\xc1garbage", 1_000)
        header, failure = await raw.read_failure()
        assert header.request_id == 1
        assert failure.names[0] == "InvalidRequest"
        raw.request(2, "still here")
        assert await raw.read_text() == (2, "still here")


async def test_a_request_or_an_answer_longer_than_a_frame_is_refused_by_name() -> None:
    role = Role()
    small = InternalConfig(frame_bytes_max=65_536)
    async with listening(role, config=small) as (_, port):
        async with calling(port) as client:
            with pytest.raises(
                InvalidRequest, match=r"test\.echo request of .* bytes is too large"
            ):
                await ask(client, "x" * 70_000)
            assert await ask(client, "x" * 60_000) == "x" * 60_000
        async with calling(port, config=small) as client:
            with pytest.raises(InvalidRequest, match=r"reply of .* bytes"):
                await ask(client, "long 70000")
            assert await ask(client, "and goes on") == "and goes on"


# ── Deadlines and cancelling ─────────────────────────────────────────────────────────────────


async def test_a_call_ends_at_its_deadline_on_both_sides() -> None:
    role = Role()
    async with listening(role) as (_, port), calling(port) as client:
        assert await ask(client, "first") == "first"  # connecting is not part of the deadline
        begun = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=r"test\.echo"):
            await ask(client, "wait for ever", timeout_ms=150)
        assert 0.1 < time.monotonic() - begun < 20.0  # without a deadline: never
        await role.until(lambda: role.cancelled == ["wait for ever"])
        assert await ask(client, "and goes on") == "and goes on"


async def test_the_answering_side_keeps_the_deadline_although_nobody_cancels() -> None:
    role = Role()
    async with listening(role) as (_, port), raw_caller(port) as raw:
        raw.request(1, "wait for ever", deadline_ms=100)
        _, failure = await raw.read_failure()
        assert failure.names[0] == "DeadlineExceeded"
        await role.until(lambda: role.cancelled == ["wait for ever"])
        raw.request(2, "no time", deadline_ms=0)
        _, failure = await raw.read_failure()
        assert failure.names[0] == "DeadlineExceeded"
        assert len(role.asked) == 1


async def test_who_goes_away_takes_the_call_along() -> None:
    role = Role()
    async with listening(role) as (_, port), calling(port) as client:
        task = asyncio.create_task(ask(client, "wait a"))
        other = asyncio.create_task(ask(client, "wait b"))
        await role.until(lambda: len(role.begun) == 2)
        task.cancel()
        await role.until(lambda: role.cancelled == ["wait a"])
        role.release.set()
        assert await other == "wait b"


async def test_a_caller_that_is_lost_has_all_its_calls_cancelled() -> None:
    role = Role()
    async with listening(role) as (listener, port):
        async with raw_caller(port) as raw:
            for n in range(5):
                raw.request(n, f"wait {n}")
            await role.until(lambda: len(role.begun) == 5)
        await role.until(lambda: len(role.cancelled) == 5)
        assert not listener.connections


# ── A connection that is lost ────────────────────────────────────────────────────────────────


async def test_a_lost_call_is_made_again_if_that_is_harmless_and_unknown_if_not() -> None:
    role = Role()
    async with listening(role) as (listener, port), calling(port) as client:
        harmless = asyncio.create_task(ask(client, "wait again"))
        once = asyncio.create_task(ask(client, "wait once", call=ONCE))
        await role.until(lambda: len(role.begun) == 2)
        for connection in list(listener.connections):
            connection.abort()
        with pytest.raises(OutcomeUnknown, match=r"test\.once"):
            await once
        await role.until(lambda: len(role.begun) == 3)
        role.release.set()
        assert await harmless == "wait again"
        assert role.begun == ["wait again", "wait once", "wait again"]


async def test_a_node_that_is_away_is_said_to_be_at_once_and_found_when_it_is_back() -> None:
    role = Role()
    port = stable_port()
    async with calling(port) as client:
        begun = time.monotonic()
        for _ in range(200):
            with pytest.raises(Unreachable, match=f"127.0.0.1:{port}"):
                await ask(client, "anybody there")
        assert time.monotonic() - begun < 20.0  # that each waited for its time-out would be 1,000
        assert client.trouble is not None
        async with listening(role, port=port):
            async with asyncio.timeout(5):
                while True:
                    try:
                        assert await ask(client, "hello") == "hello"
                        break
                    except Unreachable:
                        await asyncio.sleep(0.01)
            assert client.trouble is None


async def test_attempts_to_connect_come_at_growing_and_uneven_intervals() -> None:
    """No dial during a pause: a refused call costs nobody anything."""
    dialled = 0

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dialled
        dialled += 1
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    slow = InternalConfig(retry_seconds_min=10.0, retry_seconds_max=60.0)
    chances = iter((0.0, 1.0))
    async with server, calling(port, config=slow, chance=lambda: next(chances)) as client:
        for _ in range(50):
            with pytest.raises(Unreachable):
                await ask(client, "anybody there")
        assert dialled == 1


@pytest.mark.slow
async def test_a_peer_that_has_fallen_silent_is_given_up() -> None:
    heard = bytearray()

    async def greet_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_hello(Hello(1, 1, "c1", "mute")))
        while data := await reader.read(65_536):
            heard.extend(data)
        writer.close()

    server = await asyncio.start_server(greet_only, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    impatient = InternalConfig(ping_seconds=0.5, silence_seconds_max=6.0)
    async with server, calling(port, config=impatient) as client:
        with pytest.raises(OutcomeUnknown, match="sent nothing"):
            await ask(client, "wait", call=ONCE, timeout_ms=20_000)
        ping = pack_header(1, Kind.REQUEST, 0, 2, 1_000, payload_bytes=1)
        assert ping in bytes(heard)


@pytest.mark.slow
async def test_a_quiet_connection_lives_on_by_pings() -> None:
    role = Role()
    patient = InternalConfig(ping_seconds=0.5, silence_seconds_max=6.0)
    async with (
        listening(role, config=patient) as (listener, port),
        calling(port, config=patient) as client,
    ):
        assert await ask(client, "quick") == "quick"
        (before,) = listener.connections
        parked = asyncio.create_task(ask(client, "wait long", timeout_ms=20_000))
        await asyncio.sleep(7.0)  # longer than either end tolerates silence
        role.release.set()
        assert await parked == "wait long"
        assert listener.connections == {before}


# ── Bounds ───────────────────────────────────────────────────────────────────────────────────


async def test_no_more_calls_are_under_way_than_the_other_side_takes() -> None:
    role = Role()
    four = InternalConfig(in_flight_max=4)
    async with listening(role, config=four) as (_, port), calling(port) as client:
        calls = [asyncio.create_task(ask(client, f"wait {n}")) for n in range(60)]
        await role.until(lambda: len(role.begun) == 4)
        for call in calls[10:20]:  # some lose patience while they wait for their turn
            call.cancel()
        calls[0].cancel()  # and one under way
        await role.until(lambda: len(role.begun) == 5)
        role.release.set()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(result, asyncio.CancelledError) for result in results) == 11
        assert sum(isinstance(result, str) for result in results) == 49
        assert role.at_once_most <= 5  # the cancelled one is given a moment to end


async def test_too_many_that_wait_are_throttled_and_a_turn_that_never_comes_ends_in_time() -> None:
    role = Role()
    narrow = InternalConfig(in_flight_max=1, waiting_max=2)
    async with listening(role) as (_, port), calling(port, config=narrow) as client:
        first = asyncio.create_task(ask(client, "wait first"))
        await role.until(lambda: role.begun == ["wait first"])
        waiting = [asyncio.create_task(ask(client, "wait", timeout_ms=200)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Throttled, match="Too many calls are waiting"):
            await ask(client, "one more")
        for task in waiting:
            with pytest.raises(Unreachable, match="too many calls"):
                await task
        role.release.set()
        assert await first == "wait first"


async def test_a_caller_that_floods_is_refused_call_by_call() -> None:
    role = Role()
    eight = InternalConfig(in_flight_max=8)
    async with listening(role, config=eight) as (_, port), raw_caller(port) as raw:
        for n in range(100):
            raw.request(n, f"wait {n}")
        refused = [await raw.read_failure() for _ in range(90)]
        assert {failure.names[0] for _, failure in refused} == {"Throttled"}
        assert role.at_once_most == 10
        role.release.set()
        assert {(await raw.read_text())[0] for _ in range(10)} == set(range(10))


async def test_a_caller_that_does_not_read_is_cut_and_the_others_go_on() -> None:
    role = Role()
    strict = InternalConfig(write_bytes_high=65_536, write_stall_seconds_max=0.3)
    async with listening(role, config=strict) as (listener, port), calling(port) as client:
        raw = await Raw.open(port)
        await raw.read()
        assert await ask(client, "before") == "before"
        raw.reader._transport.pause_reading()  # type: ignore[attr-defined]
        for n in range(64):
            raw.request(n, "long 500000")
        async with asyncio.timeout(5):
            while len(listener.connections) > 1:
                assert await ask(client, "meanwhile") == "meanwhile"
                await asyncio.sleep(0.02)
        assert await ask(client, "after") == "after"
        raw.close()


async def test_unsent_answers_have_a_bound_of_their_own() -> None:
    role = Role()
    strict = InternalConfig(
        write_bytes_high=65_536, unsent_bytes_max=5_000_000, write_stall_seconds_max=60.0
    )
    async with listening(role, config=strict) as (listener, port):
        raw = await Raw.open(port)
        await raw.read()
        raw.reader._transport.pause_reading()  # type: ignore[attr-defined]
        for n in range(64):
            raw.request(n, "long 500000")  # 32 MB in one turn
        async with asyncio.timeout(5):
            while listener.connections:
                await asyncio.sleep(0.02)
        raw.close()


async def test_a_node_that_does_not_read_is_not_sent_more_and_is_cut() -> None:
    got = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_hello(Hello(1, 1, "c1", "deaf")))
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await got.wait()
        writer.transport.abort()

    server = await asyncio.start_server(deaf, "127.0.0.1", 0, limit=1_024)
    port = server.sockets[0].getsockname()[1]
    strict = InternalConfig(write_bytes_high=65_536, write_stall_seconds_max=0.5)
    async with server, calling(port, config=strict) as client:
        calls = [
            asyncio.create_task(ask(client, "x" * 500_000, call=ONCE, timeout_ms=20_000))
            for _ in range(40)
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, Unreachable) for result in results)
        # Most never left: they waited for room, and may safely be made elsewhere.
        assert sum(isinstance(result, OutcomeUnknown) for result in results) < 30
        got.set()


# ── What ends a connection, and that one only ────────────────────────────────────────────────


def _huge(raw: Raw) -> None:
    raw.writer.write(b"\xff\xff\xff\xff" + bytes(16))


def _short(raw: Raw) -> None:
    raw.writer.write(b"\x00\x00\x00\x03abc")


def _no_kind(raw: Raw) -> None:
    raw.writer.write(b"\x00\x00\x00\x10" + bytes((1, 99)) + bytes(14))


def _another_version(raw: Raw) -> None:
    raw.send(Kind.REQUEST, 1, encode(Text("x")), 1_000, version=2)


def _greets_again(raw: Raw) -> None:
    raw.writer.write(encode_hello(Hello(1, 1, "c1", "raw")))


def _answers(raw: Raw) -> None:
    raw.send(Kind.REPLY, 1, encode(Text("x")))


def _same_id(raw: Raw) -> None:
    raw.request(5, "wait a")
    raw.request(5, "wait b")


@pytest.mark.parametrize(
    "wrong", [_huge, _short, _no_kind, _another_version, _greets_again, _answers, _same_id]
)
async def test_a_malformed_frame_ends_its_connection_and_no_other(
    wrong: Callable[[Raw], None],
) -> None:
    role = Role()
    async with listening(role) as (_, port), calling(port) as client, raw_caller(port) as raw:
        assert await ask(client, "before") == "before"
        wrong(raw)
        assert await raw.is_ended()
        assert await ask(client, "after") == "after"


@pytest.mark.parametrize("greeting", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b""])
async def test_who_does_not_greet_is_sent_away(greeting: bytes) -> None:
    role = Role()
    hasty = InternalConfig(hello_seconds_max=0.3)
    async with listening(role, config=hasty) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(greeting)
        raw = Raw(reader, writer)
        assert await raw.is_ended()
        raw.close()


async def test_a_greeting_longer_than_any_is_refused_before_it_is_there() -> None:
    role = Role()
    async with listening(role) as (_, port):
        raw = Raw(*await asyncio.open_connection("127.0.0.1", port))
        raw.writer.write((60 * 1_048_576).to_bytes(4, "big") + bytes(100))
        assert await raw.is_ended()
        raw.close()


async def test_requests_behind_a_greeting_that_was_not_answered_end_the_connection() -> None:
    role = Role()
    async with listening(role) as (_, port):
        raw = await Raw.open(port)
        raw.request(1, "tell too soon")
        assert await raw.is_ended()
        assert not role.told
        raw.close()


async def test_a_node_of_another_cluster_hears_why_it_is_refused() -> None:
    role = Role()
    async with listening(role) as (_, port), calling(port, cluster_id="c2") as client:
        with pytest.raises(
            Unreachable, match="belongs to cluster c2, but node server belongs to cluster c1"
        ):
            await ask(client, "hello")


async def test_a_node_that_speaks_no_common_version_hears_why_it_is_refused() -> None:
    role = Role()
    async with listening(role) as (_, port):
        raw = await Raw.open(port, hello=Hello(7, 9, "c1", "future"))
        _, failure = await raw.read_failure()
        assert failure.names[0] == "HelloRefused"
        assert "versions 7 to 9" in failure.text
        assert await raw.is_ended()
        raw.close()


async def test_another_node_than_the_one_meant_is_not_called() -> None:
    role = Role()
    async with listening(role) as (_, port):
        async with calling(port, node_id="somebody-else") as client:
            with pytest.raises(Unreachable, match="Node server replied instead of"):
                await ask(client, "hello")
        async with calling(port, node_id="server") as client:
            assert await ask(client, "hello") == "hello"


async def test_a_node_that_stops_finishes_what_is_under_way_and_begins_nothing() -> None:
    role = Role()
    async with listening(role) as (listener, port), calling(port) as client:
        parked = asyncio.create_task(ask(client, "wait parked"))
        await role.until(lambda: role.begun == ["wait parked"])
        draining = asyncio.create_task(listener.drain(seconds_max=60.0))
        await asyncio.sleep(0)
        with pytest.raises(Draining):
            await ask(client, "one more")
        role.release.set()
        assert await parked == "wait parked"
        async with asyncio.timeout(10):
            await draining


# ── Several nodes ────────────────────────────────────────────────────────────────────────────


class Named:
    """A caller that answers with its name, or raises."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.error: Exception | None = None
        self.count = 0

    async def call(self, call: Call[Q, R], request: Q, *, timeout_ms: int) -> R:
        self.count += 1
        if self.error is not None:
            raise self.error
        return call.decode_reply(encode(Text(self.name)))


async def test_the_first_that_can_be_reached_is_kept_to() -> None:
    nodes = [Named("a"), Named("b"), Named("c")]
    caller = FirstReachable(lambda: nodes, chance=lambda: 0.0)
    assert [await ask(caller, "who") for _ in range(3)] == ["a", "a", "a"]
    nodes[0].error = Unreachable("away")
    assert [await ask(caller, "who") for _ in range(3)] == ["b", "b", "b"]
    nodes[1].error = Draining("stopping")
    assert await ask(caller, "who") == "c"
    nodes[2].error = OutcomeUnknown("lost")
    nodes[0].error = None
    assert await ask(caller, "who") == "a"
    assert nodes[0].count == 5


async def test_a_call_that_may_have_been_carried_out_is_not_made_elsewhere() -> None:
    nodes = [Named("a"), Named("b")]
    nodes[0].error = OutcomeUnknown("lost")
    caller = FirstReachable(lambda: nodes, chance=lambda: 0.0)
    with pytest.raises(OutcomeUnknown):
        await ask(caller, "who", call=ONCE)
    assert nodes[1].count == 0
    assert await ask(caller, "who", call=ONCE) == "b"


async def test_with_nobody_to_ask_the_last_reason_is_given() -> None:
    nodes = [Named("a"), Named("b")]
    for node in nodes:
        node.error = Unreachable(f"{node.name} is away")
    caller = FirstReachable(lambda: nodes, chance=lambda: 0.0)
    with pytest.raises(Unreachable, match="b is away"):
        await ask(caller, "who")
    with pytest.raises(Unreachable, match="no node to call"):
        await ask(FirstReachable(list), "who")


async def test_a_slow_node_is_left_for_the_next_call() -> None:
    nodes = [Named("a"), Named("b")]
    nodes[0].error = DeadlineExceeded("slow")
    caller = FirstReachable(lambda: nodes, chance=lambda: 0.0)
    with pytest.raises(DeadlineExceeded):
        await ask(caller, "who")
    assert await ask(caller, "who") == "b"


async def test_a_closed_client_makes_no_calls() -> None:
    async with listening(Role()) as (_, port), calling(port) as client:
        assert await ask(client, "hello") == "hello"
        await client.close()
        with pytest.raises(Unreachable, match="stopping"):
            await ask(client, "hello")
