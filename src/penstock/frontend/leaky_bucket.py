"""A leaky bucket: what comes in raises the level, time lets it sink, and what would overflow is
refused and told when to come again. Pure: the clock is an argument.

The level is kept as the time at which the bucket will be empty, so that letting it sink costs
nothing and a bucket nobody uses needs no care. Whoever asks thousands of times a second reads and
moves that time by itself (``throttle.py``)."""

from penstock.model.identity import Rate

WAIT_MS_MAX = 60_000  # nobody is told to come back later than this; asking earlier is harmless


class LeakyBucket:
    __slots__ = ("burst_ms", "empty_at_ms", "ms_per_unit", "rate", "room_ms")

    def __init__(self, rate: Rate, *, share: float = 1.0) -> None:
        """``share``: the part of the rate that is ours when several share the limit."""
        assert rate.per_s > 0, "a bucket without a rate is no limit: do not make one"
        self.rate = rate
        self.empty_at_ms = 0.0
        self.take_share(share)

    def take_share(self, share: float) -> None:
        """Of the rate and the burst alike: the bucket stays as full as it is, by parts of it."""
        assert 0 < share <= 1
        rate = self.rate
        self.ms_per_unit = 1_000.0 / (rate.per_s * share)
        # At least one second's worth, so that a low rate lets single requests through at all.
        self.burst_ms = max(rate.burst * share * self.ms_per_unit, 1_000.0, self.ms_per_unit)
        self.room_ms = self.burst_ms - self.ms_per_unit  # one more fits up to this level

    def wait_ms(self, cost: float, *, now_ms: float) -> int:
        """How long until ``cost`` fits; 0: now. Something larger than the whole bucket fits when
        it is empty."""
        level_ms = max(0.0, self.empty_at_ms - now_ms)
        over_ms = level_ms + min(cost * self.ms_per_unit, self.burst_ms) - self.burst_ms
        return 0 if over_ms <= 0 else min(WAIT_MS_MAX, int(over_ms) + 1)

    def add(self, cost: float, *, now_ms: float) -> None:
        """Pour in, whether or not it fits: what is known only afterwards is paid for later."""
        empty_at_ms = self.empty_at_ms
        if empty_at_ms < now_ms:
            empty_at_ms = now_ms
        self.empty_at_ms = empty_at_ms + cost * self.ms_per_unit

    def is_idle(self, *, now_ms: float) -> bool:
        return self.empty_at_ms <= now_ms
