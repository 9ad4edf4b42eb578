"""PasswordHashing of keys from passwords, in threads: a few at once, one per payer, payers in turn.

A derivation is milliseconds of work on purpose. A payer is the tenant of the user who logs in, or
the address of a client who names no known user. However many logins one payer begins, they take one
thread, and a login of another payer starts as soon as a thread is free.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from penstock.model.limits import DERIVATIONS_MAX

Work = Callable[[], bytes]


class PasswordHashing:
    def __init__(self) -> None:
        # By payer, the next payer first: the work of each waiting login, in order of arrival.
        self._waiting: dict[str, dict[asyncio.Future[bytes], Work]] = {}
        self._running: set[str] = set()  # payers

    async def run(self, payer: str, work: Work) -> bytes:
        """Return the result of ``work``, which a thread calls when it is the payer's turn."""
        waiter: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(payer, {})[waiter] = work
        self._start()
        try:
            return await waiter
        finally:
            self._forget(payer, waiter)  # still waiting if the client is gone

    def _forget(self, payer: str, waiter: asyncio.Future[bytes]) -> None:
        waiting = self._waiting.get(payer, {})
        if waiting.pop(waiter, None) is not None and not waiting:
            del self._waiting[payer]

    def _start(self) -> None:
        while len(self._running) < DERIVATIONS_MAX:
            payer = next((each for each in self._waiting if each not in self._running), None)
            if payer is None:
                return
            waiting = self._waiting.pop(payer)
            waiter = next(iter(waiting))
            work = waiting.pop(waiter)
            if waiting:
                self._waiting[payer] = waiting  # after all other payers
            self._running.add(payer)
            thread = asyncio.get_running_loop().run_in_executor(None, work)
            thread.add_done_callback(partial(self._end, payer, waiter))

    def _end(
        self, payer: str, waiter: asyncio.Future[bytes], thread: asyncio.Future[bytes]
    ) -> None:
        """Called when the thread has ended, not when the client is gone: a client that hangs up
        does not stop its thread, so the payer's turn is not over."""
        self._running.discard(payer)
        error = thread.exception()
        if not waiter.done():
            if error is None:
                waiter.set_result(thread.result())
            else:
                waiter.set_exception(error)
        self._start()
