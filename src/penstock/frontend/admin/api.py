"""The admin API: authentication, routing and error replies of every request. It has its own port,
so that health checks get replies when the data port is overloaded, and so that a firewall can
separate operators from clients.

Changes must have the content type JSON. A browser sends this to another origin only after a
preflight request, which this server never answers, so a web page cannot make changes on a loopback
address where authentication is off."""

import logging
from collections import deque
from collections.abc import Sequence
from inspect import isawaitable

import msgspec

from penstock.frontend.admin import audited
from penstock.frontend.admin.audited import Noted, Subject
from penstock.frontend.admin.login import Credentials, Gate, Session, Unauthenticated
from penstock.frontend.admin.reply import (
    error_reply,
    fault_of,
    fault_reply,
    finished,
    json_reply,
    picked,
)
from penstock.frontend.admin.request import Call, Context, parse
from penstock.frontend.admin.routes import OPEN, Route, let_in, routes
from penstock.frontend.facts.audit import CANCELLED, AuditTrail
from penstock.model.errors import InvalidRequest, PenstockError
from penstock.model.limits import MIB, WHOLE_BODY_BYTES_MAX
from penstock.net.http.exchange import HttpReply, HttpRequest
from penstock.net.slices import in_slices
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.json10 import check_large
from penstock.wire.facts.audit import DENIED, AuditEntry

BODY_BYTES_MAX = MIB
READS = ("GET", "HEAD")
UNAUTHORIZED = "unauthorized"
EARLY_MAX = 1_000  # log-ins to keep until the audit trail is ready; the oldest are dropped

log = logging.getLogger(__name__)


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
        self._gate = Gate(token=token, identities=known, account=account, is_required=is_auth_on)
        self.is_open = self._gate.is_open
        self._routes = routes(self._log_in)
        self._is_audited = is_audited
        self._trail: AuditTrail | None = None
        self._early: deque[AuditEntry] = deque(maxlen=EARLY_MAX)

    def note_in(self, trail: AuditTrail) -> None:
        """Set the audit trail. Before that, changes that must be audited are rejected."""
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
        found = [route for route in self._routes if route.fits(call.path)]
        if not found:
            return error_reply(404, "not_found", "Unknown path.")
        method = "GET" if request.method == "HEAD" else request.method
        route = next((route for route in found if route.method == method), None)
        if route is None:
            return _not_allowed([route.method for route in found])
        if route.right != OPEN:
            call = self._authenticated(request, call, route)
        refusal = None if request.method in READS else _refused_change(request)
        if refusal is not None:
            return refusal
        noted = route.noted
        is_large = len(request.body) > WHOLE_BODY_BYTES_MAX
        if is_large and (noted is None or noted.kind != audited.POLICY):
            await _check_body(request.body)
        if noted is None:
            return await self._run(route, call)
        reply = await self._run_noted(route, noted, call)
        if route.right != OPEN:
            facts = picked(request, "method", "path", "request_id")
            log.info(
                "admin change made", extra=facts | picked(call.caller, "account", "user", "key_id")
            )
        return reply

    def _authenticated(self, request: HttpRequest, call: Call, route: Route) -> Call:
        given = request.headers.get("authorization", "")
        try:
            caller = self._gate.caller(given, now_ms=call.now_ms)
        except Unauthenticated:
            if route.noted is not None:
                if len(call.body) > WHOLE_BODY_BYTES_MAX:
                    call = msgspec.structs.replace(call, body=b"")  # too large to decode here
                subject = audited.subject_of(call, route.noted)
                self._note(route.noted, call, subject, UNAUTHORIZED)
            raise
        return msgspec.structs.replace(call, caller=caller)

    async def _run(self, route: Route, call: Call) -> HttpReply:
        found = route.resource(let_in(call, route))
        if isawaitable(found):
            found = await found
        return found if isinstance(found, HttpReply) else json_reply(200, found)

    async def _run_noted(self, route: Route, noted: Noted, call: Call) -> HttpReply:
        if self._trail is None and self._is_audited and noted.action != audited.LOG_IN:
            return error_reply(503, "starting", "The node is starting and accepts no changes yet.")
        if self._trail is not None:
            await self._trail.admit()
        subject = audited.subject_of(call, noted)
        try:
            reply = await self._run(route, call)
        except PenstockError as exc:
            code = UNAUTHORIZED if isinstance(exc, Unauthenticated) else fault_of(exc)[1]
            self._note(noted, call, subject, code)
            raise
        except BaseException:
            self._note(noted, call, subject, CANCELLED)  # the outcome is unknown
            raise
        self._note(noted, call, audited.completed(subject, reply.body))
        return reply

    def _note(self, noted: Noted, call: Call, subject: Subject, code: str = "") -> None:
        if self._trail is None and not self._is_audited:
            return
        entry = audited.entry_of(call, noted, subject, code=code)
        if self._trail is None:
            self._early.append(entry)
        elif entry.outcome == DENIED:
            self._trail.deny(entry)
        else:
            self._trail.add(entry)

    async def _log_in(self, call: Call) -> Session:
        return self._gate.log_in(call.json(Credentials), now_ms=call.now_ms)


async def _check_body(body: bytes) -> None:
    try:
        await in_slices(check_large(body))
    except Fault as fault:
        raise InvalidRequest(fault.message) from None


def _not_allowed(methods: Sequence[str]) -> HttpReply:
    reads = READS if "GET" in methods else ()
    names = ", ".join((*reads, *sorted({*methods} - {"GET"})))
    text = f"Method not allowed; the allowed methods are {names}."
    return error_reply(405, "method_not_allowed", text, (("allow", names),))


def _refused_change(request: HttpRequest) -> HttpReply | None:
    if len(request.body) > BODY_BYTES_MAX:
        return error_reply(413, "too_large", f"A body may have at most {BODY_BYTES_MAX} bytes.")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and request.method != "DELETE":
        return error_reply(415, "not_json", "The content type must be application/json.")
    return None
