"""Long polls: woken at once by whatever makes a message available, never taking one for a client
that has gone, and ended by the end of their queue."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from botocore.exceptions import ClientError
from tests.compat.conftest import MakeQueue
from tests.harness.client import RawClient
from tests.harness.patience import eventually
from tests.harness.raw_http import RawConnection, json_request
from tests.harness.server import Server

WAKE_SECONDS_MAX = 0.05


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(40) as made:
        yield made


class Poller:
    """A raw client with a warm connection to one queue."""

    def __init__(self, server: Server, url: str) -> None:
        self.client = RawClient(server.port)
        self.client.call("GetQueueAttributes", {"QueueUrl": url})
        self.url = url

    def poll(self, wait_seconds: int = 20, count: int = 10) -> tuple[float, list[dict[str, Any]]]:
        """When the answer came, and its messages."""
        reply = self.client.call(
            "ReceiveMessage",
            {
                "QueueUrl": self.url,
                "WaitTimeSeconds": wait_seconds,
                "MaxNumberOfMessages": count,
                "AttributeNames": ["All"],
            },
            wait_seconds=wait_seconds,
        )
        messages: list[dict[str, Any]] = reply.get("Messages", [])
        return time.monotonic(), messages


def start(
    pool: ThreadPoolExecutor, poller: Poller, **arguments: int
) -> Future[tuple[float, list[dict[str, Any]]]]:
    """Begin a poll and see it parked: it has had ample time and is still unanswered."""
    future = pool.submit(poller.poll, **arguments)
    with pytest.raises(TimeoutError):
        future.result(timeout=0.15)
    return future


def best_of(attempts: int, measure: Callable[[], float]) -> float:
    """The least of some measurements: one that the machine disturbed says nothing."""
    return min(measure() for _ in range(attempts))


@pytest.mark.parametrize("is_fifo", [False, True], ids=["standard", "fifo"])
def test_a_send_wakes_a_waiting_poll_at_once(
    server: Server, pool: ThreadPoolExecutor, make_queue: MakeQueue, is_fifo: bool
) -> None:
    url = make_queue(FifoQueue=True) if is_fifo else make_queue()
    poller, sender = Poller(server, url), Poller(server, url).client
    numbers = iter(range(100))

    def wake() -> float:
        future = start(pool, poller)
        number = str(next(numbers))
        request: dict[str, object] = {"QueueUrl": url, "MessageBody": number}
        if is_fifo:
            request |= {"MessageGroupId": number, "MessageDeduplicationId": number}
        sent_at = time.monotonic()
        sender.call("SendMessage", request)
        answered_at, messages = future.result(timeout=25)
        assert [message["Body"] for message in messages] == [number]
        return answered_at - sent_at

    latency = best_of(5, wake)
    assert latency < WAKE_SECONDS_MAX, f"woken after {latency * 1_000:.1f} ms"
    poller.client.close()
    sender.close()


def test_one_message_wakes_one_of_many_polls(
    server: Server, pool: ThreadPoolExecutor, make_queue: MakeQueue
) -> None:
    url = make_queue()
    pollers = [Poller(server, url) for _ in range(20)]
    futures = [pool.submit(poller.poll, wait_seconds=10) for poller in pollers]
    with pytest.raises(TimeoutError):
        futures[-1].result(timeout=0.3)
    for number in range(5):
        pollers_client = RawClient(server.port)
        pollers_client.call("SendMessage", {"QueueUrl": url, "MessageBody": str(number)})
        pollers_client.close()
    bodies = [m["Body"] for future in futures for m in future.result(timeout=25)[1]]
    assert sorted(bodies) == ["0", "1", "2", "3", "4"]
    for poller in pollers:
        poller.client.close()


def test_the_end_of_a_lease_wakes_a_poll(
    server: Server, sqs: Any, pool: ThreadPoolExecutor, make_queue: MakeQueue
) -> None:
    def wake() -> float:
        url = make_queue(VisibilityTimeout=1)
        sqs.send_message(QueueUrl=url, MessageBody="again")
        leased_from = time.monotonic()
        assert len(sqs.receive_message(QueueUrl=url)["Messages"]) == 1
        leased_by = time.monotonic()
        poller = Poller(server, url)
        answered_at, messages = poller.poll(wait_seconds=10)
        poller.client.close()
        assert [message["Attributes"]["ApproximateReceiveCount"] for message in messages] == ["2"]
        assert answered_at >= leased_from + 1.0
        return answered_at - leased_by

    assert best_of(3, wake) < 1.0 + 0.25


def test_a_release_wakes_a_poll(
    server: Server, sqs: Any, pool: ThreadPoolExecutor, make_queue: MakeQueue
) -> None:
    url = make_queue()
    poller = Poller(server, url)
    sqs.send_message(QueueUrl=url, MessageBody="given back")
    (message,) = sqs.receive_message(QueueUrl=url)["Messages"]
    future = start(pool, poller)
    released_at = time.monotonic()
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
    )
    answered_at, messages = future.result(timeout=25)
    assert len(messages) == 1
    assert answered_at - released_at < 10.0
    poller.client.close()


def test_the_end_of_a_delay_wakes_a_poll(server: Server, sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue()
    sent_from = time.monotonic()
    sqs.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=1)
    sent_by = time.monotonic()
    poller = Poller(server, url)
    answered_at, messages = poller.poll(wait_seconds=20)
    poller.client.close()
    assert [message["Body"] for message in messages] == ["later"]
    assert sent_from + 1.0 <= answered_at < sent_by + 1.0 + 10.0


def test_finishing_a_group_wakes_a_poll_for_its_next_message(
    server: Server, sqs: Any, pool: ThreadPoolExecutor, make_queue: MakeQueue
) -> None:
    url = make_queue(FifoQueue=True)
    for number in "12":
        sqs.send_message(
            QueueUrl=url, MessageBody=number, MessageGroupId="g", MessageDeduplicationId=number
        )
    (first,) = sqs.receive_message(QueueUrl=url)["Messages"]
    poller = Poller(server, url)
    future = start(pool, poller)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    deleted_at = time.monotonic()
    answered_at, messages = future.result(timeout=25)
    assert [message["Body"] for message in messages] == ["2"]
    assert answered_at - deleted_at < 10.0
    poller.client.close()


def test_an_empty_poll_ends_when_its_time_is_up(server: Server, make_queue: MakeQueue) -> None:
    poller = Poller(server, make_queue())
    began_at = time.monotonic()
    answered_at, messages = poller.poll(wait_seconds=1)
    poller.client.close()
    assert messages == []
    assert 1.0 <= answered_at - began_at < 5.0


def test_the_queue_own_wait_applies_unless_the_call_says_otherwise(
    server: Server, sqs: Any, make_queue: MakeQueue
) -> None:
    url = make_queue(ReceiveMessageWaitTimeSeconds=2)
    began_at = time.monotonic()
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    assert time.monotonic() - began_at >= 2.0
    patient = make_queue(ReceiveMessageWaitTimeSeconds=20)
    began_at = time.monotonic()
    assert "Messages" not in sqs.receive_message(QueueUrl=patient, WaitTimeSeconds=0)
    assert time.monotonic() - began_at < 10.0


def parked(server: Server) -> float:
    """Receive calls that wait for a message."""
    return server.metrics()["penstock_waits"]


def test_a_client_that_hangs_up_takes_nothing(
    server: Server, sqs: Any, make_queue: MakeQueue
) -> None:
    url = make_queue()
    body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
    before = parked(server)
    with ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(RawConnection(server.port))
            connection.send(json_request("ReceiveMessage", body))
        eventually(lambda: parked(server) == before + 20, seconds=15, what="all wait")
    eventually(lambda: parked(server) == before, seconds=15, what="nobody waits")
    sqs.send_message(QueueUrl=url, MessageBody="for someone who stays")
    (message,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5, AttributeNames=["All"])[
        "Messages"
    ]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


def test_deleting_the_queue_ends_its_polls(
    server: Server, sqs: Any, pool: ThreadPoolExecutor, make_queue: MakeQueue
) -> None:
    url = make_queue()
    future = pool.submit(sqs.receive_message, QueueUrl=url, WaitTimeSeconds=20)
    with pytest.raises(TimeoutError):
        future.result(timeout=0.3)
    sqs.delete_queue(QueueUrl=url)
    deleted_at = time.monotonic()
    assert _ending(future) in ("empty", "AWS.SimpleQueueService.NonExistentQueue")
    assert time.monotonic() - deleted_at < 10.0


def _ending(poll: Future[dict[str, Any]]) -> str:
    """How a poll ended: the SDK shows an empty answer or an error, and either tells the truth."""
    try:
        return "messages" if "Messages" in poll.result(timeout=5) else "empty"
    except ClientError as error:
        return str(error.response["Error"]["Code"])


def test_many_parked_polls_leave_the_server_quick(
    server: Server, sqs: Any, make_queue: MakeQueue
) -> None:
    url, other = make_queue(), make_queue()
    body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
    connections = [RawConnection(server.port) for _ in range(500)]
    try:
        for connection in connections:
            connection.send(json_request("ReceiveMessage", body))

        def send() -> float:
            began_at = time.monotonic()
            sqs.send_message(QueueUrl=other, MessageBody="quick")
            return time.monotonic() - began_at

        assert best_of(5, send) < WAKE_SECONDS_MAX
    finally:
        for connection in connections:
            connection.socket.close()
