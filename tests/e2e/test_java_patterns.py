"""A Java consumer with a pattern that the server evaluates. Skipped where Kafka's jars
cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.harness.cluster import PenstockCluster
from tests.harness.etcd import LACKING
from tests.harness.kafka_tools import KafkaTools
from tests.harness.server import Server

pytestmark = [pytest.mark.slow, pytest.mark.compat]
SECONDS_MAX = 200
TOPICS = ("orders-eu", "orders-us", "other")
COUNT = 20


def read_by_pattern(
    tools: KafkaTools, servers: str, pattern: str, *, count: int
) -> list[tuple[str, str]]:
    arguments = (servers, "patterns", pattern, str(count), str(SECONDS_MAX))
    code, said = tools.call("PatternConsumer", *arguments)
    assert code == 0, said
    lines = [line.split() for line in said.splitlines()]
    return [(line[0], line[1]) for line in lines if line[0] in TOPICS]


def fill(servers: str) -> set[tuple[str, str]]:
    """Create topics and send records. Returns those of topics that begin with orders-."""
    new = [NewTopic(topic, num_partitions=3) for topic in TOPICS]
    admin = AdminClient({"bootstrap.servers": servers})
    for created in admin.create_topics(new).values():
        created.result()
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    for topic in TOPICS:
        for number in range(COUNT):
            producer.produce(topic, f"{topic}-{number}".encode())
    assert producer.flush(120) == 0
    return {(topic, f"{topic}-{n}") for topic in TOPICS[:2] for n in range(COUNT)}


def test_a_pattern_finds_every_record_on_one_node(kafka_tools: KafkaTools, tmp_path: Path) -> None:
    with Server(tmp_path, fsync="never", kafka_port=0) as server:
        sent = fill(server.kafka)
        found = read_by_pattern(kafka_tools, server.kafka, "orders-(eu|us)", count=len(sent))
    assert sorted(found) == sorted(sent)


@pytest.mark.skipif(LACKING is not None, reason=str(LACKING))
def test_a_pattern_finds_every_record_on_three_nodes(
    kafka_tools: KafkaTools, tmp_path: Path
) -> None:
    with PenstockCluster(tmp_path) as cluster:
        sent = fill(cluster.bootstrap)
        found = read_by_pattern(kafka_tools, cluster.bootstrap, "^orders-.*$", count=len(sent))
    assert sorted(found) == sorted(sent)
