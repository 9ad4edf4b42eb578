"""Comparison of the clocks of other nodes with this node's, without any calls.

Every node writes to ``__telemetry`` periodically, with its own clock as timestamp. A batch that has
just arrived with a timestamp in the future proves that another clock is ahead of this one by at
least that much. A timestamp in the past proves nothing, because the batch may have been delayed. So
of two nodes the one whose clock is slow detects it, if it has a replica of ``__telemetry``.
"""

from collections import deque
from typing import Final

from penstock.model.troubles import CLOCK_SKEW_MS_MAX

SEEN_MIN: Final = 2  # findings: one may be caused by setting a clock
KEPT_WRITES: Final = 3  # a finding is valid for this number of write intervals


class ClockSkew:
    def __init__(self, *, write_ms: int) -> None:
        """``write_ms``: the time between two writes of a node."""
        self._kept_ms = KEPT_WRITES * write_ms
        self._newest_ms: int | None = None
        self._seen: deque[tuple[int, int]] = deque(maxlen=SEEN_MIN)  # time and difference

    def look(self, newest_ms: int | None, *, wall_ms: int, mono_ms: int) -> int:
        """Return by how many ms another clock is at least ahead; 0 if none is known to be.
        ``newest_ms``: the latest timestamp in this node's replica, None if it has none."""
        before_ms, self._newest_ms = self._newest_ms, newest_ms
        if newest_ms is not None and before_ms is not None and newest_ms > before_ms:
            ahead_ms = newest_ms - wall_ms
            if ahead_ms > CLOCK_SKEW_MS_MAX:
                self._seen.append((mono_ms, ahead_ms))
        while self._seen and mono_ms - self._seen[0][0] > self._kept_ms:
            self._seen.popleft()
        return self._seen[-1][1] if len(self._seen) == SEEN_MIN else 0
