"""Administration through three clients: topics, partitions, configs, groups, offsets, records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import TopicPartition as KpPartition
from kafka.admin import ConfigResource as KpResource
from kafka.admin import KafkaAdminClient
from tests.compat.kafka.confluent import consumer, kinds, producer, read, read_all, send
from tests.compat.kafka.conftest import MakeTopic

SECONDS_MAX = 30.0
Name = Callable[..., str]


def result(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(SECONDS_MAX)


def refusal(futures: dict[Any, Any]) -> str:
    with pytest.raises(KafkaException) as refused:
        result(futures)
    text: str = refused.value.args[0].name()
    return text


# ── topics ───────────────────────────────────────────────────────────────────────────────────
def test_a_topic_is_created_listed_described_and_deleted(admin: AdminClient, name: Name) -> None:
    topic = name()
    result(admin.create_topics([kinds.NewTopic(topic, num_partitions=3, replication_factor=1)]))
    listed = admin.list_topics(timeout=10).topics
    assert set(listed[topic].partitions) == {0, 1, 2}
    from confluent_kafka import TopicCollection

    described = result(admin.describe_topics(TopicCollection([topic])))
    assert described.name == topic
    assert [part.id for part in described.partitions] == [0, 1, 2]
    assert all(part.leader.id == described.partitions[0].leader.id for part in described.partitions)
    first_id = str(described.topic_id)
    result(admin.delete_topics([topic]))
    assert topic not in admin.list_topics(timeout=10).topics
    result(admin.create_topics([kinds.NewTopic(topic, num_partitions=1, replication_factor=1)]))
    again = result(admin.describe_topics(TopicCollection([topic])))
    assert len(again.partitions) == 1
    assert str(again.topic_id) != first_id, "another topic has another id"
    result(admin.delete_topics([topic]))


def test_a_recreated_topic_is_empty(bootstrap: str, admin: AdminClient, name: Name) -> None:
    topic = name()
    for body in (b"old", b"new"):
        result(admin.create_topics([kinds.NewTopic(topic, num_partitions=1, replication_factor=1)]))
        send(producer(bootstrap), topic, [body])
        assert [message.value() for message in read_all(bootstrap, topic)] == [body]
        result(admin.delete_topics([topic]))


def test_impossible_topics_are_refused(
    admin: AdminClient, make_topic: MakeTopic, name: Name
) -> None:
    taken = make_topic()
    assert refusal(admin.create_topics([kinds.NewTopic(taken, 1, 1)])) == "TOPIC_ALREADY_EXISTS"
    assert refusal(admin.create_topics([kinds.NewTopic("a b", 1, 1)])) == "TOPIC_EXCEPTION"
    assert refusal(admin.create_topics([kinds.NewTopic(name(), 0, 1)])) == "INVALID_PARTITIONS"
    assert (
        refusal(admin.create_topics([kinds.NewTopic(name(), 1, 9)])) == "INVALID_REPLICATION_FACTOR"
    )
    odd = kinds.NewTopic(name(), 1, 1, config={"retention.ms": "soon"})
    assert refusal(admin.create_topics([odd])) == "INVALID_CONFIG"
    odd = kinds.NewTopic(name(), 1, 1, config={"no.such.config": "1"})
    assert refusal(admin.create_topics([odd])) == "INVALID_CONFIG"
    assert refusal(admin.delete_topics([name()])) == "UNKNOWN_TOPIC_OR_PART"


def test_a_dry_run_creates_nothing(admin: AdminClient, name: Name) -> None:
    topic = name()
    result(admin.create_topics([kinds.NewTopic(topic, 1, 1)], validate_only=True))
    assert topic not in admin.list_topics(timeout=10).topics


def test_partitions_are_added_and_never_taken_away(
    bootstrap: str, admin: AdminClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    send(producer(bootstrap), topic, [b"kept"])
    result(admin.create_partitions([kinds.NewPartitions(topic, 4)]))
    assert set(admin.list_topics(timeout=10).topics[topic].partitions) == {0, 1, 2, 3}
    send(producer(bootstrap), topic, [b"new"], partition=3)
    got = {(message.partition(), message.value()) for message in read_all(bootstrap, topic, 4)}
    assert got == {(0, b"kept"), (3, b"new")}
    assert refusal(admin.create_partitions([kinds.NewPartitions(topic, 2)])) == "INVALID_PARTITIONS"


# ── configs ──────────────────────────────────────────────────────────────────────────────────
def configs_of(admin: AdminClient, kind: Any, name: str) -> dict[str, Any]:
    described: dict[str, Any] = result(admin.describe_configs([kinds.ConfigResource(kind, name)]))
    return described


def test_configs_are_described_and_altered(admin: AdminClient, make_topic: MakeTopic) -> None:
    topic = make_topic(retention_ms=3_600_000)
    configs = configs_of(admin, kinds.ResourceType.TOPIC, topic)
    assert configs["retention.ms"].value == "3600000"
    sources = kinds.ConfigSource
    assert sources(configs["retention.ms"].source) is sources.DYNAMIC_TOPIC_CONFIG
    assert configs["cleanup.policy"].value == "delete"
    assert sources(configs["cleanup.policy"].source) is sources.DEFAULT_CONFIG

    def change(name: str, value: str | None, how: Any) -> None:
        entry = kinds.ConfigEntry(name, value, incremental_operation=how)
        resource = kinds.ConfigResource(
            kinds.ResourceType.TOPIC, topic, incremental_configs=[entry]
        )
        result(admin.incremental_alter_configs([resource]))

    change("max.message.bytes", "2000000", kinds.AlterConfigOpType.SET)
    change("retention.ms", None, kinds.AlterConfigOpType.DELETE)
    configs = configs_of(admin, kinds.ResourceType.TOPIC, topic)
    assert configs["max.message.bytes"].value == "2000000"
    assert configs["retention.ms"].is_default
    with pytest.raises(KafkaException):
        change("retention.ms", "never", kinds.AlterConfigOpType.SET)


def test_the_node_describes_its_configs(admin: AdminClient) -> None:
    (node,) = admin.list_topics(timeout=10).brokers
    assert configs_of(admin, kinds.ResourceType.BROKER, str(node))


def test_the_cluster_is_described(admin: AdminClient, bootstrap: str) -> None:
    cluster = admin.describe_cluster().result(SECONDS_MAX)
    assert cluster.cluster_id
    (node,) = cluster.nodes
    assert f"{node.host}:{node.port}" == bootstrap
    assert cluster.controller.id == node.id


# ── offsets and records ──────────────────────────────────────────────────────────────────────
def test_offsets_are_listed_and_records_deleted(
    bootstrap: str, admin: AdminClient, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    made = producer(bootstrap)
    for number in range(10):
        send(made, topic, [b"%d" % number], timestamp_ms=1_700_000_000_000 + number)
    place = TopicPartition(topic, 0)

    def offset(spec: Any) -> int:
        found: int = result(admin.list_offsets({place: spec})).offset
        return found

    assert offset(kinds.OffsetSpec.earliest()) == 0
    assert offset(kinds.OffsetSpec.latest()) == 10
    assert offset(kinds.OffsetSpec.max_timestamp()) == 9
    assert offset(kinds.OffsetSpec.for_timestamp(1_700_000_000_004)) == 4
    assert result(admin.delete_records([TopicPartition(topic, 0, 6)])).low_watermark == 6
    assert offset(kinds.OffsetSpec.earliest()) == 6
    assert [int(message.value()) for message in read_all(bootstrap, topic)] == [6, 7, 8, 9]
    assert refusal(admin.delete_records([TopicPartition(topic, 0, 99)])) == "OFFSET_OUT_OF_RANGE"
    assert offset(kinds.OffsetSpec.latest()) == 10
    assert offset(kinds.OffsetSpec.for_timestamp(1_700_000_000_004)) == 6
    assert result(admin.delete_records([TopicPartition(topic, 0, -1)])).low_watermark == 10
    assert offset(kinds.OffsetSpec.earliest()) == offset(kinds.OffsetSpec.latest()) == 10
    assert read_all(bootstrap, topic) == []


# ── groups ───────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_listed_described_moved_and_deleted(
    bootstrap: str, admin: AdminClient, make_topic: MakeTopic, name: Name, protocol: str
) -> None:
    topic, group = make_topic(2), name("group")
    send(producer(bootstrap), topic, [b"%d" % number for number in range(10)], partition=1)
    with consumer(bootstrap, group, group_protocol=protocol, client_id="someone") as reader:
        reader.subscribe([topic])
        reader.commit(read(reader, 10)[-1], asynchronous=False)
        listed = admin.list_consumer_groups().result(SECONDS_MAX)
        assert not listed.errors
        (mine,) = [each for each in listed.valid if each.group_id == group]
        assert mine.state.name == "STABLE"
        assert mine.type.name == protocol.upper()
        described = result(admin.describe_consumer_groups([group]))
        (member,) = described.members
        assert member.client_id == "someone"
        owned = {(place.topic, place.partition) for place in member.assignment.topic_partitions}
        assert owned == {(topic, 0), (topic, 1)}
        assert refusal(admin.delete_consumer_groups([group])) == "NON_EMPTY_GROUP"
    assert result(admin.describe_consumer_groups([group])).state.name == "EMPTY"

    def offsets() -> dict[int, int]:
        asked = [ConsumerGroupTopicPartitions(group)]
        found = result(admin.list_consumer_group_offsets(asked)).topic_partitions
        return {place.partition: place.offset for place in found}

    assert offsets() == {1: 10}
    moved = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 1, 7)])
    result(admin.alter_consumer_group_offsets([moved]))
    assert offsets() == {1: 7}
    with consumer(bootstrap, group, group_protocol=protocol) as reader:
        reader.subscribe([topic])
        assert [int(message.value()) for message in read(reader, 3)] == [7, 8, 9]
    result(admin.delete_consumer_groups([group]))
    listed = admin.list_consumer_groups().result(SECONDS_MAX)
    assert group not in {each.group_id for each in listed.valid}
    assert refusal(admin.delete_consumer_groups([group])) == "GROUP_ID_NOT_FOUND"


# ── kafka-python ─────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def kp_admin(bootstrap: str) -> Iterator[Any]:
    made = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield made
    made.close()


def test_kafka_python_administers_topics(kp_admin: Any, name: Name) -> None:
    topic = name()
    kp_admin.create_topics(
        {topic: {"num_partitions": 2, "configs": {"retention.ms": "60000"}}},
        wait_for_metadata=True,
    )
    assert topic in kp_admin.list_topics()
    (described,) = kp_admin.describe_topics([topic])
    assert len(described["partitions"]) == 2
    configs = kp_admin.describe_configs([KpResource("TOPIC", topic)])["topic"][topic]
    assert configs["retention.ms"]["value"] == "60000"
    kp_admin.alter_configs([KpResource("TOPIC", topic, {"retention.ms": "120000"})])
    configs = kp_admin.describe_configs([KpResource("TOPIC", topic)])["topic"][topic]
    assert configs["retention.ms"]["value"] == "120000"
    kp_admin.create_partitions({topic: 5})
    (described,) = kp_admin.describe_topics([topic])
    assert len(described["partitions"]) == 5
    kp_admin.delete_topics([topic])
    assert topic not in kp_admin.list_topics()


def test_kafka_python_sees_cluster_groups_and_offsets(
    bootstrap: str, kp_admin: Any, make_topic: MakeTopic, name: Name
) -> None:
    topic, group = make_topic(), name("group")
    send(producer(bootstrap), topic, [b"%d" % number for number in range(5)])
    cluster = kp_admin.describe_cluster()
    assert cluster["cluster_id"]
    assert len(cluster["brokers"]) == 1
    with consumer(bootstrap, group) as reader:
        reader.subscribe([topic])
        reader.commit(read(reader, 3)[-1], asynchronous=False)
        assert group in {each["group_id"] for each in kp_admin.list_groups()}
        described = kp_admin.describe_groups([group])[group]
        assert described["group_state"] == "Stable"
    place = KpPartition(topic, 0)
    assert kp_admin.list_group_offsets({group: None})[group][place].offset == 3
    assert kp_admin.list_partition_offsets({place: -1})[place].offset == 5
    kp_admin.delete_records({place: 2})
    assert kp_admin.list_partition_offsets({place: -2})[place].offset == 2
    kp_admin.delete_groups([group])
    assert group not in {each["group_id"] for each in kp_admin.list_groups()}


# ── aiokafka ─────────────────────────────────────────────────────────────────────────────────
async def test_aiokafka_administers_topics(bootstrap: str, name: Name) -> None:
    topic = name()
    made = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await made.start()
    try:
        await made.create_topics([AioNewTopic(topic, num_partitions=2, replication_factor=1)])
        assert topic in await made.list_topics()
        (described,) = await made.describe_topics([topic])
        assert len(described["partitions"]) == 2
        await made.delete_topics([topic])
        assert topic not in await made.list_topics()
        assert (await made.describe_cluster())["brokers"]
    finally:
        await made.close()
