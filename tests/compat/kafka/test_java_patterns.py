"""A Java consumer with a pattern that the server evaluates. Skipped unless Kafka's jars are there;
``python -m benchmarks.kafka`` has Maven fetch them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from benchmarks.kafka.systems.apache import LIB, MAIN_JAR
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.harness.cluster import PenstockCluster
from tests.harness.etcd import LACKING
from tests.harness.server import Server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.skipif(
        shutil.which("javac") is None or not (LIB / MAIN_JAR).exists(),
        reason="needs a JDK and Kafka's jars in benchmarks/.cache",
    ),
]
SECONDS_MAX = 60
TOPICS = ("orders-eu", "orders-us", "other")
COUNT = 20


def read_by_pattern(servers: str, pattern: str, *, count: int) -> list[tuple[str, str]]:
    program = Path(__file__).with_name("PatternConsumer.java")
    command = ["java", "-Xmx256m", "-cp", f"{LIB}/*", str(program)]
    done = subprocess.run(
        [*command, servers, "patterns", pattern, str(count), str(SECONDS_MAX)],
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX * 2,
    )
    assert done.returncode == 0, done.stderr
    return [(line.split()[0], line.split()[1]) for line in done.stdout.splitlines()]


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
    assert producer.flush(30) == 0
    return {(topic, f"{topic}-{n}") for topic in TOPICS[:2] for n in range(COUNT)}


def test_a_pattern_finds_every_record_on_one_node(tmp_path: Path) -> None:
    with Server(tmp_path, fsync="never", kafka_port=0) as server:
        sent = fill(server.kafka)
        found = read_by_pattern(server.kafka, "orders-(eu|us)", count=len(sent))
    assert sorted(found) == sorted(sent)


@pytest.mark.skipif(LACKING is not None, reason=str(LACKING))
def test_a_pattern_finds_every_record_on_three_nodes(tmp_path: Path) -> None:
    with PenstockCluster(tmp_path) as cluster:
        sent = fill(cluster.bootstrap)
        found = read_by_pattern(cluster.bootstrap, "^orders-.*$", count=len(sent))
    assert sorted(found) == sorted(sent)
