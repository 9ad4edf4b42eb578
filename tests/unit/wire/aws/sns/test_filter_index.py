"""The index of all policies of a topic: it finds the same policies as testing each of them."""

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.model.message import Attribute
from penstock.wire.aws.sns.filter_match import PolicyIndex, PreparedMessage, matches
from penstock.wire.aws.sns.filter_policy import Policy, Scope, compile_policy


def policy_of(policy: object, scope: Scope = Scope.BODY) -> Policy:
    return compile_policy(json.dumps(policy), scope=scope)


def message_of(body: object, **attributes: str) -> PreparedMessage:
    found = {name: Attribute("String", value.encode()) for name, value in attributes.items()}
    return PreparedMessage(found, json.dumps(body))


def steps_of(index: PolicyIndex[Any], message: PreparedMessage) -> int:
    """Return the number of steps: at most one for each rule tested and each path looked up."""
    return sum(1 for _ in index.match_in_steps(message))


def test_a_subscription_without_a_policy_or_with_an_empty_one_matches_every_message() -> None:
    index = PolicyIndex[str]()
    index.add("none", None)
    index.add("attributes", policy_of({}, Scope.ATTRIBUTES))
    index.add("body", policy_of({}))
    index.add("other", policy_of({"a": ["x"]}))
    assert index.match(PreparedMessage(None, "not json")) == {"none", "attributes", "body"}
    index.remove("none")
    assert index.match(PreparedMessage(None, "")) == {"attributes", "body"}


def test_adding_a_key_again_replaces_its_policy() -> None:
    index = PolicyIndex[int]()
    index.add(1, policy_of({"a": ["x"]}))
    index.add(1, policy_of({"a": ["y"]}, Scope.ATTRIBUTES))
    assert index.match(message_of({"a": "x"})) == set()
    assert index.match(message_of({}, a="y")) == {1}
    index.add(1, None)
    assert index.match(message_of({})) == {1}
    index.add(1, policy_of({"a": ["z"]}))
    assert index.match(message_of({})) == set()


def test_removing_an_unknown_key_does_nothing() -> None:
    index = PolicyIndex[int]()
    index.remove(1)
    index.add(1, policy_of({"a": ["x"]}))
    index.remove(1)
    index.remove(1)
    assert index.match(message_of({"a": "x"})) == set()


def test_a_key_is_matched_once_whatever_the_number_of_its_alternatives() -> None:
    index = PolicyIndex[int]()
    index.add(1, policy_of({"$or": [{"a": ["x"]}, {"b": ["y"]}, {"c": [{"prefix": "z"}]}]}))
    assert index.match(message_of({"a": "x", "b": "y", "c": "z"})) == {1}
    assert index.match(message_of({"c": "z"})) == {1}
    assert index.match(message_of({"a": "y"})) == set()


def test_both_scopes_are_matched_in_one_call() -> None:
    index = PolicyIndex[str]()
    index.add("body", policy_of({"a": ["x"]}))
    index.add("attributes", policy_of({"a": ["y"]}, Scope.ATTRIBUTES))
    assert index.match(message_of({"a": "x"}, a="y")) == {"body", "attributes"}
    assert index.match(message_of({"a": "y"}, a="x")) == set()


def test_a_path_is_found_as_long_as_one_policy_has_it() -> None:
    index = PolicyIndex[int]()
    index.add(1, policy_of({"a": {"b": ["x"]}}))
    index.add(2, policy_of({"a.b": ["x"], "a": {"c": ["y"]}}))
    index.add(3, policy_of({"a": [{"exists": True}]}))
    message = {"a": [{"b": "x", "c": "y"}, 0]}
    assert index.match(message_of(message)) == {1, 2, 3}
    index.remove(1)
    assert index.match(message_of(message)) == {2, 3}
    index.remove(3)
    assert index.match(message_of(message)) == {2}
    index.add(1, policy_of({"a": {"b": ["x"]}}))
    index.remove(2)
    assert index.match(message_of(message)) == {1}


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("more", [{}, {"kind": ["order"]}, {"size": [{"numeric": [">", 5]}]}])
def test_of_a_thousand_policies_only_those_that_may_match_are_tested(
    scope: Scope, more: dict[str, Any]
) -> None:
    index = PolicyIndex[int]()
    for number in range(1_000):
        index.add(number, policy_of({**more, "customer": [f"c{number}", number]}, scope))
    body = {"customer": "c500", "kind": "order", "size": 6}
    attributes = {
        "customer": Attribute("String", b"c500"),
        "kind": Attribute("String", b"order"),
        "size": Attribute("Number", b"6"),
    }
    message = PreparedMessage(attributes, json.dumps(body))
    assert index.match(message) == {500}
    assert steps_of(index, message) < 15


def test_the_more_selective_key_is_used_whatever_the_order_of_the_keys() -> None:
    index = PolicyIndex[int]()
    for number in range(1_000):
        keys = {"kind": ["order"], "customer": [f"c{number}"]}
        if number % 2:
            keys = dict(reversed(keys.items()))
        index.add(number, policy_of(keys))
    message = message_of({"kind": "order", "customer": "c77"})
    assert index.match(message) == {77}
    assert steps_of(index, message) < 15


def test_alternatives_are_found_by_their_values_too() -> None:
    index = PolicyIndex[int]()
    for number in range(1_000):
        members = [{"customer": [f"c{number}"]}, {"parent": [f"p{number}"]}]
        index.add(number, policy_of({"$or": members, "kind": [{"prefix": "or"}]}))
    message = message_of({"kind": "order", "customer": "c77", "parent": "p78"})
    assert index.match(message) == {77, 78}
    assert steps_of(index, message) < 20


def test_policies_may_change_between_the_steps_of_a_match() -> None:
    index = PolicyIndex[int]()
    for number in range(20):
        index.add(number, policy_of({f"key{number}": ["x"]}))
        index.add(100 + number, policy_of({"a": {f"key{number}": [{"prefix": "x"}]}}))
    keys = {f"key{number}": "x" for number in range(20)}
    steps = index.match_in_steps(message_of({**keys, "a": [keys] * 6_000}))
    for number, _ in enumerate(steps):
        index.remove(number % 20)
        index.remove(100 + number % 20)
        index.add(200 + number, policy_of({f"other{number}": {"a": ["x"]}}))
    message = message_of({**keys, "a": keys, "other3.a": "x"})
    assert index.match(message) == {203}


def test_the_body_is_not_parsed_for_policies_on_attributes() -> None:
    class Unreadable(str):
        __slots__ = ()

        def __bool__(self) -> bool:
            raise AssertionError("the body was read")

    index = PolicyIndex[int]()
    index.add(1, policy_of({"a": ["x"]}, Scope.ATTRIBUTES))
    message = PreparedMessage({"a": Attribute("String", b"x")}, Unreadable("{}"))
    assert index.match(message) == {1}


# ── Comparison with testing each policy ──────────────────────────────────────────────────────

NAMES = st.sampled_from(["a", "b", "a.b", "c"])
CONDITIONS = st.sampled_from(
    [
        *("x", "y", 1, True, None, {"prefix": "x"}, {"exists": False}, {"exists": True}),
        *({"anything-but": "x"}, {"numeric": ["=", 1]}, {"numeric": [">", 0]}, {"wildcard": "x"}),
    ]
)
LISTS = st.lists(CONDITIONS, min_size=1, max_size=3)
FLAT = st.dictionaries(NAMES, LISTS, min_size=1, max_size=3)
SPLIT = st.builds(
    lambda keys, members: {**keys, "$or": members},
    st.dictionaries(NAMES, LISTS, max_size=1),
    st.lists(st.dictionaries(NAMES, LISTS, min_size=1, max_size=1), min_size=2, max_size=3),
)
SCALARS = st.sampled_from(["x", "y", "xy", 1, 1.0, True, None])
BODIES = st.dictionaries(
    NAMES,
    st.recursive(
        SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner)
    ),
    max_size=3,
)


class IndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = PolicyIndex[int]()
        self.policies: dict[int, Policy | None] = {}

    @rule(key=st.integers(0, 8), policy=FLAT | SPLIT | st.just({}), scope=st.sampled_from(Scope))
    def add(self, key: int, policy: object, scope: Scope) -> None:
        self.policies[key] = policy_of(policy, scope)
        self.index.add(key, self.policies[key])

    @rule(key=st.integers(0, 8))
    def add_without_policy(self, key: int) -> None:
        self.policies[key] = None
        self.index.add(key, None)

    @rule(key=st.integers(0, 8))
    def remove(self, key: int) -> None:
        self.policies.pop(key, None)
        self.index.remove(key)

    @rule(body=BODIES, attributes=st.dictionaries(NAMES, SCALARS))
    def match(self, body: object, attributes: dict[str, Any]) -> None:
        arrays = {
            name: Attribute("String.Array", json.dumps([value]).encode())
            for name, value in attributes.items()
        }
        message = PreparedMessage(arrays, json.dumps(body))
        expected = {
            key
            for key, policy in self.policies.items()
            if policy is None or matches(policy, message)
        }
        assert self.index.match(message) == expected

    @invariant()
    def nothing_is_left_when_all_are_removed(self) -> None:
        if not self.policies:
            parts = self.index._parts
            assert all(part.is_empty for part in parts.values())
            assert not vars(parts[Scope.ATTRIBUTES].paths)["_counts"]
            assert not vars(parts[Scope.BODY].paths)["_root"].children


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=300, stateful_step_count=25, deadline=None)
