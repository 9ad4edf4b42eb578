"""The admin API: every path with its handler and the right that it needs; authentication, routing
and error replies. It has its own port, so that health checks get replies when the data port is
overloaded, and so that a firewall can separate operators from clients.

A right is ``OPERATOR`` or an SQS action on queues of the caller's own tenant, which is checked
against policies as for an SQS request. Handlers about users and keys check rights themselves.

Changes must have the content type JSON. A browser sends this to another origin only after a
preflight request, which this server never answers, so a web page cannot make changes on a loopback
address where authentication is off."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from inspect import isawaitable
from typing import Any, NamedTuple

import msgspec

from penstock.frontend.admin import deliveries, identities, queues
from penstock.frontend.admin import operations as ops
from penstock.frontend.admin import subscriptions as subs
from penstock.frontend.admin.login import Credentials, Gate, Session, Unauthenticated
from penstock.frontend.admin.messages import RECEIVE, messages
from penstock.frontend.admin.request import (
    METRICS,
    Call,
    Context,
    error_reply,
    fault_of,
    fault_reply,
    finished,
    json_reply,
    parse,
    picked,
)
from penstock.frontend.facts.audit import CANCELLED, AuditTrail, make_entry
from penstock.model.errors import AccessDenied, InvalidRequest, PenstockError
from penstock.model.limits import MIB, WHOLE_BODY_BYTES_MAX
from penstock.model.names import queue_arn
from penstock.net.http.exchange import HttpReply, HttpRequest
from penstock.net.slices import in_slices
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.json10 import check_large
from penstock.wire.facts.audit import DENIED, AuditEntry

# Returns an HttpReply or a value to send as JSON, or an awaitable of these.
Resource = Callable[[Call], Any]

ANY = "*"  # any segment of a path, or any parameters
OPEN = "open"  # to everyone, without authentication
KNOWN = "known"  # to every authenticated caller; the handler checks further rights
OPERATOR = "operator"
# Any other right is an action that policies allow: METRICS, an SQS action, or one of PUSH.
VIEW = "sqs:GetQueueAttributes"
PUSH = "push:"
BODY_BYTES_MAX = MIB
READS = ("GET", "HEAD")
UNAUTHORIZED = "unauthorized"
EARLY_MAX = 1_000  # log-ins to keep until the audit trail is ready; the oldest are dropped

log = logging.getLogger(__name__)


class Noted(NamedTuple):
    action: str
    kind: str  # of the changed resource


class Subject(NamedTuple):
    """The resource that a request changes, and the parameters to record in the audit trail."""

    account: str
    name: str  # as given
    known: str  # the name if it exists, else empty: recorded if the request fails
    params: dict[str, object]
    always: Mapping[str, object] = {}  # recorded even if the request fails


class Route(NamedTuple):
    method: str
    path: tuple[str, ...]
    resource: Resource
    right: str
    parameters: tuple[str, ...] = ()  # allowed ones; ANY: all
    noted: Noted | None = None  # recorded in the audit trail; None: the route changes nothing

    def fits(self, path: tuple[str, ...]) -> bool:
        return len(path) == len(self.path) and all(
            given if wanted == ANY else given == wanted
            for given, wanted in zip(path, self.path, strict=True)
        )


def _log_in(call: Call) -> Session:
    return call.context.gate.log_in(call.json(Credentials), now_ms=call.now_ms)


_SUB = "subscription"
# A right, and below it the routes that need it: the pattern, the handler and, of a change, action
# and kind of resource for the audit trail. Paths are below ``/api/v1``, except checks and metrics.
_ROWS: tuple[str | tuple[Any, ...], ...] = (
    OPEN,
    ("GET /healthz?*", lambda _: {"status": "alive"}),
    ("GET /readyz?*", ops.readyz),
    ("GET /startupz?*", ops.startupz),
    ("POST /login", _log_in, "LogIn", "node"),
    METRICS,
    ("GET /metrics", queues.totals),
    ("GET /metrics/objects?kind&prefix&account&region", queues.objects),
    KNOWN,
    ("GET /info", ops.info),
    # Backups and rows of coordinators contain data of all tenants.
    OPERATOR,
    ("GET /config", lambda call: {"settings": call.context.config}),
    ("GET /callees", ops.callees),
    ("GET /cluster", ops.state),
    ("GET /cluster/partitions?topic&account&region&node&state&limit&after", ops.partitions),
    ("GET /cluster/safety?node", ops.safety),
    ("POST /cluster/nodes/*/drain", ops.change_node, "DrainNode", "cluster"),
    ("POST /cluster/nodes/*/undrain", ops.change_node, "UndrainNode", "cluster"),
    ("POST /cluster/nodes/*/decommission", ops.change_node, "DecommissionNode", "cluster"),
    ("POST /cluster/rebalance", ops.rebalance, "RebalanceLeaders", "cluster"),
    ("POST /cluster/place", ops.place, "PlacePartition", "cluster"),
    ("POST /cluster/unclean-elect", ops.unclean_elect, "ElectUncleanly", "cluster"),
    ("POST /cluster/upgrade", ops.upgrade, "RaiseFeatureLevel", "cluster"),
    ("POST /backups", ops.begin_backup, "CreateBackup", "cluster"),
    ("GET /backups/*/partitions?after&limit", ops.backup_partitions),
    ("GET /backups/*/definitions?after", ops.backup_definitions),
    ("GET /backups/*/records?topic_id&partition&offset", ops.backup_records),
    ("DELETE /backups/*", ops.end_backup),
    ("GET /coordinators/*/*?offset", ops.show_coordinator),
    ("POST /coordinators/*/*/skip", ops.skip_row, "SkipRow", "coordinator"),
    "sqs:ListQueues",
    ("GET /queues?account&region&prefix&limit&after", queues.many),
    VIEW,
    ("GET /queues/*?account&region", queues.one),
    RECEIVE,
    ("GET /queues/*/messages?account&region&partition&start&count&wait_ms", messages),
    VIEW,
    ("GET /queues/*/explain?account&region&user", queues.explained),
    "sqs:SetQueueAttributes",
    ("POST /queues/*/rotate?account&region", queues.rotate, "RotateDataKey", "queue"),
    "push:GetSubscription",
    ("GET /subscriptions?account&region&source&status&limit&after", subs.many),
    ("GET /subscriptions/*", subs.one),
    ("GET /subscriptions/*/deliveries?limit", deliveries.deliveries),
    "push:CreateSubscription",
    ("POST /subscriptions?account&region", subs.create, "push:CreateSubscription", _SUB),
    "push:SetSubscription",
    ("PATCH /subscriptions/*", subs.change, "push:SetSubscription", _SUB),
    ("POST /subscriptions/*/pause", subs.pause, "push:PauseSubscription", _SUB),
    ("POST /subscriptions/*/resume", subs.resume, "push:ResumeSubscription", _SUB),
    ("POST /subscriptions/*/rotate", subs.rotate, "push:RotateSecret", _SUB),
    ("POST /subscriptions/*/confirm", subs.confirm, "push:ConfirmSubscription", _SUB),
    "push:DeleteSubscription",
    ("DELETE /subscriptions/*", subs.delete, "push:DeleteSubscription", _SUB),
    "push:Test",
    ("POST /subscriptions/*/test", deliveries.test, "push:Test", _SUB),
    "push:Replay",
    ("POST /subscriptions/*/redeliver", deliveries.redeliver, "push:Redeliver", _SUB),
    ("POST /subscriptions/*/replay", deliveries.replay, "push:Replay", _SUB),
    KNOWN,
    ("GET /tenants?limit&after", identities.tenants),
    ("POST /tenants", identities.create_tenant, "CreateTenant", "tenant"),
    ("GET /tenants/*", identities.tenant),
    ("PATCH /tenants/*", identities.change_tenant, "ChangeTenant", "tenant"),
    ("DELETE /tenants/*", identities.delete_tenant, "DeleteTenant", "tenant"),
    ("GET /quotas/*", identities.quotas),
    ("PATCH /quotas/*", identities.set_quotas, "SetQuotas", "tenant"),
    ("GET /users?tenant", identities.show_users),
    ("POST /users", identities.create_user, "CreateUser", "user"),
    ("GET /users/*?tenant", identities.user),
    ("DELETE /users/*?tenant", identities.delete_user, "DeleteUser", "user"),
    ("PUT /users/*/password?tenant", identities.set_password, "SetPassword", "user"),
    ("DELETE /users/*/password?tenant", identities.delete_password, "DeletePassword", "user"),
    ("GET /keys?tenant&user", identities.keys),
    ("POST /keys", identities.create_key, "CreateKey", "key"),
    ("GET /keys/*", identities.key),
    ("PATCH /keys/*", identities.change_key, "ChangeKey", "key"),
    ("DELETE /keys/*", identities.delete_key, "DeleteKey", "key"),
    ("POST /keys/*/rotate", identities.rotate_key, "RotateKey", "key"),
    ("POST /policies/test", identities.try_access),
    ("GET /policies/*?tenant", identities.policies),
    ("GET /policies/*/*?tenant", identities.policy),
    ("PUT /policies/*/*?tenant", identities.put_policy, "PutPolicy", "policy"),
    ("DELETE /policies/*/*?tenant", identities.remove_policy, "DeletePolicy", "policy"),
)


def _routes() -> Iterator[Route]:
    right = ""
    for row in _ROWS:
        if isinstance(row, str):
            right = row
            continue
        pattern, resource, *noted = row
        method, _, target = pattern.partition(" ")
        path, _, query = target.partition("?")
        segments = tuple(path.strip("/").split("/"))
        if segments[0] not in ("healthz", "readyz", "startupz", "metrics"):
            segments = ("api", "v1", *segments)
        parameters = tuple(query.split("&")) if query else ()
        found = Noted(_action(noted[0]), noted[1]) if noted else None
        yield Route(method, segments, resource, right, parameters, found)


def _action(name: str) -> str:
    return name if name.startswith(PUSH) else f"admin:{name}"


ADMIN_ROUTES = tuple(_routes())


def _checked(call: Call, right: str) -> Call:
    """Check the caller's rights. A user who is not an operator is limited to their own account."""
    if right in (OPEN, KNOWN) or call.caller.is_operator:
        return call
    if right == OPERATOR:
        call.operator_only()
    account = call.caller.account
    if call.text("account", account) != account:
        raise AccessDenied("You may only access your own tenant.")
    if right == METRICS:
        call.may_manage(METRICS, account, "metrics")
        if call.path == ("metrics",):
            if account != call.context.info.account:
                raise AccessDenied("/metrics shows all tenants; use /metrics/objects for your own.")
            return call
    elif right.startswith(PUSH):
        call.may_manage(right, account, _SUB, call.path[3] if len(call.path) > 3 else "*")
        if len(call.path) > 3:
            return call  # the subscription has its account
    elif len(call.path) > 3:  # /api/v1/queues/{name}
        call.may_use_queue(right, call.path[3])
    else:
        call.may(right, queue_arn(account, call.region, "*"))
    return msgspec.structs.replace(call, query={**call.query, "account": account})


class AdminApi:
    def __init__(
        self,
        context: Context,
        *,
        token: str = "",
        is_auth_on: bool = False,
        is_audited: bool = False,
    ) -> None:
        self._context = context
        known, account = context.identities, context.info.account
        gate = Gate(token=token, identities=known, account=account, is_required=is_auth_on)
        context.gate, self.is_open = gate, gate.is_open
        self._is_audited = is_audited
        self._trail: AuditTrail | None = None
        self._early: deque[AuditEntry] = deque(maxlen=EARLY_MAX)

    def note_in(self, trail: AuditTrail) -> None:
        """Set the audit trail. Until this call, changes that must be audited are rejected."""
        self._trail = trail
        while self._early:
            trail.add(self._early.popleft())

    async def handle(self, request: HttpRequest) -> HttpReply:
        try:
            reply = await self._reply(request)
        except Unauthenticated as exc:
            reply = error_reply(401, UNAUTHORIZED, str(exc), (("www-authenticate", "Bearer"),))
        except PenstockError as exc:
            reply = fault_reply(exc)
        except Exception:
            log.exception("admin request failed", extra=picked(request, "path", "request_id"))
            reply = error_reply(500, "failed", "Internal error; see the log of the node.")
        return finished(request, reply)

    async def _reply(self, request: HttpRequest) -> HttpReply:
        call = parse(self._context, request)
        found = [route for route in ADMIN_ROUTES if route.fits(call.path)]
        if not found:
            return error_reply(404, "not_found", "Unknown path.")
        method = "GET" if request.method == "HEAD" else request.method
        route = next((route for route in found if route.method == method), None)
        if route is None:
            methods = {route.method for route in found}
            names = ", ".join((*(READS if "GET" in methods else ()), *sorted(methods - {"GET"})))
            text = f"Method not allowed; the allowed methods are {names}."
            return error_reply(405, "method_not_allowed", text, (("allow", names),))
        if route.right != OPEN:
            call = self._authenticated(request, call, route)
        refusal = None if request.method in READS else _refused_change(request)
        if refusal is not None:
            return refusal
        noted = route.noted
        is_large = len(request.body) > WHOLE_BODY_BYTES_MAX
        if is_large and (noted is None or noted.kind != "policy"):
            try:
                await in_slices(check_large(request.body))
            except Fault as fault:
                raise InvalidRequest(fault.message) from None
        if noted is None:
            return await self._run(route, call)
        reply = await self._run_noted(route, noted, call)
        if route.right != OPEN:
            facts = picked(request, "method", "path", "request_id")
            facts |= picked(call.caller, "account", "user", "key_id")
            log.info("admin change made", extra=facts)
        return reply

    def _authenticated(self, request: HttpRequest, call: Call, route: Route) -> Call:
        given = request.headers.get("authorization", "")
        try:
            caller = self._context.gate.caller(given, now_ms=call.now_ms)
        except Unauthenticated:
            if route.noted is not None:
                if len(call.body) > WHOLE_BODY_BYTES_MAX:
                    call = msgspec.structs.replace(call, body=b"")  # too large to decode here
                subject = subject_of(call, route.noted)
                self._note(route.noted, call, subject, UNAUTHORIZED)
            raise
        return msgspec.structs.replace(call, caller=caller)

    async def _run(self, route: Route, call: Call) -> HttpReply:
        call = _checked(call, route.right)
        if route.parameters != (ANY,):
            call.only(route.parameters)
        found = route.resource(call)
        if isawaitable(found):
            found = await found
        return found if isinstance(found, HttpReply) else json_reply(200, found)

    async def _run_noted(self, route: Route, noted: Noted, call: Call) -> HttpReply:
        if self._trail is None and self._is_audited and noted.action != "admin:LogIn":
            return error_reply(503, "starting", "The node is starting and accepts no changes yet.")
        if self._trail is not None:
            await self._trail.admit()
        subject = subject_of(call, noted)
        try:
            reply = await self._run(route, call)
        except PenstockError as exc:
            code = UNAUTHORIZED if isinstance(exc, Unauthenticated) else fault_of(exc)[1]
            self._note(noted, call, subject, code)
            raise
        except BaseException:
            self._note(noted, call, subject, CANCELLED)  # the outcome is unknown
            raise
        self._note(noted, call, _completed(subject, reply.body))
        return reply

    def _note(self, noted: Noted, call: Call, subject: Subject, code: str = "") -> None:
        if self._trail is None and not self._is_audited:
            return
        entry = entry_of(call, noted, subject, code=code)
        if self._trail is None:
            self._early.append(entry)
        elif entry.outcome == DENIED:
            self._trail.deny(entry)
        else:
            self._trail.add(entry)


def _refused_change(request: HttpRequest) -> HttpReply | None:
    if len(request.body) > BODY_BYTES_MAX:
        return error_reply(413, "too_large", f"A body may have at most {BODY_BYTES_MAX} bytes.")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and request.method != "DELETE":
        return error_reply(415, "not_json", "The content type must be application/json.")
    return None


# ── Audit entries ────────────────────────────────────────────────────────────────────────────
# Secrets are never recorded: a log-in or a new key is recorded with its key id only. For a failed
# request, only names that exist are recorded, because people type passwords into the wrong field.
# The resource is determined before the request runs, because it may be deleted afterwards.


def subject_of(call: Call, noted: Noted) -> Subject:
    kind, context = noted.kind, call.context
    identities = context.identities
    body = {} if kind == "policy" else _body(call)
    named = call.path[3] if len(call.path) > 3 else ""
    params: dict[str, object] = {**call.query, **body}

    def subject(account: str, name: str, found: object) -> Subject:
        return Subject(account, name, name if found else "", params)

    if kind == "node":
        key = None if identities is None else identities.key(str(body.get("key_id", "")))
        return Subject("", "", "", {}, {} if key is None else {"access_key": key.key_id})
    if kind == "cluster":  # a node by its number, the feature level, or partitions in the body
        number = call.path[4] if len(call.path) > 4 else ""
        others = "level" if named == "upgrade" else "partitions"
        name = f"node/{int(number[:10])}" if number.isdecimal() else others
        return subject(context.info.account, name, True)
    if kind == "coordinator":  # a partition of an internal topic; the body has the row
        account = context.info.account
        found = context.everything.find(account, context.info.region, named)
        return subject(account, f"{named}/{call.path[4]}", found)
    if kind == "tenant":
        account = call.account_named(named or str(body.get("account", ""))) or ""
        return subject(account, account, identities and identities.tenant(account))
    if kind == "key" and named:
        key = None if identities is None else identities.key(named)
        return subject("" if key is None else key.account, named, key)
    text = str(body.get("tenant", "")) or call.text("tenant") or call.text("account")
    account = call.caller.account or context.info.account
    if text:
        account = call.account_named(text) or ""
    if kind == "queue":
        return subject(account, named, context.everything.find(account, call.region, named))
    if kind == _SUB:
        one = None if context.push is None else context.push.subscriptions.find(named)
        params = {**call.query, **subs.audited(call, body)}
        return subject(account if one is None else one.account, named, one)
    if kind == "key":  # a new one: its id is in the reply
        return subject(account, "", None)
    known = named if identities and identities.user(account, named) else ""
    if kind == "policy":
        # A policy that is not UTF-8 is rejected, so its text does not matter.
        document = {"document": call.body.decode(errors="ignore")} if call.body else {}
        return Subject(account, f"{named}/{call.path[4]}", known, params | document)
    return Subject(account, named or str(body.get("name", "")), known, params)


def entry_of(call: Call, noted: Noted, subject: Subject, *, code: str) -> AuditEntry:
    name = subject.known if code else subject.name
    if noted.kind == "node":
        resource = ""
    elif noted.kind == "queue":
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
        denials=("access_denied", UNAUTHORIZED),
        request_id=call.request_id,
        params={**subject.always, **({} if code else subject.params)},
    )


def _completed(subject: Subject, reply: bytes) -> Subject:
    """Complete ``subject`` with the id of a new tenant, key or subscription, which only the reply
    has."""
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
    name = subject.name or key_id or str(shown.get("id", "")) or account
    return subject._replace(account=account, name=name, params=params)


def _body(call: Call) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(call.body) if call.body else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
