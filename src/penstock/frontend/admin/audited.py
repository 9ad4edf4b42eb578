"""Audit entries of admin requests: log-ins, and changes of tenants, limits, users, passwords, keys,
policies, data keys, the cluster or rows of coordinators.

Secrets are never recorded: a log-in or a new key is recorded with its key id only. For a failed
request, only names that exist are recorded, because people type passwords into the wrong field. The
resource is determined before the request runs, because it may be deleted afterwards."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from penstock.frontend.admin.request import Call
from penstock.frontend.facts.audit import make_entry
from penstock.model.names import queue_arn
from penstock.wire.facts.audit import AuditEntry

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
    kind: str  # of the changed resource


class Subject(NamedTuple):
    """The resource that a request changes, and the parameters to record."""

    account: str
    name: str  # as given
    known: str  # the name if it exists, else empty: recorded if the request fails
    params: dict[str, object]
    always: Mapping[str, object] = {}  # recorded even if the request fails


def subject_of(call: Call, noted: Noted) -> Subject:
    kind, context = noted.kind, call.context
    identities = context.identities
    body = {} if kind == POLICY else _body(call)
    named = call.path[3] if len(call.path) > 3 else ""
    params: dict[str, object] = {**call.query, **body}

    def subject(account: str, name: str, found: object) -> Subject:
        return Subject(account, name, name if found else "", params)

    if kind == NODE:
        key = None if identities is None else identities.key(str(body.get("key_id", "")))
        return Subject("", "", "", {}, {} if key is None else {"access_key": key.key_id})
    if kind == CLUSTER:  # a node by its number, the feature level, or partitions in the body
        number = call.path[4] if len(call.path) > 4 else ""
        others = "level" if named == "upgrade" else "partitions"
        name = f"node/{int(number[:10])}" if number.isdecimal() else others
        return subject(context.info.account, name, True)
    if kind == COORDINATOR:  # a partition of an internal topic; the body has the row
        account = context.info.account
        found = context.everything.find(account, context.info.region, named)
        return subject(account, f"{named}/{call.path[4]}", found)
    if kind == TENANT:
        account = call.account_named(named or str(body.get("account", ""))) or ""
        return subject(account, account, identities and identities.tenant(account))
    if kind == KEY and named:
        key = None if identities is None else identities.key(named)
        return subject("" if key is None else key.account, named, key)
    text = str(body.get("tenant", "")) or call.text("tenant") or call.text("account")
    account = call.caller.account or context.info.account
    if text:
        account = call.account_named(text) or ""
    if kind == QUEUE:
        return subject(account, named, context.everything.find(account, call.region, named))
    if kind == KEY:  # a new one: its id is in the reply
        return subject(account, "", None)
    known = named if identities and identities.user(account, named) else ""
    if kind == POLICY:
        # A policy that is not UTF-8 is rejected, so its text does not matter.
        document = {"document": call.body.decode(errors="ignore")} if call.body else {}
        return Subject(account, f"{named}/{call.path[4]}", known, params | document)
    return Subject(account, named or str(body.get("name", "")), known, params)


def entry_of(call: Call, noted: Noted, subject: Subject, *, code: str) -> AuditEntry:
    name = subject.known if code else subject.name
    if noted.kind == NODE:
        resource = ""
    elif noted.kind == QUEUE:
        resource = queue_arn(subject.account, call.region, name) if name else ""
    else:
        resource = call.admin_arn(subject.account, noted.kind, name)
    return make_entry(
        noted.action,
        at_ms=call.now_ms,
        caller=call.caller,
        source_ip=call.peer,
        resource=resource,
        code=code,
        denials=DENIALS,
        request_id=call.request_id,
        params={**subject.always, **({} if code else subject.params)},
    )


def completed(subject: Subject, reply: bytes) -> Subject:
    """Return ``subject`` with the account of a new tenant or the id of a new key from the reply."""
    try:
        shown = msgspec.json.decode(reply)
    except msgspec.DecodeError:
        return subject
    if not isinstance(shown, dict):
        return subject
    key_id = str(shown.get("key_id", ""))
    params = subject.params
    if key_id and subject.name and key_id != subject.name:
        params = {**params, "new_key": key_id}
    account = subject.account or str(shown.get("account", ""))
    return subject._replace(account=account, name=subject.name or key_id or account, params=params)


def _body(call: Call) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(call.body) if call.body else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
