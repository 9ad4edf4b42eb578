"""Broker configs and client quotas that are changed while processes run, on one node and on three:
set, described by every node, kept over a restart, deleted; and what they do."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.e2e.test_cluster_cli import ask as upgrade
from tests.e2e.test_cluster_cli import healthy
from tests.harness.cluster import PenstockCluster
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually
from tests.harness.server import Server

from penstock.model.levels import BROKER_CONFIGS_STORED
from penstock.model.limits import SEGMENT_BYTES_MAX
from penstock.net.kafka_client.errors import KafkaTrouble
from penstock.net.kafka_client.node import Dialling, KafkaNode, Security
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import alter_client_quotas as alter_quotas
from penstock.wire.kafka.generated import describe_client_quotas as describe_quotas
from penstock.wire.kafka.generated import incremental_alter_configs as incremental
from penstock.wire.kafka.generated.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from penstock.wire.kafka.generated.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)

pytestmark = [pytest.mark.slow, pytest.mark.compat]
on_three = pytest.mark.skipif(LACKING is not None, reason=str(LACKING))
SECONDS_MAX = 200.0
TOPIC, BROKER, LOGGER, METRICS = 2, 4, 8, 16
ALL = ""
SETTING = "PENSTOCK_CLUSTER__FEATURE_LEVEL_MAX"


def dial(server: Server) -> KafkaNode:
    host, _, port = server.kafka.rpartition(":")
    return KafkaNode(host, int(port), Dialling(Security(), None, SECONDS_MAX, "admin"))


def ask(server: Server, key: int, request: Any) -> Any:
    node = dial(server)
    try:
        return node.call(key, request)
    finally:
        node.close()


def changes(of: int, name: str, configs: Mapping[str, str | None]) -> Any:
    ops = [
        incremental.AlterableConfig(key, 1 if text is None else 0, text)
        for key, text in configs.items()
    ]
    resource = incremental.AlterConfigsResource(of, name, ops)
    return incremental.IncrementalAlterConfigsRequest([resource])


def alter(server: Server, of: int, name: str, configs: Mapping[str, str | None]) -> int:
    (done,) = ask(server, 44, changes(of, name, configs)).responses
    return int(done.error_code)


def shown(server: Server, of: int, name: str, key: str) -> tuple[str | None, int] | None:
    """Value and source; None if there is no such config."""
    request = DescribeConfigsRequest([DescribeConfigsResource(of, name, [key])])
    (result,) = ask(server, 32, request).results
    assert result.error_code == 0, result
    return next(((one.value, one.config_source) for one in result.configs), None)


def shows(server: Server, of: int, name: str, key: str, wanted: tuple[str | None, int]) -> bool:
    return shown(server, of, name, key) == wanted


def create(server: Server, name: str, **configs: str) -> None:
    pairs = [CreatableTopicConfig(key.replace("_", "."), text) for key, text in configs.items()]
    (made,) = ask(server, 19, CreateTopicsRequest([CreatableTopic(name, 1, -1, (), pairs)])).topics
    assert made.error_code == 0, made


def produce(bootstrap: str, topic: str, *values: bytes, key: bytes | None = None) -> list[str]:
    """The error of each message, empty where there was none."""
    config = {"bootstrap.servers": bootstrap, "message.timeout.ms": 20_000, "linger.ms": 0}
    producer = Producer(config)
    errors: list[str] = []
    for value in values:
        producer.produce(
            topic, value, key=key, on_delivery=lambda error, _: errors.append(str(error or ""))
        )
        producer.flush(120)
    return errors


def segments(server: Server) -> int:
    """Files of the topic with most of them."""
    folders = (server.data / "topics").glob("*/*")
    return max(len(list(folder.glob("*.log"))) for folder in folders)


def has_segments(server: Server, count: int) -> bool:
    return segments(server) >= count


# ── One node ─────────────────────────────────────────────────────────────────────────────────


def test_one_node_keeps_what_is_set_over_a_restart(tmp_path: Path) -> None:
    with Server(tmp_path / "data", kafka_port=0) as server:
        assert alter(server, BROKER, ALL, {"log.retention.ms": "5000000", "my.own": "x"}) == 0
        assert alter(server, BROKER, "1", {"log.retention.ms": "6000000"}) == 0
        assert alter(server, METRICS, "m", {"interval.ms": "1000"}) == 0
        create(server, "t")
        for _ in range(2):
            assert shown(server, BROKER, "1", "log.retention.ms") == ("6000000", 2)
            assert shown(server, BROKER, ALL, "log.retention.ms") == ("5000000", 3)
            assert shown(server, BROKER, "1", "my.own") == (None, 3)
            assert shown(server, TOPIC, "t", "retention.ms") == ("6000000", 2)
            assert shown(server, METRICS, "m", "interval.ms") == ("1000", 7)
            assert server.stop() == 0
            server.start()
        for name, key in (("1", "log.retention.ms"), (ALL, "log.retention.ms"), (ALL, "my.own")):
            assert alter(server, BROKER, name, {key: None}) == 0
        assert shown(server, TOPIC, "t", "retention.ms") == (str(7 * 24 * 3_600_000), 5)
        assert shown(server, BROKER, "1", "my.own") is None


def test_a_changed_default_reaches_an_open_topic_and_what_is_deleted_is_gone(
    tmp_path: Path,
) -> None:
    with Server(tmp_path / "data", kafka_port=0) as server:
        create(server, "t")
        large = b"x" * 5_000
        assert produce(server.kafka, "t", large) == [""]
        assert alter(server, BROKER, ALL, {"message.max.bytes": "2000"}) == 0
        (error,) = produce(server.kafka, "t", large)
        assert "too large" in error.lower() or "MSG_SIZE" in error
        assert alter(server, BROKER, ALL, {"message.max.bytes": None}) == 0
        assert alter(server, BROKER, "1", {"log.segment.bytes": "6000"}) == 0
        before = segments(server)
        assert produce(server.kafka, "t", *(large for _ in range(6))) == [""] * 6
        assert segments(server) > before + 3


def test_the_clock_of_compaction_and_connection_limits_follow(tmp_path: Path) -> None:
    env = {"PENSTOCK_LOG__COMPACTION_CHECK_MS": "3600000"}
    with Server(tmp_path / "data", kafka_port=0, env=env) as server:
        configs = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01"}
        create(server, "t", segment_bytes="200", **configs)
        assert produce(server.kafka, "t", *(b"v" * 50 for _ in range(20)), key=b"k") == [""] * 20
        assert len(read(server, "t")) == 20
        assert shown(server, BROKER, "1", "log.cleaner.backoff.ms") == ("3600000", 4)
        assert alter(server, BROKER, "1", {"log.cleaner.backoff.ms": "100"}) == 0
        eventually(lambda: len(read(server, "t")) < 20, seconds=120, what="it is compacted")
        first = dial(server)
        one = changes(BROKER, "1", {"max.connections.per.ip.overrides": "127.0.0.1:1"})
        none = changes(BROKER, "1", {"max.connections.per.ip.overrides": None})
        assert first.call(44, one).responses[0].error_code == 0
        with pytest.raises(KafkaTrouble):
            shown(server, BROKER, "1", "max.connections")
        assert first.call(44, none).responses[0].error_code == 0
        assert quota(server, "ip", "127.0.0.1", connection_creation_rate=1.0) == 0
        refused = 0
        for _ in range(5):
            try:
                shown(server, BROKER, "1", "max.connections")
            except KafkaTrouble:
                refused += 1
        assert refused > 0, "one connection a second is allowed"
        unlimited = quota_change("ip", "127.0.0.1", connection_creation_rate=None)
        assert first.call(49, unlimited).entries[0].error_code == 0
        first.close()
        assert shown(server, BROKER, "1", "max.connections") is not None


def read(server: Server, topic: str) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": server.kafka,
            "group.id": f"g{time.monotonic_ns()}",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    until = time.monotonic() + SECONDS_MAX
    while time.monotonic() < until:
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is not None:
            break
        found.append(message.value() or b"")
    consumer.close()
    return found


def quota_change(kind: str, name: str | None, **rates: float | None) -> Any:
    entity = alter_quotas.AlterClientQuotasRequestEntityData(kind, name)
    ops = [alter_quotas.OpData(key, rate or 0.0, rate is None) for key, rate in rates.items()]
    entry = alter_quotas.AlterClientQuotasRequestEntryData([entity], ops)
    return alter_quotas.AlterClientQuotasRequest([entry])


def quota(server: Server, kind: str, name: str | None, **rates: float | None) -> int:
    (done,) = ask(server, 49, quota_change(kind, name, **rates)).entries
    return int(done.error_code)


def quotas(server: Server) -> list[tuple[str, str | None, dict[str, float]]]:
    reply = ask(server, 48, describe_quotas.DescribeClientQuotasRequest())
    return [
        (part.entity_type, part.entity_name, {one.key: one.value for one in entry.values})
        for entry in reply.entries or ()
        for part in entry.entity
    ]


def has_quotas(server: Server, count: int) -> bool:
    return len(quotas(server)) == count


def seconds_to_send(server: Server, client_id: str, total_bytes: int) -> tuple[float, int]:
    """How long librdkafka takes until everything is confirmed, and the longest pause in a reply,
    in ms."""
    pauses = [0.0]
    producer = Producer(
        {
            "bootstrap.servers": server.kafka,
            "client.id": client_id,
            "batch.size": 10_000,
            "linger.ms": 0,
            "max.in.flight.requests.per.connection": 1,
            "throttle_cb": lambda event: pauses.append(event.throttle_time),
        }
    )
    producer.list_topics("t", timeout=60)
    began = time.monotonic()
    for _ in range(total_bytes // 5_000):
        producer.produce("t", b"x" * 5_000)
    assert producer.flush(120) == 0
    seconds = time.monotonic() - began
    producer.poll(0)
    return seconds, int(max(pauses) * 1_000)


def check_slow(server: Server) -> None:
    """500 KB at 100 KB/s, of which the first second is free."""
    seconds, pause_ms = seconds_to_send(server, "slow", 500_000)
    assert 3.5 <= seconds <= 25
    assert pause_ms > 0


def test_a_producer_is_limited_to_its_quota_and_survives_a_restart(tmp_path: Path) -> None:
    with Server(tmp_path / "data", kafka_port=0) as server:
        create(server, "t")
        assert quota(server, "client-id", "slow", producer_byte_rate=100_000.0) == 0
        assert server.stop() == 0
        server.start()
        assert quotas(server) == [("client-id", "slow", {"producer_byte_rate": 100_000.0})]
        check_slow(server)
        assert seconds_to_send(server, "fast", 500_000)[1] == 0
        assert quota(server, "client-id", "slow", producer_byte_rate=None) == 0
        assert quotas(server) == []
        assert seconds_to_send(server, "slow", 500_000)[1] == 0


def seconds_to_read(server: Server, client_id: str, total_bytes: int) -> tuple[float, int]:
    """How long librdkafka takes to fetch so much, and the longest pause in a reply, in ms."""
    pauses = [0.0]
    consumer = Consumer(
        {
            "bootstrap.servers": server.kafka,
            "client.id": client_id,
            "group.id": "g",
            "fetch.message.max.bytes": 20_000,
            "throttle_cb": lambda event: pauses.append(event.throttle_time),
        }
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    began, found = time.monotonic(), 0
    while found < total_bytes:
        assert time.monotonic() < began + SECONDS_MAX
        found += sum(len(message.value() or b"") for message in consumer.consume(100, 0.1))
    seconds = time.monotonic() - began
    consumer.close()
    return seconds, int(max(pauses) * 1_000)


def test_a_consumer_is_limited_to_its_quota(tmp_path: Path) -> None:
    with Server(tmp_path / "data", kafka_port=0) as server:
        create(server, "t")
        seconds_to_send(server, "fast", 600_000)
        assert quota(server, "client-id", "slow", consumer_byte_rate=100_000.0) == 0
        # 600 KB at 100 KB/s, of which the first second is free, and the last pause comes after it.
        seconds, pause_ms = seconds_to_read(server, "slow", 600_000)
        assert 4.0 <= seconds <= 25
        assert pause_ms > 0
        assert seconds_to_read(server, "fast", 600_000)[1] == 0


# ── Three nodes ──────────────────────────────────────────────────────────────────────────────


@on_three
def test_three_nodes_follow_what_is_set_at_any_of_them(tmp_path: Path) -> None:
    with PenstockCluster(tmp_path) as cluster:
        nodes = cluster.nodes
        healthy(cluster)
        create(nodes[1], "t")
        assert alter(nodes[2], BROKER, ALL, {"log.segment.bytes": "6000"}) == 0
        assert alter(nodes[3], BROKER, "3", {"log.retention.ms": "9000000"}) == 0
        wrong = alter(nodes[1], BROKER, "3", {"log.retention.ms": "1"})
        assert wrong == ErrorCode.INVALID_REQUEST
        assert quota(nodes[1], "user", None, producer_byte_rate=1e9) == 0
        for number, node in nodes.items():
            name = str(number)
            wanted = partial(shows, node, BROKER, name, "log.segment.bytes", ("6000", 3))
            eventually(wanted, seconds=SECONDS_MAX, what=f"node {number} follows")
            own = ("9000000", 2) if number == 3 else (str(7 * 24 * 3_600_000), 5)
            assert shown(node, BROKER, name, "log.retention.ms") == own
            assert shown(node, TOPIC, "t", "segment.bytes") == ("6000", 3)
            eventually(partial(has_quotas, node, 1), seconds=SECONDS_MAX, what="a quota")
        assert produce(cluster.bootstrap, "t", *(b"x" * 5_000 for _ in range(8))) == [""] * 8
        for node in nodes.values():
            eventually(partial(has_segments, node, 4), seconds=SECONDS_MAX, what="new segments")
        for node in nodes.values():
            assert node.stop() == 0
            node.start(seconds=SECONDS_MAX)
            healthy(cluster)
        for number, node in nodes.items():
            assert shown(node, BROKER, str(number), "log.segment.bytes") == ("6000", 3)
            assert len(quotas(node)) == 1
        assert shown(nodes[3], BROKER, "3", "log.retention.ms") == ("9000000", 2)
        assert alter(nodes[1], BROKER, ALL, {"log.segment.bytes": None}) == 0
        assert quota(nodes[2], "user", None, producer_byte_rate=None) == 0
        for node in nodes.values():
            gone = partial(shows, node, TOPIC, "t", "segment.bytes", (str(SEGMENT_BYTES_MAX), 5))
            eventually(gone, seconds=SECONDS_MAX, what="the default is back")
            eventually(partial(has_quotas, node, 0), seconds=SECONDS_MAX, what="no quota")


@on_three
def test_a_quota_set_at_one_node_holds_at_the_leader(tmp_path: Path) -> None:
    with PenstockCluster(tmp_path) as cluster:
        nodes = cluster.nodes
        healthy(cluster)
        create(nodes[1], "t")
        assert quota(nodes[2], "client-id", "slow", producer_byte_rate=100_000.0) == 0
        for node in nodes.values():
            eventually(partial(has_quotas, node, 1), seconds=SECONDS_MAX, what="a quota")
        check_slow(nodes[3])
        assert seconds_to_send(nodes[3], "fast", 500_000)[1] == 0


@on_three
def test_the_replicas_that_must_be_in_sync_follow_the_default(tmp_path: Path) -> None:
    with PenstockCluster(tmp_path) as cluster:
        nodes = cluster.nodes
        healthy(cluster)
        create(nodes[1], "t")
        assert alter(nodes[1], BROKER, ALL, {"min.insync.replicas": "3"}) == 0
        assert (
            alter(nodes[1], BROKER, "1", {"min.insync.replicas": "3"}) == ErrorCode.INVALID_CONFIG
        )
        for node in nodes.values():
            wanted = partial(shows, node, TOPIC, "t", "min.insync.replicas", ("3", 3))
            eventually(wanted, seconds=SECONDS_MAX, what="every node shows it")
        assert produce(cluster.bootstrap, "t", b"three") == [""]
        nodes[3].kill()
        eventually(
            lambda: "" not in produce(cluster.bootstrap, "t", b"two"),
            seconds=SECONDS_MAX,
            what="two replicas are not enough",
        )
        assert alter(nodes[1], BROKER, ALL, {"min.insync.replicas": None}) == 0
        eventually(
            lambda: produce(cluster.bootstrap, "t", b"two") == [""],
            seconds=SECONDS_MAX,
            what="two replicas are enough again",
        )
        nodes[3].start(seconds=SECONDS_MAX)


@on_three
def test_configs_can_be_set_once_the_level_is_raised(tmp_path: Path) -> None:
    earlier = {SETTING: str(BROKER_CONFIGS_STORED - 1)}
    config = {"log.retention.ms": "5000000"}
    with PenstockCluster(tmp_path, env=earlier) as cluster:
        nodes = cluster.nodes
        healthy(cluster)
        refused = ErrorCode.UNSUPPORTED_VERSION
        assert alter(nodes[1], BROKER, ALL, config) == refused
        assert quota(nodes[1], "user", "ann", producer_byte_rate=5.0) == refused
        assert alter(nodes[1], METRICS, "m", {"interval.ms": "1000"}) == refused
        # What tools do at the end of a move works at any level.
        assert alter(nodes[1], BROKER, "1", {"leader.replication.throttled.rate": None}) == 0
        for node in nodes.values():
            assert node.stop() == 0
            del node.env[SETTING]
            node.start(seconds=SECONDS_MAX)
            healthy(cluster)
        assert alter(nodes[1], BROKER, ALL, config) == refused
        raised = upgrade(cluster, "upgrade", "--to", str(BROKER_CONFIGS_STORED))
        assert raised.code == 0, raised
        eventually(
            lambda: alter(nodes[2], BROKER, ALL, config) == 0,
            seconds=SECONDS_MAX,
            what="node 2 has heard of the level",
        )
        for number, node in nodes.items():
            wanted = partial(shows, node, BROKER, str(number), "log.retention.ms", ("5000000", 3))
            eventually(wanted, seconds=SECONDS_MAX, what=f"node {number} follows")


@on_three
def test_a_logger_is_set_on_one_node_only(tmp_path: Path) -> None:
    with PenstockCluster(tmp_path) as cluster:
        name = "penstock.frontend.kafka"
        before = shown(cluster.nodes[1], LOGGER, "1", name)
        assert before is not None
        assert before[1] == 6
        assert alter(cluster.nodes[2], LOGGER, "2", {name: "DEBUG"}) == 0
        assert shown(cluster.nodes[2], LOGGER, "2", name) == ("DEBUG", 6)
        assert shown(cluster.nodes[1], LOGGER, "1", name) == before
        assert alter(cluster.nodes[1], LOGGER, "2", {name: "DEBUG"}) == ErrorCode.INVALID_REQUEST
        assert (
            alter(cluster.nodes[1], LOGGER, "1", {"no.such": "DEBUG"}) == ErrorCode.INVALID_CONFIG
        )
