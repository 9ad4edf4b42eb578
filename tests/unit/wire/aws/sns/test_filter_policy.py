"""Filter policies that are accepted, and the exact texts for those that are not."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire.aws.sns import filter_policy
from penstock.wire.aws.sns.filter_policy import InvalidFilterPolicy, Scope, compile_policy

BODY, ATTRIBUTES = Scope.BODY, Scope.ATTRIBUTES
TOO_COMPLEX = "FilterPolicy: Filter policy is too complex"
NESTED = "Filter policy scope MessageAttributes does not support nested filter policy"


def compiled(policy: Any, scope: Scope = BODY) -> filter_policy.Policy:
    return compile_policy(json.dumps(policy), scope=scope)


def refusal_of(text: str, scope: Scope = BODY) -> str:
    with pytest.raises(InvalidFilterPolicy) as caught:
        compile_policy(text, scope=scope)
    return str(caught.value)


def values(count: int, start: int = 0) -> list[str]:
    return [f"value{number}" for number in range(start, start + count)]


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "{]",
        "{'a': ['b']}",
        '{"a": ["b"],}',
        '{"a": [01]}',
        '{"a": [NaN]}',
        '{"a": ["b"]} x',
        '{"a": ["\\ud800"]}',
        '{"a": ["\ud800"]}',
        '{"a": [1e999]}',
        '{"a": [' + "9" * 10_000 + "]}",
        "[]",
        "5",
        '"text"',
        "null",
        "[" * 5_000,
        '{"a":' * 5_000,
        '{"a":' * 5_000 + '["x"]' + "}" * 5_000,
    ],
)
@pytest.mark.parametrize("scope", Scope)
def test_text_that_is_not_a_json_object_is_refused(text: str, scope: Scope) -> None:
    refusal = refusal_of(text, scope)
    assert refusal.startswith("FilterPolicy: failed to parse JSON. ") or (
        text.startswith('{"a":{"a":') and refusal == TOO_COMPLEX
    )
    assert len(refusal) < 200


def test_a_policy_has_at_most_256_kib() -> None:
    policy = '{"a":["x"]}'
    compile_policy(policy + " " * (262_144 - len(policy)), scope=BODY)
    assert refusal_of(policy + " " * (262_145 - len(policy))) == (
        "FilterPolicy: Filter policy is too large: 262145 bytes, at most 262144 are allowed"
    )
    assert refusal_of('{"a":["%s"]}' % ("ü" * 131_072)).startswith(
        "FilterPolicy: Filter policy is too large"
    )


def test_of_a_key_that_is_given_twice_the_last_one_counts() -> None:
    policy = compile_policy('{"a":["x"],"a":["y"]}', scope=BODY)
    assert [rule.exact for (rule,) in policy.alternatives] == [frozenset("y")]


# ── Shape ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("policy", "scope", "refusal"),
    [
        (
            {key: ["x"] for key in "abcdef"},
            ATTRIBUTES,
            "FilterPolicy: Filter policy can not have more than 5 keys",
        ),
        (
            dict.fromkeys("abcdef", "bad"),
            BODY,
            "FilterPolicy: Filter policy can not have more than 5 keys",
        ),
        ({"a": "x"}, ATTRIBUTES, 'FilterPolicy: "a" must be an object or an array'),
        ({"a": 5}, BODY, 'FilterPolicy: "a" must be an object or an array'),
        ({"a": None}, BODY, 'FilterPolicy: "a" must be an object or an array'),
        ({"a": True}, BODY, 'FilterPolicy: "a" must be an object or an array'),
        ({"a": {"b": "x"}}, BODY, 'FilterPolicy: "b" must be an object or an array'),
        (
            {"a": {"suffix": "x"}},
            ATTRIBUTES,
            'FilterPolicy: "suffix" must be an object or an array',
        ),
        (
            {"a": {"suffix": "x", "prefix": "y"}},
            ATTRIBUTES,
            'FilterPolicy: "suffix" must be an object or an array',
        ),
        (
            {"$or": [{"a": "x"}, {"b": ["y"]}]},
            ATTRIBUTES,
            'FilterPolicy: "a" must be an object or an array',
        ),
        ({"$or": "x"}, BODY, 'FilterPolicy: "$or" must be an object or an array'),
        ({"k" * 300: 1}, BODY, f'FilterPolicy: "{"k" * 256}" must be an object or an array'),
        ({"a": []}, ATTRIBUTES, "FilterPolicy: Empty arrays are not allowed"),
        ({"a": {"b": []}}, ATTRIBUTES, "FilterPolicy: Empty arrays are not allowed"),
        ({"$or": []}, ATTRIBUTES, "FilterPolicy: Empty arrays are not allowed"),
        ({"$or": [{"a": []}, {"b": [1]}]}, BODY, "FilterPolicy: Empty arrays are not allowed"),
        ({"a": [{"x": 1}], "b": []}, BODY, "FilterPolicy: Empty arrays are not allowed"),
        ({"a": {}}, BODY, "FilterPolicy: Empty objects are not allowed"),
        ({"$or": [{}, {"a": ["x"]}]}, BODY, "FilterPolicy: Empty objects are not allowed"),
        ({"a": {"b": ["x"]}}, ATTRIBUTES, NESTED),
        ({"a": {"b": [{"exists": None}]}}, ATTRIBUTES, NESTED),
        ({"a": {"b": values(76)}}, ATTRIBUTES, NESTED),
        ({"$or": [{"a": {"b": ["x"]}}, {"c": ["y"]}]}, ATTRIBUTES, NESTED),
        ({"$or": {"a": ["x"]}}, ATTRIBUTES, NESTED),
        ({"a": values(151)}, ATTRIBUTES, TOO_COMPLEX),
        ({"a": [{"bad": 1}] * 151}, ATTRIBUTES, TOO_COMPLEX),
        ({"a": values(100), "b": values(51)}, ATTRIBUTES, TOO_COMPLEX),
        ({"a": values(2), "b": values(76)}, ATTRIBUTES, TOO_COMPLEX),
        ({"a": {"b": values(76)}}, BODY, TOO_COMPLEX),
        ({"a": {"b": {"c": values(4)}}, "d": {"e": values(3)}, "f": values(3)}, BODY, TOO_COMPLEX),
        (
            {
                "a": values(4),
                "$or": [
                    {"b": values(6)},
                    {"c": values(4), "$or": [{"d": values(4)}, {"e": values(4)}]},
                ],
            },
            ATTRIBUTES,
            TOO_COMPLEX,  # 4 × 6 + 4 × 4 × 4 + 4 × 4 × 4 = 152
        ),
        (
            {
                "$or": [{"a": values(3)}, {"b": values(2)}],
                "c": {"d": values(2), "$or": [{"e": values(1)}, {"f": values(3)}]},
            },
            BODY,
            TOO_COMPLEX,  # (3 + 2) × 2 × 2 × (2 + 2 × 3) = 160
        ),
        ({"$or": [{"a": values(76)}, {"b": values(75)}]}, BODY, TOO_COMPLEX),
    ],
)
def test_a_policy_of_the_wrong_shape_is_refused(policy: object, scope: Scope, refusal: str) -> None:
    assert refusal_of(json.dumps(policy), scope) == refusal


@pytest.mark.parametrize(
    ("policy", "scope"),
    [
        ({}, ATTRIBUTES),
        ({}, BODY),
        ({key: ["x"] for key in "abcde"}, ATTRIBUTES),
        ({"a": values(150)}, ATTRIBUTES),
        ({"a": {"b": values(75)}}, BODY),
        ({"a": {"b": {"c": values(4)}}, "d": {"e": values(3)}}, BODY),  # 3 × 4 × 2 × 3 = 72
        (
            {
                "a": values(3),
                "$or": [
                    {"b": values(6)},
                    {"c": values(4), "$or": [{"d": values(4)}, {"e": values(7)}]},
                ],
            },
            ATTRIBUTES,  # 3 × 6 + 3 × 4 × 4 + 3 × 4 × 7 = 150
        ),
        ({"$or": [{"a": values(75)}, {"b": values(75)}]}, ATTRIBUTES),
        ({"$or": [{"a": ["x"]}] * 150}, ATTRIBUTES),
        ({"a.b": ["x"]}, ATTRIBUTES),
        ({"": ["x"]}, BODY),
        ({"a": [{"anything-but": values(10_000)}]}, BODY),
        ({"a": [1_000_000_001, -5e30, 10**400]}, ATTRIBUTES),
    ],
)
def test_a_policy_within_the_limits_is_accepted(policy: object, scope: Scope) -> None:
    assert compiled(policy, scope).scope is scope


@pytest.mark.parametrize(
    "policy",
    [
        '{"a":' * 151 + '["x"]' + "}" * 151,
        '{"$or":[{"a":[1]},' * 151 + '{"b":[2]}' + "]}" * 151,
        json.dumps({"$or": [{f"k{number}": ["x"] for number in range(501)}, {"b": ["x"]}]}),
        json.dumps({"a" + ".a" * 500: ["x"]}),
        json.dumps({"a" + ".a" * 250: {"b": {"c" + ".c" * 250: ["x"]}}}),
        json.dumps({"a": [{"wildcard": "*a" * 501}]}),
        json.dumps({"a": [{"wildcard": "*a" * 260}], "b": [{"wildcard": "*a" * 260}]}),
        '{"a":[' + "[]," * 80_000 + "[]]}",
        '{"a":[{"anything-but":[' + "1," * 130_000 + "1]}]}",
        json.dumps({key: {"$or": [{"a": [1]}, {"b": [1]}]} for key in "abcde"} | {"a": [[]] * 200}),
        '{"a":{"$or":[{"a":[1]},{"b":[1]}],"x":' * 140 + "[1]" + "}}" * 140,
    ],
)
def test_what_would_make_matching_slow_is_too_complex(policy: str) -> None:
    assert refusal_of(policy) == TOO_COMPLEX


@pytest.mark.parametrize(
    ("policy", "alternatives"),
    [
        ({"a": ["x"], "b": ["y"]}, [{"a", "b"}]),
        ({"$or": [{"a": ["x"]}, {"b": ["y"]}]}, [{"a"}, {"b"}]),
        ({"c": ["z"], "$or": [{"a": ["x"]}, {"b": ["y"]}]}, [{"a", "c"}, {"b", "c"}]),
        ({"c": {"$or": [{"a": ["x"]}, {"b": ["y"]}]}}, [{"c.a"}, {"c.b"}]),
        (
            {"$or": [{"a": [1]}, {"b": [1]}], "c": {"$or": [{"d": [1]}, {"e": [1]}]}},
            [{"a", "c.d"}, {"b", "c.d"}, {"a", "c.e"}, {"b", "c.e"}],
        ),
        (
            {"$or": [{"a": [1], "$or": [{"b": [1]}, {"c": [1]}]}, {"d": [1]}]},
            [{"a", "b"}, {"a", "c"}, {"d"}],
        ),
        # An ordinary key:
        ({"$or": ["x", "y"]}, [{"$or"}]),
        ({"$or": [{"prefix": "x"}]}, [{"$or"}]),
        ({"$or": [{"prefix": "x"}, {"suffix": "y"}]}, [{"$or"}]),
        ({"$or": [{"numeric": ["=", 1]}, {"prefix": "y"}]}, [{"$or"}]),
        ({"$or": {"a": ["x"]}}, [{"$or.a"}]),
        ({"$OR": ["x", "y"]}, [{"$OR"}]),
    ],
)
def test_or_with_two_or_more_objects_splits_a_policy(
    policy: object, alternatives: list[set[str]]
) -> None:
    found = compiled(policy).alternatives
    assert [{rule.path for rule in rules} for rules in found] == alternatives


# ── Rules ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("condition", "refusal"),
    [
        (["x"], "Match value must be String, number, true, false, or null"),
        ([], "Match value must be String, number, true, false, or null"),
        ({}, "Only one key allowed in match expression"),
        ({"suffix": "x", "prefix": "y"}, "Only one key allowed in match expression"),
        ({"bad": 1, "worse": 2}, "Only one key allowed in match expression"),
        ({"wrong-operator": True}, "Unrecognized match type wrong-operator"),
        ({"Prefix": "x"}, "Unrecognized match type Prefix"),
        ({"": "x"}, "Unrecognized match type "),
        ({"x" * 300: 1}, "Unrecognized match type " + "x" * 256),
        ({"prefix": 100}, "prefix match pattern must be a string"),
        ({"suffix": 100}, "suffix match pattern must be a string"),
        ({"suffix": None}, "suffix match pattern must be a string"),
        ({"suffix": []}, "suffix match pattern must be a string"),
        ({"suffix": ["x", "y"]}, "suffix match pattern must be a string"),
        ({"equals-ignore-case": False}, "equals-ignore-case match pattern must be a string"),
        ({"wildcard": {}}, "wildcard match pattern must be a string"),
        ({"cidr": ["10.0.0.0/8"]}, "prefix match pattern must be a string"),
        ({"cidr": 8}, "prefix match pattern must be a string"),
        ({"exists": None}, "exists match pattern must be either true or false."),
        ({"exists": "no"}, "exists match pattern must be either true or false."),
        ({"exists": 1}, "exists match pattern must be either true or false."),
        ({"anything-but": {"wrong": None}}, "Unsupported anything-but pattern: wrong"),
        ({"anything-but": {"suffix": "x"}}, "Unsupported anything-but pattern: suffix"),
        ({"anything-but": {"exists": False}}, "Unsupported anything-but pattern: exists"),
        (
            {"anything-but": {"prefix": "x", "suffix": "x"}},
            "Unsupported anything-but pattern: suffix",
        ),
        ({"anything-but": {}}, "Only one key allowed in match expression"),
        ({"anything-but": {"prefix": False}}, "prefix match pattern must be a string"),
        ({"anything-but": {"prefix": ["x"]}}, "prefix match pattern must be a string"),
        ({"anything-but": []}, "Empty arrays are not allowed"),
        (
            {"anything-but": [["x"]]},
            "Match value must be String, number, true, false, or null",
        ),
        (
            {"anything-but": ["x", {"prefix": "y"}]},
            "Match value must be String, number, true, false, or null",
        ),
        ({"cidr": "bad-filter"}, "Malformed CIDR, one '/' required"),
        ({"cidr": ""}, "Malformed CIDR, one '/' required"),
        ({"cidr": "10.0.0.0/8/8"}, "Malformed CIDR, one '/' required"),
        ({"cidr": "bad-/64filter"}, "Malformed CIDR, mask bits must be an integer"),
        ({"cidr": "10.0.0.0/"}, "Malformed CIDR, mask bits must be an integer"),
        ({"cidr": "10.0.0.0/8.0"}, "Malformed CIDR, mask bits must be an integer"),
        ({"cidr": "10.0.0.0/1_0"}, "Malformed CIDR, mask bits must be an integer"),
        ({"cidr": "10.0.0.0/٨"}, "Malformed CIDR, mask bits must be an integer"),
        ({"cidr": "10.0.0.0/" + "9" * 5_000}, "Malformed CIDR, mask bits must be an integer"),
        ({"cidr": "10.0.0.0/255.0.0.0"}, "Malformed CIDR, mask bits must be an integer"),
        ({"cidr": "bad-filter/64"}, "Nonstandard IP address: bad-filter"),
        ({"cidr": "xx.11.xx/8"}, "Nonstandard IP address: xx.11.xx"),
        ({"cidr": "10.0.0/8"}, "Nonstandard IP address: 10.0.0"),
        ({"cidr": "10.0.0.256/8"}, "Nonstandard IP address: 10.0.0.256"),
        ({"cidr": "/8"}, "Nonstandard IP address: "),
        (
            {"cidr": "xxxx:db8:1234:1a00::/64"},
            "Nonstandard IP address: xxxx:db8:1234:1a00::",
        ),
        ({"cidr": "fe80::1%eth0/64"}, "Nonstandard IP address: fe80::1%eth0"),
        ({"cidr": "10.0.0.0/33"}, "IPv4 mask bits must be between 0 and 32"),
        ({"cidr": "10.0.0.0/-1"}, "IPv4 mask bits must be between 0 and 32"),
        ({"cidr": "::/129"}, "IPv6 mask bits must be between 0 and 128"),
        ({"numeric": "="}, "Value of numeric must be an array."),
        ({"numeric": {"=": 1}}, "Value of numeric must be an array."),
        ({"numeric": []}, "Invalid member in numeric match: ]"),
        ({"numeric": [1, "<="]}, "Invalid member in numeric match: 1"),
        ({"numeric": [1.5]}, "Invalid member in numeric match: 1.5"),
        ({"numeric": [None]}, "Invalid member in numeric match: null"),
        ({"numeric": [True]}, "Invalid member in numeric match: true"),
        ({"numeric": [["="], 1]}, "Invalid member in numeric match: ["),
        ({"numeric": [{}, 1]}, "Invalid member in numeric match: {"),
        ({"numeric": ["operator"]}, "Unrecognized numeric range operator: operator"),
        ({"numeric": ["0"]}, "Unrecognized numeric range operator: 0"),
        ({"numeric": ["!=", 5]}, "Unrecognized numeric range operator: !="),
        ({"numeric": ["", 5]}, "Unrecognized numeric range operator: "),
        ({"numeric": ["=", "000"]}, "Value of equals must be numeric"),
        ({"numeric": ["="]}, "Value of equals must be numeric"),
        ({"numeric": [">="]}, "Value of >= must be numeric"),
        ({"numeric": ["<", "100"]}, "Value of < must be numeric"),
        ({"numeric": ["<", True]}, "Value of < must be numeric"),
        ({"numeric": ["<=", None]}, "Value of <= must be numeric"),
        ({"numeric": [">", [1]]}, "Value of > must be numeric"),
        ({"numeric": [">", "20", "<", "30"]}, "Value of > must be numeric"),
        ({"numeric": ["<", 100, ">", 10]}, "Too many elements in numeric expression"),
        ({"numeric": ["<=", 1, 2]}, "Too many elements in numeric expression"),
        ({"numeric": ["=", 1, "=", 2]}, "Too many elements in numeric expression"),
        ({"numeric": [">", 20, 30]}, "Bad value in numeric range: 30"),
        ({"numeric": [">", 20, None]}, "Bad value in numeric range: null"),
        ({"numeric": [">", 20, ["<"]]}, "Bad value in numeric range: ["),
        ({"numeric": [">", 20, "test"]}, "Bad numeric range operator: test"),
        ({"numeric": [">=", 1, ">", 2]}, "Bad numeric range operator: >"),
        ({"numeric": [">=", 1, "=", 2]}, "Bad numeric range operator: ="),
        ({"numeric": [">", 20, "<="]}, "Value of <= must be numeric"),
        ({"numeric": [">", 20, "<", "30"]}, "Value of < must be numeric"),
        ({"numeric": [">", 3, "<", 1]}, "Bottom must be less than top"),
        ({"numeric": [">=", 3, "<=", 3]}, "Bottom must be less than top"),
        ({"numeric": [">", 3, "<", 3.000001]}, "Bottom must be less than top"),
        ({"numeric": [">", 3, "<", 1, "<", 5]}, "Bottom must be less than top"),
        (
            {"numeric": [">", 20, "<", 30, "<", 50]},
            "Too many terms in numeric range expression",
        ),
    ],
)
@pytest.mark.parametrize("scope", Scope)
def test_a_wrong_condition_is_refused(condition: object, refusal: str, scope: Scope) -> None:
    policy = json.dumps({"key": ["fine", condition]})
    assert refusal_of(policy, scope) == "FilterPolicy: " + refusal


def test_the_first_wrong_condition_is_reported() -> None:
    policy = {"a": ["x", {"bad": 1}], "b": [["y"]]}
    assert refusal_of(json.dumps(policy)) == "FilterPolicy: Unrecognized match type bad"


Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("$or"), inner),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(text=st.text() | Json.map(json.dumps), scope=st.sampled_from(Scope))
def test_any_text_is_compiled_or_refused(text: str, scope: Scope) -> None:
    try:
        compile_policy(text, scope=scope)
        outcome = "compiled"
    except InvalidFilterPolicy as refusal:
        outcome = str(refusal)
    assert outcome == "compiled" or outcome.startswith(("FilterPolicy: ", NESTED))
