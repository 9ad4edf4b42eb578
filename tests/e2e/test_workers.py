"""``penstock serve --workers``: several processes that clients take for one server. Nothing that
was answered is lost with any of them, and none outlives the one that started them."""

from __future__ import annotations

import itertools
import json
import os
import re
import select
import signal
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import botocore.config
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.harness import forks
from tests.harness.patience import eventually
from tests.harness.server import Server, penstock_command, stable_port
from tests.harness.sns_site import Site

pytestmark = [pytest.mark.slow, pytest.mark.compat]

PARTITIONS = 4
CLIENTS = 24  # connections: that the kernel gives all of them to one of two has a chance of 2^-23
SNS_CLIENTS = 8
PUBLISHED = 120
PUBLISH_WAIT_SECONDS = 0.25  # a Publish that took longer did not wait for its copies
GONE_SECONDS_MAX = 120.0
BACK_SECONDS_MAX = 120.0
BALANCED_SECONDS_MAX = 120.0

_NODE = re.compile(r"--node (\d+)")
_ADMIN = re.compile(r"--admin (\S+)")


class Workers(Server):
    def __init__(self, data: Path, count: int = 2, **more: Any) -> None:
        arguments = ("--workers", str(count))
        more = {"port": stable_port(), "kafka_port": 0, "partitions": PARTITIONS, **more}
        super().__init__(data, arguments=arguments, **more)

    def processes(self) -> dict[int, str]:
        """Those that it has started, by their id: the command line of each."""
        found = {}
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            for pid in map(int, (task / "children").read_text().split()):
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                found[pid] = line.replace(b"\0", b" ").decode()
        return found

    def worker(self, number: int) -> int | None:
        """Its process."""
        for pid, line in self.processes().items():
            node = _NODE.search(line)
            if node is not None and int(node[1]) == number:
                return pid
        return None

    def admins(self) -> dict[int, str]:
        """The address of each worker for operators."""
        lines = self.processes().values()
        found = [(_NODE.search(line), _ADMIN.search(line)) for line in lines]
        return {int(node[1]): f"http://{at[1]}" for node, at in found if node and at}


def asked(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.loads(answer.read())


def leaders(server: Server, topic: str = "") -> Mapping[tuple[str, int], int | None]:
    """Of all partitions, or of those of one topic."""
    told = asked(f"{server.admin_url}/api/v1/cluster/partitions")["partitions"]
    found = {(one["topic"], one["partition"]): one["leader"] for one in told}
    return {at: leader for at, leader in found.items() if topic in ("", at[0])}


class Ends:
    """``with Ends(pids) as ends``: holds on to processes, so that no others are meant."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._descriptors = [os.pidfd_open(pid) for pid in pids]

    def __enter__(self) -> Ends:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)

    def wait(self, seconds: float) -> int:
        """How many are still there then."""
        left = set(self._descriptors)
        until = time.monotonic() + seconds
        while left and (remaining := until - time.monotonic()) > 0:
            ready, _, _ = select.select(left, [], [], remaining)
            left.difference_update(ready)
        return len(left)


def client(url: str, *, attempts: int = 8) -> Any:
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


def clients(server: Server) -> list[Any]:
    """Each with a connection of its own."""
    return [client(server.url) for _ in range(CLIENTS)]


def created(sqs: Any, name: str) -> str:
    """The URL of a queue; empty while a worker that has lost the metadata does not know of it."""
    try:
        return str(sqs.create_queue(QueueName=name)["QueueUrl"])
    except sqs.exceptions.ClientError as error:
        if error.response["Error"]["Code"] != "RequestThrottled":
            raise
        return ""


def made(sqs: Any, server: Server, name: str) -> str:
    """The URL of a queue all of whose partitions have a leader."""
    url = eventually(partial(created, sqs, name), seconds=120, what=f"{name} is made")
    eventually(
        lambda: sum(leader is not None for leader in leaders(server, name).values()) == PARTITIONS,
        seconds=120,
        what=f"leaders of {name}: {leaders(server, name)}",
    )
    return url


def drained(several: Sequence[Any], queue_url: str) -> set[str]:
    """Message ids of everything there is, deleted, whoever is asked."""
    found: set[str] = set()
    empty = 0
    for sqs in itertools.cycle(several):
        answer = sqs.receive_message(
            QueueUrl=queue_url, MaxNumberOfMessages=10, WaitTimeSeconds=1
        ).get("Messages", [])
        empty = 0 if answer else empty + 1
        for message in answer:
            found.add(message["MessageId"])
            sqs.delete_message(QueueUrl=queue_url, ReceiptHandle=message["ReceiptHandle"])
        if empty == 3:
            break
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    server = Workers(tmp_path_factory.mktemp("workers") / "data")
    with server:
        # The first worker was there before the second, and what it made went to it alone.
        eventually(
            lambda: is_even(Counter(leaders(server).values())),
            seconds=BALANCED_SECONDS_MAX,
            what="each leads its part",
        )
        yield server


def is_even(counts: Counter[int | None]) -> bool:
    return (
        len(counts) == 2 and None not in counts and max(counts.values()) - min(counts.values()) < 2
    )


def test_a_queue_is_one_whichever_worker_a_connection_meets(server: Workers) -> None:
    several = clients(server)
    url = made(several[0], server, "one")
    assert set(leaders(server, "one").values()) == {1, 2}
    sent = {
        sqs.send_message(QueueUrl=url, MessageBody=f"message {number}")["MessageId"]
        for number, sqs in enumerate(several * 3)
    }
    for worker, admin in server.admins().items():
        told = urllib.request.urlopen(f"{admin}/metrics", timeout=10).read().decode()
        assert 'requests_total{api="SendMessage"' in told, f"worker {worker} was never asked"
    assert drained(several, url) == sent
    for sqs in several:
        attributes = sqs.get_queue_attributes(
            QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"]
        )
        assert attributes["Attributes"]["ApproximateNumberOfMessages"] == "0"


def test_a_published_message_is_in_the_queue_whichever_worker_is_asked(server: Workers) -> None:
    site = Site([server.url] * SNS_CLIENTS, server.kafka)
    arn = site.sns[0].create_topic(Name="news")["TopicArn"]
    url, queue = site.queue("of-news")
    raw = {"RawMessageDelivery": "true"}
    site.sns[0].subscribe(TopicArn=arn, Protocol="sqs", Endpoint=queue, Attributes=raw)
    for number in range(PUBLISHED):
        at, began = number % SNS_CLIENTS, time.monotonic()
        site.sns[at].publish(TopicArn=arn, Message=str(number))
        is_late = time.monotonic() - began >= PUBLISH_WAIT_SECONDS
        found = site.received(url, at=(at + 1) % SNS_CLIENTS, wait_s=20 if is_late else 0)
        assert [each["Body"] for each in found] == [str(number)]


def test_a_task_that_moves_dead_letters_is_known_to_all_workers(server: Workers) -> None:
    several = clients(server)
    dead = made(several[0], server, "dead")
    arn = several[0].get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
    arn = arn["Attributes"]["QueueArn"]
    redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "1"})
    several[0].create_queue(QueueName="living", Attributes={"RedrivePolicy": redrive})
    target = arn.replace(":dead", ":living")
    started = several[0].start_message_move_task(SourceArn=arn, DestinationArn=target)
    assert started["TaskHandle"]

    def targets(sqs: Any) -> list[str]:
        tasks = sqs.list_message_move_tasks(SourceArn=arn).get("Results", [])
        return [task["DestinationArn"] for task in tasks]

    for sqs in several:
        is_known = partial(lambda sqs: targets(sqs) == [target], sqs)
        eventually(is_known, seconds=120, what="the task, at each")


def test_kafka_clients_find_the_leaders_among_the_workers(server: Workers) -> None:
    admin = AdminClient({"bootstrap.servers": server.kafka})
    admin.create_topics([NewTopic("told", PARTITIONS, replication_factor=1)])["told"].result(20)
    eventually(
        lambda: (
            {
                one.leader
                for one in admin.list_topics("told", timeout=10).topics["told"].partitions.values()
            }
            == {1, 2}
        ),
        seconds=120,
        what="both lead some of it",
    )
    found = admin.list_topics("told", timeout=10)
    assert sorted(found.brokers) == [1, 2]
    first, second = (found.brokers[number] for number in (1, 2))
    assert f"{first.host}:{first.port}" == server.kafka
    assert second.port != first.port
    producer = Producer({"bootstrap.servers": server.kafka, "enable.idempotence": True})
    for number in range(200):
        producer.produce("told", str(number), key=str(number))
    assert producer.flush(120) == 0
    assert sorted(map(int, consumed(server, "told", "readers", 200))) == list(range(200))


def consumed(server: Server, topic: str, group: str, count: int) -> list[str]:
    consumer = Consumer(
        {
            "bootstrap.servers": server.kafka,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    found: list[str] = []
    until = time.monotonic() + 30
    try:
        while len(found) < count and time.monotonic() < until:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                found.append((message.value() or b"").decode())
    finally:
        consumer.close()
    return found


class Sender(threading.Thread):
    """Sends by way of several connections in turn, and remembers what was answered."""

    def __init__(self, several: Sequence[Any], queue_url: str) -> None:
        super().__init__()
        self._several = several
        self._queue_url = queue_url
        self._end = threading.Event()
        self.answered: set[str] = set()
        self.failed: list[str] = []

    def run(self) -> None:
        for number, sqs in enumerate(itertools.cycle(self._several)):
            if self._end.is_set():
                return
            try:
                answer = sqs.send_message(QueueUrl=self._queue_url, MessageBody=f"number {number}")
            except Exception as error:
                self.failed.append(f"{type(error).__name__}: {error}")
            else:
                self.answered.add(answer["MessageId"])

    def wait_for(self, count: int, *, seconds: float = 30.0) -> None:
        wanted = len(self.answered) + count
        eventually(
            lambda: len(self.answered) >= wanted,
            seconds=seconds,
            what=f"{count} more answers; failed: {self.failed[-3:]}",
        )

    def end(self) -> None:
        self._end.set()
        self.join()


def test_nothing_answered_is_lost_with_a_worker_and_it_comes_back(server: Workers) -> None:
    several = clients(server)
    url = made(several[0], server, "killed")
    victim = asked(f"{server.admin_url}/api/v1/cluster")["manager"]  # the one that hurts most
    sender = Sender(several, url)
    sender.start()
    sender.wait_for(30)
    before = server.worker(victim)
    assert before is not None
    os.kill(before, signal.SIGKILL)
    sender.wait_for(30)
    eventually(
        lambda: server.worker(victim) not in (None, before),
        seconds=BACK_SECONDS_MAX,
        what=f"worker {victim} is started again",
    )
    admin = server.admins()[victim]
    eventually(lambda: is_ready(admin), seconds=BACK_SECONDS_MAX, what="it is ready")
    eventually(
        lambda: None not in leaders(server, "killed").values(),
        seconds=BACK_SECONDS_MAX,
        what="its partitions are led again",
    )
    sender.wait_for(30)
    sender.end()
    assert sender.answered <= drained(several, url)


def is_ready(admin: str) -> bool:
    try:
        with urllib.request.urlopen(f"{admin}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_the_metadata_comes_back_too(server: Workers) -> None:
    sqs = client(server.url, attempts=1)
    metadata = next(pid for pid, line in server.processes().items() if "--node" not in line)
    os.kill(metadata, signal.SIGKILL)

    def is_sent() -> bool:
        """Whichever worker each of the two requests meets: the other one hears of it later."""
        try:
            url = sqs.create_queue(QueueName="after")["QueueUrl"]
            sqs.send_message(QueueUrl=url, MessageBody="hello")
        except sqs.exceptions.ClientError:
            return False
        return True

    eventually(is_sent, seconds=BACK_SECONDS_MAX, what="a queue can be made")


def test_a_stop_ends_all_of_them_and_more_may_go_on(server: Workers) -> None:
    sqs = client(server.url)
    url = made(sqs, server, "stopped")
    sent = {sqs.send_message(QueueUrl=url, MessageBody=str(n))["MessageId"] for n in range(20)}
    with Ends(list(server.processes())) as ends:
        assert server.stop() == 0
        assert ends.wait(0.5) == 0
    server.arguments = ("--workers", "3")
    server.start()
    eventually(
        lambda: 3 in leaders(server).values(),
        seconds=BALANCED_SECONDS_MAX,
        what="the third takes its part of what is there",
    )
    assert drained(clients(server), url) == sent


def test_no_process_is_left_when_the_one_that_started_them_is_killed(server: Workers) -> None:
    """Last of those that share the server."""
    with Ends(list(server.processes())) as ends:
        server.kill()
        assert ends.wait(GONE_SECONDS_MAX) == 0
    server.assert_no_traceback()


@pytest.mark.parametrize(
    ("marker", "arguments", "why"),
    [
        ("metadata.sqlite3", ("--workers", "2"), "without --workers"),
        ("workers.json", ("--workers", "2"), "--workers 3"),
        ("workers.json", (), "--workers 3"),
    ],
)
def test_a_folder_of_another_kind_is_refused_with_what_to_do(
    tmp_path: Path, marker: str, arguments: Sequence[str], why: str
) -> None:
    (tmp_path / marker).write_text('{"workers":3}')
    command = [penstock_command(), "serve", "--data", str(tmp_path), "--http", "127.0.0.1:0"]
    ran = forks.run([*command, *arguments])
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert [line.strip().partition(":")[0] for line in ran.stderr.splitlines()] == [
        "error",
        "why",
        "do",
    ]
    assert why in ran.stderr
