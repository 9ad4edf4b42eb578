"""Names, ARNs, tags and missing parameters: the errors that all operations share."""

from __future__ import annotations

import pytest
from tests.compat.sns.stage import (
    ACCOUNT,
    BAD,
    NO_SUCH_TOPIC,
    NULL,
    Given,
    Row,
    Stage,
    expected,
    identified,
)

FEW = "Invalid parameter: {} Reason: An ARN must have at least 6 elements, not {}"
UUID = "7ef46d51-c546-4701-acd7-4880abf50b16"
VALUE = {"AttributeName": "DisplayName", "AttributeValue": "x"}
PERMISSION = {"Label": "l", "AWSAccountId": ["123456789012"], "ActionName": ["Publish"]}
ENTRIES = {"PublishBatchRequestEntries": [{"Id": "a", "Message": "m"}]}
QUEUE = {"Protocol": "sqs", "Endpoint": "<queue>"}

# Operations on a topic, with valid values for everything but the topic.
ON_TOPIC: dict[str, Given] = {
    "AddPermission": PERMISSION,
    "DeleteTopic": {},
    "GetTopicAttributes": {},
    "ListSubscriptionsByTopic": {},
    "Publish": {"Message": "m"},
    "PublishBatch": ENTRIES,
    "RemovePermission": {"Label": "l"},
    "SetTopicAttributes": VALUE,
    "Subscribe": QUEUE,
}
BAD_TOPICS = [
    ("random", FEW.format("TopicArn", 1)),
    ("a:b", FEW.format("TopicArn", 2)),
    (f"arn:aws:sns:us-east-1:{ACCOUNT}", FEW.format("TopicArn", 5)),
    (f"arn:aws:sns:eu-west-1:{ACCOUNT}:orders", "Invalid parameter: TopicArn"),
    (f"arn:aws:sqs:us-east-1:{ACCOUNT}:orders", "Invalid parameter: TopicArn"),
]
TOPIC_ROWS: list[Row] = [
    (action, {"TopicArn": arn, **given}, BAD, text)
    for action, given in ON_TOPIC.items()
    for arn, text in BAD_TOPICS
]
TOPIC_ROWS += [
    (action, {"TopicArn": "", **given}, BAD, FEW.format("TopicArn", 1))
    for action, given in ON_TOPIC.items()
    if action != "Publish"
]
TOPIC_ROWS += [
    (action, {"TopicArn": arn, **given}, "NotFound", NO_SUCH_TOPIC)
    for action, given in ON_TOPIC.items()
    if action != "DeleteTopic"
    for arn in ("<absent>", "<topic>:x")
]

ON_SUBSCRIPTION: dict[str, Given] = {
    "GetSubscriptionAttributes": {},
    "SetSubscriptionAttributes": {"AttributeName": "RawMessageDelivery", "AttributeValue": "true"},
    "Unsubscribe": {},
}
BAD_SUBSCRIPTIONS = [
    ("", FEW.format("SubscriptionArn", 1)),
    ("PendingConfirmation", FEW.format("SubscriptionArn", 1)),
    (f"arn:aws:sns:us-east-1:{ACCOUNT}", FEW.format("SubscriptionArn", 5)),
    ("<topic>", "Invalid parameter: SubscriptionId"),
    (f"arn:aws:sqs:us-east-1:{ACCOUNT}:q:{UUID}", "Invalid parameter: SubscriptionArn"),
]
SUBSCRIPTION_ROWS: list[Row] = [
    (action, {"SubscriptionArn": arn, **given}, BAD, text)
    for action, given in ON_SUBSCRIPTION.items()
    for arn, text in BAD_SUBSCRIPTIONS
]
SUBSCRIPTION_ROWS += [
    (
        action,
        given,
        BAD,
        "Invalid parameter: SubscriptionArn Reason: no value for required parameter",
    )
    for action, given in ON_SUBSCRIPTION.items()
]
SUBSCRIPTION_ROWS += [
    (action, {"SubscriptionArn": arn, **given}, "NotFound", "Subscription does not exist")
    for action, given in ON_SUBSCRIPTION.items()
    if action != "Unsubscribe"
    for arn in (f"<topic>:{UUID}", "<topic>:nonsense", f"<absent>:{UUID}")
]

TAGS = [{"Key": "k", "Value": "v"}]
ON_RESOURCE: dict[str, Given] = {
    "ListTagsForResource": {},
    "TagResource": {"Tags": TAGS},
    "UntagResource": {"TagKeys": ["k"]},
}
TAG_ROWS: list[Row] = [
    (action, {"ResourceArn": arn, **given}, "ResourceNotFound", "Resource does not exist")
    for action, given in ON_RESOURCE.items()
    for arn in ("", "random", "<absent>", "<queue>", f"arn:aws:sns:eu-west-1:{ACCOUNT}:orders")
]
TAG_ROWS += [
    (
        "TagResource",
        {"ResourceArn": "<topic>", "Tags": [{"Key": f"k{n}", "Value": "v"} for n in range(51)]},
        "TagLimitExceeded",
        "Could not complete request: tag quota of per resource exceeded",
    ),
    (
        "CreateTopic",
        {"Name": "many", "Tags": [{"Key": f"k{n}", "Value": "v"} for n in range(51)]},
        "TagLimitExceeded",
        "Could not complete request: tag quota of per resource exceeded",
    ),
    (
        "TagResource",
        {"ResourceArn": "<topic>", "Tags": [*TAGS, {"Key": "k", "Value": "w"}]},
        BAD,
        "Invalid parameter: Duplicated keys are not allowed.",
    ),
    (
        "CreateTopic",
        {"Name": "twice", "Tags": TAGS * 2},
        BAD,
        "Invalid parameter: Duplicated keys are not allowed.",
    ),
    ("TagResource", {"ResourceArn": "<topic>"}, "ValidationError", NULL.format("tags")),
    (
        "TagResource",
        {"ResourceArn": "<topic>", "Tags": [{"Key": "k"}]},
        "ValidationError",
        NULL.format("tags.1.member.value"),
    ),
    ("UntagResource", {"ResourceArn": "<topic>"}, "ValidationError", NULL.format("tagKeys")),
]

MISSING_ROWS: list[Row] = [
    (
        "Publish",
        {"Message": "m"},
        BAD,
        "Invalid parameter: TopicArn or TargetArn Reason: no value for required parameter",
    ),
    (
        "Publish",
        {"TopicArn": "", "Message": "m"},
        BAD,
        "Invalid parameter: TopicArn or TargetArn Reason: no value for required parameter",
    ),
    ("Publish", {"TopicArn": "<topic>"}, "ValidationError", NULL.format("message")),
    (
        "SetTopicAttributes",
        {"TopicArn": "<topic>"},
        "ValidationError",
        NULL.format("attributeName"),
    ),
    (
        "SetSubscriptionAttributes",
        {"SubscriptionArn": "<subscription>"},
        "ValidationError",
        NULL.format("attributeName"),
    ),
    (
        "Subscribe",
        {"TopicArn": "<topic>", "Endpoint": "<queue>"},
        "ValidationError",
        NULL.format("protocol"),
    ),
    (
        "Subscribe",
        {"TopicArn": "<topic>", "Protocol": "sqs"},
        BAD,
        "Invalid parameter: Endpoint Reason: no value for required parameter",
    ),
    (
        "AddPermission",
        {"TopicArn": "<topic>", **PERMISSION, "Label": ""},
        "ValidationError",
        NULL.format("label"),
    ),
    (
        "AddPermission",
        {"TopicArn": "<topic>", **PERMISSION, "AWSAccountId": []},
        "ValidationError",
        NULL.format("aWSAccountId"),
    ),
    (
        "AddPermission",
        {"TopicArn": "<topic>", **PERMISSION, "ActionName": []},
        "ValidationError",
        NULL.format("actionName"),
    ),
    ("RemovePermission", {"TopicArn": "<topic>"}, "ValidationError", NULL.format("label")),
    (
        "PublishBatch",
        {"TopicArn": "<topic>", "PublishBatchRequestEntries": [{"Message": "m"}]},
        "ValidationError",
        NULL.format("publishBatchRequestEntries.1.member.id"),
    ),
]
FIFO = {"Attributes": {"FifoTopic": "true"}}
NAMES: list[Given] = [
    {"Name": ""}, {}, {"Name": "a b"}, {"Name": "a.b"}, {"Name": "é"}, {"Name": "x" * 257},
    {"Name": "a.fifo"}, {"Name": "a.fifo", "Attributes": {"FifoTopic": "false"}},
    {"Name": "a", **FIFO}, {"Name": ".fifo", **FIFO}, {"Name": "a.FIFO", **FIFO},
    {"Name": "a/b"}, {"Name": "a:b"}, {"Name": "a\n"}, {"Name": "x" * 252 + ".fifo", **FIFO},
]  # fmt: skip
NAME_ROWS: list[Row] = [
    ("CreateTopic", given, BAD, "Invalid parameter: Topic Name") for given in NAMES
]
LIST_ROWS: list[Row] = [
    (action, {"TopicArn": "<topic>", "NextToken": token}, BAD, "Invalid parameter: NextToken")
    for action, tokens in {
        "ListTopics": ("x", "-1", "1.5", "٣", "9" * 20),
        "ListSubscriptions": ("?", "a"),
        "ListSubscriptionsByTopic": ("?", "a"),
    }.items()
    for token in tokens
]
ROWS = TOPIC_ROWS + SUBSCRIPTION_ROWS + TAG_ROWS + MISSING_ROWS + NAME_ROWS + LIST_ROWS


@pytest.mark.parametrize("row", ROWS, ids=identified)
def test_refused(stage: Stage, row: Row) -> None:
    if row in LIST_ROWS and row[0] != "ListSubscriptionsByTopic":
        row = (row[0], {"NextToken": row[1]["NextToken"]}, row[2], row[3])
    assert stage.refusal(row[0], row[1]) == expected(row, stage)


@pytest.mark.parametrize("action", sorted(ON_TOPIC))
def test_a_topic_of_another_region_than_the_signatures_is_refused(
    stage: Stage, action: str
) -> None:
    given = {"TopicArn": "<topic>", **ON_TOPIC[action]}
    refusal = stage.refusal(action, given, at=stage.elsewhere)
    assert refusal == (400, BAD, "Invalid parameter: TopicArn")


@pytest.mark.parametrize("action", ["GetSubscriptionAttributes", "SetSubscriptionAttributes"])
def test_a_subscription_of_another_region_does_not_exist(stage: Stage, action: str) -> None:
    given = {"SubscriptionArn": "<subscription>", **ON_SUBSCRIPTION[action]}
    refusal = stage.refusal(action, given, at=stage.elsewhere)
    assert refusal == (404, "NotFound", "Subscription does not exist")


@pytest.mark.parametrize("name", ["a", "A-z_09", "x" * 256, "-", "_", "9"])
def test_names_of_topics(stage: Stage, name: str) -> None:
    arn = stage.ask("CreateTopic", Name=name)["TopicArn"]
    assert arn == f"arn:aws:sns:us-east-1:{ACCOUNT}:{name}"
    stage.ask("DeleteTopic", TopicArn=arn)


@pytest.mark.parametrize("value", ["true", "TRUE", "True"])
def test_a_fifo_topic_has_the_end_fifo(stage: Stage, value: str) -> None:
    arn = stage.topic(".fifo", FifoTopic=value)
    assert arn.endswith(".fifo")
    assert stage.attributes(arn)["FifoTopic"] == "true"


def test_an_empty_account_is_the_callers(stage: Stage) -> None:
    arn = stage.names["<topic>"]
    short = arn.replace(f":{ACCOUNT}:", "::")
    assert stage.attributes(short)["TopicArn"] == arn
    short = stage.names["<subscription>"].replace(f":{ACCOUNT}:", "::", 1)
    assert stage.attributes(short)["TopicArn"] == arn


@pytest.mark.parametrize("arn", ["<absent>", "<topic>:x"])
def test_deleting_what_does_not_exist_is_fine(stage: Stage, arn: str) -> None:
    stage.ask("DeleteTopic", TopicArn=arn)
    stage.ask("Unsubscribe", SubscriptionArn=f"{arn}:{UUID}")


def test_tags_keep_their_order_and_fifty_fit(stage: Stage) -> None:
    arn = stage.ask("CreateTopic", Name=stage.name(), Tags=[{"Key": "b", "Value": "1"}])["TopicArn"]
    assert stage.ask("ListTagsForResource", ResourceArn=stage.topic())["Tags"] == []
    more = [{"Key": f"k{n}", "Value": ""} for n in range(48)]
    stage.ask("TagResource", ResourceArn=arn, Tags=[{"Key": "a", "Value": "2"}, *more])
    stage.ask("TagResource", ResourceArn=arn, Tags=[{"Key": "b", "Value": "3"}])
    shown = stage.ask("ListTagsForResource", ResourceArn=arn)["Tags"]
    assert [(tag["Key"], tag["Value"]) for tag in shown[:2]] == [("b", "3"), ("a", "2")]
    one_more = {"ResourceArn": arn, "Tags": [{"Key": "last", "Value": "x"}]}
    assert stage.refusal("TagResource", one_more)[1] == "TagLimitExceeded"
    assert len(stage.ask("ListTagsForResource", ResourceArn=arn)["Tags"]) == 50
    stage.ask(
        "UntagResource", ResourceArn=arn, TagKeys=["a", "absent", *(f"k{n}" for n in range(48))]
    )
    assert [tag["Key"] for tag in stage.ask("ListTagsForResource", ResourceArn=arn)["Tags"]] == [
        "b"
    ]
