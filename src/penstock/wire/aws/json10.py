"""AWS JSON 1.0: the request style of every current SDK.

A body is decoded directly into the operation's typed request, by a decoder built once. Numbers may
be strings, unknown members are ignored, null means absent. Nesting is bounded by the decoder's
recursion limit, which a body of a million brackets reaches long before memory is short.

Authorization, and whether the fields make sense together, are checked by the frontend."""

from collections.abc import Generator, Mapping

import msgspec

from penstock.wire.aws.faults import Fault, fault
from penstock.wire.aws.large_json import decode_large
from penstock.wire.aws.shapes import OPERATIONS, Operation, Reply, Request

CONTENT_TYPE = "application/x-amz-json-1.0"
TARGET_PREFIX = "AmazonSQS."

Headers = tuple[tuple[str, str], ...]

# strict=False: "30" is accepted for 30. A number is never turned into a string.
_DECODERS: Mapping[str, msgspec.json.Decoder[Request]] = {
    operation.name: msgspec.json.Decoder(operation.request, strict=False)
    for operation in OPERATIONS.values()
}
_encode = msgspec.json.Encoder().encode
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _FaultBody(msgspec.Struct):
    type: str = msgspec.field(name="__type")
    message: str


def unknown_operation(target: str) -> Fault:
    """Return the error for an ``X-Amz-Target`` header that names no operation of SQS."""
    text = "The X-Amz-Target header does not name an SQS operation."
    if target.startswith(TARGET_PREFIX):
        name = target.removeprefix(TARGET_PREFIX)
        text = f"The operation {name[:80]} is not known to this endpoint."
    return fault("UnknownOperationException", text)


def decode(operation: Operation, body: bytes) -> Request:
    """Return the typed request in ``body``; an empty body is an empty object. Raises a
    SerializationException fault that states what is wrong and where."""
    try:
        return _DECODERS[operation.name].decode(body or b"{}")
    except _UNREADABLE as error:
        raise _unreadable(error) from None


def decode_in_steps(
    operation: Operation, body: bytes, token: str
) -> Generator[None, None, Request]:
    """``decode`` for a large body, which yields after every few milliseconds of work. ``token`` is
    random text (``large_json.py``)."""
    try:
        found = yield from decode_large(body, token)
        return msgspec.convert(found, operation.request, strict=False)
    except _UNREADABLE as error:
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> Fault:
    if isinstance(error, RecursionError):
        return fault("SerializationException", "The body is nested too deeply.")
    if isinstance(error, msgspec.ValidationError):
        return fault("SerializationException", str(error))
    return fault("SerializationException", f"The body is not valid JSON: {error}")


def encode_reply(reply: Reply | None) -> bytes:
    return b"{}" if reply is None else _encode(reply)


def encode_fault(refusal: Fault) -> tuple[bytes, Headers]:
    """Return body and headers. Clients made for the query protocol look for the code in
    ``x-amzn-query-error``: without it one SDK crashes and another reports a different code."""
    blame = "Sender" if refusal.is_sender else "Receiver"
    headers: Headers = (("x-amzn-query-error", f"{refusal.code};{blame}"),)
    if refusal.retry_after_s is not None:
        headers += (("retry-after", str(refusal.retry_after_s)),)
    # The text may echo a rejected value, and half a surrogate pair must not turn a 400 into a 500.
    message = refusal.message.encode(errors="replace").decode()
    return _encode(_FaultBody(type=f"com.amazonaws.sqs#{refusal.shape}", message=message)), headers
