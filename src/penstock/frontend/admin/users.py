"""``/api/v1/users``: users of a tenant, their rights at a glance, and their Kafka passwords.

A password itself never comes here. Whoever sets one derives from it what a server needs to check
it, and sends that.
"""

import msgspec

from penstock.frontend.admin.keys import shown as key_shown
from penstock.frontend.admin.reply import json_reply
from penstock.frontend.admin.request import Call, Context
from penstock.frontend.admin.rights import (
    READ,
    WRITE,
    account_of,
    admin_arn,
    directory,
    known_tenant,
    known_user,
    may,
    operator_only,
)
from penstock.model.errors import InvalidRequest
from penstock.model.identity import Caller, ScramCredential, User
from penstock.net.exchange import HttpReply

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
    call.only(("tenant",))
    account = account_of(context, call)
    may(context, call, READ, admin_arn(context, account, "user"))
    known_tenant(context, account)
    users = [_summary(context, user) for user in directory(context).users(account)]
    return json_reply(200, {"users": users})


async def create(context: Context, call: Call) -> HttpReply:
    call.only(())
    asked = call.json(NewUser)
    account = account_of(context, call, asked.tenant)
    may(context, call, WRITE, admin_arn(context, account, "user", asked.name))
    if asked.is_operator:
        operator_only(call)
    user = User(
        account=account,
        name=asked.name,
        created_at_ms=context.clock.wall_ms(),
        is_operator=asked.is_operator,
        policies=asked.policies,
    )
    return json_reply(201, _summary(context, await directory(context).create_user(user)))


async def one(context: Context, call: Call) -> HttpReply:
    call.only(("tenant",))
    account = account_of(context, call)
    user = known_user(context, call, account, call.path[3], READ)
    keys = [key_shown(key) for key in directory(context).keys(account, user.name)]
    return json_reply(200, {**_summary(context, user), "policies": user.policies, "keys": keys})


async def delete(context: Context, call: Call) -> HttpReply:
    call.only(("tenant",))
    account = account_of(context, call)
    user = known_user(context, call, account, call.path[3], WRITE)
    await directory(context).delete_user(account, user.name)
    return json_reply(200, {"account": account, "name": user.name, "deleted": True})


async def set_password(context: Context, call: Call) -> HttpReply:
    call.only(("tenant",))
    account = account_of(context, call)
    user = known_user(context, call, account, call.path[3], WRITE)
    asked = call.json(Password).credentials
    if not 1 <= len(asked) <= CREDENTIALS_MAX:
        raise InvalidRequest(f"credentials has 1 to {CREDENTIALS_MAX} entries.")
    for each in asked:
        await directory(context).put_scram(
            ScramCredential(account=account, user=user.name, **msgspec.structs.asdict(each))
        )
    return json_reply(200, _summary(context, user))


async def delete_password(context: Context, call: Call) -> HttpReply:
    call.only(("tenant",))
    account = account_of(context, call)
    user = known_user(context, call, account, call.path[3], WRITE)
    for mechanism in tuple(directory(context).mechanisms(account, user.name)):
        await directory(context).delete_scram(account, user.name, mechanism)
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
