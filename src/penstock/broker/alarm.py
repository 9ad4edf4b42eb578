"""One timer on the node's own clock, for a shell whose core says when it wants to be asked again.

The loop's timers and the clock may disagree by a little, and deadlines are pushed back all the
time. So an alarm may ring too early, never too late: who is rung looks at the clock, and sets it
again.
"""

import asyncio
from collections.abc import Callable

from penstock.model.ports import Clock


class Alarm:
    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at_ms = 0

    def set(self, at_ms: int | None) -> None:
        """Ring at this time of the monotonic clock, unless it rings before that anyway."""
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
