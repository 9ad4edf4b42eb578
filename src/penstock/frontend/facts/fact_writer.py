"""The base of tasks that write facts to an internal topic: a turn at intervals, a last turn at the
stop, and an end after a few seconds even if the log does not reply."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from penstock.frontend.facts.fact_log import Fact, FactLog
from penstock.frontend.facts.usage import UsageTable
from penstock.model.ports import Clock
from penstock.model.topic import Topic
from penstock.record.record import Header

log_ = logging.getLogger(__name__)

STOP_SECONDS_MAX: Final = 5.0  # for all writers of a node together
INCARNATION_BYTES: Final = 8

# Returns True if this node leads a partition, so that it reports the partition.
Leads = Callable[[Topic, int], bool]


def leads_all(_topic: Topic, _partition: int) -> bool:
    """``Leads`` of a node without a cluster."""
    return True


class FactWriter(ABC):
    """Writes records of a ``UsageTable``, numbered within an incarnation of the process."""

    noun: str  # in log lines

    def __init__(
        self,
        table: UsageTable,
        log: FactLog,
        *,
        node: str,
        clock: Clock,
        entropy: Callable[[int], bytes],
        flush_ms: int,
        leads: Leads = leads_all,
    ) -> None:
        self._table = table
        self._log = log
        self._node = node
        self._clock = clock
        self._flush_ms = flush_ms
        self._leads = leads
        self._incarnation = entropy(INCARNATION_BYTES).hex()
        self._flush = 0
        self._is_stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def trouble(self) -> str | None:
        """Why nothing can be written now; for the health checks."""
        return self._log.trouble

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"{self.noun} writer")

    async def stop(self, *, seconds_max: float = STOP_SECONDS_MAX) -> None:
        """Write the rest; counting should have ended. Gives up after ``seconds_max``."""
        self._is_stopping.set()
        if self._task is not None and await is_cut_off(self._task, seconds_max):
            log_.error("%s of the last seconds is lost", self.noun, extra={"reason": self.trouble})

    async def _run(self) -> None:
        is_last = False  # the turn that begins after the end of counting
        while not is_last:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s()):
                    await self._is_stopping.wait()
            is_last = self._is_stopping.is_set()
            try:
                await self._turn(is_last=is_last)
            except Exception as error:  # a bug; counting and writing continue
                log_.error("%s not written", self.noun, exc_info=error)

    async def _append(self, value: bytes, header: Header) -> None:
        """Write one record; return once it is committed."""
        self._log.offer((Fact(self._node.encode(), value, (header,)),))
        await self._log.settle()

    @abstractmethod
    async def _turn(self, *, is_last: bool) -> None: ...

    @abstractmethod
    def _wait_s(self) -> float:
        """Return the time until the next turn."""


async def is_cut_off(task: asyncio.Task[None], seconds_max: float) -> bool:
    """Wait for a task that ends by itself. Returns True if it was cancelled, after that time."""
    _, late = await asyncio.wait((task,), timeout=seconds_max)
    for each in late:
        each.cancel()
        with suppress(asyncio.CancelledError):
            await each
    return bool(late)
