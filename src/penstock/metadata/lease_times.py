"""End times of leases, for a store that must end leases itself. Pure: the clock is an argument, and
the store handles the entries of a lease.

Times are of a clock of this process and are kept in memory only: a restarted store gives every
lease its full time again, because holders could not keep leases alive meanwhile.
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
        """Return how long the lease lasts. Raises LeaseGone if it has ended, removed or not."""
        ttl_ms = self._ttl_ms.get(lease)
        if ttl_ms is None or self._ends_at_ms[lease] <= now_ms:
            raise LeaseGone(lease)
        self._ends_at_ms[lease] = now_ms + ttl_ms
        return ttl_ms

    def ended(self, *, now_ms: int) -> Sequence[int]:
        """Return the ended leases by end time. They stay until ``forget`` is called."""
        ended = [lease for lease, at_ms in self._ends_at_ms.items() if at_ms <= now_ms]
        return sorted(ended, key=self._ends_at_ms.__getitem__)

    def forget(self, lease: int) -> None:
        self._ttl_ms.pop(lease, None)
        self._ends_at_ms.pop(lease, None)

    def next_end_ms(self) -> int | None:
        return min(self._ends_at_ms.values(), default=None)
