"""Until when each lease lasts, for a store that has to see to it itself. Pure: the clock is an
argument, and what hangs on a lease is the store's affair.

Times are of a clock that only this process has, so they are kept in memory alone: a store that
starts again gives every lease its full time anew. Who holds one could not keep it alive meanwhile.
"""

from collections.abc import Sequence

from penstock.metadata.store import LeaseGone


class LeaseTimes:
    def __init__(self) -> None:
        self._ttl_ms: dict[int, int] = {}
        self._ends_at_ms: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._ttl_ms)

    def begin(self, lease: int, *, ttl_ms: int, now_ms: int) -> None:
        self._ttl_ms[lease] = ttl_ms
        self._ends_at_ms[lease] = now_ms + ttl_ms

    def renew(self, lease: int, *, now_ms: int) -> int:
        """How long it lasts from now. Raises LeaseGone, also for one that nobody has collected."""
        ttl_ms = self._ttl_ms.get(lease)
        if ttl_ms is None or self._ends_at_ms[lease] <= now_ms:
            raise LeaseGone(lease)
        self._ends_at_ms[lease] = now_ms + ttl_ms
        return ttl_ms

    def ended(self, *, now_ms: int) -> Sequence[int]:
        """In the order in which they ended. They stay until they are forgotten."""
        ended = [lease for lease, at_ms in self._ends_at_ms.items() if at_ms <= now_ms]
        return sorted(ended, key=self._ends_at_ms.__getitem__)

    def forget(self, lease: int) -> None:
        self._ttl_ms.pop(lease, None)
        self._ends_at_ms.pop(lease, None)

    def next_end_ms(self) -> int | None:
        return min(self._ends_at_ms.values(), default=None)
