"""When a webhook or a queue is tried again after a failed attempt."""

from email.utils import mktime_tz, parsedate_tz
from typing import Final

import msgspec

RETRY_AFTER_MS_MAX: Final = 3_600_000  # an endpoint cannot ask for a longer delay
_HEADER_CHARS_MAX: Final = 64  # the longest form of an HTTP date has 33
_EXPONENT_MAX: Final = 300  # 10 ** 300 is still a float

# Attempts at a queue, as SNS makes them: three retries at once, two after 1 s, ten with delays that
# grow from 1 s to 20 s, then one every 20 s.
QUEUE_RETRIES_MAX: Final = 100_015
_AT_ONCE: Final = 3
_SHORT: Final = 2
_GROWING: Final = 10
_DELAY_MS_MIN: Final = 1_000
_DELAY_MS_MAX: Final = 20_000


class WebhookRetry(msgspec.Struct, frozen=True):
    """The ``retry`` setting of a webhook. The delay before a retry is ``min_ms`` at first and is
    multiplied by ``factor`` each time, up to ``max_ms``."""

    min_ms: int = 5_000
    max_ms: int = 3_600_000
    factor: float = 3.0
    attempts_max: int = 20
    age_ms_max: int = 3 * 86_400_000

    def delay_ms(self, attempt: int, age_ms: int, chance: float) -> int | None:
        """Return the delay before the next attempt, or None if there is none. ``attempt`` is the
        number of the failed attempt, from 1, and ``age_ms`` the age of the message. ``chance`` is a
        random number in [0, 1) that spreads retries over the upper half of the delay."""
        if attempt >= self.attempts_max:
            return None
        grown = self.min_ms * self.factor ** min(attempt - 1, _EXPONENT_MAX)
        delay_ms = int(min(grown, self.max_ms) * (1 + chance) / 2)
        return None if age_ms + delay_ms > self.age_ms_max else delay_ms


def queue_delay_ms(attempt: int) -> int | None:
    """Return the delay before the next attempt to copy a message to a queue, or None if there is
    none. ``attempt`` is the number of the failed attempt, from 1."""
    if attempt <= _AT_ONCE:
        return 0
    if attempt <= _AT_ONCE + _SHORT:
        return _DELAY_MS_MIN
    if attempt > QUEUE_RETRIES_MAX:
        return None
    step = min(attempt - _AT_ONCE - _SHORT - 1, _GROWING - 1)
    return _DELAY_MS_MIN + (_DELAY_MS_MAX - _DELAY_MS_MIN) * step // (_GROWING - 1)


def retry_after_ms(value: str | None, *, now_ms: int) -> int | None:
    """Return the delay that a Retry-After header asks for, at most an hour; None if the header is
    absent or malformed. ``value`` is a number of seconds or an HTTP date, ``now_ms`` the time of
    the wall clock."""
    if value is None or len(value) > _HEADER_CHARS_MAX or not value.isascii():
        return None
    value = value.strip()
    if value.isdigit():
        return min(int(value) * 1_000, RETRY_AFTER_MS_MAX)
    parsed = parsedate_tz(value)
    if parsed is None:
        return None
    try:
        at_ms = mktime_tz(parsed) * 1_000
    except (ValueError, OverflowError):  # no such year
        return None
    return max(0, min(at_ms - now_ms, RETRY_AFTER_MS_MAX))
