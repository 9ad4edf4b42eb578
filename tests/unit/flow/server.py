"""A simulated endpoint: what it can take at once, and how long it takes."""

import heapq
import random
from collections import deque
from collections.abc import Callable

Latency = Callable[[random.Random], float]
REFUSED_MS = 2.0  # a refusal comes at once


class Server:
    """Serves ``capacity`` requests at a time. It refuses further ones, or queues them."""

    def __init__(self, latency: Latency, *, capacity: int, is_queue: bool, seed: int) -> None:
        self._latency = latency
        self._capacity = capacity
        self._is_queue = is_queue
        self._chance = random.Random(seed)
        self._busy = 0
        self._queue: deque[tuple[int, float]] = deque()
        self._ends: list[tuple[float, int, float, bool]] = []  # at, number, began at, is served

    def begin(self, number: int, now_ms: float) -> None:
        if self._busy < self._capacity:
            self._serve(number, now_ms, now_ms)
        elif self._is_queue:
            self._queue.append((number, now_ms))
        else:
            heapq.heappush(self._ends, (now_ms + REFUSED_MS, number, now_ms, False))

    def end(self) -> tuple[float, int, float, bool]:
        """Return when the next request ends, its number, when it began, and if it succeeded."""
        at_ms, number, began_ms, is_served = heapq.heappop(self._ends)
        if is_served:
            self._busy -= 1
            if self._queue:
                self._serve(*self._queue.popleft(), at_ms)
        return at_ms, number, began_ms, is_served

    def _serve(self, number: int, began_ms: float, now_ms: float) -> None:
        self._busy += 1
        at_ms = now_ms + self._latency(self._chance)
        heapq.heappush(self._ends, (at_ms, number, began_ms, True))
