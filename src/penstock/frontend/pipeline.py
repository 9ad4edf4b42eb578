"""Start reading here. One HTTP request in, one HTTP reply out, through a fixed list of stages.

A stage looks at a call, adds what it found out or raises; it never answers. After the last one the
action runs. Whatever is raised on the way becomes a fault in the protocol the client speaks: model
errors by wire's table, anything unexpected as InternalFailure, which is logged here once with its
traceback and shows the client nothing but the request id to quote.

Nothing is logged per request; the meter is called once per request."""

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.frontend import own_paths
from penstock.frontend.authenticate import authenticate
from penstock.frontend.call import Call
from penstock.frontend.context import Context, FrontendConfig, Meter
from penstock.frontend.decode import decode, has_action
from penstock.frontend.protocols import REQUEST_ID, codec_of
from penstock.frontend.queue_catalog import QueueCatalog
from penstock.model.errors import PenstockError
from penstock.model.ports import Backend, Catalog, Clock
from penstock.net.exchange import HttpReply, HttpRequest
from penstock.wire.aws.faults import Fault, fault, fault_of

__all__ = ["STAGES", "Frontend", "FrontendConfig", "Meter"]

log = logging.getLogger("penstock.frontend")

Stage = Callable[[Context, Call], None]

# The order is the design: what is asked, then who asks. Later stages find their place here.
STAGES: Final[tuple[Stage, ...]] = (decode, authenticate)

OK = "OK"
UNKNOWN_API = "unknown"
OWN_API = "own"


class Frontend:
    def __init__(
        self,
        *,
        backend: Backend,
        catalog: Catalog,
        clock: Clock,
        config: FrontendConfig,
        meter: Meter,
        entropy: Callable[[int], bytes],
        perf: Callable[[], float],
    ) -> None:
        """``entropy`` gives that many random bytes; ``perf`` is a monotonic clock in seconds."""
        queues = QueueCatalog(catalog)
        self._context = Context(backend, queues, clock, config, meter, entropy, everything=catalog)
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
        try:
            for stage in STAGES:
                stage(context, call)
            action = call.action
            assert action is not None, "decode found an action or raised"
            answer = await action.run(context, call, call.asked)
            reply = call.codec.reply(action.name, answer, request.request_id)
        except Exception as error:
            refusal = _refusal(error, request)
            code = refusal.code
            reply = call.codec.refusal(refusal, request.request_id)
        api = UNKNOWN_API if call.action is None else call.action.name
        self._meter.request(api, call.codec.name, code, self._perf() - started)
        return reply

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
