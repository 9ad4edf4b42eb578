"""A graceful restart changes nothing that a client can see: messages, leases, attributes, tags, the
deduplication window and move tasks are all still there, and open long polls get an answer first."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.compat.conftest import sqs_client
from tests.compat.test_longpoll import parked
from tests.harness.client import Fault, RawClient, Refused, Unanswered
from tests.harness.patience import eventually
from tests.harness.raw_http import RawConnection, json_request
from tests.harness.server import Server, stable_port


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Server]:
    """A server of this test's own, with the default durability."""
    with Server(tmp_path / "data", port=stable_port()) as running:
        yield running
        assert running.stop() == 0, running.stderr_tail()
        running.assert_no_traceback()


@pytest.fixture
def client(own: Server) -> Iterator[Any]:
    made = sqs_client(own.url)
    yield made
    made.close()


def receive_all(client: Any, url: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    while got := client.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"], MessageAttributeNames=["All"]
    ).get("Messages"):
        messages += got
    return messages


def test_messages_and_their_attributes_are_kept(own: Server, client: Any) -> None:
    url = client.create_queue(QueueName="kept")["QueueUrl"]
    sent = {}
    for number in range(25):
        reply = client.send_message(
            QueueUrl=url,
            MessageBody=f"body {number} ☃",
            MessageAttributes={"n": {"DataType": "Number", "StringValue": str(number)}},
        )
        sent[reply["MessageId"]] = (str(number), reply["MD5OfMessageAttributes"])
    own.restart()
    messages = receive_all(client, url)
    assert {
        message["MessageId"]: (
            message["MessageAttributes"]["n"]["StringValue"],
            message["MD5OfMessageAttributes"],
        )
        for message in messages
    } == sent
    assert all(message["Body"].endswith("☃") for message in messages)


def test_deleted_messages_stay_deleted(own: Server, client: Any) -> None:
    url = client.create_queue(QueueName="deleted")["QueueUrl"]
    for number in range(20):
        client.send_message(QueueUrl=url, MessageBody=str(number))
    gone = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    for message in gone:
        client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    own.restart()
    left = {message["Body"] for message in receive_all(client, url)}
    assert left == {str(n) for n in range(20)} - {message["Body"] for message in gone}
    own.restart()
    assert client.receive_message(QueueUrl=url).get("Messages") is None


def test_leases_their_receipts_and_counts_are_kept(own: Server, client: Any) -> None:
    url = client.create_queue(QueueName="leased")["QueueUrl"]
    for body in ("held", "released"):
        client.send_message(QueueUrl=url, MessageBody=body)
    messages = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=600)[
        "Messages"
    ]
    receipts = {message["Body"]: message["ReceiptHandle"] for message in messages}
    assert set(receipts) == {"held", "released"}
    own.restart()
    assert client.receive_message(QueueUrl=url).get("Messages") is None
    client.change_message_visibility(
        QueueUrl=url, ReceiptHandle=receipts["released"], VisibilityTimeout=0
    )
    (again,) = client.receive_message(QueueUrl=url, AttributeNames=["All"])["Messages"]
    assert again["Body"] == "released"
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"
    client.delete_message(QueueUrl=url, ReceiptHandle=receipts["held"])
    client.delete_message(QueueUrl=url, ReceiptHandle=again["ReceiptHandle"])
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    counts = client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    assert counts == dict.fromkeys(names, "0")


def test_a_lease_ends_after_a_restart_and_not_before_its_time(own: Server, client: Any) -> None:
    url = client.create_queue(QueueName="short-lease")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="x")
    leased_at = time.monotonic()
    assert client.receive_message(QueueUrl=url, VisibilityTimeout=4)["Messages"]
    own.restart()
    (again,) = client.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]
    assert time.monotonic() - leased_at >= 4.0
    assert again["Body"] == "x"


def test_a_delay_goes_on_after_a_restart(own: Server, client: Any) -> None:
    url = client.create_queue(QueueName="delayed")["QueueUrl"]
    sent_at = time.monotonic()
    client.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=20)
    own.restart()
    counts = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessagesDelayed"] == "1"
    (message,) = client.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]
    assert message["Body"] == "later"
    assert 20.0 <= time.monotonic() - sent_at < 45.0


def test_attributes_and_tags_are_kept(own: Server, client: Any) -> None:
    dead = client.create_queue(QueueName="dead")["QueueUrl"]
    arn = client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"][
        "QueueArn"
    ]
    url = client.create_queue(
        QueueName="settings",
        Attributes={
            "VisibilityTimeout": "77",
            "DelaySeconds": "3",
            "MaximumMessageSize": "2048",
            "RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 4}),
        },
        tags={"team": "blue"},
    )["QueueUrl"]
    client.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "5"})
    client.tag_queue(QueueUrl=url, Tags={"cost": "low"})
    before = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    own.restart()
    after = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert after == before
    assert after["DelaySeconds"] == "5"
    assert client.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "blue", "cost": "low"}
    client.delete_queue(QueueUrl=dead)
    own.restart()
    names = [each.rsplit("/", 1)[1] for each in client.list_queues()["QueueUrls"]]
    assert names == ["settings"]


def test_fifo_order_group_locks_and_dedup_window_are_kept(own: Server, client: Any) -> None:
    url = client.create_queue(QueueName="order.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]

    def send(body: str, group: str) -> dict[str, Any]:
        reply: dict[str, Any] = client.send_message(
            QueueUrl=url, MessageBody=body, MessageGroupId=group, MessageDeduplicationId=body
        )
        return reply

    first = {body: send(body, body[0]) for body in ("a1", "a2", "a3", "b1", "b2")}
    (a1,) = client.receive_message(QueueUrl=url)["Messages"]
    assert a1["Body"] == "a1"
    own.restart()
    for body, reply in first.items():
        again = send(body, body[0])
        assert again["MessageId"] == reply["MessageId"]
        assert again["SequenceNumber"] == reply["SequenceNumber"]
    got = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in got] == ["b1", "b2"], "group a is locked by a1"
    client.delete_message(QueueUrl=url, ReceiptHandle=a1["ReceiptHandle"])
    own.restart()
    assert send("a1", "a")["MessageId"] == first["a1"]["MessageId"], "deleted, still remembered"
    got = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in got] == ["a2", "a3"]


def test_a_move_task_goes_on_after_a_restart(own: Server, client: Any) -> None:
    dead = client.create_queue(QueueName="moving-dead")["QueueUrl"]
    arn = client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"][
        "QueueArn"
    ]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    url = client.create_queue(
        QueueName="moving", Attributes={"RedrivePolicy": policy, "VisibilityTimeout": "0"}
    )["QueueUrl"]
    target = client.create_queue(QueueName="moving-target")["QueueUrl"]
    target_arn = client.get_queue_attributes(QueueUrl=target, AttributeNames=["QueueArn"])[
        "Attributes"
    ]["QueueArn"]
    for number in range(20):
        client.send_message(QueueUrl=url, MessageBody=str(number))
    eventually(
        lambda: (
            not client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages")
            and _visible(client, dead) == 20
        ),
        seconds=15,
        what="all messages among the dead letters",
    )
    client.start_message_move_task(
        SourceArn=arn, DestinationArn=target_arn, MaxNumberOfMessagesPerSecond=2
    )
    eventually(lambda: _visible(client, target) >= 2, seconds=10, what="the move under way")
    own.restart()
    assert _visible(client, target) < 20, "the move had ended before the restart"
    eventually(
        lambda: (
            client.list_message_move_tasks(SourceArn=arn)["Results"][0]["Status"] == "COMPLETED"
        ),
        seconds=60,
        what="the move completed after the restart",
    )
    moved = sorted(int(message["Body"]) for message in receive_all(client, target))
    assert moved == list(range(20))
    assert _visible(client, dead) == 0


def _visible(client: Any, url: str) -> int:
    name = "ApproximateNumberOfMessages"
    reply = client.get_queue_attributes(QueueUrl=url, AttributeNames=[name])
    return int(reply["Attributes"][name])


def test_a_stop_answers_open_polls_and_ends_at_once(own: Server, client: Any) -> None:
    url = client.create_queue(QueueName="polled")["QueueUrl"]
    body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
    connections = [RawConnection(own.port) for _ in range(10)]
    with ThreadPoolExecutor(len(connections)) as pool:
        for connection in connections:
            assert connection.send(json_request("ReceiveMessage", body))
        replies = [pool.submit(connection.read_until_closed) for connection in connections]
        eventually(lambda: parked(own) == len(connections), seconds=20, what="all wait")
        began_at = time.monotonic()
        assert own.stop() == 0, own.stderr_tail()
        assert time.monotonic() - began_at < 10.0
        for reply in replies:
            assert reply.result(timeout=5).statuses in ([200], [503])
            assert reply.result().is_closed
    for connection in connections:
        connection.socket.close()
    own.start()


def test_a_stop_under_load_loses_no_answered_message(own: Server, client: Any) -> None:
    url = client.create_queue(QueueName="busy-stop")["QueueUrl"]
    answered: list[str] = []
    unknown: list[str] = []

    def send() -> None:
        raw = RawClient(own.port)
        for number in range(100_000):
            try:
                raw.call("SendMessage", {"QueueUrl": url, "MessageBody": str(number)})
            except (Refused, Fault):  # a draining server says so
                break
            except Unanswered:
                unknown.append(str(number))
                break
            answered.append(str(number))
        raw.close()

    with ThreadPoolExecutor(1) as pool:
        sender = pool.submit(send)
        eventually(lambda: len(answered) > 50, seconds=10, what="sends under way")
        assert own.stop() == 0, own.stderr_tail()
        sender.result(timeout=30)
    own.start()
    bodies = [message["Body"] for message in receive_all(client, url)]
    assert len(bodies) == len(set(bodies))
    assert set(answered) <= set(bodies) <= set(answered) | set(unknown)


def test_a_second_server_on_the_same_folder_is_refused(own: Server) -> None:
    second = Server(own.data)
    with pytest.raises(AssertionError, match="ended before it was ready"):
        second.start()
    second.assert_no_traceback()
    assert own.is_running
