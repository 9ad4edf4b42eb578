"""Runs the compaction of a log. Steps run in a thread, segments are replaced in the event loop, and
each step is followed by a pause of the same length. A node compacts one log at a time, which limits
the memory for keys. While the disk is low, only the logs of coordinators are compacted, because
they would otherwise use up the reserve.

Readers of committed records need the list of aborted transactions that still have records. After a
compaction, batch headers show which transactions have no records left, and these are removed from
the list. Only segments that overlap an aborted transaction are read."""

import asyncio
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Generator, Sequence
from time import perf_counter
from typing import Any, TypeVar

from penstock.broker.context.context import BrokerContext
from penstock.cursor.producers import Producers
from penstock.log.compaction import (
    Aborted,
    Compaction,
    Progress,
    Unreadable,
    read_clean_offset,
    read_segment,
)
from penstock.log.log import Log
from penstock.log.retention import cleanable
from penstock.model.errors import Damaged
from penstock.model.names import is_internal
from penstock.model.stream import settings_of
from penstock.model.topic import Topic
from penstock.record.batch import ATTR_TRANSACTIONAL, BatchHeader


class AbortedScan:
    def __init__(self, log: Log, aborted: Sequence[Aborted], *, up_to: int) -> None:
        """Prepare to find ``aborted`` transactions that have no records left below ``up_to``."""
        assert up_to <= log.sealed_offset, "only closed segments are scanned"
        self.gone: frozenset[Aborted] = frozenset()  # set when a step returned DONE
        self._folder = log.folder
        self._disk = log.disk
        self._segments = [each for each in log.segments() if each.base_offset < up_to]
        self._aborted = aborted
        self._up_to = up_to
        self._by_producer: dict[int, list[Aborted]] = {}
        self._work = self._run()

    def step(self) -> Progress:
        try:
            return next(self._work, Progress.DONE)
        except FileNotFoundError:
            return Progress.DONE  # retention removed a segment, and forgets its transactions

    def close(self) -> None:
        self._work.close()

    def _run(self) -> Generator[Progress, None, None]:
        aborted = sorted((a for a in self._aborted if a[2] < self._up_to), key=lambda a: a[1])
        for each in aborted:
            self._by_producer.setdefault(each[0], []).append(each)
        gone = set(aborted)
        ranges = _joined(aborted)
        for segment in self._segments:
            if not _overlaps(ranges, segment.base_offset, segment.end_offset):
                continue
            for batches in read_segment(self._folder, segment, self._disk):
                for header, _ in batches:
                    found = self._transaction_of(header)
                    if found is not None:
                        gone.discard(found)
                yield Progress.MORE
                if not gone:
                    return
        self.gone = frozenset(gone)

    def _transaction_of(self, header: BatchHeader) -> Aborted | None:
        if not header.count or header.is_control or not header.attributes & ATTR_TRANSACTIONAL:
            return None
        own = self._by_producer.get(header.producer_id)
        if own is None:
            return None
        # The transactions of a producer do not overlap.
        at = bisect_right(own, header.base_offset, key=lambda each: each[1]) - 1
        return own[at] if at >= 0 and header.base_offset < own[at][2] else None


def _joined(aborted: Sequence[Aborted]) -> list[tuple[int, int]]:
    """Return the offset ranges of the transactions. Overlapping ranges are merged."""
    ranges: list[tuple[int, int]] = []
    for _, first, marker in aborted:
        if ranges and first <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(marker, ranges[-1][1]))
        else:
            ranges.append((first, marker))
    return ranges


def _overlaps(ranges: Sequence[tuple[int, int]], start: int, end: int) -> bool:
    at = bisect_left(ranges, start, key=lambda each: each[1])
    return at < len(ranges) and ranges[at][0] < end


log_ = logging.getLogger(__name__)

T = TypeVar("T")


class Compactor:
    def __init__(
        self,
        log: Log,
        context: BrokerContext,
        *,
        on_damage: Callable[[Damaged], None] = lambda _: None,
        wait_unread: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._on_damage = on_damage
        self._wait_unread = wait_unread
        self._log = log
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._clean_offset: int | None = None
        self._round: Compaction | AbortedScan | None = None
        self._thread: asyncio.Future[Any] | None = None
        self._is_stopped = False

    async def run(
        self,
        topic: Topic,
        find_producers: Callable[[], Producers | None],
        *,
        up_to: int,
        held_offset: int | None,
    ) -> int:
        """Compact the log below ``up_to``, if enough would be freed, and return the bytes freed.
        Raises Unreadable if the log is damaged."""
        log, context = self._log, self._context
        if self._is_stopped or self._round is not None or log.refusal is not None or log.damage:
            return 0
        settings = settings_of(topic, context.defaults)
        producers = find_producers()
        if not settings.is_compacted or producers is None:
            return 0
        if self._clean_offset is None:
            self._clean_offset = read_clean_offset(log)
        up_to = min(producers.last_stable_offset(up_to), log.sealed_offset)
        known, wall_ms = log.segments(), context.clock.wall_ms()
        segments = cleanable(
            known, settings, clean_offset=self._clean_offset, up_to=up_to, now_ms=wall_ms
        )
        if not segments or (context.disk.is_low and not is_internal(topic.name)):
            return 0
        aborted = [
            (each.producer_id, each.first_offset, each.last_offset)
            for each in producers.aborted_between(log.start_offset, up_to)
        ]
        compaction = Compaction(
            log,
            segments,
            clean_offset=self._clean_offset,
            tombstone_ms=settings.tombstone_ms,
            now_ms=wall_ms,
            aborted=aborted,
            held_offset=held_offset,
        )
        freed_bytes = await self._drive(compaction)
        if self._is_stopped:
            return freed_bytes
        self._clean_offset = compaction.clean_offset
        fields: dict[str, object] = {"folder": str(log.folder), "freed_bytes": freed_bytes}
        log_.info("log compacted", extra=fields | {"clean_offset": self._clean_offset})
        if aborted:
            scan = AbortedScan(log, aborted, up_to=min(self._clean_offset, log.sealed_offset))
            await self._drive(scan)
            # If this is not possible now, the next round finds the same transactions again.
            if not self._is_stopped and (producers := find_producers()) is not None:
                producers.forget_aborted(scan.gone)
        return freed_bytes

    async def _drive(self, work: Compaction | AbortedScan) -> int:
        """Run all steps of a compaction or a scan. Returns the number of bytes freed."""
        self._round = work
        freed_bytes = 0
        try:
            while not self._is_stopped:
                started = perf_counter()
                progress = await self._in_thread(work.step)
                if progress is Progress.DONE or self._is_stopped:
                    break
                if isinstance(work, Compaction) and progress is Progress.SWAP:
                    if self._wait_unread is not None:
                        await self._wait_unread()
                        if self._is_stopped:
                            break
                    freed_bytes += work.swap()
                await asyncio.sleep(perf_counter() - started)
        except Exception as error:
            await self._end_round()
            if isinstance(error, Unreadable):
                try:
                    self._log.read(error.offset, bytes_max=1)  # the log records the damaged range
                except Damaged as damage:
                    self._on_damage(damage)
            raise
        if not self._is_stopped:
            await self._end_round()
        return freed_bytes

    async def _in_thread(self, work: Callable[[], T]) -> T:
        future = self._loop.run_in_executor(self._context.pool, work)
        self._thread = future
        # If the caller is cancelled, the thread continues, and ``stop`` waits for it.
        return await asyncio.shield(future)

    async def _end_round(self) -> None:
        if self._round is not None:
            ended, self._round = self._round, None
            await self._in_thread(ended.close)

    async def stop(self) -> None:
        """Stop compacting. Afterwards no thread uses the log, and temporary files are removed."""
        self._is_stopped = True
        while self._thread is not None and not self._thread.done():
            await asyncio.wait([self._thread])
        try:
            await self._end_round()
        except OSError as error:
            # Remaining files are removed when the log is opened again.
            fields = {"folder": str(self._log.folder), "reason": str(error)}
            log_.warning("removing temporary files of a compaction failed", extra=fields)
