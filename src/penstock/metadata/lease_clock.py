"""A node's own lease in the store, and until when the node may take itself for its holder (R20).

The store counts from when it answered, the node from before it asked: so the node gives up first,
however slow the answer was. The clock is the one that goes on while the machine sleeps, for the
store's does too. Of the time that the store granted the node uses only a part, because two clocks
do not run alike.

Whoever does something that only the holder may do looks at ``is_held`` at that moment, and not at
whether this task has noticed anything. When the lease has ended in the store nothing is renewed any
more: ``on_gone`` is called, and whoever wants another one starts again. A store may also end one
too early (an etcd leader that was stopped for longer than the lease lasts, and wakes up): whoever
sees by a watch that what hung on the lease is gone says so by ``ended``, which is sooner than the
next keep-alive.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.metadata.store import LeaseGone, Store
from penstock.model.errors import PenstockError

log = logging.getLogger(__name__)


def boot_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


@dataclass(frozen=True, slots=True)
class LeaseClockConfig:
    # Elections of etcd take keep-alives out for up to three seconds: shorter leases would end then.
    ttl_ms: int = 6_000
    every_ms: int = 1_500
    retry_ms: int = 100  # after one that was not answered
    used_percent: int = 80  # of the time granted


class LeaseClock:
    def __init__(
        self,
        store: Store,
        *,
        config: LeaseClockConfig | None = None,
        on_gone: Callable[[], None] = lambda: None,
        clock_ms: Callable[[], int] = boot_ms,
    ) -> None:
        """``on_gone``: called once when the store says that the lease has ended."""
        self.lease = 0
        self.deadline_ms = 0  # by ``clock_ms``
        self.trouble: str | None = None  # why the last keep-alive was not answered
        self._store = store
        self._config = config or LeaseClockConfig()
        self._on_gone = on_gone
        self._clock_ms = clock_ms
        self._task: asyncio.Task[None] | None = None

    @property
    def is_held(self) -> bool:
        return self._clock_ms() < self.deadline_ms

    async def start(self) -> int:
        """Takes a new lease and keeps it. Raises what the store raises."""
        assert self._task is None or self._task.done(), "one lease at a time"
        self.deadline_ms = 0
        sent_ms = self._clock_ms()
        self.lease = await self._store.grant(self._config.ttl_ms)
        self._renewed(sent_ms, self._config.ttl_ms)
        self._task = asyncio.create_task(self._keep(), name="lease clock")
        return self.lease

    async def stop(self) -> None:
        """Gives the lease back. If the store cannot be asked it ends by itself."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        self.deadline_ms = 0
        lease, self.lease = self.lease, 0
        if lease:
            try:
                await self._store.revoke(lease)
            except PenstockError as error:
                log.warning("lease not revoked", extra={"why": str(error)})

    def ended(self) -> None:
        """Somebody has heard that the lease has ended: from now on it is not held."""
        task, self._task = self._task, None
        if task is None or not self.lease:
            return
        task.cancel()
        self._gone()

    def _gone(self) -> None:
        log.warning("lease ended", extra={"lease": f"{self.lease:x}"})
        self.deadline_ms = self.lease = 0
        self._on_gone()

    def _renewed(self, sent_ms: int, left_ms: int) -> None:
        used_ms = min(left_ms, self._config.ttl_ms) * self._config.used_percent // 100
        self.deadline_ms = max(self.deadline_ms, sent_ms + used_ms)

    async def _keep(self) -> None:
        pause_ms = self._config.every_ms
        while True:
            await asyncio.sleep(pause_ms / 1_000)
            sent_ms = self._clock_ms()
            try:
                left_ms = await self._store.keep_alive(self.lease)
            except LeaseGone:
                self._gone()
                return
            except PenstockError as error:
                if self.trouble is None:
                    log.warning("lease not kept alive", extra={"why": str(error)})
                self.trouble = str(error)
                pause_ms = self._config.retry_ms
                continue
            self.trouble = None
            self._renewed(sent_ms, left_ms)
            pause_ms = max(0, self._config.every_ms - (self._clock_ms() - sent_ms))
