"""Reads HTTP/1.1 replies as cheaply as Python can, and no more of them than a benchmark needs.

Lenient on purpose: the servers under test are trusted, and every microsecond spent here is one
that the server cannot be asked for. Pure; ``channel.py`` owns the connection.
"""

import re

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked", re.IGNORECASE)


# Status, body, and whether the server closes the connection behind it. A plain tuple: a named one
# takes four times as long to make.
Reply = tuple[int, bytes, bool]


def parse_reply(data: bytes, *, at_end: bool = False) -> Reply | None:
    """The one reply in ``data``, or None while some of it is missing. ``at_end`` says that the
    peer has closed, which is what ends a body of unstated length."""
    head_end = data.find(b"\r\n\r\n")
    if head_end < 0:
        return None
    status = 200 if data.startswith(b"200", 9) else int(data[9:12])
    # Both usual spellings without a regular expression; the odd ones pay for it.
    is_last = data.find(b"onnection: close", 0, head_end) >= 0
    mark = data.find(b"ontent-Length: ", 0, head_end)
    if mark < 0:
        mark = data.find(b"ontent-length: ", 0, head_end)
    if mark >= 0:
        length = int(data[mark + 15 : data.find(b"\r", mark)])
    else:
        match = _LENGTH.search(data, 0, head_end)
        if match is None:
            return _unsized(data, head_end, status, at_end=at_end)
        length = int(match[1])
    start = head_end + 4
    if len(data) < start + length:
        return None
    return status, data[start : start + length], is_last


def _unsized(data: bytes, head_end: int, status: int, *, at_end: bool) -> Reply | None:
    if _CHUNKED.search(data, 0, head_end) is not None:
        body = join_chunks(data, head_end + 4)
        is_last = data.find(b"onnection: close", 0, head_end) >= 0
        return None if body is None else (status, body, is_last)
    if status in (204, 304):
        return status, b"", False
    return (status, data[head_end + 4 :], True) if at_end else None


def join_chunks(data: bytes, start: int) -> bytes | None:
    """The body of a chunked reply, or None while the last chunk is missing."""
    parts: list[bytes] = []
    while True:
        line_end = data.find(b"\r\n", start)
        if line_end < 0:
            return None
        size = int(data[start:line_end].partition(b";")[0], 16)
        if size == 0:
            # No server here sends trailers, so the empty line follows at once.
            return b"".join(parts) if data.find(b"\r\n", line_end + 2) >= 0 else None
        chunk_end = line_end + 2 + size
        if len(data) < chunk_end + 2:
            return None
        parts.append(data[line_end + 2 : chunk_end])
        start = chunk_end + 2
