"""Keeping the probes true: once a second whoever knows is asked what is wrong, and what is no
longer wrong is taken back."""

import asyncio
from collections.abc import Callable, Container, Mapping

from penstock.frontend.admin.health import Health
from penstock.telemetry.metrics import Meter

LOOK_SECONDS = 1.0


class Reasons:
    def __init__(self, health: Health) -> None:
        self._health = health
        self._shown: set[str] = set()

    def show(self, found: Mapping[str, str], *, blocking: Container[str] = ()) -> None:
        """All there is now, by what it is about. Only those that are ``blocking`` keep requests
        away: a node with any other trouble still serves the rest."""
        for name in self._shown - found.keys():
            self._health.resolve(name)
        for name, text in found.items():
            self._health.report(name, text, is_blocking=name in blocking)
        self._shown = set(found)


async def watch_loop(meter: Meter, report: Callable[[], None]) -> None:
    """For ever: how late the loop runs, and what the probes should say."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LOOK_SECONDS
        await asyncio.sleep(LOOK_SECONDS)
        meter.loop_lagged(max(0.0, loop.time() - due))
        report()
