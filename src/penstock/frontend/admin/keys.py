"""``/api/v1/keys``: access keys. A secret is in one answer, that of its making, and in no other."""

import msgspec

from penstock.frontend.admin.directory import MadeKey
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
)
from penstock.model.errors import NotFound
from penstock.model.identity import AccessKey, KeyStatus
from penstock.net.exchange import HttpReply


class NewKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    user: str
    tenant: str = ""


class KeyChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    status: KeyStatus


async def many(context: Context, call: Call) -> HttpReply:
    call.only(("tenant", "user"))
    account = account_of(context, call)
    identities = directory(context)
    name = call.text("user")
    if name:
        users = [known_user(context, call, account, name, READ)]
    else:
        may(context, call, READ, admin_arn(context, account, "user"))
        known_tenant(context, account)
        users = list(identities.users(account))
    keys = [shown(key) for user in users for key in identities.keys(account, user.name)]
    return json_reply(200, {"keys": keys})


async def create(context: Context, call: Call) -> HttpReply:
    call.only(())
    asked = call.json(NewKey)
    account = account_of(context, call, asked.tenant)
    user = known_user(context, call, account, asked.user, WRITE)
    made = await directory(context).create_key(account, user.name, now_ms=context.clock.wall_ms())
    return _made(made)


async def one(context: Context, call: Call) -> HttpReply:
    call.only(())
    return json_reply(200, shown(_known(context, call, READ)))


async def change(context: Context, call: Call) -> HttpReply:
    call.only(())
    key = _known(context, call, WRITE)
    asked = call.json(KeyChange)
    return json_reply(200, shown(await directory(context).set_key_status(key.key_id, asked.status)))


async def rotate(context: Context, call: Call) -> HttpReply:
    call.only(())
    key = _known(context, call, WRITE)
    return _made(await directory(context).rotate_key(key.key_id, now_ms=context.clock.wall_ms()))


async def delete(context: Context, call: Call) -> HttpReply:
    call.only(())
    key = _known(context, call, WRITE)
    await directory(context).delete_key(key.key_id)
    return json_reply(200, {"key_id": key.key_id, "deleted": True})


def _known(context: Context, call: Call, action: str) -> AccessKey:
    """The key that the path names, once the caller may do ``action`` with its user. To whoever is
    no operator, somebody else's key is as absent as one that does not exist."""
    missing = NotFound(f"There is no key {call.path[3][:128]}.")
    key = directory(context).key(call.path[3])
    if key is None or (key.account != call.caller.account and not call.caller.is_operator):
        raise missing
    known_user(context, call, key.account, key.user, action)
    return key


def shown(key: AccessKey) -> dict[str, object]:
    return {
        "key_id": key.key_id,
        "account": key.account,
        "user": key.user,
        "status": key.status,
        "created_at_ms": key.created_at_ms,
        "last_used_at_ms": key.last_used_at_ms or None,
    }


def _made(made: MadeKey) -> HttpReply:
    return json_reply(201, {**shown(made.key), "secret": made.secret})
