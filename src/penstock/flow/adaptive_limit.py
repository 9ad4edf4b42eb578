"""A limit on the requests in progress to one endpoint that follows what the endpoint can take.

It works in rounds. A round ends after as many successes as the limit, of requests that began in the
round. At first each round doubles the limit (slow start). After the first sign of trouble, each
round adds one. A late, refused or failed request lowers the limit to 70 %, once for all requests
that were in progress together.

The time that requests take counts too. A round with a mean above one second lowers the limit by
one. A round that took much longer than the best round of the last minute does not raise it: the
endpoint queues the requests, and more of them would only wait longer. Two such rounds one after the
other end slow start and lower the limit to where requests should take twice as long as in the best
round; a single one may be chance. A round that never used the whole limit does not raise it either,
because it shows nothing about a higher limit."""

from typing import Final

LIMIT_FIRST: Final = 4
LIMIT_MAX: Final = 64
# Successes in a round, at least: the mean of fewer depends on chance, and a limit of one or two
# would be raised, and exceed what the endpoint takes, with every second request.
ROUND_MIN: Final = 12
DECREASE: Final = 0.7
SLOW_MS: Final = 1_000  # mean of a round above which the limit is lowered
BEST_FACTOR: Final = 2  # a mean of more than twice the best and 10 ms is much longer than the best
BEST_SLACK_MS: Final = 10
HALF_WINDOW_MS: Final = 30_000  # the best round is that of the current and the last half minute


class AdaptiveLimit:
    __slots__ = (
        "_best_before_ms",
        "_best_ms",
        "_count",
        "_is_slow_start",
        "_lowered_at_ms",
        "_round_at_ms",
        "_sum_ms",
        "_was_full",
        "_was_slow",
        "_window_at_ms",
        "limit",
        "limit_max",
    )

    def __init__(self, *, limit_max: int = LIMIT_MAX) -> None:
        self.limit = min(LIMIT_FIRST, limit_max)
        self.limit_max = limit_max
        self._is_slow_start = True
        self._lowered_at_ms = float("-inf")
        self._round_at_ms = float("-inf")  # when this round began
        self._count = 0  # successes of requests that began in this round
        self._sum_ms = 0.0  # the time they took
        self._was_full = False  # whether this round has used the whole limit
        self._was_slow = False  # whether the last round took much longer than the best
        self._best_ms = self._best_before_ms = float("inf")  # in this and the last half minute
        self._window_at_ms = float("-inf")  # when this half minute began

    def succeeded(self, *, took_ms: float, is_full: bool, now_ms: float) -> None:
        """Count a success. ``is_full`` tells whether as many requests as the limit were in
        progress, this one included."""
        if now_ms - took_ms < self._round_at_ms:
            return  # begun in an earlier round, perhaps with another limit
        self._count += 1
        self._sum_ms += took_ms
        if is_full:
            self._was_full = True
        if self._count >= self.limit and self._count >= ROUND_MIN:
            self._end_round(now_ms)

    def overloaded(self, *, took_ms: float, now_ms: float) -> None:
        """Lower the limit after a request that was late, refused or failed."""
        if now_ms - took_ms <= self._lowered_at_ms:
            return  # begun before the limit was lowered, so it does not judge the lower limit
        self.limit = max(1, int(self.limit * DECREASE))
        self._lowered_at_ms = now_ms
        self._is_slow_start = False
        self._begin_round(now_ms)

    def _begin_round(self, now_ms: float) -> None:
        self._round_at_ms = now_ms
        self._count = 0
        self._sum_ms = 0.0
        self._was_full = False

    def _end_round(self, now_ms: float) -> None:
        mean_ms = self._sum_ms / self._count
        was_full, was_slow = self._was_full, self._was_slow
        best_ms = self._best_round_ms(mean_ms, now_ms)
        self._was_slow = is_slow = mean_ms > BEST_FACTOR * best_ms + BEST_SLACK_MS
        self._begin_round(now_ms)
        if mean_ms > SLOW_MS:
            self.limit = max(1, self.limit - 1)
            self._is_slow_start = False
        elif is_slow:
            if was_slow and self._is_slow_start:
                self.limit = max(1, int(self.limit * BEST_FACTOR * best_ms / mean_ms))
                self._is_slow_start = False
        elif was_full:
            raised = 2 * self.limit if self._is_slow_start else self.limit + 1
            self.limit = min(self.limit_max, raised)

    def _best_round_ms(self, mean_ms: float, now_ms: float) -> float:
        if now_ms - self._window_at_ms >= HALF_WINDOW_MS:
            is_recent = now_ms - self._window_at_ms < 2 * HALF_WINDOW_MS
            self._best_before_ms = self._best_ms if is_recent else float("inf")
            self._best_ms = float("inf")
            self._window_at_ms = now_ms
        self._best_ms = min(self._best_ms, mean_ms)
        return min(self._best_ms, self._best_before_ms)
