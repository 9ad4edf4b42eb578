"""Start reading here. One HTTP request in, one HTTP reply out, through a fixed list of stages.

A stage looks at a call, adds what it found out or raises; it never answers. After the last one the
action runs. Whatever is raised on the way becomes a fault in the protocol the client speaks: model
errors by wire's table, anything unexpected as InternalFailure, which is logged here once with its
traceback and shows the client nothing but the request id to quote.

Nothing is logged per request; the meter is called once per request. What it used is counted for its
tenant, and what it changed is noted in the audit trail."""

import asyncio
import logging
from collections.abc import Callable, Iterator
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
from penstock.frontend.decisions import Postponed, Question
from penstock.frontend.decode import decode, decode_in_steps, has_action, identify, name_action
from penstock.frontend.idempotency import REPEATABLE, Answers, found_by, outlives
from penstock.frontend.metering import DENIALS, Metering, Tally
from penstock.frontend.nobody import Nobody
from penstock.frontend.protocols import REQUEST_ID, codec_of
from penstock.frontend.quotas import TenantQuotas
from penstock.frontend.sealing import Sealing
from penstock.frontend.throttle import Throttler
from penstock.frontend.throttling import samples_of, throttle
from penstock.frontend.usage import UsageTable
from penstock.model.errors import PenstockError, Throttled
from penstock.model.limits import TENANT_HELD_PERCENT, WHOLE_BODY_BYTES_MAX
from penstock.model.ports import Backend, Catalog, Clock, Identities
from penstock.model.ports import Shares as SharePort
from penstock.model.quotas import Shares
from penstock.net.exchange import HttpReply, HttpRequest
from penstock.net.turns import hash_in_steps, in_turns
from penstock.telemetry import families
from penstock.telemetry.exposition import Sample
from penstock.telemetry.families import Family
from penstock.wire.aws.faults import Fault, fault, fault_of

__all__ = ["STAGES", "Frontend", "FrontendConfig", "Meter"]

log = logging.getLogger("penstock.frontend")

Stage = Callable[[Context, Call], None]

# The order is the design: who asks, what is asked, may they, and as fast as that. A body is decoded
# only for a caller whose signature was verified. What has been done already is found out last,
# because somebody may have to wait for it (``idempotency.py``). Whether what is asked makes sense
# is for the actions to say, so only those who may ask are told.
STAGES: Final[tuple[Stage, ...]] = (identify, authenticate, decode, authorize, throttle)
# Actions that wait for messages: what was right when they came may not be when there is an answer.
WAITING: Final = frozenset(("ReceiveMessage",))

OK = "OK"
UNKNOWN_API = "unknown"
# Refusals that are answered late; others are answered at once. The share of a tenant is as many as
# it has connections by default: none of these asks again without a pause.
HELD_MAX: Final = 10_000
OWN_API = "own"
RESET = "penstock:Reset"
RETRY_AFTER_MS = "x-amz-retry-after"  # newer SDKs wait for so long; Retry-After is in seconds


class Frontend:
    def __init__(
        self,
        *,
        backend: Backend,
        catalog: Catalog,
        shares: SharePort,
        clock: Clock,
        config: FrontendConfig,
        meter: Meter,
        entropy: Callable[[int], bytes],
        perf: Callable[[], float],
        identities: Identities | None = None,
        sealing: Sealing | None = None,
        usage: UsageTable | None = None,
        audit: AuditTrail | None = None,
        throttler: Throttler | None = None,
        quotas: TenantQuotas | None = None,
    ) -> None:
        """``entropy`` gives that many random bytes; ``perf`` is a monotonic clock in seconds;
        ``identities`` are needed when callers have to say who they are. Without ``usage`` or
        ``audit`` nothing is counted for tenants or noted; ``throttler`` and ``quotas`` are shared
        with the other protocols of the node."""
        self._metering = None if usage is None else Metering(usage, meter)
        self._tally = Tally(meter) if self._metering is None else self._metering.tally
        self._audit = audit
        self._answers = Answers()
        queues = queues_of(catalog)
        self._context = Context(
            backend,
            queues,
            clock,
            config,
            self._tally,
            entropy,
            everything=catalog,
            shares=shares,
            identities=identities or Nobody(),
            sealing=sealing,
            throttler=throttler or Throttler(own_account=config.account),
            quotas=quotas,
        )
        self._meter = meter
        self._perf = perf
        self._held = Shares(HELD_MAX, TENANT_HELD_PERCENT, own_account=config.account)
        self.outlives = outlives  # for the listener

    def samples(self) -> Iterator[tuple[Family, Sample]]:
        """For the meter: what it asks at each scrape."""
        context = self._context
        yield from samples_of(context.throttler, context.quotas, own_account=context.config.account)
        yield families.FRONTEND_REPEATED, ((), self._answers.repeated_count)

    async def handle(self, request: HttpRequest) -> HttpReply:
        """Never raises, except for cancellation: the client has gone, and nobody is answered."""
        if request.path.startswith(own_paths.PREFIXES) or not has_action(request):
            return await self._own(request)
        started = self._perf()
        call = Call(request, codec_of(request))
        context = self._context
        code = OK
        held_ms = 0
        audit: AuditTrail | None = None  # set for what is noted there however it ends
        try:
            try:
                if len(request.body) <= WHOLE_BODY_BYTES_MAX:
                    for stage in STAGES:
                        stage(context, call)
                else:
                    await _admit_large(context, call)
            except Postponed as postponed:
                await _authorize_in_thread(context, call, postponed)
                throttle(context, call)
            action = call.action
            assert action is not None, "decode found an action or raised"
            if action.name in AUDITED and self._audit is not None:
                await self._audit.admit()
                audit = self._audit
            found = found_by(call, action.name) if action.name in REPEATABLE else None
            if found is None:
                answer = await action.run(context, call, call.asked)
            else:
                answer = await self._answers.once(context, call, found, started)
            if action.name in WAITING:
                call.owed_from_ms = context.clock.mono_ms()
                if not call.caller.is_trusted:
                    authenticate_again(context, call)
                    try:
                        authorize(context, call)
                    except Postponed as postponed:
                        await _authorize_in_thread(context, call, postponed)
            if isinstance(answer, HttpReply):
                reply = answer  # encoded already, in turns
            else:
                reply = call.codec.reply(action.name, answer, request.request_id)
        except Exception as error:
            refusal = _refusal(error, request)
            code = refusal.code
            if call.action is None:
                name_action(call)
            reply = call.codec.refusal(refusal, request.request_id)
            if isinstance(error, Throttled):
                reply.headers += ((RETRY_AFTER_MS, str(error.retry_after_ms)),)
                held_ms = error.held_ms
        except asyncio.CancelledError:
            if audit is not None:
                audit.add(entry_of(context, call, CANCELLED, is_ok=False))
            raise
        tally = self._tally
        seconds = self._perf() - started
        if call.owed is not None and code is OK:
            call.owed.add(tally.bytes_in + tally.bytes_out, now_ms=call.owed_from_ms)
        api = UNKNOWN_API if call.action is None else call.action.name
        self._meter.request(api, call.codec.name, code, seconds)
        if audit is not None or code is not OK:
            self._note(call, code, audit, seconds)
        elif self._metering is not None:
            self._metering.answered(call, seconds)
        else:
            tally.clear()
        if held_ms:
            await self._hold(call.caller.account, held_ms)
        return reply

    def forbid(self, request: HttpRequest, reason: str) -> HttpReply:
        """Return the reply to a request that the listener's browser guard rejects."""
        refusal = fault("AccessDenied", reason)
        codec = codec_of(request)
        self._meter.request(UNKNOWN_API, codec.name, refusal.code, 0.0)
        return codec.refusal(refusal, request.request_id)

    async def _hold(self, account: str, held_ms: int) -> None:
        held = self._held
        if held.is_full() or held.is_used_up(account):
            return
        held.add(account)
        try:
            await asyncio.sleep(held_ms / 1_000)
        finally:
            held.add(account, -1)

    def _note(self, call: Call, code: str, audit: AuditTrail | None, seconds: float) -> None:
        """The rare ends: of what changes something, and of what was refused."""
        context, metering = self._context, self._metering
        if metering is None:
            self._tally.clear()
        elif code is OK:
            metering.answered(call, seconds)
        else:
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


async def _admit_large(context: Context, call: Call) -> None:
    """The stages for a request with a large body, which is hashed and decoded in turns."""
    identify(context, call)
    if context.config.is_auth_on and call.scope is not None:
        call.body_hash = await in_turns(hash_in_steps(call.request.body))
    authenticate(context, call)
    await in_turns(decode_in_steps(context, call))
    authorize(context, call)
    throttle(context, call)


async def _authorize_in_thread(context: Context, call: Call, postponed: Postponed) -> None:
    """Authorize a request on large policies: each of its questions is weighed in a thread first."""
    decisions = context.decisions
    weighed: set[Question] = set()
    while postponed.question not in weighed:
        weighed.add(postponed.question)
        asks, decision = await asyncio.to_thread(postponed.weigh)
        decisions.keep(postponed, asks, decision)
        try:
            authorize(context, call)
            return
        except Postponed as another:
            postponed = another
    # The answer depends on the circumstances, or the policies have changed meanwhile.
    with decisions.at_once():
        authorize(context, call)


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
