"""Timers on the node's clock, and the intervals of periodic jobs."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from penstock.model.ports import Clock


async def cancel_all(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)


class Alarm:
    """A timer on the node's clock. It may ring early, so the callback must check the time."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at_ms = 0

    def set(self, at_ms: int | None) -> None:
        """Ring at this time, unless the alarm is already set to an earlier time."""
        if at_ms is None:
            return
        if self._timer is not None:
            if self._at_ms <= at_ms:
                return
            self._timer.cancel()
        self._at_ms = at_ms
        delay_s = max(1, at_ms - self._clock.mono_ms()) / 1_000
        self._timer = self._loop.call_later(delay_s, self._rings)

    def clear(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _rings(self) -> None:
        self._timer = None
        self._ring()


class Interval:
    """The interval of a periodic job. Changing it also affects a wait in progress."""

    def __init__(self, ms: int) -> None:
        self._ms = ms
        self._changed = asyncio.Event()

    def change(self, ms: int) -> None:
        if ms != self._ms:
            self._ms = ms
            self._changed.set()

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        since = loop.time()
        while (left := since + self._ms / 1_000 - loop.time()) > 0:
            self._changed.clear()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                pass
