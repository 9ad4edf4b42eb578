"""The fifth stage: rate limits and connection quota of the caller's tenant.

It follows authorization, so that a denied request does not use up the limit of a queue. An account
without a tenant, which is the normal case while authentication is off, has no limits."""

from collections import Counter
from collections.abc import Iterator

from penstock.frontend.limits.quotas import TenantQuotas
from penstock.frontend.limits.throttler import Throttler
from penstock.frontend.sqs.call import Call
from penstock.frontend.sqs.context import Context
from penstock.model.identity import Tenant
from penstock.model.names import queue_arn
from penstock.telemetry import families
from penstock.telemetry.exposition import Sample
from penstock.telemetry.families import Family
from penstock.wire.aws.shapes import QueueRequest


def throttle(context: Context, call: Call) -> None:
    """Raises Throttled."""
    grant = call.grant
    tenant = context.identities.tenant(call.caller.account) if grant is None else grant.tenant
    if tenant is None:
        return
    connection, quotas = call.http.connection, context.quotas
    if connection is not None and connection.counted_for is not tenant and quotas is not None:
        quotas.claim(connection, tenant)
    throttler, clock = context.throttler, context.clock
    if grant is None:
        if throttler.is_unlimited(tenant):
            return
        action = call.action
        assert action is not None, "decode found an action or raised"
        now_ms = clock.mono_ms()
        call.bytes_bucket = throttler.check(
            tenant, call.caller, action.permission, _arn(call, tenant), now_ms=now_ms
        )
    else:
        limits = grant.limits
        if limits is None or not throttler.is_current(limits):
            limits = grant.limits = throttler.limits_of(
                tenant, call.caller, call.permission, grant.arn, now_ms=clock.mono_ms()
            )
        if limits.is_empty:
            return
        now_ms = clock.mono_ms()
        call.bytes_bucket = throttler.take(limits, now_ms=now_ms)
    call.charged_at_ms = now_ms


def _arn(call: Call, tenant: Tenant) -> str | None:
    if call.arn or not tenant.limits.queue_requests.per_s > 0:
        return call.arn or None
    # A trusted caller: authorize has not set the ARN.
    queue = call.queue() if isinstance(call.request, QueueRequest) else None
    if queue is None:
        return None
    return queue_arn(queue.account or call.account, call.region, queue.name)


def samples_of(
    throttler: Throttler, quotas: TenantQuotas | None, *, own_account: str
) -> Iterator[tuple[Family, Sample]]:
    """Yield how often each limit was reached. Tenants are not separate series: there may be
    thousands."""
    counts: Counter[tuple[str, str]] = Counter()
    rejected = dict(throttler.rejected)
    if quotas is not None:
        rejected.update(quotas.all_rejected())
    for (account, limit), count in rejected.items():
        counts["own" if account == own_account else "other", limit] += count
    for labels, count in sorted(counts.items()):
        yield families.FRONTEND_THROTTLED, (labels, count)
