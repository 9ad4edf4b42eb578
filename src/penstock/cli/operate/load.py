"""Load on a running endpoint: many kept-alive connections from one asyncio loop, raw HTTP.

It uses bare streams, because with a client library the library would be measured. With a rate,
calls start at planned times and latency is counted from the planned time, not from the actual
start: otherwise a stall of a second would count as one slow call instead of many."""

import asyncio
import json
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from penstock.cli.clients.credentials import credentials_from_environment
from penstock.cli.clients.http import CONTENT_TYPE, Json, timestamp_now, tls_context
from penstock.cli.terminal.failure import timed_out, unreachable
from penstock.wire.aws.signer import Signer

_HEAD_BYTES_MAX = 65_536
_SIGNED_AGAIN_S = 60.0
_BATCH_COUNT_MAX = 10
_ERRORS_KEPT_MAX = 5
_GROWTH = math.log(1.01)
_FIRST_S = 1e-6
_BUCKETS = 1_870


class Target(NamedTuple):
    endpoint: str
    region: str
    queue_url: str
    timeout_s: float


class Shape(NamedTuple):
    """The parameters of the load."""

    connections: int
    duration_s: float
    size_bytes: int
    rate_per_s: float | None = None  # None: each call after the reply of the one before
    batch: int = 1


class Histogram:
    """A histogram of latencies with a fixed number of buckets, so that a long run needs no more
    memory. Buckets grow by one percent each, from a microsecond to about two minutes, so a
    percentile is at most one percent too high. The maximum is kept exactly."""

    def __init__(self) -> None:
        self._counts = [0] * (_BUCKETS + 1)
        self.count = 0
        self.max_s = 0.0

    def add(self, seconds: float) -> None:
        index = 0
        if seconds > _FIRST_S:
            index = min(math.ceil(math.log(seconds / _FIRST_S) / _GROWTH), _BUCKETS)
        self._counts[index] += 1
        self.count += 1
        self.max_s = max(self.max_s, seconds)

    def percentile(self, percent: float) -> float:
        """Return the upper edge of the bucket that contains the percentile, in seconds."""
        if not self.count:
            return 0.0
        wanted = max(1, math.ceil(self.count * percent / 100))
        seen = 0
        for index, count in enumerate(self._counts):
            seen += count
            if seen >= wanted:
                return min(_FIRST_S * math.exp(index * _GROWTH), self.max_s)
        raise AssertionError("the counts add up to count")

    def summary_ms(self) -> dict[str, float]:
        points = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99_9": 99.9}
        summary = {
            name: round(self.percentile(percent) * 1_000, 3) for name, percent in points.items()
        }
        return {**summary, "max": round(self.max_s * 1_000, 3)}


class Measured:
    def __init__(self) -> None:
        self.start_s = self.last_s = time.perf_counter()
        self.messages = 0
        self.errors = 0
        self.first_errors: list[str] = []
        self.latencies: defaultdict[str, Histogram] = defaultdict(Histogram)

    def counted(self, messages: int) -> None:
        self.messages += messages
        self.last_s = time.perf_counter()

    def took(self, what: str, seconds: float) -> None:
        self.latencies[what].add(seconds)

    def failed(self, text: str) -> None:
        self.errors += 1
        if len(self.first_errors) < _ERRORS_KEPT_MAX and text not in self.first_errors:
            self.first_errors.append(text)


class Pace:
    """A schedule of start times, one per call, shared by all connections."""

    def __init__(self, rate_per_s: float | None, duration_s: float) -> None:
        self._gap_s = None if rate_per_s is None else 1.0 / rate_per_s
        self._next_s = self.start_s = time.perf_counter()
        self.end_s = self.start_s + duration_s

    async def next_start(self) -> float | None:
        """Wait until the next call is due and return that time; None when the run is over."""
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


class LoadConnection:
    def __init__(self, target: Target) -> None:
        parts = urlsplit(target.endpoint if "://" in target.endpoint else f"//{target.endpoint}")
        self._target = target
        is_tls = parts.scheme == "https"
        self._tls = tls_context() if is_tls else None
        self._address = (parts.hostname or "", parts.port or (443 if is_tls else 80))
        self._host = parts.netloc.rpartition("@")[2]
        self._signer = Signer(credentials_from_environment(), region=target.region)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._signed: tuple[tuple[str, bytes], float, bytes] | None = None

    async def call(self, action: str, body: bytes) -> tuple[int, bytes]:
        endpoint, timeout_s = self._target.endpoint, self._target.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await self._exchange(self._request(action, body))
        except TimeoutError as error:
            raise timed_out(endpoint, timeout_s) from error
        except (OSError, EOFError) as error:
            raise unreachable(endpoint, str(error) or "closed by the server") from error

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
        """Return the request; the same call reuses its signature for a minute."""
        key = (action, body)
        now_s = time.monotonic()
        if self._signed is not None and self._signed[0] == key and now_s < self._signed[1]:
            return self._signed[2]
        headers = self._signer.sign(
            host=self._host,
            path="/",
            headers={"content-type": CONTENT_TYPE, "x-amz-target": f"AmazonSQS.{action}"},
            body=body,
            timestamp=timestamp_now(),
        )
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


Work = Callable[[LoadConnection], Awaitable[None]]


async def on_connections(target: Target, count: int, work: Work) -> None:
    """Run the work on ``count`` connections; the first failure ends all of them."""

    async def one() -> None:
        connection = LoadConnection(target)
        try:
            await work(connection)
        finally:
            await connection.close()

    await together([one() for _ in range(count)])


async def together(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for number, work in enumerate(works):
                group.create_task(work, name=f"bench {number}")
    except BaseExceptionGroup as errors:
        # All connections fail for the same reason, so the first error is enough.
        raise errors.exceptions[0] from None


async def call(
    connection: LoadConnection, measured: Measured, action: str, request: Json, *, due_s: float
) -> Json | None:
    """Make one measured call; return None if the server rejected it."""
    body = json.dumps(request, separators=(",", ":")).encode()
    status, data = await connection.call(action, body)
    if status != 200:
        measured.failed(f"{action}: status {status} {data[:200].decode('utf-8', 'replace')}")
        return None
    measured.took(action, time.perf_counter() - due_s)
    reply: Json = json.loads(data) if data.strip() else {}
    return reply


def send_request(target: Target, body: str, batch: int) -> tuple[str, Json]:
    if batch == 1:
        return "SendMessage", {"QueueUrl": target.queue_url, "MessageBody": body}
    entries = [{"Id": str(number), "MessageBody": body} for number in range(batch)]
    return "SendMessageBatch", {"QueueUrl": target.queue_url, "Entries": entries}


async def send(
    target: Target, shape: Shape, measured: Measured, *, count_max: int | None = None
) -> None:
    """Send until the time is over, or until ``count_max`` messages were sent."""
    pace = Pace(shape.rate_per_s and shape.rate_per_s / shape.batch, shape.duration_s)
    action, request = send_request(target, "x" * shape.size_bytes, shape.batch)
    requested = 0

    async def work(connection: LoadConnection) -> None:
        nonlocal requested
        while count_max is None or requested < count_max:
            requested += shape.batch
            due_s = await pace.next_start()
            if due_s is None:
                return
            reply = await call(connection, measured, action, request, due_s=due_s)
            if reply is not None:
                refused = len(reply.get("Failed", ()))
                measured.counted(shape.batch - refused)
                if refused:
                    measured.failed(f"{action}: {reply['Failed'][0]}")

    await on_connections(target, shape.connections, work)


async def receive(target: Target, shape: Shape, measured: Measured) -> None:
    """Receive and delete until the queue is empty or the time is over."""
    pace = Pace(shape.rate_per_s, shape.duration_s)

    async def work(connection: LoadConnection) -> None:
        while (due_s := await pace.next_start()) is not None:
            found = await _take(connection, target, measured, due_s=due_s, count=_BATCH_COUNT_MAX)
            if not found:
                return

    await on_connections(target, shape.connections, work)


async def _take(
    connection: LoadConnection,
    target: Target,
    measured: Measured,
    *,
    due_s: float,
    count: int,
    wait_s: int = 0,
) -> list[Json]:
    """Receive, delete and count messages; return them."""
    url = target.queue_url
    request = {"QueueUrl": url, "MaxNumberOfMessages": count, "WaitTimeSeconds": wait_s}
    reply = await call(connection, measured, "ReceiveMessage", request, due_s=due_s)
    found: list[Json] = (reply or {}).get("Messages", [])
    if found:
        entries = [
            {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
            for number, message in enumerate(found)
        ]
        request = {"QueueUrl": url, "Entries": entries}
        start_s = time.perf_counter()
        await call(connection, measured, "DeleteMessageBatch", request, due_s=start_s)
        measured.counted(len(found))
    return found


async def latency(target: Target, shape: Shape, measured: Measured) -> None:
    """Send, receive and delete one message at a time, as an application that waits for each."""
    pace = Pace(shape.rate_per_s, shape.duration_s)
    request: Json = {"QueueUrl": target.queue_url, "MessageBody": "x" * shape.size_bytes}

    async def work(connection: LoadConnection) -> None:
        while (due_s := await pace.next_start()) is not None:
            if await call(connection, measured, "SendMessage", request, due_s=due_s) is not None:
                await _take(connection, target, measured, due_s=time.perf_counter(), count=1)

    await on_connections(target, shape.connections, work)


async def end_to_end(target: Target, shape: Shape, measured: Measured) -> None:
    """Measure from the planned time of a send to the reply of its receive. Half of the connections
    send, half wait for messages; each body carries its planned time."""
    pace = Pace(shape.rate_per_s, shape.duration_s)
    count = max(1, shape.connections // 2)
    sent = 0
    senders_left = count

    async def produce(connection: LoadConnection) -> None:
        nonlocal sent, senders_left
        try:
            while (due_s := await pace.next_start()) is not None:
                body = f"{due_s:.9f} ".ljust(shape.size_bytes, "x")
                request = {"QueueUrl": target.queue_url, "MessageBody": body}
                if (
                    await call(connection, measured, "SendMessage", request, due_s=due_s)
                    is not None
                ):
                    sent += 1
        finally:
            senders_left -= 1

    async def consume(connection: LoadConnection) -> None:
        # After the last send, allow 5 s for messages that have not been received yet.
        while senders_left or (measured.messages < sent and time.perf_counter() < pace.end_s + 5):
            start_s = time.perf_counter()
            for message in await _take(
                connection, target, measured, due_s=start_s, count=_BATCH_COUNT_MAX, wait_s=1
            ):
                due_text = message["Body"].partition(" ")[0]
                measured.took("end_to_end", time.perf_counter() - _due(due_text, start_s))

    await together([on_connections(target, count, produce), on_connections(target, count, consume)])
    measured.latencies.pop(
        "ReceiveMessage", None
    )  # the time spent waiting for messages means nothing


def _due(text: str, otherwise_s: float) -> float:
    """Parse the planned time; a queue given with --queue may have messages without one."""
    try:
        return float(text)
    except ValueError:
        return otherwise_s


def summary(measured: Measured) -> dict[str, Any]:
    # The run ends with the last message: after it consumers only wait.
    seconds = measured.last_s - measured.start_s
    return {
        "seconds": round(seconds, 3),
        "messages": measured.messages,
        "errors": measured.errors,
        "messages_per_s": round(measured.messages / seconds, 1) if seconds > 0 else 0.0,
        "latency_ms": {what: found.summary_ms() for what, found in measured.latencies.items()},
    }
