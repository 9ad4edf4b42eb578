"""A circuit breaker: after failures in a row it refuses at once instead of waiting for the next,
and lets single probes through to find out whether the other side is back. Pure: the clock is an
argument."""

from enum import StrEnum

FAILURES_MAX = 5
OPEN_MS_MIN = 500
OPEN_MS_MAX = 30_000


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    __slots__ = ("_failures", "_is_probing", "_open_ms", "_retry_at_ms", "opened_count")

    def __init__(self) -> None:
        self._failures = 0
        self._open_ms = OPEN_MS_MIN
        self._retry_at_ms = 0
        self._is_probing = False
        self.opened_count = 0

    def state(self, *, now_ms: int) -> BreakerState:
        if self._failures < FAILURES_MAX:
            return BreakerState.CLOSED
        if self._is_probing or now_ms >= self._retry_at_ms:
            return BreakerState.HALF_OPEN
        return BreakerState.OPEN

    def admits(self, *, now_ms: int) -> bool:
        """Whether to call at all. Who is admitted reports how it went, exactly once."""
        if self._failures < FAILURES_MAX:
            return True
        if self._is_probing or now_ms < self._retry_at_ms:
            return False
        self._is_probing = True
        return True

    def retry_after_ms(self, *, now_ms: int) -> int:
        return max(1, self._retry_at_ms - now_ms)

    def succeeded(self) -> None:
        self._failures = 0
        self._open_ms = OPEN_MS_MIN
        self._is_probing = False

    def failed(self, *, now_ms: int) -> None:
        was_closed = self._failures < FAILURES_MAX
        self._failures += 1
        if self._failures < FAILURES_MAX:
            return
        if was_closed:
            self.opened_count += 1
        elif self._is_probing:
            # The probe failed: it is not back yet, so ask less often.
            self._open_ms = min(2 * self._open_ms, OPEN_MS_MAX)
        else:
            return  # one of those that were under way when it opened
        self._is_probing = False
        self._retry_at_ms = now_ms + self._open_ms
