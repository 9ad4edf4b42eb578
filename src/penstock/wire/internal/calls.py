"""What a call between nodes is, who makes one and who answers it.

A call has a number that never changes its meaning, a type for each direction, and a word on
whether it may be made again when nobody knows what became of the first time. Each role lists its
own: numbers 0x0100-0x01FF are the metadata role's; 0 is the connection's own ping. Payloads are
``array_like`` structs: a field may be added at the end with a default, and nothing else.

``Caller`` and ``Answers`` are the two ends as a role sees them. Behind them are sockets in a
cluster (``net/internal``), and nothing that a role would know of.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from penstock.model.errors import InvalidRequest, PenstockError
from penstock.wire.internal.faults import MalformedFrame

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

NUMBER_MAX: Final = 0xFFFF

_encode = msgspec.msgpack.Encoder().encode


class Call(Generic[Q, R]):
    """One kind of call. ``errors``: those it may raise beside the ones every call may."""

    __slots__ = ("_decode_reply", "_decode_request", "errors", "is_idempotent", "name", "number")

    def __init__(
        self,
        number: int,
        name: str,
        request: type[Q],
        reply: type[R],
        *,
        is_idempotent: bool,
        errors: tuple[type[PenstockError], ...] = (),
    ) -> None:
        assert 0 <= number <= NUMBER_MAX
        self.number = number
        self.name = name
        self.is_idempotent = is_idempotent
        self.errors: Mapping[str, type[PenstockError]] = {one.__name__: one for one in errors}
        self._decode_request = msgspec.msgpack.Decoder(request).decode
        self._decode_reply = msgspec.msgpack.Decoder(reply).decode

    def __repr__(self) -> str:
        return f"<call {self.name}>"

    def decode_request(self, payload: bytes | memoryview) -> Q:
        """Raises InvalidRequest: the frame was whole, so the connection goes on."""
        try:
            return self._decode_request(payload)
        except (msgspec.DecodeError, ValueError) as error:
            raise InvalidRequest(f"{self.name}: an unreadable request: {error}") from error

    def decode_reply(self, payload: bytes | memoryview) -> R:
        """Raises MalformedFrame."""
        try:
            return self._decode_reply(payload)
        except (msgspec.DecodeError, ValueError) as error:
            raise MalformedFrame(f"{self.name}: an unreadable reply: {error}") from error


def encode(payload: msgspec.Struct) -> bytes:
    return _encode(payload)


class Nothing(msgspec.Struct, frozen=True, array_like=True):
    """A payload that says nothing."""


# Answered by every listener itself: by it a caller knows a quiet connection from a dead one.
PING: Final = Call(0, "ping", Nothing, Nothing, is_idempotent=True)


class Asked(NamedTuple):
    """What an answering role knows of a call beside the request."""

    node_id: str  # who asks, as its certificate has it where there are certificates
    timeout_ms: int  # left when it arrived; an answer under way is cancelled when they are over


# The reply at once, or what to await for it: most questions are answered from memory, and a task
# for each of those would cost more than the answer.
Handler = Callable[[Q, Asked], R | Coroutine[Any, Any, R]]


class Answers:
    """Which calls a node answers, and how. Filled by its roles before it listens."""

    def __init__(self) -> None:
        self._by_number: dict[int, tuple[Call[Any, Any], Handler[Any, Any]]] = {}

    def add(self, call: Call[Q, R], handler: Handler[Q, R]) -> None:
        assert call.number not in self._by_number, f"{call} is answered once"
        assert call.number != PING.number, "the listener's own"
        self._by_number[call.number] = (call, handler)

    def find(self, number: int) -> tuple[Call[Any, Any], Handler[Any, Any]] | None:
        return self._by_number.get(number)


class Caller(Protocol):
    """Another node, or any of several that answer alike."""

    async def call(self, call: Call[Q, R], request: Q, *, timeout_ms: int) -> R:
        """Raises what the other side raised; Unreachable, OutcomeUnknown or DeadlineExceeded when
        there was no answer; Throttled when too many wait for that node already. A call that is
        cancelled here is cancelled there."""
        ...
