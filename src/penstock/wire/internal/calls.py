"""The type of a call between nodes.

A call has a number that never changes its meaning, a type for the request and one for the reply,
and a flag that states whether it may be repeated if its outcome is unknown. Each role defines its
calls: 0x0100 to 0x01FF belong to the metadata role, and 0 is the ping of a connection. Payloads are
``array_like`` structs: a field with a default may be added at the end, and nothing else may change.

``Caller`` makes calls and ``CallHandlers`` serves them; ``calls/internal`` connects the two."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from penstock.model.errors import InvalidRequest, PenstockError
from penstock.wire.internal.faults import MalformedFrame

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

NUMBER_MAX: Final = 0xFFFF

encode = msgspec.msgpack.Encoder().encode  # a request or a reply


class Call(Generic[Q, R]):
    """One type of call. ``errors`` are the errors that it may raise besides the common errors."""

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
        """Decode a request, or raise InvalidRequest, which does not end the connection."""
        try:
            return self._decode_request(payload)
        except (msgspec.DecodeError, ValueError) as error:
            raise InvalidRequest(f"The {self.name} request cannot be decoded: {error}") from error

    def decode_reply(self, payload: bytes | memoryview) -> R:
        try:
            return self._decode_reply(payload)
        except (msgspec.DecodeError, ValueError) as error:
            raise MalformedFrame(f"the {self.name} reply cannot be decoded: {error}") from error


class Nothing(msgspec.Struct, frozen=True, array_like=True): ...


# Every listener replies to pings, which distinguish a quiet connection from a dead one.
PING: Final = Call(0, "ping", Nothing, Nothing, is_idempotent=True)


class CallerInfo(NamedTuple):
    node_id: str  # the caller's id, which its certificate confirms if there is one
    timeout_ms: int  # time left when the call arrived; then the handler is cancelled


# A handler returns the reply, or a coroutine if the reply does not come from memory.
Handler = Callable[[Q, CallerInfo], R | Coroutine[Any, Any, R]]


class CallHandlers:
    """The handlers of the calls that a node serves. Roles add them before the node listens."""

    def __init__(self) -> None:
        self._by_number: dict[int, tuple[Call[Any, Any], Handler[Any, Any]]] = {}

    def add(self, call: Call[Q, R], handler: Handler[Q, R]) -> None:
        assert call.number not in self._by_number, f"{call} has two handlers"
        assert call.number != PING.number, "the listener replies to pings itself"
        self._by_number[call.number] = (call, handler)

    def find(self, number: int) -> tuple[Call[Any, Any], Handler[Any, Any]] | None:
        return self._by_number.get(number)


class Caller(Protocol):
    async def call(self, call: Call[Q, R], request: Q, *, timeout_ms: int) -> R:
        """Make a call and return the reply. Raises the error that the other node raised. Raises
        Unreachable, OutcomeUnknown or DeadlineExceeded if there is no reply, and Throttled if too
        many calls are waiting. Cancelling the call cancels it at the other node too."""
