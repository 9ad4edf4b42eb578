"""What suites written for other stand-ins of SQS take for granted: the resource API, exact texts
and classes of refusals, addresses and accounts as those stand-ins know them, trace ids.

Where such a suite expects what the real service refuses (an attribute name with a blank at its end,
``FifoQueue`` set to false, a retention of three seconds) we side with the service, and nothing
here asks for it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from tests.compat.answers import arn_of, attributes_of, code_of, message_of, receive, status_of
from tests.compat.conftest import CREDENTIALS, REGION, MakeQueue, sqs_client
from tests.harness.patience import eventually
from tests.harness.server import Server

OTHER_ACCOUNT = "111111111111"
TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1"


@pytest.fixture(scope="module")
def resource(server: Server) -> Iterator[Any]:
    made = boto3.resource("sqs", endpoint_url=server.url, region_name=REGION, **CREDENTIALS)
    yield made
    made.meta.client.close()


@pytest.fixture
def traced(server: Server) -> Iterator[Callable[[str], Any]]:
    """``traced(text)``: a client whose every request carries that X-Amzn-Trace-Id."""
    clients: list[Any] = []

    def make(trace_id: str) -> Any:
        client = boto3.client("sqs", endpoint_url=server.url, region_name=REGION, **CREDENTIALS)

        def add(request: Any, **_: object) -> None:
            request.headers["X-Amzn-Trace-Id"] = trace_id

        client.meta.events.register("before-sign.sqs", add)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


def trace_of(message: dict[str, Any]) -> str | None:
    trace: str | None = message.get("Attributes", {}).get("AWSTraceHeader")
    return trace


# ── The resource API ─────────────────────────────────────────────────────────────────────────
def test_a_queue_is_used_as_an_object(resource: Any, queue_name: Callable[..., str]) -> None:
    name = queue_name()
    queue = resource.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "45"})
    try:
        assert resource.get_queue_by_name(QueueName=name).url == queue.url
        assert [one.url for one in resource.queues.filter(QueueNamePrefix=name)] == [queue.url]
        assert queue.url in {one.url for one in resource.queues.all()}
        assert queue.attributes["VisibilityTimeout"] == "45"
        queue.set_attributes(Attributes={"VisibilityTimeout": "60"})
        queue.reload()
        assert queue.attributes["VisibilityTimeout"] == "60"

        sent = queue.send_messages(
            Entries=[{"Id": str(i), "MessageBody": f"body {i}"} for i in range(3)]
        )
        assert "Failed" not in sent
        first, *others = queue.receive_messages(MaxNumberOfMessages=10, WaitTimeSeconds=5)
        first.change_visibility(VisibilityTimeout=0)
        [again] = queue.receive_messages(WaitTimeSeconds=5)
        assert (again.message_id, again.body) == (first.message_id, first.body)
        again.delete()
        gone = queue.delete_messages(
            Entries=[{"Id": m.message_id, "ReceiptHandle": m.receipt_handle} for m in others]
        )
        assert len(gone["Successful"]) == 2
        assert "Failed" not in gone
    finally:
        queue.delete()


def test_a_dead_letter_queue_knows_its_sources_as_objects(
    sqs: Any, resource: Any, make_queue: MakeQueue
) -> None:
    dead = make_queue()
    redrive = json.dumps({"deadLetterTargetArn": arn_of(sqs, dead), "maxReceiveCount": "2"})
    source = make_queue(RedrivePolicy=redrive)
    found = [one.url for one in resource.Queue(dead).dead_letter_source_queues.all()]
    assert found == [source]
    shown = json.loads(attributes_of(sqs, source)["RedrivePolicy"])
    assert shown["maxReceiveCount"] == 2, "a count given as text is shown as a number"


# ── Refusals ─────────────────────────────────────────────────────────────────────────────────
def test_the_kind_of_a_refusal_stands_in_the_body_alone(sqs: Any) -> None:
    """One client reads an x-amzn-errortype header literally, another wants the namespace in it:
    the service sends none, and so there is nothing to disagree about."""
    with pytest.raises(sqs.exceptions.QueueDoesNotExist) as error:
        sqs.get_queue_url(QueueName="never-made")
    assert code_of(error) == "AWS.SimpleQueueService.NonExistentQueue"
    headers = error.value.response["ResponseMetadata"]["HTTPHeaders"]
    assert "x-amzn-errortype" not in headers
    assert headers["x-amzn-query-error"] == "AWS.SimpleQueueService.NonExistentQueue;Sender"


def test_an_empty_queue_name_is_a_bad_one_not_a_missing_one(sqs: Any) -> None:
    with pytest.raises(ClientError) as error:
        sqs.create_queue(QueueName="")
    assert (code_of(error), status_of(error)) == ("InvalidParameterValue", 400)
    assert "1 to 80 in length" in message_of(error)


def test_a_delay_out_of_range_is_refused_in_the_same_words_alone_and_in_a_batch(
    sqs: Any, make_queue: MakeQueue
) -> None:
    url = make_queue()
    text = "Value 901 for parameter DelaySeconds is invalid. Reason: DelaySeconds must be "
    text += ">= 0 and <= 900."
    with pytest.raises(ClientError) as error:
        sqs.send_message(QueueUrl=url, MessageBody="late", DelaySeconds=901)
    assert (code_of(error), message_of(error)) == ("InvalidParameterValue", text)
    reply = sqs.send_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "on-time", "MessageBody": "x", "DelaySeconds": 900},
            {"Id": "late", "MessageBody": "x", "DelaySeconds": 901},
        ],
    )
    assert [entry["Id"] for entry in reply["Successful"]] == ["on-time"]
    assert reply["Failed"] == [
        {"Id": "late", "SenderFault": True, "Code": "InvalidParameterValue", "Message": text}
    ]


def test_a_permission_for_nobody_cannot_be_verified(sqs: Any, make_queue: MakeQueue) -> None:
    with pytest.raises(ClientError) as error:
        sqs.add_permission(
            QueueUrl=make_queue(), Label="share", AWSAccountIds=[], Actions=["SendMessage"]
        )
    assert code_of(error) == "InvalidParameterValue"
    assert message_of(error) == (
        "Value [] for parameter PrincipalId is invalid. Reason: Unable to verify."
    )


def test_too_many_tags_are_refused_by_the_name_of_the_queue_and_none_is_kept(
    sqs: Any, make_queue: MakeQueue, queue_name: Callable[..., str]
) -> None:
    name = queue_name()
    url = make_queue(name, tags={"first": "1"})
    with pytest.raises(ClientError) as error:
        sqs.tag_queue(QueueUrl=url, Tags={f"tag-{i}": "x" for i in range(50)})
    assert code_of(error) == "InvalidParameterValue"
    assert message_of(error) == f"Too many tags added for queue {name}."
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"first": "1"}


# ── Move tasks ───────────────────────────────────────────────────────────────────────────────
def dead_letter_pair(sqs: Any, make_queue: MakeQueue) -> tuple[str, str]:
    dead = make_queue()
    redrive = json.dumps({"deadLetterTargetArn": arn_of(sqs, dead), "maxReceiveCount": 1})
    return make_queue(RedrivePolicy=redrive), dead


def test_a_dead_letter_queue_without_tasks_lists_none(sqs: Any, make_queue: MakeQueue) -> None:
    _, dead = dead_letter_pair(sqs, make_queue)
    assert sqs.list_message_move_tasks(SourceArn=arn_of(sqs, dead))["Results"] == []


def test_a_task_that_has_ended_does_not_exist_for_cancelling(
    sqs: Any, make_queue: MakeQueue
) -> None:
    _, dead = dead_letter_pair(sqs, make_queue)
    arn = arn_of(sqs, dead)
    handle = sqs.start_message_move_task(SourceArn=arn)["TaskHandle"]

    def has_ended() -> bool:
        [task] = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
        return bool(task["Status"] == "COMPLETED")

    eventually(has_ended, seconds=10, what="the empty queue's task completed")
    with pytest.raises(sqs.exceptions.ResourceNotFoundException) as error:
        sqs.cancel_message_move_task(TaskHandle=handle)
    assert (status_of(error), message_of(error)) == (404, "Task does not exist.")


def test_a_message_nobody_sent_back_ends_its_task_and_stays(
    sqs: Any, make_queue: MakeQueue
) -> None:
    _, dead = dead_letter_pair(sqs, make_queue)
    arn = arn_of(sqs, dead)
    sqs.send_message(QueueUrl=dead, MessageBody="straight to the dead")
    sqs.start_message_move_task(SourceArn=arn)

    def ended() -> dict[str, Any] | None:
        [task] = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
        return None if task["Status"] == "RUNNING" else dict(task)

    task = eventually(ended, seconds=10, what="the task ended")
    assert task is not None
    assert (task["Status"], task["FailureReason"]) == ("FAILED", "CouldNotDetermineMessageSource")
    assert task["ApproximateNumberOfMessagesMoved"] == 0
    assert [one["Body"] for one in receive(sqs, dead)] == ["straight to the dead"]


@pytest.mark.parametrize("rate", [0, 501])
def test_a_rate_out_of_range_is_refused(sqs: Any, make_queue: MakeQueue, rate: int) -> None:
    _, dead = dead_letter_pair(sqs, make_queue)
    with pytest.raises(ClientError) as error:
        sqs.start_message_move_task(SourceArn=arn_of(sqs, dead), MaxNumberOfMessagesPerSecond=rate)
    assert message_of(error) == (
        f"Value {rate} for parameter MaxNumberOfMessagesPerSecond is invalid. "
        "Reason: Must be between 1 and 500."
    )


@pytest.mark.parametrize("count", [0, 11])
def test_a_number_of_tasks_out_of_range_is_refused(
    sqs: Any, make_queue: MakeQueue, count: int
) -> None:
    _, dead = dead_letter_pair(sqs, make_queue)
    with pytest.raises(ClientError) as error:
        sqs.list_message_move_tasks(SourceArn=arn_of(sqs, dead), MaxResults=count)
    assert message_of(error) == (
        f"Value {count} for parameter MaxResults is invalid. Reason: Must be between 1 and 10."
    )


# ── Deduplication ────────────────────────────────────────────────────────────────────────────
def test_a_duplicate_in_another_group_is_found_where_queues_are_divided(
    tmp_path: Path, queue_name: Callable[..., str]
) -> None:
    """Partitions divide a queue by group; an id that counts for the whole queue must not care."""
    with Server(tmp_path / "data", fsync="never", partitions=4) as divided:
        sqs = sqs_client(divided.url)
        try:
            url = sqs.create_queue(QueueName=queue_name(".fifo"), Attributes={"FifoQueue": "true"})[
                "QueueUrl"
            ]
            ids = {
                sqs.send_message(
                    QueueUrl=url,
                    MessageBody="again",
                    MessageGroupId=f"group-{i}",
                    MessageDeduplicationId="once",
                )["MessageId"]
                for i in range(8)
            }
            assert len(ids) == 1
            assert len(receive(sqs, url, MaxNumberOfMessages=10)) == 1
        finally:
            sqs.close()


# ── Traces ───────────────────────────────────────────────────────────────────────────────────
def test_the_trace_id_of_a_request_is_that_of_its_messages(
    sqs: Any, make_queue: MakeQueue, traced: Callable[[str], Any]
) -> None:
    url = make_queue()
    client = traced(TRACE)
    reply = client.send_message(QueueUrl=url, MessageBody="one")
    assert "MD5OfMessageSystemAttributes" not in reply, "it was no attribute of the message"
    client.send_message_batch(
        QueueUrl=url, Entries=[{"Id": text, "MessageBody": text} for text in ("two", "three")]
    )
    for _ in range(3):
        [message] = receive(sqs, url, MessageSystemAttributeNames=["AWSTraceHeader"])
        assert message["Attributes"] == {"AWSTraceHeader": TRACE}


def test_a_messages_own_trace_header_comes_before_the_requests(
    sqs: Any, make_queue: MakeQueue, traced: Callable[[str], Any]
) -> None:
    url = make_queue()
    traced(TRACE).send_message(
        QueueUrl=url,
        MessageBody="x",
        MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": "own"}},
    )
    [message] = receive(sqs, url, AttributeNames=["All"])
    assert trace_of(message) == "own"


@pytest.mark.parametrize("trace_id", ["x" * 1_025, "caf\xe9"])
def test_a_trace_id_that_no_message_can_carry_does_not_stop_the_send(
    sqs: Any, make_queue: MakeQueue, traced: Callable[[str], Any], trace_id: str
) -> None:
    url = make_queue()
    traced(trace_id).send_message(QueueUrl=url, MessageBody="x")
    [message] = receive(sqs, url, AttributeNames=["All"])
    assert trace_of(message) is None


# ── Addresses and accounts ───────────────────────────────────────────────────────────────────
def test_a_queue_answers_at_the_address_without_an_account(
    sqs: Any, server: Server, make_queue: MakeQueue, queue_name: Callable[..., str]
) -> None:
    name = queue_name()
    url = make_queue(name)
    short = f"{server.url}/queue/{name}"
    sqs.send_message(QueueUrl=short, MessageBody="through a client")
    with urllib.request.urlopen(f"{short}?Action=ReceiveMessage&WaitTimeSeconds=5") as reply:
        assert "<Body>through a client</Body>" in reply.read().decode()
    assert attributes_of(sqs, short)["QueueArn"] == arn_of(sqs, url)


def test_a_key_of_twelve_digits_is_an_account_of_its_own(
    sqs: Any, server: Server, queue_name: Callable[..., str]
) -> None:
    name = queue_name()
    keys = {"aws_access_key_id": OTHER_ACCOUNT, "aws_secret_access_key": "any"}
    other = boto3.client("sqs", endpoint_url=server.url, region_name=REGION, **keys)
    who = boto3.client("sts", endpoint_url=server.url, region_name=REGION, **keys)
    try:
        assert who.get_caller_identity()["Account"] == OTHER_ACCOUNT
        url = other.create_queue(QueueName=name)["QueueUrl"]
        assert url.endswith(f"/{OTHER_ACCOUNT}/{name}")
        assert f":{OTHER_ACCOUNT}:{name}" in arn_of(other, url)
        assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix=name)
        with pytest.raises(sqs.exceptions.QueueDoesNotExist):
            sqs.get_queue_url(QueueName=name)
        found = sqs.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=OTHER_ACCOUNT)
        assert found["QueueUrl"] == url
        sqs.send_message(QueueUrl=url, MessageBody="across accounts")
        [message] = receive(other, url)
        assert message["Body"] == "across accounts"
        other.delete_queue(QueueUrl=url)
    finally:
        other.close()
        who.close()
