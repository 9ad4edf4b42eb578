"""Deadlines by name, for deadlines that are usually postponed, such as session timeouts.

Postponing a deadline only changes a dictionary. The heap keeps the earlier time; when that time
comes, the name is pushed again with its new deadline. So ``next_ms`` may be too early, but never
too late."""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)

_STALE_MIN = 64  # with fewer stale heap entries a sweep is not worth its cost


class Deadlines(Generic[Name]):
    def __init__(self) -> None:
        self._at_ms: dict[Name, int] = {}
        self._queued_ms: dict[Name, int] = {}  # earliest heap entry of each name
        self._heap: list[tuple[int, int, Name]] = []
        self._count = 0  # breaks ties: names need not compare

    def set(self, name: Name, at_ms: int) -> None:
        self._at_ms[name] = at_ms
        queued_ms = self._queued_ms.get(name)
        if queued_ms is None or at_ms < queued_ms:
            self._push(name, at_ms)

    def drop(self, name: Name) -> None:
        self._at_ms.pop(name, None)

    def clear(self) -> None:
        self._at_ms.clear()
        self._queued_ms.clear()
        self._heap.clear()

    def pop_due(self, now_ms: int) -> Name | None:
        """Remove and return a name whose deadline has passed, earliest first, or return None."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            queued_ms, _, name = heappop(heap)
            if self._queued_ms.get(name) != queued_ms:
                continue  # this heap entry is stale: the name has an earlier one
            del self._queued_ms[name]
            at_ms = self._at_ms.get(name)
            if at_ms is None:
                continue
            if at_ms <= now_ms:
                del self._at_ms[name]
                return name
            self._push(name, at_ms)
        return None

    def next_ms(self) -> int | None:
        heap = self._heap
        while heap:
            queued_ms, _, name = heap[0]
            if name in self._at_ms and self._queued_ms.get(name) == queued_ms:
                return queued_ms
            heappop(heap)
            if self._queued_ms.get(name) == queued_ms:
                del self._queued_ms[name]
        return None

    def _push(self, name: Name, at_ms: int) -> None:
        self._queued_ms[name] = at_ms
        self._count += 1
        heappush(self._heap, (at_ms, self._count, name))
        if len(self._heap) > 2 * len(self._at_ms) + _STALE_MIN:
            self._sweep()

    def _sweep(self) -> None:
        self._queued_ms = dict(self._at_ms)
        self._heap = [(at_ms, i, name) for i, (name, at_ms) in enumerate(self._at_ms.items())]
        self._count = len(self._heap)
        heapify(self._heap)
