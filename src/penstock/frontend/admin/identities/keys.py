"""``/api/v1/keys``: access keys. A secret is only in the reply to the creation of its key."""

import msgspec

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
from penstock.metadata.security.identities import NewKey
from penstock.model.errors import NotFound
from penstock.model.identity import AccessKey, KeyStatus
from penstock.net.http.exchange import HttpReply


class KeyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    user: str
    tenant: str = ""


class KeyChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    status: KeyStatus


async def many(context: Context, call: Call) -> HttpReply:
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
    request = call.json(KeyRequest)
    account = account_of(context, call, request.tenant)
    user = known_user(context, call, account, request.user, WRITE)
    made = await directory(context).create_key(account, user.name, now_ms=context.clock.wall_ms())
    return _made(made)


async def one(context: Context, call: Call) -> HttpReply:
    return json_reply(200, shown(_known(context, call, READ)))


async def change(context: Context, call: Call) -> HttpReply:
    key = _known(context, call, WRITE)
    status = call.json(KeyChange).status
    return json_reply(200, shown(await directory(context).set_key_status(key.key_id, status)))


async def rotate(context: Context, call: Call) -> HttpReply:
    key = _known(context, call, WRITE)
    return _made(await directory(context).rotate_key(key.key_id, now_ms=context.clock.wall_ms()))


async def delete(context: Context, call: Call) -> HttpReply:
    key = _known(context, call, WRITE)
    await directory(context).delete_key(key.key_id)
    return json_reply(200, {"key_id": key.key_id, "deleted": True})


def _known(context: Context, call: Call, action: str) -> AccessKey:
    """Return the key in the path, if the caller may do ``action`` with its user. For a caller who
    is not an operator, a key of another tenant does not exist."""
    key = directory(context).key(call.path[3])
    if key is None or (key.account != call.caller.account and not call.caller.is_operator):
        raise NotFound(f"There is no key {call.path[3][:128]}.")
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


def _made(made: NewKey) -> HttpReply:
    return json_reply(201, {**shown(made.key), "secret": made.secret})
