"""Access rules as statements of a user's policy, as all rules were before feature level 6. Pure.

    User:ann may read topics orders-*, from anywhere
        {"Effect": "Allow", "Action": "kafka:Read",
         "Resource": "arn:aws:sqs:us-east-1:000000000000:orders-*"}

Each such rule is one statement of the user's policy ``kafka-acls``, and can be read back from it.
Statements that people wrote there and that are not rules stay unchanged and are not shown.

Below feature level 6 new rules are still stored like this, because older nodes know no others: only
for existing users, by name, and with an address or ``*`` as host."""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from penstock.frontend.kafka.errors import ApiError, invalid_request
from penstock.frontend.kafka.permissions import ACTIONS, OF_CLUSTERS, OF_GROUPS, OF_TOPICS
from penstock.model.acls import (
    ALL,
    CLUSTER_NAME,
    EVERY,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from penstock.model.errors import AccessDenied
from penstock.model.identity import Caller, User
from penstock.model.levels import ACLS_STORED
from penstock.model.names import queue_arn

POLICY: Final = "kafka-acls"
VERSION: Final = "2012-10-17"  # can express a literal star
PRINCIPAL: Final = "User:"
_ALL_ACTIONS: Final = "kafka:*"
_OF_RESOURCES: Final[Mapping[int, frozenset[Operation]]] = MappingProxyType(
    {
        ResourceType.TOPIC: frozenset(OF_TOPICS),
        ResourceType.GROUP: frozenset(OF_GROUPS),
        ResourceType.CLUSTER: frozenset(OF_CLUSTERS),
        ResourceType.TRANSACTIONAL_ID: frozenset((Operation.WRITE, Operation.DESCRIBE)),
    }
)
_OPERATIONS: Final = MappingProxyType({action: each for each, action in ACTIONS.items()})


def user_of(rule: Acl) -> str:
    """Return the user whose policy can have the rule. Raises ApiError if no policy can."""
    name = rule.principal.removeprefix(PRINCIPAL)
    operations = _OF_RESOURCES.get(rule.resource_type, frozenset())
    is_written = (
        rule.principal.startswith(PRINCIPAL)
        and name not in ("", EVERY)
        and (rule.operation == ALL or rule.operation in operations)
        and (rule.resource_type != ResourceType.CLUSTER or rule.pattern_type == PatternType.LITERAL)
        and (rule.host == EVERY or _is_address(rule.host))
    )
    if not is_written:
        raise needs_level("This rule")
    return name


def needs_level(what: str) -> ApiError:
    return invalid_request(
        f"{what} needs feature level {ACLS_STORED}: upgrade all nodes, then run penstock cluster"
        " upgrade."
    )


def check_may_change(caller: Caller, user: User) -> None:
    """Raises AccessDenied if ``user`` is an operator and ``caller`` is not."""
    if user.is_operator and not caller.is_operator:
        raise AccessDenied(f"{user.name} is an operator: only an operator may change these rules.")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


class AclPolicies:
    """Converts rules of one account from and to policies."""

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
        """Rules that exist already are not added again."""
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
        if rule.host != EVERY:
            block["Condition"] = {"IpAddress": {"aws:SourceIp": rule.host}}
        return block

    def _resource(self, rule: Acl) -> str:
        prefix = self._prefixes[rule.resource_type]
        if rule.resource_type == ResourceType.CLUSTER:
            return prefix
        if rule.pattern_type == PatternType.LITERAL and rule.resource_name == EVERY:
            return prefix + EVERY
        star = "*" if rule.pattern_type == PatternType.PREFIXED else ""
        return prefix + _escaped(rule.resource_name) + star

    def _rule(self, block: Any, user: str) -> Acl | None:
        """Return the rule of a statement; None if the statement is not a rule."""
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
            if rest == EVERY:
                return resource_type, EVERY, PatternType.LITERAL
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
    """Return None for a text with wildcards, or an empty text."""
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
        return EVERY
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
