"""Names and values of query strings and form bodies: ``a=1&b=%20``.

The rules are those of ``urllib.parse``. This decoder is faster: the library needs a microsecond for
each percent sign that is not part of an escape, and a body can have four million."""

import re
from collections.abc import Generator
from typing import Final

from penstock.model.limits import KIB

PIECE_BYTES: Final = 16 * KIB  # of escapes, decoded at a time: at most about 3 ms
_PERCENT: Final = b"%"
_SPACES: Final = bytes.maketrans(b"+", b" ")
_DIGITS: Final = "0123456789ABCDEFabcdef"
_BYTES: Final = {(a + b).encode(): bytes((int(a + b, 16),)) for a in _DIGITS for b in _DIGITS}
_ASCII: Final = re.compile("([\x00-\x7f]+)")


def text_pairs(text: str, *, errors: str = "replace") -> list[tuple[str, str]]:
    """``errors``: how to handle escapes that are not UTF-8, as for ``bytes.decode``."""
    pairs = []
    for pair in text.split("&"):
        if pair:
            name, _, value = pair.replace("+", " ").partition("=")
            pairs.append((_unquoted(name, errors), _unquoted(value, errors)))
    return pairs


def body_pairs(body: bytes) -> Generator[None, None, list[tuple[str, str]]]:
    """Yields None after every few milliseconds. Raises ValueError if it is not UTF-8."""
    if not body.isascii():
        body.decode()  # before its escapes, which must be UTF-8 by themselves
    pairs = []
    for pair in body.split(b"&"):
        if pair:
            name, _, value = pair.partition(b"=")
            key = yield from _unescaped(name)
            pairs.append((key, (yield from _unescaped(value))))
            yield None
    return pairs


def _unescaped(raw: bytes) -> Generator[None, None, str]:
    raw = raw.translate(_SPACES)
    if len(raw) > PIECE_BYTES:
        yield None
    if _PERCENT not in raw:
        return raw.decode()
    if len(raw) <= PIECE_BYTES:
        return _unquoted_bytes(raw).decode()
    pieces: list[bytes] = []
    start = 0
    while start < len(raw):
        stop = start + PIECE_BYTES
        escape = raw.rfind(_PERCENT, stop - 2, stop)  # an escape that the cut would split
        if escape >= 0:
            stop = escape
        pieces.append(_unquoted_bytes(raw[start:stop]))
        start = stop
        yield None
    joined = b"".join(pieces)
    yield None
    return joined.decode()


def _unquoted(text: str, errors: str) -> str:
    if "%" not in text:
        return text
    if text.isascii():
        return _unquoted_bytes(text.encode()).decode("utf-8", errors)
    bits = _ASCII.split(text)
    for index in range(1, len(bits), 2):
        bits[index] = _unquoted_bytes(bits[index].encode()).decode("utf-8", errors)
    return "".join(bits)


def _unquoted_bytes(raw: bytes) -> bytes:
    first, *bits = raw.split(_PERCENT)
    parts = [first]
    add, byte_of = parts.append, _BYTES.get
    for bit in bits:
        byte = byte_of(bit[:2])
        if byte is None:
            add(_PERCENT)
            add(bit)
        else:
            add(byte)
            add(bit[2:])
    return b"".join(parts)
