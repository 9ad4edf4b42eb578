"""A loop that updates the health of a node every second."""

import asyncio
from collections.abc import Callable

from penstock.telemetry.metrics import Meter

LOOK_SECONDS = 1.0


async def watch_loop(meter: Meter, report: Callable[[], None]) -> None:
    """Measure the lag of the event loop and call ``report``, forever."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LOOK_SECONDS
        await asyncio.sleep(LOOK_SECONDS)
        meter.loop_lagged(max(0.0, loop.time() - due))
        report()
