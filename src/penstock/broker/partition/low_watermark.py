"""The first offset that is left of a partition, and how it moves up. A stream keeps it in a file
(``docs/adr/0032``): first this node's, then readers and followers, then share cursors forget what
is below. Queues, and clusters below the feature level, append a Trim event instead."""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass

from penstock.broker.leases.leases import Leases
from penstock.broker.partition.replay import count_messages
from penstock.broker.storage.journal import Journal, Replication
from penstock.log.log import Log
from penstock.model.levels import LOW_WATERMARK_FILES
from penstock.model.limits import READ_BYTES_MAX
from penstock.net.slices import in_slices


@dataclass
class LowWatermark:
    log: Log
    journal: Journal
    pool: Executor
    views: Callable[[], Iterable[Leases]]
    replication: Replication | None
    is_queue: Callable[[], bool]
    _storing: asyncio.Task[None] | None = None
    _requested: int = 0  # the largest value that a caller waits for

    async def move(self, offset: int, *, is_expiry: bool = True) -> bool:
        """Return when no view shows anything below ``offset``, also after a restart. True: it does
        not survive elections yet (``Replication.low_watermark_held``)."""
        level = LOW_WATERMARK_FILES if self.replication is None else self.replication.level
        is_file = level >= LOW_WATERMARK_FILES and not self.is_queue()
        if is_file:
            await self._store(offset)
        for leases in tuple(self.views()):
            passed = await self._passed(leases, offset)
            events = leases.clip(offset, passed=passed, is_expiry=is_expiry)
            if not is_file:
                await leases.settled(events)  # every later leader has a committed event
        return is_file and self.replication is not None

    async def rest(self) -> None:
        """Return when no thread writes the file. The journal has failed: nothing new begins."""
        if self._storing is not None:
            await asyncio.wait([self._storing])

    async def _store(self, offset: int) -> None:
        """Write the file once at a time, for all callers; a cancelled caller does not end it."""
        self._requested = max(self._requested, offset)
        while self.log.stored_low_watermark < offset:
            if self.journal.failure is not None:
                raise self.journal.failure
            if self._storing is None:
                work = self._write(self._requested)
                self._storing = asyncio.create_task(work, name="store a low watermark")
            await asyncio.shield(self._storing)

    async def _write(self, offset: int) -> None:
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self.pool, self.log.store_low_watermark, offset)
        finally:
            self._storing = None
        if self.replication is not None:
            self.replication.stored_low_watermark(offset)

    async def _passed(self, leases: Leases, offset: int) -> int:
        """Count the messages between a view's head and ``offset``, as of the return."""
        while True:
            head = leases.cursor.head
            passed = await self.count(head, offset)
            if leases.cursor.head == head:
                return passed

    async def count(self, start: int, end: int) -> int:
        return await in_slices(count_messages(self.log, start, end, bytes_max=READ_BYTES_MAX))
