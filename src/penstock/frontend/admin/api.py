"""The admin API: its one gate, its error shape, and what every call is checked for.

It stands on a port of its own, so that health checks and scrapes are answered when the data port
is full, and so that a firewall can tell operators from clients. Paths are in ``routes.py``, each
resource in a module of its own; who may do what is ``login.py``'s and ``rights.py``'s to say.

A change has to be JSON by its content type: a browser sends that to another origin only after
asking, and nobody here says yes, so that a page cannot make changes on a loopback address where
authentication is off. Other requests of pages are rejected by the listener (``net/browsers.py``).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

import msgspec

from penstock.frontend.admin import audited
from penstock.frontend.admin.audited import Noted, Subject
from penstock.frontend.admin.backup_port import BackupPort
from penstock.frontend.admin.cluster_port import ClusterPort
from penstock.frontend.admin.coordinator_port import CoordinatorPort
from penstock.frontend.admin.directory import Directory
from penstock.frontend.admin.health import Health
from penstock.frontend.admin.login import Credentials, Gate, Unauthenticated
from penstock.frontend.admin.reply import (
    error_reply,
    fault_of,
    fault_reply,
    finished,
    json_reply,
)
from penstock.frontend.admin.request import Call, ConfigRow, Context, Info, parse
from penstock.frontend.admin.routes import OPEN, Route, let_in, routes
from penstock.frontend.audit import AuditTrail
from penstock.frontend.callees import Callees
from penstock.frontend.decisions import Decisions
from penstock.frontend.quotas import TenantQuotas
from penstock.frontend.sealing import Sealing
from penstock.frontend.throttle import Throttler
from penstock.model.errors import InvalidRequest, PenstockError
from penstock.model.limits import MIB, WHOLE_BODY_BYTES_MAX
from penstock.model.ports import Backend, Catalog, Clock, Sleep
from penstock.net.exchange import HttpReply, HttpRequest
from penstock.net.turns import in_turns
from penstock.telemetry.metrics import Meter
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.large_json import check_large
from penstock.wire.facts.audit import DENIED, AuditEntry

BODY_BYTES_MAX = MIB
READS = ("GET", "HEAD")
UNAUTHORIZED = "unauthorized"
EARLY_MAX = 1_000  # log-ins before there is where to note them; the oldest go first

log = logging.getLogger(__name__)


class AdminApi:
    def __init__(
        self,
        *,
        backend: Backend,
        catalog: Catalog,
        meter: Meter,
        health: Health,
        clock: Clock,
        info: Info,
        config: Sequence[ConfigRow] = (),
        token: str = "",
        identities: Directory | None = None,
        everything: Catalog | None = None,
        sealing: Sealing | None = None,
        callees: Callees | None = None,
        quotas: TenantQuotas | None = None,
        throttler: Throttler | None = None,
        cluster: ClusterPort | None = None,
        backup: BackupPort | None = None,
        coordinators: CoordinatorPort | None = None,
        is_auth_on: bool = False,
        is_audited: bool = False,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """``catalog`` shows queues, ``everything`` also streams. Without a token and with
        authentication off, everybody who reaches this port is its operator. ``is_audited``: no
        change is made before ``note_in`` has told where it is noted."""
        self._context = Context(
            backend=backend,
            catalog=catalog,
            meter=meter,
            health=health,
            clock=clock,
            sleep=sleep,
            info=info,
            config=config,
            everything=everything or catalog,
            identities=identities,
            decisions=None if identities is None else Decisions(identities),
            sealing=sealing,
            callees=callees,
            quotas=quotas,
            throttler=throttler,
            cluster=cluster,
            backup=backup,
            coordinators=coordinators,
        )
        self._gate = Gate(
            token=token, identities=identities, account=info.account, is_required=is_auth_on
        )
        self.is_open = self._gate.is_open
        self._routes = routes(self._log_in)
        self._is_audited = is_audited
        self._trail: AuditTrail | None = None
        self._early: deque[AuditEntry] = deque(maxlen=EARLY_MAX)

    def note_in(self, trail: AuditTrail) -> None:
        """This port answers before the log that changes are noted in does. Log-ins, by which a
        long start is watched, are kept until then; changes are not made."""
        self._trail = trail
        while self._early:
            trail.add(self._early.popleft())

    async def handle(self, request: HttpRequest) -> HttpReply:
        """Never raises, but for cancellation."""
        try:
            reply = await self._answer(request)
        except Unauthenticated as exc:
            reply = error_reply(401, UNAUTHORIZED, str(exc), (("www-authenticate", "Bearer"),))
        except PenstockError as exc:
            reply = fault_reply(exc)
        except Exception:
            log.exception(
                "admin request failed",
                extra={"path": request.path, "request_id": request.request_id},
            )
            reply = error_reply(500, "failed", "The node failed to answer; its log says why.")
        return finished(request, reply)

    async def _answer(self, request: HttpRequest) -> HttpReply:
        call = parse(request)
        found = [route for route in self._routes if route.fits(call.path)]
        if not found:
            return error_reply(404, "not_found", "There is nothing at this path.")
        method = "GET" if request.method == "HEAD" else request.method
        route = next((route for route in found if route.method == method), None)
        if route is None:
            return _not_allowed([route.method for route in found])
        if route.right != OPEN:
            call = self._introduced(request, call, route)
        refusal = None if request.method in READS else _refused_change(request)
        if refusal is not None:
            return refusal
        if len(request.body) > WHOLE_BODY_BYTES_MAX and (
            route.noted is None or route.noted.kind != audited.POLICY
        ):
            await _check_body(request.body)
        if route.noted is None:
            reply = await self._carry_out(route, call)
        else:
            reply = await self._carry_out_noted(route, route.noted, request, call)
        if route.noted is not None and route.right != OPEN:
            log.info(
                "admin change",
                extra={
                    "method": request.method,
                    "path": request.path,
                    "account": call.caller.account,
                    "user": call.caller.user,
                    "key_id": call.caller.key_id,
                    "request_id": request.request_id,
                },
            )
        return reply

    def _introduced(self, request: HttpRequest, call: Call, route: Route) -> Call:
        """With whoever asks. Raises Unauthenticated."""
        now_ms = self._context.clock.wall_ms()
        try:
            caller = self._gate.caller(request.headers.get("authorization", ""), now_ms=now_ms)
        except Unauthenticated:
            if route.noted is not None:
                if len(call.body) > WHOLE_BODY_BYTES_MAX:
                    call = msgspec.structs.replace(call, body=b"")  # it is not worth decoding
                subject = audited.subject_of(self._context, call, route.noted)
                self._note(route.noted, request, call, subject, UNAUTHORIZED)
            raise
        return msgspec.structs.replace(call, caller=caller)

    async def _carry_out(self, route: Route, call: Call) -> HttpReply:
        return await route.resource(self._context, let_in(self._context, call, route.right))

    async def _carry_out_noted(
        self, route: Route, noted: Noted, request: HttpRequest, call: Call
    ) -> HttpReply:
        """Once there is room in the trail; and how it ended goes there."""
        if self._trail is None and self._is_audited and noted.action != audited.LOG_IN:
            return error_reply(503, "starting", "The node is starting: it takes no changes yet.")
        if self._trail is not None:
            await self._trail.admit()
        subject = audited.subject_of(self._context, call, noted)
        try:
            reply = await self._carry_out(route, call)
        except PenstockError as exc:
            code = UNAUTHORIZED if isinstance(exc, Unauthenticated) else fault_of(exc)[1]
            self._note(noted, request, call, subject, code)
            raise
        except BaseException:
            # Nobody was told what became of it.
            self._note(noted, request, call, subject, audited.CANCELLED)
            raise
        self._note(noted, request, call, audited.completed(subject, reply.body))
        return reply

    def _note(
        self, noted: Noted, request: HttpRequest, call: Call, subject: Subject, code: str = ""
    ) -> None:
        if self._trail is None and not self._is_audited:
            return
        entry = audited.entry_of(
            self._context, call, noted, subject, code=code, request_id=request.request_id
        )
        if self._trail is None:
            self._early.append(entry)
        elif entry.outcome == DENIED:
            self._trail.deny(entry)
        else:
            self._trail.add(entry)

    async def _log_in(self, context: Context, call: Call) -> HttpReply:
        call.only(())
        given = call.json(Credentials)
        return json_reply(200, self._gate.log_in(given, now_ms=context.clock.wall_ms()))


async def _check_body(body: bytes) -> None:
    """Raise InvalidRequest if decoding the body would take too long. The body of a policy is not
    decoded before its size was checked."""
    try:
        await in_turns(check_large(body))
    except Fault as fault:
        raise InvalidRequest(fault.message) from None


def _not_allowed(methods: Sequence[str]) -> HttpReply:
    allowed = [*(["GET", "HEAD"] if "GET" in methods else []), *sorted({*methods} - {"GET"})]
    what = "This can only be read." if allowed == ["GET", "HEAD"] else "This cannot be done here."
    return error_reply(405, "method_not_allowed", what, (("allow", ", ".join(allowed)),))


def _refused_change(request: HttpRequest) -> HttpReply | None:
    if len(request.body) > BODY_BYTES_MAX:
        return error_reply(413, "too_large", f"A body has at most {BODY_BYTES_MAX} bytes.")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and request.method != "DELETE":
        return error_reply(415, "not_json", "A change is sent as application/json.")
    return None
