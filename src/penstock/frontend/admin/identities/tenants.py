"""``/api/v1/tenants`` and ``/api/v1/quotas``: tenants, their rate limits and quotas. Operators may
change them; administrators of a tenant may read their own."""

import msgspec

from penstock.frontend.admin.reply import json_reply
from penstock.frontend.admin.request import Call, Context
from penstock.frontend.admin.rights import (
    READ,
    account_of,
    admin_arn,
    directory,
    known_tenant,
    may,
    operator_only,
)
from penstock.model.errors import Conflict
from penstock.model.identity import Limits, Rate, Tenant
from penstock.model.quotas import NO_LIMIT, QUOTAS, most_of, requests_of
from penstock.net.http.exchange import HttpReply

TENANTS_MAX = 1_000  # in one reply; the rest by ``after``


class NewTenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    account: str = ""  # empty: any free account


class TenantChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    name: str | msgspec.UnsetType = msgspec.UNSET
    is_suspended: bool | msgspec.UnsetType = msgspec.UNSET


class RatesChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tenant_requests: Rate | msgspec.UnsetType | None = msgspec.UNSET  # None: the default
    tenant_bytes: Rate | msgspec.UnsetType = msgspec.UNSET
    user_requests: Rate | msgspec.UnsetType = msgspec.UNSET
    queue_requests: Rate | msgspec.UnsetType = msgspec.UNSET
    operations: dict[str, Rate | None] = {}  # None: remove the rate


# Null: the default again.
QuotasChange = msgspec.defstruct(
    "QuotasChange",
    [(quota.field, int | msgspec.UnsetType | None, msgspec.UNSET) for quota in QUOTAS],
    frozen=True,
    forbid_unknown_fields=True,
)


class LimitsChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limits: RatesChange = RatesChange()
    quotas: QuotasChange = QuotasChange()  # type: ignore[valid-type]


async def many(context: Context, call: Call) -> HttpReply:
    limit = call.number("limit", default=TENANTS_MAX, least=1, most=TENANTS_MAX)
    after = call.text("after")
    if call.caller.is_operator:
        found = [one for one in directory(context).tenants() if one.account > after]
    else:
        may(context, call, READ, admin_arn(context, call.caller.account, "tenant"))
        found = [known_tenant(context, call.caller.account)]
    page = found[:limit]
    is_more = len(found) > len(page)
    return json_reply(
        200,
        {
            "tenants": [_shown(context, tenant) for tenant in page],
            "next": page[-1].account if is_more else None,
        },
    )


async def create(context: Context, call: Call) -> HttpReply:
    operator_only(call)
    request = call.json(NewTenant)
    identities = directory(context)
    tenant = Tenant(
        account=request.account or identities.free_account(),
        name=request.name,
        created_at_ms=context.clock.wall_ms(),
    )
    return json_reply(201, _shown(context, await identities.create_tenant(tenant)))


async def one(context: Context, call: Call) -> HttpReply:
    return json_reply(200, _shown(context, _readable(context, call)))


async def change(context: Context, call: Call) -> HttpReply:
    operator_only(call)
    account = account_of(context, call, call.path[3])
    changes = _given(call.json(TenantChange))
    tenant = await directory(context).change_tenant(
        account, lambda before: msgspec.structs.replace(before, **changes)
    )
    return json_reply(200, _shown(context, tenant))


async def delete(context: Context, call: Call) -> HttpReply:
    operator_only(call)
    account = account_of(context, call, call.path[3])
    known_tenant(context, account)
    count = sum(topic.account == account for topic in context.everything.all_topics())
    if count:
        raise Conflict(f"The tenant {account} still has {count} queues and topics.")
    await directory(context).delete_tenant(account)
    return json_reply(200, {"account": account, "deleted": True})


async def quotas(context: Context, call: Call) -> HttpReply:
    return json_reply(200, _limits(context, _readable(context, call)))


async def set_quotas(context: Context, call: Call) -> HttpReply:
    operator_only(call)
    account = account_of(context, call, call.path[3])
    change = call.json(LimitsChange)
    tenant = await directory(context).change_tenant(account, lambda old: _limited(old, change))
    return json_reply(200, _limits(context, tenant))


def _limited(tenant: Tenant, change: LimitsChange) -> Tenant:
    changes = _given(change.limits)
    operations = {**tenant.limits.operations, **change.limits.operations}
    kept = {action: rate for action, rate in operations.items() if rate is not None}
    return msgspec.structs.replace(
        tenant,
        limits=msgspec.structs.replace(tenant.limits, **{**changes, "operations": kept}),
        quotas=msgspec.structs.replace(tenant.quotas, **_given(change.quotas)),
    )


def _given(change: msgspec.Struct) -> dict[str, object]:
    fields = msgspec.structs.asdict(change)
    return {name: value for name, value in fields.items() if value is not msgspec.UNSET}


def _readable(context: Context, call: Call) -> Tenant:
    account = account_of(context, call, call.path[3])
    may(context, call, READ, admin_arn(context, account, "tenant"))
    return known_tenant(context, account)


def _shown(context: Context, tenant: Tenant) -> dict[str, object]:
    return {
        "account": tenant.account,
        "name": tenant.name,
        "created_at_ms": tenant.created_at_ms,
        "is_suspended": tenant.is_suspended,
        "user_count": len(directory(context).users(tenant.account)),
    }


def _limits(context: Context, tenant: Tenant) -> dict[str, object]:
    """Return limits and quotas, what is used, and the largest share of one tenant. Connections,
    long polls, groups and transactional ids are counts of this node."""
    limits: Limits = tenant.limits
    own_account, counts = context.info.account, context.quotas
    most = {quota.field: most_of(tenant, quota, own_account=own_account) for quota in QUOTAS}
    is_set = msgspec.structs.asdict(tenant.quotas) | {"tenant_requests": limits.tenant_requests}
    requests = requests_of(tenant, own_account=own_account)
    names = limits.__struct_fields__[1:-1]
    rates = {"tenant_requests": _rate(requests)} | {n: _rate(getattr(limits, n)) for n in names}
    operations = {action: _rate(rate) for action, rate in limits.operations.items()}
    return {
        "account": tenant.account,
        "name": tenant.name,
        "limits": {**rates, "operations": operations},
        "quotas": {field: 0 if count == NO_LIMIT else count for field, count in most.items()},
        "defaults": [name for name, value in is_set.items() if value is None],
        "used": {} if counts is None else counts.used(tenant.account),
        "shares": {} if counts is None else counts.shares(),
    }


def _rate(rate: Rate) -> dict[str, float]:
    return {"per_s": rate.per_s, "burst": rate.burst}
