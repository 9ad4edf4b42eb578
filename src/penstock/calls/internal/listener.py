"""Serves the calls of other nodes.

Replies are sent in the order in which they are ready. A call that is served from memory needs no
task. The hello states the maximum number of calls in progress. The listener rejects further calls,
which the caller should have queued. When a connection is lost, its calls are cancelled."""

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from types import CoroutineType
from typing import Any, cast

from penstock.calls.internal.connection import NodeConnection, NodeEnd
from penstock.model.errors import Draining, InvalidRequest, PenstockError, Throttled
from penstock.net.frames import Chunks
from penstock.net.listener import Listener, Peer
from penstock.wire.internal import faults
from penstock.wire.internal.calls import PING, Call, CallerInfo, CallHandlers, Nothing, encode
from penstock.wire.internal.frame import Header, Hello, Kind, Side

log = logging.getLogger(__name__)

_PONG = encode(Nothing())
RETRY_MS = 50  # for a caller with too many calls in progress
# A cancelled call counts on this node until its task has ended, but no longer at its caller.
IN_FLIGHT_SLACK = 1.25
REFUSAL_SECONDS = 10.0


class InternalListener(Listener):
    """A listener for other nodes. With TLS, client certificates are required."""

    def __init__(self, answers: CallHandlers, end: NodeEnd) -> None:
        super().__init__(connections_max=end.config.connections_max)
        self.answers = answers
        self.end = end
        self.chunks = Chunks()
        self._refusal_logged_at = self.now - REFUSAL_SECONDS

    def make_connection(self) -> Peer:
        return _Served(self)

    def note_refusal(self, error: faults.HelloRefused) -> None:
        """Log a rejected hello, but at most once in REFUSAL_SECONDS, because the caller retries."""
        if self.now - self._refusal_logged_at >= REFUSAL_SECONDS:
            self._refusal_logged_at = self.now
            log.warning("handshake of another node rejected", extra={"reason": str(error)})


@dataclass(slots=True, eq=False)
class _Running:
    call: Call[Any, Any]
    task: "asyncio.Task[Any]"
    deadline: float
    has_caller: bool = True  # False: cancelled, late, or the connection is lost


class _Served(NodeConnection):
    side = Side.ANSWERER

    def __init__(self, listener: InternalListener) -> None:
        super().__init__(listener.end, listener.chunks)
        self._listener = listener
        self._answers = listener.answers
        self._running: dict[int, _Running] = {}
        self._in_flight_max = int(listener.end.config.in_flight_max * IN_FLIGHT_SLACK)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._listener.opened(self):
            cast(asyncio.Transport, transport).abort()

    def greeted(self, hello: Hello) -> None:
        self._node_id = hello.node_id
        self.send_hello()

    def refuse(self, error: faults.HelloRefused) -> None:
        super().refuse(error)
        self._listener.note_refusal(error)

    def lost(self, _reason: str) -> None:
        self._listener.closed(self)
        for one in self._running.values():
            one.has_caller = False
            one.task.cancel()

    def arrived(self, header: Header, payload: memoryview) -> None:
        kind = header.kind
        if kind is Kind.REQUEST:
            if header.call == PING.number:
                self.send(Kind.REPLY, PING.number, header.request_id, _PONG)
            else:
                self._begin(header, payload)
        elif kind is Kind.CANCEL:
            one = self._running.get(header.request_id)
            if one is not None:
                one.has_caller = False
                one.task.cancel()
        else:
            raise faults.MalformedFrame(f"the caller sent an unexpected {kind.name} frame")

    def _begin(self, header: Header, payload: memoryview) -> None:
        request_id = header.request_id
        if request_id in self._running:
            raise faults.MalformedFrame(f"the request id {request_id} is already in use")
        try:
            if self._listener.is_draining:
                raise Draining("The node is stopping.")
            if len(self._running) >= self._in_flight_max:
                raise Throttled(
                    "This node has too many calls in progress.", retry_after_ms=RETRY_MS
                )
            if header.deadline_ms == 0:
                raise faults.DeadlineExceeded("The deadline had passed when the call arrived.")
            found = self._answers.find(header.call)
            if found is None:
                raise InvalidRequest(f"This node does not serve call {header.call:#06x}.")
            call, handler = found
            result = handler(
                call.decode_request(payload), CallerInfo(self._node_id, header.deadline_ms)
            )
        except Exception as error:
            self._fail(header.call, request_id, error)
            return
        if not isinstance(result, CoroutineType):
            self._reply(call, request_id, result)
            return
        task = self._loop.create_task(result, name=call.name)
        deadline = self._loop.time() + header.deadline_ms / 1_000
        self._running[request_id] = _Running(call, task, deadline)
        task.add_done_callback(partial(self._ended, request_id))
        self.arm()

    def _ended(self, request_id: int, task: "asyncio.Task[Any]") -> None:
        one = self._running.pop(request_id)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(one.call.number, request_id, error, has_caller=one.has_caller)
        elif one.has_caller and task.cancelled():
            self._fail(one.call.number, request_id, Draining("The node is stopping."))
        elif one.has_caller:
            self._reply(one.call, request_id, task.result())
        if self._listener.is_draining and not self._running:
            self._close_soon()

    def expire(self, now: float) -> bool:
        for request_id, one in self._running.items():
            if now >= one.deadline and one.has_caller:
                late = faults.DeadlineExceeded(f"{one.call.name} exceeded its deadline.")
                self._fail(one.call.number, request_id, late)
                one.has_caller = False
                one.task.cancel()
            elif now >= one.deadline and not one.task.cancelling():
                one.task.cancel()
        return bool(self._running)

    def _reply(self, call: Call[Any, Any], request_id: int, reply: Any) -> None:
        if self.is_ending:
            return
        try:
            payload = encode(reply)
        except Exception as error:  # a bug: the reply has another type than the call declares
            self._fail(call.number, request_id, error)
            return
        if self.fits(payload):
            self.send(Kind.REPLY, call.number, request_id, payload)
        else:
            too_long = InvalidRequest(
                f"The {call.name} reply of {len(payload):,} bytes is too large for the caller."
            )
            self._fail(call.number, request_id, too_long)

    def _fail(
        self, number: int, request_id: int, error: BaseException, *, has_caller: bool = True
    ) -> None:
        if not isinstance(error, PenstockError):
            self._loop.call_exception_handler(
                {"message": f"the call {number:#06x} of another node failed", "exception": error}
            )
        if has_caller and not self.is_ending:
            self.send(Kind.ERROR, number, request_id, faults.encode_failure(error))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.is_ending:
            self._transport.resume_reading()

    def close_if_idle(self) -> None:
        if not self._running:
            self._close_soon()

    def _close_soon(self) -> None:
        self._loop.call_soon(self._transport.close)
