"""Fourth stage: not faster than the caller's tenant may, and not on more connections.

It stands behind authorization: who is refused there costs the queue's bucket nothing. A caller
whose account nobody has entered as a tenant is asked nothing, which is everybody's case while
authentication is off and no tenants are made. The buckets are ``throttle.py``'s."""

from collections import Counter
from collections.abc import Iterator

from penstock.frontend.call import Call
from penstock.frontend.context import Context
from penstock.frontend.metering import OPERATIONS
from penstock.frontend.quotas import TenantQuotas
from penstock.frontend.throttle import Throttler
from penstock.model.identity import Tenant
from penstock.model.names import queue_arn
from penstock.telemetry import families
from penstock.telemetry.exposition import Sample
from penstock.telemetry.families import Family
from penstock.wire.aws import queue_urls
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.shapes import QueueRequest


def throttle(context: Context, call: Call) -> None:
    """Raises Throttled."""
    kept = call.kept
    tenant = context.identities.tenant(call.caller.account) if kept is None else kept.tenant
    if tenant is None:
        return
    connection, quotas = call.request.connection, context.quotas
    if connection is not None and connection.counted_for is not tenant and quotas is not None:
        quotas.claim(connection, tenant)
    throttler, clock = context.throttler, context.clock
    if kept is None:
        if throttler.is_free(tenant):
            return
        action = call.action
        assert action is not None, "decode found an action or raised"
        operation, arn = OPERATIONS[action.name], _arn(call, tenant)
        now_ms = clock.mono_ms()
        call.owed = throttler.check(tenant, call.caller, operation, arn, now_ms=now_ms)
    else:
        way = kept.way
        if way is None or not throttler.leads_on(way):
            way = kept.way = throttler.way_of(
                tenant, call.caller, call.permission, kept.arn, now_ms=clock.mono_ms()
            )
        if way.is_open:
            return
        now_ms = clock.mono_ms()
        call.owed = throttler.enter(way, now_ms=now_ms)
    call.owed_from_ms = now_ms


def _arn(call: Call, tenant: Tenant) -> str | None:
    if not call.arn and tenant.limits.queue_requests.per_s > 0:
        return _arn_of(call)  # a caller who is believed was asked for no permission on it
    return call.arn or None


def _arn_of(call: Call) -> str | None:
    asked = call.asked
    if not isinstance(asked, QueueRequest) or not asked.queue_url:
        return None
    try:
        address = queue_urls.parse(asked.queue_url)
    except Fault:
        return None  # no queue has it, and the action says so
    return queue_arn(address.account or call.account, call.region, address.name)


def samples_of(
    throttler: Throttler, quotas: TenantQuotas | None, *, own_account: str
) -> Iterator[tuple[Family, Sample]]:
    """How often each limit was reached. Tenants are not told apart: there may be thousands."""
    counts: Counter[tuple[str, str]] = Counter()
    refused = dict(throttler.refused)
    if quotas is not None:
        refused.update(quotas.all_refused())
    for (account, limit), count in refused.items():
        counts["own" if account == own_account else "other", limit] += count
    for labels, count in sorted(counts.items()):
        yield families.FRONTEND_THROTTLED, (labels, count)
