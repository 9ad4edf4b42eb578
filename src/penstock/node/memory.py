"""Memory handed back once topics are gone.

What belongs to a topic refers to itself in circles (a partition and its journal call each other),
so only the cycle collector frees it. That counts objects and not bytes: a few hundred of them that
hold megabytes of recent batches would never make it run on their own. What was there at the start
was even exempted from it (``gc.freeze``). And the allocator keeps the pages it got back, in case.

So a while after a deletion the collector is asked, and the allocator told to let go. Both cost
milliseconds, which is why it happens after a deletion and at no other time.
"""

import asyncio
import ctypes
import gc
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

from penstock.model.topic import Topic

log_ = logging.getLogger(__name__)

SETTLE_SECONDS = 2.0  # for files to be closed, and for more deletions to share the round


class MemoryKeeper:
    def __init__(self, pool: Executor, *, settle_s: float = SETTLE_SECONDS) -> None:
        self._pool = pool
        self._settle_s = settle_s
        self._loop = asyncio.get_running_loop()
        self._frozen: set[str] = set()  # ids of topics that the collector does not look at
        self._is_thaw_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._trim = _trim_call()

    def freeze(self, topics: Iterable[Topic]) -> None:
        """Let the collector pass over everything that is there now."""
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
            self._timer = self._loop.call_later(self._settle_s, self._release)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _release(self) -> None:
        self._timer = None
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
    """glibc's malloc_trim; other C libraries have no such thing, and no such need."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        log_.debug("no malloc_trim here")
        return None
    trim.argtypes = [ctypes.c_size_t]
    trim.restype = ctypes.c_int

    def call(pad: int) -> int:
        return int(trim(pad))

    return call
