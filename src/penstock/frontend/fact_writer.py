"""The life of what writes facts to a log of the node's own: a turn every so often, one more when it
is told to stop, and an end after a few seconds whatever the log does."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from penstock.frontend.fact_log import FactLog
from penstock.model.topic import Topic

log_ = logging.getLogger(__name__)

STOP_SECONDS_MAX: Final = 5.0  # for all that a node writes together


# Whether this node is the one to tell of a partition.
Leads = Callable[[Topic, int], bool]


def leads_all(_topic: Topic, _partition: int) -> bool:
    """Of a node that is by itself."""
    return True


class FactWriter(ABC):
    def __init__(self, log: FactLog, *, noun: str) -> None:
        """``noun``: what is written, for log lines."""
        self._log = log
        self._noun = noun
        self._is_stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def trouble(self) -> str | None:
        """Why nothing can be written at the moment; for the health checks."""
        return self._log.trouble

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"{self._noun} writer")

    async def stop(self, *, seconds_max: float = STOP_SECONDS_MAX) -> None:
        """Writes what is left; nothing more should be counted. Gives up after that time."""
        self._is_stopping.set()
        if self._task is None:
            return
        _, late = await asyncio.wait((self._task,), timeout=seconds_max)
        for task in late:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            log_.error("%s of the last seconds is lost", self._noun, extra={"reason": self.trouble})

    async def _run(self) -> None:
        is_last = False  # the turn that begins after everything was counted
        while not is_last:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s()):
                    await self._is_stopping.wait()
            is_last = self._is_stopping.is_set()
            try:
                await self._turn(is_last=is_last)
            except Exception as error:  # of ours; counting goes on, and so does writing
                log_.error("%s not written", self._noun, exc_info=error)

    @abstractmethod
    async def _turn(self, *, is_last: bool) -> None: ...

    @abstractmethod
    def _wait_s(self) -> float:
        """Until the next turn."""
