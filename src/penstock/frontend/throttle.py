"""How fast: a leaky bucket for each tenant, user, queue and operation that has a limit.

A request passes all its buckets or none: they are asked first and filled afterwards, so that one
that is refused has cost nobody anything. Bytes are known only when a reply is made; they are poured
in then and hold back the next request. Limits are a tenant's and shared by all frontends: each
takes its part of them by how many are alive, which it is told when that changes.

Which buckets a request has to pass is the same for all requests of one sort, so this way is worked
out once and remembered until the tenant's limits change; who keeps it (``passes.py``) asks before
going it again whether it still leads on."""

from collections.abc import Hashable, Mapping
from typing import Final, NamedTuple

import msgspec

from penstock.frontend.leaky_bucket import LeakyBucket
from penstock.model.errors import Throttled
from penstock.model.identity import Caller, Limits, Rate, Tenant
from penstock.model.names import ACCOUNT_DEFAULT
from penstock.model.quotas import requests_of

BUCKETS_MAX: Final = 100_000  # beyond it those that are empty go: they are as good as new
WAYS_MAX: Final = 20_000  # about 400 bytes each; beyond it all are worked out anew
BYTES: Final = "bytes"
# Refusing is cheap and not free. Of a tenant that goes on asking, so many a second are told so, and
# the others later, one after the other: that is what slows clients down that wait for an answer
# before they ask again, however many they are.
REFUSED_AT_ONCE_MAX: Final = 50
REFUSALS: Final = Rate(REFUSED_AT_ONCE_MAX, REFUSED_AT_ONCE_MAX)
HELD_MS: Final = 100  # at least: one client alone is slowed down as well
QUEUED_MS_MAX: Final = 1_000  # as long as they are told one after the other
HELD_MS_MAX: Final = 2_000  # below the time that any client waits for an answer
_NO_LIMITS: Final = Limits()


class Way(NamedTuple):
    """What requests of one sort have to pass."""

    serial: int  # of the buckets it leads through: they may be replaced
    account: str
    limits: Limits
    names: tuple[str, ...]  # of the limits behind the buckets
    buckets: tuple[LeakyBucket, ...]
    bytes_bucket: LeakyBucket | None  # paid for afterwards: whoever is in debt waits
    is_open: bool  # there is nothing to pass


class Throttler:
    def __init__(self, *, own_account: str = ACCOUNT_DEFAULT) -> None:
        """``own_account``: of the node's own tenant, which has no limit by default."""
        self._own_account = own_account
        self._share = 1.0  # of every limit
        self._serial = 0  # raised when buckets go
        self._buckets: dict[Hashable, LeakyBucket] = {}
        self._ways: dict[tuple[str, str, str, str | None], Way] = {}
        self._seen: dict[str, tuple[Limits, bool]] = {}  # by account: whether they limit anything
        self._refused: dict[tuple[str, str], int] = {}  # by account and limit
        self._refusals: dict[str, LeakyBucket] = {}  # by account: how fast they are told
        self._late_count = 0  # of refusals

    @property
    def refused(self) -> Mapping[tuple[str, str], int]:
        """How many requests, by account and which limit it was."""
        return self._refused

    def share_among(self, frontend_count: int) -> None:
        """So many are alive, this one included. What a bucket holds stays in it, or another
        frontend that comes or goes would be a burst for everybody."""
        self._share = 1.0 / max(1, frontend_count)
        for bucket in self._buckets.values():
            bucket.take_share(self._share)

    def check(
        self, tenant: Tenant | None, caller: Caller, action: str, arn: str | None, *, now_ms: float
    ) -> LeakyBucket | None:
        """Raises Throttled, with the time after which asking again may help. Returns what the bytes
        that the request will have moved are poured into, if they count."""
        if tenant is None:
            return None
        return self.enter(self.way_of(tenant, caller, action, arn, now_ms=now_ms), now_ms=now_ms)

    def wait(
        self, tenant: Tenant | None, caller: Caller, action: str, arn: str | None, *, now_ms: float
    ) -> tuple[int, str]:
        """Return for how many milliseconds ``check`` refuses, and by which limit; 0 and "" if the
        next request passes. Costs the caller nothing."""
        if tenant is None:
            return 0, ""
        way = self.way_of(tenant, caller, action, arn, now_ms=now_ms)
        wait_ms, limit = _longest_wait(way, now_ms)
        return wait_ms, limit if wait_ms else ""

    def way_of(
        self, tenant: Tenant, caller: Caller, action: str, arn: str | None, *, now_ms: float
    ) -> Way:
        way = self._ways.get((tenant.account, caller.user, action, arn))
        if way is None or way.limits is not tenant.limits:
            way = self._work_out(tenant, caller, action, arn, now_ms)
        return way

    def leads_on(self, way: Way) -> bool:
        """Whether it is still one, as long as its tenant's limits are the same."""
        return way.serial == self._serial

    def enter(self, way: Way, *, now_ms: float) -> LeakyBucket | None:
        """``check``, for who has kept the way."""
        for bucket in way.buckets:
            if bucket.empty_at_ms - now_ms > bucket.room_ms:
                self._refuse(way, now_ms)
        in_debt = way.bytes_bucket
        if in_debt is not None and in_debt.empty_at_ms - now_ms > in_debt.burst_ms:
            self._refuse(way, now_ms)
        for bucket in way.buckets:
            empty_at_ms = bucket.empty_at_ms
            if empty_at_ms < now_ms:
                empty_at_ms = now_ms
            bucket.empty_at_ms = empty_at_ms + bucket.ms_per_unit
        return in_debt

    def is_free(self, tenant: Tenant) -> bool:
        """Whether the tenant has no limits at all: nothing else need be asked."""
        limits = tenant.limits
        seen = self._seen.get(tenant.account)
        if seen is None or seen[0] is not limits:
            if len(self._seen) >= WAYS_MAX:
                self._seen.clear()
            requests = requests_of(tenant, own_account=self._own_account)
            rest = msgspec.structs.replace(limits, tenant_requests=None)
            is_free = rest == _NO_LIMITS and not requests.per_s
            seen = self._seen[tenant.account] = (limits, is_free)
        return seen[1]

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
        """For protocols that answer first and hold back afterwards: a request that was carried
        out, and the bytes it moved, whether or not they fit. A large request counts as several
        ``requests``. Returns for how many milliseconds its sender must pause."""
        if tenant is None:
            return 0
        way = self.way_of(tenant, caller, action, None, now_ms=now_ms)
        for bucket in way.buckets:
            bucket.add(requests, now_ms=now_ms)
        if way.bytes_bucket is not None:
            way.bytes_bucket.add(size_bytes, now_ms=now_ms)
        wait_ms, limit = _longest_wait(way, now_ms)
        if wait_ms:
            self.count_refused(tenant.account, limit)
        return wait_ms

    def note_bytes(self, tenant: Tenant | None, size_bytes: int, *, now_ms: float) -> None:
        if tenant is not None and tenant.limits.tenant_bytes.per_s > 0 and size_bytes:
            bucket = self._bucket((BYTES, tenant.account), tenant.limits.tenant_bytes, now_ms)
            bucket.add(size_bytes, now_ms=now_ms)

    def _refuse(self, way: Way, now_ms: float) -> None:
        wait_ms, limit = _longest_wait(way, now_ms)
        wait_ms, limit = max(1, wait_ms), limit or BYTES  # a fraction may have been rounded away
        self.count_refused(way.account, limit)
        raise Throttled(
            f"The rate of requests is above the limit ({limit}).",
            retry_after_ms=wait_ms,
            held_ms=self._held_ms(way.account, now_ms),
        )

    def _held_ms(self, account: str, now_ms: float) -> int:
        refusals = self._refusals.get(account)
        if refusals is None:
            refusals = self._refusals[account] = LeakyBucket(REFUSALS)
        held_ms = refusals.wait_ms(1, now_ms=now_ms)
        if held_ms >= QUEUED_MS_MAX:
            # Not poured in, so it never gets fuller than that. Spread out, or those that were
            # refused together would all come back together.
            self._late_count += 1
            return QUEUED_MS_MAX + self._late_count * 37 % (HELD_MS_MAX - QUEUED_MS_MAX)
        refusals.add(1, now_ms=now_ms)
        return max(HELD_MS, held_ms) if held_ms else 0

    def count_refused(self, account: str, limit: str) -> None:
        """Note that a request was refused, or its sender told to pause."""
        # Accounts are tenants that somebody has entered, so these are few.
        self._refused[account, limit] = self._refused.get((account, limit), 0) + 1

    def _work_out(
        self, tenant: Tenant, caller: Caller, action: str, arn: str | None, now_ms: float
    ) -> Way:
        limits, account = tenant.limits, tenant.account
        wanted: list[tuple[str, Hashable, Rate | None]] = [
            (
                "tenant",
                ("tenant", account),
                requests_of(tenant, own_account=self._own_account),
            ),
            ("user", ("user", account, caller.user), limits.user_requests),
            ("operation", ("operation", account, action), limits.operations.get(action)),
        ]
        if arn is not None:
            # By who asks as well: the limits are theirs, not those of the queue's owner.
            wanted.append(("queue", ("queue", account, arn), limits.queue_requests))
        found = {
            name: self._bucket(key, rate, now_ms)
            for name, key, rate in wanted
            if rate is not None and rate.per_s > 0
        }
        bytes_bucket = None
        if limits.tenant_bytes.per_s > 0:
            bytes_bucket = self._bucket((BYTES, account), limits.tenant_bytes, now_ms)
        if len(self._ways) >= WAYS_MAX:
            self._ways.clear()
        buckets = tuple(found.values())
        is_open = not buckets and bytes_bucket is None
        way = self._ways[account, caller.user, action, arn] = Way(
            self._serial, account, limits, tuple(found), buckets, bytes_bucket, is_open
        )
        return way

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
            self._buckets.clear()  # somebody has that many busy: forgetting favours them once
        self._serial += 1
        self._ways.clear()  # they may lead to buckets that are gone


def _longest_wait(way: Way, now_ms: float) -> tuple[int, str]:
    """Until one more request passes, and the limit that it is."""
    longest = (0, "")
    for name, bucket in zip(way.names, way.buckets, strict=True):
        longest = max(longest, (bucket.wait_ms(1, now_ms=now_ms), name))
    if way.bytes_bucket is not None:
        longest = max(longest, (way.bytes_bucket.wait_ms(0, now_ms=now_ms), BYTES))
    return longest
