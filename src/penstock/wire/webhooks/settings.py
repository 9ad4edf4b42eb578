"""The settings of a webhook subscription, and their secrets.

Clients give both in one JSON object. Here they are apart, because settings are stored and shown as
they are, and secrets are stored encrypted and shown as ``****``. A secret that a client sends back
as ``****`` does not change, so that a client can read the settings, edit and send them."""

import re
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal

import msgspec

from penstock.model.errors import InvalidRequest
from penstock.model.limits import KIB, LEASE_MS_MAX, MESSAGE_BYTES_MAX
from penstock.wire.webhooks import standard

RAW: Final = "raw"
SNS: Final = "sns"
CLOUDEVENTS_BINARY: Final = "cloudevents-binary"
CLOUDEVENTS_STRUCTURED: Final = "cloudevents-structured"
STANDARD: Final = "standard"

TAP: Final = "tap"
CONSUME: Final = "consume"

HIDDEN: Final = "****"
AUTO: Final = "auto"

_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 24 * 60 * _MINUTE_MS
ROTATION_MS: Final = _DAY_MS  # time in which requests are signed with the previous secret too

HEADERS_MAX: Final = 20
# Names and values, with the one for authentication. With the URL and the headers of CloudEvents the
# head of a request stays below 16 KiB, which servers commonly accept.
HEADERS_BYTES_MAX: Final = 4 * KIB
FILTER_CHARS_MAX: Final = 256 * KIB
PEM_CHARS_MAX: Final = 64 * KIB  # some twenty certificates

# Headers that the HTTP client, the format or the signature sets.
_FORBIDDEN: Final = (
    "accept-encoding connection content-length expect host keep-alive proxy-authenticate"
    " proxy-authorization proxy-connection te trailer transfer-encoding upgrade"
)
_FORBIDDEN_HEADERS: Final = frozenset(_FORBIDDEN.split())
_FORBIDDEN_PREFIXES: Final = ("x-amz-", "webhook-", "ce-", "x-penstock-")
_is_header_name = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,128}").fullmatch
_is_queue = re.compile(
    r"(?:arn:[a-z-]{1,32}:sqs:[a-z0-9-]{1,32}:[0-9]{12}:)?[A-Za-z0-9_-]{1,80}(?:\.fifo)?"
).fullmatch


class InvalidSettings(InvalidRequest): ...


class Retry(msgspec.Struct, frozen=True, gc=False):
    """The delay between attempts starts at ``min_ms`` and is multiplied by ``factor`` each time, up
    to ``max_ms``."""

    min_ms: int = 5_000
    max_ms: int = 60 * _MINUTE_MS
    factor: float = 3.0
    attempts_max: int = 20
    age_ms_max: int = 3 * _DAY_MS  # of the message


class Auth(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    type: str  # none, basic, bearer, header, certificate
    user: str = ""  # of basic
    name: str = ""  # of header, in lower case
    certificate: str = ""  # PEM


NO_AUTH: Final = Auth("none")


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True):
    # tap: send each message and leave it where it is. consume: receive messages of a queue and
    # delete those that are delivered.
    mode: str = TAP
    format: str = RAW
    method: str = "POST"
    headers: Mapping[str, str] = {}  # names in lower case
    batch_max: int = 1  # messages; above 1, each request is a batch, even if it has one message
    batch_bytes_max: int = 256 * KIB
    batch_wait_ms: int = 0
    retry: Retry = Retry()
    on_outage: str = "hold"  # hold, count
    guarantee: str = "at_least_once"  # at_least_once, at_most_once
    filter: str = ""  # the filter policy as given; empty: all messages
    filter_scope: str = "MessageAttributes"  # MessageAttributes, MessageBody
    dead_letter: str = ""  # name or ARN of a queue; empty: none
    auth: Auth = NO_AUTH
    ca: str = ""  # certificates that may sign the endpoint's, PEM; empty: those of the system
    concurrency: int | Literal["auto"] = AUTO
    rate_per_s: float | None = None  # None: no limit
    timeout_ms: int = 15_000
    ordered: str = "none"  # none, group, key
    verify: str = "none"  # none, cloudevents
    auto_pause_ms: int = 0  # pause after failures for this time; 0: never


class Secret:
    """A text that ``repr`` and encoders do not reveal: msgspec rejects the type."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


class Secrets(msgspec.Struct, frozen=True):
    signing: Secret  # as ``standard`` writes it
    auth: Secret | None = None  # password, token, header value or private key
    signing_before: Secret | None = None  # until the end of a rotation
    rotated_until_ms: int = 0

    def signing_at(self, now_ms: int) -> tuple[str, ...]:
        """Return the secrets that sign a request, the newest first."""
        if self.signing_before is None or now_ms >= self.rotated_until_ms:
            return (self.signing.reveal(),)
        return self.signing.reveal(), self.signing_before.reveal()

    def rotated(self, *, random: bytes, now_ms: int) -> "Secrets":
        return msgspec.structs.replace(
            self,
            signing=Secret(standard.secret_text(random)),
            signing_before=self.signing,
            rotated_until_ms=now_ms + ROTATION_MS,
        )

    def pack(self) -> bytes:
        """Return the secrets as they are, to be encrypted."""
        return msgspec.json.encode(self, enc_hook=Secret.reveal)

    @classmethod
    def unpack(cls, packed: bytes) -> "Secrets":
        return msgspec.json.decode(packed, type=cls, dec_hook=lambda kind, text: kind(text))


def authorization(auth: Auth, secret: Secret | None) -> tuple[str, str] | None:
    """Return the header that authenticates requests, or None if they have no such header."""
    if secret is None or auth.type == "certificate":
        return None
    text = secret.reveal()
    if auth.type == "header":
        return auth.name, text
    if auth.type == "bearer":
        return "authorization", f"Bearer {text}"
    return "authorization", f"Basic {b64encode(f'{auth.user}:{text}'.encode()).decode()}"


def create(document: bytes, *, random: bytes) -> tuple[WebhookSettings, Secrets]:
    """Return the settings of a new subscription. ``random`` becomes the signing secret if the
    document has none. Raises InvalidSettings."""
    return change(WebhookSettings(), Secrets(Secret(standard.secret_text(random))), document)


def change(
    settings: WebhookSettings, secrets: Secrets, document: bytes
) -> tuple[WebhookSettings, Secrets]:
    """Return the settings with the members of the document changed. Raises InvalidSettings."""
    try:
        given = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidSettings("The settings are not JSON.") from None
    given = _object("The settings", given, (*_RULES, "retry", "auth", "secret"))
    secret = given.pop("secret", HIDDEN)
    if secret != HIDDEN:
        if not isinstance(secret, str) or standard.key_of(secret) is None:
            raise InvalidSettings(
                f"secret must be {standard.SECRET_PREFIX} and the base64 of"
                f" {standard.SECRET_BYTES_MIN} to {standard.SECRET_BYTES_MAX} bytes."
            )
        secrets = msgspec.structs.replace(
            secrets, signing=Secret(secret), signing_before=None, rotated_until_ms=0
        )
    if "retry" in given:
        members = _object("retry", given["retry"], _RETRY_RULES)
        checked = {key: _RETRY_RULES[key](f"retry.{key}", members[key]) for key in members}
        given["retry"] = msgspec.structs.replace(settings.retry, **checked)
    if "auth" in given:
        given["auth"], kept = _auth(given["auth"], settings.auth, secrets.auth)
        secrets = msgspec.structs.replace(secrets, auth=kept)
    for key, rule in _RULES.items():
        if key in given:
            given[key] = rule(key, given[key])
    settings = msgspec.structs.replace(settings, **given)
    _check(settings, secrets)
    return settings, secrets


def shown(settings: WebhookSettings, secrets: Secrets) -> dict[str, Any]:
    """Return the settings as a JSON object, with ``****`` for each secret."""
    found: dict[str, Any] = msgspec.to_builtins(settings)
    found["secret"] = HIDDEN
    if secrets.auth is not None:
        found["auth"][_SECRET_OF[settings.auth.type]] = HIDDEN
    return found


# ── Rules ────────────────────────────────────────────────────────────────────────────────────────

Rule = Callable[[str, Any], Any]


def _object(what: str, value: object, allowed: Collection[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        # A text may be a secret that belongs into the object.
        found = "a text" if isinstance(value, str) else _short(value)
        raise InvalidSettings(f"{what} must be a JSON object, not {found}.")
    for name in value:
        if name not in allowed:
            known = ", ".join(sorted(allowed))
            raise InvalidSettings(f"{what} cannot have a member {_short(name)}; allowed: {known}.")
    return dict(value)


def _short(value: object) -> str:
    """Return a value for an error text, in at most 80 characters."""
    if isinstance(value, str):
        return ascii(value) if len(value) <= 40 else f"a text of {len(value)} characters"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return repr(value) if abs(value) < 1 << 64 else "a number of more than 64 bits"
    return "an object" if isinstance(value, dict) else "a list"


def _one_of(*choices: str) -> Rule:
    def rule(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise InvalidSettings(
                f"{name} must be one of {', '.join(choices)}, not {_short(value)}."
            )
        return value

    return rule


def _number(least: float, most: float, *, is_whole: bool = True, other: Any = ()) -> Rule:
    """A rule for a number from ``least`` to ``most``, or one of the values ``other``."""
    range_ = f"a {'whole ' if is_whole else ''}number from {least:,} to {most:,}"
    words = " or ".join([*(str(_short(value)).strip("'") for value in other), range_])

    def rule(name: str, value: Any) -> Any:
        if any(value is one or (value == one and type(value) is type(one)) for one in other):
            return value
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or (is_whole and isinstance(value, float)) or not least <= value <= most:
            raise InvalidSettings(f"{name} must be {words}, not {_short(value)}.")
        return value if is_whole else float(value)

    return rule


def _text(chars_max: int, what: str, check: Callable[[str], object]) -> Rule:
    """A rule for a text that is empty or passes the check."""

    def rule(name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise InvalidSettings(f"{name} must be a text.")  # the value may be a secret
        if len(value) > chars_max:
            raise InvalidSettings(
                f"{name} must have at most {chars_max:,} characters, not {len(value):,}."
            )
        if value and not check(value):
            raise InvalidSettings(f"{name} must be {what}.")
        return value

    return rule


def _is_certificate(text: str) -> bool:
    return "-----BEGIN CERTIFICATE-----" in text and text.isascii()


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and text == text.strip()


def _header_name(name: str, value: object) -> str:
    low = value.lower() if isinstance(value, str) else ""
    if not _is_header_name(low):
        raise InvalidSettings(
            f"{name} must have 1 to 128 letters, digits or !#$%&'*+-.^_`|~, not {_short(value)}."
        )
    if low in _FORBIDDEN_HEADERS or low.startswith(_FORBIDDEN_PREFIXES):
        raise InvalidSettings(f"{name} cannot be {low}: the server sets this header.")
    return low


def _headers(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > HEADERS_MAX:
        raise InvalidSettings(f"{name} must be a JSON object of at most {HEADERS_MAX} members.")
    found: dict[str, str] = {}
    for header, text in value.items():
        low = _header_name("The name of a header", header)
        if low == "authorization":
            raise InvalidSettings(
                "The header authorization would be shown to readers of the settings: set auth."
            )
        if low in found:
            raise InvalidSettings(f"The header {low} is given twice.")
        if not isinstance(text, str) or not _is_plain(text):
            raise InvalidSettings(
                f"The value of the header {low} must be a text of printable ASCII characters"
                " without spaces around it."
            )
        found[low] = text
    return found


_SECRET_OF: Final = {
    "basic": "password",
    "bearer": "token",
    "header": "value",
    "certificate": "key",
}
_NAME_OF: Final = {"basic": "user", "header": "name", "certificate": "certificate"}
_NAME_RULES: Final[Mapping[str, Rule]] = {
    "basic": _text(
        256,
        "a text without colons and control characters",
        lambda text: re.fullmatch(r"[^:\0-\x1f\x7f]+", text),
    ),
    "header": _header_name,
    "certificate": _text(PEM_CHARS_MAX, "a certificate in PEM", _is_certificate),
}
_SECRET_RULES: Final[Mapping[str, Rule]] = {
    "basic": _text(
        KIB,
        "a text without control characters",
        lambda text: re.fullmatch(r"[^\0-\x1f\x7f]+", text),
    ),
    "bearer": _text(
        HEADERS_BYTES_MAX,
        "a text of printable ASCII characters without spaces",
        lambda text: _is_plain(text) and " " not in text,
    ),
    "header": _text(
        HEADERS_BYTES_MAX,
        "a text of printable ASCII characters without spaces around it",
        _is_plain,
    ),
    "certificate": _text(
        PEM_CHARS_MAX,
        "a private key in PEM",
        lambda text: "PRIVATE KEY-----" in text and text.isascii(),
    ),
}


def _auth(value: Any, before: Auth, secret: Secret | None) -> tuple[Auth, Secret | None]:
    members = ("type", *_NAME_OF.values(), *_SECRET_OF.values())
    given = _object("auth", value, members)
    kind = _one_of("none", *_SECRET_OF)("auth.type", given.pop("type", before.type))
    if kind == "none":
        return NO_AUTH, None
    name, hidden = _NAME_OF.get(kind, ""), _SECRET_OF[kind]
    if before.type != kind:
        before, secret = NO_AUTH, None
    fields: dict[str, Any] = {}
    for member in given:
        if member not in (name, hidden):
            raise InvalidSettings(f"auth of type {kind} cannot have a member {member}.")
    if name:
        text = _NAME_RULES[kind](f"auth.{name}", given.get(name, getattr(before, name)))
        fields[name] = _not_empty(f"auth.{name}", text)
    text = given.get(hidden, HIDDEN)
    if text != HIDDEN:
        secret = Secret(_not_empty(f"auth.{hidden}", _SECRET_RULES[kind](f"auth.{hidden}", text)))
    elif secret is None:
        raise InvalidSettings(f"auth of type {kind} needs auth.{hidden}.")
    return Auth(type=kind, **fields), secret


def _not_empty(name: str, text: str) -> str:
    if not text:
        raise InvalidSettings(f"{name} must not be empty.")
    return text


_RETRY_RULES: Final[Mapping[str, Rule]] = {
    "min_ms": _number(100, LEASE_MS_MAX),
    "max_ms": _number(100, LEASE_MS_MAX),  # a message that waits for a retry is leased
    "factor": _number(1, 10, is_whole=False),
    "attempts_max": _number(1, 1_000),
    "age_ms_max": _number(1_000, 30 * _DAY_MS),
}
_RULES: Final[Mapping[str, Rule]] = {
    "mode": _one_of(TAP, CONSUME),
    "format": _one_of(RAW, SNS, CLOUDEVENTS_BINARY, CLOUDEVENTS_STRUCTURED, STANDARD),
    "method": _one_of("POST", "PUT"),
    "headers": _headers,
    "batch_max": _number(1, 1_000),
    "batch_bytes_max": _number(KIB, MESSAGE_BYTES_MAX),
    "batch_wait_ms": _number(0, 10_000),
    "on_outage": _one_of("hold", "count"),
    "guarantee": _one_of("at_least_once", "at_most_once"),
    "filter": _text(FILTER_CHARS_MAX, "a text", bool),
    "filter_scope": _one_of("MessageAttributes", "MessageBody"),
    "dead_letter": _text(256, "the name or the ARN of a queue", _is_queue),
    "ca": _text(PEM_CHARS_MAX, "certificates in PEM", _is_certificate),
    "concurrency": _number(1, 1_000, other=(AUTO,)),
    "rate_per_s": _number(0.01, 100_000, is_whole=False, other=(None,)),
    "timeout_ms": _number(1_000, 60_000),
    "ordered": _one_of("none", "group", "key"),
    "verify": _one_of("none", "cloudevents"),
    "auto_pause_ms": _number(_MINUTE_MS, 30 * _DAY_MS, other=(0,)),
}


def _check(settings: WebhookSettings, secrets: Secrets) -> None:
    """Check settings that depend on each other."""
    headers, is_batch = settings.headers, settings.batch_max > 1
    if is_batch and settings.format == CLOUDEVENTS_BINARY:
        raise InvalidSettings(
            f"A request in {CLOUDEVENTS_BINARY} has one event: set batch_max to 1, or format to"
            f" {CLOUDEVENTS_STRUCTURED}."
        )
    if "content-type" in headers and (is_batch or settings.format not in (RAW, SNS)):
        raise InvalidSettings(
            f"The header content-type can be set only for the formats {RAW} and {SNS} with"
            " batch_max 1."
        )
    if settings.retry.min_ms > settings.retry.max_ms:
        raise InvalidSettings(
            f"retry.min_ms is {settings.retry.min_ms:,}, more than retry.max_ms,"
            f" {settings.retry.max_ms:,}."
        )
    header = authorization(settings.auth, secrets.auth)
    if header is not None and header[0] in ("content-type", *headers):
        raise InvalidSettings(f"auth cannot use the header {header[0]}, which is set already.")
    both = [*headers.items(), *([header] if header else [])]
    size = sum(len(name) + len(value) + 4 for name, value in both)
    if size > HEADERS_BYTES_MAX:
        raise InvalidSettings(
            f"The headers have {size:,} bytes with auth; {HEADERS_BYTES_MAX:,} are allowed."
        )
