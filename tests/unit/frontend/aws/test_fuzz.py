"""Whatever is sent, the frontend answers, and never with its own failure. The fields are real, the
values are anything: this is what a broken client or a curious one sends."""

import asyncio
import json
from typing import Any
from urllib.parse import urlencode

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.frontend.memory import Rig

from penstock.frontend.aws.sqs.rules.queue_attributes import TABLE
from penstock.wire.aws.shapes import OPERATIONS

ACTION = st.sampled_from(sorted(OPERATIONS))
URL = st.sampled_from(
    [f"http://h/000000000000/{name}" for name in ("std", "q.fifo", "none")] + ["std", "/", "x:y"]
)
TEXT = (
    st.text(max_size=20) | URL | st.sampled_from(["All", "1", "-1", "true", "{}", "[]", "", "\0"])
)
NUMBER = st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 901)
ATTRIBUTE = st.fixed_dictionaries(
    {},
    optional={
        "DataType": st.sampled_from(["String", "Number", "Binary", "String.x", "", "Other"]),
        "StringValue": TEXT,
        "BinaryValue": st.sampled_from(["aGk=", "", "!"]),
    },
)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "Id": TEXT,
        "MessageBody": TEXT,
        "DelaySeconds": NUMBER,
        "MessageGroupId": TEXT,
        "MessageDeduplicationId": TEXT,
        "ReceiptHandle": TEXT,
        "VisibilityTimeout": NUMBER,
        "MessageAttributes": st.dictionaries(TEXT, ATTRIBUTE, max_size=3),
    },
)
FIELDS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"QueueUrl": URL},
    optional={
        "QueueName": TEXT,
        "Attributes": st.dictionaries(st.sampled_from(sorted(TABLE)) | TEXT, TEXT, max_size=4),
        "tags": st.dictionaries(TEXT, TEXT, max_size=3),
        "Tags": st.dictionaries(TEXT, TEXT, max_size=3),
        "TagKeys": st.lists(TEXT, max_size=3),
        "MessageBody": TEXT,
        "DelaySeconds": NUMBER,
        "MessageGroupId": TEXT,
        "MessageDeduplicationId": TEXT,
        "MessageAttributes": st.dictionaries(TEXT, ATTRIBUTE, max_size=3),
        "MessageSystemAttributes": st.dictionaries(TEXT, ATTRIBUTE, max_size=2),
        "MessageAttributeNames": st.lists(TEXT, max_size=3),
        "AttributeNames": st.lists(st.sampled_from(sorted(TABLE)) | TEXT, max_size=3),
        "MaxNumberOfMessages": NUMBER,
        "WaitTimeSeconds": NUMBER,
        "VisibilityTimeout": NUMBER,
        "ReceiptHandle": TEXT,
        "ReceiveRequestAttemptId": TEXT,
        "Entries": st.lists(ENTRY, max_size=4),
        "Label": TEXT,
        "AWSAccountIds": st.lists(TEXT, max_size=3),
        "Actions": st.lists(ACTION | TEXT, max_size=3),
        "NextToken": TEXT,
        "MaxResults": NUMBER,
        "SourceArn": TEXT,
        "DestinationArn": TEXT,
        "MaxNumberOfMessagesPerSecond": NUMBER,
        "TaskHandle": TEXT,
    },
)
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def status_of(body: bytes, headers: dict[str, str], *, path: str = "/", query: str = "") -> int:
    async def ask() -> int:
        rig = Rig()
        for name, more in (("std", {}), ("q.fifo", {"FifoQueue": "true"})):
            await rig.ask(
                body=json.dumps({"QueueName": name, "Attributes": more}).encode(),
                headers={"x-amz-target": "AmazonSQS.CreateQueue"},
            )
        reply = await rig.ask(path=path, query=query, body=body, headers=headers)
        assert reply.body is not None
        assert dict(reply.headers)["x-amzn-RequestId"] == "request-1"
        return reply.status

    return asyncio.run(ask())


@settings(max_examples=150, deadline=None)
@given(ACTION, FIELDS)
def test_plausible_json_never_fails_us(action: str, fields: dict[str, Any]) -> None:
    headers = {"x-amz-target": f"AmazonSQS.{action}"}
    assert status_of(json.dumps(fields).encode(), headers) < 500


@settings(max_examples=100, deadline=None)
@given(ACTION, FIELDS, st.data())
def test_fields_of_the_wrong_type_never_fail_us(
    action: str, fields: dict[str, Any], data: st.DataObject
) -> None:
    for name in data.draw(st.lists(st.sampled_from(sorted(fields)), max_size=3)):
        fields[name] = data.draw(ANYTHING)
    headers = {"x-amz-target": f"AmazonSQS.{action}"}
    assert status_of(json.dumps(fields).encode(), headers) < 500


@settings(max_examples=100, deadline=None)
@given(
    ACTION,
    st.dictionaries(
        st.sampled_from(
            [
                "QueueUrl",
                "QueueName",
                "MessageBody",
                "Attribute.1.Name",
                "Attribute.1.Value",
                "Attribute.1",
                "AttributeName.1",
                "MessageAttribute.1.Name",
                "MessageAttribute.1.Value.DataType",
                "MessageAttribute.1.Value.StringValue",
                "SendMessageBatchRequestEntry.1.Id",
                "SendMessageBatchRequestEntry.1.MessageBody",
                "SendMessageBatchRequestEntry.2",
                "Tag.1.Key",
                "MaxNumberOfMessages",
                "ReceiptHandle",
                "X-Amz-Credential",
            ]
        ),
        TEXT,
    ),
)
def test_plausible_forms_never_fail_us(action: str, fields: dict[str, str]) -> None:
    body = urlencode({"Action": action, **fields}).encode()
    assert status_of(body, {"content-type": "application/x-www-form-urlencoded"}) < 500


@settings(max_examples=100, deadline=None)
@given(
    st.binary(max_size=60),
    st.text(max_size=20).map(lambda text: "/" + text),
    st.text(max_size=20),
    st.dictionaries(
        st.sampled_from(["x-amz-target", "authorization", "content-type", "host"]),
        st.text(max_size=40) | st.just("AWS4-HMAC-SHA256 Credential=a/b/c"),
    ),
)
def test_noise_never_fails_us(body: bytes, path: str, query: str, headers: dict[str, str]) -> None:
    assert status_of(body, headers, path=path, query=query) < 500
