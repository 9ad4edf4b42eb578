"""Messages as boto3 sees them: send, receive, delete, visibility, batches. Each test is one
behaviour a client relies on; waiting is done by the server (long polls), never by sleeping."""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import pytest
from botocore.exceptions import ClientError
from tests.compat.answers import code_of, message_of, receive, receive_count, status_of
from tests.compat.conftest import MakeQueue
from tests.harness.server import Server

MIB = 1_048_576


# ── Send ─────────────────────────────────────────────────────────────────────────────────────
def test_a_message_comes_back_as_it_was_sent(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue()
    sent = sqs.send_message(QueueUrl=url, MessageBody="hello")
    assert sent["MD5OfMessageBody"] == hashlib.md5(b"hello").hexdigest()
    assert "MD5OfMessageAttributes" not in sent
    assert "SequenceNumber" not in sent
    [message] = receive(sqs, url)
    assert message["Body"] == "hello"
    assert message["MessageId"] == sent["MessageId"]
    assert message["MD5OfBody"] == sent["MD5OfMessageBody"]
    assert "Attributes" not in message
    assert "MessageAttributes" not in message


@pytest.mark.parametrize(
    "body",
    ["\r\n\t tab and return", "\"quotes\" & <xml/> 'more'", "𝄞 astral ✓", "\ufffd\ue000", " "],
)
def test_any_allowed_text_round_trips(sqs: Any, make_queue: MakeQueue, body: str) -> None:
    url = make_queue()
    sqs.send_message(QueueUrl=url, MessageBody=body)
    [message] = receive(sqs, url)
    assert message["Body"] == body


@pytest.mark.parametrize("body", ["\x00", "a\x0bb", "\ufffe", "\uffff"])
def test_characters_a_queue_cannot_carry_are_refused(
    sqs: Any, make_queue: MakeQueue, body: str
) -> None:
    url = make_queue()
    with pytest.raises(sqs.exceptions.InvalidMessageContents):
        sqs.send_message(QueueUrl=url, MessageBody=body)


def test_an_empty_body_is_a_missing_parameter(sqs: Any, make_queue: MakeQueue) -> None:
    with pytest.raises(ClientError) as error:
        sqs.send_message(QueueUrl=make_queue(), MessageBody="")
    assert code_of(error) == "MissingParameter"


def test_sending_to_an_unknown_queue_names_the_legacy_code(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue() + "-not"
    with pytest.raises(sqs.exceptions.QueueDoesNotExist) as error:
        sqs.send_message(QueueUrl=url, MessageBody="x")
    assert code_of(error) == "AWS.SimpleQueueService.NonExistentQueue"
    assert message_of(error) == "The specified queue does not exist."
    assert status_of(error) == 400


def test_every_reply_has_a_request_id(sqs: Any, make_queue: MakeQueue) -> None:
    first = sqs.send_message(QueueUrl=make_queue(), MessageBody="x")["ResponseMetadata"]
    second = sqs.list_queues()["ResponseMetadata"]
    assert first["RequestId"]
    assert first["RequestId"] != second["RequestId"]


def test_a_message_over_the_queues_limit_is_refused(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(MaximumMessageSize=1_024)
    sqs.send_message(QueueUrl=url, MessageBody="x" * 1_024)
    with pytest.raises(ClientError) as error:
        sqs.send_message(QueueUrl=url, MessageBody="x" * 1_025)
    assert code_of(error) == "InvalidParameterValue"
    assert "Message must be shorter than 1024 bytes." in message_of(error)


def test_a_mebibyte_is_accepted_and_one_byte_more_is_not(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue()
    sqs.send_message(QueueUrl=url, MessageBody="x" * MIB)
    [message] = receive(sqs, url)
    assert len(message["Body"]) == MIB
    with pytest.raises(ClientError) as error:
        sqs.send_message(QueueUrl=url, MessageBody="x" * (MIB + 1))
    assert code_of(error) == "InvalidParameterValue"


def test_attributes_count_towards_the_size(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(MaximumMessageSize=1_024)
    attribute = {"n": {"DataType": "String", "StringValue": "v"}}  # 1 + 6 + 1 bytes
    sqs.send_message(QueueUrl=url, MessageBody="x" * 1_016, MessageAttributes=attribute)
    with pytest.raises(ClientError) as error:
        sqs.send_message(QueueUrl=url, MessageBody="x" * 1_017, MessageAttributes=attribute)
    assert code_of(error) == "InvalidParameterValue"


# ── Receive ──────────────────────────────────────────────────────────────────────────────────
def test_system_attributes_are_named_by_either_parameter(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(VisibilityTimeout=0)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    [message] = receive(
        sqs,
        url,
        AttributeNames=["SentTimestamp"],
        MessageSystemAttributeNames=["ApproximateReceiveCount"],
    )
    assert set(message["Attributes"]) == {"SentTimestamp", "ApproximateReceiveCount"}
    [message] = receive(sqs, url, MessageSystemAttributeNames=["All"])
    attributes = message["Attributes"]
    assert attributes["ApproximateReceiveCount"] == "2"
    assert int(attributes["ApproximateFirstReceiveTimestamp"]) >= int(attributes["SentTimestamp"])
    assert attributes["SenderId"] == "testing"
    assert "SequenceNumber" not in attributes
    assert "MessageGroupId" not in attributes


def test_an_empty_queue_answers_without_messages(sqs: Any, make_queue: MakeQueue) -> None:
    assert "Messages" not in sqs.receive_message(QueueUrl=make_queue())


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("MaxNumberOfMessages", 0),
        ("MaxNumberOfMessages", 11),
        ("WaitTimeSeconds", -1),
        ("WaitTimeSeconds", 21),
        ("VisibilityTimeout", -1),
        ("VisibilityTimeout", 43_201),
    ],
)
def test_receive_parameters_out_of_range_are_refused(
    sqs: Any, make_queue: MakeQueue, parameter: str, value: int
) -> None:
    with pytest.raises(ClientError) as error:
        sqs.receive_message(QueueUrl=make_queue(), **{parameter: value})
    assert code_of(error) == "InvalidParameterValue"
    assert parameter in message_of(error)


def test_at_most_as_many_as_asked_for(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue()
    for number in range(4):
        sqs.send_message(QueueUrl=url, MessageBody=str(number))
    assert len(receive(sqs, url)) == 1
    rest = receive_count(sqs, url, 3)
    assert len(rest) == 3


def test_a_long_poll_returns_with_the_first_message(
    sqs: Any, server: Server, make_queue: MakeQueue
) -> None:
    url = make_queue()
    got: list[dict[str, Any]] = []
    poll = threading.Thread(target=lambda: got.extend(receive(sqs, url, wait=20)))
    poll.start()
    sqs.send_message(QueueUrl=url, MessageBody="wake")
    poll.join(timeout=10)
    assert not poll.is_alive()
    assert [message["Body"] for message in got] == ["wake"]


def test_the_queues_own_wait_applies_when_none_is_given(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(ReceiveMessageWaitTimeSeconds=20)
    sqs.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=1)
    assert [m["Body"] for m in sqs.receive_message(QueueUrl=url)["Messages"]] == ["later"]


def test_a_wait_of_zero_overrides_the_queues_own(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(ReceiveMessageWaitTimeSeconds=20)
    assert "Messages" not in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=0)


def test_a_long_poll_wakes_when_a_lease_runs_out(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(VisibilityTimeout=1)
    sqs.send_message(QueueUrl=url, MessageBody="again")
    [first] = receive(sqs, url)
    [second] = receive(sqs, url, wait=10)
    assert second["MessageId"] == first["MessageId"]
    assert second["ReceiptHandle"] != first["ReceiptHandle"]


def test_deleting_the_queue_ends_a_long_poll(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue()
    outcome: list[str] = []

    def poll() -> None:
        try:
            outcome.append(str(receive(sqs, url, wait=20)))
        except ClientError as error:
            outcome.append(error.response["Error"]["Code"])

    thread = threading.Thread(target=poll)
    thread.start()
    sqs.delete_queue(QueueUrl=url)
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert outcome[0] in ("[]", "AWS.SimpleQueueService.NonExistentQueue")


def test_a_visibility_of_zero_leaves_the_message_visible(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue()
    sqs.send_message(QueueUrl=url, MessageBody="x")
    for count in ("1", "2", "3"):
        [message] = receive(
            sqs,
            url,
            VisibilityTimeout=0,
            MessageSystemAttributeNames=["ApproximateReceiveCount"],
        )
        assert message["Attributes"]["ApproximateReceiveCount"] == count


# ── Delete ───────────────────────────────────────────────────────────────────────────────────
def test_a_deleted_message_does_not_return(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(VisibilityTimeout=1)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    [message] = receive(sqs, url)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert receive(sqs, url, wait=2) == []


def test_deleting_twice_is_no_fault(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue()
    sqs.send_message(QueueUrl=url, MessageBody="x")
    [message] = receive(sqs, url)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def test_an_earlier_receipt_still_deletes(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue()
    sqs.send_message(QueueUrl=url, MessageBody="x")
    [first] = receive(sqs, url, VisibilityTimeout=0)
    [_second] = receive(sqs, url, VisibilityTimeout=1)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    assert receive(sqs, url, wait=2) == []


def test_a_receipt_that_is_none_is_refused(sqs: Any, make_queue: MakeQueue) -> None:
    with pytest.raises(sqs.exceptions.ReceiptHandleIsInvalid) as error:
        sqs.delete_message(QueueUrl=make_queue(), ReceiptHandle="garbage")
    assert code_of(error) == "ReceiptHandleIsInvalid"
    assert status_of(error) == 404


def test_a_receipt_of_another_queue_is_refused(sqs: Any, make_queue: MakeQueue) -> None:
    url, other = make_queue(), make_queue()
    sqs.send_message(QueueUrl=url, MessageBody="x")
    [message] = receive(sqs, url)
    assert len(message["ReceiptHandle"]) <= 1_024
    with pytest.raises(sqs.exceptions.ReceiptHandleIsInvalid):
        sqs.delete_message(QueueUrl=other, ReceiptHandle=message["ReceiptHandle"])


# ── Visibility ───────────────────────────────────────────────────────────────────────────────
def test_zero_makes_a_message_visible_at_once(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue()
    sqs.send_message(QueueUrl=url, MessageBody="x")
    [message] = receive(sqs, url)
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
    )
    assert [m["Body"] for m in receive(sqs, url)] == ["x"]


def test_a_longer_visibility_hides_the_message_longer(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(VisibilityTimeout=1)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    [message] = receive(sqs, url)
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=60
    )
    assert receive(sqs, url, wait=2) == []


def test_the_change_is_not_remembered_for_the_next_receive(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(VisibilityTimeout=1)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    [message] = receive(sqs, url)
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
    )
    [_] = receive(sqs, url)
    assert len(receive(sqs, url, wait=10)) == 1


@pytest.mark.parametrize("timeout", [-1, 43_201])
def test_a_visibility_out_of_range_is_refused(
    sqs: Any, make_queue: MakeQueue, timeout: int
) -> None:
    url = make_queue()
    sqs.send_message(QueueUrl=url, MessageBody="x")
    [message] = receive(sqs, url)
    with pytest.raises(ClientError) as error:
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=timeout
        )
    assert code_of(error) == "InvalidParameterValue"


def test_visibility_of_a_deleted_message_cannot_change(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue()
    sqs.send_message(QueueUrl=url, MessageBody="x")
    [message] = receive(sqs, url)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    with pytest.raises(ClientError) as error:
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=10
        )
    assert code_of(error) == "InvalidParameterValue"
    assert "does not exist or is not available for visibility timeout change" in message_of(error)


def test_a_receipt_still_works_on_a_message_that_is_visible_again(
    sqs: Any, make_queue: MakeQueue
) -> None:
    url = make_queue()
    sqs.send_message(QueueUrl=url, MessageBody="x")
    [message] = receive(sqs, url, VisibilityTimeout=0)
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=10
    )


def test_an_extension_beyond_twelve_hours_in_all_is_refused(
    sqs: Any, make_queue: MakeQueue
) -> None:
    url = make_queue()
    sqs.send_message(QueueUrl=url, MessageBody="x")
    [message] = receive(sqs, url)
    assert receive(sqs, url, wait=1) == []  # a second has passed since the receive
    with pytest.raises(ClientError) as error:
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=43_200
        )
    assert code_of(error) == "InvalidParameterValue"
    assert "Total VisibilityTimeout" in message_of(error)


# ── Delay ────────────────────────────────────────────────────────────────────────────────────
def test_a_delayed_message_is_counted_and_then_arrives(sqs: Any, make_queue: MakeQueue) -> None:
    held = make_queue()
    sqs.send_message(QueueUrl=held, MessageBody="later", DelaySeconds=900)
    assert receive(sqs, held, wait=0) == []
    names = ["ApproximateNumberOfMessagesDelayed", "ApproximateNumberOfMessages"]
    counts = sqs.get_queue_attributes(QueueUrl=held, AttributeNames=names)["Attributes"]
    assert counts == {
        "ApproximateNumberOfMessagesDelayed": "1",
        "ApproximateNumberOfMessages": "0",
    }
    url = make_queue()
    sqs.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=1)
    assert [m["Body"] for m in receive(sqs, url, wait=10)] == ["later"]


def test_a_delay_of_zero_overrides_the_queues_own(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(DelaySeconds=900)
    sqs.send_message(QueueUrl=url, MessageBody="now", DelaySeconds=0)
    sqs.send_message(QueueUrl=url, MessageBody="later")
    assert [m["Body"] for m in receive(sqs, url)] == ["now"]
    assert receive(sqs, url, wait=0) == []


@pytest.mark.parametrize("delay", [-1, 901])
def test_a_delay_out_of_range_is_refused(sqs: Any, make_queue: MakeQueue, delay: int) -> None:
    with pytest.raises(ClientError) as error:
        sqs.send_message(QueueUrl=make_queue(), MessageBody="x", DelaySeconds=delay)
    assert code_of(error) == "InvalidParameterValue"
