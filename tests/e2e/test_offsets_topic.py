"""``__consumer_offsets`` as programs read it: Apache Kafka's console consumer with its formatter of
offsets prints every commit once, on one node and on three, also after compaction, a restart and an
election. Skipped without the tools' jars, like ``test_kafka_tools.py``."""

from __future__ import annotations

import json
import random
from base64 import b85encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.compat.kafka.locked import Operator, allow, locked_server
from tests.harness.cluster import PenstockCluster
from tests.harness.etcd import LACKING
from tests.harness.kafka_tools import KafkaTools
from tests.harness.patience import eventually
from tests.harness.server import Server

from penstock.model.names import OFFSETS_TOPIC

pytestmark = [pytest.mark.slow, pytest.mark.compat]
three_nodes = pytest.mark.skipif(LACKING is not None, reason=str(LACKING))

FORMATTER = "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"
GROUPS = [f"g{number}" for number in range(8)]  # in all partitions
PASSWORD = "correct horse battery"


class Commit(NamedTuple):
    group: str
    topic: str
    partition: int
    offset: int | None  # None: deleted


def committed(
    bootstrap: str, commits: Sequence[Commit], login: Mapping[str, str] | None = None
) -> list[Commit]:
    """Commit one after another; returns the same."""
    consumers: dict[str, Consumer] = {}
    for group, topic, partition, offset in commits:
        if group not in consumers:
            settings = {"bootstrap.servers": bootstrap, "group.id": group, **(login or {})}
            consumers[group] = Consumer({**settings, "enable.auto.commit": False})
        assert offset is not None
        where = [TopicPartition(topic, partition, offset)]
        commit(consumers[group], where)
    for consumer in consumers.values():
        consumer.close()
    return list(commits)


def commit(consumer: Consumer, where: list[TopicPartition]) -> None:
    """Commit once: the commit is repeated only after errors that say that nothing was done."""

    def is_committed() -> bool:
        try:
            consumer.commit(offsets=where, asynchronous=False)
        except KafkaException as error:
            if error.args[0].name() not in ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"):
                raise
            return False
        return True

    eventually(is_committed, seconds=120, what="the offsets are committed")


class Follower:
    """Reads the topic from its beginning on, and remembers everything."""

    def __init__(self, bootstrap: str, login: Mapping[str, str] | None = None) -> None:
        self._consumer = Consumer(
            {
                **(login or {}),
                "bootstrap.servers": bootstrap,
                "group.id": "follower",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
            }
        )
        found = self._consumer.list_topics(OFFSETS_TOPIC, 10).topics[OFFSETS_TOPIC]
        self._count = len(found.partitions)
        self._consumer.assign(
            [TopicPartition(OFFSETS_TOPIC, index, 0) for index in range(self._count)]
        )
        self._ended: set[int] = set()
        self.read: dict[tuple[int, int], tuple[bytes | None, bytes | None]] = {}

    def _read_some(self) -> None:
        for message in self._consumer.consume(1_000, 0.2):
            partition, offset, error = message.partition(), message.offset(), message.error()
            assert partition is not None
            assert offset is not None
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                self._ended.add(partition)
                continue
            place = (partition, offset)
            assert place not in self.read
            self.read[place] = (message.key(), message.value())

    def read_to(self, count: int) -> None:
        def is_there() -> bool:
            self._read_some()
            return len(self.read) >= count

        eventually(is_there, seconds=60, what=f"{count} records are read")

    def read_all(self) -> None:
        """To the end of each partition."""

        def is_there() -> bool:
            self._read_some()
            return len(self._ended) == self._count

        eventually(is_there, seconds=60, what="all records are read")

    def rest(self) -> None:
        """Nothing more comes."""
        before = len(self.read)
        for _ in range(5):
            self._read_some()
        assert len(self.read) == before

    def close(self) -> None:
        self._consumer.close()


def printed(
    tools: KafkaTools, at: str, *more: str, login: Mapping[str, str] | None = None
) -> list[Commit]:
    """What the console consumer prints from the beginning to the end."""
    reader = Follower(at, login)
    reader.read_all()
    reader.close()
    said = tools.run(
        "consumer.ConsoleConsumer",
        *("--topic", OFFSETS_TOPIC, "--formatter", FORMATTER, "--from-beginning"),
        *("--max-messages", str(len(reader.read)), "--timeout-ms", "60000"),
        # Of the console consumer's own group nothing is committed.
        *("--command-property", "enable.auto.commit=false"),
        *more,
        at=at,
    )
    return [_parsed(each) for each in _objects(said)]


def _objects(said: str) -> Iterator[Mapping[str, Any]]:
    """The formatter puts no line ends between its objects."""
    at = said.find('{"key"')
    while at >= 0:
        found, at = json.JSONDecoder().raw_decode(said, at)
        yield found
        at = said.find('{"key"', at)


def _parsed(each: Mapping[str, Any]) -> Commit:
    key = each["key"]
    assert key["type"] == 1
    value = each["value"]
    assert value is None or value["version"] == 4
    offset = None if value is None else value["data"]["offset"]
    return Commit(key["data"]["group"], key["data"]["topic"], key["data"]["partition"], offset)


def create(bootstrap: str, *, partitions: int = 2, login: Mapping[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **(login or {})})
    for made in admin.create_topics([NewTopic("t", partitions)]).values():
        made.result(30)


def rounds(count: int, groups: Sequence[str] = GROUPS) -> list[Commit]:
    return [Commit(group, "t", number % 2, number) for number in range(count) for group in groups]


def test_one_node_prints_every_commit_once_also_after_a_restart(
    kafka_tools: KafkaTools, tmp_path: Path
) -> None:
    with Server(tmp_path / "data", fsync="never", kafka_port=0) as server:
        create(server.kafka)
        sent = committed(server.kafka, rounds(5))
        assert Counter(printed(kafka_tools, server.kafka)) == Counter(sent)
        said = kafka_tools.run(
            "consumer.group.ConsumerGroupCommand",
            *("--delete-offsets", "--group", "g1", "--topic", "t:0"),
            at=server.kafka,
        )
        assert "Successful" in said
        server.restart()
        expected = Counter([*sent, Commit("g1", "t", 0, None)])
        assert Counter(printed(kafka_tools, server.kafka)) == expected
        assert OFFSETS_TOPIC in kafka_tools.run("TopicCommand", "--list", at=server.kafka)
        excluded = kafka_tools.run("TopicCommand", "--list", "--exclude-internal", at=server.kafka)
        assert OFFSETS_TOPIC not in excluded

        # With a topic, its offsets are deleted. Readers still learn its name.
        kafka_tools.run("TopicCommand", "--delete", "--topic", "t", at=server.kafka)
        left = {(group, partition) for group in GROUPS for partition in range(2)} - {("g1", 0)}
        expected += Counter(Commit(group, "t", partition, None) for group, partition in left)
        eventually(
            lambda: Counter(printed(kafka_tools, server.kafka)) == expected,
            seconds=120,
            what="the offsets of the topic are deleted",
        )


def test_two_tenants_see_their_own_groups(kafka_tools: KafkaTools, tmp_path: Path) -> None:
    with locked_server(tmp_path) as server:
        operator = Operator(server)
        sent, login, files = {}, {}, {}
        for number in range(2):
            tenant = operator.tenant()
            user = operator.user(allow("*"), tenant=tenant, password=PASSWORD)
            sasl = {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": f"{tenant}/{user}",
                "sasl.password": PASSWORD,
            }
            create(server.kafka, login=sasl)
            sent[tenant] = committed(server.kafka, rounds(2 + number), sasl)
            login[tenant] = sasl
            files[tenant] = tmp_path / f"{tenant}.properties"
            files[tenant].write_text(
                "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
                "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
                f'username="{tenant}/{user}" password="{PASSWORD}";\n'
            )
        for tenant, commits in sent.items():
            config = ("--command-config", str(files[tenant]))
            found = printed(kafka_tools, server.kafka, *config, login=login[tenant])
            assert Counter(found) == Counter(commits)


# ── Three nodes ──────────────────────────────────────────────────────────────────────────────


def leaders(bootstrap: str) -> dict[int, int]:
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(OFFSETS_TOPIC, 10)
    return {index: one.leader for index, one in found.topics[OFFSETS_TOPIC].partitions.items()}


@three_nodes
def test_three_nodes_print_every_commit_once_after_an_election(
    kafka_tools: KafkaTools, tmp_path: Path
) -> None:
    with PenstockCluster(tmp_path) as cluster:
        create(cluster.bootstrap)
        sent = committed(cluster.bootstrap, rounds(3))
        before = Follower(cluster.bootstrap)
        before.read_to(len(sent))
        led = leaders(cluster.bootstrap)
        killed = led[0]
        cluster.nodes[killed].kill()
        others = [node for number, node in cluster.nodes.items() if number != killed]
        bootstrap = ",".join(node.kafka for node in others)
        eventually(
            lambda: killed not in leaders(bootstrap).values(), seconds=60, what="others lead"
        )
        sent += committed(bootstrap, rounds(6)[len(rounds(3)) :])
        # Who has read before goes on where it was, and who begins now finds the same.
        before.read_to(len(sent))
        before.rest()
        for node in others:
            assert Counter(printed(kafka_tools, node.kafka)) == Counter(sent)
        cluster.nodes[killed].start()
        after = Follower(cluster.nodes[killed].kafka)
        after.read_to(len(sent))
        after.rest()
        assert after.read == before.read
        before.close()
        after.close()


@three_nodes
def test_compaction_leaves_the_last_commit_of_each_partition(tmp_path: Path) -> None:
    """More than a segment of commits, with texts that do not compress."""
    partitions, count = 50, 20
    chance = random.Random(7)
    env = {"PENSTOCK_LOG__COMPACTION_CHECK_MS": "500", "PENSTOCK_LOG__SEGMENT_BYTES_MAX": "500000"}
    with PenstockCluster(tmp_path, fsync="never", env=env) as cluster:
        create(cluster.bootstrap, partitions=partitions)
        live = Follower(cluster.bootstrap)
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g"})
        for number in range(count):
            texts = [b85encode(chance.randbytes(800)).decode() for _ in range(partitions)]
            where = [TopicPartition("t", index, number, text) for index, text in enumerate(texts)]
            commit(consumer, where)
            live.read_to((number + 1) * partitions)  # before a compaction removes them

        def is_compacted() -> Follower | None:
            fresh = Follower(cluster.bootstrap)
            fresh.read_all()
            if len(fresh.read) < count * partitions:
                return fresh
            fresh.close()
            return None

        fresh = eventually(is_compacted, seconds=60, what="the log is compacted")
        assert fresh is not None
        # The same records at the same offsets, the last of each key among them; and who has read
        # them all before gets none again.
        assert fresh.read.items() <= live.read.items()
        last = {key: place for place, (key, _) in sorted(live.read.items())}
        assert len(last) == partitions
        assert set(last.values()) <= fresh.read.keys()
        live.rest()
        for each in (fresh, live, consumer):
            each.close()
