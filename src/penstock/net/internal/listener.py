"""Answers the calls of other nodes.

A connection's requests are answered in whatever order their answers come. One that is answered
from memory never becomes a task. More at once than the greeting allowed are refused one by one, so
that nothing waits in a queue here: the caller has one. A node that goes away takes its questions
with it: what was being done for them is cancelled.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Any, cast

from penstock.model.errors import Draining, InvalidRequest, PenstockError, Throttled
from penstock.model.levels import Levels
from penstock.net.frames import Chunks
from penstock.net.internal.certificate import PeerCheck, name_in_certificate
from penstock.net.internal.wire import NO_LEVELS, InternalConfig, Wire, own_hello
from penstock.net.listener import Listener, Peer
from penstock.wire.internal.calls import PING, Answers, Asked, Call, Nothing, encode
from penstock.wire.internal.faults import (
    DeadlineExceeded,
    HelloRefused,
    MalformedFrame,
    encode_failure,
)
from penstock.wire.internal.frame import Header, Hello, Kind
from penstock.wire.internal.proof import Side

log = logging.getLogger(__name__)

_PONG = encode(Nothing())
RETRY_MS = 50  # for a caller that asks more at once than it may
# A call that was cancelled counts until it has come to its end here, and no longer for its caller.
IN_FLIGHT_SLACK = 1.25
REFUSAL_SECONDS = 10.0


class InternalListener(Listener):
    def __init__(
        self,
        answers: Answers,
        *,
        node_id: str,
        cluster_id: str,
        features: tuple[str, ...] = (),
        levels: Levels = NO_LEVELS,
        config: InternalConfig | None = None,
        check_peer: PeerCheck = name_in_certificate,
        check_hello: Callable[[Hello], None] = lambda _hello: None,
        secret: bytes | None = None,
    ) -> None:
        """With TLS a context that asks for client certificates goes into ``start``; then each
        caller's id must pass ``check_peer``. ``check_hello``: raises HelloRefused for a caller that
        says of itself what does not fit. ``secret``: every caller must prove that it knows it."""
        self.config = config or InternalConfig()
        super().__init__(connections_max=self.config.connections_max)
        self.answers = answers
        self.check_peer = check_peer
        self.check_hello = check_hello
        self.secret = secret
        self.own = own_hello(
            node_id=node_id,
            cluster_id=cluster_id,
            features=features,
            levels=levels,
            config=self.config,
        )
        self.chunks = Chunks()
        self._refusal_told_at = self.now - REFUSAL_SECONDS

    def make_connection(self) -> Peer:
        return _Served(self)

    def note_refusal(self, error: HelloRefused) -> None:
        """Now and then: who is refused comes again, and anybody can be refused."""
        if self.now - self._refusal_told_at >= REFUSAL_SECONDS:
            self._refusal_told_at = self.now
            log.warning("a node was refused", extra={"why": str(error)})


class _UnderWay:
    __slots__ = ("call", "deadline", "has_answer", "task")

    def __init__(
        self, call: Call[Any, Any], task: "asyncio.Task[Any]", *, deadline: float, has_answer: bool
    ) -> None:
        self.call = call
        self.task = task
        self.deadline = deadline
        self.has_answer = has_answer  # somebody waits for it


class _Served(Wire):
    side = Side.ANSWERER

    def __init__(self, listener: InternalListener) -> None:
        super().__init__(
            listener.own,
            config=listener.config,
            chunks=listener.chunks,
            check_peer=listener.check_peer,
            secret=listener.secret,
        )
        self._listener = listener
        self._answers = listener.answers
        self._under_way: dict[int, _UnderWay] = {}
        self._in_flight_max = int(listener.config.in_flight_max * IN_FLIGHT_SLACK)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._listener.opened(self):
            cast(asyncio.Transport, transport).abort()

    def check_other(self, hello: Hello) -> None:
        self._listener.check_hello(hello)

    def greeted(self, hello: Hello) -> None:
        self._node_id = hello.node_id
        self.send_hello()

    def refuse(self, error: HelloRefused) -> None:
        super().refuse(error)
        self._listener.note_refusal(error)

    def lost(self, _why: str) -> None:
        self._listener.closed(self)
        for one in self._under_way.values():
            one.has_answer = False
            one.task.cancel()

    # ── Requests ─────────────────────────────────────────────────────────────────────────────

    def arrived(self, header: Header, payload: memoryview) -> None:
        kind = header.kind
        if kind is Kind.REQUEST or kind is Kind.ONE_WAY:
            if header.call == PING.number:
                self.send(Kind.REPLY, PING.number, header.request_id, _PONG)
            else:
                self._begin(header, payload)
        elif kind is Kind.CANCEL:
            one = self._under_way.get(header.request_id)
            if one is not None:
                one.has_answer = False
                one.task.cancel()
        else:
            raise MalformedFrame(f"a {kind.name} frame from a caller")

    def _begin(self, header: Header, payload: memoryview) -> None:
        request_id, has_answer = header.request_id, header.kind is Kind.REQUEST
        if request_id in self._under_way:
            raise MalformedFrame(f"request id {request_id} is under way already")
        try:
            if self._listener.is_draining:
                raise Draining("The node is about to stop.")
            if len(self._under_way) >= self._in_flight_max:
                raise Throttled("Too many calls at once.", retry_after_ms=RETRY_MS)
            if header.deadline_ms == 0:
                raise DeadlineExceeded("No time was left when the call arrived.")
            found = self._answers.find(header.call)
            if found is None:
                raise InvalidRequest(f"This node answers no call {header.call:#06x}.")
            call, handler = found
            result = handler(call.decode_request(payload), Asked(self._node_id, header.deadline_ms))
        except Exception as error:
            self._fail(header.call, request_id, error, has_answer=has_answer)
            return
        if isinstance(result, CoroutineType):
            self._follow(call, header, result, has_answer=has_answer)
        elif has_answer:
            self._reply(call, request_id, result)

    def _follow(
        self,
        call: Call[Any, Any],
        header: Header,
        coroutine: Coroutine[Any, Any, Any],
        *,
        has_answer: bool,
    ) -> None:
        task = self._loop.create_task(coroutine, name=call.name)
        deadline = self._loop.time() + header.deadline_ms / 1_000
        self._under_way[header.request_id] = _UnderWay(
            call, task, deadline=deadline, has_answer=has_answer
        )
        task.add_done_callback(self._ended(header.request_id))
        self.arm()

    def _ended(self, request_id: int) -> "Callable[[asyncio.Task[Any]], None]":
        def ended(task: "asyncio.Task[Any]") -> None:
            one = self._under_way.pop(request_id)
            number = one.call.number
            if task.cancelled():
                if one.has_answer:
                    stopping = Draining("The node is about to stop.")
                    self._fail(number, request_id, stopping, has_answer=True)
            elif (error := task.exception()) is not None:
                self._fail(number, request_id, error, has_answer=one.has_answer)
            elif one.has_answer:
                self._reply(one.call, request_id, task.result())
            if self._listener.is_draining and not self._under_way:
                self._close_soon()

        return ended

    def expire(self, now: float) -> bool:
        for request_id, one in self._under_way.items():
            if now >= one.deadline and one.has_answer:
                late = DeadlineExceeded(f"{one.call.name} took longer than it was given.")
                self._fail(one.call.number, request_id, late, has_answer=True)
                one.has_answer = False
                one.task.cancel()
            elif now >= one.deadline and not one.task.cancelling():
                one.task.cancel()
        return bool(self._under_way)

    # ── Answers ──────────────────────────────────────────────────────────────────────────────

    def _reply(self, call: Call[Any, Any], request_id: int, reply: Any) -> None:
        if self.is_ending:
            return
        try:
            payload = encode(reply)
        except Exception as error:  # ours: a reply of another type than the call's
            self._fail(call.number, request_id, error, has_answer=True)
            return
        if self.fits(payload):
            self.send(Kind.REPLY, call.number, request_id, payload)
        else:
            too_long = InvalidRequest(
                f"{call.name}: an answer of {len(payload)} bytes is more than you take."
            )
            self._fail(call.number, request_id, too_long, has_answer=True)

    def _fail(
        self, number: int, request_id: int, error: BaseException, *, has_answer: bool
    ) -> None:
        if not isinstance(error, PenstockError):
            self._loop.call_exception_handler(
                {"message": f"the call {number:#06x} of another node failed", "exception": error}
            )
        elif not has_answer and not self.is_ending:
            log.info("a call without an answer failed", extra={"call": number, "why": str(error)})
        if has_answer and not self.is_ending:
            self.send(Kind.ERROR, number, request_id, encode_failure(error))

    def pause_writing(self) -> None:
        """It gets no more answers until it reads those it has: nor may it ask."""
        super().pause_writing()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.is_ending:
            self._transport.resume_reading()

    # ── Ending ───────────────────────────────────────────────────────────────────────────────

    def close_if_idle(self) -> None:
        if not self._under_way:
            self._close_soon()

    def _close_soon(self) -> None:
        """Behind what is still to be written in this turn."""
        self._loop.call_soon(self._transport.close)
