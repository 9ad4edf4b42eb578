"""The first offset of a partition that is left, and how it moves up.

A stream keeps it in a file beside the segments (``docs/adr/0032``). The order is: the file of this
node, then readers and followers are told, then share cursors forget what lies below. Nothing is
appended to the log. Queues, and clusters below the feature level, append a Trim event instead.
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

from penstock.broker.journal import Journal, Replication
from penstock.broker.leases import Leases
from penstock.log.log import Log
from penstock.model.errors import Damaged
from penstock.model.levels import LOW_WATERMARK_FILES
from penstock.model.limits import READ_BYTES_MAX
from penstock.record.batch import parse_header


class LowWatermark:
    def __init__(
        self,
        log: Log,
        journal: Journal,
        pool: Executor,
        views: Callable[[], Iterable[Leases]],
        *,
        replication: Replication | None,
        is_queue: Callable[[], bool],
    ) -> None:
        self._log = log
        self._journal = journal
        self._pool = pool
        self._views = views
        self._replication = replication
        self._is_queue = is_queue
        self._loop = asyncio.get_running_loop()
        self._storing: asyncio.Task[None] | None = None
        self._wanted = 0  # the largest value that somebody waits for

    @property
    def _is_file(self) -> bool:
        replication = self._replication
        if self._is_queue():
            return False
        return replication is None or replication.level >= LOW_WATERMARK_FILES

    async def move(self, offset: int, *, is_expiry: bool = True) -> bool:
        """Return when nothing below ``offset`` is left for any view, and a restart of this node
        does not change that: True if it is for ``confirmed`` to see to elections."""
        is_file = self._is_file
        if is_file:
            await self._store(offset)
        for leases in tuple(self._views()):
            passed = await self._passed(leases, offset)
            events = leases.clip(offset, passed=passed, is_expiry=is_expiry)
            if not is_file:
                await leases.settled(events)  # a committed event is known to every later leader
        return is_file and self._replication is not None

    async def confirmed(self, offset: int) -> None:
        """Return when no later leader shows anything below ``offset`` (R25)."""
        assert self._replication is not None
        await self._replication.low_watermark_held(offset)

    async def rest(self) -> None:
        """Return when no thread writes the file. The journal has failed: nothing new is begun."""
        if self._storing is not None:
            await asyncio.wait([self._storing])

    async def _store(self, offset: int) -> None:
        """One write at a time, for all who wait; a caller that gives up does not end the write."""
        self._wanted = max(self._wanted, offset)
        while self._log.stored_low_watermark < offset:
            if self._journal.failure is not None:
                raise self._journal.failure
            if self._storing is None:
                self._storing = self._loop.create_task(
                    self._write(self._wanted), name="store a low watermark"
                )
            await asyncio.shield(self._storing)

    async def _write(self, offset: int) -> None:
        try:
            await self._loop.run_in_executor(self._pool, self._log.store_low_watermark, offset)
        finally:
            self._storing = None
        if self._replication is not None:
            self._replication.stored_low_watermark(offset)

    # ── Counting ─────────────────────────────────────────────────────────────────────────────

    async def _passed(self, leases: Leases, offset: int) -> int:
        """Messages between the head of a view and ``offset``, at the moment when this returns."""
        while True:
            head = leases.cursor.head
            passed = await self.count(head, offset)
            if leases.cursor.head == head:
                return passed

    async def count(self, start: int, end: int) -> int:
        """Messages in [start, end), by batch headers, a little at a time."""
        count = 0
        while start < end:
            # Somebody else may have dropped segments since the last turn.
            start = max(start, self._log.start_offset)
            try:
                batches = self._log.read(start, bytes_max=READ_BYTES_MAX)
            except Damaged:
                return count
            if not batches:
                return count
            for data in batches:
                header = parse_header(data)
                if not header.is_control and start < end:
                    # A compacted batch spans more offsets than it has messages.
                    span = min(header.next_offset, end) - max(start, header.base_offset)
                    count += min(span, header.count)
                start = header.next_offset
            await asyncio.sleep(0)  # other requests go on
        return count
