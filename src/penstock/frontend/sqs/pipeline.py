"""The path of an SQS request through its stages. Start reading here.

Each stage adds its results to the call or raises an error; after the last stage the action runs.
Every exception becomes an error reply in the protocol of the client; an unexpected exception
becomes InternalFailure and is logged."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.access.decisions import Postponed, Question
from penstock.frontend.encryption.sealing import Sealing
from penstock.frontend.facts.audit import CANCELLED, AuditTrail
from penstock.frontend.facts.usage import Meter, UsageTable
from penstock.frontend.limited_calls import queues_of
from penstock.frontend.limits.quotas import TenantQuotas
from penstock.frontend.limits.throttler import Throttler
from penstock.frontend.sqs import endpoints
from penstock.frontend.sqs.accounting import (
    AUDITED,
    DENIALS,
    Metering,
    entry_of,
    samples_of,
    throttle,
)
from penstock.frontend.sqs.authorize import authorize
from penstock.frontend.sqs.context import UNKNOWN_ACTION, Call, Context, FrontendConfig
from penstock.frontend.sqs.idempotency import REPEATABLE, Replies, outlives, token_of
from penstock.frontend.sqs.incoming import (
    authenticate,
    authenticate_again,
    decode,
    decode_in_steps,
    has_action,
    identify,
    name_action,
)
from penstock.frontend.sqs.protocols import REQUEST_ID, codec_of
from penstock.model.calls import BrokerPort
from penstock.model.errors import PenstockError, Throttled
from penstock.model.limits import TENANT_HELD_PERCENT, WHOLE_BODY_BYTES_MAX
from penstock.model.ports import Catalog, Clock, Identities
from penstock.model.quotas import SharedLimit
from penstock.net.http.exchange import HttpReply, HttpRequest
from penstock.net.slices import hash_in_steps, in_slices
from penstock.telemetry import families
from penstock.telemetry.families import Family, Sample
from penstock.wire.aws.faults import Fault, fault, fault_of

__all__ = ["STAGES", "Frontend", "FrontendConfig", "Meter"]

log = logging.getLogger("penstock.frontend")

Stage = Callable[[Context, Call], None]

# The order matters: a body is decoded only for a verified caller, and only an authorized caller
# learns whether the request is valid.
STAGES: Final[tuple[Stage, ...]] = (identify, authenticate, decode, authorize, throttle)
# Actions that wait for messages: the caller is checked again afterwards.
WAITING: Final = frozenset(("ReceiveMessage",))

OK: Final = "OK"
HELD_MAX: Final = 10_000  # delayed rejections of rate limits; others are sent at once
OWN_API: Final = "own"
RESET: Final = "penstock:Reset"
RETRY_AFTER_MS: Final = "x-amz-retry-after"  # newer SDKs use it; Retry-After is in seconds


@dataclass(eq=False, kw_only=True)
class Frontend:
    broker: BrokerPort
    catalog: Catalog
    clock: Clock
    config: FrontendConfig
    meter: Meter
    entropy: Callable[[int], bytes]
    perf: Callable[[], float]  # a monotonic clock in seconds
    identities: Identities
    sealing: Sealing | None = None
    usage: UsageTable | None = None
    audit: AuditTrail | None = None
    throttler: Throttler | None = None  # shared with the other protocols of the node
    quotas: TenantQuotas | None = None

    def __post_init__(self) -> None:
        self._metering = Metering(self.meter, self.usage)
        self._replies = Replies()
        account = self.config.account
        self._context = Context(
            self.broker,
            queues_of(self.catalog),
            self.clock,
            self.config,
            self._metering,
            self.entropy,
            everything=self.catalog,
            sealing=self.sealing,
            throttler=self.throttler or Throttler(own_account=account),
            quotas=self.quotas,
            identities=self.identities,
        )
        self._held = SharedLimit(HELD_MAX, TENANT_HELD_PERCENT, own_account=account)
        self.outlives = outlives  # for the listener

    def samples(self) -> Iterator[tuple[Family, Sample]]:
        context = self._context
        yield from samples_of(context.throttler, context.quotas, context.config.account)
        yield families.FRONTEND_REPEATED, ((), self._replies.repeated_count)

    async def handle(self, http: HttpRequest) -> HttpReply:
        if http.path.startswith(endpoints.PREFIXES) or not has_action(http):
            return await self._handle_path(http)
        started = self.perf()
        call = Call(http, codec_of(http))
        context = self._context
        code = OK
        held_ms = 0
        audit: AuditTrail | None = None  # set if the request is recorded, whatever its outcome
        try:
            try:
                if len(http.body) <= WHOLE_BODY_BYTES_MAX:
                    for stage in STAGES:
                        stage(context, call)
                else:
                    await _admit_large(context, call)
            except Postponed as postponed:
                await _authorize_in_thread(context, call, postponed)
                throttle(context, call)
            action = call.action
            if action.name in AUDITED and self.audit is not None:
                await self.audit.admit()
                audit = self.audit
            token = token_of(call, action.name) if action.name in REPEATABLE else None
            if token is None:
                result = await action.run(context, call, call.request)
            else:
                result = await self._replies.once(context, call, token, started)
            if action.name in WAITING:
                call.charged_at_ms = context.clock.mono_ms()
                if not call.caller.is_trusted:
                    authenticate_again(context, call)
                    try:
                        authorize(context, call)
                    except Postponed as postponed:
                        await _authorize_in_thread(context, call, postponed)
            if isinstance(result, HttpReply):
                reply = result  # a large reply, already encoded
            else:
                reply = call.codec.reply(action.name, result, http.request_id)
        except Exception as error:
            refusal = _fault_of(error, http)
            code = refusal.code
            if call.action is UNKNOWN_ACTION:
                name_action(call)
            reply = call.codec.refusal(refusal, http.request_id)
            if isinstance(error, Throttled):
                reply.headers += ((RETRY_AFTER_MS, str(error.retry_after_ms)),)
                held_ms = error.held_ms
        except asyncio.CancelledError:
            if audit is not None:
                audit.add(entry_of(context, call, CANCELLED))
            raise
        metering = self._metering
        seconds = self.perf() - started
        if call.bytes_bucket is not None and code is OK:
            size_bytes = metering.bytes_in + metering.bytes_out
            call.bytes_bucket.add(size_bytes, now_ms=call.charged_at_ms)
        self.meter.request(call.action.name, call.codec.name, code, seconds)
        if audit is not None or code is not OK:
            self._record(call, code, audit, seconds)
        else:
            metering.answered(call, seconds)
        if held_ms:
            await self._hold(call.caller.account, held_ms)
        return reply

    def forbid(self, http: HttpRequest, reason: str) -> HttpReply:
        """Return the reply to a request that was rejected because it came from a web page."""
        refusal = fault("AccessDenied", reason)
        codec = codec_of(http)
        self.meter.request(UNKNOWN_ACTION.name, codec.name, refusal.code, 0.0)
        return codec.refusal(refusal, http.request_id)

    async def _hold(self, account: str, held_ms: int) -> None:
        held = self._held
        if not (held.is_full() or held.is_used_up(account)):
            with held.holding(account, "delayed replies"):
                await asyncio.sleep(held_ms / 1_000)

    def _record(self, call: Call, code: str, audit: AuditTrail | None, seconds: float) -> None:
        context = self._context
        if code is OK:
            self._metering.answered(call, seconds)
        else:
            self._metering.rejected(context, call, code)
        if audit is not None:
            audit.add(entry_of(context, call, "" if code is OK else code))
        elif self.audit is not None and code in DENIALS:
            self.audit.deny(entry_of(context, call, code, is_denial=True))

    async def _handle_path(self, http: HttpRequest) -> HttpReply:
        started = self.perf()
        try:
            if http.path.startswith(endpoints.PREFIXES):
                reply = await endpoints.reply_to(self._context, http)
            else:
                reply = endpoints.greeting(http)
        except Exception as error:
            refusal = _fault_of(error, http)
            body = msgspec.json.encode({"error": refusal.message})
            reply = HttpReply(refusal.status, body, "application/json")
        reply.headers = ((REQUEST_ID, http.request_id), *reply.headers)
        code = OK if reply.status < 400 else str(reply.status)
        self.meter.request(OWN_API, "http", code, self.perf() - started)
        if http.method == "POST" and reply.status == 200 and self.audit is not None:
            # A reset needs no authentication, so the caller is unknown.
            facts = {"source_ip": http.peer, "request_id": http.request_id}
            await self.audit.note(RESET, caller=None, **facts)
        return reply


async def _admit_large(context: Context, call: Call) -> None:
    identify(context, call)
    if context.config.is_auth_on and call.scope is not None:
        call.body_hash = await in_slices(hash_in_steps(call.http.body))
    authenticate(context, call)
    await in_slices(decode_in_steps(context, call))
    authorize(context, call)
    throttle(context, call)


async def _authorize_in_thread(context: Context, call: Call, postponed: Postponed) -> None:
    decisions = context.decisions
    evaluated: set[Question] = set()
    while postponed.question not in evaluated:
        evaluated.add(postponed.question)
        asks, decision = await asyncio.to_thread(postponed.evaluate)
        decisions.keep(postponed, asks, decision)
        try:
            authorize(context, call)
            return
        except Postponed as another:
            postponed = another
    # The decision depends on the circumstances, or the policies have changed since.
    with decisions.at_once():
        authorize(context, call)


def _fault_of(error: Exception, http: HttpRequest) -> Fault:
    if isinstance(error, Fault):
        return error
    if isinstance(error, PenstockError):
        return fault_of(error)
    request_id = http.request_id
    log.error("request failed", exc_info=error, extra={"request_id": request_id, "path": http.path})
    text = f"The server failed to answer this request. Request id: {request_id}"
    return fault("InternalFailure", text)
