"""Delays: when a delayed record is due, and how many delayed records have not been read yet.

A delay starts at the append and is stored in the record, so it is on the wall clock; it is
converted to the monotonic clock once, when the record is read. A later jump of the wall clock
changes nothing, and an earlier jump cannot make a delay longer than its duration.

Records below the cursor's head have their due time in their entry. Records after it are only
counted, in one bucket per second: at most 1,800 buckets, however many messages are delayed.
"""

from collections.abc import Iterable

from penstock.model.limits import DELAY_MS_MAX, SECOND_MS
from penstock.model.message import Record

BUCKETS_MAX = 2 * DELAY_MS_MAX // SECOND_MS  # twice the maximum, as the wall clock may jump


def due_at(record: Record, delay_ms: int, *, now_ms: int, wall_ms: int) -> int:
    """Return when a record with this delay may be delivered, on the monotonic clock."""
    return now_ms + min(delay_ms, record.appended_at_ms + delay_ms - wall_ms)


class DelayBuckets:
    """Counts of delayed records that have not been read yet, by second of the wall clock.

    A standard queue counts a record in the second it is due. A FIFO queue counts it in the second
    of its append, because the queue's current delay applies to all records: callers pass that delay
    to ``count``."""

    def __init__(self, *, by_append: bool) -> None:
        self._by_append = by_append
        self._buckets: dict[int, tuple[int, int]] = {}  # key → (count, from_ms)

    def __len__(self) -> int:
        return len(self._buckets)

    def key_of(self, record: Record) -> int:
        delay_ms = 0 if self._by_append else record.message.delay_ms or 0
        return (record.appended_at_ms + delay_ms) // SECOND_MS

    def add(self, delay_ms: int, *, appended_at_ms: int, now_ms: int) -> None:
        """Count a record. ``now_ms`` is the time of the append on the monotonic clock."""
        ahead_ms = 0 if self._by_append else delay_ms
        key = (appended_at_ms + ahead_ms) // SECOND_MS
        count, from_ms = self._buckets.get(key, (0, 0))
        self._buckets[key] = (count + 1, max(from_ms, now_ms + ahead_ms))
        if len(self._buckets) > BUCKETS_MAX:
            # Only possible after a jump of the clock; the oldest bucket is most likely due.
            del self._buckets[next(iter(self._buckets))]

    def remove(self, keys: Iterable[int]) -> None:
        for key in keys:
            count, from_ms = self._buckets.get(key, (0, 0))
            if count > 1:
                self._buckets[key] = (count - 1, from_ms)
            elif count == 1:
                del self._buckets[key]

    def __contains__(self, key: int) -> bool:
        return key in self._buckets

    def count(self, *, now_ms: int, delay_ms: int = 0) -> int:
        if not self._buckets:
            return 0
        # A bucket that is due for the longest possible delay can never count again.
        longest_ms = DELAY_MS_MAX if self._by_append else 0
        ended = [k for k, (_, from_ms) in self._buckets.items() if from_ms + longest_ms <= now_ms]
        for key in ended:
            del self._buckets[key]
        extra_ms = delay_ms if self._by_append else 0
        return sum(n for n, from_ms in self._buckets.values() if from_ms + extra_ms > now_ms)

    def next_ms(self, *, now_ms: int, delay_ms: int = 0) -> int | None:
        """Return when the first delayed record is due, to the second; None if there is none."""
        extra_ms = delay_ms if self._by_append else 0
        due = (from_ms + extra_ms for _, from_ms in self._buckets.values())
        return min((each for each in due if each > now_ms), default=None)

    def clear(self) -> None:
        self._buckets.clear()

    def rows(self, *, now_ms: int) -> list[tuple[int, int, int]]:
        return [(key, n, from_ms - now_ms) for key, (n, from_ms) in self._buckets.items()]

    def load(self, rows: Iterable[tuple[int, int, int]], *, now_ms: int, elapsed_ms: int) -> None:
        self._buckets = {key: (n, now_ms + left - elapsed_ms) for key, n, left in rows}
