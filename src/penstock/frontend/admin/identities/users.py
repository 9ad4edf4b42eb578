"""``/api/v1/users``: users of a tenant, and their Kafka passwords.

Passwords are never sent: a client derives SCRAM credentials from the password and sends those."""

import msgspec

from penstock.frontend.admin.identities.keys import shown as key_shown
from penstock.frontend.admin.reply import json_reply
from penstock.frontend.admin.request import Call, Context
from penstock.frontend.admin.rights import (
    READ,
    WRITE,
    account_of,
    admin_arn,
    directory,
    known_tenant,
    may,
    operator_only,
    path_user,
)
from penstock.model.errors import InvalidRequest
from penstock.model.identity import Caller, ScramCredential, User
from penstock.net.http.exchange import HttpReply

CREDENTIALS_MAX = 2  # one per mechanism


class NewUser(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    tenant: str = ""
    is_operator: bool = False
    policies: dict[str, str] = {}


class Derived(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mechanism: str
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


class Password(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    credentials: list[Derived]


async def many(context: Context, call: Call) -> HttpReply:
    account = account_of(context, call)
    may(context, call, READ, admin_arn(context, account, "user"))
    known_tenant(context, account)
    users = [_summary(context, user) for user in directory(context).users(account)]
    return json_reply(200, {"users": users})


async def create(context: Context, call: Call) -> HttpReply:
    request = call.json(NewUser)
    account = account_of(context, call, request.tenant)
    may(context, call, WRITE, admin_arn(context, account, "user", request.name))
    if request.is_operator:
        operator_only(call)
    user = User(
        account=account,
        name=request.name,
        created_at_ms=context.clock.wall_ms(),
        is_operator=request.is_operator,
        policies=request.policies,
    )
    return json_reply(201, _summary(context, await directory(context).create_user(user)))


async def one(context: Context, call: Call) -> HttpReply:
    user = path_user(context, call, READ)
    keys = [key_shown(key) for key in directory(context).keys(user.account, user.name)]
    return json_reply(200, {**_summary(context, user), "policies": user.policies, "keys": keys})


async def delete(context: Context, call: Call) -> HttpReply:
    user = path_user(context, call, WRITE)
    await directory(context).delete_user(user.account, user.name)
    return json_reply(200, {"account": user.account, "name": user.name, "deleted": True})


async def set_password(context: Context, call: Call) -> HttpReply:
    user = path_user(context, call, WRITE)
    credentials = call.json(Password).credentials
    if not 1 <= len(credentials) <= CREDENTIALS_MAX:
        raise InvalidRequest(f"credentials must have 1 to {CREDENTIALS_MAX} entries.")
    for each in credentials:
        await directory(context).put_scram(
            ScramCredential(account=user.account, user=user.name, **msgspec.structs.asdict(each))
        )
    return json_reply(200, _summary(context, user))


async def delete_password(context: Context, call: Call) -> HttpReply:
    user = path_user(context, call, WRITE)
    for mechanism in tuple(directory(context).mechanisms(user.account, user.name)):
        await directory(context).delete_scram(user.account, user.name, mechanism)
    return json_reply(200, _summary(context, user))


def _summary(context: Context, user: User) -> dict[str, object]:
    identities = directory(context)
    return {
        "account": user.account,
        "name": user.name,
        "arn": Caller(user.account, user.name).arn,
        "created_at_ms": user.created_at_ms,
        "is_operator": user.is_operator,
        "policies": sorted(user.policies),
        "keys": [key.key_id for key in identities.keys(user.account, user.name)],
        "mechanisms": list(identities.mechanisms(user.account, user.name)),
    }
