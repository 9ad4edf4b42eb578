"""Converts access rules to statements of a user's policy and back, for feature levels below 6.

    User:ann may read topics orders-*, from anywhere
        {"Effect": "Allow", "Action": "kafka:Read",
         "Resource": "arn:aws:sqs:us-east-1:000000000000:orders-*"}

Each such rule is one statement of the user's policy ``kafka-acls``. Other statements that people
wrote there stay unchanged and are not shown. Below feature level 6 new rules are stored like this,
because older nodes cannot read others. Such a rule must name an existing user, and an IP address or
``*`` as host."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from penstock.frontend.kafka.configs.rows import is_address
from penstock.frontend.kafka.errors import ApiError, invalid_request
from penstock.frontend.kafka.permissions import ACTIONS, OF_CLUSTERS, OF_GROUPS, OF_TOPICS
from penstock.model import acls
from penstock.model.errors import AccessDenied
from penstock.model.identity import Caller, User
from penstock.model.levels import ACLS_STORED
from penstock.model.names import queue_arn

POLICY: Final = "kafka-acls"
VERSION: Final = "2012-10-17"  # has ${*} for a literal star
PRINCIPAL: Final = "User:"
_ALL_ACTIONS: Final = "kafka:*"
_OF_RESOURCES: Final[Mapping[int, frozenset[acls.Operation]]] = {
    acls.ResourceType.TOPIC: frozenset(OF_TOPICS),
    acls.ResourceType.GROUP: frozenset(OF_GROUPS),
    acls.ResourceType.CLUSTER: frozenset(OF_CLUSTERS),
    acls.ResourceType.TRANSACTIONAL_ID: frozenset((acls.Operation.WRITE, acls.Operation.DESCRIBE)),
}
_OPERATIONS: Final = {action: each for each, action in ACTIONS.items()}
_FIELDS: Final = frozenset(("Effect", "Action", "Resource", "Condition"))
_SPECIAL: Final = re.compile(r"[*?$]")
_TOKENS: Final = re.compile(r"\$\{([*?$])\}|([^*?$])", re.DOTALL)
_ESCAPED: Final = re.compile(rf"(?:{_TOKENS.pattern})+", re.DOTALL)


def user_of(rule: acls.Acl) -> str:
    """Return the user whose policy stores the rule. Raises ApiError if a policy cannot store it."""
    name = rule.principal.removeprefix(PRINCIPAL)
    operations = _OF_RESOURCES.get(rule.resource_type, frozenset())
    is_written = (
        rule.principal.startswith(PRINCIPAL)
        and name not in ("", acls.EVERY)
        and (rule.operation == acls.ALL or rule.operation in operations)
        and (
            rule.resource_type != acls.ResourceType.CLUSTER
            or rule.pattern_type == acls.PatternType.LITERAL
        )
        and (rule.host == acls.EVERY or is_address(rule.host))
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
    if user.is_operator and not caller.is_operator:
        raise AccessDenied(f"{user.name} is an operator: only an operator may change these rules.")


class AclPolicies:
    __slots__ = ("_prefixes",)

    def __init__(self, *, account: str, region: str) -> None:
        own = f"arn:penstock:kafka:{region}:{account}:"
        self._prefixes: Mapping[int, str] = {
            acls.ResourceType.TOPIC: queue_arn(account, region, ""),
            acls.ResourceType.GROUP: f"{own}group/",
            acls.ResourceType.TRANSACTIONAL_ID: f"{own}txn/",
            acls.ResourceType.CLUSTER: f"{own}cluster",
        }

    def rules_of(self, user: User) -> list[acls.Acl]:
        return [rule for _, rule in self._read(user) if rule is not None]

    def with_rules(self, user: User, added: Sequence[acls.Acl]) -> User:
        """Return the user with these rules added to its policy, unless it has them already."""
        found = self._read(user)
        known = {rule for _, rule in found}
        fresh = [rule for rule in dict.fromkeys(added) if rule not in known]
        if not fresh:
            return user
        blocks = [block for block, _ in found] + [self._statement(rule) for rule in fresh]
        return _with_statements(user, blocks)

    def without_rules(self, user: User, removed: frozenset[acls.Acl]) -> User:
        found = self._read(user)
        kept = [block for block, rule in found if rule not in removed]
        return user if len(kept) == len(found) else _with_statements(user, kept)

    def _read(self, user: User) -> list[tuple[Any, acls.Acl | None]]:
        text = user.policies.get(POLICY)
        if text is None:
            return []
        given = msgspec.json.decode(text)["Statement"]
        blocks = given if isinstance(given, list) else [given]
        return [(block, self._rule(block, user.name)) for block in blocks]

    def _statement(self, rule: acls.Acl) -> dict[str, Any]:
        resource = self._prefixes[rule.resource_type]
        if rule.resource_type != acls.ResourceType.CLUSTER:
            is_literal, name = rule.pattern_type == acls.PatternType.LITERAL, rule.resource_name
            if not is_literal or name != acls.EVERY:
                name = _SPECIAL.sub(lambda found: f"${{{found[0]}}}", name)
            resource += name if is_literal else f"{name}*"
        action = _ALL_ACTIONS
        if rule.operation != acls.ALL:
            action = ACTIONS[acls.Operation(rule.operation)]
        is_allow = rule.permission_type == acls.Permission.ALLOW
        block: dict[str, Any] = {"Effect": "Allow" if is_allow else "Deny"}
        block |= {"Action": action, "Resource": resource}
        if rule.host != acls.EVERY:
            block["Condition"] = {"IpAddress": {"aws:SourceIp": rule.host}}
        return block

    def _rule(self, block: Any, user: str) -> acls.Acl | None:
        """Return the rule that a policy statement expresses, or None if it is another statement."""
        if not isinstance(block, dict) or block.keys() - _FIELDS:
            return None
        found = self._pattern(block.get("Resource"))
        host = _host(block.get("Condition"))
        action = block.get("Action")
        if found is None or host is None or not isinstance(action, str):
            return None
        operation = acls.ALL if action == _ALL_ACTIONS else _OPERATIONS.get(action)
        if operation is None:
            return None
        is_allow = block.get("Effect") == "Allow"
        permission = acls.Permission.ALLOW if is_allow else acls.Permission.DENY
        return acls.Acl(*found, PRINCIPAL + user, host, int(operation), permission)

    def _pattern(self, resource: object) -> tuple[int, str, int] | None:
        if not isinstance(resource, str):
            return None
        if resource == self._prefixes[acls.ResourceType.CLUSTER]:
            return acls.ResourceType.CLUSTER, acls.CLUSTER_NAME, acls.PatternType.LITERAL
        for resource_type, prefix in self._prefixes.items():
            if resource_type == acls.ResourceType.CLUSTER or not resource.startswith(prefix):
                continue
            rest = resource.removeprefix(prefix)
            if rest == acls.EVERY:
                return resource_type, acls.EVERY, acls.PatternType.LITERAL
            name = _unescaped(rest.removesuffix("*"))
            kind = acls.PatternType.PREFIXED if rest.endswith("*") else acls.PatternType.LITERAL
            return None if name is None else (resource_type, name, kind)
        return None


def _unescaped(text: str) -> str | None:
    """Replace ``${*}`` by a star. Return None if the text is empty or has wildcards."""
    if not _ESCAPED.fullmatch(text):
        return None
    return "".join(token[1] or token[2] for token in _TOKENS.finditer(text))


def _host(condition: object) -> str | None:
    match condition:
        case None:
            return acls.EVERY
        case {"IpAddress": {"aws:SourceIp": str(address), **inner}, **rest}:
            return None if inner or rest or "/" in address else address
    return None


def _with_statements(user: User, blocks: Sequence[Any]) -> User:
    policies = {name: text for name, text in user.policies.items() if name != POLICY}
    if blocks:
        document = {"Version": VERSION, "Statement": blocks}
        policies[POLICY] = msgspec.json.encode(document).decode()
    return msgspec.structs.replace(user, policies=policies)
