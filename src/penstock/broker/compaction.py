"""When a partition's log is compacted, and who does what: steps in a thread, swaps on the loop.

A round (``log/compaction.py``) is long, so it is done in small steps with pauses as long as the
steps: half of a core at most, and the loop never waits for more than a few renames. The node runs
one round at a time, which bounds the memory that keys take.

Not while the disk is low: a round needs room beside the log, and what is left belongs to leases,
acks and the rows of coordinators. Logs of such rows are compacted even then, or they would use up
the rest.

After a round, aborted transactions that it has left no record of are told to whoever keeps them
(``aborted.py``).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import Executor
from time import perf_counter
from typing import Any, TypeVar

from penstock.broker.aborted import Leftovers
from penstock.broker.disk import DiskBudget
from penstock.log.cleanable import cleanable
from penstock.log.compaction import Aborted, Compaction, Progress, read_clean_offset
from penstock.log.log import Log
from penstock.model.ports import Clock
from penstock.model.stream import StreamSettings

log_ = logging.getLogger(__name__)

T = TypeVar("T")
Forget = Callable[[Collection[Aborted]], None]


class Compactor:
    def __init__(
        self,
        log: Log,
        *,
        clock: Clock,
        pool: Executor,
        disk: DiskBudget,
        at_rest: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``at_rest`` returns when no other thread reads the log; without it none ever does."""
        self._at_rest = at_rest
        self._log = log
        self._clock = clock
        self._pool = pool
        self._disk = disk
        self._loop = asyncio.get_running_loop()
        self._clean_offset: int | None = None
        self._round: Compaction | Leftovers | None = None
        self._thread: asyncio.Future[Any] | None = None
        self._is_stopped = False

    async def run(
        self,
        settings: StreamSettings,
        *,
        up_to: int,
        aborted: Sequence[Aborted],
        forget: Forget | None = None,
        held_offset: int | None = None,
        uses_reserve: bool = False,
    ) -> int:
        """One round over what stands below ``up_to``, if it is worth it. Returns the bytes freed.
        ``forget`` is told which of the aborted transactions have no records any more.
        ``held_offset``: what every replica has, where there are others. ``uses_reserve``: also
        while the disk is low. Raises Unreadable where the log is damaged."""
        log = self._log
        if self._is_stopped or self._round is not None or log.refusal is not None or log.damage:
            return 0
        if self._clean_offset is None:
            self._clean_offset = read_clean_offset(log)
        wall_ms = self._clock.wall_ms()
        segments = cleanable(
            log.segments(),
            clean_offset=self._clean_offset,
            up_to=min(up_to, log.sealed_offset),
            dirty_ratio_min=settings.dirty_ratio_min,
            lag_ms_min=settings.compaction_lag_ms_min,
            lag_ms_max=settings.compaction_lag_ms_max,
            now_ms=wall_ms,
        )
        if not segments or (self._disk.is_low and not uses_reserve):
            return 0
        compaction = self._round = Compaction(
            log,
            segments,
            clean_offset=self._clean_offset,
            tombstone_ms=settings.tombstone_ms,
            now_ms=wall_ms,
            aborted=aborted,
            held_offset=held_offset,
        )
        try:
            freed_bytes = await self._drive(compaction)
        except Exception:
            await self._end_round()
            raise
        if not self._is_stopped:
            self._clean_offset = compaction.clean_offset
            await self._end_round()
            log_.info(
                "log compacted",
                extra={
                    "folder": str(log.folder),
                    "freed_bytes": freed_bytes,
                    "clean_offset": self._clean_offset,
                },
            )
        if forget is not None and aborted and not self._is_stopped:
            await self._tell_gone(aborted, forget)
        return freed_bytes

    async def _tell_gone(self, aborted: Sequence[Aborted], forget: Forget) -> None:
        assert self._clean_offset is not None, "a round has been done"
        up_to = min(self._clean_offset, self._log.sealed_offset)
        leftovers = self._round = Leftovers(self._log, aborted, up_to=up_to)
        try:
            while not self._is_stopped:
                started = perf_counter()
                if await self._in_thread(leftovers.step) is Progress.DONE:
                    break
                await asyncio.sleep(perf_counter() - started)
        except Exception:
            await self._end_round()
            raise
        if not self._is_stopped:
            await self._end_round()
            if leftovers.gone:
                forget(leftovers.gone)

    async def _drive(self, compaction: Compaction) -> int:
        freed_bytes = 0
        while not self._is_stopped:
            started = perf_counter()
            progress = await self._in_thread(compaction.step)
            if progress is Progress.DONE:
                break
            if self._is_stopped:
                break
            if progress is Progress.SWAP:
                if self._at_rest is not None:
                    await self._at_rest()
                    if self._is_stopped:
                        break
                freed_bytes += compaction.swap()
            await asyncio.sleep(perf_counter() - started)
        return freed_bytes

    async def _in_thread(self, work: Callable[[], T]) -> T:
        future = self._loop.run_in_executor(self._pool, work)
        self._thread = future
        # Whoever waits here may be cancelled; the thread goes on, and ``stop`` waits for it.
        return await asyncio.shield(future)

    async def _end_round(self) -> None:
        if self._round is not None:
            ended, self._round = self._round, None
            await self._in_thread(ended.close)

    async def stop(self) -> None:
        """Returns when no thread touches the log's files, and nothing half-done is left."""
        self._is_stopped = True
        while self._thread is not None and not self._thread.done():
            await asyncio.wait([self._thread])
        try:
            await self._end_round()
        except OSError as error:
            # What is left is swept up when the log is opened again.
            log_.warning(
                "compaction not ended cleanly",
                extra={"folder": str(self._log.folder), "reason": str(error)},
            )
