"""``penstock bench``: measures the speed of a running server as clients see it.

One process makes the load, so it limits the result for a very fast server. It uses asyncio streams,
because a client library would slow it down. With ``--rate``, latency is counted from the planned
time of a call, so that a stall of one second counts as many slow calls, not one."""

import asyncio
import dataclasses
import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import click
import uvloop

from penstock.cli.clients.contexts import Settings
from penstock.cli.clients.credentials import credentials_from_environment
from penstock.cli.clients.http import signed, tls_context
from penstock.cli.command import Noun, Session
from penstock.cli.terminal.failure import ExitCode, Failure, timed_out, unreachable
from penstock.cli.terminal.options import bytes_of, option, several, some_seconds
from penstock.cli.terminal.output import Json
from penstock.wire.aws.signer import Signer

_HEAD_BYTES_MAX = 65_536
_SIGNED_AGAIN_S = 60.0
_BATCH_COUNT_MAX = 10
_ERRORS_KEPT_MAX = 5
_GROWTH = math.log(1.01)
_FIRST_S = 1e-6
_BUCKETS = 1_870
_shape_options = several(
    option("-c --connections", click.IntRange(1, 1_000), "number of connections", default=16),
    option(
        "--duration", some_seconds(0.1, 3_600), "maximum run time", default=10.0, metavar="DURATION"
    ),
    option("--rate", click.FloatRange(0.1, 1e6), "messages per second [default: no limit]"),
    option("--size", bytes_of(1, 1_048_576), "size of a message body", default=1_024),
    click.option("--queue", metavar="NAME", help="queue to use [default: a temporary queue]"),
)
bench = Noun("bench", help="Measure the throughput and latency of a running server.")


@bench.command()
@_shape_options
@option("--batch", click.IntRange(1, 10), "number of messages per call", default=1)
def send(session: Session, **shape: Any) -> None:
    """Measure the throughput and latency of sends, at --rate or as fast as the server replies."""
    _measure(session, "send", _send, **shape)


@bench.command()
@_shape_options
@option(
    "--preload",
    click.IntRange(0, 10_000_000),
    "number of messages to send before the measurement",
    default=20_000,
)
def receive(session: Session, preload: int, **shape: Any) -> None:
    """Measure the throughput and latency of receives and deletes, until the queue is empty."""

    async def run(load: Load) -> None:
        async def step(connection: Connection, due_s: float) -> bool:
            return bool(await _take(load, connection, due_s=due_s, count=_BATCH_COUNT_MAX))

        if preload:
            fill = dataclasses.replace(load, rate=None, batch=10, duration=3_600.0)
            await _send(fill, count_max=preload)
            if not fill.messages:
                raise Failure("cannot fill the queue before the test", "; ".join(fill.first_errors))
            load.start_s = time.perf_counter()
        await _repeated(load, step, load.rate)

    _measure(session, "receive", run, **shape)


@bench.command()
@_shape_options
def latency(session: Session, **shape: Any) -> None:
    """Measure the latency of each call: send, receive and delete one message at a time."""
    _measure(session, "latency", _latency, **shape)


@bench.command()
@_shape_options
def e2e(session: Session, **shape: Any) -> None:
    """Measure the time from send to receive while consumers wait. The default --rate is 100."""
    shape["rate"] = shape["rate"] or 100.0
    _measure(session, "e2e", _end_to_end, **shape)


@contextmanager
def _queue(session: Session, name: str | None) -> Iterator[tuple[str, str]]:
    if name is not None:
        yield name, session.sqs.queue_url(name)
        return
    import secrets

    name = f"penstock-bench-{secrets.token_hex(4)}"
    url = session.sqs.call("CreateQueue", {"QueueName": name}, what="cannot begin")["QueueUrl"]
    try:
        yield name, url
    finally:
        session.sqs.call("DeleteQueue", {"QueueUrl": url}, what=f"cannot delete '{name}'")


def _measure(
    session: Session, title: str, run: "Run", *, queue: str | None, batch: int = 1, **shape: Any
) -> None:
    with _queue(session, queue) as (name, url):
        load = Load(session.settings, url, batch=batch, **shape)
        about = f"{load.connections} connections for up to {load.duration:g} s"
        session.remark(f"{title}: {about} on '{name}'")
        load.start_s = time.perf_counter()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(load))
    # The run ends with the last message, because after it consumers only wait.
    run_s = load.last_s - load.start_s
    result = {
        "bench": title,
        "queue": name,
        "connections": load.connections,
        "size_bytes": load.size,
        "rate_asked_per_s": load.rate,
        "batch": batch,
        "seconds": round(run_s, 3),
        "messages": load.messages,
        "errors": load.errors,
        "messages_per_s": round(load.messages / run_s, 1) if run_s > 0 else 0.0,
    }
    latencies = {what: found.summary_ms() for what, found in load.latencies.items()}
    if session.out.is_table:
        session.out.one(result)
        for what, points in latencies.items():
            numbers = "  ".join(f"{point} {value:,.2f} ms" for point, value in points.items())
            session.out.line(f"{what}: {numbers}")
    else:
        session.out.one({**result, "latency_ms": latencies}, name="bench")
    for text in load.first_errors:
        click.echo(f"rejected: {text}", err=True)
    if load.errors:
        raise click.exceptions.Exit(ExitCode.PARTIAL if load.messages else ExitCode.FAILED)


class Histogram:
    """A histogram of durations from a microsecond to about two minutes. The bounds of its buckets
    grow by one percent, so a percentile is at most one percent too high. ``max_s`` is exact."""

    def __init__(self) -> None:
        self._counts = Counter[int]()
        self.max_s = 0.0

    def add(self, seconds: float) -> None:
        index = 0
        if seconds > _FIRST_S:
            index = min(math.ceil(math.log(seconds / _FIRST_S) / _GROWTH), _BUCKETS)
        self._counts[index] += 1
        self.max_s = max(self.max_s, seconds)

    def percentile(self, percent: float) -> float:
        left = max(1, math.ceil(self._counts.total() * percent / 100))
        for index, count in sorted(self._counts.items()):
            left -= count
            if left <= 0:
                return min(_FIRST_S * math.exp(index * _GROWTH), self.max_s)
        return 0.0

    def summary_ms(self) -> dict[str, float]:
        points = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99_9": 99.9}
        found = {name: round(self.percentile(at) * 1_000, 3) for name, at in points.items()}
        return {**found, "max": round(self.max_s * 1_000, 3)}


@dataclasses.dataclass
class Load:
    settings: Settings
    queue_url: str
    connections: int
    duration: float
    size: int
    rate: float | None  # None: each call follows the reply to the previous one
    batch: int
    start_s: float = dataclasses.field(default_factory=time.perf_counter, init=False)
    last_s: float = dataclasses.field(default_factory=time.perf_counter, init=False)
    messages: int = dataclasses.field(default=0, init=False)
    errors: int = dataclasses.field(default=0, init=False)
    first_errors: list[str] = dataclasses.field(default_factory=list, init=False)
    latencies: defaultdict[str, Histogram] = dataclasses.field(
        default_factory=lambda: defaultdict(Histogram), init=False
    )

    def counted(self, messages: int) -> None:
        self.messages += messages
        self.last_s = time.perf_counter()

    def failed(self, text: str) -> None:
        self.errors += 1
        if len(self.first_errors) < _ERRORS_KEPT_MAX and text not in self.first_errors:
            self.first_errors.append(text)


Run = Callable[[Load], Coroutine[Any, Any, None]]


class Pace:
    def __init__(self, rate_per_s: float | None, duration_s: float) -> None:
        self._gap_s = None if rate_per_s is None else 1.0 / rate_per_s
        self._next_s = time.perf_counter()
        self.end_s = self._next_s + duration_s

    async def next_start(self) -> float | None:
        """Wait until the next call is due. Return its planned time, or None if the run is over."""
        now_s = time.perf_counter()
        if self._gap_s is None:
            return now_s if now_s < self.end_s else None
        due_s = self._next_s
        if due_s >= self.end_s or now_s >= self.end_s:
            return None
        self._next_s = due_s + self._gap_s
        if due_s > now_s:
            await asyncio.sleep(due_s - now_s)
        return due_s


class Connection:
    def __init__(self, load: Load) -> None:
        url = load.settings.endpoint
        parts = urlsplit(url if "://" in url else f"//{url}")
        self._load = load
        is_tls = parts.scheme == "https"
        self._tls = tls_context() if is_tls else None
        self._address = (parts.hostname or "", parts.port or (443 if is_tls else 80))
        self._host = parts.netloc.rpartition("@")[2]
        self._signer = Signer(credentials_from_environment(), region=load.settings.region)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._signed: tuple[tuple[str, bytes], float, bytes] | None = None

    async def call(self, action: str, *, due_s: float, **request: Any) -> Json | None:
        load, url, timeout_s = (
            self._load,
            self._load.settings.endpoint,
            self._load.settings.timeout_s,
        )
        body = json.dumps({"QueueUrl": load.queue_url, **request}, separators=(",", ":")).encode()
        try:
            async with asyncio.timeout(timeout_s):
                status, data = await self._exchange(self._request(action, body))
        except TimeoutError as error:
            raise timed_out(url, timeout_s) from error
        except (OSError, EOFError) as error:
            raise unreachable(url, str(error) or "the server closed the connection") from error
        if status != 200:
            load.failed(f"{action}: status {status} {data[:200].decode('utf-8', 'replace')}")
            return None
        load.latencies[action].add(time.perf_counter() - due_s)
        reply: Json = json.loads(data) if data.strip() else {}
        return reply

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(
                *self._address, limit=_HEAD_BYTES_MAX, ssl=self._tls
            )
        reader, writer = self._streams
        writer.write(request)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        _, _, rest = head.partition(b"\r\ncontent-length:")
        length = int(rest.partition(b"\r\n")[0] or 0)
        body = await reader.readexactly(length) if length else b""
        if b"\r\nconnection: close" in head:
            await self.close()
        return int(head[9:12]), body

    def _request(self, action: str, body: bytes) -> bytes:
        """Return a signed HTTP request. An equal request reuses the signature for a minute."""
        key = (action, body)
        now_s = time.monotonic()
        if self._signed is not None and self._signed[0] == key and now_s < self._signed[1]:
            return self._signed[2]
        headers = signed(self._signer, self._host, action, body)
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        length = f"content-length: {len(body)}\r\n\r\n"
        request = f"POST / HTTP/1.1\r\n{head}{length}".encode() + body
        self._signed = (key, now_s + _SIGNED_AGAIN_S, request)
        return request

    async def close(self) -> None:
        if self._streams is not None:
            _, writer = self._streams
            self._streams = None
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


Work = Callable[[Connection], Awaitable[None]]


async def _on_connections(load: Load, works: Sequence[Work]) -> None:
    async def one(work: Work) -> None:
        connection = Connection(load)
        try:
            await work(connection)
        finally:
            await connection.close()

    try:
        async with asyncio.TaskGroup() as group:
            for number, work in enumerate(works):
                group.create_task(one(work), name=f"bench {number}")
    except BaseExceptionGroup as errors:
        # All connections fail for the same reason, so the first error is enough.
        raise errors.exceptions[0] from None


async def _repeated(
    load: Load, step: Callable[[Connection, float], Awaitable[bool]], rate: float | None
) -> None:
    pace = Pace(rate, load.duration)

    async def work(connection: Connection) -> None:
        while (due_s := await pace.next_start()) is not None:
            if not await step(connection, due_s):
                return

    await _on_connections(load, [work] * load.connections)


async def _send(load: Load, *, count_max: float = math.inf) -> None:
    text = "x" * load.size
    action = "SendMessage"
    request: Json = {"MessageBody": text}
    if load.batch > 1:
        entries = [{"Id": str(number), "MessageBody": text} for number in range(load.batch)]
        action, request = "SendMessageBatch", {"Entries": entries}
    requested = 0

    async def step(connection: Connection, due_s: float) -> bool:
        nonlocal requested
        if requested >= count_max:
            return False
        requested += load.batch
        reply = await connection.call(action, due_s=due_s, **request)
        if reply is not None:
            refused = len(reply.get("Failed", ()))
            load.counted(load.batch - refused)
            if refused:
                load.failed(f"{action}: {reply['Failed'][0]}")
        return True

    await _repeated(load, step, load.rate and load.rate / load.batch)


async def _take(
    load: Load, connection: Connection, *, due_s: float, count: int, wait_s: int = 0
) -> list[Json]:
    reply = await connection.call(
        "ReceiveMessage", due_s=due_s, MaxNumberOfMessages=count, WaitTimeSeconds=wait_s
    )
    found: list[Json] = (reply or {}).get("Messages", [])
    if found:
        entries = [
            {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
            for number, message in enumerate(found)
        ]
        await connection.call("DeleteMessageBatch", due_s=time.perf_counter(), Entries=entries)
        load.counted(len(found))
    return found


async def _latency(load: Load) -> None:
    body = "x" * load.size

    async def step(connection: Connection, due_s: float) -> bool:
        if await connection.call("SendMessage", due_s=due_s, MessageBody=body) is not None:
            await _take(load, connection, due_s=time.perf_counter(), count=1)
        return True

    await _repeated(load, step, load.rate)


async def _end_to_end(load: Load) -> None:
    """Measure the time from the planned send of a message to its receive. Half of the connections
    send, half wait for messages. The planned time is in the body of the message."""
    pace = Pace(load.rate, load.duration)
    count = senders_left = max(1, load.connections // 2)
    sent = 0

    async def produce(connection: Connection) -> None:
        nonlocal sent, senders_left
        try:
            while (due_s := await pace.next_start()) is not None:
                body = f"{due_s:.9f} ".ljust(load.size, "x")
                reply = await connection.call("SendMessage", due_s=due_s, MessageBody=body)
                sent += reply is not None
        finally:
            senders_left -= 1

    async def consume(connection: Connection) -> None:
        # After the last send, allow 5 s for messages that have not been received yet.
        while senders_left or (load.messages < sent and time.perf_counter() < pace.end_s + 5):
            start_s = time.perf_counter()
            for message in await _take(
                load, connection, due_s=start_s, count=_BATCH_COUNT_MAX, wait_s=1
            ):
                due_s = start_s
                with suppress(ValueError):  # a queue given with --queue may have other messages
                    due_s = float(message["Body"].partition(" ")[0])
                load.latencies["end_to_end"].add(time.perf_counter() - due_s)

    await _on_connections(load, [produce] * count + [consume] * count)
    # Receives mostly wait for messages, so their latency is not shown.
    load.latencies.pop("ReceiveMessage", None)
