"""SQS with the AWS command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.harness.awscli import AWS, Aws, aws_command
from tests.harness.server import Server

pytestmark = [
    pytest.mark.skipif(not AWS.exists(), reason=f"no AWS command line at {AWS}"),
    pytest.mark.slow,
]


@pytest.fixture
def aws(server: Server, tmp_path: Path) -> Aws:
    return aws_command("sqs", server.url, tmp_path)


def test_messages_from_send_to_delete(aws: Aws, queue_name: Callable[..., str]) -> None:
    name = queue_name()
    url = aws("create-queue", "--queue-name", name, "--attributes", "VisibilityTimeout=60")[
        "QueueUrl"
    ]
    assert aws("get-queue-url", "--queue-name", name)["QueueUrl"] == url
    attributes = json.dumps({"n": {"DataType": "Number", "StringValue": "7"}})
    sent = aws(
        "send-message",
        *("--queue-url", url, "--message-body", "one", "--message-attributes", attributes),
    )
    entries = json.dumps([{"Id": "a", "MessageBody": "two"}, {"Id": "b", "MessageBody": "three"}])
    batch = aws("send-message-batch", "--queue-url", url, "--entries", entries)
    assert {entry["Id"] for entry in batch["Successful"]} == {"a", "b"}

    got = aws(
        "receive-message",
        *("--queue-url", url, "--max-number-of-messages", "10", "--wait-time-seconds", "2"),
        *("--message-attribute-names", "All", "--attribute-names", "All"),
    )["Messages"]
    assert sorted(message["Body"] for message in got) == ["one", "three", "two"]
    one = next(message for message in got if message["Body"] == "one")
    assert one["MessageId"] == sent["MessageId"]
    assert one["MessageAttributes"]["n"] == {"DataType": "Number", "StringValue": "7"}

    aws(
        "change-message-visibility",
        *("--queue-url", url, "--receipt-handle", one["ReceiptHandle"]),
        *("--visibility-timeout", "0"),
    )
    (again,) = aws("receive-message", "--queue-url", url)["Messages"]
    assert again["Body"] == "one"
    aws("delete-message", "--queue-url", url, "--receipt-handle", again["ReceiptHandle"])
    others = [message for message in got if message["Body"] != "one"]
    extended = json.dumps(
        [
            {"Id": str(n), "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 90}
            for n, message in enumerate(others)
        ]
    )
    reply = aws("change-message-visibility-batch", "--queue-url", url, "--entries", extended)
    assert len(reply["Successful"]) == 2
    gone = json.dumps(
        [
            {"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]}
            for n, message in enumerate(others)
        ]
    )
    reply = aws("delete-message-batch", "--queue-url", url, "--entries", gone)
    assert len(reply["Successful"]) == 2
    assert aws("receive-message", "--queue-url", url) is None
    aws("delete-queue", "--queue-url", url)
    stderr = aws("get-queue-url", "--queue-name", name, is_ok=False)
    assert "NonExistentQueue" in stderr


def test_attributes_tags_permissions_and_purge(aws: Aws, queue_name: Callable[..., str]) -> None:
    name = queue_name()
    url = aws("create-queue", "--queue-name", name, "--tags", "team=blue")["QueueUrl"]
    aws("set-queue-attributes", "--queue-url", url, "--attributes", "DelaySeconds=3")
    shown = aws("get-queue-attributes", "--queue-url", url, "--attribute-names", "All")
    assert shown["Attributes"]["DelaySeconds"] == "3"
    assert shown["Attributes"]["QueueArn"].endswith(f":{name}")

    aws("tag-queue", "--queue-url", url, "--tags", "cost=low")
    assert aws("list-queue-tags", "--queue-url", url)["Tags"] == {"team": "blue", "cost": "low"}
    aws("untag-queue", "--queue-url", url, "--tag-keys", "team")
    assert aws("list-queue-tags", "--queue-url", url)["Tags"] == {"cost": "low"}

    aws(
        "add-permission",
        *("--queue-url", url, "--label", "friend", "--aws-account-ids", "111122223333"),
        *("--actions", "SendMessage"),
    )
    policy = aws("get-queue-attributes", "--queue-url", url, "--attribute-names", "Policy")
    (statement,) = json.loads(policy["Attributes"]["Policy"])["Statement"]
    assert statement["Sid"] == "friend"
    aws("remove-permission", "--queue-url", url, "--label", "friend")
    assert aws("get-queue-attributes", "--queue-url", url, "--attribute-names", "Policy") is None

    aws("send-message", "--queue-url", url, "--message-body", "x")
    aws("purge-queue", "--queue-url", url)
    assert "PurgeQueueInProgress" in aws("purge-queue", "--queue-url", url, is_ok=False)
    names = aws("list-queues", "--queue-name-prefix", name)["QueueUrls"]
    assert names == [url]
    aws("delete-queue", "--queue-url", url)


def test_fifo_and_dead_letters(aws: Aws, queue_name: Callable[..., str]) -> None:
    dead_url = aws(
        "create-queue",
        *("--queue-name", queue_name("-dead.fifo"), "--attributes", "FifoQueue=true"),
    )["QueueUrl"]
    dead_arn = aws(
        "get-queue-attributes", "--queue-url", dead_url, "--attribute-names", "QueueArn"
    )["Attributes"]["QueueArn"]
    attributes = json.dumps(
        {
            "FifoQueue": "true",
            "ContentBasedDeduplication": "true",
            "VisibilityTimeout": "0",
            "RedrivePolicy": json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": 1}),
        }
    )
    url = aws("create-queue", "--queue-name", queue_name(".fifo"), "--attributes", attributes)[
        "QueueUrl"
    ]
    send = ("send-message", "--queue-url", url, "--message-body", "x", "--message-group-id", "g")
    first, second = aws(*send), aws(*send)
    assert first["MessageId"] == second["MessageId"]
    assert first["SequenceNumber"]
    assert len(aws("receive-message", "--queue-url", url)["Messages"]) == 1
    assert aws("receive-message", "--queue-url", url) is None
    (dead,) = aws(
        "receive-message",
        *("--queue-url", dead_url, "--wait-time-seconds", "5", "--attribute-names", "All"),
        *("--visibility-timeout", "0"),
    )["Messages"]
    assert dead["MessageId"] == first["MessageId"]
    sources = aws("list-dead-letter-source-queues", "--queue-url", dead_url)
    assert sources["queueUrls"] == [url]
    task = aws("start-message-move-task", "--source-arn", dead_arn)
    assert task["TaskHandle"]
    listed = aws("list-message-move-tasks", "--source-arn", dead_arn)["Results"]
    assert listed[0]["SourceArn"] == dead_arn
    aws("delete-queue", "--queue-url", url)
    aws("delete-queue", "--queue-url", dead_url)
