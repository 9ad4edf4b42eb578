"""Dead letters as boto3 sees them: the rule, the move, and moving them back."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError
from tests.compat.answers import arn_of, code_of
from tests.compat.answers import receive as receive_once
from tests.compat.conftest import MakeQueue


def receive(sqs: Any, url: str, *, wait: int = 5, **more: Any) -> list[dict[str, Any]]:
    """With everything a message has to show."""
    more.update(MessageSystemAttributeNames=["All"], MessageAttributeNames=["All"])
    return receive_once(sqs, url, wait=wait, **more)


def rule(arn: str, count: object = 1) -> str:
    return json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": count})


Pair = tuple[str, str]  # source URL, dead-letter URL


@pytest.fixture
def pair(sqs: Any, make_queue: MakeQueue) -> Pair:
    dead = make_queue()
    return make_queue(RedrivePolicy=rule(arn_of(sqs, dead)), VisibilityTimeout=0), dead


@pytest.fixture
def bury(sqs: Any, pair: Pair) -> Callable[..., dict[str, Any]]:
    """Send a message and receive it once too often; returns it as the dead-letter queue has it."""

    def send_and_bury(body: str, **more: Any) -> dict[str, Any]:
        source, dead = pair
        sqs.send_message(QueueUrl=source, MessageBody=body, **more)
        assert len(receive(sqs, source)) == 1
        assert receive(sqs, source, wait=0) == []
        [buried] = receive(sqs, dead, VisibilityTimeout=0)
        return buried

    return send_and_bury


# ── The rule ─────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "policy",
    [
        "no json",
        "{}",
        rule("arn:aws:sqs:us-east-1:000000000000:not-there"),
        rule("arn:aws:sqs:us-east-1:000000000000:not-there", 0),
        rule("nonsense"),
        json.dumps({"maxReceiveCount": 1}),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(
    sqs: Any, make_queue: MakeQueue, policy: str
) -> None:
    with pytest.raises(ClientError) as error:
        sqs.set_queue_attributes(QueueUrl=make_queue(), Attributes={"RedrivePolicy": policy})
    assert code_of(error) in ("InvalidParameterValue", "InvalidAttributeValue")


def test_the_target_must_be_of_the_same_kind(sqs: Any, make_queue: MakeQueue) -> None:
    arn = arn_of(sqs, make_queue(FifoQueue=True))
    with pytest.raises(ClientError) as error:
        make_queue(RedrivePolicy=rule(arn))
    assert code_of(error) == "InvalidParameterValue"


def test_the_count_may_be_text_and_the_rule_can_be_removed(sqs: Any, make_queue: MakeQueue) -> None:
    arn = arn_of(sqs, make_queue())
    url = make_queue(RedrivePolicy=rule(arn, "5"))
    names = ["RedrivePolicy"]
    shown = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    assert json.loads(shown["RedrivePolicy"]) == {
        "deadLetterTargetArn": arn,
        "maxReceiveCount": 5,
    }
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)


@pytest.mark.parametrize("permission", ["denyAll", "byQueue"])
def test_the_target_may_refuse(sqs: Any, make_queue: MakeQueue, permission: str) -> None:
    allow: dict[str, Any] = {"redrivePermission": permission}
    if permission == "byQueue":
        allow["sourceQueueArns"] = ["arn:aws:sqs:us-east-1:000000000000:someone-else"]
    target = make_queue(RedriveAllowPolicy=json.dumps(allow))
    with pytest.raises(ClientError) as error:
        make_queue(RedrivePolicy=rule(arn_of(sqs, target)))
    assert code_of(error) == "InvalidParameterValue"


def test_the_target_may_name_who_is_allowed(sqs: Any, make_queue: MakeQueue) -> None:
    source = make_queue()
    allow = {"redrivePermission": "byQueue", "sourceQueueArns": [arn_of(sqs, source)]}
    target = make_queue(RedriveAllowPolicy=json.dumps(allow))
    sqs.set_queue_attributes(
        QueueUrl=source, Attributes={"RedrivePolicy": rule(arn_of(sqs, target))}
    )


def test_sources_of_a_dead_letter_queue_are_listed(sqs: Any, make_queue: MakeQueue) -> None:
    dead = make_queue()
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead).get("queueUrls", []) == []
    sources = sorted(make_queue(RedrivePolicy=rule(arn_of(sqs, dead))) for _ in range(3))
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == sources
    pages = sqs.get_paginator("list_dead_letter_source_queues").paginate(
        QueueUrl=dead, PaginationConfig={"PageSize": 2}
    )
    assert [url for page in pages for url in page["queueUrls"]] == sources


# ── The move ─────────────────────────────────────────────────────────────────────────────────
def test_a_dead_letter_keeps_what_it_was(
    sqs: Any, pair: Pair, bury: Callable[..., dict[str, Any]]
) -> None:
    attributes = {"colour": {"DataType": "String", "StringValue": "blue"}}
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-a-b"}}
    buried = bury("x", MessageAttributes=attributes, MessageSystemAttributes=trace)
    assert buried["Body"] == "x"
    assert buried["MessageAttributes"] == attributes
    assert buried["Attributes"]["AWSTraceHeader"] == "Root=1-a-b"
    assert buried["Attributes"]["DeadLetterQueueSourceArn"] == arn_of(sqs, pair[0])


def test_the_receive_count_goes_on_in_the_dead_letter_queue(
    bury: Callable[..., dict[str, Any]],
) -> None:
    assert bury("x")["Attributes"]["ApproximateReceiveCount"] == "2"


def test_a_dead_letter_keeps_its_id_and_its_time(
    sqs: Any, pair: Pair, make_queue: MakeQueue
) -> None:
    source, dead = pair
    sent = sqs.send_message(QueueUrl=source, MessageBody="x")
    [first] = receive(sqs, source)
    assert receive(sqs, source, wait=0) == []
    [buried] = receive(sqs, dead)
    assert buried["MessageId"] == sent["MessageId"]
    assert buried["Attributes"]["SentTimestamp"] == first["Attributes"]["SentTimestamp"]


def test_a_fifo_dead_letter_unlocks_its_group(sqs: Any, make_queue: MakeQueue) -> None:
    fifo: dict[str, Any] = {"FifoQueue": True, "ContentBasedDeduplication": True}
    dead = make_queue(**fifo)
    url = make_queue(**fifo, RedrivePolicy=rule(arn_of(sqs, dead)), VisibilityTimeout=0)
    for body in ("1", "2"):
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="g")
    assert [m["Body"] for m in receive(sqs, url, MaxNumberOfMessages=1)] == ["1"]
    assert [m["Body"] for m in receive(sqs, url, MaxNumberOfMessages=1)] == ["2"]
    [buried] = receive(sqs, dead)
    assert buried["Body"] == "1"
    assert buried["Attributes"]["MessageDeduplicationId"] == buried["MessageId"]


# ── Moving back ──────────────────────────────────────────────────────────────────────────────
def test_dead_letters_move_back_to_where_they_came_from(
    sqs: Any, pair: Pair, bury: Callable[..., dict[str, Any]]
) -> None:
    source, dead = pair
    buried = bury("again")
    handle = sqs.start_message_move_task(SourceArn=arn_of(sqs, dead))["TaskHandle"]
    assert set(json.loads(base64.b64decode(handle))) == {"taskId", "sourceArn"}
    [message] = receive(sqs, source, wait=20)
    assert message["Body"] == "again"
    assert message["MessageId"] != buried["MessageId"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


def test_dead_letters_move_to_a_queue_of_choice(
    sqs: Any, pair: Pair, bury: Callable[..., dict[str, Any]], make_queue: MakeQueue
) -> None:
    bury("elsewhere")
    other = make_queue()
    dead_arn = arn_of(sqs, pair[1])
    sqs.start_message_move_task(
        SourceArn=dead_arn, DestinationArn=arn_of(sqs, other), MaxNumberOfMessagesPerSecond=500
    )
    assert [m["Body"] for m in receive(sqs, other, wait=20)] == ["elsewhere"]
    [task] = sqs.list_message_move_tasks(SourceArn=dead_arn)["Results"]
    assert task["SourceArn"] == dead_arn
    assert task["DestinationArn"] == arn_of(sqs, other)
    assert task["MaxNumberOfMessagesPerSecond"] == 500
    assert task["StartedTimestamp"] > 1_600_000_000_000


def test_a_running_task_is_the_only_one_and_can_be_cancelled(
    sqs: Any, pair: Pair, make_queue: MakeQueue
) -> None:
    _source, dead = pair
    for number in range(10):
        sqs.send_message(QueueUrl=dead, MessageBody=str(number))
    arn, other = arn_of(sqs, dead), arn_of(sqs, make_queue())
    handle = sqs.start_message_move_task(
        SourceArn=arn, DestinationArn=other, MaxNumberOfMessagesPerSecond=1
    )["TaskHandle"]
    with pytest.raises(ClientError) as error:
        sqs.start_message_move_task(SourceArn=arn, DestinationArn=other)
    assert code_of(error) == "InvalidParameterValue"
    [running] = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
    assert running["Status"] == "RUNNING"
    assert running["TaskHandle"] == handle
    cancelled = sqs.cancel_message_move_task(TaskHandle=handle)
    assert 0 <= cancelled["ApproximateNumberOfMessagesMoved"] < 10
    [ended] = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
    assert ended["Status"] in ("CANCELLING", "CANCELLED")
    assert "TaskHandle" not in ended


def test_a_source_must_be_a_dead_letter_queue(sqs: Any, make_queue: MakeQueue) -> None:
    with pytest.raises(ClientError) as error:
        sqs.start_message_move_task(SourceArn=arn_of(sqs, make_queue()))
    assert code_of(error) == "InvalidParameterValue"


@pytest.mark.parametrize("call", ["start_message_move_task", "list_message_move_tasks"])
def test_a_source_that_does_not_exist_is_not_found(sqs: Any, call: str) -> None:
    with pytest.raises(sqs.exceptions.ResourceNotFoundException) as error:
        getattr(sqs, call)(SourceArn="arn:aws:sqs:us-east-1:000000000000:not-there")
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404


def test_a_destination_that_does_not_exist_is_not_found(sqs: Any, pair: Pair) -> None:
    with pytest.raises(sqs.exceptions.ResourceNotFoundException):
        sqs.start_message_move_task(
            SourceArn=arn_of(sqs, pair[1]),
            DestinationArn="arn:aws:sqs:us-east-1:000000000000:not-there",
        )


@pytest.mark.parametrize("rate", [0, 501])
def test_a_rate_out_of_range_is_refused(sqs: Any, pair: Pair, rate: int) -> None:
    with pytest.raises(ClientError) as error:
        sqs.start_message_move_task(
            SourceArn=arn_of(sqs, pair[1]), MaxNumberOfMessagesPerSecond=rate
        )
    assert code_of(error) == "InvalidParameterValue"


@pytest.mark.parametrize(
    ("handle", "code"),
    [
        ("garbage!", "InvalidParameterValue"),
        (
            base64.b64encode(b'{"taskId":"x","sourceArn":"arn:aws:sqs:r:0:none"}').decode(),
            "ResourceNotFoundException",
        ),
    ],
)
def test_cancelling_what_is_no_task(sqs: Any, handle: str, code: str) -> None:
    with pytest.raises(ClientError) as error:
        sqs.cancel_message_move_task(TaskHandle=handle)
    assert code_of(error) == code
