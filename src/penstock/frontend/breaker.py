"""A circuit breaker: after failures in a row it refuses at once instead of waiting for the next,
and lets single probes through to find out whether the other side is back. Pure: the clock is an
argument.

Many tenants share a node, and the partitions of one tenant may hang by themselves. So late calls
count by tenant, and open the breaker only when two tenants at least have had one. Failures that
concern every tenant, such as a lost connection, need no second tenant."""

from enum import StrEnum

FAILURES_MAX = 5
TENANTS_MIN = 2  # one tenant alone never cuts off the others
OPEN_MS_MIN = 500
OPEN_MS_MAX = 30_000


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    __slots__ = (
        "_failures",
        "_general_failures",
        "_is_open",
        "_is_probing",
        "_open_ms",
        "_retry_at_ms",
        "_tenants",
        "failed_at_ms",
        "opened_count",
    )

    def __init__(self) -> None:
        self._failures = 0
        self._general_failures = 0  # those of them that concern every tenant
        self._tenants: set[str] = set()  # at most TENANTS_MIN
        self._is_open = False
        self._open_ms = OPEN_MS_MIN
        self._retry_at_ms = 0
        self._is_probing = False
        self.opened_count = 0
        self.failed_at_ms = 0  # the last failure

    @property
    def has_failed(self) -> bool:
        """Whether failures since the last answer say something about every tenant."""
        return self._general_failures > 0 or len(self._tenants) >= TENANTS_MIN

    def state(self, *, now_ms: int) -> BreakerState:
        if not self._is_open:
            return BreakerState.CLOSED
        if self._is_probing or now_ms >= self._retry_at_ms:
            return BreakerState.HALF_OPEN
        return BreakerState.OPEN

    def admits(self, *, now_ms: int) -> bool:
        """Whether to call at all. Who is admitted reports how it went, exactly once."""
        if not self._is_open:
            return True
        if self._is_probing or now_ms < self._retry_at_ms:
            return False
        self._is_probing = True
        return True

    def retry_after_ms(self, *, now_ms: int) -> int:
        return max(1, self._retry_at_ms - now_ms)

    def succeeded(self) -> None:
        self._failures = self._general_failures = 0
        self._tenants.clear()
        self._is_open = False
        self._open_ms = OPEN_MS_MIN
        self._is_probing = False

    def failed(self, *, now_ms: int, tenant: str | None = None) -> None:
        """``tenant``: whose call was late; None for a failure that concerns every tenant."""
        self.failed_at_ms = now_ms
        self._count(tenant)
        if not self._is_open:
            if not self._is_tripped:
                return
            self._is_open = True
            self.opened_count += 1
        elif self._is_probing:
            # The probe failed: it is not back yet, so ask less often.
            self._open_ms = min(2 * self._open_ms, OPEN_MS_MAX)
        else:
            return  # one of those that were under way when it opened
        self._is_probing = False
        self._retry_at_ms = now_ms + self._open_ms

    def _count(self, tenant: str | None) -> None:
        self._failures += 1
        if tenant is None:
            self._general_failures += 1
        elif len(self._tenants) < TENANTS_MIN:
            self._tenants.add(tenant)

    @property
    def _is_tripped(self) -> bool:
        if self._general_failures >= FAILURES_MAX:
            return True
        return self._failures >= FAILURES_MAX and len(self._tenants) >= TENANTS_MIN
