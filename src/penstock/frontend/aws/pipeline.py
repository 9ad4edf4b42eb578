"""The path of an SQS request through its stages. Start reading here.

Each stage adds its results to the call or raises an error; after the last stage the action runs.
Every exception becomes an error reply in the protocol of the client; an unexpected exception
becomes InternalFailure and is logged."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock import __version__
from penstock.access.decisions import Postponed, Question
from penstock.frontend.aws.accounting import (
    AUDITED,
    DENIALS,
    Metering,
    entry_of,
    throttle,
)
from penstock.frontend.aws.authorize import authorize
from penstock.frontend.aws.context import UNKNOWN_ACTION, Call, Context
from penstock.frontend.aws.idempotency import REPEATABLE, Replies, outlives, token_of
from penstock.frontend.aws.incoming import (
    authenticate,
    authenticate_again,
    decode,
    decode_in_steps,
    has_action,
    identify,
    name_action,
)
from penstock.frontend.aws.protocols import JSON, REQUEST_ID, Codec, codec_of
from penstock.frontend.facts.audit import CANCELLED, AuditTrail
from penstock.frontend.facts.usage import UsageTable
from penstock.model.errors import PenstockError, Throttled, TopicNotFound
from penstock.model.limits import TENANT_HELD_PERCENT, WHOLE_BODY_BYTES_MAX
from penstock.model.names import is_internal
from penstock.model.quotas import SharedLimit
from penstock.net.http.exchange import HttpReply, HttpRequest
from penstock.net.slices import hash_in_steps, in_slices
from penstock.telemetry import families
from penstock.telemetry.families import Family, Sample
from penstock.wire.aws.faults import Fault, fault
from penstock.wire.aws.sns.notification import CERTIFICATE_PATH

log = logging.getLogger("penstock.frontend")

Stage = Callable[[Call], None]

# The order matters: a body is decoded only for a verified caller, and only an authorized caller
# learns whether the request is valid.
STAGES: Final[tuple[Stage, ...]] = (identify, authenticate, decode, authorize, throttle)
# Actions that wait for messages: the caller is checked again afterwards.
WAITING: Final = frozenset(("ReceiveMessage",))

OK: Final = "OK"
HELD_MAX: Final = 10_000  # delayed rejections of rate limits; others are sent at once
OWN_API: Final = "own"
RESET: Final = "penstock:Reset"
PREFIXES = ("/_penstock/", "/moto-api/")
_RESETS = ("/_penstock/reset", "/moto-api/reset")
# Content types that a web page may send to another origin without a preflight request (CORS).
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
RETRY_AFTER_MS: Final = "x-amz-retry-after"  # newer SDKs use it; Retry-After is in seconds


@dataclass(eq=False, kw_only=True)
class Frontend(Context):
    perf: Callable[[], float]  # a monotonic clock in seconds
    usage: UsageTable | None = None
    audit: AuditTrail | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.meter = self._metering = Metering(self.meter, self.usage)
        self._replies = Replies()
        account = self.config.account
        self._held = SharedLimit(HELD_MAX, TENANT_HELD_PERCENT, own_account=account)
        self.outlives = outlives  # for the listener

    def samples(self) -> Iterator[tuple[Family, Sample]]:
        rejected = dict(self.throttler.rejected)
        if self.quotas is not None:
            rejected.update(self.quotas.all_rejected())
        counts: Counter[tuple[str, str]] = Counter()
        for (account, limit), count in rejected.items():
            counts["own" if account == self.config.account else "other", limit] += count
        for labels, count in sorted(counts.items()):
            yield families.FRONTEND_THROTTLED, (labels, count)
        yield families.FRONTEND_REPEATED, ((), self._replies.repeated_count)

    async def handle(self, http: HttpRequest) -> HttpReply:
        if http.path.startswith(PREFIXES) or not has_action(http):
            return await self._handle_path(http)
        started = self.perf()
        call, code, held_ms = Call(self, http, codec_of(http)), OK, 0
        audit: AuditTrail | None = None  # set if the request is recorded, whatever its outcome
        try:
            try:
                if len(http.body) <= WHOLE_BODY_BYTES_MAX:
                    for stage in STAGES:
                        stage(call)
                else:
                    await _admit_large(call)
            except Postponed as postponed:
                await _authorize_in_thread(call, postponed)
                throttle(call)
            action = call.action
            if action.permission in AUDITED and self.audit is not None:
                await self.audit.admit()
                audit = self.audit
            token = token_of(call, action.name) if action.name in REPEATABLE else None
            if token is None:
                result = await action.run(call, call.request)
            else:
                result = await self._replies.once(call, token, started)
            if action.name in WAITING:
                call.charged_at_ms = self.clock.mono_ms()
                if not call.caller.is_trusted:
                    authenticate_again(call)
                    try:
                        authorize(call)
                    except Postponed as postponed:
                        await _authorize_in_thread(call, postponed)
            if isinstance(result, HttpReply):
                reply = result  # a large reply, already encoded
            else:
                reply = call.codec.reply(action.name, result, http.request_id)
        except Exception as error:
            refusal = _fault_of(error, http, call.codec)
            code = refusal.code
            if call.action is UNKNOWN_ACTION:
                name_action(call)
            reply = call.codec.refusal(refusal, http.request_id)
            if isinstance(error, Throttled):
                reply.headers += ((RETRY_AFTER_MS, str(error.retry_after_ms)),)
                held_ms = error.held_ms
        except asyncio.CancelledError:
            if audit is not None:
                audit.add(entry_of(call, CANCELLED))
            raise
        metering = self._metering
        seconds = self.perf() - started
        if call.bytes_bucket is not None and code is OK:
            size_bytes = metering.bytes_in + metering.bytes_out
            call.bytes_bucket.add(size_bytes, now_ms=call.charged_at_ms)
        self.meter.request(call.action.name, call.codec.name, code, seconds)
        if code is OK:
            metering.answered(call, seconds)
        else:
            metering.rejected(call, code)
        if audit is not None and (code is OK or call.account):
            audit.add(entry_of(call, "" if code is OK else code))
        elif code is not OK and self.audit is not None and (code in DENIALS or audit is not None):
            # Denials are limited, and so are links with bad tokens, which need no signature.
            self.audit.deny(entry_of(call, code, is_denial=True))
        if held_ms:
            held, account = self._held, call.caller.account
            if not (held.is_full() or held.is_used_up(account)):
                with held.holding(account, "delayed replies"):
                    await asyncio.sleep(held_ms / 1_000)
        return reply

    def forbid(self, http: HttpRequest, reason: str) -> HttpReply:
        """Count a request from a web page, which is not allowed, and return the error reply."""
        refusal = fault("AccessDenied", reason)
        codec = codec_of(http)
        self.meter.request(UNKNOWN_ACTION.name, codec.name, refusal.code, 0.0)
        return codec.refusal(refusal, http.request_id)

    async def _handle_path(self, http: HttpRequest) -> HttpReply:
        started = self.perf()
        try:
            reply = await _reply_to(self, http)
        except Exception as error:
            refusal = _fault_of(error, http, JSON)
            reply = _json(refusal.status, error=refusal.message)
        reply.headers = ((REQUEST_ID, http.request_id), *reply.headers)
        code = OK if reply.status < 400 else str(reply.status)
        self.meter.request(OWN_API, "http", code, self.perf() - started)
        if http.method == "POST" and reply.status == 200 and self.audit is not None:
            # A reset needs no authentication, so the caller is unknown.
            facts = {"source_ip": http.peer, "request_id": http.request_id}
            await self.audit.note(RESET, caller=None, **facts)
        return reply


async def _admit_large(call: Call) -> None:
    identify(call)
    if call.context.config.is_auth_on and call.scope is not None:
        call.body_hash = await in_slices(hash_in_steps(call.http.body))
    authenticate(call)
    await in_slices(decode_in_steps(call))
    authorize(call)
    throttle(call)


async def _authorize_in_thread(call: Call, postponed: Postponed) -> None:
    decisions = call.context.decisions
    evaluated: set[Question] = set()
    while postponed.question not in evaluated:
        evaluated.add(postponed.question)
        asks, decision = await asyncio.to_thread(postponed.evaluate)
        decisions.keep(postponed, asks, decision)
        try:
            authorize(call)
            return
        except Postponed as another:
            postponed = another
    # The decision depends on the circumstances, or the policies have changed since.
    with decisions.at_once():
        authorize(call)


def _fault_of(error: Exception, http: HttpRequest, codec: Codec) -> Fault:
    if isinstance(error, Fault):
        return error
    if isinstance(error, PenstockError):
        return codec.fault_of(error)
    request_id = http.request_id
    log.error("request failed", exc_info=error, extra={"request_id": request_id, "path": http.path})
    text = f"The server failed to answer this request. Request id: {request_id}"
    return codec.unexpected(text)


# ── Paths besides actions, without a signature: health, information about the node, and a reset
# that deletes all queues, for test suites ──


async def _reply_to(context: Context, http: HttpRequest) -> HttpReply:
    path = http.path.rstrip("/")
    is_read = http.method in ("GET", "HEAD")
    if http.path == "/":
        return _json(
            200,
            service="Penstock",
            version=__version__,
            hint="This is an SQS endpoint: point an SQS client's endpoint URL here.",
            health="/_penstock/health",
        )
    if http.path.startswith(CERTIFICATE_PATH) and is_read:
        name = http.path.removeprefix(CERTIFICATE_PATH).removesuffix(".pem")
        certificate = context.certificate_of(name)
        if certificate is not None:
            return HttpReply(200, certificate.encode(), "application/x-pem-file")
    if not http.path.startswith(PREFIXES):
        # For example the URL of a queue in a browser: the reply of SQS.
        return HttpReply(404, b"<UnknownOperationException/>\n", "text/xml")
    if path in _RESETS:
        return await _reset(context, http)
    if path == "/_penstock/health" and is_read:
        return _json(200, status="ok")
    if path == "/_penstock/info" and is_read:
        config = context.config
        return _json(
            200,
            version=__version__,
            admin=config.admin_url() if callable(config.admin_url) else config.admin_url,
            kafka=config.kafka_url,
            account=config.account,
            region=config.region,
        )
    return _json(404, error="Unknown path.")


async def _reset(context: Context, http: HttpRequest) -> HttpReply:
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not context.config.is_dev or context.config.is_auth_on:
        return _json(403, error="Reset is available in development mode only.")
    if http.method != "POST":
        return _json(405, error="Reset needs the method POST.")
    if "origin" in http.headers:
        return _json(403, error="Reset rejects requests of web pages (header Origin).")
    if kind in _FORMS:
        text = f"Reset rejects content type {kind}: send no body, as with curl -X POST."
        return _json(415, error=text)
    now_ms, count = context.clock.wall_ms(), 0
    for topic in tuple(context.everything.all_topics()):
        if topic.deleted_at_ms is not None or (is_internal(topic.name) and not topic.is_queue):
            continue
        with suppress(TopicNotFound):  # deleted by another request since
            await context.everything.delete(topic.account, topic.region, topic.name, now_ms=now_ms)
            count += 1
    await context.subscriptions.delete_all()
    if context.books is not None:
        await context.books.delete_all()
    context.reset_at_ms = context.clock.wall_ms()  # deleted names may be used again
    context.purges.clear()
    return _json(200, status="ok", deleted_queues=count)


def _json(status: int, /, **fields: Any) -> HttpReply:
    return HttpReply(status, msgspec.json.encode(fields), "application/json")
