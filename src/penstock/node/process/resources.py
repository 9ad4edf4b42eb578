"""Memory and open files of a server process.

An open partition uses four file descriptors (batches, offsets, times, checksums), a connection one.
The limit of open files is raised to the hard limit. A node whose partitions need more files does
not start, and no partitions can be created that would need more files."""

import asyncio
import ctypes
import gc
import logging
import resource
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Final, cast

from penstock.model.errors import SetupError
from penstock.model.limits import MIB
from penstock.model.topic import Topic

BLOCK_BYTES: Final = 8 * MIB  # more than one read of a log
KEPT_BYTES: Final = 64 * MIB

SETTLE_SECONDS = 2.0  # wait for files to be closed, and for further deletions
QUIET_SHARE_MAX = 0.05  # a node is quiet if it has used less of a CPU since the last check
COLLECTING_SHARE_MAX = 0.01  # share of time for collections

FILES_PER_PARTITION = 4
FILES_OF_NODE = 64  # listeners, the metadata store, threads, libraries
PARTITIONS_SHARE = 0.75  # share of open files; the rest is for connections and older segments
UNLIMITED = 1 << 30

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

log_ = logging.getLogger(__name__)


def keep_freed_blocks() -> bool:
    """Make glibc reuse the memory of replies: blocks up to BLOCK_BYTES come from the heap, which
    shrinks only if more than KEPT_BYTES are free. By default, glibc gets new zeroed pages for each
    reply, which takes half of the CPU time of a fetch. Returns whether it succeeded."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, BLOCK_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))


class MemoryKeeper:
    """Frees memory after topics are deleted.

    Objects of a topic refer to each other in cycles, so only Python's garbage collector frees them,
    but it runs rarely and ignores objects from before the start (``gc.freeze``). So a collection is
    run some seconds after a topic is deleted, when the node has little to do, because a collection
    may block the process for 100 ms."""

    def __init__(
        self,
        pool: Executor,
        *,
        settle_s: float = SETTLE_SECONDS,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
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
        """Free memory if the CPU was mostly idle since the last check, or else check later."""
        self._timer = None
        now, used = time.monotonic(), self._cpu() - cpu_then
        wait = self._not_before - now
        if wait > 0 or used > QUIET_SHARE_MAX * (now - since):
            self._look_later(max(wait, self._settle_s))
            return
        if self._is_thaw_due:
            self._is_thaw_due = False
            gc.unfreeze()
            gc.collect()
            gc.freeze()
        else:
            gc.collect()
        if self._trim is not None:
            self._loop.run_in_executor(self._pool, self._trim, 0)
        self._not_before = now + (time.monotonic() - now) / COLLECTING_SHARE_MAX


def _trim_call() -> Callable[[int], int] | None:
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    trim.argtypes = [ctypes.c_size_t]
    trim.restype = ctypes.c_int
    return cast(Callable[[int], int], trim)


def raise_limit() -> int:
    """Raise the limit of open files to the hard limit if possible, and return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            log_.warning(
                "raising the open file limit failed",
                extra={"limit": soft, "reason": str(error)},
            )
    return limit_now()


def limit_now() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else min(soft, UNLIMITED)


def partitions_max(limit: int) -> int:
    return max(1, int(limit * PARTITIONS_SHARE) // FILES_PER_PARTITION)


def check_room(partition_count: int, limit: int) -> None:
    needed = FILES_OF_NODE + partition_count * FILES_PER_PARTITION
    if needed <= limit:
        return
    wanted = 1 << (needed * 2 - 1).bit_length()
    raise SetupError(
        f"the limit of {limit} open files is too low: {partition_count} partitions need {needed}",
        f"raise it with `ulimit -n {wanted}` or LimitNOFILE={wanted} in the unit file",
    )
