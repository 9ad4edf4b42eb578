"""Three nodes, Apache Kafka's command line tools, and clients of another make that see what
the tools did."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from tests.compat.kafka.confluent import kinds
from tests.harness.cluster import PenstockCluster
from tests.harness.kafka_tools import KafkaTools
from tests.harness.patience import eventually

SECONDS_MAX = 30
NOBODY = -1


class Site:
    """The cluster, the tools, and admin clients of other makes."""

    def __init__(self, cluster: PenstockCluster, tools: KafkaTools) -> None:
        self.cluster = cluster
        self.bootstrap = cluster.bootstrap
        self._tools = tools
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        self._python = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))

    def close(self) -> None:
        self._python.close()

    def tool(self, name: str, *arguments: str, at: int = 1, code: int | None = 0) -> str:
        """What a tool prints, asked of one node."""
        return self._tools.run(name, *arguments, at=self.cluster.nodes[at].kafka, code=code)

    def topic(self, name: str, *, partitions: int = 1, replicas: int = 3) -> None:
        (made,) = self.admin.create_topics([kinds.NewTopic(name, partitions, replicas)]).values()
        made.result(SECONDS_MAX)
        eventually(
            lambda: NOBODY not in self.leaders(name).values(), seconds=30, what=f"{name} is led"
        )

    def replicas(self, topic: str) -> dict[int, list[int]]:
        """By partition; empty if there is no such topic."""
        found = self.admin.list_topics(timeout=10).topics
        partitions = found[topic].partitions if topic in found else {}
        return {index: one.replicas for index, one in partitions.items()}

    def leaders(self, topic: str) -> dict[int, int]:
        found = self.admin.list_topics(topic, timeout=10).topics[topic].partitions
        return {index: one.leader for index, one in found.items()}

    def send(
        self, topic: str, count: int, *, partition: int = 0, transactional_id: str | None = None
    ) -> Producer:
        """With a transactional id, in a transaction that is left open."""
        config = {"bootstrap.servers": self.bootstrap}
        if transactional_id is not None:
            config["transactional.id"] = transactional_id
        producer = Producer({**config})
        if transactional_id is not None:
            producer.init_transactions(SECONDS_MAX)
            producer.begin_transaction()
        for number in range(count):
            producer.produce(topic, f"{number}".encode(), partition=partition)
        assert producer.flush(SECONDS_MAX) == 0
        return producer

    def ends(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """First offset and next offset."""
        place = TopicPartition(topic, partition)
        found = []
        for spec in (kinds.OffsetSpec.earliest(), kinds.OffsetSpec.latest()):
            (one,) = self.admin.list_offsets({place: spec}).values()
            found.append(one.result(SECONDS_MAX).offset)
        return found[0], found[1]

    def first_committed(self, topic: str) -> int:
        """Offset of the first record of partition 0 that is not aborted; the end if all are."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "reader"}
        more = {"isolation.level": "read_committed", "enable.partition.eof": True}
        reader = Consumer({**settings, **more})
        reader.assign([TopicPartition(topic, 0, 0)])
        found = eventually(lambda: reader.poll(0.2), seconds=30, what="the reader gets there")
        reader.close()
        assert found is not None
        offset = found.offset()
        assert offset is not None
        return offset

    def groups(self, *filters: str, at: int = 1) -> dict[str, tuple[str, str]]:
        """Type and protocol of each group that kafka-groups lists."""
        listed = rows(self.tool("GroupsCommand", "--list", *filters, at=at), "GROUP")
        return {each["GROUP"]: (each["TYPE"], each.get("PROTOCOL", "")) for each in listed}

    def await_config(self, kind: ConfigResourceType, of: str, name: str, value: str | None) -> None:
        """Wait until another client sees that a config has a value; None: it is not set."""

        def found() -> str | None:
            resource = ConfigResource(kind, of)
            described = self._python.describe_configs([resource], config_filter="all")
            ((configs,),) = (each.values() for each in described.values())
            one = configs.get(name)
            is_set = one is not None and one["config_source"].startswith("DYNAMIC")
            return one["value"] if is_set else None

        eventually(lambda: found() == value, seconds=30, what=f"{name} of {of} is {value}")

    def committed(self, group: str, topic: str) -> dict[int, int]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        count = len(self.leaders(topic))
        found = consumer.committed([TopicPartition(topic, i) for i in range(count)], SECONDS_MAX)
        consumer.close()
        return {one.partition: one.offset for one in found if one.offset >= 0}


def rows(said: str, first: str) -> list[dict[str, str]]:
    """Rows of the table that a tool prints. The first word of the table's heading is ``first``."""
    lines = [line.split() for line in said.splitlines() if line.strip()]
    at = next(n for n, line in enumerate(lines) if line[0] == first)
    heading = lines[at]
    return [dict(zip(heading, line, strict=False)) for line in lines[at + 1 :]]
