"""What a POST of 1 KiB over keep-alive costs the process that sends it: ``python -m
benchmarks.http_client [seconds]``.

Penstock's client and aiohttp's take turns against the same bare server in another process, on the
event loop of production, with 1 and with 16 requests at a time. Counted is the processor time of
the sender, user and system, because the rate depends on what else the machine does."""

import asyncio
import gc
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection

import aiohttp
import uvloop

from benchmarks.proc import split_cores
from penstock.net.http.client import HttpClient
from penstock.net.http.client_messages import ClientRequest, Origin

BODY = b"x" * 1_024
HEADERS = (
    ("Content-Type", "application/json"),
    ("User-Agent", "penstock"),
    ("webhook-id", "5b1e5a0c-6a4c-4e0e-9d5c-0a0f3a4b9c11"),
    ("webhook-timestamp", "1800000000"),
    ("webhook-signature", "v1,MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="),
)
REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"
OWN_US_MAX = 20.0
TURNS = 3

Send = Callable[[], Awaitable[None]]


class _Server(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._held = b""

    def data_received(self, data: bytes) -> None:
        data = self._held + data
        end = data.find(b"\r\n\r\n")
        if end >= 0 and len(data) >= end + 4 + len(BODY):
            data = b""
            self._transport.write(REPLY)  # type: ignore[attr-defined]
        self._held = data


def _serve(ready: Connection, cores: set[int]) -> None:
    os.sched_setaffinity(0, cores)

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(_Server, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(run())


@asynccontextmanager
async def _own(port: int) -> AsyncIterator[Send]:
    client = HttpClient()
    origin = Origin("127.0.0.1", port)

    async def send() -> None:
        request = ClientRequest(origin=origin, target="/hook", headers=HEADERS, body=BODY)
        reply = await client.send(request, addresses=("127.0.0.1",), timeout_s=15)
        assert (reply.status, reply.body) == (200, b"ok")

    yield send
    client.close()


@asynccontextmanager
async def _aiohttp(port: int) -> AsyncIterator[Send]:
    timeout = aiohttp.ClientTimeout(total=15)
    jar = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(timeout=timeout, cookie_jar=jar) as session:
        url = f"http://127.0.0.1:{port}/hook"
        headers = dict(HEADERS)

        async def send() -> None:
            async with session.post(
                url, data=BODY, headers=headers, allow_redirects=False
            ) as reply:
                assert (reply.status, await reply.read()) == (200, b"ok")

        yield send


async def _measure(send: Send, *, at_once: int, seconds: float) -> tuple[float, float]:
    """Return µs of processor time per request, and requests per second."""
    count = 0
    ends_at = 0.0

    async def worker() -> None:
        nonlocal count
        while time.perf_counter() < ends_at:
            await send()
            count += 1

    ends_at = time.perf_counter() + seconds / 4
    await asyncio.gather(*(worker() for _ in range(at_once)))  # connections, caches
    gc.collect()
    count, started, used = 0, time.perf_counter(), time.process_time()
    ends_at = started + seconds
    await asyncio.gather(*(worker() for _ in range(at_once)))
    return (time.process_time() - used) / count * 1e6, count / (time.perf_counter() - started)


async def _run(port: int, seconds: float) -> bool:
    is_met = True
    print(f"{'at once':>7} {'client':>9} {'CPU µs':>8} {'per s':>8}   (best of {TURNS})")
    for at_once in (1, 16):
        best: dict[str, tuple[float, float]] = {}
        for _ in range(TURNS):
            for name, make in (("penstock", _own), ("aiohttp", _aiohttp)):
                async with make(port) as send:
                    found = await _measure(send, at_once=at_once, seconds=seconds)
                    best[name] = min(best.get(name, found), found)
        for name, (cpu_us, rate) in best.items():
            print(f"{at_once:>7} {name:>9} {cpu_us:>8.1f} {rate:>8,.0f}")
        ratio = best["aiohttp"][0] / best["penstock"][0]
        is_met &= best["penstock"][0] <= OWN_US_MAX
        print(f"        aiohttp ÷ penstock: {ratio:.1f}; bar: ≤ {OWN_US_MAX:g} µs")
    return is_met


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    server_cores, own_cores = split_cores()
    near, far = Pipe()
    server = get_context("spawn").Process(target=_serve, args=(far, server_cores), daemon=True)
    server.start()
    os.sched_setaffinity(0, own_cores)
    try:
        return 0 if uvloop.run(_run(near.recv(), seconds)) else 1
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    sys.exit(main())
