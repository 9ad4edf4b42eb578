"""Reads all logs of a node slowly, again and again, to find damage on disk while other replicas
still have the data. Each segment is read in small pieces in a thread. Concurrent changes of the log
may look like damage, so a segment with damage is checked a second time. Pages in the kernel's cache
are not read from the disk, so damage to them on disk is not found."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from penstock.log.inspection import Verification
from penstock.log.log import Log
from penstock.log.storage.checkpoint import Damage
from penstock.log.storage.segment import SegmentInfo
from penstock.model.limits import KIB, MIB

log_ = logging.getLogger(__name__)

# The target time per piece: a few KiB of small batches, more of large ones. Other threads are
# blocked meanwhile by the interpreter lock.
PIECE_SECONDS = 0.000_2
PIECE_BYTES_MIN, PIECE_BYTES_MAX = 4 * KIB, 256 * KIB
SEGMENT_COST_BYTES = 4 * KIB  # opening a segment counts as this many bytes
# One second of processor time counts as this many bytes, because small batches take much time for
# few bytes. At 4 MiB/s scrubbing uses at most 2 % of a core.
PROCESSOR_BYTES = 200 * MIB
FIRST_AFTER_SECONDS = 60.0  # after the node has started
ROUND_PAUSE_SECONDS_MIN = 1.0

T = TypeVar("T")


class Scrubbed(Protocol):
    @property
    def log(self) -> Log: ...

    def note_damage(self, found: Sequence[Damage]) -> None: ...


@dataclass
class Scrubber:
    logs: Callable[[], Sequence[Scrubbed]]
    pool: Executor
    bytes_per_second: int  # maximum rate; 0 disables scrubbing
    interval_ms: int
    _piece_bytes: int = PIECE_BYTES_MIN
    round_count: int = 0
    read_bytes: int = 0
    damage_count: int = 0

    async def run(self) -> None:
        if not self.bytes_per_second:
            return
        interval = self.interval_ms / 1_000
        await asyncio.sleep(min(interval, FIRST_AFTER_SECONDS))
        while True:
            began_at = time.monotonic()
            await self.round()
            left = began_at + interval - time.monotonic()
            await asyncio.sleep(max(left, ROUND_PAUSE_SECONDS_MIN))

    async def round(self) -> None:
        for one in self.logs():
            try:
                await self._scrub(one)
            except OSError as error:
                at = str(one.log.folder)
                log_.warning("scrubbing a log failed", extra={"folder": at, "reason": str(error)})
        self.round_count += 1

    async def _scrub(self, one: Scrubbed) -> None:
        for base_offset in [info.base_offset for info in one.log.segments()]:
            if one.log.damage:
                return  # already known; more damage changes nothing
            first = await self._verify(one.log, base_offset)
            second = await self._verify(one.log, base_offset) if first else []
            if second and second[0].first_offset == first[0].first_offset:
                if one not in self.logs():
                    return  # closed; the path may belong to another log now
                self.damage_count += 1
                fields = {"folder": str(one.log.folder), "reason": second[0].reason}
                log_.error("scrubber found damage on disk", extra=fields)
                one.note_damage(second)
                return

    async def _verify(self, log: Log, base_offset: int) -> Sequence[Damage]:
        """Return the damage in a segment, or an empty list if the segment was just replaced."""
        info = _find(log, base_offset)
        if info is None:
            return []
        try:
            verification = await self._in_thread(
                lambda: Verification(log.folder, base_offset, info.end_offset, bytes_max=info.bytes)
            )
        except FileNotFoundError:
            return []  # deleted by retention
        try:
            await self._pause(SEGMENT_COST_BYTES, 0.0)
            while True:
                read, took = await self._in_thread(lambda: self._piece(verification))
                if not read:
                    break
                await self._pause(read, took)
            found = verification.result().damage
        finally:
            verification.close()
        after = _find(log, base_offset)
        is_same = after is not None and after.bytes >= info.bytes
        return found if is_same else []

    def _piece(self, verification: Verification) -> tuple[int, float]:
        """Verify the next piece. Returns the number of bytes and the processor seconds used."""
        began_at = time.thread_time()
        read = verification.advance(self._piece_bytes)
        took = time.thread_time() - began_at
        if took > PIECE_SECONDS:
            self._piece_bytes = max(PIECE_BYTES_MIN, self._piece_bytes // 2)
        elif took < PIECE_SECONDS / 2:
            self._piece_bytes = min(PIECE_BYTES_MAX, self._piece_bytes * 2)
        return read, took

    async def _pause(self, read_bytes: int, took: float) -> None:
        self.read_bytes += read_bytes
        cost_bytes = max(read_bytes, took * PROCESSOR_BYTES)
        await asyncio.sleep(cost_bytes / self.bytes_per_second)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread. If cancelled, wait for the thread, which uses open files."""
        future = asyncio.get_running_loop().run_in_executor(self.pool, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise


def _find(log: Log, base_offset: int) -> SegmentInfo | None:
    return next((info for info in log.segments() if info.base_offset == base_offset), None)
