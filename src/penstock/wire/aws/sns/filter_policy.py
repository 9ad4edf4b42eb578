"""Parses, checks and compiles SNS filter policies; ``filter_match.py`` applies them to messages.

A policy maps keys to lists of conditions. A message matches if, for each key, one of its values
satisfies one of the conditions. A key is an attribute name, or a path in a JSON body: there, a dot
in a key means the same as nesting. ``$or`` with two or more objects splits the policy into
alternatives, of which one must match. If a key occurs twice in an alternative, the last one counts,
as in AWS. The texts of errors are those of AWS, because clients compare them."""

import enum
import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from penstock.model.errors import InvalidRequest
from penstock.model.limits import KIB

POLICY_BYTES_MAX: Final = 256 * KIB
TOP_KEYS_MAX: Final = 5
COMBINATIONS_MAX: Final = 150
# AWS does not document the next three limits. Without them, a few policies of the largest size
# could keep a node busy with every message.
PATH_KEYS_MAX: Final = 500  # keys of all paths of a policy, where each dot counts as one more
STARS_MAX: Final = 500  # in all wildcard patterns of a policy
SYMBOLS_MAX: Final = 30_000  # "[", "{" and ","; compiling 256 KiB of them would take 40 ms
DECIMALS: Final = 5  # numbers are compared after rounding
# Larger integers become floats. A client could choose large integers with equal hashes, which would
# make sets of them slow.
INTEGER_MAX: Final = 2**60
SHOWN_CHARS_MAX: Final = 256  # of a rejected value in an error

OR: Final = "$or"
PREFIX: Final = "prefix"
SUFFIX: Final = "suffix"
IGNORING_CASE: Final = "equals-ignore-case"
_ERROR_PREFIX: Final = "FilterPolicy: "
_FLOAT_BITS: Final = 1_024  # an integer with fewer bits fits into a float
_INFINITY: Final = (-float("inf"), float("inf"))
_TOO_COMPLEX: Final = "Filter policy is too complex"
_NESTED: Final = "Filter policy scope MessageAttributes does not support nested filter policy"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_MASK = re.compile(r"-?[0-9]{1,9}\Z")
_STAR_OR_ESCAPE = re.compile(r"\\([*\\])|\*")
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class InvalidFilterPolicy(InvalidRequest):
    """The text goes after ``Invalid parameter: `` (in Subscribe, with ``Attributes Reason: ``)."""


class Scope(enum.Enum):
    ATTRIBUTES = "MessageAttributes"
    BODY = "MessageBody"


class Word(enum.Enum):
    """A value that is neither text nor number. Python's True equals 1, so it cannot be used."""

    TRUE = enum.auto()
    FALSE = enum.auto()
    NULL = enum.auto()
    OPAQUE = enum.auto()  # of a binary attribute: only ``exists`` can match


Scalar = str | int | float | Word


def scalar(value: Any) -> Scalar:
    """Convert a JSON scalar to a value that equals another only if SNS takes them as equal."""
    if value is None:
        return Word.NULL
    if isinstance(value, bool):
        return Word.TRUE if value else Word.FALSE
    if isinstance(value, float):
        return round(value, DECIMALS)
    if isinstance(value, int) and abs(value) > INTEGER_MAX:
        return float(value) if value.bit_length() < _FLOAT_BITS else _INFINITY[value > 0]
    found: Scalar = value
    return found


class Range(msgspec.Struct, frozen=True, gc=False):
    low: float = -float("inf")
    has_low: bool = True
    high: float = float("inf")
    has_high: bool = True

    def contains(self, number: float) -> bool:
        return (self.low < number or (self.has_low and self.low == number)) and (
            number < self.high or (self.has_high and self.high == number)
        )


class Wildcard(msgspec.Struct, frozen=True):
    """A pattern, split at its stars. Each piece is matched at its first possible position, so the
    time is linear in the length of the text."""

    first: str
    pieces: tuple[str, ...]
    last: str

    def matches(self, text: str) -> bool:
        at, end = len(self.first), len(text) - len(self.last)
        if at > end or not text.startswith(self.first) or not text.endswith(self.last):
            return False
        for piece in self.pieces:
            at = text.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True


class Rule(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The conditions for one key, of which one must be satisfied."""

    path: str
    exact: frozenset[Scalar]
    prefixes: tuple[str, ...]
    suffixes: tuple[str, ...]
    ignoring_case: frozenset[str]  # in lower case
    ignoring_case_chars_max: int
    wildcards: tuple[Wildcard, ...]
    ranges: tuple[Range, ...]
    networks: tuple[Network, ...]
    # A value must not be in the set (not in one of several sets, so this is their intersection), or
    # must not begin with one of the prefixes. None: no such condition.
    excluded: frozenset[Scalar] | None
    excluded_prefixes: tuple[str, ...]
    if_present: bool
    if_absent: bool
    size: int  # number of conditions that are not exact values

    @property
    def is_exact(self) -> bool:
        """True if only an equal value satisfies the rule, so it can be found by a hash."""
        return len(self.exact) > 0 and self.size == 0


class Policy(msgspec.Struct, frozen=True, eq=False):
    scope: Scope
    alternatives: tuple[tuple[Rule, ...], ...]

    @property
    def paths(self) -> set[str]:
        return {rule.path for rules in self.alternatives for rule in rules}


def compile_policy(text: str, *, scope: Scope) -> Policy:
    """Compile a policy. Raises InvalidFilterPolicy."""
    keys = _parsed(text)
    if len(keys) > TOP_KEYS_MAX:
        raise _refused(f"Filter policy can not have more than {TOP_KEYS_MAX} keys")
    shape = _Shape()
    combinations = shape.check(keys, depth=1, level=1, dots=0)
    if scope is Scope.ATTRIBUTES and shape.is_nested:
        raise InvalidFilterPolicy(_NESTED)
    if combinations > COMBINATIONS_MAX:
        raise _refused(_TOO_COMPLEX)
    alternatives = _split(keys, None, [{}])
    rules = {rule for found in alternatives for rule in found.values()}
    if sum(len(each.pieces) + 1 for rule in rules for each in rule.wildcards) > STARS_MAX:
        raise _refused(_TOO_COMPLEX)
    return Policy(scope, tuple(tuple(found.values()) for found in alternatives))


def _refused(text: str) -> InvalidFilterPolicy:
    return InvalidFilterPolicy(_ERROR_PREFIX + text)


def _parsed(text: str) -> dict[str, Any]:
    try:
        size = len(text.encode())
        if size > POLICY_BYTES_MAX:
            raise _refused(
                f"Filter policy is too large: {size} bytes, at most {POLICY_BYTES_MAX} are allowed"
            )
        if sum(map(text.count, "[{,")) > SYMBOLS_MAX:
            raise _refused(_TOO_COMPLEX)
        keys = _decode(text)
    except RecursionError:
        raise _refused("failed to parse JSON. The policy is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise _refused(f"failed to parse JSON. {error}") from None
    if not isinstance(keys, dict):
        raise _refused("failed to parse JSON. The policy must be an object.")
    return keys


# ── Shape ────────────────────────────────────────────────────────────────────────────────────


class _Shape:
    def __init__(self) -> None:
        self.is_nested = False
        self._path_keys = 0

    def check(self, keys: Mapping[str, Any], *, depth: int, level: int, dots: int) -> int:
        """Return the number of combinations: the product over the keys of values times depth, where
        the objects of ``$or`` are added up."""
        # Each level of nesting raises the product, and each level of ``$or`` the sum.
        if level > COMBINATIONS_MAX:
            raise _refused(_TOO_COMPLEX)
        if not keys and level > 1:
            raise _refused("Empty objects are not allowed")
        combinations = 1
        for key, value in keys.items():
            if _is_split(key, value):
                combinations *= sum(
                    self.check(each, depth=depth, level=level + 1, dots=dots) for each in value
                )
            elif isinstance(value, dict):
                self.is_nested = True
                inner = dots + key.count(".")
                combinations *= self.check(value, depth=depth + 1, level=level + 1, dots=inner)
            elif isinstance(value, list):
                if not value:
                    raise _refused("Empty arrays are not allowed")
                combinations *= len(value) * depth
                self._path_keys += depth + dots + key.count(".")
                if self._path_keys > PATH_KEYS_MAX:
                    raise _refused(_TOO_COMPLEX)
            else:
                raise _refused(f'"{_shown(key)}" must be an object or an array')
        return combinations


def _is_split(key: str, value: Any) -> bool:
    """Tell whether this is a ``$or`` that splits the policy. With fewer than two objects, or with
    the name of a match type in one of them, ``$or`` is a key like any other."""
    return (
        key == OR
        and isinstance(value, list)
        and len(value) > 1
        and all(isinstance(each, dict) and _MATCH_TYPES.keys().isdisjoint(each) for each in value)
    )


def _split(
    keys: Mapping[str, Any], parent: str | None, found: list[dict[str, Rule]]
) -> list[dict[str, Rule]]:
    """Add the rules for these keys to each of the alternatives found so far, which are changed."""
    for key, value in keys.items():
        if _is_split(key, value):
            found = [
                one for each in value for one in _split(each, parent, [{**old} for old in found])
            ]
            continue
        path = key if parent is None else f"{parent}.{key}"
        if isinstance(value, dict):
            found = _split(value, path, found)
        else:
            rule = _Conditions(value).rule(path)
            for one in found:
                one[path] = rule
    return found


# ── Conditions ───────────────────────────────────────────────────────────────────────────────


class _Conditions:
    def __init__(self, values: list[Any]) -> None:
        self.exact: set[Scalar] = set()
        self.texts: dict[str, list[str]] = {PREFIX: [], SUFFIX: [], IGNORING_CASE: []}
        self.wildcards: list[Wildcard] = []
        self.ranges: list[Range] = []
        self.networks: list[Network] = []
        self.excluded: frozenset[Scalar] | None = None
        self.excluded_prefixes: list[str] = []
        self.exists: set[bool] = set()
        self.size = 0
        for value in values:
            if isinstance(value, dict):
                name, wanted = _only_key(value)
                if name not in _MATCH_TYPES:
                    raise _refused(f"Unrecognized match type {_shown(name)}")
                self.size += 1
                _MATCH_TYPES[name](self, name, wanted)
            else:
                self.exact.add(_literal(value))

    def rule(self, path: str) -> Rule:
        texts = self.texts
        ignoring_case = frozenset(text.lower() for text in texts[IGNORING_CASE])
        return Rule(
            path=path,
            exact=frozenset(self.exact),
            prefixes=tuple(texts[PREFIX]),
            suffixes=tuple(texts[SUFFIX]),
            ignoring_case=ignoring_case,
            ignoring_case_chars_max=max(map(len, ignoring_case), default=0),
            wildcards=tuple(self.wildcards),
            ranges=tuple(self.ranges),
            networks=tuple(self.networks),
            excluded=self.excluded,
            excluded_prefixes=tuple(self.excluded_prefixes),
            if_present=True in self.exists,
            if_absent=False in self.exists,
            size=self.size,
        )

    def _add_exact(self, value: Scalar) -> None:
        self.exact.add(value)
        self.size -= 1

    def add_text(self, name: str, value: Any) -> None:
        self.texts[name].append(_text(name, value))

    def add_wildcard(self, name: str, value: Any) -> None:
        pattern = _text(name, value)
        if pattern.count("*") > STARS_MAX:
            raise _refused(_TOO_COMPLEX)
        pieces = _pieces(pattern)
        if len(pieces) == 1:
            self._add_exact(pieces[0])
            return
        first, *middle, last = pieces
        self.wildcards.append(Wildcard(first, tuple(each for each in middle if each), last))

    def add_exists(self, name: str, value: Any) -> None:
        if not isinstance(value, bool):
            raise _refused(f"{name} match pattern must be either true or false.")
        self.exists.add(value)

    def add_anything_but(self, _name: str, value: Any) -> None:
        if isinstance(value, dict):
            for kind in value:
                if kind != PREFIX:
                    raise _refused(f"Unsupported anything-but pattern: {_shown(kind)}")
            self.excluded_prefixes.append(_text(*_only_key(value)))
            return
        values = value if isinstance(value, list) else [value]
        if not values:
            raise _refused("Empty arrays are not allowed")
        excluded = frozenset(map(_literal, values))
        self.excluded = excluded if self.excluded is None else self.excluded & excluded

    def add_cidr(self, _name: str, value: Any) -> None:
        address, slash, mask = _text(PREFIX, value).partition("/")  # AWS says prefix here
        if not slash or "/" in mask:
            raise _refused("Malformed CIDR, one '/' required")
        if _MASK.match(mask) is None:
            raise _refused("Malformed CIDR, mask bits must be an integer")
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            found = None
        if found is None or "%" in address:
            raise _refused(f"Nonstandard IP address: {_shown(address)}")
        if not 0 <= int(mask) <= found.max_prefixlen:
            raise _refused(
                f"IPv{found.version} mask bits must be between 0 and {found.max_prefixlen}"
            )
        self.networks.append(ipaddress.ip_network((found, int(mask)), strict=False))

    def add_numeric(self, name: str, value: Any) -> None:
        if not isinstance(value, list):
            raise _refused(f"Value of {name} must be an array.")
        terms = value[::-1]
        operator = terms.pop() if terms else _END
        if not isinstance(operator, str):
            raise _refused(f"Invalid member in numeric match: {_member(operator)}")
        if operator not in ("=", "<", "<=", ">", ">="):
            raise _refused(f"Unrecognized numeric range operator: {_shown(operator)}")
        number = _number(operator, terms)
        if operator in (">", ">="):
            self.ranges.append(_range(number, terms, has_low=operator == ">="))
        elif terms:
            raise _refused("Too many elements in numeric expression")
        elif operator == "=":
            self._add_exact(number)
        else:
            self.ranges.append(Range(high=number, has_high=operator == "<="))


_MATCH_TYPES: Final[Mapping[str, Callable[[_Conditions, str, Any], None]]] = {
    PREFIX: _Conditions.add_text,
    SUFFIX: _Conditions.add_text,
    IGNORING_CASE: _Conditions.add_text,
    "wildcard": _Conditions.add_wildcard,
    "anything-but": _Conditions.add_anything_but,
    "numeric": _Conditions.add_numeric,
    "exists": _Conditions.add_exists,
    "cidr": _Conditions.add_cidr,
}
_END: Final = object()  # the end of a numeric expression


def _only_key(match: Mapping[str, Any]) -> tuple[str, Any]:
    if len(match) != 1:
        raise _refused("Only one key allowed in match expression")
    return next(iter(match.items()))


def _literal(value: Any) -> Scalar:
    if isinstance(value, list | dict):
        raise _refused("Match value must be String, number, true, false, or null")
    return scalar(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _refused(f"{name} match pattern must be a string")
    return value


def _pieces(pattern: str) -> list[str]:
    r"""Split a pattern at its stars. ``\*`` is a star and ``\\`` a backslash in the text."""
    first, *others = _STAR_OR_ESCAPE.split(pattern)
    pieces = [[first]]
    for escaped, text in zip(others[::2], others[1::2], strict=True):
        if escaped is None:
            pieces.append([text])
        else:
            pieces[-1] += (escaped, text)
    return ["".join(each) for each in pieces]


def _range(low: float, terms: list[Any], *, has_low: bool) -> Range:
    if not terms:
        return Range(low=low, has_low=has_low)
    operator = terms.pop()
    if not isinstance(operator, str):
        raise _refused(f"Bad value in numeric range: {_member(operator)}")
    if operator not in ("<", "<="):
        raise _refused(f"Bad numeric range operator: {_shown(operator)}")
    high = _number(operator, terms)
    if high <= low:
        raise _refused("Bottom must be less than top")
    if terms:
        raise _refused("Too many terms in numeric range expression")
    return Range(low=low, has_low=has_low, high=high, has_high=operator == "<=")


def _number(operator: str, terms: list[Any]) -> float:
    number = scalar(terms.pop()) if terms and not isinstance(terms[-1], list | dict) else Word.NULL
    if isinstance(number, str | Word):
        name = "equals" if operator == "=" else operator
        raise _refused(f"Value of {name} must be numeric")
    return number


def _member(value: Any) -> str:
    """Return the token with which a member of a numeric expression begins in the policy."""
    if value is _END:
        return "]"
    return (
        _shown(_encode(value).decode())
        if not isinstance(value, list | dict)
        else ("[" if isinstance(value, list) else "{")
    )


def _shown(text: str) -> str:
    return text[:SHOWN_CHARS_MAX]
