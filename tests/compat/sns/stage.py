"""Topics, queues and a subscription that all cases share, and short ways to ask for them.

In the values of a case, ``<topic>`` stands for the ARN of the standard topic, and so on. Clients do
not check parameters, so that the server sees what an SDK would refuse to send."""

from __future__ import annotations

import json
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from tests.compat.conftest import CREDENTIALS, REGION

ACCOUNT = "000000000000"
Given = dict[str, Any]
Refusal = tuple[int, str, str]  # status, code, message
Row = tuple[str, Given, str, str]  # action, what is given, code, message

STATUSES = {"NotFound": 404, "ResourceNotFound": 404, "AuthorizationError": 403}
BAD = "InvalidParameter"
NO_SUCH_TOPIC = "Topic does not exist"
NULL = (
    "1 validation error detected: Value null at '{}' failed to satisfy constraint: "
    "Member must not be null"
)


def client(service: str, url: str, region: str = REGION) -> Any:
    config = Config(
        parameter_validation=False,
        retries={"max_attempts": 0, "mode": "standard"},
        connect_timeout=5,
        read_timeout=60,
    )
    return boto3.client(service, endpoint_url=url, region_name=region, config=config, **CREDENTIALS)


def identified(row: Row) -> str:
    return f"{row[0]}: {row[3][:60]}"


class Stage:
    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self.sns, self.sqs = client("sns", url), client("sqs", url)
        self.elsewhere = client("sns", url, "eu-west-1")
        self.prefix = prefix
        self._number = 0
        fifo = {"FifoTopic": "true"}
        by_content = fifo | {"ContentBasedDeduplication": "true"}
        topic = self.topic()
        queue, queue_url = self.queue()
        fifo_queue, fifo_queue_url = self.queue(".fifo")
        self.names = {
            "<topic>": topic,
            "<fifo>": self.topic(".fifo", **fifo),
            "<content>": self.topic(".fifo", **by_content),
            "<queue>": queue,
            "<queue-url>": queue_url,
            "<fifo-queue>": fifo_queue,
            "<fifo-queue-url>": fifo_queue_url,
            "<other-queue>": self.queue()[0],
            "<absent>": f"arn:aws:sns:{REGION}:{ACCOUNT}:absent",
            "<subscription>": self.subscribe(topic, queue),
        }

    def name(self, suffix: str = "") -> str:
        self._number += 1
        return f"{self.prefix}-{self._number}{suffix}"

    def topic(self, suffix: str = "", **attributes: str) -> str:
        made = self.sns.create_topic(Name=self.name(suffix), Attributes=attributes)
        arn: str = made["TopicArn"]
        return arn

    def queue(self, suffix: str = "", **attributes: str) -> tuple[str, str]:
        """Return the ARN and the URL of a new queue."""
        if suffix == ".fifo":
            attributes = {"FifoQueue": "true", **attributes}
        made = self.sqs.create_queue(QueueName=self.name(suffix), Attributes=attributes)
        url: str = made["QueueUrl"]
        return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{url.rpartition('/')[2]}", url

    def subscribe(self, topic: str, queue: str, **attributes: str) -> str:
        made = self.sns.subscribe(
            TopicArn=topic,
            Protocol="sqs",
            Endpoint=queue,
            Attributes=attributes,
            ReturnSubscriptionArn=True,
        )
        arn: str = made["SubscriptionArn"]
        return arn

    def fill(self, value: Any) -> Any:
        """Replace the names in a value by what they stand for."""
        if isinstance(value, dict):
            return {self.fill(key): self.fill(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.fill(inner) for inner in value]
        if isinstance(value, str) and "<" in value:
            for name, text in self.names.items():
                value = value.replace(name, text)
        return value

    def ask(self, action: str, **given: Any) -> dict[str, Any]:
        reply: dict[str, Any] = self.sns._make_api_call(action, self.fill(given))
        return reply

    def refusal(self, action: str, given: Given, *, at: Any = None) -> Refusal:
        try:
            reply = (at or self.sns)._make_api_call(action, self.fill(given))
        except ClientError as error:
            found, metadata = error.response["Error"], error.response["ResponseMetadata"]
            return metadata["HTTPStatusCode"], found["Code"], found["Message"]
        raise AssertionError(f"{action} was accepted: {reply}")

    def attributes(self, arn: str) -> dict[str, str]:
        """Return the attributes of a topic or subscription."""
        if arn.count(":") == 5:
            found = self.sns.get_topic_attributes(TopicArn=arn)["Attributes"]
        else:
            found = self.sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]
        attributes: dict[str, str] = found
        return attributes

    def set(self, arn: str, name: str, value: str) -> None:
        if arn.count(":") == 5:
            self.sns.set_topic_attributes(TopicArn=arn, AttributeName=name, AttributeValue=value)
            return
        self.sns.set_subscription_attributes(
            SubscriptionArn=arn, AttributeName=name, AttributeValue=value
        )

    def received(self, url: str, *, wait_s: int = 20) -> list[dict[str, Any]]:
        """Receive and delete what is in a queue, as soon as there is something."""
        reply = self.sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=wait_s,
            MessageAttributeNames=["All"],
            AttributeNames=["All"],
        )
        messages: list[dict[str, Any]] = reply.get("Messages", [])
        for message in messages:
            self.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return messages


def expected(row: Row, stage: Stage) -> Refusal:
    _, _, code, text = row
    return STATUSES.get(code, 400), code, stage.fill(text)


def compact(document: object) -> str:
    return json.dumps(document, separators=(",", ":"))
