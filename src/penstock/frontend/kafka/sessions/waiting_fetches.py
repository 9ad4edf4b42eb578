"""Fetches that wait for records. When the node stops, they get their replies at once."""

import asyncio

from penstock.frontend.limits.quotas import TenantQuotas


class WaitingFetches:
    __slots__ = ("_futures", "is_draining")

    def __init__(self) -> None:
        self._futures: set[asyncio.Future[None]] = set()
        self.is_draining = False

    def __len__(self) -> int:
        return len(self._futures)

    async def wait(self, future: asyncio.Future[None]) -> None:
        """Wait until ``future`` is done or ``drain`` is called."""
        if self.is_draining:
            return
        self._futures.add(future)
        try:
            await future
        finally:
            self._futures.discard(future)

    def drain(self) -> None:
        self.is_draining = True
        for future in self._futures:
            if not future.done():
                future.set_result(None)


class Waker:
    """The wait of one fetch, which is woken by new records and when its time is up."""

    __slots__ = ("_account", "_loop", "_quotas", "_timer", "future", "is_time_up")

    def __init__(self, quotas: TenantQuotas | None, account: str, wait_ms: int) -> None:
        """Begin a wait. Raises Throttled if too many requests of the tenant are waiting."""
        self._quotas = quotas if quotas is not None and quotas.begin_wait(account) else None
        self._account = account
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(wait_ms / 1_000, self._time_up)
        self.future: asyncio.Future[None] = self._loop.create_future()
        self.is_time_up = False

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def _time_up(self) -> None:
        self.is_time_up = True
        self.wake()

    def renew(self) -> None:
        """Create a new future for the next wait, unless the time is up."""
        if not self.is_time_up:
            self.future = self._loop.create_future()

    def end(self) -> None:
        self._timer.cancel()
        if self._quotas is not None:
            self._quotas.end_wait(self._account)
