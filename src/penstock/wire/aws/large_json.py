"""Large JSON bodies, decoded in steps.

A decoder cannot be interrupted, and may need a second for 8 MiB of JSON. So a large body is first
scanned: the number of strings and the bytes outside of strings are bounded, which bounds the lists
and maps that the decoder builds. Strings above 64 KiB are decoded in pieces; a token replaces each
of them while the rest is decoded.

Every generator here yields None at least every few milliseconds, so that other requests can be
served."""

import re
from collections.abc import Generator
from typing import Any

import msgspec

from penstock.model.limits import (
    JSON_STRING_CHARS_MAX,
    JSON_STRINGS_MAX,
    JSON_STRUCTURE_BYTES_MAX,
    KIB,
)
from penstock.wire.aws.faults import Fault, fault

PIECE_BYTES = 64 * KIB
_QUOTE, _BACKSLASH = b'"', b"\\"
# Characters and escapes up to the size of a piece. No match ends inside an escape or between the
# two escapes of a surrogate pair.
_PIECE = re.compile(
    rb"(?:[^\\]{1,64}+|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u....|\\.){1,1024}+", re.DOTALL
)
_decode_text = msgspec.json.Decoder(str).decode
_decode_any = msgspec.json.Decoder().decode

Steps = Generator[None, None, Any]
Span = tuple[int, int]


def decode_large(body: bytes, token: str) -> Steps:
    """Return the body as dicts and lists. ``token`` is a text that the body cannot contain: random,
    and new for each body. Raises SerializationException, or errors of msgspec."""
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
    """Raise SerializationException if the body has more strings or more bytes outside of strings
    than are decoded in one step."""
    masked = yield from _masked(body)
    yield None
    _long_strings(masked)


def _masked(body: bytes) -> Generator[None, None, bytes]:
    r"""Return the body with ``\\`` and ``\"`` blanked, so that every remaining quote begins or ends
    a string. The length stays the same."""
    pieces: list[bytes] = []
    start, total, quotes = 0, len(body), 0
    while start < total:
        piece = body[start : start + 4 * PIECE_BYTES]
        # Do not separate a pair of backslashes: cut at an even distance from the first of the run.
        run = len(piece) - len(piece.rstrip(_BACKSLASH))
        if run % 2 and len(piece) > 1:
            piece = piece[:-1]
        start += len(piece)
        piece = piece.replace(rb"\\", b"__").replace(rb"\"", b"__")
        quotes += piece.count(_QUOTE)
        if quotes > 2 * JSON_STRINGS_MAX:
            raise _too_many(f"more than {JSON_STRINGS_MAX} names and values")
        pieces.append(piece)
        yield None
    return b"".join(pieces)


def _long_strings(masked: bytes) -> list[Span]:
    """Return the positions of the content of each string above ``PIECE_BYTES``."""
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
    if structure > JSON_STRUCTURE_BYTES_MAX:
        raise _too_many(f"more than {JSON_STRUCTURE_BYTES_MAX} bytes outside of strings")
    return spans


def _too_many(what: str) -> Fault:
    return fault(
        "SerializationException",
        f"The body has {what}. Send less in one request.",
    )


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
        if size > JSON_STRING_CHARS_MAX:
            raise _too_many(f"a value of more than {JSON_STRING_CHARS_MAX} characters")
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
