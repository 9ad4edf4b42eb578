"""Three nodes and an etcd as processes, seen by Kafka clients: they find leaders and coordinators
by themselves, and go on when those are somebody else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.harness.cluster import PenstockCluster
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.skipif(LACKING is not None, reason=str(LACKING)),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockCluster]:
    with PenstockCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def made(cluster: PenstockCluster, name: str, *, partitions: int = 6) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    futures = admin.create_topics([NewTopic(name, partitions, replication_factor=3)])
    futures[name].result(timeout=60)


class Produced:
    """What an idempotent producer was told is written."""

    def __init__(self, cluster: PenstockCluster, topic: str, **more: Any) -> None:
        self.topic = topic
        self.written: list[str] = []
        self.failed: list[str] = []
        self.producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 60_000,
                **more,
            }
        )
        self._count = 0

    def send(self, count: int) -> None:
        for _ in range(count):
            self._count += 1
            value = f"{self._count}"
            self.producer.produce(self.topic, value, key=value, on_delivery=self._delivered)
            self.producer.poll(0)
        left = self.producer.flush(120)
        assert left == 0

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.written.append(message.value().decode())
        else:
            self.failed.append(str(error))


def consumed(
    cluster: PenstockCluster, topic: str, group: str, *, count: int, seconds: float = 60
) -> list[str]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 20_000,  # a late heartbeat would mean to read all of it again
            "heartbeat.interval.ms": 1_000,
        }
    )
    consumer.subscribe([topic])
    found: list[str] = []
    until = time.monotonic() + seconds
    try:
        while len(found) < count and time.monotonic() < until:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                found.append((message.value() or b"").decode())
        if found:
            consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return found


def test_a_pattern_of_a_kip_848_group_finds_topics_on_every_node(cluster: PenstockCluster) -> None:
    written = []
    for topic in ("pattern-a", "pattern-b"):
        made(cluster, topic)
        producer = Produced(cluster, topic)
        producer.send(60)
        written += [(topic, value) for value in producer.written]
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "patterns",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["^pattern-a", "^pattern-[b-c]$"])
    found: list[tuple[str, str]] = []

    def are_read() -> bool:
        message = consumer.poll(0.5)
        while message is not None and message.error() is None:
            found.append((message.topic() or "", (message.value() or b"").decode()))
            message = consumer.poll(0.5)
        return len(found) >= len(written)

    try:
        eventually(are_read, seconds=60, what="the records of both topics")
    finally:
        consumer.close()
    assert sorted(found) == sorted(written)


def test_clients_are_told_of_all_nodes_and_their_partitions(cluster: PenstockCluster) -> None:
    made(cluster, "told")
    admin = AdminClient({"bootstrap.servers": cluster.nodes[1].kafka})

    def are_complete() -> bool:
        """What is created while nodes are still coming gets its replicas in a moment."""
        partitions = admin.list_topics(timeout=60).topics["told"].partitions
        return all(sorted(one.replicas) == [1, 2, 3] for one in partitions.values())

    eventually(are_complete, seconds=120, what="three replicas of each partition")
    found = admin.list_topics(timeout=60)
    assert sorted(found.brokers) == [1, 2, 3]
    partitions = found.topics["told"].partitions
    assert sorted(partitions) == list(range(6))
    assert len({one.leader for one in partitions.values()}) > 1


def test_records_and_groups_go_on_when_each_node_is_killed_in_turn(
    cluster: PenstockCluster,
) -> None:
    made(cluster, "killed")
    produced = Produced(cluster, "killed")
    produced.send(200)
    assert len(consumed(cluster, "killed", "readers", count=200)) == 200
    for victim in (1, 2, 3):
        cluster.nodes[victim].kill()
        produced.send(200)
        got = consumed(cluster, "killed", "readers", count=200)
        assert len(got) == 200, f"{len(got)} after node {victim} was killed"
        cluster.nodes[victim].start()
    assert not produced.failed
    everything = consumed(cluster, "killed", "checker", count=len(produced.written))
    assert sorted(everything) == sorted(produced.written)  # nothing lost, nothing twice


def test_an_idempotent_producer_goes_through_a_rolling_restart(cluster: PenstockCluster) -> None:
    made(cluster, "rolling")
    produced = Produced(cluster, "rolling")
    end = threading.Event()

    def run() -> None:
        while not end.is_set():
            produced.send(50)

    sender = threading.Thread(target=run)
    sender.start()
    for node in cluster.nodes.values():
        assert node.stop() == 0
        node.start()
    end.set()
    sender.join()
    assert not produced.failed
    found = consumed(cluster, "rolling", "checker", count=len(produced.written))
    assert sorted(found) == sorted(produced.written)


def test_a_transaction_with_offsets_is_whole_although_coordinators_differ(
    cluster: PenstockCluster,
) -> None:
    made(cluster, "source", partitions=1)
    made(cluster, "target", partitions=3)
    Produced(cluster, "source").send(20)
    for number in range(4):  # several ids and groups: coordinators are on several nodes
        group = f"movers-{number}"
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 20_000,
                "heartbeat.interval.ms": 1_000,
            }
        )
        consumer.subscribe(["source"])
        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "transactional.id": f"mover-{number}"}
        )
        producer.init_transactions(30)
        got: list[Any] = []
        until = time.monotonic() + 40
        while len(got) < 20 and time.monotonic() < until:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                got.append(message)
        assert len(got) == 20
        producer.begin_transaction()
        for message in got:
            producer.produce("target", message.value(), key=f"{number}")
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 30
        )
        producer.commit_transaction(30)
        committed = consumer.committed(consumer.assignment(), timeout=60)
        assert [one.offset for one in committed] == [20]
        consumer.close()
    assert len(consumed(cluster, "target", "checker", count=80)) == 80


def test_no_node_ever_had_an_exception_that_nobody_expected(cluster: PenstockCluster) -> None:
    """Last: over all that happened to them above."""
    for node in cluster.nodes.values():
        node.assert_no_traceback()
