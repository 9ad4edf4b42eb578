"""What access rules say about a request: the index against a plain reading of Kafka's rules."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.acls import (
    ALL,
    Acl,
    AclIndex,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    host_of,
)

NAMES = st.text(st.sampled_from("ab*"), min_size=1, max_size=4)
HOSTS = st.sampled_from(["*", "10.0.0.1", "::1", "0:0:0:0:0:0:0:1", "example.org"])
TYPES = st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP])
RULES = st.builds(
    Acl,
    resource_type=TYPES,
    resource_name=NAMES,
    pattern_type=st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    principal=st.sampled_from(["User:ann", "User:bob", "User:*", "Group:ann"]),
    host=HOSTS,
    operation=st.sampled_from([ALL, *Operation]),
    permission_type=st.sampled_from(list(Permission)),
)
DESCRIBE_BY = {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}


def is_about(rule: Acl, resource_type: int, name: str) -> bool:
    if rule.resource_type != resource_type:
        return False
    if rule.pattern_type == PatternType.PREFIXED:
        return name.startswith(rule.resource_name)
    return rule.resource_name in (name, "*")


def is_for(rule: Acl, principal: str, host: str) -> bool:
    return rule.principal in (principal, "User:*") and (
        rule.host == "*" or host_of(rule.host) == host
    )


def is_on(rule: Acl, operation: Operation) -> bool:
    if rule.operation in (ALL, operation):
        return True
    if rule.permission_type == Permission.DENY:
        return False
    if operation == Operation.DESCRIBE:
        return rule.operation in DESCRIBE_BY
    return operation == Operation.DESCRIBE_CONFIGS and rule.operation == Operation.ALTER_CONFIGS


def decide_plainly(
    rules: Iterable[Acl],
    operation: Operation,
    resource_type: int,
    *,
    name: str,
    principal: str,
    host: str,
) -> Permission | None:
    found = {
        rule.permission_type
        for rule in rules
        if is_about(rule, resource_type, name)
        and is_for(rule, principal, host)
        and is_on(rule, operation)
    }
    return Permission(min(found)) if found else None


@given(
    rules=st.lists(RULES, max_size=20),
    removed=st.lists(st.integers(0, 19), max_size=20),
    operation=st.sampled_from(list(Operation)),
    resource_type=TYPES,
    name=NAMES,
    principal=st.sampled_from(["User:ann", "User:eve"]),
    host=st.sampled_from(["10.0.0.1", "::1", "10.0.0.2"]),
)
def test_the_index_decides_as_a_plain_reading_of_all_rules(
    rules: list[Acl],
    removed: list[int],
    operation: Operation,
    resource_type: int,
    name: str,
    principal: str,
    host: str,
) -> None:
    index = AclIndex()
    for rule in rules:
        index.add(rule)
    left = dict.fromkeys(rules)
    for place in removed:
        if place < len(rules):
            index.remove(rules[place])
            left.pop(rules[place], None)
    assert list(index) == list(left)
    decided = index.decide(operation, resource_type, name=name, principal=principal, host=host)
    plainly = decide_plainly(
        left, operation, resource_type, name=name, principal=principal, host=host
    )
    assert decided == plainly


@pytest.mark.parametrize("permission", list(Permission))
def test_what_an_operation_implies(permission: Permission) -> None:
    for ruled in (ALL, *Operation):
        rule = Acl(ResourceType.TOPIC, "t", PatternType.LITERAL, "User:ann", "*", ruled, permission)
        index = AclIndex()
        index.add(rule)
        decided = {
            operation
            for operation in Operation
            if index.decide(operation, ResourceType.TOPIC, name="t", principal="User:ann", host="")
        }
        assert decided == {operation for operation in Operation if is_on(rule, operation)}


@given(rules=st.lists(RULES, max_size=20))
def test_nothing_is_left_of_rules_that_are_gone(rules: list[Acl]) -> None:
    index = AclIndex()
    for rule in rules:
        index.add(rule)
    for rule in rules:
        index.remove(rule)
    assert len(index) == len(index._patterns) == 0


@given(rules=st.lists(RULES, max_size=12), host=st.sampled_from(["10.0.0.1", "10.0.0.2"]))
def test_somewhere_is_allowed_by_any_rule_and_denied_by_one_for_everything(
    rules: list[Acl], host: str
) -> None:
    index = AclIndex()
    for rule in rules:
        index.add(rule)
    fitting = [
        rule
        for rule in rules
        if rule.resource_type == ResourceType.TOPIC
        and is_for(rule, "User:ann", host)
        and is_on(rule, Operation.WRITE)
    ]
    expected = None
    if any(rule.permission_type == Permission.ALLOW for rule in fitting):
        expected = Permission.ALLOW
    if any(
        (rule.permission_type, rule.resource_name, rule.pattern_type)
        == (Permission.DENY, "*", PatternType.LITERAL)
        for rule in fitting
    ):
        expected = Permission.DENY
    decided = index.decide_somewhere(
        Operation.WRITE, ResourceType.TOPIC, principal="User:ann", host=host
    )
    assert decided == expected


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("Example.org", "Example.org"),
        ("", ""),
        ("*", "*"),
    ],
)
def test_an_address_has_one_form(text: str, host: str) -> None:
    assert host_of(text) == host
