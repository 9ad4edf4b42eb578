"""FIFO queues as boto3 sees them: order within groups, deduplication, receipts that expire."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError
from tests.compat.answers import code_of
from tests.compat.answers import receive as receive_once
from tests.compat.conftest import MakeQueue


def send(sqs: Any, url: str, body: str, group: str = "g", **more: Any) -> dict[str, Any]:
    reply: dict[str, Any] = sqs.send_message(
        QueueUrl=url, MessageBody=body, MessageGroupId=group, **more
    )
    return reply


def receive(sqs: Any, url: str, *, wait: int = 5, **more: Any) -> list[dict[str, Any]]:
    """As many as there are: groups come one after the other."""
    more.setdefault("MaxNumberOfMessages", 10)
    return receive_once(sqs, url, wait=wait, **more)


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["Body"] for message in messages]


def delete(sqs: Any, url: str, message: dict[str, Any]) -> None:
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def change(sqs: Any, url: str, message: dict[str, Any], seconds: int) -> None:
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=seconds
    )


@pytest.fixture
def url(make_queue: MakeQueue) -> str:
    return make_queue(FifoQueue=True, ContentBasedDeduplication=True)


# ── What a message needs ─────────────────────────────────────────────────────────────────────
def test_a_group_is_required(sqs: Any, url: str) -> None:
    with pytest.raises(ClientError) as error:
        sqs.send_message(QueueUrl=url, MessageBody="x")
    assert code_of(error) == "MissingParameter"


def test_a_dedup_id_or_content_based_deduplication_is_required(
    sqs: Any, make_queue: MakeQueue
) -> None:
    url = make_queue(FifoQueue=True)
    with pytest.raises(ClientError) as error:
        send(sqs, url, "x")
    assert code_of(error) == "InvalidParameterValue"
    send(sqs, url, "x", MessageDeduplicationId="1")


@pytest.mark.parametrize("identifier", ["with space", "x" * 129, "ümlaut"])
def test_ids_have_a_grammar(sqs: Any, url: str, identifier: str) -> None:
    with pytest.raises(ClientError) as error:
        send(sqs, url, "x", group=identifier)
    assert code_of(error) == "InvalidParameterValue"
    with pytest.raises(ClientError) as error:
        send(sqs, url, "x", MessageDeduplicationId=identifier)
    assert code_of(error) == "InvalidParameterValue"


def test_a_standard_queue_takes_groups_but_no_dedup_ids(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue()
    send(sqs, url, "x", group="tenant")
    [message] = receive(sqs, url, MessageSystemAttributeNames=["MessageGroupId"])
    assert message["Attributes"] == {"MessageGroupId": "tenant"}
    with pytest.raises(ClientError) as error:
        sqs.send_message(QueueUrl=url, MessageBody="x", MessageDeduplicationId="1")
    assert code_of(error) == "InvalidParameterValue"


def test_a_delay_of_its_own_is_refused_and_zero_is_not(sqs: Any, url: str) -> None:
    with pytest.raises(ClientError) as error:
        send(sqs, url, "x", DelaySeconds=1)
    assert code_of(error) == "InvalidParameterValue"
    send(sqs, url, "x", DelaySeconds=0)


def test_the_queues_delay_applies_in_spite_of_a_zero(sqs: Any, make_queue: MakeQueue) -> None:
    held, url = (
        make_queue(FifoQueue=True, ContentBasedDeduplication=True, DelaySeconds=delay)
        for delay in (900, 1)
    )
    send(sqs, held, "x", DelaySeconds=0)
    assert receive(sqs, held, wait=0) == []
    send(sqs, url, "x", DelaySeconds=0)
    assert bodies(receive(sqs, url, wait=10)) == ["x"]


# ── Order ────────────────────────────────────────────────────────────────────────────────────
def test_sequence_numbers_have_twenty_digits_and_rise(sqs: Any, url: str) -> None:
    numbers = [send(sqs, url, str(i))["SequenceNumber"] for i in range(3)]
    assert all(len(number) == 20 for number in numbers)
    assert numbers == sorted(numbers)
    received = receive(sqs, url, MessageSystemAttributeNames=["All"])
    assert [m["Attributes"]["SequenceNumber"] for m in received] == numbers
    assert all(m["Attributes"]["MessageGroupId"] == "g" for m in received)
    assert all(len(m["Attributes"]["MessageDeduplicationId"]) == 64 for m in received)


def test_the_first_group_is_given_before_the_next(sqs: Any, url: str) -> None:
    for body, group in [("m1", "g1"), ("x1", "g2"), ("m2", "g1"), ("x2", "g2"), ("m3", "g1")]:
        send(sqs, url, body, group)
    assert bodies(receive(sqs, url)) == ["m1", "m2", "m3", "x1", "x2"]


def test_a_group_in_flight_gives_nothing_more_and_others_flow(sqs: Any, url: str) -> None:
    send(sqs, url, "a1", "a")
    [first] = receive(sqs, url)
    send(sqs, url, "a2", "a")
    assert receive(sqs, url, wait=0) == []
    send(sqs, url, "b1", "b")
    assert bodies(receive(sqs, url)) == ["b1"]
    delete(sqs, url, first)
    assert bodies(receive(sqs, url)) == ["a2"]


def test_a_partial_delete_keeps_the_group_locked(sqs: Any, url: str) -> None:
    for body in ("1", "2", "3"):
        send(sqs, url, body)
    first, second = receive(sqs, url, MaxNumberOfMessages=2)
    delete(sqs, url, first)
    assert receive(sqs, url, wait=0) == []
    change(sqs, url, second, 0)
    assert bodies(receive(sqs, url)) == ["2", "3"]


def test_only_what_comes_before_an_extended_message_returns(sqs: Any, url: str) -> None:
    for body in ("1", "2", "3"):
        send(sqs, url, body)
    first, middle, last = receive(sqs, url)
    change(sqs, url, middle, 60)
    change(sqs, url, last, 1)
    change(sqs, url, first, 1)
    assert bodies(receive(sqs, url, wait=10)) == ["1"]


def test_a_batch_keeps_its_order_over_partitions(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(
        FifoQueue=True,
        ContentBasedDeduplication=True,
        DeduplicationScope="messageGroup",
        PenstockPartitions=4,
    )
    entries = [
        {"Id": str(i), "MessageBody": f"{i % 3}-{i}", "MessageGroupId": f"g{i % 3}"}
        for i in range(9)
    ]
    reply = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert [entry["Id"] for entry in reply["Successful"]] == [str(i) for i in range(9)]
    got: list[str] = []
    while len(got) < 9:
        messages = receive(sqs, url)
        assert messages
        for message in messages:
            delete(sqs, url, message)
        got += bodies(messages)
    for group in range(3):
        of_group = [body for body in got if body.startswith(f"{group}-")]
        assert of_group == [f"{group}-{i}" for i in range(9) if i % 3 == group]


@pytest.mark.parametrize("lacking", [{"MessageDeduplicationId": "1"}, {"MessageGroupId": "g"}])
def test_a_batch_lacking_an_id_is_refused_as_a_whole(
    sqs: Any, make_queue: MakeQueue, lacking: dict[str, str]
) -> None:
    url = make_queue(FifoQueue=True)
    whole = {"MessageGroupId": "g", "MessageDeduplicationId": "0"}
    entries = [
        {"Id": "a", "MessageBody": "x", **whole},
        {"Id": "b", "MessageBody": "y", **lacking},
    ]
    with pytest.raises(ClientError) as error:
        sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert code_of(error) == "InvalidParameterValue"
    assert receive(sqs, url, wait=0) == []


# ── Deduplication ────────────────────────────────────────────────────────────────────────────
def test_a_duplicate_answers_with_the_first_message_id(sqs: Any, url: str) -> None:
    first = send(sqs, url, "one", MessageDeduplicationId="d")
    second = send(sqs, url, "other", MessageDeduplicationId="d")
    assert second["MessageId"] == first["MessageId"]
    assert second["MD5OfMessageBody"] != first["MD5OfMessageBody"]
    assert bodies(receive(sqs, url)) == ["one"]


def test_deduplication_survives_the_delete(sqs: Any, url: str) -> None:
    send(sqs, url, "x")
    [message] = receive(sqs, url)
    delete(sqs, url, message)
    send(sqs, url, "x")
    assert receive(sqs, url, wait=1) == []


def test_an_explicit_id_overrides_the_content(sqs: Any, url: str) -> None:
    send(sqs, url, "same", MessageDeduplicationId="1")
    send(sqs, url, "same", MessageDeduplicationId="2")
    assert bodies(receive(sqs, url)) == ["same", "same"]


def test_the_queue_scope_spans_groups_and_the_group_scope_does_not(
    sqs: Any, make_queue: MakeQueue
) -> None:
    of_queue = make_queue(FifoQueue=True)
    of_group = make_queue(FifoQueue=True, DeduplicationScope="messageGroup")
    for url in (of_queue, of_group):
        send(sqs, url, "a", "a", MessageDeduplicationId="d")
        send(sqs, url, "b", "b", MessageDeduplicationId="d")
    assert bodies(receive(sqs, of_queue)) == ["a"]
    assert sorted(bodies(receive(sqs, of_group))) == ["a", "b"]


def test_the_scope_in_force_is_the_one_at_creation(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(FifoQueue=True)
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DeduplicationScope": "messageGroup"})
    send(sqs, url, "a", "a", MessageDeduplicationId="d")
    send(sqs, url, "b", "b", MessageDeduplicationId="d")
    assert bodies(receive(sqs, url)) == ["a"]


def test_the_high_throughput_limit_needs_the_group_scope(sqs: Any, make_queue: MakeQueue) -> None:
    with pytest.raises(ClientError) as error:
        make_queue(FifoQueue=True, FifoThroughputLimit="perMessageGroupId")
    assert code_of(error) == "InvalidParameterValue"
    make_queue(
        FifoQueue=True,
        FifoThroughputLimit="perMessageGroupId",
        DeduplicationScope="messageGroup",
    )


# ── Receipts and attempts ────────────────────────────────────────────────────────────────────
def test_an_expired_receipt_does_not_delete(sqs: Any, url: str) -> None:
    send(sqs, url, "x")
    [first] = receive(sqs, url, VisibilityTimeout=1)
    [second] = receive(sqs, url, wait=10)  # the first lease has ended
    with pytest.raises(ClientError) as error:
        delete(sqs, url, first)
    assert code_of(error) == "InvalidParameterValue"
    assert "The receipt handle has expired" in error.value.response["Error"]["Message"]
    delete(sqs, url, second)
    delete(sqs, url, second)


def test_an_extended_receipt_deletes_after_the_first_deadline(sqs: Any, url: str) -> None:
    send(sqs, url, "x")
    [message] = receive(sqs, url, VisibilityTimeout=5)
    change(sqs, url, message, 60)
    assert receive(sqs, url, wait=6) == []
    delete(sqs, url, message)


def test_the_same_attempt_gets_the_same_messages(sqs: Any, url: str) -> None:
    send(sqs, url, "1")
    send(sqs, url, "2")
    first = receive(sqs, url, ReceiveRequestAttemptId="attempt")
    again = receive(sqs, url, ReceiveRequestAttemptId="attempt")
    assert bodies(first) == bodies(again) == ["1", "2"]
    handles = [message["ReceiptHandle"] for message in first]
    assert handles == [message["ReceiptHandle"] for message in again]
    assert receive(sqs, url, wait=0, ReceiveRequestAttemptId="another") == []


def test_an_attempt_whose_message_was_deleted_is_over(sqs: Any, url: str) -> None:
    send(sqs, url, "1")
    send(sqs, url, "2")
    first, _ = receive(sqs, url, ReceiveRequestAttemptId="attempt")
    delete(sqs, url, first)
    assert receive(sqs, url, wait=0, ReceiveRequestAttemptId="attempt") == []
