"""``/api/v1/policies``: what a user may do, and the question whether somebody may do something,
answered by the same code that answers it for requests."""

import msgspec

from penstock.frontend.admin.reply import json_reply
from penstock.frontend.admin.request import Call, Context
from penstock.frontend.admin.rights import (
    READ,
    WRITE,
    account_of,
    decisions,
    directory,
    known_user,
)
from penstock.frontend.queue_access import decide_on_queue
from penstock.model.errors import InvalidRequest, NotFound
from penstock.model.identity import Caller, Circumstances, User
from penstock.model.names import queue_arn
from penstock.net.exchange import HttpReply
from penstock.wire.aws import access
from penstock.wire.aws.access import Decision, Kind, MalformedPolicy

ARN_PARTS = 6


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    user: str
    action: str  # sqs:SendMessage
    resource: str  # an ARN, or the name of a queue or topic of that tenant
    tenant: str = ""
    region: str = ""
    source_ip: str = ""
    is_tls: bool = False


async def many(context: Context, call: Call) -> HttpReply:
    call.only(("tenant",))
    account = account_of(context, call)
    user = known_user(context, call, account, call.path[3], READ)
    return json_reply(200, {"account": account, "user": user.name, "policies": user.policies})


async def one(context: Context, call: Call) -> HttpReply:
    call.only(("tenant",))
    account = account_of(context, call)
    user = known_user(context, call, account, call.path[3], READ)
    text = user.policies.get(call.path[4])
    if text is None:
        raise NotFound(f"The user {user.name} has no policy {call.path[4][:128]}.")
    return json_reply(200, {"user": user.name, "name": call.path[4], "text": text})


async def put(context: Context, call: Call) -> HttpReply:
    """The body is the policy itself, kept as it is written."""
    call.only(("tenant",))
    account = account_of(context, call)
    user = known_user(context, call, account, call.path[3], WRITE)
    try:
        text = call.body.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("A policy is a JSON object in UTF-8.") from None
    after = await directory(context).put_policy(account, user.name, call.path[4], text)
    return json_reply(200, {"user": user.name, "policies": sorted(after.policies)})


async def remove(context: Context, call: Call) -> HttpReply:
    call.only(("tenant",))
    account = account_of(context, call)
    user = known_user(context, call, account, call.path[3], WRITE)
    after = await directory(context).remove_policy(account, user.name, call.path[4])
    return json_reply(200, {"user": user.name, "policies": sorted(after.policies)})


async def test(context: Context, call: Call) -> HttpReply:
    call.only(())
    asked = call.json(Question)
    account = account_of(context, call, asked.tenant)
    user = known_user(context, call, account, asked.user, READ)
    arn = asked.resource
    if not arn.startswith("arn:"):
        arn = queue_arn(account, asked.region or context.info.region, asked.resource)
    parts = arn.split(":", ARN_PARTS - 1)
    if len(parts) != ARN_PARTS:
        raise InvalidRequest("The resource is an ARN, or the name of a queue or topic.")
    owner = parts[4] or account
    # The policy of another tenant's queue is for operators: to anybody else every such queue looks
    # like one that does not exist.
    is_readable = owner == account or call.caller.is_operator
    topic = context.everything.find_arn(arn) if is_readable else None
    who = Caller(account, user.name, is_operator=user.is_operator)
    found = Circumstances(asked.source_ip, asked.is_tls, context.clock.wall_ms())
    decision = decide_on_queue(
        decisions(context),
        context.everything,
        who,
        asked.action,
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
            "policy": _policy_of(user, who, decision, asked.action, arn, found),
            "statement": decision.statement_id,
            "principal": who.arn,
            "action": asked.action,
            "resource": arn,
        },
    )


def _policy_of(
    user: User, who: Caller, decision: Decision, action: str, arn: str, found: Circumstances
) -> str:
    """Which of the user's policies has the statement that settled it."""
    if decision.source != Kind.IDENTITY or not decision.is_explicit:
        return ""
    for name, text in user.policies.items():
        try:
            policy = access.compile_policy(text, Kind.IDENTITY)
        except MalformedPolicy:
            continue
        alone = access.decide(
            [policy],
            None,
            caller=who,
            owner_account=who.account,
            action=action,
            resource_arn=arn,
            circumstances=found,
        )
        if alone == decision:
            return name
    return ""
