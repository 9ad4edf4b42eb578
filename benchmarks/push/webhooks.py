"""Figures of webhooks: how fast, how late, and what one endpoint feels of others. Times are those
of the quietest round, so that other programs on the machine count less."""

import asyncio
import time

import aiohttp

from benchmarks.push.bench import Bench, percentile
from benchmarks.push.client import BODY, rate_of
from benchmarks.push.endpoint import GONE_AFTER

PER_S = 500
HEALTHY = 98
HEALTHY_PER_S = 10
ROUNDS = 5
TURNS = 9  # of healthy endpoints alone, and beside bad ones
BURST = 50  # messages to each healthy endpoint at once


async def rate(bench: Bench) -> None:
    client, endpoint, count = bench.client, bench.endpoint, 20_000 // bench.part
    arn = await client.topic("hooked")
    made = client.webhook(arn, endpoint.url("/hook"), paused=True)
    await client.fill(arn, count)
    await asyncio.sleep(1.0)  # until what the fill has left to do is done
    began = time.monotonic()
    client.change(made, "resume")
    await endpoint.wait_for("/hook", count)
    pushed = count / (time.monotonic() - began)
    bench.add("webhook pushes a second", pushed, least=4_000)
    bench.add("webhook pushes ÷ a bare aiohttp loop", pushed / await _aiohttp(bench), least=0.4)


async def _aiohttp(bench: Bench) -> float:
    url, data = bench.endpoint.url("/bare"), BODY.encode()
    async with aiohttp.ClientSession() as session:

        async def post() -> None:
            async with session.post(url, data=data) as reply:
                await reply.read()

        return await rate_of(post, 3.0 / bench.part, 16)


async def latency(bench: Bench) -> None:
    arn = await bench.client.topic("paced")
    bench.client.webhook(arn, bench.endpoint.url("/paced"))
    late_ms = await _late_ms(bench, arn, "/paced", 10.0)
    most = 25 if bench.is_synced else 15
    bench.add(f"publish to endpoint at {PER_S}/s, p99 in ms", late_ms, most=most)


async def _late_ms(bench: Bench, arn: str, path: str, seconds: float) -> float:
    """Return the p99 of the time from publish to endpoint."""
    found = []
    for _ in range(ROUNDS):
        await bench.paced(arn, path, PER_S, seconds / bench.part / ROUNDS)
        found.append(percentile(bench.endpoint.seen(path).late_ms, 0.99))
    return min(found)


async def isolation(bench: Bench) -> None:
    """Healthy endpoints alone and beside one that hangs and one that fails, in turns."""
    client, endpoint, count = bench.client, bench.endpoint, HEALTHY // bench.part
    arn = await client.topic("shared")
    paths = [f"/good-{number}" for number in range(count)]
    for path in paths:
        client.webhook(arn, endpoint.url(path))
    bad = [client.webhook(arn, endpoint.url(path), paused=True) for path in ("/hang", "/fail")]
    late_ms: dict[bool, list[float]] = {False: [], True: []}
    burst_s: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(TURNS):
        for is_beside in (False, True):
            for each in bad:
                client.change(each, "resume" if is_beside else "pause")
            await bench.paced(arn, "/good-", HEALTHY_PER_S, 2.0 / bench.part, count)
            found = [late for path in paths for late in endpoint.seen(path).late_ms]
            late_ms[is_beside].append(percentile(found, 0.99))
            endpoint.reset()
            began = time.monotonic()
            await client.fill(arn, BURST)
            await endpoint.wait_for("/good-", BURST * count)
            burst_s[is_beside].append(time.monotonic() - began)
    alone, beside = min(late_ms[False]), min(late_ms[True])
    text = f"{count} endpoints beside one that hangs and one that fails"
    bench.add(f"{text}: p99 ÷ alone ({alone:.1f} ms)", beside / alone, most=1.5)
    bench.add(f"{text}: rate", min(burst_s[False]) / min(burst_s[True]), least=0.95)


async def replay(bench: Bench) -> None:
    """New messages while old ones are sent again to the same endpoint."""
    client, endpoint, count = bench.client, bench.endpoint, 100_000 // bench.part
    arn = await client.topic("replayed")
    await client.fill(arn, count)
    made = client.webhook(arn, endpoint.url("/replayed"))
    alone = await _late_ms(bench, arn, "/replayed", 8.0)
    endpoint.reset()
    client.change(made, "replay", earliest=True)
    await endpoint.wait_for("/replayed", 1)
    beside = await _late_ms(bench, arn, "/replayed", 8.0)
    (shown,) = client.ask("GET", f"/subscriptions/{made}")["replays"]
    assert shown.get("state") != "completed", "the replay ended before the new messages"
    client.ask("DELETE", f"/subscriptions/{made}")
    text = f"p99 beside a replay of {count:,} ÷ alone ({alone:.1f} ms)"
    bench.add(text, beside / alone, most=1.5)


async def ends(bench: Bench) -> None:
    """How long requests go on after a pause, a deletion, and the first reply 410."""
    client = bench.client
    for what in ("pause", "delete", "gone"):
        path, arn = f"/{what}", await client.topic(f"ends-{what}")
        made = client.webhook(arn, bench.endpoint.url(path), rate_per_s=200)
        await client.fill(arn, 1_000)
        await bench.endpoint.wait_for(path, GONE_AFTER)
        if what == "pause":
            client.change(made, "pause")
        elif what == "delete":
            client.ask("DELETE", f"/subscriptions/{made}")
        ended_ns = time.monotonic_ns()
        await asyncio.sleep(1.5)
        over_ms = max(0.0, bench.endpoint.seen(path).last_ns - ended_ns) / 1e6
        bench.add(f"requests go on after {what} for ms", over_ms, most=1_000)
