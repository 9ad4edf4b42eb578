"""Compares the clocks of other nodes with the clock of this node, without asking anybody.

Every node writes to ``__telemetry`` at regular times and stamps each batch with its own clock. A
batch that has just arrived with a timestamp in the future proves that another clock is ahead of
this one by at least that much. A timestamp in the past proves nothing, because the batch may have
waited; so of two nodes the one whose clock is behind finds out. Only nodes that have a replica of
``__telemetry`` compare.
"""

from collections import deque
from typing import Final

from penstock.model.troubles import CLOCK_SKEW_MS_MAX

SEEN_MIN: Final = 2  # times in a row: a clock that is set once is no trouble
KEPT_WRITES: Final = 3  # for so many writes of a node the last finding counts


class ClockSkew:
    def __init__(self, *, write_ms: int) -> None:
        """``write_ms``: the time between two writes of a node."""
        self._kept_ms = KEPT_WRITES * write_ms
        self._newest_ms: int | None = None
        self._seen: deque[tuple[int, int]] = deque(maxlen=SEEN_MIN)  # when, and by how much

    def look(self, newest_ms: int | None, *, wall_ms: int, mono_ms: int) -> int:
        """Return by how many ms another clock is ahead at least; 0 if no clock is known to be.

        ``newest_ms``: the latest timestamp in the replica of this node, None if it has none. A
        timestamp counts in the look in which it is new.
        """
        before_ms, self._newest_ms = self._newest_ms, newest_ms
        if newest_ms is not None and before_ms is not None and newest_ms > before_ms:
            ahead_ms = newest_ms - wall_ms
            if ahead_ms > CLOCK_SKEW_MS_MAX:
                self._seen.append((mono_ms, ahead_ms))
        while self._seen and mono_ms - self._seen[0][0] > self._kept_ms:
            self._seen.popleft()
        return self._seen[-1][1] if len(self._seen) == SEEN_MIN else 0
