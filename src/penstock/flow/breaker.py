"""A circuit breaker: after five failures in a row it admits no call for 0.5 s, then single calls as
probes. Each probe that fails doubles the pause, up to 30 s; a success closes the breaker."""

from enum import StrEnum

FAILURES_MAX = 5
TENANTS_MIN = 2  # failures of a single tenant must not open the circuit breaker for all
OPEN_MS_MIN = 500
OPEN_MS_MAX = 30_000


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    def __init__(self) -> None:
        self._failures = 0
        self._general_failures = 0  # failures that concern every tenant
        self._tenants: set[str] = set()  # at most TENANTS_MIN
        self._is_open = False
        self._open_ms = OPEN_MS_MIN
        self._retry_at_ms = 0
        self._is_probing = False
        self.opened_count = 0
        self.failed_at_ms = 0  # the last failure

    @property
    def has_failed(self) -> bool:
        """Return whether failures since the last success concern more than one tenant."""
        return self._general_failures > 0 or len(self._tenants) >= TENANTS_MIN

    @property
    def admits_at_ms(self) -> float:
        """Return the time from which a call is admitted: 0 while the breaker is closed, infinity
        while a probe is in progress."""
        if not self._is_open:
            return 0
        return float("inf") if self._is_probing else self._retry_at_ms

    def state(self, *, now_ms: int) -> BreakerState:
        if not self._is_open:
            return BreakerState.CLOSED
        if self._is_probing or now_ms >= self._retry_at_ms:
            return BreakerState.HALF_OPEN
        return BreakerState.OPEN

    def admits(self, *, now_ms: int) -> bool:
        """Return whether a call may be made now. If so, the result of the call must be reported."""
        if not self._is_open:
            return True
        if self._is_probing or now_ms < self._retry_at_ms:
            return False
        self._is_probing = True
        return True

    def succeeded(self) -> None:
        self._failures = self._general_failures = 0
        self._tenants.clear()
        self._is_open = False
        self._open_ms = OPEN_MS_MIN
        self._is_probing = False

    def abandon_probe(self) -> None:
        """Admit another probe at once: the one in progress ended without a result."""
        self._is_probing = False

    def failed(self, *, now_ms: int, tenant: str | None = None) -> None:
        """Count a failed call. ``tenant`` is None if the failure concerns every tenant."""
        self.failed_at_ms = now_ms
        self._failures += 1
        if tenant is None:
            self._general_failures += 1
        elif len(self._tenants) < TENANTS_MIN:
            self._tenants.add(tenant)
        if not self._is_open:
            is_shared = self._general_failures >= FAILURES_MAX or len(self._tenants) >= TENANTS_MIN
            if self._failures < FAILURES_MAX or not is_shared:
                return
            self._is_open = True
            self.opened_count += 1
        elif self._is_probing:
            self._open_ms = min(2 * self._open_ms, OPEN_MS_MAX)  # probe less often
        else:
            return  # a call that was in progress when the breaker opened
        self._is_probing = False
        self._retry_at_ms = now_ms + self._open_ms
