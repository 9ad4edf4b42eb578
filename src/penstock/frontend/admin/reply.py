"""Builds the replies of the admin API from values and errors."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from penstock.model import errors
from penstock.net.http.exchange import TURN_BYTES_MAX, HttpReply, HttpRequest
from penstock.net.slices import in_slices

Headers = tuple[tuple[str, str], ...]

JSON = "application/json"
# Replies show the current state, so they must not be cached.
HEADERS = (("cache-control", "no-store"),)
# A browser may show a reply as data only: not run it, not guess its type, not frame it.
BROWSER_HEADERS: Final = (
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
)

# Status and code of an error, by the nearest base class in this table.
FAULTS: Mapping[type[Exception], tuple[int, str]] = {
    errors.InvalidRequest: (400, "invalid_request"),
    errors.MissingParameter: (400, "missing_parameter"),
    errors.NotFound: (404, "not_found"),
    errors.TopicNotFound: (404, "queue_not_found"),
    errors.Conflict: (409, "conflict"),
    errors.AccessDenied: (403, "access_denied"),
    errors.Overloaded: (503, "overloaded"),
    errors.Throttled: (429, "throttled"),
    errors.DiskFull: (507, "disk_full"),
    errors.Draining: (503, "draining"),
    errors.Damaged: (500, "damaged"),
    errors.PenstockError: (500, "failed"),
}


def picked(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def json_reply(status: int, value: Any) -> HttpReply:
    return HttpReply(status, msgspec.json.encode(value) + b"\n", JSON, HEADERS)


async def rows_reply(name: str, rows: Iterable[object], rest: Mapping[str, object]) -> HttpReply:
    """Return the reply ``{name: [rows], **rest}``. Other tasks can run during the encoding."""
    pieces = [b"{%b:[" % msgspec.json.encode(name)]

    def encode() -> Generator[None, None, None]:
        for number, row in enumerate(rows):
            pieces.append(b"," * bool(number) + msgspec.json.encode(row))
            yield None

    await in_slices(encode())
    pieces.append(b"]," + msgspec.json.encode(rest)[1:] + b"\n")
    return large_reply(pieces, JSON, HEADERS)


def large_reply(pieces: Sequence[bytes], content_type: str, headers: Headers = ()) -> HttpReply:
    if sum(map(len, pieces)) <= TURN_BYTES_MAX:
        return HttpReply(200, b"".join(pieces), content_type, headers)
    return HttpReply(200, b"", content_type, headers, tuple(pieces))


def error_reply(status: int, code: str, message: str, headers: Headers = ()) -> HttpReply:
    reply = json_reply(status, {"error": {"code": code, "message": message}})
    reply.headers += headers
    return reply


def fault_of(exc: errors.PenstockError) -> tuple[int, str]:
    return next(FAULTS[kind] for kind in type(exc).__mro__ if kind in FAULTS)


def fault_reply(exc: errors.PenstockError) -> HttpReply:
    status, code = fault_of(exc)
    headers: Headers = ()
    if isinstance(exc, errors.Throttled):
        headers = (("retry-after", str(-(-exc.retry_after_ms // 1_000))),)
    return error_reply(status, code, str(exc), headers)


def forbidden(request: HttpRequest, reason: str) -> HttpReply:
    return finished(request, error_reply(403, "forbidden", reason))


def finished(request: HttpRequest, reply: HttpReply) -> HttpReply:
    if request.method == "HEAD":
        reply.body, reply.pieces = b"", ()
    reply.headers = (*BROWSER_HEADERS, *reply.headers)
    return reply
