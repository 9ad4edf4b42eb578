"""The most recent batches of a log in memory. Consumers that keep up with producers read them here.

Each cache has a limit, and all caches of a node together have another limit. If it is exceeded, the
log whose last append is the oldest frees its cache, and its readers read the file."""

from bisect import bisect_right
from collections import deque

_SWEEP = 1_024  # empty slots at the front before the lists are compacted


class BatchCacheBudget:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.used_bytes = 0
        self._caches: dict[BatchCache, None] = {}  # by their last append, oldest first
        self._newest: BatchCache | None = None
        self._abandoned: deque[BatchCache] = deque()

    def appended(self, cache: "BatchCache") -> None:
        if cache is not self._newest:
            self._caches.pop(cache, None)
            self._caches[cache] = None
            self._newest = cache
            while self._abandoned:
                self._abandoned.popleft().clear()
        while self.used_bytes > self._bytes_max:
            oldest = next(iter(self._caches))
            if oldest is cache:
                return  # limited by its own bound
            oldest.clear()

    def abandon(self, cache: "BatchCache") -> None:
        """Mark a cache as unused, from any thread. A later append frees its memory."""
        self._abandoned.append(cache)

    def forget(self, cache: "BatchCache") -> None:
        self._caches.pop(cache, None)
        if self._newest is cache:
            self._newest = None


class BatchCache:
    """The last batches of a log: at most ``bytes_max``, but always the newest batch."""

    def __init__(self, bytes_max: int, budget: BatchCacheBudget | None = None) -> None:
        self._bytes_max = bytes_max
        self._budget = budget or BatchCacheBudget(bytes_max)
        self._bytes = 0
        self._bases: list[int] = []
        self._batches: list[bytes] = []
        self._end = 0
        self._first = 0  # slots before this one are empty

    def append(self, base_offset: int, next_offset: int, batch: bytes) -> None:
        self._end = next_offset
        self._bases.append(base_offset)
        self._batches.append(batch)
        self._bytes += len(batch)
        budget = self._budget
        budget.used_bytes += len(batch)
        if self._bytes > self._bytes_max:
            self._forget()
        budget.appended(self)

    @property
    def is_empty(self) -> bool:
        return not self._bases

    def successor(self) -> "BatchCache":
        if self.is_empty:
            return self
        self._budget.abandon(self)
        return BatchCache(self._bytes_max, self._budget)

    def clear(self) -> None:
        self._budget.used_bytes -= self._bytes
        self._budget.forget(self)
        self._bytes = 0
        self._bases.clear()
        self._batches.clear()
        self._first = 0

    def _forget(self) -> None:
        batches = self._batches
        first = self._first
        last = len(batches) - 1
        before = self._bytes
        while self._bytes > self._bytes_max and first < last:
            self._bytes -= len(batches[first])
            batches[first] = b""
            first += 1
        self._budget.used_bytes -= before - self._bytes
        self._first = first
        self._sweep()

    def drop_before(self, offset: int) -> None:
        bases, batches = self._bases, self._batches
        while self._first < len(bases) and bases[self._first] < offset:
            size = len(batches[self._first])
            self._bytes -= size
            self._budget.used_bytes -= size
            batches[self._first] = b""
            self._first += 1
        self._sweep()

    def _sweep(self) -> None:
        first = self._first
        if first >= _SWEEP and 2 * first >= len(self._batches):
            del self._batches[:first]
            del self._bases[:first]
            self._first = 0

    def holds(self, offset: int) -> bool:
        return self._first < len(self._bases) and offset >= self._bases[self._first]

    def read(self, start: int, *, bytes_max: int, up_to: int) -> list[bytes]:
        bases, batches = self._bases, self._batches
        at = bisect_right(bases, start, lo=self._first) - 1
        # A batch ends where the next one begins; the batch that holds up_to is excluded.
        stop = len(bases) if up_to >= self._end else bisect_right(bases, up_to, lo=at) - 1
        taken = 0
        for index in range(at, stop):
            taken += len(batches[index])
            if taken > bytes_max and index > at:
                return batches[at:index]
        return batches[at:stop]
