"""Computes the signature of a dead-letter message, by which messages with the same cause of failure
are grouped. Such messages differ in ids, numbers and times, so these are masked, and the following
parts are hashed together:

    source queue │ error, masked │ names of attributes │ kind of message │ shape of the body

A number after *status*, *code* and similar words is kept, because 404 and 503 are different causes.
Keys of a JSON body that are ids are masked as well. ``content`` is a fingerprint of a message's
bytes: a redrive changes the id but not the content. All input is truncated before it is parsed,
because dead letters are messages that consumers could not process."""

import re
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec

ERROR_CHARS_MAX: Final = 2_000  # of an error that are used
ERROR_SHOWN_MAX: Final = 300
BODY_BYTES_MAX: Final = 262_144  # a larger body is not parsed
DEPTH_MAX: Final = 6
KEYS_MAX: Final = 200  # of one JSON object
KEY_CHARS_MAX: Final = 200
NAMES_MAX: Final = 64  # attributes of one message

# Attributes in which consumers store the reason, in lower case, most specific first.
ERROR_ATTRIBUTES: Final = (
    "error", "errormessage", "error_message", "error-message", "exception", "exceptionmessage",
    "exception_message", "reason", "failure_reason", "cause", "x-death-reason",
    "x-exception-message", "kafka_dlt-exception-message", "__connect.errors.exception.message",
)  # fmt: skip
# Attributes with the kind of error or message, whose values do not vary by message.
KIND_ATTRIBUTES: Final = (
    "errortype", "error_type", "error-type", "errorcode", "error_code", "error-code",
    "exceptionclass", "exception_class", "kafka_dlt-exception-fqcn",
    "__connect.errors.exception.class.name", "consumer", "handler", "type", "kind", "event",
    "eventtype", "event_type", "event-type",
)  # fmt: skip

_KINDS: Final = frozenset(KIND_ATTRIBUTES)
# Names of attributes and keys of bodies, which repeat from message to message.
_NAMES_CACHED: Final = 4_096

_MASKS: Final = re.compile(
    r"(?P<uuid>\b[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}\b)"
    r"|(?P<time>\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"
    r"|\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b)"
    r"|(?P<mail>[\w.+-]+@[\w-]+(?:\.[\w-]+)+)"
    r"|(?P<ip>\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b)"
    r"|(?P<code>(?i:\b(?:http|status|code|errno|exit|signal|sqlstate|errorcode)\b)[\s:=/#()\"']{0,3}"
    r"\d{1,5}\b)"
    r"|(?P<hex>\b0[xX][0-9a-fA-F]+\b|\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,}\b)"
    r"|(?P<id>\b(?=[\w-]*\d)(?=[\w-]*[A-Za-z_])\w[\w-]{3,}(?:\b|(?<=-)))"
    r"|(?P<n>[-+]?\b\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?\b)"
)
_SPACE: Final = re.compile(r"\s+")
_TEXTUAL: Final = re.compile(rb"[\x09\x0a\x0d\x20-\x7e\x80-\xff]*")
_XML_ROOT: Final = re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?<([A-Za-z_][\w.:-]{0,80})[\s/>]")


class Signature(NamedTuple):
    digest: str  # 16 hexadecimal digits
    error: str  # masked, for display
    shape: str


def signature_of(
    source: str, attributes: Mapping[str, bytes], body: bytes, *, error_name: str | None = None
) -> Signature:
    """Compute a message's signature. ``error_name`` names the attribute with the error text."""
    by_name = {name.lower(): value for name, value in list(attributes.items())[:NAMES_MAX]}
    error = masked(_error_text(by_name, error_name)) if by_name else ""
    kinds = [
        f"{name}={masked(by_name[name].decode('utf-8', 'replace'))}"
        for name in sorted(_KINDS & by_name.keys())
    ]
    shape = shape_of(body)
    parts = (source, error, "\x01".join(kinds), _masked_names(tuple(by_name)), shape)
    digest = blake2b("\x00".join(parts).encode("utf-8", "replace"), digest_size=8).hexdigest()
    shown = "; ".join([error, *kinds]) if error and kinds else error or "; ".join(kinds)
    return Signature(digest, shown[:ERROR_SHOWN_MAX], shape[:ERROR_SHOWN_MAX])


def content_of(key: bytes | None, attributes: Mapping[str, bytes], body: bytes) -> str:
    digest = blake2b(digest_size=16)
    for part in (
        key or b"",
        body,
        *(p for n in sorted(attributes) for p in (n.encode(), attributes[n])),
    ):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def masked(text: str) -> str:
    """Return the first line of a text, with masks for parts that differ between messages."""
    line = next((line for line in text[:ERROR_CHARS_MAX].splitlines() if line.strip()), "")
    return _SPACE.sub(" ", _MASKS.sub(_mask, line)).strip()


def _mask(match: re.Match[str]) -> str:
    # One mask for all kinds of ids: a field may contain a number in one message, a UUID in another.
    name = match.lastgroup
    if name == "code":
        return match[0].lower()
    return f"<{name}>" if name in ("time", "mail", "ip") else "<id>"


def _error_text(by_name: Mapping[str, bytes], error_name: str | None) -> str:
    names = ERROR_ATTRIBUTES if error_name is None else (error_name.lower(),)
    raw = next((by_name[name] for name in names if by_name.get(name)), b"")
    return raw[: 4 * ERROR_CHARS_MAX].decode("utf-8", "replace")


_NAMES: Final[Mapping[type, str]] = {
    str: "text", bool: "flag", int: "number", float: "number", type(None): "null",
}  # fmt: skip


def shape_of(body: bytes) -> str:
    if not body.strip():
        return "empty"
    if len(body) > BODY_BYTES_MAX:
        return "large"
    if body.lstrip()[:1] in (b"{", b"["):
        try:
            return _shape(msgspec.json.decode(body), DEPTH_MAX)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return "broken json"
    root = _XML_ROOT.match(body)
    if root is not None:
        return f"xml {root[1].decode('ascii', 'replace')}"
    return "text" if _TEXTUAL.fullmatch(body[:4_096]) else f"binary {body[:2].hex()}"


def _shape(value: Any, depth: int) -> str:
    if isinstance(value, dict):
        if not depth:
            return "{…}"
        found = {
            f"{_masked_key(key)}:{_shape(part, depth - 1)}"
            for key, part in list(value.items())[:KEYS_MAX]
        }
        return "{" + ",".join(sorted(found)) + "}"
    if isinstance(value, list):
        if not depth:
            return "[…]"
        return "[" + "|".join(sorted({_shape(part, depth - 1) for part in value[:KEYS_MAX]})) + "]"
    return _NAMES[type(value)]


@lru_cache(_NAMES_CACHED)
def _masked_names(names: tuple[str, ...]) -> str:
    return "\x01".join(sorted({_masked_key(name) for name in names}))


@lru_cache(_NAMES_CACHED)
def _masked_key(key: str) -> str:
    """Mask a JSON key that looks like an id: it is long or has only digits."""
    if len(key) < 8 and not key.isdigit():
        return key
    return _MASKS.sub(_mask, key[:KEY_CHARS_MAX])


REDRIVE: Final = "redrive"
FIX: Final = "fix-consumer"
DROP: Final = "drop"
_PASSING: Final = re.compile(
    r"timed?[ -]?out|unavailable|connection|throttl|too many|rate limit|temporar|deadlock"
    r"|refused|reset by peer|try again|429|50[234]|overload|lock wait",
    re.IGNORECASE,
)
_STALE: Final = re.compile(
    r"duplicate|already (?:exists|processed|done)|expired|stale|superseded|obsolete", re.IGNORECASE
)


def suggestion_for(error: str, *, shape: str, poison: int, span_ms: int, quiet_ms: int) -> str:
    """Return what to do with a group of messages. ``poison`` is the number of messages that came
    back after a redrive, ``span_ms`` the time from the first failure to the last, ``quiet_ms`` the
    time since the last. Without an error text, a short burst in the past is taken for an outage."""
    if poison:
        return FIX
    if _STALE.search(error):
        return DROP
    if _PASSING.search(error):
        return REDRIVE
    if error or shape in ("broken json", "empty"):
        return FIX
    return REDRIVE if span_ms <= quiet_ms else FIX
