"""Which calls of the admin API the audit trail is about, and what it says of them: log-ins, and
whatever changes tenants, limits, users, passwords, keys, policies, data keys, the cluster or the
rows of coordinators.
Secrets never get here: of a log-in the key's id is noted, of a password that there was one, of a
new key its id. Of what was not done only names are noted that exist, for people type passwords into
the wrong field.

What a call is about is found out before it is carried out, because afterwards it may be gone.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from penstock.frontend.admin.request import Call, Context
from penstock.frontend.admin.rights import account_named, admin_arn
from penstock.model.names import queue_arn
from penstock.wire.facts.audit import DENIED, FAILED, NAME_MAX, OK, UNKNOWN, AuditEntry, redacted

CANCELLED: Final = "ClientGone"
DENIALS: Final = frozenset(("access_denied", "unauthorized"))

LOG_IN: Final = "admin:LogIn"
TENANT: Final = "tenant"
USER: Final = "user"
KEY: Final = "key"
POLICY: Final = "policy"
QUEUE: Final = "queue"
NODE: Final = "node"
CLUSTER: Final = "cluster"
COORDINATOR: Final = "coordinator"


class Noted(NamedTuple):
    action: str
    kind: str  # of the thing that it is about


class Subject(NamedTuple):
    account: str
    name: str  # as the call has it
    known: str  # the same, if there is such a thing: all that may be noted of a call that failed
    params: dict[str, object]
    always: Mapping[str, object] = {}  # noted however it ends


def subject_of(context: Context, call: Call, noted: Noted) -> Subject:
    """What a call is about, as far as it says. Raises nothing: whether the call makes sense is for
    others to say."""
    body = {} if noted.kind == POLICY else _body(call)
    named = call.path[3] if len(call.path) > 3 else ""
    params: dict[str, object] = {**call.query, **body}
    identities = context.identities
    if noted.kind == NODE:
        given = str(body.get("key_id", ""))
        key = None if identities is None else identities.key(given)
        return Subject("", "", "", {}, {} if key is None else {"access_key": key.key_id})
    if noted.kind == CLUSTER:  # a node by its number, its level, or partitions the body names
        number = call.path[4] if len(call.path) > 4 else ""
        others = "level" if named == "upgrade" else "partitions"
        known = f"node/{int(number[:10])}" if number.isdecimal() else others
        return Subject(context.info.account, known, known, params)
    if (
        noted.kind == COORDINATOR
    ):  # a partition of a topic of the node's own, and the row in the body
        account, name = context.info.account, f"{named}/{call.path[4]}"
        is_known = context.everything.find(account, context.info.region, named) is not None
        return Subject(account, name, name if is_known else "", params)
    if noted.kind == TENANT:
        account = account_named(context, named or str(body.get("account", ""))) or ""
        tenant = None if identities is None else identities.tenant(account)
        return Subject(account, account, "" if tenant is None else account, params)
    if noted.kind == KEY and named:
        key = None if identities is None else identities.key(named)
        if key is None:
            return Subject("", named, "", params)
        return Subject(key.account, named, named, params)
    account = _account(context, call, str(body.get("tenant", "")))
    if noted.kind == QUEUE:
        region = call.text("region") or context.info.region
        topic = context.everything.find(account, region, named)
        return Subject(account, named, "" if topic is None else named, params)
    if noted.kind == KEY:  # a new one: its id is in the answer
        return Subject(account, "", "", params)
    user = None if identities is None else identities.user(account, named)
    known = "" if user is None else named
    if noted.kind == POLICY:
        document = {"document": _text(call.body)} if call.body else {}
        return Subject(account, f"{named}/{call.path[4]}", known, {**params, **document})
    return Subject(account, named or str(body.get("name", "")), known, params)


def entry_of(
    context: Context, call: Call, noted: Noted, subject: Subject, *, code: str, request_id: str
) -> AuditEntry:
    """``code`` is that of the answer; empty: it was done."""
    outcome = OK
    if code:
        outcome = UNKNOWN if code == CANCELLED else DENIED if code in DENIALS else FAILED
    caller = call.caller
    return AuditEntry(
        at_ms=context.clock.wall_ms(),
        principal=caller.arn if caller.account else "",
        tenant=caller.account,
        source_ip=call.peer,
        action=noted.action,
        resource=_resource(context, call, noted, subject, is_done=not code)[:NAME_MAX],
        outcome=outcome,
        error_code=code,
        request_id=request_id[:NAME_MAX],
        params=redacted({**subject.always, **({} if code else subject.params)}),
    )


def completed(subject: Subject, answer: bytes) -> Subject:
    """With what only the answer tells: the account of a new tenant, the id of a new key."""
    try:
        told = msgspec.json.decode(answer)
    except msgspec.DecodeError:
        return subject
    if not isinstance(told, dict):
        return subject
    key_id = str(told.get("key_id", ""))
    params = subject.params
    if key_id and subject.name and key_id != subject.name:
        params = {**params, "new_key": key_id}
    account = subject.account or str(told.get("account", ""))
    return subject._replace(account=account, name=subject.name or key_id or account, params=params)


def _resource(
    context: Context, call: Call, noted: Noted, subject: Subject, *, is_done: bool
) -> str:
    if noted.kind == NODE:
        return ""
    name = subject.name if is_done else subject.known
    if noted.kind == QUEUE:
        region = call.text("region") or context.info.region
        return queue_arn(subject.account, region, name) if name else ""
    return admin_arn(context, subject.account, noted.kind, name)


def _account(context: Context, call: Call, in_body: str) -> str:
    text = in_body or call.text("tenant") or call.text("account")
    if not text:
        return call.caller.account or context.info.account
    return account_named(context, text) or ""


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:  # of a policy that is rejected
        return ""


def _body(call: Call) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(call.body) if call.body else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
