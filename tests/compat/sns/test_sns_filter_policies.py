"""Filter policies that are refused, by Subscribe and by SetSubscriptionAttributes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.compat.sns.stage import BAD, Stage

COMPLEX = "FilterPolicy: Filter policy is too complex"
NESTED = "Filter policy scope MessageAttributes does not support nested filter policy"
STRING = "FilterPolicy: {} match pattern must be a string"
VALUE = "FilterPolicy: Match value must be String, number, true, false, or null"
ONE_KEY = "FilterPolicy: Only one key allowed in match expression"
EXISTS = "FilterPolicy: exists match pattern must be either true or false."


def values(count: int) -> list[str]:
    return [f"value{number}" for number in range(count)]


SHAPES: list[tuple[Any, str]] = [
    ({key: ["x"] for key in "abcdef"}, "FilterPolicy: Filter policy can not have more than 5 keys"),
    ({"a": "x"}, 'FilterPolicy: "a" must be an object or an array'),
    ({"a": 5}, 'FilterPolicy: "a" must be an object or an array'),
    ({"a": []}, "FilterPolicy: Empty arrays are not allowed"),
    ({"$or": []}, "FilterPolicy: Empty arrays are not allowed"),
    ({"a": values(151)}, COMPLEX),
    ({"a": values(2), "b": values(76)}, COMPLEX),
    ({"$or": [{"a": values(76)}, {"b": values(75)}]}, COMPLEX),
    ({"a": {"b": ["x"]}}, NESTED),
]
CONDITIONS: list[tuple[Any, str]] = [
    (["x"], VALUE),
    ({"suffix": "x", "prefix": "y"}, ONE_KEY),
    ({}, ONE_KEY),
    ({"wrong": True}, "FilterPolicy: Unrecognized match type wrong"),
    ({"prefix": 1}, STRING.format("prefix")),
    ({"suffix": []}, STRING.format("suffix")),
    ({"equals-ignore-case": False}, STRING.format("equals-ignore-case")),
    ({"wildcard": {}}, STRING.format("wildcard")),
    ({"cidr": 8}, STRING.format("prefix")),
    ({"exists": None}, EXISTS),
    ({"exists": "no"}, EXISTS),
    ({"anything-but": {"wrong": None}}, "FilterPolicy: Unsupported anything-but pattern: wrong"),
    ({"anything-but": {"suffix": "x"}}, "FilterPolicy: Unsupported anything-but pattern: suffix"),
    ({"cidr": "bad"}, "FilterPolicy: Malformed CIDR, one '/' required"),
    ({"cidr": "10.0.0.0/x"}, "FilterPolicy: Malformed CIDR, mask bits must be an integer"),
    ({"cidr": "xx.11.xx/8"}, "FilterPolicy: Nonstandard IP address: xx.11.xx"),
    ({"numeric": []}, "FilterPolicy: Invalid member in numeric match: ]"),
    ({"numeric": [1, "<="]}, "FilterPolicy: Invalid member in numeric match: 1"),
    ({"numeric": ["operator"]}, "FilterPolicy: Unrecognized numeric range operator: operator"),
    ({"numeric": ["=", "000"]}, "FilterPolicy: Value of equals must be numeric"),
    ({"numeric": [">="]}, "FilterPolicy: Value of >= must be numeric"),
    ({"numeric": ["<", 100, ">", 10]}, "FilterPolicy: Too many elements in numeric expression"),
    ({"numeric": [">", 20, 30]}, "FilterPolicy: Bad value in numeric range: 30"),
    ({"numeric": [">", 20, "test"]}, "FilterPolicy: Bad numeric range operator: test"),
    ({"numeric": [">", 3, "<", 1]}, "FilterPolicy: Bottom must be less than top"),
    (
        {"numeric": [">", 20, "<", 30, "<", 50]},
        "FilterPolicy: Too many terms in numeric range expression",
    ),
]
REFUSED = SHAPES + [({"key": ["fine", condition]}, text) for condition, text in CONDITIONS]


@pytest.mark.parametrize(("policy", "text"), REFUSED)
def test_refused(stage: Stage, policy: Any, text: str) -> None:
    attributes = {"FilterPolicy": json.dumps(policy)}
    given = {"TopicArn": "<topic>", "Protocol": "sqs", "Endpoint": "<other-queue>"}
    refusal = stage.refusal("Subscribe", {**given, "Attributes": attributes})
    assert refusal == (400, BAD, f"Invalid parameter: Attributes Reason: {text}")
    change = {"AttributeName": "FilterPolicy", "AttributeValue": attributes["FilterPolicy"]}
    refusal = stage.refusal(
        "SetSubscriptionAttributes", {"SubscriptionArn": "<subscription>", **change}
    )
    assert refusal == (400, BAD, f"Invalid parameter: {text}")


@pytest.mark.parametrize("text", ["{", "[]", "null", "x", "{'a':['b']}"])
def test_text_that_is_not_json_is_refused(stage: Stage, text: str) -> None:
    change = {"AttributeName": "FilterPolicy", "AttributeValue": text}
    status, code, message = stage.refusal(
        "SetSubscriptionAttributes", {"SubscriptionArn": "<subscription>", **change}
    )
    assert (status, code) == (400, BAD)
    assert message.startswith("Invalid parameter: FilterPolicy: failed to parse JSON. ")


def test_a_policy_must_fit_its_scope(stage: Stage) -> None:
    topic = stage.topic()
    nested = '{"a":{"b":["x"]}}'
    arn = stage.subscribe(
        topic, stage.names["<queue>"], FilterPolicyScope="MessageBody", FilterPolicy=nested
    )
    change = {"AttributeName": "FilterPolicyScope", "AttributeValue": "MessageAttributes"}
    refusal = stage.refusal("SetSubscriptionAttributes", {"SubscriptionArn": arn, **change})
    assert refusal == (400, BAD, f"Invalid parameter: {NESTED}")


MATCHES: list[tuple[Any, dict[str, tuple[str, str]], bool]] = [
    ({"a": ["x"]}, {"a": ("String", "x")}, True),
    ({"a": ["x"]}, {"a": ("String", "y")}, False),
    ({"a": ["x"]}, {}, False),
    ({"a": [100]}, {"a": ("Number", "1e2")}, True),
    ({"a": ["100"]}, {"a": ("Number", "100")}, False),
    ({"a": [{"prefix": "x"}]}, {"a": ("String", "xyz")}, True),
    ({"a": [{"suffix": "z"}]}, {"a": ("String", "xyz")}, True),
    ({"a": [{"equals-ignore-case": "XyZ"}]}, {"a": ("String", "xYz")}, True),
    ({"a": [{"anything-but": ["x"]}]}, {"a": ("String", "y")}, True),
    ({"a": [{"anything-but": ["x"]}]}, {}, False),
    ({"a": [{"exists": False}]}, {}, True),
    ({"a": [{"numeric": [">", 1, "<=", 3]}]}, {"a": ("Number", "3")}, True),
    ({"a": [{"cidr": "10.0.0.0/24"}]}, {"a": ("String", "10.0.0.9")}, True),
    ({"a": ["x"]}, {"a": ("String.Array", '["y","x"]')}, True),
    ({"$or": [{"a": ["x"]}, {"b": ["y"]}]}, {"b": ("String", "y")}, True),
    ({"a": ["x"], "b": ["y"]}, {"b": ("String", "y")}, False),
    ({}, {}, True),
]


def test_messages_that_match_are_in_the_queue(stage: Stage) -> None:
    queue, url = stage.queue()
    topic = stage.topic()
    arn = stage.subscribe(topic, queue, RawMessageDelivery="true")
    for policy, given, is_match in MATCHES:
        stage.set(arn, "FilterPolicy", json.dumps(policy))
        attributes = {
            name: {"DataType": kind, "StringValue": text} for name, (kind, text) in given.items()
        }
        stage.ask("Publish", TopicArn=topic, Message="m", MessageAttributes=attributes)
        found = stage.received(url, wait_s=20 if is_match else 0)
        assert len(found) == is_match, (policy, given)
