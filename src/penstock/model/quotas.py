"""Quotas of a tenant. A default is a fixed number, but at most a part of the limit for all tenants.

A quota that an operator sets (``penstock quota set``) replaces the default. Zero means no limit.
The node's own tenant has no defaults, so a server with a single tenant can use all of each
limit."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from penstock.model import limits
from penstock.model.errors import Throttled
from penstock.model.identity import Rate, Tenant

NO_LIMIT: Final = 1 << 62


class Quota(NamedTuple):
    field: str  # field name in ``model.identity.Quotas``
    what: str
    default: int
    percent: int  # largest part of the limit that all tenants have in common

    @property
    def name(self) -> str:
        return self.field.removesuffix("_max")

    def exceeded(self, used: int, most: int, added: int = 1) -> str:
        return (
            f"Quota exceeded: this tenant has {used:,} of {most:,} {self.what}, and {added:,} more"
            " do not fit. Delete some, or have an operator raise the quota (penstock quota set"
            f" --{self.field.replace('_', '-')})."
        )


QUOTAS: Final = (
    Quota("queues_max", "queues and topics", limits.TENANT_QUEUES_MAX, 10),
    Quota("partitions_max", "partitions", limits.TENANT_PARTITIONS_MAX, 25),
    Quota("stored_bytes_max", "bytes on disk", limits.TENANT_STORED_BYTES_MAX, 50),
    Quota("connections_max", "connections", limits.TENANT_CONNECTIONS_MAX, 25),
    Quota("waits_max", "waiting long polls", limits.TENANT_WAITS_MAX, 25),
    Quota("groups_max", "groups", limits.TENANT_GROUPS_MAX, 10),
    Quota("subscriptions_max", "subscriptions", limits.TENANT_SUBSCRIPTIONS_MAX, 10),
    # There is no common limit for these.
    Quota("offset_bytes_max", "bytes of committed offsets", limits.TENANT_OFFSET_BYTES_MAX, 100),
    Quota("transactional_ids_max", "transactional ids", limits.TENANT_TRANSACTIONAL_IDS_MAX, 10),
)
QUEUES, PARTITIONS, STORED_BYTES, CONNECTIONS = QUOTAS[:4]
WAITS, GROUPS, SUBSCRIPTIONS, OFFSET_BYTES, TRANSACTIONAL_IDS = QUOTAS[4:]
GROUP_CONFIGS: Final = GROUPS._replace(what="groups with settings")
REQUESTS: Final = Rate(limits.TENANT_REQUESTS_PER_SECOND, limits.TENANT_REQUESTS_BURST)


def requests_of(tenant: Tenant, *, own_account: str) -> Rate:
    rate = tenant.limits.tenant_requests
    if rate is not None:
        return rate
    return Rate() if tenant.account == own_account else REQUESTS


def share_of(bound: int, percent: float) -> int:
    return max(1, int(bound * percent / 100))


def most_of(tenant: Tenant | None, quota: Quota, *, own_account: str, bound: int = NO_LIMIT) -> int:
    """Return how much a tenant may use. ``bound`` is the limit that all tenants share."""
    if tenant is None:
        return NO_LIMIT
    value: int | None = getattr(tenant.quotas, quota.field)
    if value is not None:
        return value or NO_LIMIT
    if tenant.account == own_account:
        return NO_LIMIT
    return min(quota.default, share_of(bound, quota.percent))


class SharedLimit:
    """A limit for all holders together: tenants (by account) and unknown clients (by address). One
    holder may use at most ``percent`` of it; the node's own tenant may use all."""

    def __init__(self, bound: int, percent: float, *, own_account: str | None) -> None:
        self.bound = bound
        self.most = bound if own_account is None else share_of(bound, percent)
        self.total = 0
        self.own_account = own_account
        self._counts: dict[str, int] = {}

    def of(self, holder: str) -> int:
        return self._counts.get(holder, 0)

    def is_full(self, added: int = 1) -> bool:
        return self.total + added > self.bound

    def is_used_up(self, holder: str, added: int = 1) -> bool:
        if self.own_account is None or holder == self.own_account:
            return False
        return self._counts.get(holder, 0) + added > self.most

    def add(self, holder: str, change: int = 1) -> None:
        self.total += change
        count = self._counts.get(holder, 0) + change
        if count:
            self._counts[holder] = count
        else:
            self._counts.pop(holder, None)

    @contextmanager
    def holding(self, holder: str, what: str) -> Iterator[None]:
        """Count one use until the context ends. Raises Throttled if the holder uses too much."""
        if self.is_used_up(holder):
            raise Throttled(f"This tenant has {self.of(holder):,} of {self.most:,} {what}.")
        self.add(holder)
        try:
            yield
        finally:
            self.add(holder, -1)

    def clear(self) -> None:
        self.total = 0
        self._counts.clear()
