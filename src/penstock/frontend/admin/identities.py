"""Handlers of ``/api/v1/tenants``, ``quotas``, ``users``, ``keys`` and ``policies``.

Only operators may change tenants, rate limits and quotas; administrators of a tenant may read those
of their tenant. The secret of an access key is only in the reply that creates the key. Clients do
not send passwords, but SCRAM credentials derived from them."""

from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType, field
from msgspec.structs import replace

from penstock.access import evaluation
from penstock.access.conditions import Facts, MalformedPolicy
from penstock.access.evaluation import Decision, Kind
from penstock.frontend.admin.request import READ, WRITE, Body, Call, json_reply, picked
from penstock.metadata.security.identities import NewKey
from penstock.model import identity as model
from penstock.model.errors import Conflict, InvalidRequest, NotFound
from penstock.model.identity import Caller, Circumstances, Rate, Tenant, User
from penstock.model.names import queue_arn
from penstock.model.quotas import NO_LIMIT, QUOTAS, most_of, requests_of
from penstock.net.http.exchange import HttpReply

TENANTS_MAX = 1_000  # in one reply; the parameter ``after`` requests the next page
CREDENTIALS_MAX = 2  # one per mechanism
ARN_PARTS = 6


# ── Tenants, their limits and quotas ─────────────────────────────────────────────────────────


class NewTenant(Body, frozen=True):
    name: str
    account: str = ""  # empty: any free account


class TenantChange(Body, frozen=True, omit_defaults=True):
    name: str | UnsetType = UNSET
    is_suspended: bool | UnsetType = UNSET


class RatesChange(Body, frozen=True):
    tenant_requests: Rate | UnsetType | None = UNSET  # None restores the default
    tenant_bytes: Rate | UnsetType = UNSET
    user_requests: Rate | UnsetType = UNSET
    queue_requests: Rate | UnsetType = UNSET
    operations: dict[str, Rate | None] = field(default_factory=dict)  # None removes the limit


# None restores the default.
_QUOTA_FIELDS = [(quota.field, int | UnsetType | None, UNSET) for quota in QUOTAS]
QuotasChange = msgspec.defstruct("QuotasChange", _QUOTA_FIELDS, bases=(Body,), frozen=True)


class LimitsChange(Body, frozen=True):
    limits: RatesChange = RatesChange()
    quotas: QuotasChange = QuotasChange()  # type: ignore[valid-type]


def tenants(call: Call) -> Any:
    limit = call.number("limit", default=TENANTS_MAX, least=1, most=TENANTS_MAX)
    after = call.text("after")
    if call.caller.is_operator:
        found = [one for one in call.identities.tenants() if one.account > after]
    else:
        call.may_manage(READ, call.caller.account, "tenant")
        found = [call.known_tenant(call.caller.account)]
    page = found[:limit]
    return {
        "tenants": [_tenant(call, tenant) for tenant in page],
        "next": page[-1].account if len(found) > len(page) else None,
    }


async def create_tenant(call: Call) -> Any:
    call.operator_only()
    request = call.json(NewTenant)
    account = request.account or call.identities.free_account()
    tenant = Tenant(account=account, name=request.name, created_at_ms=call.now_ms)
    return json_reply(201, _tenant(call, await call.identities.create_tenant(tenant)))


def tenant(call: Call) -> Any:
    return _tenant(call, _readable_tenant(call))


async def change_tenant(call: Call) -> Any:
    call.operator_only()
    account = call.account_of(call.path[3])
    changed = partial(replace, **_given(call.json(TenantChange)))
    return _tenant(call, await call.identities.change_tenant(account, changed))


async def delete_tenant(call: Call) -> Any:
    call.operator_only()
    account = call.account_of(call.path[3])
    call.known_tenant(account)
    count = sum(topic.account == account for topic in call.context.everything.all_topics())
    if count:
        raise Conflict(f"The tenant {account} still has {count} queues and topics.")
    await call.identities.delete_tenant(account)
    return {"account": account, "deleted": True}


def quotas(call: Call) -> Any:
    return _limits(call, _readable_tenant(call))


async def set_quotas(call: Call) -> Any:
    call.operator_only()
    account = call.account_of(call.path[3])
    change = call.json(LimitsChange)

    def changed(tenant: Tenant) -> Tenant:
        operations = {**tenant.limits.operations, **change.limits.operations}
        kept = {action: rate for action, rate in operations.items() if rate is not None}
        limits = replace(tenant.limits, **{**_given(change.limits), "operations": kept})
        quotas = replace(tenant.quotas, **_given(change.quotas))
        return replace(tenant, limits=limits, quotas=quotas)

    return _limits(call, await call.identities.change_tenant(account, changed))


def _given(change: msgspec.Struct) -> dict[str, object]:
    fields = msgspec.structs.asdict(change)
    return {name: value for name, value in fields.items() if value is not UNSET}


def _readable_tenant(call: Call) -> Tenant:
    account = call.account_of(call.path[3])
    call.may_manage(READ, account, "tenant")
    return call.known_tenant(account)


def _tenant(call: Call, tenant: Tenant) -> dict[str, object]:
    shown = picked(tenant, "account", "name", "created_at_ms", "is_suspended")
    return {**shown, "user_count": len(call.identities.users(tenant.account))}


def _limits(call: Call, tenant: Tenant) -> dict[str, object]:
    limits: model.Limits = tenant.limits
    own_account, counts = call.context.info.account, call.context.quotas
    most = {quota.field: most_of(tenant, quota, own_account=own_account) for quota in QUOTAS}
    is_set = msgspec.structs.asdict(tenant.quotas) | {"tenant_requests": limits.tenant_requests}
    requests = requests_of(tenant, own_account=own_account)
    names = limits.__struct_fields__[1:-1]
    rates = {"tenant_requests": requests} | picked(limits, *names)
    return {
        **picked(tenant, "account", "name"),
        "limits": {**rates, "operations": limits.operations},
        "quotas": {field: 0 if count == NO_LIMIT else count for field, count in most.items()},
        "defaults": [name for name, value in is_set.items() if value is None],
        "used": {} if counts is None else counts.used(tenant.account),
        "shares": {} if counts is None else counts.shares(),
    }


# ── Users and their Kafka passwords ──────────────────────────────────────────────────────────


class NewUser(Body, frozen=True):
    name: str
    tenant: str = ""
    is_operator: bool = False
    policies: dict[str, str] = field(default_factory=dict)


class Derived(Body, frozen=True):
    mechanism: str
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


class Password(Body, frozen=True):
    credentials: list[Derived]


def _users(call: Call, account: str) -> list[User]:
    call.may_manage(READ, account, "user")
    call.known_tenant(account)
    return list(call.identities.users(account))


def show_users(call: Call) -> Any:
    return {"users": [_user(call, user) for user in _users(call, call.account_of())]}


async def create_user(call: Call) -> Any:
    request = call.json(NewUser)
    account = call.account_of(request.tenant)
    call.may_manage(WRITE, account, "user", request.name)
    if request.is_operator:
        call.operator_only()
    fields = picked(request, "name", "is_operator", "policies")
    user = User(account=account, created_at_ms=call.now_ms, **fields)
    return json_reply(201, _user(call, await call.identities.create_user(user)))


def user(call: Call) -> Any:
    user = call.path_user(READ)
    keys = [_key(key) for key in call.identities.keys(user.account, user.name)]
    return {**_user(call, user), "policies": user.policies, "keys": keys}


async def delete_user(call: Call) -> Any:
    user = call.path_user(WRITE)
    await call.identities.delete_user(user.account, user.name)
    return {"account": user.account, "name": user.name, "deleted": True}


async def set_password(call: Call) -> Any:
    user = call.path_user(WRITE)
    credentials = call.json(Password).credentials
    if not 1 <= len(credentials) <= CREDENTIALS_MAX:
        raise InvalidRequest(f"The field 'credentials' must have 1 to {CREDENTIALS_MAX} entries.")
    for each in credentials:
        fields = msgspec.structs.asdict(each)
        found = model.ScramCredential(account=user.account, user=user.name, **fields)
        await call.identities.put_scram(found)
    return _user(call, user)


async def delete_password(call: Call) -> Any:
    user = call.path_user(WRITE)
    for mechanism in tuple(call.identities.mechanisms(user.account, user.name)):
        await call.identities.delete_scram(user.account, user.name, mechanism)
    return _user(call, user)


def _user(call: Call, user: User) -> dict[str, object]:
    identities = call.identities
    return {
        **picked(user, "account", "name"),
        "arn": Caller(user.account, user.name).arn,
        **picked(user, "created_at_ms", "is_operator"),
        "policies": sorted(user.policies),
        "keys": [key.key_id for key in identities.keys(user.account, user.name)],
        "mechanisms": list(identities.mechanisms(user.account, user.name)),
    }


# ── Access keys ──────────────────────────────────────────────────────────────────────────────


class KeyRequest(Body, frozen=True):
    user: str
    tenant: str = ""


class KeyChange(Body, frozen=True):
    status: model.KeyStatus


def keys(call: Call) -> Any:
    account, name = call.account_of(), call.text("user")
    users = [call.known_user(account, name, READ)] if name else _users(call, account)
    found = call.identities.keys
    return {"keys": [_key(key) for user in users for key in found(account, user.name)]}


async def create_key(call: Call) -> Any:
    request = call.json(KeyRequest)
    account = call.account_of(request.tenant)
    user = call.known_user(account, request.user, WRITE)
    return _new_key(await call.identities.create_key(account, user.name, now_ms=call.now_ms))


def key(call: Call) -> Any:
    return _key(_known_key(call, READ))


async def change_key(call: Call) -> Any:
    key = _known_key(call, WRITE)
    status = call.json(KeyChange).status
    return _key(await call.identities.set_key_status(key.key_id, status))


async def rotate_key(call: Call) -> Any:
    key = _known_key(call, WRITE)
    return _new_key(await call.identities.rotate_key(key.key_id, now_ms=call.now_ms))


async def delete_key(call: Call) -> Any:
    key = _known_key(call, WRITE)
    await call.identities.delete_key(key.key_id)
    return {"key_id": key.key_id, "deleted": True}


def _known_key(call: Call, action: str) -> model.AccessKey:
    key = call.identities.key(call.path[3])
    if key is None or (key.account != call.caller.account and not call.caller.is_operator):
        raise NotFound(f"There is no access key {call.path[3][:128]}.")
    call.known_user(key.account, key.user, action)
    return key


def _key(key: model.AccessKey) -> dict[str, object]:
    shown = picked(key, "key_id", "account", "user", "status", "created_at_ms")
    return {**shown, "last_used_at_ms": key.last_used_at_ms or None}


def _new_key(made: NewKey) -> HttpReply:
    return json_reply(201, {**_key(made.key), "secret": made.secret})


# ── Policies of users, and tests of access ───────────────────────────────────────────────────


class AccessQuestion(Body, frozen=True):
    user: str
    action: str  # such as sqs:SendMessage
    resource: str  # an ARN, or the name of a queue or topic of that tenant
    tenant: str = ""
    region: str = ""
    source_ip: str = ""
    is_tls: bool = False


def policies(call: Call) -> Any:
    user = call.path_user(READ)
    return {"account": user.account, "user": user.name, "policies": user.policies}


def policy(call: Call) -> Any:
    user = call.path_user(READ)
    text = user.policies.get(call.path[4])
    if text is None:
        raise NotFound(f"The user {user.name} has no policy {call.path[4][:128]}.")
    return {"user": user.name, "name": call.path[4], "text": text}


async def put_policy(call: Call) -> Any:
    user = call.path_user(WRITE)
    try:
        text = call.body.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("A policy must be a JSON object in UTF-8.") from None
    after = await call.identities.put_policy(user.account, user.name, call.path[4], text)
    return {"user": user.name, "policies": sorted(after.policies)}


async def remove_policy(call: Call) -> Any:
    user = call.path_user(WRITE)
    after = await call.identities.remove_policy(user.account, user.name, call.path[4])
    return {"user": user.name, "policies": sorted(after.policies)}


def try_access(call: Call) -> Any:
    request = call.json(AccessQuestion)
    account, everything = call.account_of(request.tenant), call.context.everything
    user = call.known_user(account, request.user, READ)
    arn = request.resource
    if not arn.startswith("arn:"):
        arn = queue_arn(account, request.region or call.context.info.region, request.resource)
    parts = arn.split(":", ARN_PARTS - 1)
    if len(parts) != ARN_PARTS:
        raise InvalidRequest("The resource must be an ARN, or the name of a queue or topic.")
    owner = parts[4] or account
    # Only an operator may test with the policy of another tenant's queue.
    is_readable = owner == account or call.caller.is_operator
    caller = Caller(account, user.name, is_operator=user.is_operator)
    found = Circumstances(request.source_ip, request.is_tls, call.now_ms)
    assert call.context.decisions is not None, "a known user has an identity"
    decision = call.context.decisions.decide_on_queue(
        everything,
        caller,
        request.action,
        arn=arn,
        owner=owner,
        topic=everything.find_arn(arn) if is_readable else None,
        circumstances=lambda: found,
    )
    return {
        **picked(decision, "is_allowed", "is_explicit", "source"),
        "policy": _policy_of(user, caller, decision, request.action, arn, found),
        "statement": decision.statement_id,
        "principal": caller.arn,
        "action": request.action,
        "resource": arn,
    }


def _policy_of(
    user: User, caller: Caller, decision: Decision, action: str, arn: str, found: Circumstances
) -> str:
    """Return the name of the user's policy that led to ``decision``, empty if there is none."""
    if decision.source != Kind.IDENTITY or not decision.is_explicit:
        return ""
    facts = Facts(caller, found, caller.account)
    for name, text in user.policies.items():
        try:
            policy = evaluation.compile_policy(text, Kind.IDENTITY)
        except MalformedPolicy:
            continue
        if evaluation.decide([policy], None, facts, action, arn) == decision:
            return name
    return ""
