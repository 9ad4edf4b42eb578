"""A rate limit as a leaky bucket."""

from typing import Final

from penstock.model.identity import Rate

WAIT_MS_MAX: Final = 60_000  # longest reported time to retry; an earlier retry is harmless


class LeakyBucket:
    """A rate limit. Requests raise the level, time lowers it, and a request that would make the
    bucket overflow is rejected. ``empty_at_ms`` is the time when the level will be zero."""

    __slots__ = ("burst_ms", "empty_at_ms", "ms_per_unit", "rate", "room_ms")

    def __init__(self, rate: Rate, *, share: float = 1.0) -> None:
        assert rate.per_s > 0, "a bucket needs a rate"
        self.rate = rate
        self.empty_at_ms = 0.0
        self.take_share(share)

    def take_share(self, share: float) -> None:
        assert 0 < share <= 1
        rate = self.rate
        self.ms_per_unit = 1_000.0 / (rate.per_s * share)
        # At least one second's worth, so that a low rate allows single requests.
        self.burst_ms = max(rate.burst * share * self.ms_per_unit, 1_000.0, self.ms_per_unit)
        self.room_ms = self.burst_ms - self.ms_per_unit  # highest level at which one more fits

    def wait_ms(self, cost: float, *, now_ms: float) -> int:
        """Return the milliseconds until a request fits into the bucket. A request whose cost is
        above the burst must wait until the bucket is empty."""
        level_ms = max(0.0, self.empty_at_ms - now_ms)
        over_ms = level_ms + min(cost * self.ms_per_unit, self.burst_ms) - self.burst_ms
        return 0 if over_ms <= 0 else min(WAIT_MS_MAX, int(over_ms) + 1)

    def add(self, cost: float, *, now_ms: float) -> None:
        """Add a cost even if the bucket then overflows. The next request has to wait longer."""
        empty_at_ms = self.empty_at_ms
        if empty_at_ms < now_ms:
            empty_at_ms = now_ms
        self.empty_at_ms = empty_at_ms + cost * self.ms_per_unit

    def is_idle(self, *, now_ms: float) -> bool:
        return self.empty_at_ms <= now_ms
