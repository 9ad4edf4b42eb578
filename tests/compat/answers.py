"""What boto3 answers, in the few words that tests ask for."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

Refusal = pytest.ExceptionInfo[ClientError]


def code_of(error: Refusal) -> str:
    code: str = error.value.response["Error"]["Code"]
    return code


def message_of(error: Refusal) -> str:
    message: str = error.value.response["Error"]["Message"]
    return message


def status_of(error: Refusal) -> int:
    status: int = error.value.response["ResponseMetadata"]["HTTPStatusCode"]
    return status


def receive(sqs: Any, url: str, *, wait: int = 5, **more: Any) -> list[dict[str, Any]]:
    """The messages of one receive; by default one that waits, so that tests need not."""
    reply = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=wait, **more)
    messages: list[dict[str, Any]] = reply.get("Messages", [])
    return messages


def receive_count(sqs: Any, url: str, count: int) -> list[dict[str, Any]]:
    """``count`` messages over as many long polls as it takes (a poll need not fill up)."""
    got: list[dict[str, Any]] = []
    while len(got) < count:
        more = receive(sqs, url, MaxNumberOfMessages=10)
        assert more, f"expected {count} messages, got {len(got)}"
        got += more
    return got


def attributes_of(sqs: Any, url: str, *names: str) -> dict[str, str]:
    """Attributes of a queue; all of them where none is named."""
    reply = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(names or ("All",)))
    attributes: dict[str, str] = reply.get("Attributes", {})
    return attributes


def arn_of(sqs: Any, url: str) -> str:
    return attributes_of(sqs, url, "QueueArn")["QueueArn"]
