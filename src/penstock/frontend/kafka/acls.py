"""Access rules as Kafka knows them, and as statements of a user's policy. Pure.

    User:ann may read topics orders-*, from anywhere
        {"Effect": "Allow", "Action": "kafka:Read",
         "Resource": "arn:aws:sqs:us-east-1:000000000000:orders-*"}

All rules of a user are the statements of one policy of that user, ``kafka-acls``, one each. What is
needed to show a rule again can be read off its statement, so nothing is kept beside it. Statements
that somebody wrote there by hand and that are no rules are left alone and not shown.

Rules are about users of the caller's own account, each by name: there is no rule for everybody,
because a policy belongs to somebody.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, Protocol

import msgspec

from penstock.frontend.kafka.permissions import (
    ACTIONS,
    OF_CLUSTERS,
    OF_GROUPS,
    OF_TOPICS,
    Operation,
)
from penstock.frontend.kafka.refusal import Refusal
from penstock.model.errors import AccessDenied
from penstock.model.identity import Caller, User
from penstock.model.names import queue_arn
from penstock.wire.kafka.faults import ErrorCode

POLICY: Final = "kafka-acls"
VERSION: Final = "2012-10-17"  # in which a literal star can be written
PRINCIPAL: Final = "User:"
ANY_HOST: Final = "*"
ANY_NAME: Final = "*"
CLUSTER_NAME: Final = "kafka-cluster"
NAME_CHARS_MAX: Final = 1_024
ALL: Final = 2  # operations
ANY: Final = 1  # in filters
_ALL_ACTIONS: Final = "kafka:*"


class ResourceType(IntEnum):
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class PatternType(IntEnum):
    MATCH = 2  # in filters: whatever is about a name
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    DENY = 2
    ALLOW = 3


class Acl(msgspec.Struct, frozen=True):
    """One rule, in the protocol's own numbers."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


class Filter(Protocol):
    """What the requests that look for rules have in common."""

    @property
    def resource_type_filter(self) -> int: ...
    @property
    def resource_name_filter(self) -> str | None: ...
    @property
    def pattern_type_filter(self) -> int: ...
    @property
    def principal_filter(self) -> str | None: ...
    @property
    def host_filter(self) -> str | None: ...
    @property
    def operation(self) -> int: ...
    @property
    def permission_type(self) -> int: ...


_OF_RESOURCES: Final[Mapping[int, frozenset[Operation]]] = MappingProxyType(
    {
        ResourceType.TOPIC: frozenset(OF_TOPICS),
        ResourceType.GROUP: frozenset(OF_GROUPS),
        ResourceType.CLUSTER: frozenset(OF_CLUSTERS),
        ResourceType.TRANSACTIONAL_ID: frozenset((Operation.WRITE, Operation.DESCRIBE)),
    }
)
_OPERATIONS: Final = MappingProxyType({action: each for each, action in ACTIONS.items()})


# ── What may be a rule ───────────────────────────────────────────────────────────────────────


def check(acl: Acl) -> None:
    """Raises Refusal."""
    operations = _OF_RESOURCES.get(acl.resource_type)
    if operations is None:
        raise _invalid("Rules are about topics, groups, transactional ids and the cluster.")
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid("The pattern of a rule is literal or prefixed.")
    if not 0 < len(acl.resource_name) <= NAME_CHARS_MAX:
        raise _invalid(f"The name in a rule has 1 to {NAME_CHARS_MAX} characters.")
    if acl.resource_type == ResourceType.CLUSTER and (
        acl.resource_name != CLUSTER_NAME or acl.pattern_type != PatternType.LITERAL
    ):
        raise _invalid(f"The only cluster is the one called {CLUSTER_NAME}.")
    if acl.operation != ALL and acl.operation not in operations:
        raise _invalid("There is no such operation on what the rule is about.")
    if acl.permission_type not in (Permission.ALLOW, Permission.DENY):
        raise _invalid("A rule allows or denies.")
    if acl.host != ANY_HOST:
        try:
            ipaddress.ip_address(acl.host)
        except ValueError:
            raise _invalid(f"The host of a rule is an address or {ANY_HOST}.") from None
    user_of(acl.principal)


def user_of(principal: str) -> str:
    """The name of the user. Raises Refusal."""
    name = principal.removeprefix(PRINCIPAL)
    if not principal.startswith(PRINCIPAL) or not name:
        raise _invalid("The principal of a rule is written as User:name.")
    if name == ANY_NAME:
        raise _invalid("A rule is about one user; there is none for everybody.")
    return name


def check_may_change(caller: Caller, user: User) -> None:
    """Check that ``caller`` may change the rules of ``user``: an operator's rules are changed by
    operators only. Raises AccessDenied."""
    if user.is_operator and not caller.is_operator:
        raise AccessDenied(f"{user.name} is an operator: only an operator may change these rules.")


def _invalid(reason: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, reason)


# ── As statements ────────────────────────────────────────────────────────────────────────────


class AclPolicies:
    """The rules of one account: between users and their policies."""

    __slots__ = ("_prefixes",)

    def __init__(self, *, account: str, region: str) -> None:
        own = f"arn:penstock:kafka:{region}:{account}:"
        self._prefixes: Mapping[int, str] = {
            ResourceType.TOPIC: queue_arn(account, region, ""),
            ResourceType.GROUP: f"{own}group/",
            ResourceType.TRANSACTIONAL_ID: f"{own}txn/",
            ResourceType.CLUSTER: f"{own}cluster",
        }

    def rules_of(self, user: User) -> list[Acl]:
        return [rule for _, rule in self._read(user) if rule is not None]

    def with_rules(self, user: User, added: Sequence[Acl]) -> User:
        """Those that are there already are not written twice."""
        found = self._read(user)
        known = {rule for _, rule in found}
        fresh = [rule for rule in dict.fromkeys(added) if rule not in known]
        if not fresh:
            return user
        blocks = [block for block, _ in found] + [self._statement(rule) for rule in fresh]
        return _with_statements(user, blocks)

    def without_rules(self, user: User, removed: frozenset[Acl]) -> User:
        found = self._read(user)
        kept = [block for block, rule in found if rule not in removed]
        return user if len(kept) == len(found) else _with_statements(user, kept)

    def _read(self, user: User) -> list[tuple[Any, Acl | None]]:
        text = user.policies.get(POLICY)
        if text is None:
            return []
        given = msgspec.json.decode(text)["Statement"]
        blocks = given if isinstance(given, list) else [given]
        return [(block, self._rule(block, user.name)) for block in blocks]

    def _statement(self, rule: Acl) -> dict[str, Any]:
        block: dict[str, Any] = {
            "Effect": "Allow" if rule.permission_type == Permission.ALLOW else "Deny",
            "Action": _ALL_ACTIONS if rule.operation == ALL else ACTIONS[Operation(rule.operation)],
            "Resource": self._resource(rule),
        }
        if rule.host != ANY_HOST:
            block["Condition"] = {"IpAddress": {"aws:SourceIp": rule.host}}
        return block

    def _resource(self, rule: Acl) -> str:
        prefix = self._prefixes[rule.resource_type]
        if rule.resource_type == ResourceType.CLUSTER:
            return prefix
        if rule.pattern_type == PatternType.LITERAL and rule.resource_name == ANY_NAME:
            return prefix + ANY_NAME
        star = "*" if rule.pattern_type == PatternType.PREFIXED else ""
        return prefix + _escaped(rule.resource_name) + star

    def _rule(self, block: Any, user: str) -> Acl | None:
        """The rule that a statement was made of; None if it was not made here."""
        if not isinstance(block, dict) or block.keys() - {
            "Effect",
            "Action",
            "Resource",
            "Condition",
        }:
            return None
        found = self._pattern(block.get("Resource"))
        host = _host(block.get("Condition"))
        action = block.get("Action")
        if found is None or host is None or not isinstance(action, str):
            return None
        operation = ALL if action == _ALL_ACTIONS else _OPERATIONS.get(action)
        if operation is None:
            return None
        resource_type, name, pattern_type = found
        is_allow = block.get("Effect") == "Allow"
        return Acl(
            resource_type=resource_type,
            resource_name=name,
            pattern_type=pattern_type,
            principal=PRINCIPAL + user,
            host=host,
            operation=int(operation),
            permission_type=Permission.ALLOW if is_allow else Permission.DENY,
        )

    def _pattern(self, resource: object) -> tuple[int, str, int] | None:
        if not isinstance(resource, str):
            return None
        if resource == self._prefixes[ResourceType.CLUSTER]:
            return ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL
        for resource_type, prefix in self._prefixes.items():
            if resource_type == ResourceType.CLUSTER or not resource.startswith(prefix):
                continue
            rest = resource.removeprefix(prefix)
            if rest == ANY_NAME:
                return resource_type, ANY_NAME, PatternType.LITERAL
            is_prefix = rest.endswith("*")
            name = _unescaped(rest[:-1] if is_prefix else rest)
            if name is None:
                return None
            pattern_type = PatternType.PREFIXED if is_prefix else PatternType.LITERAL
            return resource_type, name, pattern_type
        return None


_SPECIAL: Final = re.compile(r"[*?$]")
_TOKENS: Final = re.compile(r"\$\{([*?$])\}|([^*?$])", re.DOTALL)


def _escaped(name: str) -> str:
    return _SPECIAL.sub(lambda found: f"${{{found[0]}}}", name)


def _unescaped(text: str) -> str | None:
    """None for what has wildcards, or nothing at all."""
    name = []
    at = 0
    while at < len(text):
        token = _TOKENS.match(text, at)
        if token is None:
            return None
        name.append(token[1] or token[2])
        at = token.end()
    return "".join(name) or None


def _host(condition: object) -> str | None:
    if condition is None:
        return ANY_HOST
    if not isinstance(condition, dict) or condition.keys() != {"IpAddress"}:
        return None
    inner = condition["IpAddress"]
    if not isinstance(inner, dict) or inner.keys() != {"aws:SourceIp"}:
        return None
    address = inner["aws:SourceIp"]
    return address if isinstance(address, str) and "/" not in address else None


def _with_statements(user: User, blocks: Sequence[Any]) -> User:
    policies = {name: text for name, text in user.policies.items() if name != POLICY}
    if blocks:
        document = {"Version": VERSION, "Statement": blocks}
        policies[POLICY] = msgspec.json.encode(document).decode()
    return msgspec.structs.replace(user, policies=policies)


# ── Looking for rules ────────────────────────────────────────────────────────────────────────


def check_filter(wanted: Filter) -> None:
    """Raises Refusal for numbers that stand for nothing."""
    if not ANY <= wanted.pattern_type_filter <= PatternType.PREFIXED:
        raise _invalid("There is no such type of pattern.")
    for number in (wanted.resource_type_filter, wanted.operation, wanted.permission_type):
        if number < ANY:
            raise _invalid("A filter names what it looks for, or says that it is any.")


def is_wanted(rule: Acl, wanted: Filter) -> bool:
    return (
        wanted.resource_type_filter in (ANY, rule.resource_type)
        and wanted.operation in (ANY, rule.operation)
        and wanted.permission_type in (ANY, rule.permission_type)
        and wanted.principal_filter in (None, rule.principal)
        and wanted.host_filter in (None, rule.host)
        and _is_named(rule, wanted)
    )


def _is_named(rule: Acl, wanted: Filter) -> bool:
    name, pattern_type = wanted.resource_name_filter, wanted.pattern_type_filter
    if pattern_type in (PatternType.LITERAL, PatternType.PREFIXED):
        return pattern_type == rule.pattern_type and name in (None, rule.resource_name)
    if name is None:
        return True
    if pattern_type == ANY:
        return name == rule.resource_name
    if rule.pattern_type == PatternType.PREFIXED:
        return name.startswith(rule.resource_name)
    return rule.resource_name in (name, ANY_NAME)
