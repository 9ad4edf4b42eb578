"""Attributes, policies and permissions of topics, and CreateTopic for a topic that exists."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.compat.sns.stage import ACCOUNT, BAD, Row, Stage, compact, expected, identified

ON_SET = "Invalid parameter: "
ON_CREATE = "Invalid parameter: Attributes Reason: "
DIFFERENT = f"{ON_CREATE}Topic already exists with different attributes"
RETRIES = {"minDelayTarget": 5, "maxDelayTarget": 6, "numRetries": 1}
DEFAULT_RETRIES = {
    "minDelayTarget": 20,
    "maxDelayTarget": 20,
    "numRetries": 3,
    "numMaxDelayRetries": 0,
    "numNoDelayRetries": 0,
    "numMinDelayRetries": 0,
    "backoffFunction": "linear",
}
DELIVERY = compact({"http": {"defaultHealthyRetryPolicy": RETRIES}})
POLICY = compact(
    {
        "Version": "2012-10-17",
        "Id": "p",
        "Statement": [
            {
                "Sid": "s",
                "Effect": "Allow",
                "Principal": {"AWS": "*"},
                "Action": "SNS:Publish",
                "Resource": "*",
                "Condition": {
                    "StringEquals": {"AWS:SourceOwner": ACCOUNT, "aws:SourceAccount": ACCOUNT},
                    "ArnLike": {"aws:SourceArn": "arn:aws:s3:*:*:bucket"},
                },
            }
        ],
    }
)
FEEDBACK = {
    f"{protocol}{name}": "50" if name.endswith("Rate") else "arn:aws:iam::000000000000:role/r"
    for protocol in ("HTTP", "SQS", "Lambda", "Firehose", "Application")
    for name in ("SuccessFeedbackRoleArn", "FailureFeedbackRoleArn", "SuccessFeedbackSampleRate")
}
# Attributes that CreateTopic and SetTopicAttributes accept and that are shown as they are given.
KEPT: dict[str, str] = {
    "DisplayName": "x" * 100,
    "Policy": POLICY,
    "SignatureVersion": "2",
    "KmsMasterKeyId": "alias/aws/sns",
    "TracingConfig": "Active",
    "MaximumMessageSize": "1048576",
    "ArchivePolicy": '{"MessageRetentionPeriod":"30"}',
    **FEEDBACK,
}


@pytest.mark.parametrize("name", KEPT)
def test_an_attribute_is_shown_as_it_was_set_and_as_it_was_created(stage: Stage, name: str) -> None:
    arn = stage.topic()
    is_always = name in ("DisplayName", "Policy")
    assert (name in stage.attributes(arn)) == is_always
    stage.set(arn, name, KEPT[name])
    assert stage.attributes(arn)[name] == KEPT[name]
    new = {"Name": stage.name(), "Attributes": {name: KEPT[name]}}
    arn = stage.ask("CreateTopic", **new)["TopicArn"]
    assert stage.attributes(arn)[name] == KEPT[name]
    assert stage.ask("CreateTopic", **new)["TopicArn"] == arn
    assert stage.ask("CreateTopic", Name=new["Name"])["TopicArn"] == arn
    if name != "DisplayName":
        stage.set(arn, "DisplayName", "d")
        assert stage.attributes(arn)[name] == KEPT[name]


# An attribute of a topic, and the value of another CreateTopic request that differs.
OTHERS: list[tuple[dict[str, str], dict[str, str]]] = [
    ({}, {"DisplayName": "x"}),
    ({"DisplayName": "x"}, {"DisplayName": "y"}),
    ({"DisplayName": "x"}, {"DisplayName": ""}),
    ({}, {"SignatureVersion": "2"}),
    ({"SignatureVersion": "2"}, {"SignatureVersion": "1"}),
    ({}, {"Policy": POLICY}),
    ({}, {"DeliveryPolicy": DELIVERY}),
    ({"DeliveryPolicy": DELIVERY}, {"DeliveryPolicy": ""}),
    ({}, {"KmsMasterKeyId": "k"}),
    ({"TracingConfig": "Active"}, {"TracingConfig": "PassThrough"}),
    ({}, {"ArchivePolicy": '{"MessageRetentionPeriod":"1"}'}),
    ({}, {"MaximumMessageSize": "2048"}),
    ({"PenstockPartitions": "2"}, {"PenstockPartitions": "3"}),
    ({"PenstockRetentionMs": "3600000"}, {"PenstockRetentionMs": "3600001"}),
    ({"FifoTopic": "true"}, {"FifoTopic": "true", "ContentBasedDeduplication": "true"}),
    ({"FifoTopic": "true"}, {"FifoTopic": "true", "FifoThroughputScope": "MessageGroup"}),
]


@pytest.mark.parametrize(("first", "second"), OTHERS)
def test_create_topic_refuses_other_attributes(
    stage: Stage, first: dict[str, str], second: dict[str, str]
) -> None:
    name = stage.name(".fifo" if "FifoTopic" in first else "")
    stage.ask("CreateTopic", Name=name, Attributes=first)
    refusal = stage.refusal("CreateTopic", {"Name": name, "Attributes": second})
    assert refusal == (400, BAD, DIFFERENT)


SAME: list[tuple[dict[str, str], dict[str, str]]] = [
    ({}, {"FifoTopic": "false"}),
    ({"FifoTopic": "false"}, {}),
    ({}, {"DisplayName": ""}),
    ({"FifoTopic": "true"}, {"FifoTopic": "TRUE", "ContentBasedDeduplication": "false"}),
    ({"DeliveryPolicy": DELIVERY}, {"DeliveryPolicy": json.dumps(json.loads(DELIVERY), indent=1)}),
    ({"Policy": POLICY}, {"Policy": json.dumps(json.loads(POLICY), indent=1)}),
    ({"PenstockPartitions": "2"}, {"PenstockPartitions": "2"}),
    ({}, {"ArchivePolicy": "{}"}),
]


@pytest.mark.parametrize(("first", "second"), SAME)
def test_create_topic_accepts_the_same_attributes(
    stage: Stage, first: dict[str, str], second: dict[str, str]
) -> None:
    name = stage.name(".fifo" if "FifoTopic" in second and first else "")
    if first.get("FifoTopic") == "false":
        name = stage.name()
    arn = stage.ask("CreateTopic", Name=name, Attributes=first)["TopicArn"]
    assert stage.ask("CreateTopic", Name=name, Attributes=second)["TopicArn"] == arn


def test_create_topic_compares_shown_attributes(stage: Stage) -> None:
    """What a tool reads from a topic, it can send again."""
    name = stage.name()
    given = {"DeliveryPolicy": DELIVERY, "DisplayName": "d", "SignatureVersion": "2"}
    arn = stage.ask("CreateTopic", Name=name, Attributes=given)["TopicArn"]
    shown = stage.attributes(arn)
    again = {each: shown[each] for each in (*given, "Policy")}
    assert stage.ask("CreateTopic", Name=name, Attributes=again)["TopicArn"] == arn


@pytest.mark.parametrize(
    ("tags", "is_same"),
    [
        ([], True),
        ([("a", "1")], True),
        ([("b", "2"), ("a", "1")], True),
        ([("a", "2")], False),
        ([("c", "1")], False),
        ([("a", "1"), ("c", "1")], False),
    ],
)
def test_create_topic_compares_given_tags(
    stage: Stage, tags: list[tuple[str, str]], is_same: bool
) -> None:
    def listed(pairs: list[tuple[str, str]]) -> list[dict[str, str]]:
        return [{"Key": key, "Value": value} for key, value in pairs]

    name = stage.name()
    stage.ask("CreateTopic", Name=name, Tags=listed([("a", "1"), ("b", "2")]))
    again = {"Name": name, "Tags": listed(tags)}
    if is_same:
        assert stage.ask("CreateTopic", **again)["TopicArn"].endswith(name)
        return
    text = "Invalid parameter: Tags Reason: Topic already exists with different tags"
    assert stage.refusal("CreateTopic", again) == (400, BAD, text)


UNKNOWN = ["Nope", "displayname", "TopicArn", "Owner", "SubscriptionsPending", "", "x" * 300]
UNKNOWN += ["EffectiveDeliveryPolicy", "BeginningArchiveTime"]
NOT_OF_STANDARD = {"ContentBasedDeduplication": "true", "FifoThroughputScope": "Topic"}
BAD_VALUES: list[tuple[str, str, str]] = [
    ("DisplayName", "x" * 101, "must have at most 100 characters and no control characters."),
    ("DisplayName", "a\nb", "must have at most 100 characters and no control characters."),
    ("SignatureVersion", "3", "Invalid value [3]. Must be one of 1, 2."),
    ("TracingConfig", "On", "Invalid value [On]. Must be one of PassThrough, Active."),
    ("MaximumMessageSize", "1023", "Invalid value [1023]. Must be a number from 1024 to 1048576."),
    (
        "MaximumMessageSize",
        "1048577",
        "Invalid value [1048577]. Must be a number from 1024 to 1048576.",
    ),
    ("MaximumMessageSize", "1e4", "Invalid value [1e4]. Must be a number from 1024 to 1048576."),
    (
        "SQSSuccessFeedbackSampleRate",
        "101",
        "Invalid value [101]. Must be a number from 0 to 100.",
    ),
    ("ArchivePolicy", "x", 'must be {"MessageRetentionPeriod": "DAYS"}.'),
    ("ArchivePolicy", '{"Days":"1"}', 'must be {"MessageRetentionPeriod": "DAYS"}.'),
    (
        "ArchivePolicy",
        '{"MessageRetentionPeriod":"0"}',
        "MessageRetentionPeriod must be from 1 to 365.",
    ),
    (
        "ArchivePolicy",
        '{"MessageRetentionPeriod":"366"}',
        "MessageRetentionPeriod must be from 1 to 365.",
    ),
    (
        "ArchivePolicy",
        '{"MessageRetentionPeriod":"²"}',
        "MessageRetentionPeriod must be from 1 to 365.",
    ),
]
PATH = "http.defaultHealthyRetryPolicy"
BAD_DELIVERY: list[tuple[Any, str]] = [
    (
        {"http": {"defaultHealthyRetryPolicy": {"numRetries": 100, "minDelayTarget": 37,
                                                "maxDelayTarget": 37}}},
        f"{PATH}: Total policy retry time cannot be greater than 3600 seconds",
    ),
    ({"http": {"defaultHealthyRetryPolicy": {"numRetries": 101}}},
     f"{PATH}.numRetries must be less than or equal to 100"),
    ({"http": {"defaultHealthyRetryPolicy": {"numRetries": -1}}},
     f"{PATH}.numRetries must be greater than or equal to 0"),
    ({"http": {"defaultHealthyRetryPolicy": {"minDelayTarget": 0}}},
     f"{PATH}.minDelayTarget must be greater than or equal to 1"),
    ({"http": {"defaultHealthyRetryPolicy": {"maxDelayTarget": 3601}}},
     f"{PATH}.maxDelayTarget must be less than or equal to 3600"),
    ({"http": {"defaultHealthyRetryPolicy": {"minDelayTarget": 21}}},
     f"{PATH}.maxDelayTarget must be greater than or equal to minDelayTarget"),
    ({"http": {"defaultHealthyRetryPolicy": {"numNoDelayRetries": 4}}},
     (f"{PATH}.numRetries must be greater than or equal to total of numMinDelayRetries, "
      "numNoDelayRetries and numMaxDelayRetries")),
    ({"http": {"defaultThrottlePolicy": {"maxReceivesPerSecond": 0}}},
     "http.defaultThrottlePolicy.maxReceivesPerSecond must be >= 1"),
    ({"http": {"guaranteed": True}}, "Unexpected JSON member: guaranteed"),
]  # fmt: skip
BAD_VALUES += [("DeliveryPolicy", compact(policy), text) for policy, text in BAD_DELIVERY]
ROWS: list[Row] = [
    ("CreateTopic", {"Name": "new", "Attributes": {name: value}}, BAD, f"{ON_CREATE}{name}: {text}")
    for name, value, text in BAD_VALUES
]
ROWS += [
    (
        "SetTopicAttributes",
        {"TopicArn": "<topic>", "AttributeName": name, "AttributeValue": value},
        BAD,
        f"{ON_SET}{name}: {text}",
    )
    for name, value, text in BAD_VALUES
]
ROWS += [
    (
        "CreateTopic",
        {"Name": "new", "Attributes": {name: "x"}},
        BAD,
        f"{ON_CREATE}Unknown attribute {name}",
    )
    for name in (*UNKNOWN, *NOT_OF_STANDARD)
]
ROWS += [
    (
        "SetTopicAttributes",
        {"TopicArn": "<topic>", "AttributeName": name, "AttributeValue": "x"},
        BAD,
        "Invalid parameter: AttributeName",
    )
    for name in (*filter(None, UNKNOWN), *NOT_OF_STANDARD, "FifoTopic", "PenstockPartitions")
]
ROWS += [
    (
        "SetTopicAttributes",
        {"TopicArn": "<fifo>", "AttributeName": "FifoTopic", "AttributeValue": "true"},
        BAD,
        "Invalid parameter: AttributeName",
    ),
    (
        "SetTopicAttributes",
        {"TopicArn": "<fifo>", "AttributeName": "ContentBasedDeduplication", "AttributeValue": "1"},
        BAD,
        f"{ON_SET}ContentBasedDeduplication: Invalid value [1]. Must be true or false.",
    ),
    (
        "CreateTopic",
        {"Name": "p.fifo", "Attributes": {"FifoTopic": "true", "PenstockPartitions": "2"}},
        BAD,
        f"{ON_CREATE}PenstockPartitions: several partitions need FifoThroughputScope MessageGroup.",
    ),
    (
        "CreateTopic",
        {"Name": "new", "Attributes": {"PenstockStream": "no-such-stream"}},
        BAD,
        f"{ON_CREATE}PenstockStream: The stream no-such-stream does not exist",
    ),
    (
        "AddPermission",
        {"TopicArn": "<topic>", "Label": "l", "AWSAccountId": [ACCOUNT], "ActionName": ["Nope"]},
        BAD,
        "Invalid parameter: Policy statement action out of service scope!",
    ),
    (
        "AddPermission",
        {
            "TopicArn": "<topic>",
            "Label": "l",
            "AWSAccountId": [ACCOUNT],
            "ActionName": ["Publish", "CreateTopic"],
        },
        BAD,
        "Invalid parameter: Policy statement action out of service scope!",
    ),
    (
        "AddPermission",
        {"TopicArn": "<topic>", "Label": "l", "AWSAccountId": ["x"], "ActionName": ["Publish"]},
        BAD,
        "Invalid parameter: AWSAccountId",
    ),
    (
        "PutDataProtectionPolicy",
        {"ResourceArn": "<topic>", "DataProtectionPolicy": "{"},
        BAD,
        "Invalid parameter: DataProtectionPolicy Reason: failed to parse JSON.",
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=identified)
def test_refused(stage: Stage, row: Row) -> None:
    assert stage.refusal(row[0], row[1]) == expected(row, stage)


def test_a_policy_that_is_malformed_is_refused(stage: Stage) -> None:
    change = {"TopicArn": "<topic>", "AttributeName": "Policy", "AttributeValue": "{"}
    status, code, text = stage.refusal("SetTopicAttributes", change)
    assert (status, code) == (400, BAD)
    assert text.startswith("Invalid parameter: Policy: ")


def test_a_new_topic_shows_these_attributes(stage: Stage) -> None:
    arn = stage.topic()
    shown = stage.attributes(arn)
    policy = {
        "Version": "2008-10-17",
        "Id": "__default_policy_ID",
        "Statement": [
            {
                "Sid": "__default_statement_ID",
                "Effect": "Allow",
                "Principal": {"AWS": "*"},
                "Action": [
                    "SNS:GetTopicAttributes",
                    "SNS:SetTopicAttributes",
                    "SNS:AddPermission",
                    "SNS:RemovePermission",
                    "SNS:DeleteTopic",
                    "SNS:Subscribe",
                    "SNS:ListSubscriptionsByTopic",
                    "SNS:Publish",
                ],
                "Resource": arn,
                "Condition": {"StringEquals": {"AWS:SourceOwner": ACCOUNT}},
            }
        ],
    }
    effective = {
        "http": {
            "defaultHealthyRetryPolicy": DEFAULT_RETRIES,
            "disableSubscriptionOverrides": False,
            "defaultRequestPolicy": {"headerContentType": "text/plain; charset=UTF-8"},
        }
    }
    assert shown == {
        "TopicArn": arn,
        "Owner": ACCOUNT,
        "DisplayName": "",
        "Policy": compact(policy),
        "EffectiveDeliveryPolicy": compact(effective),
        "SubscriptionsConfirmed": "0",
        "SubscriptionsPending": "0",
        "SubscriptionsDeleted": "0",
    }
    fifo = stage.attributes(stage.topic(".fifo", FifoTopic="true"))
    assert fifo.keys() - shown.keys() == {"FifoTopic", "ContentBasedDeduplication"}
    assert (fifo["FifoTopic"], fifo["ContentBasedDeduplication"]) == ("true", "false")


def test_a_delivery_policy_is_shown_without_nulls_and_can_be_removed(stage: Stage) -> None:
    arn = stage.topic()
    stage.set(arn, "DeliveryPolicy", DELIVERY)
    shown = stage.attributes(arn)
    own = {"defaultHealthyRetryPolicy": RETRIES, "disableSubscriptionOverrides": False}
    assert json.loads(shown["DeliveryPolicy"]) == {"http": own}
    effective = json.loads(shown["EffectiveDeliveryPolicy"])["http"]
    assert effective["defaultHealthyRetryPolicy"] == DEFAULT_RETRIES | RETRIES
    stage.set(arn, "DeliveryPolicy", "")
    shown = stage.attributes(arn)
    assert "DeliveryPolicy" not in shown
    effective = json.loads(shown["EffectiveDeliveryPolicy"])["http"]
    assert effective["defaultHealthyRetryPolicy"] == DEFAULT_RETRIES


def test_permissions_are_statements_of_the_policy(stage: Stage) -> None:
    arn = stage.topic()
    given = {"TopicArn": arn, "AWSAccountId": ["111122223333"], "ActionName": ["Publish"]}
    stage.ask("AddPermission", Label="one", **given)
    two = {"AWSAccountId": ["111122223333", "444455556666"], "ActionName": ["Subscribe", "Receive"]}
    stage.ask("AddPermission", TopicArn=arn, Label="two", **two)
    refusal = stage.refusal("AddPermission", {**given, "Label": "one"})
    assert refusal == (400, BAD, "Invalid parameter: Statement already exists")
    default, one, both = json.loads(stage.attributes(arn)["Policy"])["Statement"]
    assert default["Sid"] == "__default_statement_ID"
    assert one == {
        "Sid": "one",
        "Effect": "Allow",
        "Principal": {"AWS": "arn:aws:iam::111122223333:root"},
        "Action": "SNS:Publish",
        "Resource": arn,
    }
    accounts = ("111122223333", "444455556666")
    assert both["Principal"] == {"AWS": [f"arn:aws:iam::{one}:root" for one in accounts]}
    assert both["Action"] == ["SNS:Subscribe", "SNS:Receive"]
    stage.ask("RemovePermission", TopicArn=arn, Label="one")
    stage.ask("RemovePermission", TopicArn=arn, Label="unknown")
    sids = [one["Sid"] for one in json.loads(stage.attributes(arn)["Policy"])["Statement"]]
    assert sids == ["__default_statement_ID", "two"]


def test_a_topic_with_an_archive_cannot_be_deleted(stage: Stage) -> None:
    arn = stage.topic(ArchivePolicy='{"MessageRetentionPeriod":"7"}')
    assert stage.attributes(arn)["BeginningArchiveTime"].endswith("Z")
    assert stage.refusal("DeleteTopic", {"TopicArn": arn})[:2] == (400, "InvalidState")
    stage.set(arn, "ArchivePolicy", "{}")
    assert not {"ArchivePolicy", "BeginningArchiveTime"} & stage.attributes(arn).keys()
    stage.ask("DeleteTopic", TopicArn=arn)
    assert stage.refusal("GetTopicAttributes", {"TopicArn": arn})[1] == "NotFound"


def test_data_protection_policies_are_kept_in_development(stage: Stage) -> None:
    policy = '{"Name":"p","Version":"2021-06-01","Statement":[]}'
    name = stage.name()
    arn = stage.ask("CreateTopic", Name=name)["TopicArn"]
    assert not stage.ask("GetDataProtectionPolicy", ResourceArn=arn).get("DataProtectionPolicy")
    stage.ask("PutDataProtectionPolicy", ResourceArn=arn, DataProtectionPolicy=policy)
    found = stage.ask("GetDataProtectionPolicy", ResourceArn=arn)["DataProtectionPolicy"]
    assert found == policy
    assert "DataProtectionPolicy" not in stage.attributes(arn)
    arn = stage.ask("CreateTopic", Name=stage.name(), DataProtectionPolicy=policy)["TopicArn"]
    assert stage.ask("GetDataProtectionPolicy", ResourceArn=arn)["DataProtectionPolicy"] == policy


def test_topics_are_listed_by_hundreds(stage: Stage) -> None:
    made = {stage.topic() for _ in range(101)}
    found: list[str] = []
    token: dict[str, str] = {}
    while True:
        reply = stage.ask("ListTopics", **token)
        found += [one["TopicArn"] for one in reply["Topics"]]
        if "NextToken" not in reply:
            break
        assert len(reply["Topics"]) == 100
        assert reply["NextToken"] == str(len(found)), "the number of topics listed so far"
        token = {"NextToken": reply["NextToken"]}
    assert made <= set(found)
    assert len(set(found)) == len(found)
    assert stage.ask("ListTopics", NextToken="99999")["Topics"] == []
    for arn in made:
        stage.ask("DeleteTopic", TopicArn=arn)
