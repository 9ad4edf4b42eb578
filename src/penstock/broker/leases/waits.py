"""The parked receives (long polls) of one queue or share, oldest first. A parked receive is served
by the first partition that has a message."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from penstock.broker.storage.flush import Flush
from penstock.cursor.leases.events import Pick
from penstock.model import limits
from penstock.model.errors import PenstockError, Throttled
from penstock.model.message import Delivery
from penstock.model.ports import LeaseRequest

RETRY_AFTER_MS = 1_000
SERVED_PER_TURN_MAX = 64  # each takes up to 0.2 ms


class LeaseResult(msgspec.Struct, gc=False):
    deliveries: list[Delivery]
    dead: list[Pick]  # messages to move to the dead-letter queue
    flush: Flush | None = None  # makes the leases durable
    is_over_limit: bool = False
    late: list[Pick] = []  # also leased; ``finish`` reads their records from a large batch
    finish: Callable[["LeaseResult"], Awaitable[None]] | None = None  # set if ``late`` is not empty
    # Nothing was found yet, but there is more to read. Retry after ``RecordReader.ready``.
    is_cut: bool = False


class Wait:
    __slots__ = ("request", "result")

    def __init__(self, request: LeaseRequest, loop: asyncio.AbstractEventLoop) -> None:
        self.request = request
        self.result: asyncio.Future[LeaseResult | None] = loop.create_future()


class Waits:
    def __init__(self) -> None:
        self._parked: deque[Wait] = deque()
        self._live_count = 0

    def __len__(self) -> int:
        return self._live_count

    def park(self, wait: Wait) -> None:
        if self._live_count >= limits.WAITS_PER_PARTITION_MAX:
            raise Throttled(
                "Too many receives are already waiting for messages of this queue; retry later.",
                retry_after_ms=RETRY_AFTER_MS,
            )
        self._parked.append(wait)
        self._live_count += 1

    def leave(self, wait: Wait) -> None:
        """Remove a receive. Removed receives are dropped from memory when they are the majority."""
        self._live_count -= 1
        wait.result.cancel()
        if len(self._parked) > 64 and len(self._parked) > 2 * self._live_count:
            self._parked = deque(w for w in self._parked if not w.result.done())

    def serve(self, lease: Callable[[LeaseRequest], LeaseResult]) -> bool:
        """Lease messages for waiting receives. Returns True if it should be called again soon."""
        for _ in range(SERVED_PER_TURN_MAX):
            while self._parked and self._parked[0].result.done():
                self._parked.popleft()
            if not self._parked:
                return False
            result = lease(self._parked[0].request)
            if not (result.deliveries or result.late):
                return result.is_cut
            self._parked.popleft().result.set_result(result)
        return True

    def end(self, error: PenstockError | None = None) -> None:
        for wait in self._parked:
            if not wait.result.done():
                if error is None:
                    wait.result.set_result(None)
                else:
                    wait.result.set_exception(error)
        self._parked.clear()
