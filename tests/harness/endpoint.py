"""A real HTTP endpoint in a process of its own, which replies as a plan says and keeps a ledger.

    with Endpoint() as endpoint:
        endpoint.plan("/hook", Step(status=503, headers={"Retry-After": "7"}), Step())
        ... something sends requests to endpoint.url("/hook") ...
        endpoint.wait_for(2)
        assert [seen.status for seen in endpoint.ledger()] == [503, 200]

Each request to a path takes the next step of the path's plan; the last step is repeated. A path
without a plan gets status 200. Parent and child speak in JSON lines over the child's stdin and
stdout, and the child ends when its stdin does."""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
from tests.harness.children import end_with_parent

WAIT_SECONDS_MAX = 60.0  # only a hang takes so long
BODY_CHARS_MAX = 4_096  # of a request's body in the ledger


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the endpoint treats one request. ``raw`` replaces the whole reply."""

    status: int = 200
    headers: dict[str, str] = {}
    body: str = ""
    filler_bytes: int = 0  # bytes of x after the body; -1: without end, and without a length
    pause_ms: int = 0  # between pieces of the filler
    raw: str | None = None  # bytes of the reply, as Latin-1
    delay_ms: int = 0
    hold: bool = False  # reply when the test calls ``release``; never, if it does not
    reads_body: bool = True  # False: reply before the body is read
    is_tallied: bool = False  # count the request only, without a place in the ledger
    then: str = "keep"  # or: close, reset, half_close (and read on), stall (nothing more)


class Seen(msgspec.Struct, frozen=True):
    """A request in the ledger."""

    at_ns: int  # CLOCK_MONOTONIC
    method: str
    target: str
    headers: dict[str, str]  # names in lower case
    body: str  # as Latin-1, at most BODY_CHARS_MAX
    body_bytes: int
    connection: int  # number of the connection
    address: str  # that the client connected to
    listener: str
    server_name: str | None  # SNI
    client_certificate: bool
    at_once: int  # requests under way in the endpoint, with this one
    path_at_once: int  # the same, of this path
    status: int  # of the planned reply; 0 for a raw one


class Tally(msgspec.Struct):
    """The requests of a path whose step says ``is_tallied``, for tests with very many of them."""

    requests: int = 0
    bodies: int = 0  # different ones
    at_once_max: int = 0


class Tls(msgspec.Struct, frozen=True):
    certificate: str  # file
    key: str
    client_ca: str = ""  # file; clients must have a certificate of this CA
    version_max: str = ""  # such as TLSv1_1


class Setup(msgspec.Struct, frozen=True):
    hosts: tuple[str, ...] = ("127.0.0.1",)
    tls: dict[str, Tls] = {}  # listeners beside "http", by name


class Command(msgspec.Struct, frozen=True, omit_defaults=True):
    do: str  # plan, release, ledger, tally, wait, connections, drop_idle
    path: str = ""
    steps: tuple[Step, ...] = ()
    count: int = 0


# ── The child ────────────────────────────────────────────────────────────────────────────────


class _Site:
    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._plans: dict[str, list[Step]] = {}
        self._held: dict[str, list[asyncio.Event]] = {}
        self._ledger: list[Seen] = []
        self._tallies: defaultdict[str, tuple[Tally, set[bytes]]]
        self._tallies = defaultdict(lambda: (Tally(), set()))
        self._arrived = asyncio.Condition()
        self._under_way: Counter[str] = Counter()
        self._numbers = itertools.count(1)
        self._idle: set[asyncio.StreamWriter] = set()
        self.connection_count = 0
        self._server_names: dict[int, str | None] = {}

    async def listen(self) -> dict[str, int]:
        ports = {}
        for name in ("http", *self._setup.tls):
            tls = self._setup.tls.get(name)
            context = None if tls is None else self._context(tls)
            port = 0
            for host in self._setup.hosts:  # one port on all of them
                server = await asyncio.start_server(
                    partial(self._serve, name),
                    host,
                    port,
                    ssl=context,
                    backlog=1_024,
                )
                port = server.sockets[0].getsockname()[1]
            ports[name] = port
        return ports

    def _context(self, tls: Tls) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.certificate, tls.key)
        if tls.client_ca:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        if tls.version_max:
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = ssl.TLSVersion[tls.version_max]

        def note(sslsock: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
            self._server_names[id(sslsock)] = name

        context.sni_callback = note
        return context

    async def _serve(
        self, listener: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.connection_count += 1
        number = next(self._numbers)
        try:
            while await self._serve_one(reader, writer, listener, number):
                pass
        except (
            ConnectionError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            ssl.SSLError,
        ):
            pass
        finally:
            self._idle.discard(writer)
            writer.transport.abort()

    async def _serve_one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener: str, number: int
    ) -> bool:
        """Serve a request and return whether the connection serves another."""
        self._idle.add(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        self._idle.discard(writer)
        first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        method, target, _ = first.split(" ")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        path = target.partition("?")[0]
        step = self._next_step(path)
        body_bytes = int(headers.get("content-length", 0))
        body = await reader.readexactly(body_bytes) if step.reads_body else b""
        tls = writer.get_extra_info("ssl_object")
        self._under_way[path] += 1
        try:
            if step.is_tallied:
                self._tally(path, body)
            else:
                seen = Seen(
                    at_ns=time.monotonic_ns(),
                    method=method,
                    target=target,
                    headers=headers,
                    body=body[:BODY_CHARS_MAX].decode("latin-1"),
                    body_bytes=len(body),
                    connection=number,
                    address=writer.get_extra_info("sockname")[0],
                    listener=listener,
                    server_name=self._server_names.get(id(tls)),
                    client_certificate=tls is not None and bool(tls.getpeercert()),
                    at_once=self._under_way.total(),
                    path_at_once=self._under_way[path],
                    status=step.status if step.raw is None else 0,
                )
                self._ledger.append(seen)
                async with self._arrived:
                    self._arrived.notify_all()
            if step.delay_ms:
                await asyncio.sleep(step.delay_ms / 1_000)
            if step.hold:
                await self._hold(path, reader)
            await self._reply(step, writer)
        finally:
            self._under_way[path] -= 1
        return await self._go_on(step, reader, writer)

    def _tally(self, path: str, body: bytes) -> None:
        tally, bodies = self._tallies[path]
        bodies.add(body)
        tally.requests += 1
        tally.bodies = len(bodies)
        tally.at_once_max = max(tally.at_once_max, self._under_way[path])

    def _next_step(self, path: str) -> Step:
        steps = self._plans.get(path) or [Step()]
        return steps.pop(0) if len(steps) > 1 else steps[0]

    async def _hold(self, path: str, reader: asyncio.StreamReader) -> None:
        """Wait until the test releases the request; end it if the client closes before."""
        event = asyncio.Event()
        held = self._held.setdefault(path, [])
        held.append(event)
        released = asyncio.create_task(event.wait())
        closed = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait((released, closed), return_when=asyncio.FIRST_COMPLETED)
            if not event.is_set():
                raise ConnectionError("the client closed the connection")
        finally:
            if event in held:
                held.remove(event)
            released.cancel()
            closed.cancel()
            await asyncio.gather(released, closed, return_exceptions=True)

    async def _reply(self, step: Step, writer: asyncio.StreamWriter) -> None:
        if step.raw is not None:
            writer.write(step.raw.encode("latin-1"))
            await writer.drain()
            return
        body = step.body.encode("latin-1")
        head = f"HTTP/1.1 {step.status} Planned\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in step.headers.items())
        if step.filler_bytes >= 0:
            head += f"Content-Length: {len(body) + step.filler_bytes}\r\n"
        writer.write(f"{head}\r\n".encode("latin-1") + body)
        left = step.filler_bytes
        while left:
            piece = b"x" * (65_536 if left < 0 else min(left, 65_536))
            left -= len(piece) if left > 0 else 0
            writer.write(piece if not step.pause_ms else piece[:1])
            await writer.drain()
            await asyncio.sleep(step.pause_ms / 1_000)
        await writer.drain()

    async def _go_on(
        self, step: Step, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        if step.then == "reset":
            plain: socket.socket = writer.get_extra_info("socket")
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        if step.then == "close":
            writer.close()  # after what was written
            await writer.wait_closed()
            return False
        if step.then == "half_close":
            writer.write_eof()
        if step.then in ("half_close", "stall"):
            if not step.reads_body:
                await asyncio.Event().wait()  # the body stays in the buffers of the kernel
            await reader.read()  # until the client closes
            return False
        return step.reads_body

    async def obey(self, command: Command) -> object:
        match command.do:
            case "plan":
                self._plans[command.path] = list(command.steps)
            case "release":
                for event in self._held.pop(command.path, []):
                    event.set()
            case "ledger":
                return self._ledger[command.count :]
            case "tally":
                return self._tallies[command.path][0]
            case "wait":
                try:
                    async with asyncio.timeout(WAIT_SECONDS_MAX), self._arrived:
                        await self._arrived.wait_for(lambda: len(self._ledger) >= command.count)
                except TimeoutError:
                    return False
                return True
            case "connections":
                return self.connection_count
            case "drop_idle":
                for writer in list(self._idle):
                    writer.transport.abort()
                return len(self._idle)
            case _:
                raise ValueError(command.do)
        return None


async def _run(setup: Setup) -> None:
    site = _Site(setup)
    print(msgspec.json.encode(await site.listen()).decode(), flush=True)
    loop = asyncio.get_running_loop()
    decode = msgspec.json.Decoder(Command).decode
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        reply = msgspec.json.encode(await site.obey(decode(line)))
        print(reply.decode(), flush=True)


# ── The parent ───────────────────────────────────────────────────────────────────────────────


class Endpoint:
    def __init__(
        self, *, hosts: Sequence[str] = ("127.0.0.1",), tls: Mapping[str, Tls] | None = None
    ) -> None:
        self._setup = Setup(tuple(hosts), dict(tls or {}))
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self.ports: dict[str, int] = {}  # by listener: "http" and the names in ``tls``

    def __enter__(self) -> Endpoint:
        setup = msgspec.json.encode(self._setup).decode()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.endpoint", setup],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=end_with_parent(),
        )
        assert self._process.stdout is not None
        self.ports = msgspec.json.decode(self._process.stdout.readline(), type=dict[str, int])
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def url(self, path: str = "/", *, listener: str = "http", host: str = "127.0.0.1") -> str:
        scheme = "http" if listener == "http" else "https"
        return f"{scheme}://{host}:{self.ports[listener]}{path}"

    def plan(self, path: str, *steps: Step) -> None:
        """Set the steps of a path; without steps every request gets status 200."""
        self._ask(Command("plan", path, steps))

    def release(self, path: str) -> None:
        """Let the endpoint reply to the requests that it holds."""
        self._ask(Command("release", path))

    def ledger(self, start: int = 0) -> list[Seen]:
        return msgspec.convert(self._ask(Command("ledger", count=start)), list[Seen])

    def tally(self, path: str) -> Tally:
        return msgspec.convert(self._ask(Command("tally", path)), Tally)

    def wait_for(self, count: int) -> None:
        """Wait until the endpoint has seen so many requests since its start. A test whose event
        loop sends the requests calls this in a thread."""
        assert self._ask(Command("wait", count=count)), f"fewer than {count} requests came"

    def connection_count(self) -> int:
        return int(str(self._ask(Command("connections"))))

    def drop_idle(self) -> None:
        """Close the connections on which no request is under way."""
        self._ask(Command("drop_idle"))

    def _ask(self, command: Command) -> object:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(msgspec.json.encode(command).decode() + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        assert line, "the endpoint has ended"
        return msgspec.json.decode(line)


if __name__ == "__main__":
    asyncio.run(_run(msgspec.json.decode(sys.argv[1], type=Setup)))
