"""Which messages match a filter policy: tables of cases, and a naive evaluator as a model."""

import itertools
import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import cache
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from penstock.model.message import Attribute
from penstock.wire.aws.sns.filter_match import PreparedMessage, matches, matches_in_steps
from penstock.wire.aws.sns.filter_policy import InvalidFilterPolicy, Policy, Scope, compile_policy

MIB = 1_048_576


def body_policy(policy: object) -> Policy:
    return compile_policy(json.dumps(policy), scope=Scope.BODY)


def body_matches(policy: object, body: object) -> bool:
    text = body if isinstance(body, str | bytes) else json.dumps(body)
    return matches(body_policy(policy), PreparedMessage(None, text))


def attributes_match(policy: object, attributes: Mapping[str, tuple[str, str | bytes]]) -> bool:
    found = {
        name: Attribute(data_type, value.encode() if isinstance(value, str) else value)
        for name, (data_type, value) in attributes.items()
    }
    compiled = compile_policy(json.dumps(policy), scope=Scope.ATTRIBUTES)
    return matches(compiled, PreparedMessage(found, "not json"))


# ── Conditions ───────────────────────────────────────────────────────────────────────────────

CONDITIONS: list[tuple[object, list[object], list[object]]] = [
    # a condition, values that satisfy it, values that do not
    ("x", ["x"], ["X", "xy", "", 1, None, True]),
    ("", [""], ["x", None, 0, False]),
    ("100", ["100"], [100, 100.0, "100.0"]),
    (100, [100, 100.0, 1e2, 100.000004, 99.999996], ["100", 101, 100.00001, True]),
    (100.123456789, [100.1234567, 100.12346], [100.12345, 100.1235]),
    (0, [0, 0.0, -0.0, 0.000001], [False, None, "0", "", 0.00001]),
    (1, [1, 1.0], [True, "1"]),
    (2**53 + 1, [2**53 + 1], [2**53, 2**53 + 2]),
    (10**30, [10**30, 1e30], [10**31]),
    (True, [True], [1, "true", False, None]),
    (False, [False], [0, "false", True, None]),
    (None, [None], ["null", 0, False, ""]),
    ({"prefix": "ab"}, ["ab", "abc"], ["a", "AB", "cab", 1, None, True]),
    ({"prefix": ""}, ["", "x"], [1, None, False]),
    ({"prefix": "1"}, ["1", "10"], [1, 10]),
    ({"suffix": "bc"}, ["bc", "abc"], ["b", "abcd", "BC", 1]),
    ({"suffix": ""}, ["", "x"], [1, None]),
    ({"equals-ignore-case": "Ab"}, ["ab", "AB", "aB", "Ab"], ["abc", "a", "b", 1]),
    ({"equals-ignore-case": "STRASSE"}, ["strasse"], ["straße"]),
    ({"equals-ignore-case": "ÄÖ"}, ["äö", "Äö"], ["ao"]),
    ({"wildcard": "*"}, ["", "x", "*"], [1, None, True]),
    ({"wildcard": "a*"}, ["a", "ab", "a*"], ["", "ba", "A"]),
    ({"wildcard": "*a"}, ["a", "ba", "aa"], ["ab", ""]),
    ({"wildcard": "a*a"}, ["aa", "aba", "aaa"], ["a", "ab"]),
    ({"wildcard": "*a*b*"}, ["ab", "xaxbx", "aab"], ["ba", "a", "b"]),
    ({"wildcard": "a*b*c"}, ["abc", "abbc", "a-b-c"], ["ac", "abcd", "acb"]),
    ({"wildcard": "**a**"}, ["a", "xax"], ["", "b"]),
    ({"wildcard": "ab*ba"}, ["abba", "ab-ba"], ["aba", "ab", "ba"]),
    ({"wildcard": "*ab*ab"}, ["abab", "xabxab"], ["ab", "aab"]),
    ({"wildcard": "abc"}, ["abc"], ["ab", "abcd", "ABC"]),
    ({"wildcard": "a\\*b"}, ["a*b"], ["ab", "axb", "a\\*b"]),
    ({"wildcard": "a\\\\*"}, ["a\\", "a\\b"], ["a", "a*"]),
    ({"wildcard": "a.c"}, ["a.c"], ["abc"]),
    ({"wildcard": "[a]*"}, ["[a]", "[a]b"], ["a", "ab"]),
    ({"wildcard": "a\n*"}, ["a\n", "a\n\n"], ["a"]),
    ({"anything-but": "x"}, ["y", "", "X", 1, None, True], ["x"]),
    ({"anything-but": ["x", "y"]}, ["z", 1], ["x", "y"]),
    ({"anything-but": 100}, [101, "100", None], [100, 100.0, 100.000001]),
    ({"anything-but": [1, 2]}, [3, "1", True], [1, 2, 2.0]),
    ({"anything-but": ["x", 1]}, ["y", 2, True], ["x", 1]),
    ({"anything-but": False}, [True, 0, "false", None], [False]),
    ({"anything-but": None}, [0, "null", ""], [None]),
    ({"anything-but": {"prefix": "ab"}}, ["a", "ba", "AB", "", 1, None], ["ab", "abc"]),
    ({"numeric": ["=", 5]}, [5, 5.0, 5.000001], [5.1, "5", 4, True]),
    ({"numeric": ["=", 301.8]}, [301.8, 3.018e2], [301.81]),
    ({"numeric": [">", 5]}, [6, 5.1, 10**40], [5, 4, 5.000001, "6", True]),
    ({"numeric": [">=", 5]}, [5, 6, 4.999999], [4, 4.9, "5"]),
    ({"numeric": ["<", 5]}, [4, -5, -(10**40)], [5, 6, 4.999999, "4", False, None]),
    ({"numeric": ["<=", 5]}, [5, 4, 5.000001], [6, 5.1]),
    ({"numeric": [">", 0, "<=", 100]}, [1, 100, 0.5], [0, 101, -1]),
    ({"numeric": [">=", 0, "<", 100]}, [0, 99.99], [100, -1, 0.0 - 1]),
    ({"numeric": [">", -10, "<", -5]}, [-6, -9.5], [-10, -5, 7]),
    ({"exists": True}, ["x", "", 0, None, False, 1.5], []),
    ({"exists": False}, [], ["x", "", 0, None, False, 1.5]),
    ({"cidr": "10.0.0.0/24"}, ["10.0.0.0", "10.0.0.255"], ["10.0.0.256", "10.0.1.255", "x", 10]),
    ({"cidr": "10.0.0.77/24"}, ["10.0.0.1"], ["10.0.1.1"]),
    ({"cidr": "10.1.2.3/32"}, ["10.1.2.3"], ["10.1.2.4"]),
    ({"cidr": "0.0.0.0/0"}, ["1.2.3.4"], ["::1", "", "1.2.3", "1.2.3.4 ", "1.2.3.4/32"]),
    (
        {"cidr": "2001:db8:1234:1a00::/64"},
        [
            "2001:0db8:1234:1a00:0000:0000:0000:0000",
            "2001:db8:1234:1a00::9",
            "2001:DB8:1234:1A00::9",
        ],
        ["2001:0db8:123f:1a01::", "2001:db8:1234:1a00::9%eth0", "10.0.0.1", "x" * 1_000],
    ),
]


@pytest.mark.parametrize(
    ("condition", "value", "expected"),
    [(each, value, True) for each, yes, _ in CONDITIONS for value in yes]
    + [(each, value, False) for each, _, no in CONDITIONS for value in no],
    ids=lambda value: str(value)[:40],
)
def test_conditions(condition: object, value: object, expected: bool) -> None:
    assert body_matches({"key": [condition]}, {"key": value}) is expected
    assert body_matches({"key": [condition]}, {"key": [[value]]}) is expected
    array = {"key": ("String.Array", json.dumps([value]))}
    assert attributes_match({"key": [condition]}, array) is expected
    assert attributes_match({"key": [condition]}, {"key": ("String.Array", json.dumps(value))}) is (
        expected
    )


# ── Attributes ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("policy", "attributes", "expected"),
    [
        ({}, {}, True),
        ({}, {"a": ("String", "x")}, True),
        ({"a": ["x"]}, {}, False),
        ({"a": ["x"]}, {"a": ("String", "x")}, True),
        ({"a": ["x"]}, {"A": ("String", "x")}, False),
        ({"a": ["x"]}, {"a": ("String.custom", "x")}, True),
        ({"a": ["x"]}, {"a": ("Binary", "x")}, False),
        ({"a": ["x"]}, {"a": ("Binary.png", "x")}, False),
        ({"a": [{"anything-but": "y"}]}, {"a": ("Binary", "x")}, False),
        ({"a": [{"anything-but": {"prefix": "y"}}]}, {"a": ("Binary", "x")}, False),
        ({"a": [{"prefix": ""}]}, {"a": ("Binary", "x")}, False),
        ({"a": [{"exists": True}]}, {"a": ("Binary", b"\xff")}, True),
        ({"a": [{"exists": False}]}, {"a": ("Binary", b"\xff")}, False),
        ({"a": [None]}, {}, False),
        ({"a": [None, {"anything-but": "x"}]}, {}, False),
        ({"a": [{"exists": True}]}, {}, False),
        ({"a": [{"exists": False}]}, {}, True),
        ({"a": [{"exists": False}]}, {"b": ("String", "x")}, True),
        ({"a": [{"exists": False}, "x"]}, {"a": ("String", "x")}, True),
        ({"a": [{"exists": False}, "x"]}, {"a": ("String", "y")}, False),
        ({"a": ["x"], "b": ["y"]}, {"a": ("String", "x")}, False),
        ({"a": ["x"], "b": ["y"]}, {"a": ("String", "x"), "b": ("String", "y")}, True),
        ({"a": ["x"], "b": ["y"]}, {"a": ("String", "x"), "b": ("String", "z")}, False),
        ({"a": [{"anything-but": "x"}, {"anything-but": "y"}]}, {"a": ("String", "x")}, True),
        (
            {"a": [{"anything-but": ["x", "z"]}, {"anything-but": ["y", "z"]}]},
            {"a": ("String", "z")},
            False,
        ),
        # Types
        ({"a": ["100"]}, {"a": ("Number", "100")}, False),
        ({"a": [100]}, {"a": ("String", "100")}, False),
        ({"a": [100]}, {"a": ("Number", "100")}, True),
        ({"a": [100]}, {"a": ("Number.int", "100.0")}, True),
        ({"a": [100]}, {"a": ("Number", "1e2")}, True),
        ({"a": [100]}, {"a": ("Number", "+100")}, True),
        ({"a": [0.5]}, {"a": ("Number", ".5")}, True),
        ({"a": [5]}, {"a": ("Number", "5.")}, True),
        ({"a": [100.123456789]}, {"a": ("Number", "100.1234567")}, True),
        ({"a": [12345678901234567]}, {"a": ("Number", "12345678901234567")}, True),
        ({"a": [12345678901234567]}, {"a": ("Number", "12345678901234568")}, False),
        ({"a": [1e38]}, {"a": ("Number", "1" + "0" * 38)}, True),
        ({"a": [{"numeric": [">", 0, "<=", 150]}]}, {"a": ("Number", "122")}, True),
        ({"a": [{"numeric": [">", 0, "<=", 150]}]}, {"a": ("Number", "200")}, False),
        ({"a": [{"numeric": [">", 0]}]}, {"a": ("Number", "-1")}, False),
        ({"a": [{"numeric": [">", 0]}]}, {"a": ("String", "1")}, False),
        ({"a": [{"numeric": ["<", 0]}]}, {"a": ("Number", "-1e999")}, True),
        ({"a": [{"prefix": "1"}]}, {"a": ("Number", "1")}, False),
        ({"a": [True]}, {"a": ("String", "true")}, False),
        ({"a": [None]}, {"a": ("String", "null")}, False),
        # Numbers that only a Kafka producer can write
        ({"a": [{"exists": True}]}, {"a": ("Number", "many")}, True),
        ({"a": [{"anything-but": 1}]}, {"a": ("Number", "many")}, False),
        ({"a": [{"numeric": [">", 0]}]}, {"a": ("Number", "inf")}, False),
        ({"a": [{"numeric": [">", 0]}]}, {"a": ("Number", "1_0")}, False),
        ({"a": [{"numeric": [">", 0]}]}, {"a": ("Number", " 1")}, False),
        ({"a": [{"numeric": [">", 0]}]}, {"a": ("Number", "9" * 5_000)}, False),
        ({"a": [{"exists": True}]}, {"a": ("String", b"\xff")}, True),
        ({"a": [""]}, {"a": ("String", "")}, True),
        # Arrays
        ({"a": ["x"]}, {"a": ("String.Array", '["x", "y"]')}, True),
        ({"a": ["z"]}, {"a": ("String.Array", '["x", "y"]')}, False),
        ({"a": ["x"]}, {"a": ("String.Array", ' ["x"]\n')}, True),
        ({"a": ["x"]}, {"a": ("String", '["x"]')}, False),
        ({"a": ['["x"]']}, {"a": ("String", '["x"]')}, True),
        ({"a": [100]}, {"a": ("String.Array", "[100, 50]")}, True),
        ({"a": [100]}, {"a": ("String.Array", '["100"]')}, False),
        ({"a": [True]}, {"a": ("String.Array", "[true]")}, True),
        ({"a": [None]}, {"a": ("String.Array", "[null]")}, True),
        ({"a": ["x"]}, {"a": ("String.Array", '"x"')}, True),
        ({"a": [100]}, {"a": ("String.Array", "100")}, True),
        ({"a": [None]}, {"a": ("String.Array", "null")}, True),
        ({"a": ["x"]}, {"a": ("String.Array", "x")}, False),
        ({"a": ["x"]}, {"a": ("String.Array", "['x']")}, False),
        ({"a": [{"exists": True}]}, {"a": ("String.Array", "x")}, False),
        ({"a": [{"exists": False}]}, {"a": ("String.Array", "x")}, False),
        ({"a": [{"anything-but": "y"}]}, {"a": ("String.Array", "x")}, False),
        ({"a": [{"exists": True}]}, {"a": ("String.Array", '{"x": 1}')}, False),
        ({"a": [{"exists": False}]}, {"a": ("String.Array", '{"x": 1}')}, False),
        ({"a": [{"exists": True}]}, {"a": ("String.Array", "[]")}, False),
        ({"a": [{"exists": False}]}, {"a": ("String.Array", "[]")}, True),
        ({"a": ["x"]}, {"a": ("String.Array", '[[["x"]]]')}, True),
        ({"a": ["x"]}, {"a": ("String.Array", '[{"a": "x"}]')}, False),
        ({"a": ["x"]}, {"a": ("String.Array", "[" * 100_000)}, False),
        ({"a": ["x"]}, {"a": ("String.Array", "[" * 900 + '"x"' + "]" * 900)}, False),
        ({"a": [{"anything-but": "x"}]}, {"a": ("String.Array", '["x", "y"]')}, True),
        ({"a": [{"anything-but": "x"}]}, {"a": ("String.Array", '["x", "x"]')}, False),
        ({"a": [{"prefix": "so"}]}, {"a": ("String.Array", '["rugby", "soccer"]')}, True),
        # A name with a dot is only a name here.
        ({"a.b": ["x"]}, {"a.b": ("String", "x")}, True),
        ({"a.b": ["x"]}, {"a": ("String.Array", '[{"b": "x"}]')}, False),
        # $or
        (
            {"a": ["x"], "$or": [{"b": ["y"]}, {"c": ["z"]}]},
            {"a": ("String", "x"), "c": ("String", "z")},
            True,
        ),
        (
            {"a": ["x"], "$or": [{"b": ["y"]}, {"c": ["z"]}]},
            {"a": ("String", "y"), "c": ("String", "z")},
            False,
        ),
        ({"$or": [{"b": ["y"]}, {"c": ["z"]}]}, {"b": ("String", "z")}, False),
        ({"$or": ["x", "y"]}, {"$or": ("String", "y")}, True),
        ({"$or": [{"prefix": "x"}]}, {"$or": ("String", "xy")}, True),
    ],
)
def test_attributes(
    policy: object, attributes: dict[str, tuple[str, str | bytes]], expected: bool
) -> None:
    assert attributes_match(policy, attributes) is expected


def test_a_policy_for_attributes_ignores_the_body_and_the_other_way_round() -> None:
    message = PreparedMessage({"a": Attribute("String", b"x")}, '{"a": "y"}')
    assert matches(compile_policy('{"a": ["x"]}', scope=Scope.ATTRIBUTES), message)
    assert not matches(compile_policy('{"a": ["y"]}', scope=Scope.ATTRIBUTES), message)
    assert matches(compile_policy('{"a": ["y"]}', scope=Scope.BODY), message)
    assert not matches(compile_policy('{"a": ["x"]}', scope=Scope.BODY), message)


# ── Bodies ───────────────────────────────────────────────────────────────────────────────────

DOTTED = [
    {"a": {"b": {"c": "x"}}},
    {"a.b.c": "x"},
    {"a.b": {"c": "x"}},
    {"a": {"b.c": "x"}},
    {"a": [{"b": [[{"c": ["x"]}]]}]},
    {"a": {"b": {"c": "y"}}, "a.b.c": "x"},
]
RECORDS = {
    "Records": {
        "s3": {"object": {"key": [{"prefix": "auto-"}]}},
        "eventName": [{"prefix": "ObjectCreated:"}],
    }
}
NESTED_OR = {
    "$or": [{"f1": ["v1", "v2"]}, {"f2": ["v3", "v4"]}],
    "f3": {"f4": ["v5"], "$or": [{"f5": ["v6"]}, {"f6": ["v7"]}]},
}


@pytest.mark.parametrize(
    ("policy", "body", "expected"),
    [
        ({}, {"a": 1}, True),
        ({}, "not json", True),
        ({"a": [{"exists": False}]}, {}, True),
        ({"a": [{"exists": False}]}, "", False),
        ({"a": [{"exists": False}]}, "not json", False),
        ({"a": [{"exists": False}]}, '"text"', False),
        ({"a": [{"exists": False}]}, "[]", False),
        ({"a": [{"exists": False}]}, '[{"b": 1}]', False),
        ({"a": ["x"]}, '[{"a": "x"}]', False),
        ({"a": ["x"]}, '{"a": "x"', False),
        ({"a": ["x"]}, '{"a": "x"} y', False),
        ({"a": ["x"]}, b'{"a": "x", "b": \xff}', False),
        ({"a": ["x"]}, '\ufeff{"a": "x"}', False),
        ({"a": ["x"]}, '{"a": "x", "b": 1e999}', True),
        ({"a": [{"exists": True}]}, '{"a": 1e999}', False),
        ({"a": ["x"]}, '  {"a": "x"}  ', True),
        ({"a": ["x"]}, '{"a": "y", "a": "x"}', True),
        ({"a": ["x"]}, '{"a": "x", "a": "y"}', False),
        ({"ä": ["ü"]}, {"ä": "ü"}, True),
        ({"": ["x"]}, {"": "x"}, True),
        # Nesting
        ({"a": {"b": ["x"]}}, {"a": {"b": "x"}}, True),
        ({"a": {"b": ["x"]}}, {"a": {"b": ["x"]}}, True),
        ({"a": {"b": ["x"]}}, {"a": {"c": "x"}}, False),
        ({"a": {"b": ["x"]}}, {"a": ["x"]}, False),
        ({"a": {"b": ["x"]}}, {"a": "x"}, False),
        ({"a": {"b": ["x"]}}, {"b": "x"}, False),
        ({"a": {"b": ["x"]}}, {"a": None}, False),
        ({"a": ["x"]}, {"a": {"b": "x"}}, False),
        ({"a": {"b": [""]}}, {"c": [], "a": {"b": "", "d": None}}, True),
        *(({"a": {"b": {"c": ["x"]}}}, body, True) for body in DOTTED),
        *(({"a.b.c": ["x"]}, body, True) for body in DOTTED),
        *(({"a": {"b.c": ["x"]}}, body, True) for body in DOTTED),
        *(({"a.b": {"c": ["x"]}}, body, True) for body in DOTTED),
        *(({"a.b.c": ["z"]}, body, False) for body in DOTTED),
        ({"a.b": ["x"]}, {"a.b.c": "x"}, False),
        ({"a.b.c": ["x"]}, {"a.b": "x"}, False),
        ({"a": ["x"]}, {"a.": "x"}, False),
        ({"a.": ["x"]}, {"a": {"": "x"}}, True),
        ({".a": ["x"]}, {"": {"a": "x"}}, True),
        ({"a..b": ["x"]}, {"a": {"": {"b": "x"}}}, True),
        ({".": ["x"]}, {"": {"": "x"}}, True),
        # One key twice: the last one counts.
        ({"a.b": ["x"], "a": {"b": ["y"]}}, {"a": {"b": "y"}}, True),
        ({"a.b": ["x"], "a": {"b": ["y"]}}, {"a": {"b": "x"}}, False),
        ({"a": ["x"], "$or": [{"a": ["y"]}, {"b": ["z"]}]}, {"a": "y"}, True),
        ({"a": ["x"], "$or": [{"a": ["y"]}, {"b": ["z"]}]}, {"a": "x"}, False),
        ({"a": ["x"], "$or": [{"a": ["y"]}, {"b": ["z"]}]}, {"a": "x", "b": "z"}, True),
        # Arrays: each key is judged on its own.
        ({"a": ["x"]}, {"a": ["y", "x"]}, True),
        ({"a": ["x"]}, {"a": [[["x"]]]}, True),
        ({"a": ["x"]}, {"a": [{"b": "x"}]}, False),
        ({"a": {"b": [1], "c": [2]}}, {"a": [{"b": 1, "c": 3}, {"b": 4, "c": 2}]}, True),
        ({"a": {"b": [1], "c": [2]}}, {"a": [{"b": 1, "c": 3}, {"b": 1}]}, False),
        ({"a": [{"anything-but": "x"}]}, {"a": ["x", "y"]}, True),
        ({"a": [{"anything-but": "x"}]}, {"a": ["x"]}, False),
        ({"a": [{"anything-but": "x"}]}, {"a": []}, False),
        ({"a": [{"anything-but": "x"}]}, {}, False),
        ({"a": [{"anything-but": ["x", "y"]}]}, {"a": ["x", "y"]}, False),
        ({"a": [{"anything-but": {"prefix": "x"}}]}, {"a": ["xa", "xb"]}, False),
        ({"a": [{"anything-but": {"prefix": "x"}}]}, {"a": ["xa", "b"]}, True),
        ({"a": [{"numeric": [">", 5]}]}, {"a": [1, 9]}, True),
        ({"a": [{"numeric": [">", 5, "<", 8]}]}, {"a": [1, 9]}, False),
        ({"a": [{"exists": True}]}, {"a": []}, False),
        ({"a": [{"exists": False}]}, {"a": []}, True),
        ({"a": [{"exists": True}]}, {"a": [[], [[]]]}, False),
        ({"a": [{"exists": True}]}, {"a": [[], [[0]]]}, True),
        ({"a": [{"exists": True}]}, {"a": [None]}, True),
        ({"a": [{"exists": True}]}, {"a": {}}, False),
        ({"a": [{"exists": False}]}, {"a": {}}, True),
        ({"a": [{"exists": True}]}, {"a": {"b": 1}}, False),
        ({"a": {"b": [{"exists": False}]}}, {}, True),
        ({"a": {"b": [{"exists": False}]}}, {"a": 1}, True),
        ({"a": {"b": [{"exists": False}]}}, {"a": {"c": 1}}, True),
        ({"a": {"b": [{"exists": False}]}}, {"a": [{"c": 1}, {"b": 1}]}, False),
        ({"a": {"b": [{"exists": True}]}}, {"c": 1}, False),
        (
            {"object": {"key": [{"prefix": "auto-"}, "x"], "b": [{"exists": False}]}},
            {"object": {"key": "auto-test"}},
            True,
        ),
        (
            {"object": {"key": [{"prefix": "auto-"}, "x"], "b": [{"exists": False}]}},
            {"object": {"key": "x", "b": "just-exists"}},
            False,
        ),
        (
            RECORDS,
            {
                "Records": [
                    {"eventName": "ObjectCreated:Put", "s3": {"object": [[{"key": "auto-1"}]]}},
                    {"eventName": "ObjectRemoved:Delete", "s3": {"object": {"key": "home-1"}}},
                ]
            },
            True,
        ),
        (
            RECORDS,
            {"Records": [{"eventName": "ObjectRemoved", "s3": {"object": {"key": "auto-1"}}}]},
            False,
        ),
        # $or
        (NESTED_OR, {"f1": "v1", "f3": {"f4": "v5", "f5": "v6"}}, True),
        (NESTED_OR, {"f2": "v4", "f3": {"f4": "v5", "f5": "v6"}}, True),
        (NESTED_OR, {"f1": "v1", "f3": {"f4": "v5", "f6": "v7"}}, True),
        (NESTED_OR, {"f1": "v3", "f3": {"f4": "v5", "f6": "v7"}}, False),
        (NESTED_OR, {"f1": "v1", "f3": {"f4": "v6", "f6": "v7"}}, False),
        (NESTED_OR, {"f1": "v1", "f3": {"f4": "v5", "f6": "v1"}}, False),
        (NESTED_OR, {"f1": "v1", "f3": {"f6": "v7"}}, False),
        (NESTED_OR, {"f1": "v1", "f3": {"f4": "v5"}}, False),
        ({"$or": {"a": ["x"]}}, {"$or": {"a": "x"}}, True),
        ({"$or": {"a": ["x"]}}, {"a": "x"}, False),
        ({"$or": [{"a": [{"exists": False}]}, {"b": [1]}]}, {"a": 1, "b": 2}, False),
        ({"$or": [{"a": [{"exists": False}]}, {"b": [1]}]}, {"b": 2}, True),
    ],
)
def test_bodies(policy: object, body: object, expected: bool) -> None:
    assert body_matches(policy, body) is expected


# ── Large and hostile messages ───────────────────────────────────────────────────────────────


def filled(value: str, count: int) -> str:
    return ",".join([value] * count)


@pytest.mark.parametrize(
    ("policy", "body", "expected"),
    [
        ({"a": ["x"]}, '{"a":' + "[" * MIB, False),
        ({"a": ["x"]}, '{"a":' * (MIB // 5), False),
        ({"a": ["x"]}, '{"b":' + "[" * 100_000 + "]" * 100_000 + ',"a":"x"}', False),
        ({"a": ["x"]}, '{"a":' + "[" * 490 + '"x"' + "]" * 490 + "}", True),
        ({"a": ["x"]}, '{"a":' + "[" * 510 + '"x"' + "]" * 510 + "}", False),
        ({"a": ["x"]}, '{"a":' + "[" * 900 + filled("1", 20_000) + "]" * 900 + "}", False),
        ({"a": ["x"]}, '{"a":[' + filled("1", 60_000) + ',"x"]}', True),
        ({"a": ["x"]}, '{"a":[' + filled("[]", 60_000) + ',"x"]}', True),
        ({"a": ["x"]}, '{"a":[' + filled("{}", 60_000) + ',"y"]}', False),
        ({"a": {"b": ["x"]}}, '{"a":[' + filled('{"b":0}', 100_000) + ',{"b":"x"}]}', True),
        ({"a": {"b": ["x"]}}, '{"a":{"c":[' + filled("0", 100_000) + '],"b":"x"}}', True),
        ({"a": {"b": ["x"]}}, '{"a":{"c":[' + filled("0", 100_000) + '],"b":"x}}', False),
        ({"a": ["x"]}, '{"b":{"a":[' + filled('"x"', 100_000) + "]}}", False),
        ({"a": [{"wildcard": "*b*"}]}, '{"a":"' + "a" * MIB + '"}', False),
        ({"a": [{"wildcard": "*b*"}]}, '{"a":"' + "a" * MIB + 'b"}', True),
        ({"a": [{"wildcard": "*a" * 500 + "b"}]}, '{"a":"' + "a" * MIB + '"}', False),
        ({"a": [{"wildcard": "a*" * 500}]}, '{"a":"' + "a" * MIB + '"}', True),
        ({"a": [{"wildcard": f"*{'a' * 99}b*"}]}, '{"a":"' + "a" * 30_000 + '"}', False),
        ({"a": [{"equals-ignore-case": "x" * 9}]}, '{"a":"' + "Ä" * (MIB // 2) + '"}', False),
        ({"a": [{"cidr": "10.0.0.0/8"}]}, '{"a":"' + "1." * (MIB // 2) + '"}', False),
        ({"a" * 100_000: ["x"]}, '{"' + "a" * 100_000 + '":"x"}', True),
        ({"a": ["x"]}, '{"' + "." * MIB + '":"x"}', False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_large_body_is_matched_without_an_error(
    policy: object, body: str, expected: bool
) -> None:
    assert body_matches(policy, body) is expected


def test_many_values_and_conditions_are_matched_in_many_short_steps() -> None:
    """Each step makes about 5,000 comparisons, or matches one wildcard pattern."""
    policy = body_policy({"a": [{"prefix": f"p{number}"} for number in range(149)]})
    message = PreparedMessage(None, json.dumps({"a": [str(number) for number in range(20_000)]}))
    assert sum(1 for _ in matches_in_steps(policy, message)) > 500
    patterns = body_policy({"a": [{"wildcard": f"*{number}*x"} for number in range(100)]})
    message = PreparedMessage(None, json.dumps({"a": "a" * 100_000}))
    assert sum(1 for _ in matches_in_steps(patterns, message)) >= 100


# ── Comparison with a naive evaluator ────────────────────────────────────────────────────────


def naive_paths(value: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from naive_paths(inner, (*path, *key.split(".")))
    elif isinstance(value, list):
        for inner in value:
            yield from naive_paths(inner, path)
    else:
        yield path, value


def naive_same(wanted: object, value: object) -> bool:
    if isinstance(wanted, bool) or isinstance(value, bool) or wanted is None or value is None:
        return wanted is value
    if isinstance(wanted, str) or isinstance(value, str):
        return type(wanted) is type(value) and wanted == value
    return naive_number(wanted) == naive_number(value)


def naive_number(value: Any) -> Decimal:
    return Decimal(value).quantize(Decimal("0.00001"))


def naive_glob(pattern: str, text: str) -> bool:
    @cache
    def fits(at: int, position: int) -> bool:
        if at == len(pattern):
            return position == len(text)
        if pattern[at] == "*":
            return any(fits(at + 1, end) for end in range(position, len(text) + 1))
        return position < len(text) and pattern[at] == text[position] and fits(at + 1, position + 1)

    return fits(0, 0)


def naive_satisfies(condition: object, value: Any) -> bool:
    if not isinstance(condition, dict):
        return naive_same(condition, value)
    ((kind, wanted),) = condition.items()
    if kind == "anything-but":
        if isinstance(wanted, dict):
            return not naive_satisfies(wanted, value)
        values = wanted if isinstance(wanted, list) else [wanted]
        return not any(naive_same(each, value) for each in values)
    if kind == "exists":
        return bool(wanted)
    if kind == "numeric":
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        compare = {"=": "__eq__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}
        return all(
            getattr(naive_number(value), compare[operator])(naive_number(number))
            for operator, number in zip(wanted[::2], wanted[1::2], strict=True)
        )
    if not isinstance(value, str):
        return False
    if kind == "cidr":
        try:
            return ip_address(value) in ip_network(wanted)
        except ValueError:
            return False
    verdicts: dict[str, bool] = {
        "prefix": value[: len(wanted)] == wanted,
        "suffix": value[max(0, len(value) - len(wanted)) :] == wanted,
        "equals-ignore-case": value.upper() == wanted.upper(),
        "wildcard": naive_glob(wanted, value),
    }
    return verdicts[kind]


def naive_rules(
    policy: dict[str, Any], path: tuple[str, ...]
) -> list[list[tuple[tuple[str, ...], list[Any]]]]:
    """Return the alternatives of a policy, each as a list of paths with conditions."""
    parts: list[list[list[tuple[tuple[str, ...], list[Any]]]]] = []
    for key, value in policy.items():
        if key == "$or" and isinstance(value, list) and len(value) > 1:
            parts.append([each for member in value for each in naive_rules(member, path)])
        elif isinstance(value, dict):
            parts.append(naive_rules(value, (*path, *key.split("."))))
        else:
            parts.append([[((*path, *key.split(".")), value)]])
    return [list(itertools.chain(*each)) for each in itertools.product(*parts)]


def naive_matches(policy: dict[str, Any], body: object) -> bool:
    found = list(naive_paths(body, ()))
    for rules in naive_rules(policy, ()):
        verdicts = {}
        for path, conditions in rules:
            values = [value for where, value in found if where == path]
            verdicts[path] = any(
                (not values and condition == {"exists": False})
                or any(naive_satisfies(condition, value) for value in values)
                for condition in conditions
            )
        if all(verdicts.values()):
            return True
    return False


NAMES = st.sampled_from(["a", "b", "c", "a.b", "b.c", "a.b.c", ""])
TEXTS = st.sampled_from(["", "x", "X", "xy", "yx", "xyx", "100", "10.0.0.1", "10.0.1.1", "::1"])
NUMBERS = st.sampled_from([0, 1, 1.0, 100, 100.0, 100.000001, 99.99999, -5, 0.5, 100.00001])
SCALARS = TEXTS | NUMBERS | st.booleans() | st.none()
RANGES = st.sampled_from(
    [["=", 100], ["<", 1], ["<=", 1], [">", 1], [">=", 100], [">", 0, "<=", 100], [">=", 0, "<", 1]]
)
PATTERNS = st.sampled_from(["*", "x*", "*x", "x*x", "*y*", "x", "*x*x*", "**", "10.*.1"])
CONDITIONS_OF_ANY_KIND = st.one_of(
    SCALARS,
    st.builds(lambda kind, text: {kind: text}, st.sampled_from(["prefix", "suffix"]), TEXTS),
    st.builds(lambda text: {"equals-ignore-case": text}, TEXTS),
    st.builds(lambda text: {"wildcard": text}, PATTERNS),
    st.builds(lambda value: {"anything-but": value}, SCALARS),
    st.builds(lambda value: {"anything-but": value}, st.lists(SCALARS, min_size=1, max_size=3)),
    st.builds(lambda text: {"anything-but": {"prefix": text}}, TEXTS),
    st.builds(lambda expression: {"numeric": expression}, RANGES),
    st.builds(lambda value: {"exists": value}, st.booleans()),
    st.just({"cidr": "10.0.0.0/24"}),
    st.just({"cidr": "::/64"}),
)
LISTS = st.lists(CONDITIONS_OF_ANY_KIND, min_size=1, max_size=3)
POLICIES = st.recursive(
    st.dictionaries(NAMES, LISTS, min_size=1, max_size=2),
    lambda inner: st.one_of(
        st.dictionaries(NAMES, LISTS | inner, min_size=1, max_size=3),
        st.builds(
            lambda members, others: {**others, "$or": members},
            st.lists(inner, min_size=2, max_size=3),
            st.dictionaries(NAMES, LISTS, max_size=1),
        ),
    ),
    max_leaves=6,
)
BODIES = st.dictionaries(
    NAMES,
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


def compiled_if_simple(policy: object, scope: Scope) -> Policy:
    try:
        return compile_policy(json.dumps(policy), scope=scope)
    except InvalidFilterPolicy as refusal:
        if "too complex" in str(refusal):
            reject()
        raise


@settings(max_examples=3_000, deadline=None)
@given(policy=POLICIES, body=BODIES)
def test_bodies_match_as_in_a_naive_evaluator(policy: dict[str, Any], body: object) -> None:
    compiled = compiled_if_simple(policy, Scope.BODY)
    message = PreparedMessage(None, json.dumps(body))
    assert matches(compiled, message) is naive_matches(policy, body)
    assert matches(compiled, message) is naive_matches(policy, body)  # prepared is not used up


@settings(max_examples=2_000, deadline=None)
@given(
    policy=st.dictionaries(st.sampled_from("abc"), LISTS, min_size=1, max_size=3),
    arrays=st.dictionaries(st.sampled_from("abc"), st.lists(SCALARS, max_size=3)),
    texts=st.dictionaries(st.sampled_from("abc"), TEXTS),
    numbers=st.dictionaries(st.sampled_from("abc"), NUMBERS),
)
def test_attributes_match_as_in_a_naive_evaluator(
    policy: dict[str, Any],
    arrays: dict[str, list[Any]],
    texts: dict[str, str],
    numbers: dict[str, float],
) -> None:
    attributes = {name: ("String.Array", json.dumps(each)) for name, each in arrays.items()}
    attributes |= {name: ("String", each) for name, each in texts.items()}
    attributes |= {name: ("Number.x", str(each)) for name, each in numbers.items()}
    body = {**arrays, **texts, **numbers}
    compiled_if_simple(policy, Scope.ATTRIBUTES)
    assert attributes_match(policy, attributes) is naive_matches(policy, body)


@settings(max_examples=2_000, deadline=None)
@given(pattern=st.text("ab*", max_size=8), text=st.text("ab", max_size=8))
def test_wildcards_match_as_in_a_naive_evaluator(pattern: str, text: str) -> None:
    expected = naive_glob(pattern, text)
    assert body_matches({"a": [{"wildcard": pattern}]}, {"a": text}) is expected
