"""Signature Version 4: parses and verifies the signature in a header or a presigned URL.

``parse`` is used even if signatures are not enforced, because a signature contains the region,
which is part of a queue's identity. So ``parse`` also accepts signatures that cannot be valid.

``check`` and ``is_genuine`` verify a signature. They rebuild the signed text from the request as
received: with the percent-encoded path and query string, and with the actual hash of the body
instead of the hash in a header. A request is rejected if a different request could have the same
signed text, because the signature would be valid for both."""

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from operator import itemgetter
from typing import Final, NoReturn, Protocol
from urllib.parse import quote

import msgspec

from penstock.model.names import is_region
from penstock.wire.aws.faults import Fault, fault
from penstock.wire.aws.query import text_pairs

ALGORITHM = "AWS4-HMAC-SHA256"
_DATE = re.compile(r"[0-9]{8}\Z")
_TIMESTAMP = re.compile(r"[0-9]{8}T[0-9]{6}Z\Z")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_ACCESS_KEY_MAX = 128  # the limit of AWS
_SIGNED_HEADERS_MAX = 100

SKEW_MS_MAX: Final = 15 * 60_000  # largest allowed error of a client's clock
EXPIRES_S_MAX: Final = 604_800  # a week
_REMEMBERED_MAX = 1_024  # cached timestamps and paths, each of at most a kilobyte
_REMEMBERED_CHARS_MAX = 1_024
_PRESIGNED = ("X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-SignedHeaders", "X-Amz-Signature")
_HTTP_DATE = re.compile(
    r"[A-Z][a-z]{2}, ([0-9]{2}) ([A-Z][a-z]{2}) ([0-9]{4}) ([0-9]{2}):([0-9]{2}):([0-9]{2}) "
    r"(?:GMT|UTC|[+-]0000)\Z"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_UNRESERVED = "-_.~"
_NO_FIELDS: Final[Mapping[str, str]] = {}
_SHA256: Final = hashlib.sha256()
_BLOCK_BYTES: Final = 64  # block size of SHA-256
_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))  # HMAC's two paddings, for each byte
_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))


class SignedHeaders(tuple[str, ...]):
    def __init__(self, _names: Iterable[str]) -> None:
        self.has_host = "host" in self
        self.has_target = "x-amz-target" in self
        self._behind = f"\n{';'.join(self)}\n"
        escaped = [name.replace("%", "%%") for name in self]
        self._layout = "".join(f"{name}:%s\n" for name in escaped) + self._behind.replace("%", "%%")
        assert self, "split returns at least one part"
        self._values_in = itemgetter(*self)

    def canonical(self, headers: Mapping[str, str]) -> str:
        try:
            text: str = self._layout % self._values_in(headers)
        except KeyError:  # an absent header is signed as empty
            text = self._layout % tuple([headers.get(name, "") for name in self])
        if " " in text or "\t" in text:  # rare
            lines = [f"{name}:{_trimmed(headers.get(name, ''))}\n" for name in self]
            return "".join(lines) + self._behind
        return text


class CredentialScope(msgspec.Struct, frozen=True, gc=False):
    access_key: str
    date: str  # YYYYMMDD
    region: str
    service: str
    signed_headers: SignedHeaders
    signature: str
    is_presigned: bool = False


def parse(authorization: str | None, fields: Mapping[str, str]) -> CredentialScope | None:
    """Return the signature in a header or in the ``fields`` of a presigned URL, or None."""
    if authorization is not None and authorization.startswith("AWS4-"):
        return _parse_header(authorization)
    if "X-Amz-Algorithm" in fields or "X-Amz-Credential" in fields:
        values = [_required(fields, name, "AWS query-string") for name in _PRESIGNED]
        return _scope(*values, is_presigned=True)
    return None


def _parse_header(authorization: str) -> CredentialScope:
    algorithm, _, rest = authorization.partition(" ")
    parts: dict[str, str] = {}
    for part in rest.split(",", 8):
        name, _, value = part.partition("=")
        parts[name.strip()] = value.strip()
    names = ("Credential", "SignedHeaders", "Signature")
    values = [_required(parts, name, "Authorization header") for name in names]
    return _scope(algorithm, *values, is_presigned=False)


def _required(parts: Mapping[str, str], name: str, where: str) -> str:
    value = parts.get(name)
    if value is None:
        raise _incomplete(f"{where} requires '{name}' parameter.")
    return value


def _scope(
    algorithm: str, credential: str, signed_headers: str, signature: str, *, is_presigned: bool
) -> CredentialScope:
    if algorithm != ALGORITHM:
        raise _incomplete(f"Unsupported signing algorithm; use {ALGORITHM}.")
    parts = credential.rsplit("/", 4)  # from the right: an access key may contain a slash
    if len(parts) != 5:
        raise _incomplete("Credential must have exactly 5 slash-delimited elements.")
    access_key, date, region, service, terminator = parts
    if not 0 < len(access_key) <= _ACCESS_KEY_MAX:
        raise _incomplete("Credential must begin with an access key.")
    if _DATE.match(date) is None:
        raise _incomplete("Date in Credential scope must be in the form YYYYMMDD.")
    if not is_region(region) or _NAME.match(service) is None:
        raise _incomplete("Credential should be scoped to a region and a service.")
    if terminator != "aws4_request":
        raise _incomplete("Credential should be scoped with a valid terminator: 'aws4_request'.")
    names = signed_headers.split(";", _SIGNED_HEADERS_MAX)
    if len(names) > _SIGNED_HEADERS_MAX:
        raise _incomplete("Too many signed headers.")
    headers = SignedHeaders(names)
    return CredentialScope(
        access_key, date, region, service, headers, signature, is_presigned=is_presigned
    )


def _incomplete(message: str) -> Fault:
    return fault("IncompleteSignature", message)


# ── Verifying ────────────────────────────────────────────────────────────────────────────────


class SignedRequest(Protocol):
    method: str
    path: str
    query: str
    headers: dict[str, str]  # names in lower case; repeated headers are joined by commas
    body: bytes


def check(request: SignedRequest, scope: CredentialScope, *, service: str, now_ms: int) -> str:
    """Check the parts of a signature that need no secret, and return its timestamp."""
    headers = request.headers
    fields = _query_fields(request.query) if request.query else _NO_FIELDS
    if scope.is_presigned:
        is_twice = "authorization" in headers
    else:
        is_twice = bool(fields) and any(name in fields for name in _PRESIGNED)
    if is_twice:
        raise _incomplete(
            "Only one auth mechanism allowed: the Authorization header or the X-Amz-* parameters "
            "of the query string."
        )
    if "x-amz-security-token" in headers or "X-Amz-Security-Token" in fields:
        raise fault("InvalidClientTokenId")  # temporary credentials are not issued here
    signed = scope.signed_headers
    if not signed.has_host:
        _mismatch("'Host' must be a 'SignedHeader' in the AWS Authorization.")
    if not signed.has_target and "x-amz-target" in headers:
        _mismatch("'X-Amz-Target' must be a 'SignedHeader' in the AWS Authorization.")
    if scope.service != service:
        _mismatch(f"Credential should be scoped to correct service: '{service}'.")
    given = None if scope.is_presigned else headers.get("x-amz-date")
    timestamp = _timestamp(scope, headers, fields) if given is None else given
    at_ms = _at_ms(timestamp)
    if timestamp[:8] != scope.date:
        _mismatch(
            "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from "
            f"HTTP: '{scope.date}' != '{timestamp[:8]}', from '{timestamp}'."
        )
    good_ms = _good_ms(fields) if scope.is_presigned else SKEW_MS_MAX
    if not now_ms - good_ms <= at_ms <= now_ms + SKEW_MS_MAX:
        _mismatch(_wrong_time(timestamp, at_ms, good_ms, now_ms))
    return timestamp


class SigningKey:
    """A key for one day, region and service. Callers cache it, because deriving it takes four
    HMACs. It stores the two prepared SHA-256 states of HMAC, because preparing them would cost more
    than signing. It has no ``repr``, so that logs cannot contain the key."""

    __slots__ = ("_inner", "_outer", "_scope")

    def __init__(self, key: bytes, scope: str) -> None:
        assert len(key) <= _BLOCK_BYTES, "a longer key must be hashed first"
        padded = key.ljust(_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha256(padded.translate(_INNER) + f"{ALGORITHM}\n".encode())
        self._outer = hashlib.sha256(padded.translate(_OUTER))
        self._scope = scope

    def sign(self, timestamp: str, canonical_digest: str) -> str:
        inner = self._inner.copy()
        inner.update(f"{timestamp}\n{self._scope}\n{canonical_digest}".encode())
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.hexdigest()


def signing_key(secret: bytes, scope: CredentialScope) -> SigningKey:
    key = b"AWS4" + secret
    parts = (scope.date, scope.region, scope.service, "aws4_request")
    for part in parts:
        key = hmac.digest(key, part.encode(), "sha256")
    return SigningKey(key, "/".join(parts))


def is_genuine(
    request: SignedRequest,
    scope: CredentialScope,
    *,
    timestamp: str,
    key: SigningKey,
    body_hash: str = "",
) -> bool:
    """Return whether exactly this request was signed with ``key``, which was derived for ``scope``.
    The comparison takes constant time. ``body_hash`` is the SHA-256 of the body, if known."""
    digest = body_hash or _hash_of(request.body)
    claimed = request.headers.get("x-amz-content-sha256", digest)
    path, query = request.path, request.query
    if path != "/":
        path = _kept_path(path) if len(path) <= _REMEMBERED_CHARS_MAX else _canonical_path(path)
    if query:
        query = _canonical_query(query)
    lines = scope.signed_headers.canonical(request.headers)
    # The listener decoded the bytes as Latin-1, so this restores what was sent.
    canonical = f"{request.method}\n{path}\n{query}\n{lines}{digest}".encode("latin-1", "replace")
    expected = key.sign(timestamp, _hash_of(canonical))
    given = scope.signature
    # compare_digest needs ASCII; other text cannot be the signature.
    is_same = given.isascii() and hmac.compare_digest(expected, given)
    return is_same and claimed == digest  # this also rejects UNSIGNED-PAYLOAD


def _hash_of(data: bytes) -> str:
    begun = _SHA256.copy()
    begun.update(data)
    return begun.hexdigest()


def _trimmed(value: str) -> str:
    if "\t" in value:
        value = value.replace("\t", " ")
    while "  " in value:
        value = value.replace("  ", " ")
    return value.strip(" ")


def _canonical_path(path: str) -> str:
    """Remove empty and dot segments, then encode again, as SDKs do for all services but S3."""
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment and segment != ".":
            kept.append(segment)
    tail = "/" if kept and path.endswith("/") else ""
    return quote(f"/{'/'.join(kept)}{tail}".encode("latin-1"), safe="/~")


_kept_path = lru_cache(maxsize=_REMEMBERED_MAX)(_canonical_path)


def _canonical_query(query: str) -> str:
    pairs = [
        (quote(name, safe=_UNRESERVED), quote(value, safe=_UNRESERVED))
        for name, value in text_pairs(query)
        if name != "X-Amz-Signature"
    ]
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def _query_fields(query: str) -> dict[str, str]:
    pairs = text_pairs(query)
    fields = dict(pairs)
    if len(fields) != len(pairs):
        # Ambiguous: parameters are signed in sorted order but read in the order of the request.
        _mismatch("A parameter of the query string is given twice.")
    return fields


# ── The time of the signature ────────────────────────────────────────────────────────────────


def _timestamp(
    scope: CredentialScope, headers: Mapping[str, str], fields: Mapping[str, str]
) -> str:
    if scope.is_presigned:
        return _required(fields, "X-Amz-Date", "AWS query-string")
    date = headers.get("date")
    if date is None:
        raise _incomplete(
            "Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header."
        )
    match = _HTTP_DATE.match(date)
    if match is None:
        return date  # perhaps in the form of X-Amz-Date; _at_ms checks it
    day, month, year, *clock = match.groups()
    number = _MONTHS.index(month) + 1 if month in _MONTHS else 0
    return f"{year}{number:02}{day}T{''.join(clock)}Z"


def _good_ms(fields: Mapping[str, str]) -> int:
    text = fields.get("X-Amz-Expires", str(SKEW_MS_MAX // 1_000))
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise _incomplete("X-Amz-Expires should be a number of seconds.")
    if int(text) > EXPIRES_S_MAX:
        raise _incomplete(f"X-Amz-Expires must be at most a week: {EXPIRES_S_MAX} seconds.")
    return int(text) * 1_000


def _wrong_time(timestamp: str, at_ms: int, good_ms: int, now_ms: int) -> str:
    if at_ms < now_ms:
        return (
            f"Signature expired: {timestamp} is now earlier than {_text(now_ms - good_ms)} "
            f"({_text(now_ms)} - {_span(good_ms)})"
        )
    return (
        f"Signature not yet current: {timestamp} is still later than "
        f"{_text(now_ms + SKEW_MS_MAX)} ({_text(now_ms)} + {_span(SKEW_MS_MAX)})"
    )


@lru_cache(maxsize=_REMEMBERED_MAX)
def _at_ms(text: str) -> int:
    if _TIMESTAMP.match(text) is not None:
        try:
            return int(datetime.fromisoformat(text).timestamp()) * 1_000
        except ValueError:
            pass  # the day or hour does not exist
    raise _incomplete(f"Date must be in ISO-8601 'basic format'. Got '{text[:64]}'.")


def _text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y%m%dT%H%M%SZ")


def _span(good_ms: int) -> str:
    return f"{good_ms // 60_000} min." if good_ms % 60_000 == 0 else f"{good_ms // 1_000} s."


def _mismatch(message: str) -> NoReturn:
    raise fault("SignatureDoesNotMatch", message)
