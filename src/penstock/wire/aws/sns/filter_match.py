"""Decides which messages match which SNS filter policies.

A ``PolicyIndex`` has the policies of all subscriptions of a topic. A policy that requires one of a
few exact values is found by a hash of the value, so the cost of a message depends on the number of
policies that may match, not on their total number. Other policies are tested one by one.

A body is decoded only where a policy has a path. Values of more than 32 KiB are decoded level by
level, where the parts without a path are skipped. A body that is not a JSON object, or is nested
too deeply, matches no policy except an empty one.

Policies and messages are untrusted, and may need seconds together. So the work is done in steps:
generators yield None at least every few milliseconds, to let the event loop do other work. Only the
step that decodes a large array or object may be longer: 7 ms for 256 KiB, 26 ms for 1 MiB."""

import ipaddress
import re
from collections import Counter
from collections.abc import Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, Final, Generic, TypeVar

import msgspec

from penstock.model.limits import KIB
from penstock.model.message import Attribute
from penstock.wire.aws.sns.filter_policy import (
    PATH_KEYS_MAX,
    Network,
    Policy,
    Rule,
    Scalar,
    Scope,
    Word,
    scalar,
)

WHOLE_BYTES_MAX: Final = 32 * KIB  # of a value that is decoded at once: at most 5 ms
DEPTH_MAX: Final = 500  # below Python's limit for recursion in the decoder
VALUES_PER_STEP: Final = 5_000  # about a millisecond
CHECKS_PER_STEP: Final = 5_000  # values times conditions, likewise
NUMBER_CHARS_MAX: Final = 256
ADDRESS_CHARS_MAX: Final = 45  # the longest IPv6 address
ADDRESSES_MAX: Final = 1_000  # parsed texts in a cache: many policies test the same one

ARRAY_TYPE: Final = "String.Array"
_INTEGER = re.compile(r"[+-]?[0-9]+\Z")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
_UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
_decode = msgspec.json.Decoder().decode
_decode_keys = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode

Key = TypeVar("Key", bound=Hashable)
T = TypeVar("T")
Steps = Generator[None, None, T]
# The values of each path in a message. A path without values is absent; an empty list means that
# the path is present with a value that satisfies nothing, not even ``exists``.
Found = Mapping[str, list[Scalar]]


class PreparedMessage:
    """A message whose attributes and body are parsed when a policy needs them, and only once."""

    __slots__ = ("_attributes", "_body", "_keys", "_values")

    def __init__(self, attributes: Mapping[str, Attribute] | None, body: str | bytes) -> None:
        self._attributes = attributes or {}
        self._body = body
        self._keys: dict[str, msgspec.Raw] | None = None
        self._values: dict[str, list[Scalar] | None] = {}

    def names(self, wanted: Mapping[str, int]) -> list[str]:
        """Return the wanted names of attributes that the message has."""
        fewer, more = sorted((self._attributes, wanted), key=len)
        return [name for name in fewer if name in more]

    def attribute(self, name: str) -> Steps[list[Scalar] | None]:
        if name not in self._values:
            self._values[name] = yield from _values_of(self._attributes[name])
        return self._values[name]

    def keys(self) -> dict[str, msgspec.Raw] | None:
        """Return the keys of the body, or None if it is not a JSON object."""
        if self._keys is None and self._body:
            try:
                self._keys = _decode_keys(self._body)
            except _UNREADABLE:
                pass
            self._body = ""
        return self._keys


def matches(policy: Policy, message: PreparedMessage) -> bool:
    return _result(matches_in_steps(policy, message))


def matches_in_steps(policy: Policy, message: PreparedMessage) -> Steps[bool]:
    if () in policy.alternatives:
        return True
    paths = _PATHS[policy.scope]()
    for path in policy.paths:
        paths.add(path)
    found = yield from paths.find(message)
    if found is None:
        return False
    results: dict[Rule, bool] = {}
    for rules in policy.alternatives:
        if (yield from _all_hold(rules, found, results)):
            return True
    return False


def _result(steps: Steps[T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


# ── The policies of a topic ──────────────────────────────────────────────────────────────────


class _Entry(msgspec.Struct, Generic[Key], frozen=True, eq=False):
    key: Key
    rules: tuple[Rule, ...]
    anchor: Rule | None  # an exact rule, by which the entry is found


class PolicyIndex(Generic[Key]):
    """The policies of all subscriptions of a topic, by any key of the caller. A subscription
    without a policy matches every message."""

    def __init__(self) -> None:
        self._policies: dict[Key, tuple[Policy, list[_Entry[Key]]]] = {}
        self._always: set[Key] = set()
        self._parts = {scope: _Part[Key](paths()) for scope, paths in _PATHS.items()}

    def add(self, key: Key, policy: Policy | None) -> None:
        """Add a subscription, or replace its policy."""
        self.remove(key)
        if policy is None or () in policy.alternatives:
            self._always.add(key)
        else:
            part = self._parts[policy.scope]
            self._policies[key] = policy, [part.add(key, each) for each in policy.alternatives]
            for path in policy.paths:
                part.paths.add(path)

    def remove(self, key: Key) -> None:
        self._always.discard(key)
        if key in self._policies:
            policy, entries = self._policies.pop(key)
            part = self._parts[policy.scope]
            for entry in entries:
                part.remove(entry)
            for path in policy.paths:
                part.paths.remove(path)

    def match(self, message: PreparedMessage) -> set[Key]:
        return _result(self.match_in_steps(message))

    def match_in_steps(self, message: PreparedMessage) -> Steps[set[Key]]:
        """Return the keys that match. A policy may be added, replaced or removed between the steps;
        then its key may or may not be among them."""
        matched = set(self._always)
        for part in self._parts.values():
            found = None if part.is_empty else (yield from part.paths.find(message))
            if found is None:
                continue
            results: dict[Rule, bool] = {}
            for entry in (yield from part.candidates(found)):
                if entry.key in matched:
                    continue
                if (yield from _all_hold(entry.rules, found, results)):
                    matched.add(entry.key)
        return matched


class _Part(Generic[Key]):
    """The policies of one scope."""

    def __init__(self, paths: "_Paths") -> None:
        self.paths = paths
        self._anchored: dict[str, dict[Scalar, set[_Entry[Key]]]] = {}
        self._others: set[_Entry[Key]] = set()

    @property
    def is_empty(self) -> bool:
        return not self._anchored and not self._others

    def add(self, key: Key, rules: tuple[Rule, ...]) -> _Entry[Key]:
        exact = [rule for rule in rules if rule.is_exact]
        entry = _Entry(key, rules, min(exact, key=self._rivals, default=None))
        if entry.anchor is None:
            self._others.add(entry)
            return entry
        entries = self._anchored.setdefault(entry.anchor.path, {})
        for value in entry.anchor.exact:
            entries.setdefault(value, set()).add(entry)
        return entry

    def _rivals(self, rule: Rule) -> int:
        """Return the number of entries that the values of the rule already have: with fewer, the
        rule is more selective."""
        entries = self._anchored.get(rule.path, {})
        return sum(len(entries.get(value, ())) + 1 for value in rule.exact)

    def remove(self, entry: _Entry[Key]) -> None:
        if entry.anchor is None:
            self._others.remove(entry)
            return
        entries = self._anchored[entry.anchor.path]
        for value in entry.anchor.exact:
            entries[value].remove(entry)
            if not entries[value]:
                del entries[value]
        if not entries:
            del self._anchored[entry.anchor.path]

    def candidates(self, found: Found) -> Steps[set[_Entry[Key]]]:
        candidates = set(self._others)
        for path in list(found if len(found) < len(self._anchored) else self._anchored):
            entries, values = self._anchored.get(path), found.get(path)
            if entries is None or values is None:
                continue
            for piece in _pieces(values, VALUES_PER_STEP):
                candidates.update(*(entries[value] for value in entries.keys() & piece))
                yield
        return candidates


# ── Rules ────────────────────────────────────────────────────────────────────────────────────


def _all_hold(rules: Iterable[Rule], found: Found, results: dict[Rule, bool]) -> Steps[bool]:
    """Tell whether all rules hold. ``results`` has the rules that were tested before, because the
    alternatives of a policy share rules."""
    for rule in rules:
        if rule not in results:
            results[rule] = yield from _holds(rule, found.get(rule.path))
            yield
        if not results[rule]:
            return False
    return True


def _holds(rule: Rule, values: Sequence[Scalar] | None) -> Steps[bool]:
    if values is None:
        return rule.if_absent
    if rule.if_present and values:
        return True
    for piece in _pieces(values, CHECKS_PER_STEP // (rule.size + 1) + 1):
        if _one_satisfies(rule, piece):
            return True
        yield
    for value in values if rule.wildcards else ():
        if isinstance(value, str):
            for pattern in rule.wildcards:
                if pattern.matches(value):
                    return True
                yield
    return False


def _pieces(values: Sequence[Scalar], count: int) -> Iterator[Sequence[Scalar]]:
    if len(values) <= count:
        return iter((values,))
    return (values[at : at + count] for at in range(0, len(values), count))


def _one_satisfies(rule: Rule, values: Sequence[Scalar]) -> bool:
    """Tell whether one of the values satisfies one of the conditions that are not wildcards."""
    if rule.exact and not rule.exact.isdisjoint(values):
        return True
    if not rule.size:
        return False
    for value in values:
        if value is Word.OPAQUE:
            continue
        if rule.excluded is not None and value not in rule.excluded:
            return True
        if isinstance(value, str):
            is_satisfied = _text_satisfies(rule, value)
        else:
            is_satisfied = len(rule.excluded_prefixes) > 0 or (
                not isinstance(value, Word) and any(each.contains(value) for each in rule.ranges)
            )
        if is_satisfied:
            return True
    return False


def _text_satisfies(rule: Rule, text: str) -> bool:
    return (
        text.startswith(rule.prefixes)
        or text.endswith(rule.suffixes)
        or (len(text) <= rule.ignoring_case_chars_max and text.lower() in rule.ignoring_case)
        or (bool(rule.networks) and _is_address_in(text, rule.networks))
        or not all(map(text.startswith, rule.excluded_prefixes))
    )


def _is_address_in(text: str, networks: Iterable[Network]) -> bool:
    address = _address(text) if len(text) <= ADDRESS_CHARS_MAX else None
    return address is not None and any(address in network for network in networks)


@lru_cache(maxsize=ADDRESSES_MAX)
def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text) if "%" not in text else None
    except ValueError:
        return None


# ── Values ───────────────────────────────────────────────────────────────────────────────────


def _values_of(attribute: Attribute) -> Steps[list[Scalar] | None]:
    if attribute.is_binary:
        return [Word.OPAQUE]
    try:
        text = attribute.value.decode()
    except UnicodeDecodeError:  # written by a Kafka producer
        return [Word.OPAQUE]
    if attribute.data_type == ARRAY_TYPE:
        return (yield from _values_of_array(attribute.value.strip()))
    if attribute.data_type.startswith("Number"):
        return [_number(text)]
    return [text]


def _values_of_array(array: bytes) -> Steps[list[Scalar] | None]:
    try:
        found = yield from _collected(_Node(""), msgspec.Raw(array))
    except _UNREADABLE:
        found = None
    if found is None or array.startswith(b"{"):
        return []
    return found.get("")


def _number(text: str) -> Scalar:
    if len(text) <= NUMBER_CHARS_MAX:
        if _INTEGER.match(text):
            return scalar(int(text))
        if _NUMBER.match(text):
            return scalar(float(text))
    return Word.OPAQUE


class _Names:
    """The attribute names that policies have."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, path: str) -> None:
        self._counts[path] += 1

    def remove(self, path: str) -> None:
        self._counts[path] -= 1
        if not self._counts[path]:
            del self._counts[path]

    def find(self, message: PreparedMessage) -> Steps[Found | None]:
        found: dict[str, list[Scalar]] = {}
        for name in message.names(self._counts):
            values = yield from message.attribute(name)
            if values is not None:
                found[name] = values
        return found


class _Node:
    __slots__ = ("children", "count", "path")

    def __init__(self, path: str | None = None) -> None:
        self.children: dict[str, _Node] = {}
        self.path = path  # None: values here have no path in a policy, only values below
        self.count = 0  # paths through this node


class _Tree:
    """The paths in bodies that policies have, split at their dots."""

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, path: str) -> None:
        node = self._root
        for name in path.split("."):
            node = node.children.setdefault(name, _Node())
            node.count += 1
        node.path = path

    def remove(self, path: str) -> None:
        node = self._root
        for name in path.split("."):
            child = node.children[name]
            child.count -= 1
            if not child.count:
                del node.children[name]
                return
            node = child
        if node.count == sum(child.count for child in node.children.values()):
            node.path = None

    def find(self, message: PreparedMessage) -> Steps[Found | None]:
        keys = message.keys()
        if keys is None:
            return None
        yield
        try:
            return (yield from _collected(self._root, keys))
        except _UNREADABLE:
            return None


_Paths = _Names | _Tree
_PATHS: Final[Mapping[Scope, type[_Paths]]] = {Scope.ATTRIBUTES: _Names, Scope.BODY: _Tree}


def _collected(root: _Node, value: Any) -> Steps[dict[str, list[Scalar]] | None]:
    """Return the scalars at each path, also in arrays of arrays. Returns None if the value is
    nested too deeply."""
    found: dict[str, list[Scalar]] = {}
    stack: list[Iterator[tuple[_Node, Any]]] = [iter(((root, value),))]
    count = 0
    while stack:
        if len(stack) > DEPTH_MAX:
            return None
        for node, value in stack[-1]:
            count += 1
            if count > VALUES_PER_STEP:
                count = 0
                yield
            at, inner = node, value
            if isinstance(value, tuple):  # a key of an object, with its value
                key, inner = value
                child = node.children.get(key) or ("." in key and _descendant(node, key))
                if not child:
                    continue
                at = child
            if isinstance(inner, msgspec.Raw):
                inner = _opened(inner)
            if isinstance(inner, dict):
                if at.children:
                    stack.append(zip(repeat(at), inner.items()))
                    count += len(inner)
                    break
            elif isinstance(inner, list):
                stack.append(zip(repeat(at), inner))
                count += len(inner)
                break
            elif at.path is not None:
                found.setdefault(at.path, []).append(scalar(inner))
        else:
            stack.pop()
    return found


def _opened(raw: msgspec.Raw) -> Any:
    if len(raw) > WHOLE_BYTES_MAX:
        with memoryview(raw) as view:
            first = view[0]
        if first == ord("{"):
            return _decode_keys(raw)
        if first == ord("["):
            return _decode_elements(raw)
    return _decode(raw)


def _descendant(node: _Node, key: str) -> _Node | None:
    child: _Node | None = node
    for name in key.split(".", PATH_KEYS_MAX):
        if child is None:
            break
        child = child.children.get(name)
    return child
