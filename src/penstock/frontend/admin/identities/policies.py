"""``/api/v1/policies``: policies of users, and tests of access by the code that checks requests."""

import msgspec

from penstock.access import evaluation
from penstock.access.conditions import MalformedPolicy
from penstock.access.evaluation import Decision, Kind
from penstock.frontend.admin.reply import json_reply
from penstock.frontend.admin.request import Call, Context
from penstock.frontend.admin.rights import (
    READ,
    WRITE,
    account_of,
    decisions,
    directory,
    known_user,
    path_user,
)
from penstock.model.errors import InvalidRequest, NotFound
from penstock.model.identity import Caller, Circumstances, User
from penstock.model.names import queue_arn
from penstock.net.http.exchange import HttpReply

ARN_PARTS = 6


class AccessQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    user: str
    action: str  # sqs:SendMessage
    resource: str  # an ARN, or the name of a queue or topic of that tenant
    tenant: str = ""
    region: str = ""
    source_ip: str = ""
    is_tls: bool = False


async def many(context: Context, call: Call) -> HttpReply:
    user = path_user(context, call, READ)
    return json_reply(200, {"account": user.account, "user": user.name, "policies": user.policies})


async def one(context: Context, call: Call) -> HttpReply:
    user = path_user(context, call, READ)
    text = user.policies.get(call.path[4])
    if text is None:
        raise NotFound(f"The user {user.name} has no policy {call.path[4][:128]}.")
    return json_reply(200, {"user": user.name, "name": call.path[4], "text": text})


async def put(context: Context, call: Call) -> HttpReply:
    """Store a policy. The body is the text of the policy."""
    user = path_user(context, call, WRITE)
    try:
        text = call.body.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("A policy must be a JSON object in UTF-8.") from None
    after = await directory(context).put_policy(user.account, user.name, call.path[4], text)
    return json_reply(200, {"user": user.name, "policies": sorted(after.policies)})


async def remove(context: Context, call: Call) -> HttpReply:
    user = path_user(context, call, WRITE)
    after = await directory(context).remove_policy(user.account, user.name, call.path[4])
    return json_reply(200, {"user": user.name, "policies": sorted(after.policies)})


async def test(context: Context, call: Call) -> HttpReply:
    request = call.json(AccessQuestion)
    account = account_of(context, call, request.tenant)
    user = known_user(context, call, account, request.user, READ)
    arn = request.resource
    if not arn.startswith("arn:"):
        arn = queue_arn(account, request.region or context.info.region, request.resource)
    parts = arn.split(":", ARN_PARTS - 1)
    if len(parts) != ARN_PARTS:
        raise InvalidRequest("The resource must be an ARN, or the name of a queue or topic.")
    owner = parts[4] or account
    # Only an operator may test with the policy of another tenant's queue: for others, such a queue
    # does not exist.
    is_readable = owner == account or call.caller.is_operator
    topic = context.everything.find_arn(arn) if is_readable else None
    caller = Caller(account, user.name, is_operator=user.is_operator)
    found = Circumstances(request.source_ip, request.is_tls, context.clock.wall_ms())
    decision = decisions(context).decide_on_queue(
        context.everything,
        caller,
        request.action,
        arn=arn,
        owner=owner,
        topic=topic,
        circumstances=lambda: found,
    )
    return json_reply(
        200,
        {
            "is_allowed": decision.is_allowed,
            "is_explicit": decision.is_explicit,
            "source": decision.source,
            "policy": _policy_of(user, caller, decision, request.action, arn, found),
            "statement": decision.statement_id,
            "principal": caller.arn,
            "action": request.action,
            "resource": arn,
        },
    )


def _policy_of(
    user: User, caller: Caller, decision: Decision, action: str, arn: str, found: Circumstances
) -> str:
    """Return the name of the user's policy with the statement that decided."""
    if decision.source != Kind.IDENTITY or not decision.is_explicit:
        return ""
    for name, text in user.policies.items():
        try:
            policy = evaluation.compile_policy(text, Kind.IDENTITY)
        except MalformedPolicy:
            continue
        alone = evaluation.decide(
            [policy],
            None,
            caller=caller,
            owner_account=caller.account,
            action=action,
            resource_arn=arn,
            circumstances=found,
        )
        if alone == decision:
            return name
    return ""
