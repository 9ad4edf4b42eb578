"""The load generator against a queue in memory: it counts what the server counted."""

import threading
import time

import pytest
from tests.unit.cli.conftest import Answer, Cli, Endpoint, Json, refusal

from penstock.cli.terminal.failure import ExitCode


class MemoryQueue:
    """Just enough of SQS to be loaded."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.lock = threading.Lock()
        self.messages: list[str] = []
        self.sent = self.deleted = 0
        self.is_there = False
        for name in ("CreateQueue", "DeleteQueue", "SendMessage", "SendMessageBatch"):
            endpoint.actions[name] = getattr(self, name)
        for name in ("ReceiveMessage", "DeleteMessageBatch"):
            endpoint.actions[name] = getattr(self, name)

    def CreateQueue(self, request: Json) -> Answer:
        self.is_there = True
        return 200, {"QueueUrl": f"http://h/0/{request['QueueName']}"}

    def DeleteQueue(self, _: Json) -> Answer:
        self.is_there = False
        return 200, {}

    def SendMessage(self, request: Json) -> Answer:
        with self.lock:
            self.messages.append(request["MessageBody"])
            self.sent += 1
        return 200, {"MessageId": "m"}

    def SendMessageBatch(self, request: Json) -> Answer:
        for entry in request["Entries"]:
            self.SendMessage(entry)
        return 200, {"Successful": [{"Id": entry["Id"]} for entry in request["Entries"]]}

    def ReceiveMessage(self, request: Json) -> Answer:
        end_s = time.monotonic() + min(0.02, request.get("WaitTimeSeconds", 0))
        while True:
            with self.lock:
                count = request["MaxNumberOfMessages"]
                taken, self.messages = self.messages[:count], self.messages[count:]
            if taken or time.monotonic() >= end_s:
                break
            time.sleep(0.001)
        found = [{"Body": body, "ReceiptHandle": "r"} for body in taken]
        return 200, {"Messages": found} if found else {}

    def DeleteMessageBatch(self, request: Json) -> Answer:
        with self.lock:
            self.deleted += len(request["Entries"])
        return 200, {"Successful": [{"Id": entry["Id"]} for entry in request["Entries"]]}


@pytest.fixture
def queue(endpoint: Endpoint) -> MemoryQueue:
    return MemoryQueue(endpoint)


def test_send_counts_what_arrived_and_cleans_up(cli: Cli, queue: MemoryQueue) -> None:
    result = cli("bench", "send", "--duration", "0.3", "-c", "2", "--size", "10", "--batch", "3")
    assert result.code == 0
    assert result.json["messages"] == queue.sent > 0
    assert result.json["latency_ms"]["SendMessageBatch"]["p50"] > 0
    assert set(queue.messages) == {"x" * 10}
    assert not queue.is_there


def test_a_rate_is_kept(cli: Cli, queue: MemoryQueue) -> None:
    result = cli("bench", "send", "--duration", "4", "-c", "4", "--rate", "5")
    assert result.json["messages"] == queue.sent
    # Twenty are due within the four seconds; a loaded machine may lose some, and one may be due
    # just as the time is up.
    assert 5 <= queue.sent <= 21


def test_receive_drains_what_was_loaded(cli: Cli, queue: MemoryQueue) -> None:
    result = cli("bench", "receive", "--duration", "5", "-c", "2", "--preload", "100")
    assert result.json["messages"] == queue.deleted == queue.sent >= 100
    assert result.json["seconds"] < 5


def test_latency_reports_each_call(cli: Cli, queue: MemoryQueue) -> None:
    result = cli("bench", "latency", "--duration", "0.2", "-c", "1", "--rate", "50")
    assert set(result.json["latency_ms"]) == {"SendMessage", "ReceiveMessage", "DeleteMessageBatch"}


def test_end_to_end_sees_every_message(cli: Cli, queue: MemoryQueue) -> None:
    result = cli("bench", "e2e", "--duration", "0.3", "-c", "4", "--rate", "50")
    assert result.json["messages"] == queue.sent == queue.deleted > 0
    assert result.json["latency_ms"]["end_to_end"]["p50"] > 0


def test_a_named_queue_is_kept(cli: Cli, endpoint: Endpoint, queue: MemoryQueue) -> None:
    assert cli("bench", "send", "--duration", "0.1", "-c", "1", "--queue", "mine").code == 0
    assert not endpoint.requests("CreateQueue")
    assert not endpoint.requests("DeleteQueue")


def test_a_server_that_refuses_everything_is_a_failure_and_told(
    cli: Cli, endpoint: Endpoint, queue: MemoryQueue
) -> None:
    endpoint.actions["SendMessage"] = refusal("OverLimit", 403)
    result = cli("bench", "send", "--duration", "0.1", "-c", "1")
    assert result.code == ExitCode.FAILED
    assert "OverLimit" in result.err
    assert not queue.is_there


def test_an_unreachable_server_is_exit_5(cli: Cli) -> None:
    result = cli("--endpoint", "http://127.0.0.1:1", "bench", "send", "--queue", "http://h/0/q")
    assert result.code == ExitCode.UNREACHABLE
