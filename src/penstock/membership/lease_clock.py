"""The lease of a node in the store, and until when the node may assume that it holds it (R20).

The store counts from its reply, the node from before its request: so the node's time always ends
first, however slow the reply was. The clock continues while the machine sleeps, because the store's
does too. The node uses only a part of the granted time, because two clocks do not run at exactly
the same speed.

Code that only the holder may run checks ``is_held`` at that moment; it does not rely on this task.
When the lease has ended in the store, it is not renewed: ``on_gone`` is called, and the owner may
start a new one. A store may also end a lease too early (an etcd leader that was stopped for longer
than the lease and resumes): if a watch shows that entries of the lease are gone, call ``ended``,
which is sooner than the next keep-alive.
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
    # An etcd election can block keep-alives for up to three seconds: shorter leases would end then.
    ttl_ms: int = 6_000
    every_ms: int = 1_500
    retry_ms: int = 100  # after a failed keep-alive
    used_percent: int = 80  # of the granted time


class LeaseClock:
    def __init__(
        self,
        store: Store,
        *,
        config: LeaseClockConfig | None = None,
        on_gone: Callable[[], None] = lambda: None,
        clock_ms: Callable[[], int] = boot_ms,
    ) -> None:
        """``on_gone``: called once when the store reports that the lease has ended."""
        self.lease = 0
        self.deadline_ms = 0  # by ``clock_ms``
        self.trouble: str | None = None  # why the last keep-alive failed
        self._store = store
        self._config = config or LeaseClockConfig()
        self._on_gone = on_gone
        self._clock_ms = clock_ms
        self._task: asyncio.Task[None] | None = None

    @property
    def is_held(self) -> bool:
        return self._clock_ms() < self.deadline_ms

    async def start(self) -> int:
        """Take a new lease and keep it alive. Raises the errors of the store."""
        assert self._task is None or self._task.done(), "a lease is still held"
        self.deadline_ms = 0
        sent_ms = self._clock_ms()
        self.lease = await self._store.grant(self._config.ttl_ms)
        self._renewed(sent_ms, self._config.ttl_ms)
        self._task = asyncio.create_task(self._keep(), name="lease clock")
        return self.lease

    async def stop(self) -> None:
        """Revoke the lease. If the store is not reachable, the lease ends by itself."""
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
                log.warning("lease revocation failed", extra={"reason": str(error)})

    def ended(self) -> None:
        """Stop holding the lease, because it is known to have ended."""
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
                    log.warning("lease keep-alive failed", extra={"reason": str(error)})
                self.trouble = str(error)
                pause_ms = self._config.retry_ms
                continue
            self.trouble = None
            self._renewed(sent_ms, left_ms)
            pause_ms = max(0, self._config.every_ms - (self._clock_ms() - sent_ms))
