"""Figures of the memory of subscriptions that have nothing to do, or cannot do it."""

import asyncio

from benchmarks.proc import memory_bytes
from benchmarks.push.bench import Bench


async def idle(bench: Bench) -> None:
    client, count = bench.client, 1_000 // bench.part
    arn = await client.topic("idle")
    before = memory_bytes(bench.pid)
    for number in range(count):
        client.webhook(arn, bench.endpoint.url(f"/idle-{number}"))
    await asyncio.sleep(2.0)
    added = (memory_bytes(bench.pid) - before) / 1e6
    bench.add(f"memory of {count:,} idle webhooks, MB", added, most=25 / bench.part)


async def behind_breaker(bench: Bench) -> None:
    """Messages that an endpoint cannot get now. Some are published before the memory is read, so
    that the caches of the topic are full."""
    client, count = bench.client, 100_000 // bench.part
    arn = await client.topic("held")
    client.webhook(arn, bench.endpoint.url("/fail-held"))
    await client.fill(arn, count // 4)
    await bench.endpoint.wait_for("/fail-held", 5)
    await asyncio.sleep(1.0)
    before = memory_bytes(bench.pid)
    await client.fill(arn, count)
    await asyncio.sleep(1.0)
    added = (memory_bytes(bench.pid) - before) / 1e6
    bench.add(f"memory of {count:,} messages behind an open breaker, MB", added, most=5)
