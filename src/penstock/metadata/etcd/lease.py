"""Keeping an etcd lease alive although single members fail.

Each keep-alive is a separate request, first to the member that replied last. If there is no reply
for a while, it is also sent to the next member, and so on in a cycle; the first reply counts. It is
a cycle because a member forwards the request to its leader: a request to a leader that has died is
never answered, while a later one reaches the new leader. Duplicates are harmless. A node must not
be declared dead because one member is, so there is one connection to each member, for keep-alives
only.

``membership/registration.py`` decides when the next keep-alive is due, and what follows if none
succeeds."""

import asyncio
from collections.abc import Callable
from itertools import cycle
from typing import Final

from penstock.metadata.etcd.links import EtcdConfig, Failed, Link, abandon, open_link
from penstock.metadata.etcd.wire import decode_keep_alive, encode_lease
from penstock.metadata.store import LeaseGone, StoreUnreachable, StoreUnusable
from penstock.model.errors import PenstockError

ROUND_SECONDS: Final = 0.1  # pause when all members have refused, which may be at once


class KeepAlives:
    def __init__(self, config: EtcdConfig, *, chance: Callable[[], float]) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._order = sorted(config.endpoints, key=lambda _one: chance())  # the order of requests
        self._links: dict[str, Link] = {}
        self._is_closed = False

    async def keep_alive(self, lease: int) -> int:
        """Return the ms that the lease lasts. Raises LeaseGone, or Unreachable without a reply."""
        if self._is_closed:
            raise StoreUnusable("The metadata store is closed.")
        until = self._loop.time() + self._config.keep_alive_ms / 1_000
        request = encode_lease(lease)
        turns = cycle(tuple(self._order))
        failure_count = 0
        pending: dict[asyncio.Task[bytes], str] = {}
        trouble: PenstockError = StoreUnreachable("etcd did not reply in time.")
        try:
            while (left := until - self._loop.time()) > 0:
                endpoint = next(turns)
                pending[self._begin(endpoint, request, left)] = endpoint
                done, _ = await asyncio.wait(
                    pending,
                    timeout=min(left, self._config.hedge_ms / 1_000),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    endpoint = pending.pop(task)
                    answer = await self._answer(task, endpoint)
                    if isinstance(answer, bytes):
                        return self._left_ms(answer, lease, endpoint)
                    trouble = answer
                    failure_count += 1
                    if failure_count % len(self._order) == 0:
                        await asyncio.sleep(ROUND_SECONDS)
            # A member that lags may not know a new lease: only the last reply counts.
            if isinstance(trouble, LeaseGone):
                raise LeaseGone(lease)
            raise StoreUnreachable(str(trouble))
        finally:
            await abandon(pending)

    def _begin(self, endpoint: str, request: bytes, seconds: float) -> asyncio.Task[bytes]:
        link = self._links.get(endpoint)
        if link is None:
            link = self._links[endpoint] = open_link(endpoint, self._config)
        return self._loop.create_task(
            link.keep_alive(request, seconds=seconds), name=f"keep-alive by {endpoint}"
        )

    async def _answer(self, task: asyncio.Task[bytes], endpoint: str) -> bytes | PenstockError:
        """Return a member's reply or error. Raises errors that every member would return."""
        try:
            return task.result()
        except Failed as failed:
            # After any error the next request uses a new connection.
            link = self._links.pop(endpoint, None)
            if link is not None:
                await link.channel.close()
            if failed.fault.is_final and not isinstance(failed.fault.error, LeaseGone):
                raise failed.fault.error from failed
            return failed.fault.error

    def _left_ms(self, answer: bytes, lease: int, endpoint: str) -> int:
        left_ms = decode_keep_alive(answer) * 1_000
        self._order.remove(endpoint)
        self._order.insert(0, endpoint)
        if left_ms <= 0:
            raise LeaseGone(lease)
        return left_ms

    async def close(self) -> None:
        self._is_closed = True
        for link in self._links.values():
            await link.channel.close()
        self._links.clear()
