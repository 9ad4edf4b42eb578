"""A run of the benchmark: the server, its client and endpoint, and the figures so far."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.push.client import BODY, Client
from benchmarks.push.endpoint import Endpoint
from penstock.net.http.client import HttpClient


@dataclass
class Bench:
    http: HttpClient
    client: Client
    endpoint: Endpoint
    pid: int  # of the server
    folder: Path  # for the data of other servers
    cores: set[int]  # of servers
    part: int  # divides the amount of work
    is_synced: bool  # every append waits for the disk
    missed: list[str] = field(default_factory=list)

    def add(self, text: str, value: float, *, least: float = 0, most: float = 0) -> None:
        """Print a figure and its bar, which is the least or the most that is good enough."""
        is_met = value >= least if least else value <= most
        sign, bar, verdict = "≥" if least else "≤", least or most, "met" if is_met else "MISSED"
        print(f"{text:<66} {value:>10,.2f}   {sign} {bar:<9,g} {verdict}", flush=True)
        if not is_met:
            self.missed.append(text)

    async def paced(
        self, arn: str, prefix: str, per_s: int, seconds: float, paths: int = 1
    ) -> None:
        """Publish at a constant rate, and wait until all endpoints got all messages. The endpoint
        counts how long each message took."""
        self.endpoint.reset()
        count, tasks, began = int(per_s * seconds), [], time.monotonic()
        for number in range(count):
            delay = began + number / per_s - time.monotonic()
            if delay > 0:
                await asyncio.sleep(delay)
            message = f"at {time.monotonic_ns()} {BODY[:900]}"
            tasks.append(asyncio.create_task(self.client.publish(arn, message)))
        await asyncio.gather(*tasks)
        await self.endpoint.wait_for(prefix, count * paths, is_timed=True)


def percentile(values: Sequence[float], part: float) -> float:
    return sorted(values)[int(part * (len(values) - 1))] if values else float("inf")
