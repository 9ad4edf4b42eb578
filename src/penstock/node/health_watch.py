"""Keeping the probes true: once a second a node is asked what is wrong with it."""

import asyncio
from collections.abc import Callable

from penstock.telemetry.metrics import Meter

LOOK_SECONDS = 1.0


async def watch_loop(meter: Meter, report: Callable[[], None]) -> None:
    """For ever: measure how late the event loop runs, and call ``report``."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LOOK_SECONDS
        await asyncio.sleep(LOOK_SECONDS)
        meter.loop_lagged(max(0.0, loop.time() - due))
        report()
