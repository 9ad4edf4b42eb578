"""Message attributes, batches and partitions as boto3 sees them."""

from __future__ import annotations

import hashlib
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from tests.compat.answers import code_of, receive, receive_count
from tests.compat.conftest import CREDENTIALS, MakeQueue
from tests.harness.server import Server

ONE_ATTRIBUTE_MD5 = "19e27d4e946b072f3f58da80d94fd778"
BINARY_ATTRIBUTE_MD5 = "31a92b15d92f8db860eda32aceb656c3"


# ── Message attributes ───────────────────────────────────────────────────────────────────────
def test_the_md5_of_a_string_attribute_is_the_documented_one(
    sqs: Any, make_queue: MakeQueue
) -> None:
    url = make_queue()
    sent = sqs.send_message(
        QueueUrl=url,
        MessageBody="x",
        MessageAttributes={
            "attribName1": {"DataType": "String", "StringValue": "attribValue 1"},
        },
    )
    assert sent["MD5OfMessageAttributes"] == ONE_ATTRIBUTE_MD5


def test_the_md5_of_a_binary_attribute_is_the_documented_one(
    sqs: Any, make_queue: MakeQueue
) -> None:
    value = {"DataType": "Binary", "BinaryValue": b"Hello binary world!"}
    url = make_queue()
    sent = sqs.send_message(
        QueueUrl=url, MessageBody="x", MessageAttributes={"binaryAttribute": value}
    )
    assert sent["MD5OfMessageAttributes"] == BINARY_ATTRIBUTE_MD5
    [message] = receive(sqs, url, MessageAttributeNames=["All"])
    assert message["MessageAttributes"] == {"binaryAttribute": value}
    assert message["MD5OfMessageAttributes"] == BINARY_ATTRIBUTE_MD5


SEVERAL = {
    "color": {"DataType": "String", "StringValue": "blue"},
    "size.width": {"DataType": "Number.int", "StringValue": "10"},
    "size.height": {"DataType": "Number", "StringValue": "-2.5"},
}


@pytest.mark.parametrize(
    ("names", "returned"),
    [
        (["All"], set(SEVERAL)),
        ([".*"], set(SEVERAL)),
        (["*"], set(SEVERAL)),
        (["color"], {"color"}),
        (["size.*"], {"size.width", "size.height"}),
        (["nothing", "color"], {"color"}),
        (["nothing"], set()),
        ([], set()),
    ],
)
def test_only_attributes_asked_for_return_and_the_md5_covers_them(
    sqs: Any, make_queue: MakeQueue, names: list[str], returned: set[str]
) -> None:
    url = make_queue()
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=SEVERAL)
    [message] = receive(sqs, url, MessageAttributeNames=names)
    assert message.get("MessageAttributes", {}) == {name: SEVERAL[name] for name in returned}
    # boto3 does not check this digest, so the test does: equal to that of the same set on send.
    if returned:
        again = sqs.send_message(
            QueueUrl=url,
            MessageBody="x",
            MessageAttributes={name: SEVERAL[name] for name in returned},
        )
        assert message["MD5OfMessageAttributes"] == again["MD5OfMessageAttributes"]
    else:
        assert "MD5OfMessageAttributes" not in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS.reserved", {"DataType": "String", "StringValue": "v"}),
        ("amazon.reserved", {"DataType": "String", "StringValue": "v"}),
        ("two..dots", {"DataType": "String", "StringValue": "v"}),
        (".leading", {"DataType": "String", "StringValue": "v"}),
        ("with space", {"DataType": "String", "StringValue": "v"}),
        ("n" * 257, {"DataType": "String", "StringValue": "v"}),
        ("n", {"DataType": "Boolean", "StringValue": "v"}),
        ("n", {"DataType": "String", "StringValue": ""}),
        ("n", {"DataType": "Number", "StringValue": "twelve"}),
        ("n", {"DataType": "Binary", "StringValue": "text"}),
    ],
)
def test_attributes_that_break_a_rule_are_refused(
    sqs: Any, make_queue: MakeQueue, name: str, value: dict[str, str]
) -> None:
    with pytest.raises(ClientError) as error:
        sqs.send_message(QueueUrl=make_queue(), MessageBody="x", MessageAttributes={name: value})
    assert code_of(error) == "InvalidParameterValue"


def test_ten_attributes_are_the_most(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue()
    value = {"DataType": "String", "StringValue": "v"}
    sqs.send_message(
        QueueUrl=url, MessageBody="x", MessageAttributes={f"n{i}": value for i in range(10)}
    )
    with pytest.raises(ClientError) as error:
        sqs.send_message(
            QueueUrl=url, MessageBody="x", MessageAttributes={f"n{i}": value for i in range(11)}
        )
    assert code_of(error) == "InvalidParameterValue"


def test_the_trace_header_is_the_one_sendable_system_attribute(
    sqs: Any, make_queue: MakeQueue
) -> None:
    url = make_queue()
    trace = "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1"
    sent = sqs.send_message(
        QueueUrl=url,
        MessageBody="x",
        MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": trace}},
    )
    assert len(sent["MD5OfMessageSystemAttributes"]) == 32
    assert "MD5OfMessageAttributes" not in sent
    [message] = receive(sqs, url, MessageSystemAttributeNames=["AWSTraceHeader"])
    assert message["Attributes"] == {"AWSTraceHeader": trace}
    with pytest.raises(ClientError) as error:
        sqs.send_message(
            QueueUrl=url,
            MessageBody="x",
            MessageSystemAttributes={"Other": {"DataType": "String", "StringValue": "v"}},
        )
    assert code_of(error) == "InvalidParameterValue"


# ── Batches ──────────────────────────────────────────────────────────────────────────────────
def test_a_batch_answers_entry_by_entry(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(MaximumMessageSize=1_024)
    reply = sqs.send_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "good", "MessageBody": "x"},
            {"Id": "large", "MessageBody": "x" * 1_025},
            {"Id": "odd", "MessageBody": "\x00"},
        ],
    )
    [good] = reply["Successful"]
    assert good["Id"] == "good"
    assert good["MD5OfMessageBody"] == hashlib.md5(b"x").hexdigest()
    failed = {entry["Id"]: entry for entry in reply["Failed"]}
    assert failed["large"]["Code"] == "InvalidParameterValue"
    assert failed["odd"]["Code"] == "InvalidMessageContents"
    assert all(entry["SenderFault"] for entry in failed.values())


def test_a_batch_without_failures_has_no_failed_key(sqs: Any, make_queue: MakeQueue) -> None:
    reply = sqs.send_message_batch(QueueUrl=make_queue(), Entries=[{"Id": "a", "MessageBody": "x"}])
    assert "Failed" not in reply


@pytest.mark.parametrize(
    ("ids", "code"),
    [
        ([str(number) for number in range(11)], "TooManyEntriesInBatchRequest"),
        (["a", "a"], "BatchEntryIdsNotDistinct"),
        (["with space"], "InvalidBatchEntryId"),
        (["a" * 81], "InvalidBatchEntryId"),
        ([], "EmptyBatchRequest"),
    ],
)
def test_what_refuses_a_whole_batch(
    sqs: Any, make_queue: MakeQueue, ids: list[str], code: str
) -> None:
    url = make_queue()
    sends = [{"Id": one, "MessageBody": "x"} for one in ids]
    with pytest.raises(ClientError) as error:
        sqs.send_message_batch(QueueUrl=url, Entries=sends)
    assert code_of(error) == f"AWS.SimpleQueueService.{code}"
    deletes = [{"Id": one, "ReceiptHandle": "x"} for one in ids]
    with pytest.raises(ClientError) as error:
        sqs.delete_message_batch(QueueUrl=url, Entries=deletes)
    assert code_of(error) == f"AWS.SimpleQueueService.{code}"


def test_a_batch_over_the_total_is_refused_whatever_the_queue_says(
    sqs: Any, make_queue: MakeQueue
) -> None:
    entries = [{"Id": str(number), "MessageBody": "x" * 120_000} for number in range(10)]
    with pytest.raises(sqs.exceptions.BatchRequestTooLong):
        sqs.send_message_batch(QueueUrl=make_queue(MaximumMessageSize=1_024), Entries=entries)


def test_delete_and_visibility_batches_answer_entry_by_entry(
    sqs: Any, make_queue: MakeQueue
) -> None:
    url = make_queue()
    for number in range(2):
        sqs.send_message(QueueUrl=url, MessageBody=str(number))
    first, second = receive_count(sqs, url, 2)
    changed = sqs.change_message_visibility_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "a", "ReceiptHandle": first["ReceiptHandle"], "VisibilityTimeout": 60},
            {"Id": "b", "ReceiptHandle": "garbage", "VisibilityTimeout": 60},
            {"Id": "c", "ReceiptHandle": second["ReceiptHandle"], "VisibilityTimeout": 43_201},
        ],
    )
    assert [entry["Id"] for entry in changed["Successful"]] == ["a"]
    codes = {entry["Id"]: entry["Code"] for entry in changed["Failed"]}
    assert codes == {"b": "ReceiptHandleIsInvalid", "c": "InvalidParameterValue"}
    deleted = sqs.delete_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "a", "ReceiptHandle": first["ReceiptHandle"]},
            {"Id": "b", "ReceiptHandle": second["ReceiptHandle"]},
            {"Id": "c", "ReceiptHandle": "garbage"},
        ],
    )
    assert sorted(entry["Id"] for entry in deleted["Successful"]) == ["a", "b"]
    assert [entry["Code"] for entry in deleted["Failed"]] == ["ReceiptHandleIsInvalid"]


# ── Partitions and regions ───────────────────────────────────────────────────────────────────
def test_a_queue_of_several_partitions_loses_nothing(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(PenstockPartitions=4)
    bodies = {str(number) for number in range(20)}
    for body in bodies:
        sqs.send_message(QueueUrl=url, MessageBody=body)
    got = receive_count(sqs, url, 20)
    assert {message["Body"] for message in got} == bodies
    for start in range(0, 20, 10):
        entries = [
            {"Id": str(i), "ReceiptHandle": message["ReceiptHandle"]}
            for i, message in enumerate(got[start : start + 10])
        ]
        assert "Failed" not in sqs.delete_message_batch(QueueUrl=url, Entries=entries)
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessages"] == "0"
    assert counts["ApproximateNumberOfMessagesNotVisible"] == "0"


def test_regions_are_separate_namespaces(server: Server, queue_name: Any) -> None:
    name = queue_name()
    here, there = (
        boto3.client("sqs", endpoint_url=server.url, region_name=region, **CREDENTIALS)
        for region in ("us-west-2", "eu-central-1")
    )
    url = here.create_queue(QueueName=name)["QueueUrl"]
    with pytest.raises(there.exceptions.QueueDoesNotExist):
        there.get_queue_url(QueueName=name)
    here.delete_queue(QueueUrl=url)
