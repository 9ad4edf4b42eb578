"""A graceful restart under Kafka clients: records, offsets, groups, configs and ids are kept, and
clients that were connected go on by themselves."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.compat.kafka.confluent import consumer, kinds, producer, read, read_all, send
from tests.compat.kafka.conftest import create_topic
from tests.harness.server import Server


def test_records_offsets_and_producer_state_are_kept(own: Server) -> None:
    admin = AdminClient({"bootstrap.servers": own.kafka})
    create_topic(admin, "kept", 2)
    made = producer(own.kafka, enable_idempotence=True, compression_type="lz4")
    for partition in range(2):
        send(made, "kept", [b"%d" % n for n in range(100)], partition=partition)
    own.restart()
    for partition in range(2):
        done = send(made, "kept", [b"%d" % n for n in range(100, 200)], partition=partition)
        assert [message.offset() for message in done] == list(range(100, 200))
    for partition in range(2):
        mine = [m for m in read_all(own.kafka, "kept", 2) if m.partition() == partition]
        assert [int(m.value()) for m in mine] == list(range(200))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_committed_offsets_are_kept(own: Server, protocol: str) -> None:
    create_topic(AdminClient({"bootstrap.servers": own.kafka}), "topic")
    send(producer(own.kafka), "topic", [b"%d" % n for n in range(10)])
    with consumer(own.kafka, "group", group_protocol=protocol) as reader:
        reader.subscribe(["topic"])
        reader.commit(read(reader, 4)[-1], asynchronous=False)
    own.restart()
    with consumer(own.kafka, "group", group_protocol=protocol) as reader:
        (place,) = reader.committed([TopicPartition("topic", 0)], timeout=20)
        assert place.offset == 4
        reader.subscribe(["topic"])
        assert [int(message.value()) for message in read(reader, 6)] == list(range(4, 10))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_living_member_goes_on_reading(own: Server, protocol: str) -> None:
    create_topic(AdminClient({"bootstrap.servers": own.kafka}), "topic", 3)
    made = producer(own.kafka)
    with consumer(own.kafka, "group", group_protocol=protocol) as reader:
        reader.subscribe(["topic"])
        send(made, "topic", [b"before"])
        reader.commit(read(reader, 1)[0], asynchronous=False)
        own.restart()
        send(made, "topic", [b"after"])
        messages = [message.value() for message in read(reader, 1, seconds=60)]
        assert messages == [b"after"]


def test_topics_their_ids_and_configs_are_kept(own: Server) -> None:
    admin = AdminClient({"bootstrap.servers": own.kafka})
    create_topic(admin, "settled", 3, retention_ms=123_000, max_message_bytes=50_000)
    cluster_id = admin.describe_cluster().result(20).cluster_id

    def seen() -> tuple[str, int, str, str]:
        (topic,) = admin.describe_topics(TopicCollection(["settled"])).values()
        resource = kinds.ConfigResource(kinds.ResourceType.TOPIC, "settled")
        (configs,) = admin.describe_configs([resource]).values()
        found = topic.result(20)
        values = configs.result(20)
        return (
            str(found.topic_id),
            len(found.partitions),
            values["retention.ms"].value,
            values["max.message.bytes"].value,
        )

    before = seen()
    assert before[1:] == (3, "123000", "50000")
    own.restart()
    assert seen() == before
    assert admin.describe_cluster().result(20).cluster_id == cluster_id


def test_a_deleted_topic_stays_deleted(own: Server) -> None:
    admin = AdminClient({"bootstrap.servers": own.kafka})
    create_topic(admin, "gone")
    send(producer(own.kafka), "gone", [b"x"])
    (future,) = admin.delete_topics(["gone"]).values()
    future.result(20)
    own.restart()
    assert "gone" not in admin.list_topics(timeout=20).topics


def test_deleted_records_stay_deleted(own: Server) -> None:
    admin = AdminClient({"bootstrap.servers": own.kafka})
    create_topic(admin, "cut")
    send(producer(own.kafka), "cut", [b"%d" % n for n in range(10)])
    (future,) = admin.delete_records([TopicPartition("cut", 0, 6)]).values()
    future.result(20)
    own.restart()
    assert [int(message.value()) for message in read_all(own.kafka, "cut")] == [6, 7, 8, 9]
