"""Figures of the adaptive limit of requests in progress to one endpoint."""

import asyncio
import itertools

from benchmarks.push.bench import Bench
from benchmarks.push.endpoint import Arrival

SETTLED_S = 5.0
WATCHED_S = 5.0
WINDOW_NS = 100_000_000  # twice as long as a request: each has the most that were in progress


async def small_room(bench: Bench) -> None:
    """An endpoint that refuses requests above 8 at once."""
    arrivals = await _push(bench, 8, 4_000, SETTLED_S + WATCHED_S)
    settled = [each for each in arrivals if each.at_ns >= arrivals[0].at_ns + SETTLED_S * 1e9]
    peaks = _peaks(settled)
    bench.add("room for 8: requests in progress after 5 s, at least", min(peaks), least=4)
    bench.add("room for 8: requests in progress after 5 s, at most", max(peaks), most=10)
    refused = sum(each.is_refused for each in settled) / len(settled)
    bench.add("room for 8: refused after 5 s, %", refused * 100, most=5)


async def large_room(bench: Bench) -> None:
    """An endpoint with room for 64 requests at once."""
    arrivals = await _push(bench, 64, 8_000, 4.0)
    began_ns = arrivals[0].at_ns
    reached = (each.at_ns for each in arrivals if each.in_progress >= 48)
    seconds = (next(reached, began_ns + int(1e12)) - began_ns) / 1e9
    bench.add("room for 64: seconds until 48 requests are in progress", seconds, most=3)


async def _push(bench: Bench, room: int, count: int, seconds: float) -> list[Arrival]:
    client, path = bench.client, f"/room-{room}"
    arn = await client.topic(f"room-{room}")
    made = client.webhook(arn, bench.endpoint.url(path), paused=True)
    await client.fill(arn, count)
    client.change(made, "resume")
    await bench.endpoint.wait_for(path, 1)
    await asyncio.sleep(seconds)
    client.ask("DELETE", f"/subscriptions/{made}")
    arrivals = bench.endpoint.seen(path).arrivals
    assert len(arrivals) < count, "the messages were not enough"
    return arrivals


def _peaks(arrivals: list[Arrival]) -> list[int]:
    """Return the most requests that were in progress in each window."""
    windows = itertools.groupby(arrivals, key=lambda each: each.at_ns // WINDOW_NS)
    return [max(each.in_progress for each in window) for _, window in windows][1:-1]
