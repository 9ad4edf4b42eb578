"""SNS and SQS clients of all nodes of a server or cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import boto3
from botocore.config import Config
from tests.harness.patience import eventually

SECONDS_MAX = 120.0


def connect(service: str, url: str, *, attempts: int = 6) -> Any:
    """``attempts`` in all; one for those who count failures."""
    return boto3.client(
        service,
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(retries={"total_max_attempts": attempts, "mode": "standard"}),
    )


class Site:
    """Clients of every node, and the address for Kafka."""

    def __init__(self, urls: list[str], kafka: str) -> None:
        self.sns = [connect("sns", url) for url in urls]
        self.sqs = [connect("sqs", url) for url in urls]
        self.kafka = kafka

    def queue(self, name: str) -> tuple[str, str]:
        sqs = self.sqs[0]
        url = sqs.create_queue(QueueName=name)["QueueUrl"]
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        return url, found["Attributes"]["QueueArn"]

    def received(self, url: str, *, at: int = 0, wait_s: int = 0) -> list[dict[str, Any]]:
        """Receive and delete what is in a queue now."""
        sqs, path = self.sqs[at], url.partition("://")[2].partition("/")[2]
        url = f"{sqs.meta.endpoint_url}/{path}"
        reply = sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=wait_s,
            AttributeNames=["MessageGroupId"],
            MessageAttributeNames=["All"],
        )
        messages: list[dict[str, Any]] = reply.get("Messages", [])
        for message in messages:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return messages

    def received_bodies(self, url: str, is_enough: Callable[[list[str]], bool]) -> list[str]:
        """Receive and delete messages until there are enough of them."""
        found: list[str] = []

        def are_enough() -> bool:
            found.extend(message["Body"] for message in self.received(url, wait_s=1))
            return is_enough(found)

        eventually(are_enough, seconds=SECONDS_MAX, what="all messages")
        return found
