"""Three nodes and an etcd as processes, seen by boto3: any node serves any queue, a node that dies
takes nothing with it that was answered, and one that is stopped properly is not even noticed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import boto3
import botocore.config
import pytest
from tests.harness.cluster import PenstockCluster
from tests.harness.etcd import LACKING

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(LACKING is not None, reason=str(LACKING)),
]

BACK_SECONDS_MAX = 10.0


def client(url: str, *, attempts: int = 1) -> Any:
    """``attempts`` in all; one for those who count failures."""
    return boto3.client(
        "sqs",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=botocore.config.Config(
            retries={"total_max_attempts": attempts, "mode": "standard"},
            read_timeout=20,
            connect_timeout=2,
        ),
    )


def taken(sqs: Any, queue_url: str) -> Iterator[dict[str, Any]]:
    """Everything there is, deleted once it was looked at."""
    empty = 0
    while empty < 2:
        answer = sqs.receive_message(
            QueueUrl=queue_url, MaxNumberOfMessages=10, WaitTimeSeconds=1
        ).get("Messages", [])
        empty = 0 if answer else empty + 1
        for message in answer:
            yield message
            sqs.delete_message(QueueUrl=queue_url, ReceiptHandle=message["ReceiptHandle"])


def drained(sqs: Any, queue_url: str) -> set[str]:
    """Message ids of everything there is, deleted."""
    return {message["MessageId"] for message in taken(sqs, queue_url)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockCluster]:
    with PenstockCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


class Sender(threading.Thread):
    """Sends to one queue by way of some nodes in turn, and remembers what was answered."""

    def __init__(self, urls: list[str], queue_path: str, *, attempts: int) -> None:
        super().__init__()
        self._clients = [(client(url, attempts=attempts), url + queue_path) for url in urls]
        self._end = threading.Event()
        self.answered: set[str] = set()
        self.failed: list[str] = []
        self.gap_seconds = 0.0  # the longest without an answer
        self._last = time.monotonic()

    def run(self) -> None:
        number = 0
        while not self._end.is_set():
            sqs, queue_url = self._clients[number % len(self._clients)]
            number += 1
            try:
                answer = sqs.send_message(QueueUrl=queue_url, MessageBody=f"message {number}")
            except Exception as error:
                self.failed.append(f"{type(error).__name__}: {error}")
            else:
                now = time.monotonic()
                self.gap_seconds = max(self.gap_seconds, now - self._last)
                self._last = now
                self.answered.add(answer["MessageId"])

    def wait_for(self, count: int, *, seconds: float = 30.0) -> None:
        """Until so many more are answered."""
        wanted = len(self.answered) + count
        until = time.monotonic() + seconds
        while len(self.answered) < wanted:
            assert time.monotonic() < until, f"{len(self.answered)} of {wanted}: {self.failed[-3:]}"
            time.sleep(0.02)

    def end(self) -> None:
        self._end.set()
        self.join()


def made(cluster: PenstockCluster, name: str, **attributes: str) -> str:
    """A queue's path below every node's address."""
    answer = client(cluster.nodes[1].url, attempts=5).create_queue(
        QueueName=name, Attributes=attributes
    )
    return str(answer["QueueUrl"]).removeprefix(cluster.nodes[1].url)


def test_any_node_serves_any_queue(cluster: PenstockCluster) -> None:
    path = made(cluster, "anywhere")
    sent = set()
    for node in cluster.nodes.values():
        sqs = client(node.url, attempts=5)
        sent.add(sqs.send_message(QueueUrl=node.url + path, MessageBody="hello")["MessageId"])
    last = cluster.nodes[3]
    assert drained(client(last.url, attempts=5), last.url + path) == sent


def test_a_parked_receive_is_woken_by_a_send_to_another_node(cluster: PenstockCluster) -> None:
    path = made(cluster, "parked")
    got: list[Any] = []
    one, two = cluster.nodes[1], cluster.nodes[2]
    receive = threading.Thread(
        target=lambda: got.append(
            client(one.url).receive_message(QueueUrl=one.url + path, WaitTimeSeconds=15)
        )
    )
    began = time.monotonic()
    receive.start()
    client(two.url, attempts=5).send_message(QueueUrl=two.url + path, MessageBody="wake")
    receive.join()
    assert [each["Body"] for each in got[0]["Messages"]] == ["wake"]
    assert time.monotonic() - began < 10


def test_nothing_answered_is_lost_when_a_node_is_killed_and_writes_come_back(
    cluster: PenstockCluster,
) -> None:
    path = made(cluster, "killed")
    gaps: list[float] = []
    for victim in (1, 2, 3):
        others = [node.url for number, node in cluster.nodes.items() if number != victim]
        sender = Sender(others, path, attempts=1)
        sender.start()
        sender.wait_for(30)
        cluster.nodes[victim].kill()
        sender.wait_for(50)
        sender.end()
        gaps.append(sender.gap_seconds)
        assert sender.gap_seconds < 3 * BACK_SECONDS_MAX
        found = drained(client(others[0], attempts=5), others[0] + path)
        assert sender.answered <= found
        cluster.nodes[victim].start()
    assert sorted(gaps)[1] < BACK_SECONDS_MAX, gaps  # two of three: one may meet a busy machine


def test_a_rolling_restart_fails_no_call(cluster: PenstockCluster) -> None:
    path = made(cluster, "rolling")
    for victim in (1, 2, 3):
        others = [node.url for number, node in cluster.nodes.items() if number != victim]
        sender = Sender(others, path, attempts=1)
        sender.start()
        sender.wait_for(20)
        assert cluster.nodes[victim].stop() == 0
        sender.wait_for(20)
        cluster.nodes[victim].start()
        sender.wait_for(20)
        sender.end()
        assert not sender.failed, sender.failed[:3]
        assert sender.answered <= drained(client(others[0], attempts=5), others[0] + path)


def test_everything_answered_is_there_after_all_nodes_were_killed_at_once(
    cluster: PenstockCluster,
) -> None:
    path = made(cluster, "all")
    sqs = client(cluster.nodes[1].url, attempts=5)
    sent = {
        sqs.send_message(QueueUrl=cluster.nodes[1].url + path, MessageBody=str(n))["MessageId"]
        for n in range(20)
    }
    for node in cluster.nodes.values():
        node.kill()
    for node in cluster.nodes.values():
        node.start()
    last = cluster.nodes[3]
    assert drained(client(last.url, attempts=8), last.url + path) == sent


def test_no_node_ever_had_an_exception_that_nobody_expected(cluster: PenstockCluster) -> None:
    """Last: over all that happened to them above."""
    for node in cluster.nodes.values():
        node.assert_no_traceback()
