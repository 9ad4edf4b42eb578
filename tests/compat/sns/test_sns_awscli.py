"""SNS with the AWS command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.compat.sns.stage import Stage
from tests.harness.awscli import AWS, Aws, aws_command

pytestmark = [
    pytest.mark.skipif(not AWS.exists(), reason=f"no AWS command line at {AWS}"),
    pytest.mark.slow,
]


@pytest.fixture
def aws(stage: Stage, tmp_path: Path) -> Aws:
    return aws_command("sns", stage.url, tmp_path)


def test_a_topic_from_its_creation_to_a_message_in_a_queue(stage: Stage, aws: Aws) -> None:
    queue, url = stage.queue()
    name = stage.name()
    tags = ("--tags", "Key=team,Value=blue")
    arn = aws("create-topic", "--name", name, "--attributes", "DisplayName=d", *tags)["TopicArn"]
    policy = json.dumps({"RawMessageDelivery": "true", "FilterPolicy": '{"color":["red"]}'})
    endpoint = ("--notification-endpoint", queue)
    made = aws("subscribe", "--topic-arn", arn, "--protocol", "sqs", *endpoint,
               "--attributes", policy)["SubscriptionArn"]  # fmt: skip
    color = json.dumps({"color": {"DataType": "String", "StringValue": "red"}})
    aws("publish", "--topic-arn", arn, "--message", "plain")
    aws("publish", "--topic-arn", arn, "--message", "hot", "--message-attributes", color)
    assert [one["Body"] for one in stage.received(url)] == ["hot"]
    shown = aws("get-subscription-attributes", "--subscription-arn", made)["Attributes"]
    assert shown["FilterPolicy"] == '{"color":["red"]}'
    [tag] = aws("list-tags-for-resource", "--resource-arn", arn)["Tags"]
    assert tag == {"Key": "team", "Value": "blue"}
    [listed] = aws("list-subscriptions-by-topic", "--topic-arn", arn)["Subscriptions"]
    assert listed["SubscriptionArn"] == made
    aws("unsubscribe", "--subscription-arn", made)
    aws("delete-topic", "--topic-arn", arn)
    stderr = aws("get-topic-attributes", "--topic-arn", arn, is_ok=False)
    assert "(NotFound)" in stderr
    assert "Topic does not exist" in stderr
