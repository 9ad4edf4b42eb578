"""The tasks and timers of one subscription."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log_ = logging.getLogger(__name__)


class Tasks:
    def __init__(self, subscription_id: str) -> None:
        self._name = subscription_id
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}

    def spawn(self, work: Coroutine[Any, Any, None], what: str) -> "asyncio.Task[None]":
        task = self._loop.create_task(work, name=f"{what} {self._name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log_.error("a task of a subscription failed", exc_info=error)

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        """Do something after a time, once even if it is asked for several times."""
        if work not in self._timers:
            self._timers[work] = self._loop.call_later(seconds, self._due, work)

    def _due(self, work: Callable[[], None]) -> None:
        del self._timers[work]
        work()

    def not_later(self, work: Callable[[], None]) -> None:
        """Forget a call of ``later``, if there was one."""
        if (timer := self._timers.pop(work, None)) is not None:
            timer.cancel()

    async def finish(self, seconds_max: float) -> None:
        """Wait for the tasks of this moment."""
        if tasks := set(self._tasks):
            await asyncio.wait(tasks, timeout=seconds_max)

    async def cancel(self) -> None:
        for work in tuple(self._timers):
            self.not_later(work)
        while tasks := set(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
