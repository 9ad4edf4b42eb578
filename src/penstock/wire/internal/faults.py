"""The errors of connections between nodes, and the encoding of any PenstockError.

An error is sent as the names of its class and base classes, its text and its fields. The other node
raises the first of these classes that it knows, so an older node raises a new kind of Conflict as a
Conflict. An error that is not a PenstockError is a bug: the node where it happened logs it, and the
caller only learns that the call failed."""

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.model import errors
from penstock.model.errors import Overloaded, PenstockError

TEXT_CHARS_MAX: Final = 2_000
FIELDS_MAX: Final = 16
INT_MAX: Final = 2**63 - 1

Scalar = bool | int | float | str | None


class Unreachable(Overloaded):
    """There is no connection to the node, so the call was not carried out."""

    public = "Another node is not reachable; retry."


class OutcomeUnknown(Unreachable):
    """The connection was lost after the call was sent, so the outcome is unknown."""

    public = (
        "Outcome unknown: the connection to another node was lost. Retry only if the request is"
        " idempotent."
    )


class DeadlineExceeded(Overloaded):
    """The node did not reply in time, so the outcome is unknown."""

    public = (
        "Outcome unknown: another node did not reply in time. Retry only if the request is"
        " idempotent."
    )


class PeerFailed(PenstockError): ...


class MalformedFrame(PenstockError): ...


class HelloRefused(PenstockError):
    """The handshake failed because of the other node's cluster, version, certificate or proof."""


class Failure(msgspec.Struct, frozen=True, array_like=True):
    names: tuple[str, ...]  # the class, then its base classes
    text: str
    fields: dict[str, Scalar] = {}


_HERE: Final = (
    *(Unreachable, OutcomeUnknown, DeadlineExceeded),
    *(PeerFailed, MalformedFrame, HelloRefused),
)
_KNOWN: Final[Mapping[str, type[PenstockError]]] = {
    one.__name__: one
    for one in (*vars(errors).values(), *_HERE)
    if isinstance(one, type) and issubclass(one, PenstockError)
}

_decoder = msgspec.msgpack.Decoder(Failure)
_encode = msgspec.msgpack.Encoder().encode


def encode_failure(error: BaseException) -> bytes:
    """Encode any error. This must not fail, because then the caller would get no reply."""
    if not isinstance(error, PenstockError):
        return _encode(Failure((PeerFailed.__name__,), "The node failed; see its log."))
    names = tuple(one.__name__ for one in type(error).__mro__ if issubclass(one, PenstockError))
    fields: dict[str, Scalar] = {}
    for name, value in vars(error).items():
        if name.startswith("_") or len(fields) == FIELDS_MAX:
            continue
        if isinstance(value, str):
            fields[name] = _text(value)
        elif value is None or (isinstance(value, int | float) and abs(value) <= INT_MAX):
            fields[name] = value
    return _encode(Failure(names, _text(str(error)), fields))


def _text(text: str) -> str:
    return text[:TEXT_CHARS_MAX].encode("utf-8", "replace").decode("utf-8")


def decode_failure(
    payload: bytes | memoryview, *, more: Mapping[str, type[PenstockError]]
) -> PenstockError:
    """Return the error in a payload. ``more`` has additional error classes by name."""
    try:
        failure = _decoder.decode(payload)
    except (msgspec.DecodeError, ValueError) as error:
        raise MalformedFrame(f"the error in a reply cannot be decoded: {error}") from error
    known: type[PenstockError] = PenstockError
    for name in failure.names:
        found = more.get(name) or _KNOWN.get(name)
        if found is not None:
            known = found
            break
    # The constructor is not called, because its arguments were not sent.
    raised = known.__new__(known, failure.text)
    for name, value in failure.fields.items():
        if not name.startswith("_") and not hasattr(BaseException, name):
            setattr(raised, name, value)
    return raised
