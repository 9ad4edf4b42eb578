"""Rights of callers of the admin API.

An operator may do everything, for every tenant. Other users are limited to their own tenant, and
there to what their policies allow: ``admin:Read`` and ``admin:Write`` on ``arn:penstock:admin:
<region>:<account>:user/<name>`` and similar ARNs. So a policy that allows everything makes an
administrator of the tenant. Only an operator may change an operator: with a key of an operator,
another user would become one.

``admin:Metrics`` allows a user to scrape metrics: series of the queues of the user's own tenant,
and, for users in the tenant of the node itself, totals over all tenants."""

from penstock.access.decisions import Decisions
from penstock.access.evaluation import Decision
from penstock.frontend.admin.request import Call, Context
from penstock.metadata.security.identities import StoredIdentities
from penstock.model.errors import AccessDenied, NotFound
from penstock.model.identity import Caller, Circumstances, Tenant, User
from penstock.model.names import is_account, queue_arn

READ = "admin:Read"
WRITE = "admin:Write"
METRICS = "admin:Metrics"


def directory(context: Context) -> StoredIdentities:
    if context.identities is None:
        raise NotFound("This node has no identities.")
    return context.identities


def decisions(context: Context) -> Decisions:
    assert context.decisions is not None, "a caller who is not an operator has an identity"
    return context.decisions


def operator_only(call: Call) -> None:
    if not call.caller.is_operator:
        raise AccessDenied("Only an operator may do this.")


def account_of(context: Context, call: Call, named: str = "") -> str:
    """Return the account of a call: given by its number or the name of its tenant, else that of the
    caller. The error for another account is the same whether it exists or not."""
    caller = call.caller
    text = named or call.text("tenant")
    if not text:
        return caller.account
    account = account_named(context, text)
    if account != caller.account and not caller.is_operator:
        raise AccessDenied("This is not your tenant.")
    if account is None:
        raise NotFound(f"There is no tenant {text[:80]}.")
    return account


def account_named(context: Context, text: str) -> str | None:
    """Return an account by its number, even if it does not exist, or by the name of its tenant."""
    if is_account(text) or context.identities is None:
        return text if is_account(text) else None
    found = [tenant.account for tenant in context.identities.tenants() if tenant.name == text]
    return found[0] if len(found) == 1 else None


def may(context: Context, call: Call, action: str, arn: str) -> None:
    """Check the caller's own policies. ``arn`` is of the caller's tenant and is not a queue: queues
    have policies of their own (``may_use_queue``). Raises AccessDenied."""
    caller = call.caller
    if caller.is_operator:
        return
    decision = decisions(context).decide(
        caller,
        action,
        arn=arn,
        owner=caller.account,
        policy=None,
        circumstances=lambda: _circumstances(context, call),
    )
    if not decision.is_allowed:
        raise _denied(caller, action, arn)


def may_use_queue(context: Context, call: Call, action: str, name: str) -> None:
    """Check that the caller may do ``action`` on the queue ``name`` of its own tenant, by the
    policies that an SQS request is checked against. Raises AccessDenied."""
    caller = call.caller
    if caller.is_operator:
        return
    region = call.text("region") or context.info.region
    decision = queue_decision(context, call, caller, action, region, name)
    if not decision.is_allowed:
        raise _denied(caller, action, queue_arn(caller.account, region, name))


def queue_decision(
    context: Context, call: Call, caller: Caller, action: str, region: str, name: str
) -> Decision:
    """Decide whether ``caller`` may do ``action`` on the queue ``name`` of its own tenant."""
    return decisions(context).decide_on_queue(
        context.everything,
        caller,
        action,
        arn=queue_arn(caller.account, region, name),
        owner=caller.account,
        topic=context.everything.find(caller.account, region, name),
        circumstances=lambda: _circumstances(context, call),
    )


def _circumstances(context: Context, call: Call) -> Circumstances:
    return Circumstances(call.peer, call.is_tls, context.clock.wall_ms())


def _denied(caller: Caller, action: str, arn: str) -> AccessDenied:
    return AccessDenied(f"{caller.user} may not do {action} on {arn}.")


def admin_arn(context: Context, account: str, kind: str, name: str = "*") -> str:
    return f"arn:penstock:admin:{context.info.region}:{account}:{kind}/{name}"


def known_tenant(context: Context, account: str) -> Tenant:
    tenant = directory(context).tenant(account)
    if tenant is None:
        raise NotFound(f"There is no tenant {account}.")
    return tenant


def known_user(context: Context, call: Call, account: str, name: str, action: str) -> User:
    """Return the user, if the caller may do ``action`` with it."""
    may(context, call, action, admin_arn(context, account, "user", name))
    user = directory(context).user(account, name)
    if user is None:
        raise NotFound(f"There is no user {name[:80]} in the tenant {account}.")
    if action == WRITE and user.is_operator and not call.caller.is_operator:
        raise AccessDenied("Only an operator may change an operator.")
    return user


def path_user(context: Context, call: Call, action: str) -> User:
    """Return the user in the path of a request, if the caller may do ``action`` with it."""
    return known_user(context, call, account_of(context, call), call.path[3], action)
