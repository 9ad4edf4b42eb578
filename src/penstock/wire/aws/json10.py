"""AWS JSON 1.0, the protocol of every current SDK.

A body is decoded directly into the typed request of the operation, by a decoder built once. Numbers
may be strings, unknown members are ignored, and null means absent. The decoder's recursion limit
also limits the nesting: a body of a million brackets is rejected before it uses much memory.

A decoder cannot be interrupted, and may need a second for 8 MiB of JSON. So a large body is first
scanned, to limit the number of strings and the bytes outside of strings, and thus the lists and
maps that the decoder builds. Strings above 64 KiB are decoded in pieces: a token replaces each of
them while the other values are decoded. Generators yield None every few milliseconds, to let the
event loop do other work."""

import re
from collections.abc import Generator, Mapping
from typing import Any

import msgspec

from penstock.model import limits
from penstock.wire.aws.faults import Fault, Headers, fault
from penstock.wire.aws.shapes import OPERATIONS, Operation, Reply, Request

CONTENT_TYPE = "application/x-amz-json-1.0"
TARGET_PREFIX = "AmazonSQS."
STS_TARGET = "AWSSecurityTokenServiceV20110615.GetCallerIdentity"

# With strict=False, "30" is accepted for 30; a number is never turned into a string.
_DECODERS: Mapping[str, msgspec.json.Decoder[Request]] = {
    operation.name: msgspec.json.Decoder(operation.request, strict=False)
    for operation in OPERATIONS.values()
}
_encode = msgspec.json.Encoder().encode

PIECE_BYTES = 64 * limits.KIB
_QUOTE, _BACKSLASH = b'"', b"\\"
# Matches characters and escapes up to the size of a piece, and never ends inside an escape or
# between the two escapes of a surrogate pair.
_PIECE = re.compile(
    rb"(?:[^\\]{1,64}+|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u....|\\.){1,1024}+", re.DOTALL
)
_decode_text = msgspec.json.Decoder(str).decode
_decode_any = msgspec.json.Decoder().decode

Steps = Generator[None, None, Any]
Span = tuple[int, int]
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def unknown_operation(target: str) -> Fault:
    text = "The X-Amz-Target header does not name an SQS operation."
    if target.startswith(TARGET_PREFIX):
        name = target.removeprefix(TARGET_PREFIX)
        text = f"The operation {name[:80]} is not known to this endpoint."
    return fault("UnknownOperationException", text)


def decode(operation: Operation, body: bytes) -> Request:
    try:
        return _DECODERS[operation.name].decode(body or b"{}")
    except _UNREADABLE as error:
        raise _unreadable(error) from None


def decode_in_steps(
    operation: Operation, body: bytes, token: str
) -> Generator[None, None, Request]:
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
    """Return the body and headers of an error reply. The header ``x-amzn-query-error`` contains the
    code of the query protocol: without it, one SDK crashes and another reports a different code."""
    code = ("x-amzn-query-error", f"{refusal.code};{refusal.blame}")
    # The text may repeat a rejected value with half a surrogate pair, which cannot be encoded.
    message = refusal.message.encode(errors="replace").decode()
    body = {"__type": f"com.amazonaws.sqs#{refusal.shape}", "message": message}
    return _encode(body), (code, *refusal.headers)


# ── Large bodies ─────────────────────────────────────────────────────────────────────────────


def decode_large(body: bytes, token: str) -> Steps:
    """Decode a body to dicts and lists. ``token`` must be a text that the body does not contain: a
    random text, new for each body. Raises SerializationException, or errors of msgspec."""
    masked = yield from _masked(body)
    yield None
    parts: list[bytes] = []
    texts: dict[str, str] = {}
    end = 0
    for start, stop in _long_strings(masked):
        key = f"{token}{len(texts)}"
        texts[key] = yield from _decode_string(body, start, stop)
        parts += (body[end:start], key.encode())
        end = stop
    parts.append(body[end:])
    return _restored(_decode_any(b"".join(parts)), texts)


def check_large(body: bytes) -> Generator[None, None, None]:
    masked = yield from _masked(body)
    yield None
    _long_strings(masked)


def _masked(body: bytes) -> Generator[None, None, bytes]:
    r"""Overwrite ``\\`` and ``\"``, so that every remaining quote begins or ends a string."""
    pieces: list[bytes] = []
    start, total, quotes = 0, len(body), 0
    while start < total:
        piece = body[start : start + 4 * PIECE_BYTES]
        # Do not separate a pair of backslashes at the end of the piece.
        run = len(piece) - len(piece.rstrip(_BACKSLASH))
        if run % 2 and len(piece) > 1:
            piece = piece[:-1]
        start += len(piece)
        piece = piece.replace(rb"\\", b"__").replace(rb"\"", b"__")
        quotes += piece.count(_QUOTE)
        if quotes > 2 * limits.JSON_STRINGS_MAX:
            raise _too_many(f"The body has more than {limits.JSON_STRINGS_MAX} names and values")
        pieces.append(piece)
        yield None
    return b"".join(pieces)


def _long_strings(masked: bytes) -> list[Span]:
    spans: list[Span] = []
    structure, end = 0, 0
    while (opening := masked.find(_QUOTE, end)) >= 0:
        closing = masked.find(_QUOTE, opening + 1)
        if closing < 0:
            raise fault("SerializationException", "The body is not valid JSON: it is truncated.")
        structure += opening - end
        if closing - opening > PIECE_BYTES:
            spans.append((opening + 1, closing))
        end = closing + 1
    structure += len(masked) - end
    if structure > limits.JSON_STRUCTURE_BYTES_MAX:
        raise _too_many(f"The body has over {limits.JSON_STRUCTURE_BYTES_MAX} bytes not in strings")
    return spans


def _too_many(what: str) -> Fault:
    return fault("SerializationException", f"{what}. Send less in one request.")


def _decode_string(body: bytes, start: int, end: int) -> Generator[None, None, str]:
    texts: list[str] = []
    size = 0
    while start < end:
        match = _PIECE.match(body, start, end)
        stop = end if match is None else match.end()
        while stop < end and body[stop] & 0xC0 == 0x80:  # inside a character of several bytes
            stop -= 1
        if stop <= start:
            stop = end  # not UTF-8: the decoder raises an error
        texts.append(_decode_text(b'"%b"' % body[start:stop]))
        size += len(texts[-1])
        if size > limits.JSON_STRING_CHARS_MAX:
            raise _too_many(f"A value has more than {limits.JSON_STRING_CHARS_MAX} characters")
        start = stop
        yield None
    return "".join(texts)


def _restored(value: Any, texts: dict[str, str]) -> Any:
    if not texts:
        return value
    if isinstance(value, str):
        return texts.get(value, value)
    if isinstance(value, dict):
        return {texts.get(k, k): _restored(v, texts) for k, v in value.items()}
    if isinstance(value, list):
        return [_restored(one, texts) for one in value]
    return value
