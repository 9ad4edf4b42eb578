"""Which access rules (ACLs) are valid, and which rules a filter finds. Pure.

``model/acls.py`` decides what rules allow. Rules from below feature level 6 are statements of a
user's policy (``policy_acls.py``); they are shown and deleted with the others."""

from typing import Final, Protocol

from penstock.frontend.kafka.refusal import Refusal
from penstock.model.acls import (
    ALL,
    ANY,
    CLUSTER_NAME,
    EVERY,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from penstock.model.limits import ACL_TEXT_CHARS_MAX
from penstock.wire.kafka.faults import ErrorCode

_TYPES: Final = frozenset(ResourceType)
_OPERATIONS: Final = frozenset((ALL, *Operation))
_PATTERNS: Final = frozenset(PatternType)
_PERMISSIONS: Final = frozenset(Permission)


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


# ── What may be a rule ───────────────────────────────────────────────────────────────────────


def check(acl: Acl) -> None:
    """Raises Refusal."""
    if acl.resource_type not in _TYPES:
        raise _invalid(f"Invalid resource type {acl.resource_type}: 2 to 7 are allowed.")
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"Invalid pattern type {acl.pattern_type}: a rule is literal or prefixed.")
    if acl.operation not in _OPERATIONS:
        raise _invalid(f"Invalid operation {acl.operation}: 2 to 15 are allowed.")
    if acl.permission_type not in _PERMISSIONS:
        raise _invalid(f"Invalid permission type {acl.permission_type}: a rule allows or denies.")
    if not acl.resource_name:
        raise _invalid("Invalid empty resource name")
    if acl.resource_type == ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if ":" not in acl.principal:
        raise _invalid(
            f"Could not parse principal from `{acl.principal[:100]}` (no colon is present"
            " separating the principal type from the principal name)"
        )
    for what, text in (
        ("resource name", acl.resource_name),
        ("principal", acl.principal),
        ("host", acl.host),
    ):
        if len(text) > ACL_TEXT_CHARS_MAX:
            raise _invalid(
                f"The {what} has {len(text):,} characters; at most {ACL_TEXT_CHARS_MAX:,} are"
                " allowed."
            )


def _invalid(reason: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, reason)


# ── Looking for rules ────────────────────────────────────────────────────────────────────────


def check_filter(wanted: Filter) -> None:
    """Raises Refusal for numbers that have no meaning: nothing may be deleted by mistake."""
    for what, number, known in (
        ("resource type", wanted.resource_type_filter, _TYPES),
        ("pattern type", wanted.pattern_type_filter, _PATTERNS),
        ("operation", wanted.operation, _OPERATIONS),
        ("permission type", wanted.permission_type, _PERMISSIONS),
    ):
        if number != ANY and number not in known:
            raise _invalid(f"Invalid {what} {number} in a filter; {ANY} stands for any.")


def is_wanted(rule: Acl, wanted: Filter) -> bool:
    """Numbers that have no meaning match no rule."""
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
    if pattern_type not in (ANY, PatternType.MATCH):
        return pattern_type == rule.pattern_type and name in (None, rule.resource_name)
    if name is None:
        return True
    if pattern_type == ANY:
        return name == rule.resource_name
    if rule.pattern_type == PatternType.PREFIXED:
        return name.startswith(rule.resource_name)
    return rule.resource_name in (name, EVERY)
