"""What push costs, each figure beside its bar: ``python -m benchmarks.push [--quick]``.

A server on one core; on the other core the client that publishes and an endpoint that replies 200
to every request without looking at it. Rates are ratios to the same work without push in the same
run: bare appends, SendMessage, a bare loop of an HTTP client that posts to the same endpoint."""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import uvloop

from benchmarks.proc import memory_bytes, split_cores
from benchmarks.server import Server
from penstock.net.http.client import HttpClient
from penstock.net.http.client_messages import ClientReply, ClientRequest, Origin

BODY = "x" * 1_024
REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
FAILURE = b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno"
GONE = b"HTTP/1.1 410 Gone\r\nContent-Length: 2\r\n\r\nno"
GONE_AFTER = 100  # requests to a path /gone… that get 200
FORM = (("Content-Type", "application/x-www-form-urlencoded"),)
SECONDS_MAX = 120.0  # only a hang takes so long


# ── The endpoint, in a process of its own ────────────────────────────────────────────────────


class _Site:
    """Counts requests by path, and the time since the one that a body names."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.late_ms: dict[str, list[float]] = {}
        self.last_ns: dict[str, float] = {}  # of the last request


class _Endpoint(asyncio.Protocol):
    def __init__(self, site: _Site) -> None:
        self._site = site
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        data = self._held + data
        while (end := data.find(b"\r\n\r\n")) >= 0:
            head = data[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(data) < end + 4 + length:
                break
            path = data.split(b" ", 2)[1].decode()
            self._answer(path, data[end + 4 : end + 4 + length])
            data = data[end + 4 + length :]
        self._held = data

    def _answer(self, path: str, body: bytes) -> None:
        site = self._site
        site.counts[path] = site.counts.get(path, 0) + 1
        site.last_ns[path] = time.monotonic_ns()
        if body.startswith(b"at "):
            sent_ns = int(body[3:].split(b" ", 1)[0])
            site.late_ms.setdefault(path, []).append((time.monotonic_ns() - sent_ns) / 1e6)
        if path.startswith("/hang"):
            return
        reply = FAILURE if path.startswith("/fail") else REPLY
        is_gone = path.startswith("/gone") and site.counts[path] > GONE_AFTER
        self._transport.write(GONE if is_gone else reply)


def _serve(pipe: Connection, cores: set[int]) -> None:
    os.sched_setaffinity(0, cores)

    async def run() -> None:
        site = _Site()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Endpoint(site), "127.0.0.1", 0, backlog=2_048)
        pipe.send(server.sockets[0].getsockname()[1])

        def asked() -> None:
            what = pipe.recv()
            if what == "reset":
                site.counts.clear()
                site.late_ms.clear()
            late = {path: list(found) for path, found in site.late_ms.items()}
            pipe.send((dict(site.counts), late, dict(site.last_ns)))

        loop.add_reader(pipe.fileno(), asked)
        await asyncio.Event().wait()

    uvloop.run(run())


class Seen(NamedTuple):
    """What the endpoint has seen, by path."""

    counts: dict[str, int]
    late_ms: dict[str, list[float]]
    last_ns: dict[str, float]


class Endpoint:
    def __init__(self, cores: set[int]) -> None:
        self._near, far = Pipe()
        context = get_context("spawn")
        self._process = context.Process(target=_serve, args=(far, cores), daemon=True)
        self._process.start()
        self.port: int = self._near.recv()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def ask(self, what: str = "read") -> Seen:
        self._near.send(what)
        return Seen(*self._near.recv())

    async def count(self, path: str, wanted: int) -> None:
        ends_at = time.monotonic() + SECONDS_MAX
        while self.ask().counts.get(path, 0) < wanted:
            assert time.monotonic() < ends_at, (
                f"{path}: {self.ask().counts.get(path, 0)} of {wanted}"
            )
            await asyncio.sleep(0.005)

    def close(self) -> None:
        self._process.terminate()
        self._process.join()


# ── The client ───────────────────────────────────────────────────────────────────────────────


class Client:
    """Makes SQS and SNS requests, without a signature, and requests to the admin API."""

    def __init__(self, http: HttpClient, url: str, admin: str) -> None:
        self._http, self.admin = http, admin
        found = urllib.parse.urlsplit(url)
        self._origin = Origin(found.hostname or "", found.port or 0)

    async def call(self, version: str, action: str, **fields: str) -> str:
        form = {"Action": action, "Version": version, **fields}
        reply = await self.post(urllib.parse.urlencode(form).encode())
        assert reply.status == 200, reply.body
        return reply.body.decode()

    async def post(self, body: bytes) -> ClientReply:
        request = ClientRequest(origin=self._origin, target="/", headers=FORM, body=body)
        return await self._http.send(request, addresses=("127.0.0.1",), timeout_s=SECONDS_MAX)

    async def sns(self, action: str, **fields: str) -> str:
        return await self.call("2010-03-31", action, **fields)

    async def sqs(self, action: str, **fields: str) -> str:
        return await self.call("2012-11-05", action, **fields)

    async def topic(self, name: str) -> str:
        return _between(await self.sns("CreateTopic", Name=name), "TopicArn")

    async def queue(self, name: str) -> str:
        return _between(await self.sqs("CreateQueue", QueueName=name), "QueueUrl")

    async def subscribe_queue(self, arn: str, name: str) -> None:
        raw = {"Attributes.entry.1.key": "RawMessageDelivery", "Attributes.entry.1.value": "true"}
        queue = f"arn:aws:sqs:us-east-1:000000000000:{name}"
        await self.sns("Subscribe", TopicArn=arn, Protocol="sqs", Endpoint=queue, **raw)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            f"{self.admin}/api/v1{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=SECONDS_MAX) as reply:
            return json.loads(reply.read())

    def webhook(self, source: str, url: str, *, paused: bool = False, **settings: object) -> str:
        body = {"source": source, "endpoint": url, "settings": settings, "paused": paused}
        return str(self.ask("POST", "/subscriptions", body)["id"])

    async def fill(self, arn: str, count: int) -> None:
        """Publish messages of 1 KiB, ten in a request."""
        for start in range(0, count, 160):
            batches = range(start, min(start + 160, count), 10)
            await asyncio.gather(*(self._publish_ten(arn, first) for first in batches))

    async def _publish_ten(self, arn: str, first: int) -> None:
        fields = {"TopicArn": arn}
        for number in range(10):
            entry = f"PublishBatchRequestEntries.member.{number + 1}"
            fields |= {f"{entry}.Id": str(first + number), f"{entry}.Message": BODY}
        await self.sns("PublishBatch", **fields)


def _between(text: str, name: str) -> str:
    return text.partition(f"<{name}>")[2].partition(f"</{name}>")[0]


async def rate_of(work: Callable[[], Awaitable[object]], seconds: float, at_once: int) -> float:
    """Return how often per second something is done, ``at_once`` at the same time."""
    count, ends_at = 0, time.monotonic() + seconds

    async def repeat() -> None:
        nonlocal count
        while time.monotonic() < ends_at:
            await work()
            count += 1

    await asyncio.gather(*(repeat() for _ in range(at_once)))
    return count / seconds


def percentile(values: Sequence[float], part: float) -> float:
    return sorted(values)[int(part * (len(values) - 1))] if values else float("inf")


# ── Figures ──────────────────────────────────────────────────────────────────────────────────


@dataclass
class Figure:
    text: str
    value: float
    bar: float
    is_least: bool  # the bar is the least value that is good enough

    @property
    def is_met(self) -> bool:
        return self.value >= self.bar if self.is_least else self.value <= self.bar


class Bench:
    def __init__(
        self, client: Client, endpoint: Endpoint, pid: int, *, is_quick: bool, is_synced: bool
    ) -> None:
        self.client, self.endpoint, self._pid = client, endpoint, pid
        self._is_synced = is_synced  # every append waits for the disk
        self.part = 10 if is_quick else 1
        self.figures: list[Figure] = []

    def add(self, text: str, value: float, *, least: float = 0, most: float = 0) -> None:
        figure = Figure(text, value, least or most, bool(least))
        self.figures.append(figure)
        sign, verdict = ("≥", "≤")[not least], "met" if figure.is_met else "MISSED"
        print(f"{text:<66} {value:>10,.2f}   {sign} {figure.bar:<9,g} {verdict}", flush=True)

    async def fan_out(self) -> None:
        client, count = self.client, 1_000 // self.part
        arn = await client.topic("wide")
        names = [f"wide-{number}" for number in range(count)]
        urls = [await client.queue(name) for name in names]
        for name in names:
            await client.subscribe_queue(arn, name)
        await client.sns("Publish", TopicArn=arn, Message=BODY)
        bare, pushed = [], []
        for _ in range(5):
            began = time.monotonic()
            for start in range(0, count, 250):
                sends = (
                    client.sqs("SendMessage", QueueUrl=url, MessageBody=BODY)
                    for url in urls[start : start + 250]
                )
                await asyncio.gather(*sends)
            bare.append(time.monotonic() - began)
            began = time.monotonic()
            await client.sns("Publish", TopicArn=arn, Message=BODY)
            last = urls[-1]
            while "<Message>" not in await client.sqs("ReceiveMessage", QueueUrl=last):
                pass
            pushed.append(time.monotonic() - began)
        ratio = percentile(pushed, 0.5) / percentile(bare, 0.5)
        self.add(f"one message to {count:,} queues ÷ {count:,} SendMessage", ratio, most=1.6)
        # 1.6 times the bare appends of this kind of machine: 40 µs each, with fsync 150 µs.
        took_ms, bar = percentile(pushed, 0.5) * 1_000, 240 if self._is_synced else 65
        self.add(f"one message to {count:,} queues, ms", took_ms, most=bar / self.part)

    async def publish_rate(self) -> None:
        client, seconds = self.client, 5.0 / self.part
        arn, url = await client.topic("single"), await client.queue("single")
        await client.subscribe_queue(arn, "single")
        sends = await rate_of(
            lambda: client.sqs("SendMessage", QueueUrl=url, MessageBody=BODY), seconds, 16
        )
        publishes = await rate_of(
            lambda: client.sns("Publish", TopicArn=arn, Message=BODY), seconds, 16
        )
        self.add("Publish to one raw queue ÷ SendMessage", publishes / sends, least=0.35)

    async def found_at_once(self) -> None:
        """Publish, then receive without waiting: the message must be there."""
        client, count, found = self.client, 10_000 // self.part, 0
        arn, url = await client.topic("found"), await client.queue("found")
        await client.subscribe_queue(arn, "found")
        for number in range(count):
            await client.sns("Publish", TopicArn=arn, Message=f"number {number}")
            reply = await client.sqs("ReceiveMessage", QueueUrl=url)
            found += f"<Body>number {number}</Body>" in reply
        self.add(f"of {count:,} messages, found by the next receive", found, least=count)

    async def webhook_rate(self) -> None:
        client, endpoint, count = self.client, self.endpoint, 20_000 // self.part
        arn = await client.topic("hooked")
        made = client.webhook(arn, endpoint.url("/hook"), paused=True)
        await client.fill(arn, count)
        await asyncio.sleep(1.0)
        client.ask("POST", f"/subscriptions/{made}/resume", {})
        began = time.monotonic()
        await endpoint.count("/hook", count)
        rate = count / (time.monotonic() - began)
        self.add("webhook pushes a second", rate, least=4_000)
        bare = await self._aiohttp_rate()
        self.add("webhook pushes ÷ a bare aiohttp loop", rate / bare, least=0.4)

    async def _aiohttp_rate(self) -> float:
        url, data = self.endpoint.url("/bare"), BODY.encode()
        async with aiohttp.ClientSession() as session:

            async def post() -> None:
                async with session.post(url, data=data) as reply:
                    await reply.read()

            return await rate_of(post, 3.0 / self.part, 16)

    async def latency(self) -> None:
        arn = await self.client.topic("paced")
        self.client.webhook(arn, self.endpoint.url("/paced"))
        late = await self._paced(arn, ("/paced",), 500, 10.0 / self.part)
        self.add(
            "publish to endpoint at 500/s, p99 in ms",
            percentile(late, 0.99),
            most=25 if self._is_synced else 15,
        )

    async def _paced(
        self, arn: str, paths: Sequence[str], per_s: int, seconds: float
    ) -> list[float]:
        """Publish at a constant rate, and return the times until endpoints got the messages."""
        self.endpoint.ask("reset")
        client, count = self.client, int(per_s * seconds)
        tasks, began = [], time.monotonic()
        for number in range(count):
            delay = began + number / per_s - time.monotonic()
            if delay > 0:
                await asyncio.sleep(delay)
            message = f"at {time.monotonic_ns()} {BODY[:900]}"
            tasks.append(asyncio.create_task(client.sns("Publish", TopicArn=arn, Message=message)))
        await asyncio.gather(*tasks)
        for path in paths:
            await self.endpoint.count(path, count)
        found = self.endpoint.ask().late_ms
        return [late for path in paths for late in found.get(path, ())]

    async def isolation(self) -> None:
        client, count = self.client, 98 // self.part
        seconds, per_s = 10.0 / self.part, 10
        paths = [f"/good-{number}" for number in range(count)]
        arn = await client.topic("shared")
        for path in paths:
            client.webhook(arn, self.endpoint.url(path))
        alone = await self._paced(arn, paths, per_s, seconds)
        for path in ("/hang", "/fail"):
            client.webhook(arn, self.endpoint.url(path))
        beside = await self._paced(arn, paths, per_s, seconds)
        ratio = percentile(beside, 0.99) / percentile(alone, 0.99)
        self.add(
            f"{count} endpoints beside one that hangs and one that fails: p99", ratio, most=1.5
        )

    async def ends(self) -> None:
        """How long requests go on after a pause, a deletion, and the first reply 410."""
        client = self.client
        for what in ("pause", "delete", "gone"):
            path, arn = f"/{what}", await client.topic(f"ends-{what}")
            made = client.webhook(arn, self.endpoint.url(path), rate_per_s=200)
            await client.fill(arn, 1_000)
            await self.endpoint.count(path, GONE_AFTER)
            if what == "pause":
                client.ask("POST", f"/subscriptions/{made}/pause", {})
            elif what == "delete":
                client.ask("DELETE", f"/subscriptions/{made}")
            ended_ns = time.monotonic_ns()
            await asyncio.sleep(2.0)
            over_ms = max(0.0, self.endpoint.ask().last_ns[path] - ended_ns) / 1e6
            self.add(f"requests go on after {what} for ms", over_ms, most=1_000)

    async def idle(self) -> None:
        client, count = self.client, 1_000 // self.part
        arn = await client.topic("idle")
        before = memory_bytes(self._pid)
        for number in range(count):
            client.webhook(arn, self.endpoint.url(f"/idle-{number}"))
        await asyncio.sleep(2.0)
        added = (memory_bytes(self._pid) - before) / 1e6
        self.add(f"memory of {count:,} idle webhooks, MB", added, most=25)


async def run(server: Server, endpoint: Endpoint, *, is_quick: bool, is_synced: bool) -> bool:
    client = HttpClient()
    bench = Bench(
        Client(client, f"http://{server.host}:{server.port}", server.address_of("admin")),
        endpoint,
        server.pid,
        is_quick=is_quick,
        is_synced=is_synced,
    )
    try:
        await bench.publish_rate()
        await bench.found_at_once()
        await bench.webhook_rate()
        await bench.latency()
        await bench.isolation()
        await bench.fan_out()
        await bench.ends()
        await bench.idle()
    finally:
        client.close()
    return all(figure.is_met for figure in bench.figures)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure push, each figure beside its bar.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--fsync", default="never", choices=("never", "always"))
    given = parser.parse_args()
    server_cores, own_cores = split_cores()
    os.sched_setaffinity(0, own_cores)
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        command = [sys.executable, "-m", "penstock", "serve", "--data", f"{folder}/data"]
        command += ["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--kafka", "off"]
        command += ["--fsync", given.fsync]
        endpoint = Endpoint(own_cores)
        server = Server(command, env={}, cores=server_cores, folder=Path.cwd())
        try:
            server.wait_for_line()
            is_met = uvloop.run(
                run(server, endpoint, is_quick=given.quick, is_synced=given.fsync == "always")
            )
        finally:
            server.stop()
            endpoint.close()
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
