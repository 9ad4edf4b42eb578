"""Rate limits: one leaky bucket for each tenant, user, queue and operation that has a limit.

A request must be accepted by all its buckets. If one rejects it, it counts in none of them. Bytes
are known only when the reply is made, so they are charged then and delay the next request. The
limits of a tenant apply to all frontends together: each enforces the limit divided by the number of
live frontends. ``RequestLimits`` caches the buckets of similar requests until the limits change."""

from collections.abc import Hashable
from typing import Final, NamedTuple

import msgspec

from penstock.flow.leaky_bucket import LeakyBucket
from penstock.model.errors import Throttled
from penstock.model.identity import Caller, Limits, Rate, Tenant
from penstock.model.names import ACCOUNT_DEFAULT
from penstock.model.quotas import requests_of

BUCKETS_MAX: Final = 100_000  # when it is reached, idle buckets are dropped
CACHED_MAX: Final = 20_000  # RequestLimits, about 400 bytes each
BYTES: Final = "bytes"
# A tenant gets this many rejections per second at once. Further ones are delayed and sent one after
# the other, which slows down clients that retry as soon as they get a reply.
REFUSED_AT_ONCE_MAX: Final = 50
REFUSALS: Final = Rate(REFUSED_AT_ONCE_MAX, REFUSED_AT_ONCE_MAX)
HELD_MS: Final = 100  # shortest delay: it slows down even a single client
QUEUED_MS_MAX: Final = 1_000  # longest delay for which rejections are sent one after the other
HELD_MS_MAX: Final = 2_000  # shorter than the timeout of any client
_NO_LIMITS: Final = Limits()


class RequestLimits(NamedTuple):
    generation: int  # of the throttler when this was made
    account: str
    limits: Limits
    names: tuple[str, ...]  # the limit of each bucket
    buckets: tuple[LeakyBucket, ...]
    bytes_bucket: LeakyBucket | None  # charged after the reply
    is_empty: bool  # there are no limits


class Throttler:
    def __init__(self, *, own_account: str = ACCOUNT_DEFAULT) -> None:
        self._own_account = own_account
        self._share = 1.0  # of every limit
        self._generation = 0  # changes when buckets are dropped
        self._buckets: dict[Hashable, LeakyBucket] = {}
        self._cached: dict[tuple[str, str, str, str | None], RequestLimits] = {}
        self._unlimited: dict[str, tuple[Limits, bool]] = {}  # by account
        self.rejected: dict[tuple[str, str], int] = {}  # requests, by account and limit
        self._refusals: dict[str, LeakyBucket] = {}  # rate of rejections, by account
        self._late_count = 0

    def share_among(self, frontend_count: int) -> None:
        self._share = 1.0 / max(1, frontend_count)
        for bucket in self._buckets.values():
            bucket.take_share(self._share)

    def check(
        self, tenant: Tenant | None, caller: Caller, action: str, arn: str | None, *, now_ms: float
    ) -> LeakyBucket | None:
        """Count a request, or raise Throttled. Returns the bucket of the limit on bytes, if any."""
        if tenant is None:
            return None
        return self.take(self.limits_of(tenant, caller, action, arn, now_ms=now_ms), now_ms=now_ms)

    def wait(
        self, tenant: Tenant | None, caller: Caller, action: str, arn: str | None, *, now_ms: float
    ) -> tuple[int, str]:
        """Return the milliseconds until ``check`` accepts a request, and the limit to wait for."""
        if tenant is None:
            return 0, ""
        limits = self.limits_of(tenant, caller, action, arn, now_ms=now_ms)
        wait_ms, limit = _longest_wait(limits, now_ms)
        return wait_ms, limit if wait_ms else ""

    def limits_of(
        self, tenant: Tenant, caller: Caller, action: str, arn: str | None, *, now_ms: float
    ) -> RequestLimits:
        found = self._cached.get((tenant.account, caller.user, action, arn))
        if found is None or found.limits is not tenant.limits:
            found = self._find_limits(tenant, caller, action, arn, now_ms)
        return found

    def is_current(self, limits: RequestLimits) -> bool:
        return limits.generation == self._generation

    def take(self, limits: RequestLimits, *, now_ms: float) -> LeakyBucket | None:
        """Do the same as ``check``, with the limits that ``limits_of`` has returned."""
        for bucket in limits.buckets:
            if bucket.empty_at_ms - now_ms > bucket.room_ms:
                self._reject(limits, now_ms)
        bytes_bucket = limits.bytes_bucket
        if bytes_bucket is not None and bytes_bucket.empty_at_ms - now_ms > bytes_bucket.burst_ms:
            self._reject(limits, now_ms)
        for bucket in limits.buckets:
            empty_at_ms = bucket.empty_at_ms
            if empty_at_ms < now_ms:
                empty_at_ms = now_ms
            bucket.empty_at_ms = empty_at_ms + bucket.ms_per_unit
        return bytes_bucket

    def is_unlimited(self, tenant: Tenant) -> bool:
        limits = tenant.limits
        found = self._unlimited.get(tenant.account)
        if found is None or found[0] is not limits:
            if len(self._unlimited) >= CACHED_MAX:
                self._unlimited.clear()
            requests = requests_of(tenant, own_account=self._own_account)
            rest = msgspec.structs.replace(limits, tenant_requests=None)
            is_unlimited = rest == _NO_LIMITS and not requests.per_s
            found = self._unlimited[tenant.account] = (limits, is_unlimited)
        return found[1]

    def charge(
        self,
        tenant: Tenant | None,
        caller: Caller,
        action: str,
        size_bytes: int,
        *,
        now_ms: float,
        requests: int = 1,
    ) -> int:
        """Count a request that was already executed, even if it exceeds its limits. Returns the
        milliseconds that the client must wait."""
        if tenant is None:
            return 0
        limits = self.limits_of(tenant, caller, action, None, now_ms=now_ms)
        for bucket in limits.buckets:
            bucket.add(requests, now_ms=now_ms)
        if limits.bytes_bucket is not None:
            limits.bytes_bucket.add(size_bytes, now_ms=now_ms)
        wait_ms, limit = _longest_wait(limits, now_ms)
        if wait_ms:
            self.count_rejected(tenant.account, limit)
        return wait_ms

    def count_rejected(self, account: str, limit: str) -> None:
        self.rejected[account, limit] = self.rejected.get((account, limit), 0) + 1

    def _reject(self, limits: RequestLimits, now_ms: float) -> None:
        wait_ms, limit = _longest_wait(limits, now_ms)
        limit = limit or BYTES  # the wait may have been rounded to zero
        self.count_rejected(limits.account, limit)
        text = f"The rate of requests is above the {limit} limit."
        held_ms = self._held_ms(limits.account, now_ms)
        raise Throttled(text, retry_after_ms=max(1, wait_ms), held_ms=held_ms)

    def _held_ms(self, account: str, now_ms: float) -> int:
        refusals = self._refusals.get(account)
        if refusals is None:
            refusals = self._refusals[account] = LeakyBucket(REFUSALS)
        held_ms = refusals.wait_ms(1, now_ms=now_ms)
        if held_ms >= QUEUED_MS_MAX:
            # Not added to the bucket, so its level is bounded. The delays differ, so that clients
            # rejected together do not retry together.
            self._late_count += 1
            return QUEUED_MS_MAX + self._late_count * 37 % (HELD_MS_MAX - QUEUED_MS_MAX)
        refusals.add(1, now_ms=now_ms)
        return max(HELD_MS, held_ms) if held_ms else 0

    def _find_limits(
        self, tenant: Tenant, caller: Caller, action: str, arn: str | None, now_ms: float
    ) -> RequestLimits:
        limits, account = tenant.limits, tenant.account
        # The queue limit is that of the calling tenant, not that of the queue's owner.
        rates: dict[str, tuple[str, Rate | None]] = {
            "tenant": ("", requests_of(tenant, own_account=self._own_account)),
            "user": (caller.user, limits.user_requests),
            "operation": (action, limits.operations.get(action)),
            "queue": (arn or "", None if arn is None else limits.queue_requests),
        }
        found = {
            name: self._bucket((name, account, value), rate, now_ms)
            for name, (value, rate) in rates.items()
            if rate is not None and rate.per_s > 0
        }
        bytes_bucket = None
        if limits.tenant_bytes.per_s > 0:
            bytes_bucket = self._bucket((BYTES, account, ""), limits.tenant_bytes, now_ms)
        if len(self._cached) >= CACHED_MAX:
            self._cached.clear()
        names, buckets = tuple(found), tuple(found.values())
        is_empty = not buckets and bytes_bucket is None
        known = (self._generation, account, limits, names, buckets, bytes_bucket, is_empty)
        made = self._cached[account, caller.user, action, arn] = RequestLimits(*known)
        return made

    def _bucket(self, key: Hashable, rate: Rate, now_ms: float) -> LeakyBucket:
        bucket = self._buckets.get(key)
        if bucket is None or bucket.rate != rate:
            if len(self._buckets) >= BUCKETS_MAX:
                self._drop_idle(now_ms)
            bucket = self._buckets[key] = LeakyBucket(rate, share=self._share)
        return bucket

    def _drop_idle(self, now_ms: float) -> None:
        self._buckets = {k: b for k, b in self._buckets.items() if not b.is_idle(now_ms=now_ms)}
        if len(self._buckets) >= BUCKETS_MAX:
            self._buckets.clear()  # none is idle; each limit allows one more burst
        self._generation += 1
        self._cached.clear()


def _longest_wait(limits: RequestLimits, now_ms: float) -> tuple[int, str]:
    """Return the milliseconds until all limits allow a request, and the limit to wait for."""
    named = zip(limits.names, limits.buckets, strict=True)
    waits = [(bucket.wait_ms(1, now_ms=now_ms), name) for name, bucket in named]
    if limits.bytes_bucket is not None:
        waits.append((limits.bytes_bucket.wait_ms(0, now_ms=now_ms), BYTES))
    return max(waits, default=(0, ""))
