"""Parked receives of one topic, oldest first.

A wait is served by whichever partition has something first. The partition leases on the wait's
behalf and hands over what it took; nothing polls. A wait whose client has gone is skipped before
anything is leased for it.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from penstock.broker.taken import Taken
from penstock.model import limits
from penstock.model.errors import PenstockError, Throttled
from penstock.model.ports import LeaseRequest

RETRY_AFTER_MS = 1_000
SERVED_PER_TURN_MAX = 64  # waits; each takes up to 0.2 ms


class Wait:
    __slots__ = ("request", "taken")

    def __init__(self, request: LeaseRequest, loop: asyncio.AbstractEventLoop) -> None:
        self.request = request
        self.taken: asyncio.Future[Taken | None] = loop.create_future()


class Waits:
    def __init__(self) -> None:
        self._parked: deque[Wait] = deque()
        self._live_count = 0

    def __len__(self) -> int:
        return self._live_count

    def park(self, wait: Wait) -> None:
        if self._live_count >= limits.WAITS_PER_PARTITION_MAX:
            raise Throttled("too many parked receives", retry_after_ms=RETRY_AFTER_MS)
        self._parked.append(wait)
        self._live_count += 1

    def leave(self, wait: Wait) -> None:
        """The wait has ended, served or not. Its place in the line is dropped lazily, and the line
        is rebuilt when the dead outnumber the living."""
        self._live_count -= 1
        wait.taken.cancel()
        if len(self._parked) > 64 and len(self._parked) > 2 * self._live_count:
            self._parked = deque(w for w in self._parked if not w.taken.done())

    def serve(self, take: Callable[[LeaseRequest], Taken]) -> bool:
        """Offer what has become available to the waits in turn, until it or they run out. True:
        it stopped before that, and is to be called again in another turn of the loop."""
        for _ in range(SERVED_PER_TURN_MAX):
            while self._parked and self._parked[0].taken.done():
                self._parked.popleft()
            if not self._parked:
                return False
            taken = take(self._parked[0].request)
            if not (taken.deliveries or taken.late):
                return taken.is_cut
            self._parked.popleft().taken.set_result(taken)
        return True

    def fail(self, error: PenstockError) -> None:
        """End every wait: the topic is gone."""
        for wait in self._parked:
            if not wait.taken.done():
                wait.taken.set_exception(error)
        self._parked.clear()

    def end_empty(self) -> None:
        """Answer every wait with nothing, as one that ran out of time is answered."""
        for wait in self._parked:
            if not wait.taken.done():
                wait.taken.set_result(None)
        self._parked.clear()
