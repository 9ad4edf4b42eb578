"""Freeing of memory after topics are deleted.

Objects of a topic refer to each other in cycles, so only the cycle collector frees them. It counts
objects and not bytes: a few hundred that hold megabytes of batches would never trigger it, and
those from before the start are exempt from it (``gc.freeze``). The allocator keeps freed pages as
well.

So some seconds after a deletion a collection runs, and then the allocator returns free pages. A
collection blocks the process for up to 100 ms with 1,250 partitions. So it waits until the node has
little to do, and uses at most 1 % of the time. A busy node keeps the objects until then; batches
are freed at once, when a partition is closed."""

import asyncio
import ctypes
import gc
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

from penstock.model.topic import Topic

log_ = logging.getLogger(__name__)

SETTLE_SECONDS = 2.0  # for files to be closed, and for further deletions
QUIET_SHARE_MAX = 0.05  # of CPU time since the last check: few requests can be delayed
COLLECTING_SHARE_MAX = 0.01  # of all time


class MemoryKeeper:
    def __init__(
        self,
        pool: Executor,
        *,
        settle_s: float = SETTLE_SECONDS,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        """``cpu`` returns the CPU seconds that this process has used."""
        self._pool = pool
        self._settle_s = settle_s
        self._cpu = cpu
        self._loop = asyncio.get_running_loop()
        self._frozen: set[str] = set()  # ids of topics that the collector ignores
        self._is_thaw_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._not_before = 0.0  # earliest time of the next collection
        self._trim = _trim_call()

    def freeze(self, topics: Iterable[Topic]) -> None:
        """Exempt all present objects from collections."""
        gc.collect()
        gc.freeze()
        self._frozen = {topic.topic_id for topic in topics}

    def topic_changed(self, before: Topic | None, after: Topic | None) -> None:
        if before is None or after is not None:
            return
        if before.topic_id in self._frozen:
            self._frozen.discard(before.topic_id)
            self._is_thaw_due = True
        if self._timer is None:
            self._look_later(self._settle_s)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look_later(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._look, time.monotonic(), self._cpu())

    def _look(self, since: float, cpu_then: float) -> None:
        """Release memory if the node was quiet since then; otherwise check again later."""
        self._timer = None
        now, used = time.monotonic(), self._cpu() - cpu_then
        wait = self._not_before - now
        if wait > 0 or used > QUIET_SHARE_MAX * (now - since):
            self._look_later(max(wait, self._settle_s))
            return
        self._release()
        self._not_before = now + (time.monotonic() - now) / COLLECTING_SHARE_MAX

    def _release(self) -> None:
        if self._is_thaw_due:
            self._is_thaw_due = False
            gc.unfreeze()
            gc.collect()
            gc.freeze()
        else:
            gc.collect()
        if self._trim is not None:
            self._loop.run_in_executor(self._pool, self._trim, 0)


def _trim_call() -> Callable[[int], int] | None:
    """Return glibc's malloc_trim, or None: other C libraries have and need nothing like it."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    trim.argtypes = [ctypes.c_size_t]
    trim.restype = ctypes.c_int

    def call(pad: int) -> int:
        return int(trim(pad))

    return call
