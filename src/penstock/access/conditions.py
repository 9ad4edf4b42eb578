"""Conditions of a policy's statement: ``{operator: {key: values}}``, compiled once.

Every block must hold; within a block one matching value is enough (for operators with Not, no value
may match). A key that is known but absent from the request matches no positive operator and every
negated one; with ``…IfExists`` it matches. An unknown operator or key, or a value of the request
that the operator cannot parse, is neither true nor false: then an Allow does not apply and a Deny
does (``Condition.holds``).

Pure: time, address and caller are passed in as ``Facts``."""

import ipaddress
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import IntFlag
from functools import lru_cache
from typing import NamedTuple

import msgspec

from penstock.access.glob import Globs, matches, unescaped
from penstock.model.errors import InvalidRequest
from penstock.model.identity import Caller, Circumstances

CONDITIONS_MAX = 50  # operator and key pairs of one statement
VALUES_MAX = 200  # per key
ARN_PARTS = 6

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Test = Callable[[str], bool]


class MalformedPolicy(InvalidRequest):
    """An invalid policy. The text names the wrong part in words that its author can use."""


class Asks(IntFlag):
    """Properties of a request that a policy depends on, besides caller, action and resource. A
    decision may be cached only for requests in which these are equal."""

    NOTHING = 0
    ADDRESS = 1
    TRANSPORT = 2
    TIME = 4


class Facts(NamedTuple):
    """The facts about one request that conditions may test."""

    caller: Caller
    circumstances: Circumstances
    owner_account: str


def _now(facts: Facts) -> str:
    now = datetime.fromtimestamp(facts.circumstances.now_ms / 1_000, UTC)
    return now.isoformat(timespec="milliseconds")


# Keys in lower case: how to read each (None: absent), and what that depends on.
KEYS: Mapping[str, tuple[Callable[[Facts], str | None], Asks]] = {
    "aws:sourceip": (lambda facts: facts.circumstances.source_ip or None, Asks.ADDRESS),
    "aws:securetransport": (
        lambda facts: "true" if facts.circumstances.is_tls else "false",
        Asks.TRANSPORT,
    ),
    "aws:currenttime": (_now, Asks.TIME),
    "aws:epochtime": (lambda facts: str(facts.circumstances.now_ms // 1_000), Asks.TIME),
    "aws:principalarn": (lambda facts: facts.caller.arn, Asks.NOTHING),
    "aws:principalaccount": (lambda facts: facts.caller.account, Asks.NOTHING),
    "aws:principaltype": (lambda _: "User", Asks.NOTHING),
    "aws:username": (lambda facts: facts.caller.user, Asks.NOTHING),
    "aws:userid": (lambda facts: f"{facts.caller.account}:{facts.caller.user}", Asks.NOTHING),
    "aws:resourceaccount": (lambda facts: facts.owner_account, Asks.NOTHING),
    # Set when one service calls another on behalf of a caller, which never happens here.
    "aws:principalisawsservice": (lambda _: "false", Asks.NOTHING),
    "aws:viaawsservice": (lambda _: "false", Asks.NOTHING),
    "aws:sourcearn": (lambda _: None, Asks.NOTHING),
    "aws:sourceaccount": (lambda _: None, Asks.NOTHING),
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
    """``where`` names the statement in errors; ``has_escapes``: values may contain ``${*}``;
    ``takes_any_arn``: a text that is not an ARN matches nothing instead of being an error. Raises
    MalformedPolicy."""
    if not isinstance(block, dict):
        raise MalformedPolicy(f"{where}: Condition must be an object of operators.")
    found: list[Condition] = []
    for name, pairs in block.items():
        if not isinstance(pairs, dict):
            raise MalformedPolicy(f"{where}: {name[:80]} must be an object of keys and values.")
        for key, value in pairs.items():
            place = f"{where}: {name[:80]} of {key[:80]}"
            values = _texts(value, place)
            given = _Given(values, place, has_escapes, takes_any_arn)
            found.append(_condition(name, key, given))
    if len(found) > CONDITIONS_MAX:
        raise MalformedPolicy(f"{where}: more than {CONDITIONS_MAX} conditions.")
    return tuple(found)


def _texts(given: object, place: str) -> list[str]:
    values = given if isinstance(given, list) else [given]
    if not 0 < len(values) <= VALUES_MAX:
        raise MalformedPolicy(f"{place}: needs 1 to {VALUES_MAX} values.")
    texts = []
    for value in values:
        if isinstance(value, bool):
            texts.append("true" if value else "false")
        elif isinstance(value, str | int | float):
            texts.append(str(value))
        else:
            raise MalformedPolicy(f"{place}: values are strings, numbers or booleans.")
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
    """The values of one operator and key, and their position for errors."""

    values: Sequence[str]
    place: str
    has_escapes: bool
    takes_any_arn: bool

    def wrong(self, value: str, noun: str) -> MalformedPolicy:
        return MalformedPolicy(f"{self.place}: {value[:200]} is not {noun}.")


Make = Callable[[_Given], Test]


def _exact(given: _Given) -> Test:
    return frozenset(unescaped(given.values, has_escapes=given.has_escapes)).__contains__


def _any_case(given: _Given) -> Test:
    texts = unescaped(given.values, has_escapes=given.has_escapes)
    wanted = frozenset(text.lower() for text in texts)
    return lambda value: value.lower() in wanted


def _like(given: _Given) -> Test:
    return Globs(given.values, has_escapes=given.has_escapes).match


def _arns(given: _Given) -> Test:
    """Match ARNs part by part: a star does not match a colon, except in the last of six parts."""
    patterns: list[list[str]] = []
    for value in given.values:
        parts = value.split(":", ARN_PARTS - 1)
        if value != "*" and (len(parts) != ARN_PARTS or parts[0] != "arn"):
            if given.takes_any_arn:
                continue
            raise given.wrong(value, "an ARN")
        patterns.append([] if value == "*" else parts)
    has_escapes = given.has_escapes

    def fits(value: str) -> bool:
        parts = value.split(":", ARN_PARTS - 1)
        return any(
            not pattern
            or (
                len(parts) == ARN_PARTS
                and all(
                    matches(one, part, has_escapes=has_escapes)
                    for one, part in zip(pattern, parts, strict=True)
                )
            )
            for pattern in patterns
        )

    return fits


def _networks(given: _Given) -> Test:
    networks: list[Network] = []
    for value in given.values:
        try:
            networks.append(ipaddress.ip_network(value, strict=False))
        except ValueError:
            raise given.wrong(value, "an address range") from None

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
    """Parse a date, or seconds since 1970, into seconds since 1970."""
    if text.isascii() and text.isdigit() and len(text) <= 12:
        return float(text)
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _comparing(
    read: Callable[[str], float], noun: str, compare: Callable[[float, float], bool]
) -> Make:
    def make(given: _Given) -> Test:
        wanted: list[float] = []
        for value in given.values:
            try:
                wanted.append(read(value))
            except (ValueError, OverflowError):
                raise given.wrong(value, noun) from None

        def fits(value: str) -> bool:
            found = read(value)
            return any(compare(found, one) for one in wanted)

        return fits

    return make


def check_variables(values: Sequence[str], place: str) -> None:
    """Reject variables: unreplaced they would match nothing, so a Deny would silently fail."""
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
