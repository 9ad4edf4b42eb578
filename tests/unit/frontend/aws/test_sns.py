"""SNS actions through ``Frontend.handle``, with broker, catalog and subscriptions in memory. The
texts of errors are those that clients of SNS compare."""

import re
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
from tests.unit.frontend.memory import Rig

from penstock.frontend.aws.context import FrontendConfig
from penstock.frontend.aws.sns.actions import ACTIONS
from penstock.wire.aws.sns.protocol import OPERATIONS

ACCOUNT = "000000000000"
TOPIC = f"arn:aws:sns:us-east-1:{ACCOUNT}:orders"
QUEUE = f"arn:aws:sqs:us-east-1:{ACCOUNT}:q"
ABSENT = f"arn:aws:sns:us-east-1:{ACCOUNT}:absent"
BAD_ATTRIBUTE = "Invalid parameter: Attributes Reason: "
Fields = dict[str, str]


class Client:
    """Speaks the query protocol of SNS to a rig."""

    def __init__(self, config: FrontendConfig | None = None) -> None:
        self.rig = Rig(config)

    async def ask(self, action: str, **fields: str) -> tuple[int, ElementTree.Element]:
        form = {"Action": action, "Version": "2010-03-31", **fields}
        reply = await self.rig.ask(
            body=urlencode(form).encode(),
            headers={"content-type": "application/x-www-form-urlencoded", "host": "h"},
        )
        text = re.sub(rb' xmlns="[^"]+"', b"", reply.body, count=1)
        return reply.status, ElementTree.fromstring(text)

    async def call(self, action: str, **fields: str) -> ElementTree.Element:
        status, root = await self.ask(action, **fields)
        assert status == 200, ElementTree.tostring(root)
        assert root.tag == f"{action}Response"
        return root

    async def refused(self, action: str, **fields: str) -> tuple[int, str, str]:
        status, root = await self.ask(action, **fields)
        return status, root.findtext("Error/Code", ""), root.findtext("Error/Message", "")

    async def topic(self, name: str = "orders", **fields: str) -> str:
        root = await self.call("CreateTopic", Name=name, **fields)
        return root.findtext("CreateTopicResult/TopicArn", "")

    async def attributes(self, action: str, **fields: str) -> dict[str, str]:
        root = await self.call(action, **fields)
        entries = root.iterfind(f"{action}Result/Attributes/entry")
        return {one.findtext("key", ""): one.findtext("value", "") for one in entries}

    async def subscribe(self, endpoint: str = QUEUE, **attributes: str) -> str:
        root = await self.call("Subscribe", **given(endpoint, **attributes))
        return root.findtext("SubscribeResult/SubscriptionArn", "")


def given(endpoint: str = QUEUE, **attributes: str) -> Fields:
    fields = {"TopicArn": TOPIC, "Protocol": "sqs", "Endpoint": endpoint}
    return fields | entries("Attributes", attributes)


def entries(name: str, values: dict[str, str]) -> Fields:
    found: Fields = {}
    for number, (key, value) in enumerate(values.items(), 1):
        found[f"{name}.entry.{number}.key"] = key
        found[f"{name}.entry.{number}.value"] = value
    return found


@pytest.fixture
def client() -> Client:
    return Client()


def test_every_operation_has_an_action() -> None:
    assert ACTIONS.keys() == OPERATIONS.keys()


async def test_a_topic_is_a_stream_of_its_own_name(client: Client) -> None:
    assert await client.topic() == TOPIC
    stream = client.rig.catalog.find(ACCOUNT, "us-east-1", "sns.orders")
    assert stream is not None
    assert not stream.is_queue
    assert await client.topic() == TOPIC, "again is fine"


REFUSED: list[tuple[str, Fields, int, str, str]] = [
    ("CreateTopic", {"Name": "a b"}, 400, "InvalidParameter", "Invalid parameter: Topic Name"),
    ("CreateTopic", {"Name": "a.fifo"}, 400, "InvalidParameter", "Invalid parameter: Topic Name"),
    (
        "CreateTopic",
        {"Name": "orders", **entries("Attributes", {"DisplayName": "other"})},
        400,
        "InvalidParameter",
        "Invalid parameter: Attributes Reason: Topic already exists with different attributes",
    ),
    (
        "CreateTopic",
        {"Name": "orders", "Tags.member.1.Key": "k", "Tags.member.1.Value": "v"},
        400,
        "InvalidParameter",
        "Invalid parameter: Tags Reason: Topic already exists with different tags",
    ),
    (
        "CreateTopic",
        {"Name": "new", **entries("Attributes", {"Nope": "1"})},
        400,
        "InvalidParameter",
        "Invalid parameter: Attributes Reason: Unknown attribute Nope",
    ),
    ("GetTopicAttributes", {"TopicArn": ABSENT}, 404, "NotFound", "Topic does not exist"),
    (
        "GetTopicAttributes",
        {"TopicArn": ""},
        400,
        "InvalidParameter",
        "Invalid parameter: TopicArn Reason: An ARN must have at least 6 elements, not 1",
    ),
    (
        "GetTopicAttributes",
        {"TopicArn": TOPIC.replace("us-east-1", "eu-west-1")},
        400,
        "InvalidParameter",
        "Invalid parameter: TopicArn",
    ),
    (
        "SetTopicAttributes",
        {"TopicArn": TOPIC, "AttributeName": "FifoTopic", "AttributeValue": "true"},
        400,
        "InvalidParameter",
        "Invalid parameter: AttributeName",
    ),
    (
        "AddPermission",
        {
            "TopicArn": TOPIC,
            "Label": "l",
            "AWSAccountId.member.1": "123456789012",
            "ActionName.member.1": "Nope",
        },
        400,
        "InvalidParameter",
        "Invalid parameter: Policy statement action out of service scope!",
    ),
    ("TagResource", {"ResourceArn": ABSENT}, 404, "ResourceNotFound", "Resource does not exist"),
    (
        "TagResource",
        {
            "ResourceArn": TOPIC,
            "Tags.member.1.Key": "k",
            "Tags.member.1.Value": "v",
            "Tags.member.2.Key": "k",
            "Tags.member.2.Value": "w",
        },
        400,
        "InvalidParameter",
        "Invalid parameter: Duplicated keys are not allowed.",
    ),
    ("Subscribe", given("nope"), 400, "InvalidParameter", "Invalid parameter: SQS endpoint ARN"),
    (
        "Subscribe",
        given(f"{QUEUE}.fifo"),
        400,
        "InvalidParameter",
        (
            "Invalid parameter: Invalid parameter: Endpoint Reason: FIFO SQS Queues can not be"
            " subscribed to standard SNS topics"
        ),
    ),
    (
        "Subscribe",
        {**given(), "Protocol": "smoke"},
        400,
        "InvalidParameter",
        "Invalid parameter: Amazon SNS does not support this protocol string: smoke",
    ),
    (
        "Subscribe",
        given(RawMessageDelivery="perhaps"),
        400,
        "InvalidParameter",
        (f"{BAD_ATTRIBUTE}RawMessageDelivery: Invalid value [perhaps]. Must be true or false."),
    ),
    (
        "Subscribe",
        given(FilterPolicyScope="Nope"),
        400,
        "InvalidParameter",
        (
            f"{BAD_ATTRIBUTE}FilterPolicyScope: Invalid value [Nope]."
            " Please use either MessageBody or MessageAttributes"
        ),
    ),
    (
        "Subscribe",
        given(RedrivePolicy='{"deadLetterTargetArn":"nope"}'),
        400,
        "InvalidParameter",
        f"{BAD_ATTRIBUTE}RedrivePolicy: deadLetterTargetArn is an invalid arn",
    ),
    (
        "GetSubscriptionAttributes",
        {"SubscriptionArn": TOPIC},
        400,
        "InvalidParameter",
        "Invalid parameter: SubscriptionId",
    ),
    (
        "GetSubscriptionAttributes",
        {"SubscriptionArn": f"{TOPIC}:7ef46d51-c546-4701-acd7-4880abf50b16"},
        404,
        "NotFound",
        "Subscription does not exist",
    ),
    (
        "ConfirmSubscription",
        {"TopicArn": TOPIC, "Token": "0" * 288},
        400,
        "InvalidParameter",
        "Invalid parameter: Token",
    ),
    (
        "Publish",
        {"Message": "m"},
        400,
        "InvalidParameter",
        "Invalid parameter: TopicArn or TargetArn Reason: no value for required parameter",
    ),
    (
        "Publish",
        {"TopicArn": TOPIC, "Message": ""},
        400,
        "InvalidParameter",
        "Invalid parameter: Empty message",
    ),
    (
        "GetSMSAttributes",
        {},
        400,
        "InvalidAction",
        (
            "GetSMSAttributes is not served here: phones and mobile push need a gateway"
            " (push.gateways)."
        ),
    ),
]


@pytest.mark.parametrize(("action", "fields", "status", "code", "text"), REFUSED)
async def test_bad_requests_get_the_errors_of_sns(
    client: Client, action: str, fields: Fields, status: int, code: str, text: str
) -> None:
    await client.topic()
    assert await client.refused(action, **fields) == (status, code, text)


async def test_attributes_permissions_and_tags_of_a_topic(client: Client) -> None:
    await client.topic(**{"Tags.member.1.Key": "a", "Tags.member.1.Value": "1"})
    shown = await client.attributes("GetTopicAttributes", TopicArn=TOPIC)
    assert shown["DisplayName"] == ""
    assert (shown["Owner"], shown["SubscriptionsConfirmed"]) == (ACCOUNT, "0")
    assert '"__default_policy_ID"' in shown["Policy"]
    await client.call(
        "SetTopicAttributes", TopicArn=TOPIC, AttributeName="DisplayName", AttributeValue="Orders"
    )
    permission = {"AWSAccountId.member.1": "123456789012", "ActionName.member.1": "Publish"}
    await client.call("AddPermission", TopicArn=TOPIC, Label="l", **permission)
    again = await client.refused("AddPermission", TopicArn=TOPIC, Label="l", **permission)
    assert again[2] == "Invalid parameter: Statement already exists"
    shown = await client.attributes("GetTopicAttributes", TopicArn=TOPIC)
    assert shown["DisplayName"] == "Orders"
    assert '"SNS:Publish","Resource"' in shown["Policy"], "one action is no list"
    await client.call("RemovePermission", TopicArn=TOPIC, Label="l")
    await client.call("RemovePermission", TopicArn=TOPIC, Label="l")
    await client.call("TagResource", ResourceArn=TOPIC, **tag("b", "2"))
    await client.call("UntagResource", ResourceArn=TOPIC, **{"TagKeys.member.1": "a"})
    root = await client.call("ListTagsForResource", ResourceArn=TOPIC)
    assert [one.findtext("Key") for one in root.iter("member")] == ["b"]


def tag(key: str, value: str) -> Fields:
    return {"Tags.member.1.Key": key, "Tags.member.1.Value": value}


async def test_lists_have_pages(client: Client) -> None:
    for number in range(101):
        await client.topic(f"t{number:03}")
    root = await client.call("ListTopics")
    assert len(list(root.iter("member"))) == 100
    assert root.findtext("ListTopicsResult/NextToken") == "100"
    root = await client.call("ListTopics", NextToken="100")
    assert [one.findtext("TopicArn") for one in root.iter("member")] == [
        TOPIC.replace("orders", "t100")
    ]
    assert root.find("ListTopicsResult/NextToken") is None


async def test_a_subscription_from_its_begin_to_its_end(client: Client) -> None:
    await client.topic()
    arn = await client.subscribe(RawMessageDelivery="TRUE")
    assert arn.startswith(f"{TOPIC}:")
    assert await client.subscribe() == arn, "the same endpoint again"
    other = await client.refused("Subscribe", **given(RawMessageDelivery="false"))
    text = "Subscription already exists with different attributes"
    assert other[2] == f"Invalid parameter: Attributes Reason: {text}"
    shown = await client.attributes("GetSubscriptionAttributes", SubscriptionArn=arn)
    assert (shown["RawMessageDelivery"], shown["PendingConfirmation"]) == ("true", "false")
    assert "FilterPolicyScope" not in shown
    policy = '{"color":["red"]}'
    change = {"SubscriptionArn": arn, "AttributeName": "FilterPolicy", "AttributeValue": policy}
    await client.call("SetSubscriptionAttributes", **change)
    shown = await client.attributes("GetSubscriptionAttributes", SubscriptionArn=arn)
    assert (shown["FilterPolicy"], shown["FilterPolicyScope"]) == (policy, "MessageAttributes")
    await client.call("SetSubscriptionAttributes", **{**change, "AttributeValue": ""})
    shown = await client.attributes("GetSubscriptionAttributes", SubscriptionArn=arn)
    assert not {"FilterPolicy", "FilterPolicyScope"} & shown.keys()
    root = await client.call("ListSubscriptionsByTopic", TopicArn=TOPIC)
    assert [one.findtext("SubscriptionArn") for one in root.iter("member")] == [arn]
    await client.call("Unsubscribe", SubscriptionArn=arn)
    await client.call("Unsubscribe", SubscriptionArn=arn)
    root = await client.call("ListSubscriptions")
    assert root.find("ListSubscriptionsResult/Subscriptions") is not None, "empty but present"
    await client.call("DeleteTopic", TopicArn=TOPIC)
    await client.call("DeleteTopic", TopicArn=TOPIC)


async def test_what_is_published_is_a_record_of_the_stream(client: Client) -> None:
    await client.topic()
    fields: dict[str, Any] = {"TopicArn": TOPIC, "Message": "m", "Subject": "s"}
    root = await client.call("Publish", **fields)
    message_id = root.findtext("PublishResult/MessageId", "")
    [[record]] = client.rig.backend.records.values()
    assert record.message.body == b"m"
    assert record.message.message_id.hex() == message_id.replace("-", "")
    assert record.message.attributes is not None
    assert record.message.attributes["penstock.subject"].value == b"s"
    forged = {
        "MessageAttributes.entry.1.Name": "penstock.subject",
        "MessageAttributes.entry.1.Value.DataType": "String",
        "MessageAttributes.entry.1.Value.StringValue": "x",
    }
    assert (await client.refused("Publish", **fields, **forged))[1] == "ParameterValueInvalid"
