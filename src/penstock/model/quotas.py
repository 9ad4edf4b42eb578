"""Quotas of one tenant: the default of each, and the largest share of a bound that all tenants have
in common.

A quota that an operator set (``penstock quota set``) replaces the default and the share. Zero
stands for "no limit". The node's own tenant has no defaults: a server with a single tenant can use all of
each bound."""

from typing import Final, NamedTuple

from penstock.model import limits
from penstock.model.identity import Rate, Tenant

NO_LIMIT: Final = 1 << 62


class Quota(NamedTuple):
    field: str  # of ``model.identity.Quotas``
    what: str
    default: int
    percent: int  # largest share of the bound


QUEUES: Final = Quota("queues_max", "queues and topics", limits.TENANT_QUEUES_MAX, 10)
PARTITIONS: Final = Quota("partitions_max", "partitions", limits.TENANT_PARTITIONS_MAX, 25)
STORED_BYTES: Final = Quota("stored_bytes_max", "bytes on disk", limits.TENANT_STORED_BYTES_MAX, 50)
CONNECTIONS: Final = Quota("connections_max", "connections", limits.TENANT_CONNECTIONS_MAX, 25)
WAITS: Final = Quota("waits_max", "waiting long polls", limits.TENANT_WAITS_MAX, 25)
QUOTAS: Final = (QUEUES, PARTITIONS, STORED_BYTES, CONNECTIONS, WAITS)


REQUESTS: Final = Rate(limits.TENANT_REQUESTS_PER_SECOND, limits.TENANT_REQUESTS_BURST)


def requests_of(tenant: Tenant, *, own_account: str) -> Rate:
    """Return how many requests per second the tenant may make; a rate of zero is no limit."""
    rate = tenant.limits.tenant_requests
    if rate is not None:
        return rate
    return Rate() if tenant.account == own_account else REQUESTS


def share_of(bound: int, percent: int) -> int:
    """Return the largest share of one tenant: at least 1, so that every tenant is served."""
    return max(1, bound * percent // 100)


def most_of(tenant: Tenant | None, quota: Quota, *, own_account: str, bound: int = NO_LIMIT) -> int:
    """Return how much the tenant may have of ``bound``; NO_LIMIT if nothing limits it.

    ``own_account``: account of the node's own tenant. An account without a tenant (authentication
    is off) has no quotas."""
    if tenant is None:
        return NO_LIMIT
    value: int | None = getattr(tenant.quotas, quota.field)
    if value is not None:
        return value or NO_LIMIT
    if tenant.account == own_account:
        return NO_LIMIT
    return min(quota.default, share_of(bound, quota.percent))
