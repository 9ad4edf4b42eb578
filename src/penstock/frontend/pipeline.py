"""Start reading here. One HTTP request in, one HTTP reply out, through a fixed list of stages.

A stage looks at a call, adds what it found out or raises; it never answers. After the last one the
action runs. Whatever is raised on the way becomes a fault in the protocol the client speaks: model
errors by wire's table, anything unexpected as InternalFailure, which is logged here once with its
traceback and shows the client nothing but the request id to quote.

Nothing is logged per request; the meter is called once per request. What it used is counted for its
tenant, and what it changed is noted in the audit trail."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.frontend import own_paths
from penstock.frontend.audit import AuditTrail
from penstock.frontend.audited import AUDITED, CANCELLED, denial_of, entry_of
from penstock.frontend.authenticate import authenticate, authenticate_again
from penstock.frontend.authorize import authorize
from penstock.frontend.call import Call
from penstock.frontend.catalog_view import queues_of
from penstock.frontend.context import Context, FrontendConfig, Meter
from penstock.frontend.decode import decode, has_action
from penstock.frontend.metering import DENIALS, Metering
from penstock.frontend.nobody import Nobody
from penstock.frontend.protocols import REQUEST_ID, codec_of
from penstock.frontend.sealing import Sealing
from penstock.frontend.usage import UsageTable
from penstock.model.errors import PenstockError
from penstock.model.ports import Backend, Catalog, Clock, Identities, Shares
from penstock.net.exchange import HttpReply, HttpRequest
from penstock.wire.aws.faults import Fault, fault, fault_of

__all__ = ["STAGES", "Frontend", "FrontendConfig", "Meter"]

log = logging.getLogger("penstock.frontend")

Stage = Callable[[Context, Call], None]

# The order is the design: what is asked, who asks, may they. Later stages find their place here.
STAGES: Final[tuple[Stage, ...]] = (decode, authenticate, authorize)
# Actions that wait for messages: what was right when they came may not be when there is an answer.
WAITING: Final = frozenset(("ReceiveMessage",))

OK = "OK"
UNKNOWN_API = "unknown"
OWN_API = "own"
RESET = "penstock:Reset"


class Frontend:
    def __init__(
        self,
        *,
        backend: Backend,
        catalog: Catalog,
        shares: Shares,
        clock: Clock,
        config: FrontendConfig,
        meter: Meter,
        entropy: Callable[[int], bytes],
        perf: Callable[[], float],
        identities: Identities | None = None,
        sealing: Sealing | None = None,
        usage: UsageTable | None = None,
        audit: AuditTrail | None = None,
    ) -> None:
        """``entropy`` gives that many random bytes; ``perf`` is a monotonic clock in seconds;
        ``identities`` are needed when callers have to say who they are. Without ``usage`` or
        ``audit`` nothing is counted for tenants or noted."""
        self._metering = None if usage is None else Metering(usage, meter)
        self._audit = audit
        queues = queues_of(catalog)
        self._context = Context(
            backend,
            queues,
            clock,
            config,
            meter if self._metering is None else self._metering.tally,
            entropy,
            everything=catalog,
            shares=shares,
            identities=identities or Nobody(),
            sealing=sealing,
        )
        self._meter = meter
        self._perf = perf

    async def handle(self, request: HttpRequest) -> HttpReply:
        """Never raises, except for cancellation: the client has gone, and nobody is answered."""
        if request.path.startswith(own_paths.PREFIXES) or not has_action(request):
            return await self._own(request)
        started = self._perf()
        call = Call(request, codec_of(request))
        context = self._context
        code = OK
        audit: AuditTrail | None = None  # set for what is noted there however it ends
        try:
            for stage in STAGES:
                stage(context, call)
            action = call.action
            assert action is not None, "decode found an action or raised"
            if action.name in AUDITED and self._audit is not None:
                await self._audit.admit()
                audit = self._audit
            answer = await action.run(context, call, call.asked)
            if action.name in WAITING and not call.caller.is_trusted:
                authenticate_again(context, call)
                authorize(context, call)
            reply = call.codec.reply(action.name, answer, request.request_id)
        except Exception as error:
            refusal = _refusal(error, request)
            code = refusal.code
            reply = call.codec.refusal(refusal, request.request_id)
        except asyncio.CancelledError:
            if audit is not None:
                audit.add(entry_of(context, call, CANCELLED, is_ok=False))
            raise
        api = UNKNOWN_API if call.action is None else call.action.name
        self._meter.request(api, call.codec.name, code, self._perf() - started)
        if audit is not None or code is not OK:
            self._note(call, code, audit)
        elif self._metering is not None:
            self._metering.answered(call)
        return reply

    def _note(self, call: Call, code: str, audit: AuditTrail | None) -> None:
        """The rare ends: of what changes something, and of what was refused."""
        context, metering = self._context, self._metering
        if metering is not None and code is OK:
            metering.answered(call)
        elif metering is not None:
            metering.refused(context, call, code)
        if audit is not None:
            audit.add(entry_of(context, call, code, is_ok=code is OK))
        elif self._audit is not None and code in DENIALS:
            self._audit.deny(denial_of(context, call, code))

    async def _own(self, request: HttpRequest) -> HttpReply:
        started = self._perf()
        try:
            if request.path.startswith(own_paths.PREFIXES):
                reply = await own_paths.answer(self._context, request)
            else:
                reply = own_paths.greeting(request)
        except Exception as error:
            refusal = _refusal(error, request)
            body = msgspec.json.encode({"error": refusal.message})
            reply = HttpReply(refusal.status, body, "application/json")
        reply.headers = ((REQUEST_ID, request.request_id), *reply.headers)
        code = OK if reply.status < 400 else str(reply.status)
        self._meter.request(OWN_API, "http", code, self._perf() - started)
        if request.method == "POST" and reply.status == 200 and self._audit is not None:
            # Nobody is asked who they are here, and there is one thing to do: begin anew.
            await self._audit.note(
                RESET, caller=None, source_ip=request.peer, request_id=request.request_id
            )
        return reply


def _refusal(error: Exception, request: HttpRequest) -> Fault:
    if isinstance(error, Fault):
        return error
    if isinstance(error, PenstockError):
        return fault_of(error)
    log.error(
        "request failed",
        exc_info=error,
        extra={"request_id": request.request_id, "path": request.path},
    )
    return fault(
        "InternalFailure",
        f"The server failed to answer this request. Request id: {request.request_id}",
    )
