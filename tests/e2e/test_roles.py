"""The metadata service as a process of its own: what clients of the other nodes notice of it, when
it is there, when it hangs and when it is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from botocore.credentials import Credentials
from confluent_kafka import Consumer, KafkaError, Producer
from tests.attacks.kit import EVERYTHING, ROOT, Operator, code_of, sqs_as
from tests.compat.conftest import sqs_client
from tests.harness.patience import eventually
from tests.harness.roles import MetadataServer, attached
from tests.harness.server import Server, ServerFailed

REVOKED_SECONDS_MAX = 5.0
WATCH_SECONDS_MAX = 120.0
FAST_SECONDS_MAX = 1.0  # of a refusal that nobody had to wait for
CALL_SECONDS_MAX = 4.0  # of the first calls to a service that has just fallen silent
NO_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"


@pytest.fixture
def metadata(tmp_path: Path) -> Iterator[MetadataServer]:
    running = MetadataServer(tmp_path / "metadata")
    with running:
        yield running
        if running.is_running:
            assert running.stop() == 0, running.stderr_tail()
        running.assert_no_traceback()


@pytest.fixture
def nodes(tmp_path: Path, metadata: MetadataServer) -> Iterator[tuple[Server, Server]]:
    """Two of them on one metadata service."""
    with ExitStack() as stack:
        here, there = (
            stack.enter_context(attached(tmp_path / name, metadata.listen, kafka_port=0))
            for name in ("here", "there")
        )
        yield here, there
        for node in (here, there):
            assert node.stop() == 0, node.stderr_tail()
            node.assert_no_traceback()


@pytest.fixture
def secret(tmp_path: Path) -> dict[str, str]:
    """Authentication is on, and root is whom the tests know."""
    file = tmp_path / "secret"
    file.write_text(ROOT.secret_key)
    return {
        "PENSTOCK_AUTH__MODE": "on",
        "PENSTOCK_ROOT_KEY_ID": ROOT.access_key,
        "PENSTOCK_ROOT_SECRET_FILE": str(file),
    }


def produce(node: Server, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": node.kafka, "message.timeout.ms": 10_000})
    failures: list[Any] = []

    def delivered(error: KafkaError | None, _message: Any) -> None:
        if error is not None:
            failures.append(error)

    for number in range(count):
        producer.produce(topic, f"{number}", on_delivery=delivered)
    assert producer.flush(15) == 0
    assert not failures, failures


def consume(node: Server, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": node.kafka,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    deadline = time.monotonic() + 30
    try:
        while len(found) < count and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                found.append(message.value() or b"")
    finally:
        consumer.close()
    return found


def timed(call: Any, **arguments: Any) -> tuple[str, float]:
    begun = time.monotonic()
    return code_of(call, **arguments), time.monotonic() - begun


def start_in_vain(node: Server, ends: list[str]) -> None:
    with pytest.raises(ServerFailed):
        node.start()
    ends.append(node.stderr)


def may_list(sqs: Any) -> bool:
    return code_of(sqs.list_queues) == ""


def may_not_list(sqs: Any) -> bool:
    return not may_list(sqs)


def is_created(sqs: Any, name: str) -> bool:
    return code_of(sqs.create_queue, QueueName=name) == ""


def is_there(sqs: Any, name: str) -> bool:
    return code_of(sqs.get_queue_url, QueueName=name) == ""


# ── While all is well ────────────────────────────────────────────────────────────────────────


def test_sqs_and_kafka_clients_work_where_the_catalog_is_elsewhere(
    nodes: tuple[Server, Server],
) -> None:
    here, _ = nodes
    sqs = sqs_client(here.url)
    url = sqs.create_queue(
        QueueName="orders.fifo", Attributes={"FifoQueue": "true", "SqsManagedSseEnabled": "true"}
    )["QueueUrl"]
    sent = sqs.send_message(
        QueueUrl=url, MessageBody="one", MessageGroupId="g", MessageDeduplicationId="d"
    )
    (got,) = sqs.receive_message(QueueUrl=url)["Messages"]
    assert (got["MessageId"], got["Body"]) == (sent["MessageId"], "one")
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    produce(here, "events", 50)
    assert sorted(consume(here, "events", 50)) == sorted(b"%d" % n for n in range(50))
    assert url in sqs.list_queues()["QueueUrls"]


def test_a_change_made_through_one_node_is_seen_by_another(nodes: tuple[Server, Server]) -> None:
    here, there = (sqs_client(node.url) for node in nodes)
    url = here.create_queue(QueueName="jobs")["QueueUrl"]
    other = str(
        eventually(
            lambda: (
                not code_of(there.get_queue_url, QueueName="jobs")
                and there.get_queue_url(QueueName="jobs")["QueueUrl"]
            ),
            seconds=WATCH_SECONDS_MAX,
            what="the queue at the other node",
        )
    )
    there.set_queue_attributes(QueueUrl=other, Attributes={"VisibilityTimeout": "77"})
    seen = there.get_queue_attributes(QueueUrl=other, AttributeNames=["VisibilityTimeout"])
    assert seen["Attributes"]["VisibilityTimeout"] == "77", "who changed it sees it at once"

    def timeout_here() -> str:
        found = here.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])
        return str(found["Attributes"]["VisibilityTimeout"])

    eventually(lambda: timeout_here() == "77", seconds=WATCH_SECONDS_MAX, what="the change")
    there.delete_queue(QueueUrl=other)
    eventually(
        lambda: code_of(here.send_message, QueueUrl=url, MessageBody="x") == NO_QUEUE,
        seconds=WATCH_SECONDS_MAX,
        what="the end of the queue",
    )


def test_a_revoked_key_stops_working_everywhere_within_five_seconds(
    tmp_path: Path, metadata: MetadataServer, secret: dict[str, str]
) -> None:
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(attached(tmp_path / name, metadata.listen, env=secret))
            for name in ("here", "there")
        ]
        operator = Operator(nodes[0])
        _, key = operator.user(EVERYTHING)
        users = [sqs_as(node, key) for node in nodes]
        for user in users:
            eventually(partial(may_list, user), seconds=WATCH_SECONDS_MAX, what="the new key")
        # Through the other node: who it is about was made here.
        Operator(nodes[1]).ask("PATCH", f"keys/{key.access_key}", {"status": "disabled"})
        begun = time.monotonic()
        for user in users:
            eventually(
                partial(may_not_list, user), seconds=REVOKED_SECONDS_MAX, what="the end of the key"
            )
        assert time.monotonic() - begun < REVOKED_SECONDS_MAX
        for node in nodes:
            assert code_of(sqs_as(node, ROOT).list_queues) == ""
            assert node.stop() == 0, node.stderr_tail()
            node.assert_no_traceback()


# ── What a tenant may, at all of them together ───────────────────────────────────────────────

RATE_PER_S = 15  # of a tenant, and as many at once; a busy machine must manage so many
FLOOD_SECONDS = 3.0
SLACK = 1.2  # of a machine that has other things to do


class Flood:
    """Asks without a pause for a while, and counts what is let through."""

    def __init__(self, node: Server, key: Credentials, *, seconds: float = FLOOD_SECONDS) -> None:
        self.passed = 0
        self._sqs = sqs_as(node, key)
        self._seconds = seconds
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        ends_at = time.monotonic() + self._seconds
        while time.monotonic() < ends_at:
            self.passed += may_list(self._sqs)

    def count(self) -> int:
        self._thread.join()
        return self.passed


def gets_the_whole(node: Server, key: Credentials) -> bool:
    return Flood(node, key, seconds=1.0).count() > RATE_PER_S / SLACK


def test_a_limit_is_divided_among_the_nodes_that_are_alive(
    tmp_path: Path, metadata: MetadataServer, secret: dict[str, str]
) -> None:
    here = attached(tmp_path / "here", metadata.listen, env=secret)
    there = attached(tmp_path / "there", metadata.listen, env=secret)
    most = (RATE_PER_S + RATE_PER_S * FLOOD_SECONDS) * SLACK
    with here:
        operator = Operator(here)
        account = operator.tenant()
        _, key = operator.user(EVERYTHING, tenant=account)
        rate = {"per_s": RATE_PER_S, "burst": RATE_PER_S}
        operator.ask("PATCH", f"quotas/{account}", {"limits": {"tenant_requests": rate}})
        alone = Flood(here, key).count()
        assert RATE_PER_S * FLOOD_SECONDS / SLACK < alone < most, "one has the whole limit"
        with there:
            halved = lambda: not gets_the_whole(here, key)  # noqa: E731
            eventually(halved, seconds=120, what="one has heard of the other")
            both = [Flood(node, key) for node in (here, there)]
            passed = [each.count() for each in both]
            assert sum(passed) < most, "what two let through is what one would"
            assert min(passed) > RATE_PER_S * FLOOD_SECONDS / 2 / SLACK, "each its part"
            there.kill()
        eventually(
            partial(gets_the_whole, here, key), seconds=120, what="the part of who was killed"
        )
        there.start()
        assert Flood(there, key).count() < most / 2, "whoever comes takes a part from the start"
        for node in (here, there):
            assert node.stop() == 0, node.stderr_tail()
            node.assert_no_traceback()


def test_queues_made_through_several_nodes_count_together(
    tmp_path: Path, metadata: MetadataServer, secret: dict[str, str]
) -> None:
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(attached(tmp_path / name, metadata.listen, env=secret))
            for name in ("here", "there")
        ]
        operator = Operator(nodes[0])
        account = operator.tenant()
        _, key = operator.user(EVERYTHING, tenant=account)
        operator.ask("PATCH", f"quotas/{account}", {"quotas": {"queues_max": 2}})
        here, there = (sqs_as(node, key) for node in nodes)
        eventually(partial(may_list, there), seconds=WATCH_SECONDS_MAX, what="the new key")
        here.create_queue(QueueName="one")
        eventually(partial(is_there, there, "one"), seconds=WATCH_SECONDS_MAX, what="the first")
        there.create_queue(QueueName="two")
        eventually(partial(is_there, here, "two"), seconds=WATCH_SECONDS_MAX, what="the second")
        for client in (here, there):
            assert code_of(client.create_queue, QueueName="three") == "OverLimit"
        for node in nodes:
            assert node.stop() == 0, node.stderr_tail()


# ── When the service hangs, or is killed ─────────────────────────────────────────────────────


class Traffic:
    """Sends, receives and deletes without a pause, and notes what fails."""

    def __init__(self, node: Server, url: str) -> None:
        self.count = 0
        self.failures: list[Exception] = []
        self._sqs = sqs_client(node.url, read_timeout=15.0)
        self._url = url
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                self._sqs.send_message(QueueUrl=self._url, MessageBody="m")
                for got in self._sqs.receive_message(QueueUrl=self._url).get("Messages", ()):
                    handle = got["ReceiptHandle"]
                    self._sqs.delete_message(QueueUrl=self._url, ReceiptHandle=handle)
                self.count += 1
            except Exception as error:
                self.failures.append(error)


def test_messages_go_on_while_the_metadata_hangs_and_changes_are_refused_at_once(
    metadata: MetadataServer, nodes: tuple[Server, Server]
) -> None:
    here, _ = nodes
    sqs = sqs_client(here.url)
    url = sqs.create_queue(QueueName="known")["QueueUrl"]
    produce(here, "stream", 1)
    with Traffic(here, url) as traffic:
        eventually(lambda: traffic.count > 3, seconds=120, what="traffic")
        os.kill(metadata.pid, signal.SIGSTOP)
        try:
            code, seconds = timed(sqs.create_queue, QueueName="new")
            assert code == "ServiceUnavailable"
            assert seconds < CALL_SECONDS_MAX
            eventually(
                lambda: timed(sqs.create_queue, QueueName="new")[1] < FAST_SECONDS_MAX,
                seconds=120,
                what="refusals that do not wait",
            )
            before = traffic.count
            took: list[float] = []
            for _ in range(20):
                code, seconds = timed(sqs.create_queue, QueueName="new")
                assert code == "ServiceUnavailable"
                took.append(seconds)
            assert sorted(took)[10] < FAST_SECONDS_MAX, took
            produce(here, "stream", 20)
            eventually(lambda: traffic.count > before + 3, seconds=120, what="traffic")
            eventually(
                lambda: "metadata store not reachable" in here.readyz()[1],
                seconds=120,
                what="a word of it in readyz",
            )
            assert here.readyz()[0] == 200, "it still serves"
            # By now nobody can know whether such a queue was made elsewhere.
            assert code_of(sqs.get_queue_url, QueueName="unheard-of") == "RequestThrottled"
            assert code_of(sqs.get_queue_url, QueueName="known") == ""
        finally:
            os.kill(metadata.pid, signal.SIGCONT)
        eventually(
            lambda: code_of(sqs.create_queue, QueueName="new") == "",
            seconds=120,
            what="changes again",
        )
    assert not traffic.failures, traffic.failures[0]
    eventually(
        lambda: code_of(sqs.get_queue_url, QueueName="unheard-of") == NO_QUEUE,
        seconds=120,
        what="the certainty that there is no such queue",
    )
    eventually(
        lambda: here.readyz() == (200, '{"status":"ready","reasons":[]}\n'),
        seconds=120,
        what="a node without a reason to complain",
    )


def test_nothing_is_lost_when_the_metadata_is_killed(
    metadata: MetadataServer, nodes: tuple[Server, Server]
) -> None:
    here, there = nodes
    sqs = sqs_client(here.url)
    url = sqs.create_queue(QueueName="q0")["QueueUrl"]
    made = ["q0"]
    with Traffic(here, url) as traffic:
        for turn in range(3):
            for number in range(5):
                name = f"q{turn}-{number}"
                # A service that came back late has left the node unsure of what there is not: it
                # asks for each name, and says meanwhile that it does.
                eventually(partial(is_created, sqs, name), seconds=120, what="changes")
                made.append(name)
            metadata.kill()
            refused = code_of(sqs.create_queue, QueueName="meanwhile")
            # The second: the node does not know yet whether there is such a queue.
            assert refused in ("ServiceUnavailable", "RequestThrottled")
            metadata.start()
            made_again = partial(is_created, sqs, f"after-{turn}")
            eventually(made_again, seconds=120, what="changes again")
            made.append(f"after-{turn}")
    assert not traffic.failures, traffic.failures[0]
    other = sqs_client(there.url)
    for name in made:
        # The other node takes its time between attempts at a service that went three times.
        eventually(partial(is_there, other, name), seconds=120, what=name)
    here.restart()
    names = {one.rsplit("/", 1)[1] for one in sqs_client(here.url).list_queues()["QueueUrls"]}
    assert names >= set(made)


# ── Coming first, and to the wrong address ───────────────────────────────────────────────────


def test_a_node_that_comes_first_waits_and_says_so_in_one_line(tmp_path: Path) -> None:
    service = MetadataServer(tmp_path / "metadata")
    node = attached(tmp_path / "node", service.listen)
    starting = threading.Thread(target=node.start)
    starting.start()
    try:
        eventually(
            lambda: "waiting for the metadata service" in node.stderr, seconds=120, what="the line"
        )
        threading.Event().wait(1.5)  # three more attempts, which are not worth a line each
        assert node.stderr.count("waiting for the metadata service") == 1
        with service:
            starting.join(120)
            assert node.url, node.stderr_tail()
            sqs_client(node.url).create_queue(QueueName="q")
            assert node.stop() == 0
            node.assert_no_traceback()
    finally:
        if node.is_running:
            node.kill()
        starting.join()


def test_a_node_that_waits_can_be_stopped(tmp_path: Path) -> None:
    node = attached(tmp_path / "node", MetadataServer(tmp_path / "metadata").listen)
    ends: list[str] = []
    starting = threading.Thread(target=start_in_vain, args=(node, ends))
    starting.start()
    eventually(lambda: "waiting for the" in node.stderr, seconds=120, what="the line")
    os.kill(node.pid, signal.SIGTERM)
    starting.join(120)
    assert ends, "it ended by itself"
    assert "stopped while waiting for the metadata service" in ends[0]
    node.assert_no_traceback()


def test_a_node_keeps_to_the_store_it_belongs_to(tmp_path: Path) -> None:
    first, second = MetadataServer(tmp_path / "m1"), MetadataServer(tmp_path / "m2")
    node = attached(tmp_path / "node", first.listen)
    with first, node:
        assert node.stop() == 0
    second.listen = first.listen
    with second:
        starting = threading.Thread(target=start_in_vain, args=(node, []))
        starting.start()
        eventually(lambda: "uses another store" in node.stderr, seconds=120, what="the refusal")
        os.kill(node.pid, signal.SIGTERM)
        starting.join(120)


def test_a_folder_with_a_catalog_of_its_own_is_not_attached(
    tmp_path: Path, metadata: MetadataServer
) -> None:
    with Server(tmp_path / "data") as alone:
        sqs_client(alone.url).create_queue(QueueName="mine")
        assert alone.stop() == 0
    with pytest.raises(ServerFailed, match="already contains metadata"):
        attached(tmp_path / "data", metadata.listen).start()
    with Server(tmp_path / "data") as alone:
        assert sqs_client(alone.url).list_queues()["QueueUrls"], "nothing was touched"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--role", "broker"), "expected 'frontend,broker,metadata'"),
        (("--role", "frontend,broker"), "the metadata needs an address"),
        (("--metadata", "127.0.0.1:1"), "the roles must be frontend,broker"),
        (("--internal", "127.0.0.1:0"), "for a metadata node"),
        (("--role", "frontend,broker", "--metadata", "nonsense"), "expected host:port"),
        (("--role", "frontend,broker", "--metadata", "192.0.2.1:9"), "no TLS between nodes"),
        (("--role", "frontend,broker", "--metadata", "127.0.0.1:9"), "share a master key"),
    ],
)
def test_what_does_not_fit_together_is_said_in_one_line(
    tmp_path: Path, metadata: MetadataServer, arguments: tuple[str, ...], why: str
) -> None:
    given = [metadata.listen if one == "127.0.0.1:9" else one for one in arguments]
    with pytest.raises(ServerFailed, match=why) as failed:
        Server(tmp_path / "data", arguments=given).start()
    assert "Traceback" not in str(failed.value)
