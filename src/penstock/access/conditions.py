"""Compiles and tests the conditions of policy statements, ``{operator: {key: values}}``.

All conditions of a statement must hold. A condition holds if one of its values matches (for
operators with Not, if none does). If the request has no value for a key, operators with Not or
``IfExists`` match and others do not. An unknown operator or key, or a value that the operator
cannot parse, is neither true nor false: then an Allow does not apply and a Deny does.

In a pattern, ``*`` matches any characters and ``?`` one character; ``${*}``, ``${?}`` and ``${$}``
mean the characters themselves. Policies and requests are untrusted, so matching must not be slow: a
pattern is split at its stars, and each piece is matched at its first possible position."""

import ipaddress
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import IntFlag
from functools import lru_cache, partial
from typing import NamedTuple, TypeVar

import msgspec

from penstock.model.errors import InvalidRequest
from penstock.model.identity import Caller, Circumstances

_TOKEN = re.compile(r"\$\{([*?$])\}|(.)", re.DOTALL)
_STAR = "*"
_ANY = "?"
_ESCAPE = "${"


class Globs:
    __slots__ = ("_exact", "_has_escapes", "_wild", "is_everything")

    def __init__(self, patterns: Iterable[str], *, has_escapes: bool = False) -> None:
        exact: set[str] = set()
        wild: list[str] = []
        self.is_everything = False
        self._has_escapes = has_escapes
        for pattern in patterns:
            if _STAR not in pattern and _ANY not in pattern:
                exact.add(_unescaped(pattern) if has_escapes else pattern)
            elif not pattern.strip(_STAR):
                self.is_everything = True
            else:
                wild.append(pattern)
        self._exact = frozenset(exact)
        self._wild = tuple(wild)

    def match(self, text: str) -> bool:
        if self.is_everything or text in self._exact:
            return True
        has_escapes = self._has_escapes
        return any(matches(pattern, text, has_escapes=has_escapes) for pattern in self._wild)


def _unescaped(text: str) -> str:
    if _ESCAPE not in text:
        return text
    return _TOKEN.sub(lambda match: match[1] or match[2], text)


# ── Matching ─────────────────────────────────────────────────────────────────────────────────


def matches(pattern: str, text: str, *, has_escapes: bool = False) -> bool:
    is_escaped = has_escapes and _ESCAPE in pattern
    if is_escaped or _ANY in pattern:
        return _matches_pieces(_pieces(pattern, is_escaped=is_escaped), text)
    first, *others = pattern.split(_STAR)
    if not others:
        return pattern == text
    last = others.pop()
    at, end = len(first), len(text) - len(last)
    if at > end or not text.startswith(first) or not text.endswith(last):
        return False
    for piece in others:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


class _Piece(NamedTuple):
    size: int
    parts: tuple[tuple[int, str], ...]  # texts between question marks, each with its position

    def fits(self, text: str, at: int) -> bool:
        return all(text.startswith(part, at + place) for place, part in self.parts)

    def find(self, text: str, start: int, end: int) -> int:
        last = end - self.size
        if not self.parts:
            return start if start <= last else -1
        place, first = self.parts[0]
        at = start - 1
        while (at := text.find(first, at + 1 + place, last + place + len(first)) - place) >= start:
            if self.fits(text, at):
                return at
        return -1


def _matches_pieces(pieces: list[_Piece], text: str) -> bool:
    first, last = pieces[0], pieces[-1]
    if not first.fits(text, 0):
        return False
    if len(pieces) == 1:
        return len(text) == first.size
    at, end = first.size, len(text) - last.size
    if at > end or not last.fits(text, end):
        return False
    for piece in pieces[1:-1]:
        at = piece.find(text, at, end)
        if at < 0:
            return False
        at += piece.size
    return True


def _pieces(pattern: str, *, is_escaped: bool) -> list[_Piece]:
    if not is_escaped:
        return [_piece(piece.split(_ANY)) for piece in pattern.split(_STAR)]
    pieces = [[""]]
    for match in _TOKEN.finditer(pattern):
        escaped, char = match.groups()
        if char == _STAR:
            pieces.append([""])
        elif char == _ANY:
            pieces[-1].append("")
        else:
            pieces[-1][-1] += escaped or char
    return [_piece(piece) for piece in pieces]


def _piece(texts: list[str]) -> _Piece:
    parts: list[tuple[int, str]] = []
    place = 0
    for text in texts:
        if text:
            parts.append((place, text))
        place += len(text) + 1
    return _Piece(place - 1, tuple(parts))


CONDITIONS_MAX = 50  # operator and key pairs of one statement
VALUES_MAX = 200  # per key
ARN_PARTS = 6

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Test = Callable[[str], bool]
T = TypeVar("T")


class MalformedPolicy(InvalidRequest):
    """Raised if a policy is invalid. The error text is shown to the author of the policy."""


class Asks(IntFlag):
    """The properties of a request, besides caller, action and resource, that a policy tests. A
    decision is cached only for requests with the same values of these properties."""

    NOTHING = 0
    ADDRESS = 1
    TRANSPORT = 2
    TIME = 4


class Facts(NamedTuple):
    caller: Caller
    circumstances: Circumstances
    owner_account: str


def _now(facts: Facts) -> str:
    now = datetime.fromtimestamp(facts.circumstances.now_ms / 1_000, UTC)
    return now.isoformat(timespec="milliseconds")


def _of_user(read: Callable[[Caller], str]) -> Callable[[Facts], str | None]:
    return lambda facts: None if facts.caller.service else read(facts.caller)


def _of_service(read: Callable[[Caller], str]) -> Callable[[Facts], str | None]:
    # Clients cannot set these keys: no request of a client has a caller that is a service.
    return lambda facts: read(facts.caller) if facts.caller.service else None


# By key in lower case: a function that returns the value or None, and what the value depends on.
KEYS: Mapping[str, tuple[Callable[[Facts], str | None], Asks]] = {
    "aws:sourceip": (lambda facts: facts.circumstances.source_ip or None, Asks.ADDRESS),
    "aws:securetransport": (
        lambda facts: "true" if facts.circumstances.is_tls else "false",
        Asks.TRANSPORT,
    ),
    "aws:currenttime": (_now, Asks.TIME),
    "aws:epochtime": (lambda facts: str(facts.circumstances.now_ms // 1_000), Asks.TIME),
    "aws:principalarn": (_of_user(lambda user: user.arn), Asks.NOTHING),
    "aws:principalaccount": (_of_user(lambda user: user.account), Asks.NOTHING),
    "aws:principaltype": (_of_user(lambda _: "User"), Asks.NOTHING),
    "aws:username": (_of_user(lambda user: user.user), Asks.NOTHING),
    "aws:userid": (_of_user(lambda user: f"{user.account}:{user.user}"), Asks.NOTHING),
    "aws:sourceowner": (lambda facts: facts.caller.account, Asks.NOTHING),
    "aws:resourceaccount": (lambda facts: facts.owner_account, Asks.NOTHING),
    "aws:principalisawsservice": (
        lambda facts: "true" if facts.caller.service else "false",
        Asks.NOTHING,
    ),
    "aws:principalservicename": (_of_service(lambda one: one.service), Asks.NOTHING),
    "aws:sourcearn": (_of_service(lambda one: one.source_arn), Asks.NOTHING),
    "aws:sourceaccount": (_of_service(lambda one: one.account), Asks.NOTHING),
    # AWS sets this key when a service calls another with a user's rights. That never happens here.
    "aws:viaawsservice": (lambda _: "false", Asks.NOTHING),
}


class Condition(msgspec.Struct, frozen=True):
    key: str = ""
    test: Test | None = None  # None: unknown operator or key
    when_absent: bool = False
    asks: Asks = Asks.NOTHING

    def holds(self, facts: Facts, *, unknown: bool) -> bool:
        if self.test is None:
            return unknown
        value = KEYS[self.key][0](facts)
        if value is None:
            return self.when_absent
        try:
            return self.test(value)
        except ValueError:
            return unknown


# ── Compiling ────────────────────────────────────────────────────────────────────────────────


def compile_conditions(
    block: object, *, where: str, has_escapes: bool, takes_any_arn: bool
) -> tuple[Condition, ...]:
    """Compile the Condition element of a statement; error texts begin with ``where``. If
    ``takes_any_arn`` is True, a malformed ARN matches nothing; otherwise it is an error."""
    if not isinstance(block, dict):
        raise MalformedPolicy(f"{where}: Condition must be a JSON object with operators as keys.")
    found: list[Condition] = []
    for name, pairs in block.items():
        if not isinstance(pairs, dict):
            raise MalformedPolicy(f"{where}: {name[:80]} must be a JSON object of keys and values.")
        for key, value in pairs.items():
            place = f"{where}: {name[:80]} of {key[:80]}"
            values = _texts(value, place)
            given = _Given(values, place, has_escapes, takes_any_arn)
            found.append(_condition(name, key, given))
    if len(found) > CONDITIONS_MAX:
        raise MalformedPolicy(f"{where} has more than {CONDITIONS_MAX} conditions.")
    return tuple(found)


def _texts(given: object, place: str) -> list[str]:
    values = given if isinstance(given, list) else [given]
    if not 0 < len(values) <= VALUES_MAX:
        raise MalformedPolicy(f"{place} must have 1 to {VALUES_MAX} values.")
    texts = []
    for value in values:
        if isinstance(value, bool):
            texts.append("true" if value else "false")
        elif isinstance(value, str | int | float):
            texts.append(str(value))
        else:
            raise MalformedPolicy(f"{place}: values must be strings, numbers or booleans.")
    return texts


def _condition(full_name: str, key: str, given: "_Given") -> Condition:
    name = full_name.removesuffix("IfExists")
    known = KEYS.get(key.lower())
    if name == "Null":
        wanted = {_bool(value, given.place) for value in given.values}
        if known is None or name != full_name:
            return Condition()
        return Condition(key.lower(), lambda _: False in wanted, True in wanted, known[1])
    row = _OPERATORS.get(name)
    if row is None:
        return Condition()
    make, is_negated = row
    if given.has_escapes:
        check_variables(given.values, given.place)
    fits = make(given)
    if known is None:
        return Condition()
    test: Test = (lambda value: not fits(value)) if is_negated else fits
    return Condition(key.lower(), test, is_negated or name != full_name, known[1])


class _Given(msgspec.Struct, frozen=True):
    values: Sequence[str]
    place: str
    has_escapes: bool
    takes_any_arn: bool

    @property
    def texts(self) -> list[str]:
        return [_unescaped(value) if self.has_escapes else value for value in self.values]

    def wrong(self, value: str, problem: str) -> MalformedPolicy:
        return MalformedPolicy(f"{self.place}: {value[:200]} {problem}.")

    def read(self, read: Callable[[str], T], noun: str) -> list[T]:
        found = []
        for value in self.values:
            try:
                found.append(read(value))
            except (ValueError, OverflowError):
                raise self.wrong(value, f"is not {noun}") from None
        return found


Make = Callable[[_Given], Test]


def _exact(given: _Given) -> Test:
    return frozenset(given.texts).__contains__


def _any_case(given: _Given) -> Test:
    wanted = frozenset(text.lower() for text in given.texts)
    return lambda value: value.lower() in wanted


def _like(given: _Given) -> Test:
    return Globs(given.values, has_escapes=given.has_escapes).match


def _arns(given: _Given) -> Test:
    """Return a test that matches ARNs part by part, so that a star does not match a colon."""
    patterns: list[list[str]] = []
    for value in given.values:
        parts = value.split(":", ARN_PARTS - 1)
        if value != "*" and (len(parts) != ARN_PARTS or parts[0] != "arn"):
            if given.takes_any_arn:
                continue
            raise given.wrong(value, "is not an ARN")
        patterns.append([] if value == "*" else parts)
    match = partial(matches, has_escapes=given.has_escapes)

    def fits(value: str) -> bool:
        parts = value.split(":", ARN_PARTS - 1)
        return any(
            not pattern or (len(parts) == ARN_PARTS and all(map(match, pattern, parts)))
            for pattern in patterns
        )

    return fits


def _networks(given: _Given) -> Test:
    networks = given.read(partial(ipaddress.ip_network, strict=False), "an address range")

    def fits(value: str) -> bool:
        address = _address(value)
        return any(address in network for network in networks)

    return fits


@lru_cache(maxsize=1_024)
def _address(text: str) -> Address:
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def _bools(given: _Given) -> Test:
    wanted = {_bool(value, given.place) for value in given.values}

    def fits(value: str) -> bool:
        if value not in ("true", "false"):
            raise ValueError(value)
        return (value == "true") in wanted

    return fits


def _bool(text: str, place: str) -> bool:
    lower = text.lower()
    if lower not in ("true", "false"):
        raise MalformedPolicy(f"{place}: {text[:80]} is neither true nor false.")
    return lower == "true"


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _instant(text: str) -> float:
    if text.isascii() and text.isdigit() and len(text) <= 12:
        return float(text)
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _comparing(
    read: Callable[[str], float], noun: str, compare: Callable[[float, float], bool]
) -> Make:
    def make(given: _Given) -> Test:
        wanted = given.read(read, noun)

        def fits(value: str) -> bool:
            found = read(value)
            return any(compare(found, one) for one in wanted)

        return fits

    return make


def check_variables(values: Sequence[str], place: str) -> None:
    """Raise MalformedPolicy if a value contains a policy variable, such as ``${aws:username}``."""
    for value in values:
        rest = value.replace("${*}", "").replace("${?}", "").replace("${$}", "")
        if "${" in rest:
            raise MalformedPolicy(f"{place}: policy variables are not supported.")


# By name: how to compile the values, and whether the operator is negated.
_OPERATORS: Mapping[str, tuple[Make, bool]] = {
    "StringEquals": (_exact, False),
    "StringNotEquals": (_exact, True),
    "StringEqualsIgnoreCase": (_any_case, False),
    "StringNotEqualsIgnoreCase": (_any_case, True),
    "StringLike": (_like, False),
    "StringNotLike": (_like, True),
    "ArnEquals": (_arns, False),
    "ArnLike": (_arns, False),
    "ArnNotEquals": (_arns, True),
    "ArnNotLike": (_arns, True),
    "IpAddress": (_networks, False),
    "NotIpAddress": (_networks, True),
    "Bool": (_bools, False),
} | {
    family + name: (_comparing(read, noun, compare), name == "NotEquals")
    for family, read, noun in (("Numeric", _number, "a number"), ("Date", _instant, "a date"))
    for name, compare in (
        ("LessThan", operator.lt),
        ("LessThanEquals", operator.le),
        ("GreaterThan", operator.gt),
        ("GreaterThanEquals", operator.ge),
        ("Equals", operator.eq),
        ("NotEquals", operator.eq),
    )
}
