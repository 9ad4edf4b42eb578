"""Kafka's access rules (ACLs). Decides by the rules of one tenant whether a request is allowed.

A rule allows or denies an operation on a resource to a principal from a host. The principal, such
as ``User:ann``, need not exist. As in Kafka, a matching deny wins over every allow, ``User:*`` is
every user, the literal resource name ``*`` is every resource of its type, and an allowed read,
write, delete or alter allows describe as well.

Rules are indexed. A check takes a few dict lookups, plus one for each length of a prefix."""

import ipaddress
from collections.abc import Iterator, Mapping
from enum import IntEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec

ANY: Final = 1  # any value, in filters
ALL: Final = 2  # all operations
EVERY: Final = "*"  # every host, or every resource
EVERY_USER: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"


class ResourceType(IntEnum):
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    MATCH = 2  # in filters: every rule about a name
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    DENY = 2
    ALLOW = 3


# Operations that are also allowed if one of the other operations is, unless a rule denies them.
IMPLYING: Final[Mapping[Operation, tuple[Operation, ...]]] = MappingProxyType(
    {
        Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
        Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
    }
)
# For each operation, the operations of the rules that decide on it.
_OPERATIONS: Final[Mapping[Permission, Mapping[Operation, tuple[int, ...]]]] = {
    Permission.DENY: {each: (ALL, each) for each in Operation},
    Permission.ALLOW: {each: (ALL, each, *IMPLYING.get(each, ())) for each in Operation},
}

T = TypeVar("T")
_Hosts = dict[str, int]  # number of rules by host, in its canonical form


class Acl(msgspec.Struct, frozen=True):
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


class _Patterns:
    __slots__ = ("lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, _Hosts] = {}
        self.prefixed: dict[str, _Hosts] = {}
        self.lengths: dict[int, int] = {}  # number of prefixes by length

    def __bool__(self) -> bool:
        return bool(self.literal or self.prefixed)

    def count(self, rule: Acl, change: int) -> None:
        is_prefix, name = rule.pattern_type == PatternType.PREFIXED, rule.resource_name
        named = self.prefixed if is_prefix else self.literal
        if is_prefix and change > 0 and name not in named:
            _count(self.lengths, len(name), 1)
        _count(named.setdefault(name, {}), host_of(rule.host), change)
        if not named[name]:
            del named[name]
            if is_prefix:
                _count(self.lengths, len(name), -1)

    def match(self, name: str, host: str) -> bool:
        literal = self.literal
        if _has(literal.get(name), host) or _has(literal.get(EVERY), host):
            return True
        size = len(name)
        return any(
            length <= size and _has(self.prefixed.get(name[:length]), host)
            for length in self.lengths
        )

    def has_any(self, host: str) -> bool:
        return any(_has(hosts, host) for hosts in (*self.literal.values(), *self.prefixed.values()))


class AclIndex:
    def __init__(self) -> None:
        self._rules: dict[Acl, None] = {}  # in the order of their creation
        # By permission, operation, principal and resource type:
        self._patterns: dict[tuple[int, int, str, int], _Patterns] = {}

    def __len__(self) -> int:
        return len(self._rules)

    def __iter__(self) -> Iterator[Acl]:
        return iter(self._rules)

    def __contains__(self, rule: Acl) -> bool:
        return rule in self._rules

    def add(self, rule: Acl) -> None:
        if rule not in self._rules:
            self._rules[rule] = None
            self._patterns.setdefault(_key(rule), _Patterns()).count(rule, 1)

    def remove(self, rule: Acl) -> None:
        if rule in self._rules:
            del self._rules[rule]
            patterns = self._patterns[_key(rule)]
            patterns.count(rule, -1)
            if not patterns:
                del self._patterns[_key(rule)]

    def decide(
        self, operation: Operation, resource_type: int, *, name: str, principal: str, host: str
    ) -> Permission | None:
        """Return whether the rules allow or deny the operation, or None if no rule applies."""
        for permission in (Permission.DENY, Permission.ALLOW):
            for patterns in self._of(permission, operation, resource_type, principal):
                if patterns.match(name, host):
                    return permission
        return None

    def decide_somewhere(
        self, operation: Operation, resource_type: int, *, principal: str, host: str
    ) -> Permission | None:
        """Return DENY if the operation is denied on every resource of the type, ALLOW if it is
        allowed on at least one, else None."""
        for patterns in self._of(Permission.DENY, operation, resource_type, principal):
            if _has(patterns.literal.get(EVERY), host):
                return Permission.DENY
        for patterns in self._of(Permission.ALLOW, operation, resource_type, principal):
            if patterns.has_any(host):
                return Permission.ALLOW
        return None

    def _of(
        self, permission: Permission, operation: Operation, resource_type: int, principal: str
    ) -> Iterator[_Patterns]:
        for each in _OPERATIONS[permission][operation]:
            for user in (principal, EVERY_USER):
                patterns = self._patterns.get((permission, each, user, resource_type))
                if patterns is not None:
                    yield patterns


@lru_cache(maxsize=4_096)  # called with the client's address in every check
def host_of(text: str) -> str:
    """Return an address in its canonical form (IPv4-mapped ones as IPv4), other text unchanged."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _key(rule: Acl) -> tuple[int, int, str, int]:
    return rule.permission_type, rule.operation, rule.principal, rule.resource_type


def _has(hosts: _Hosts | None, host: str) -> bool:
    return hosts is not None and (EVERY in hosts or host in hosts)


def _count(counts: dict[T, int], key: T, change: int) -> None:
    count = counts.get(key, 0) + change
    if count:
        counts[key] = count
    else:
        del counts[key]
