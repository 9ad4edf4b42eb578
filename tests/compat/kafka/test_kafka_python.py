"""kafka-python: produce, consume, seek, commit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import MessageSizeTooLargeError
from kafka.structs import OffsetAndMetadata
from tests.compat.kafka.conftest import MakeTopic

SECONDS_MAX = 30.0
Name = Callable[..., str]


@contextmanager
def producer(bootstrap: str, **settings: Any) -> Iterator[Any]:
    made = KafkaProducer(bootstrap_servers=bootstrap, **settings)
    try:
        yield made
    finally:
        made.close(timeout=10)


@contextmanager
def consumer(bootstrap: str, *topics: str, **settings: Any) -> Iterator[Any]:
    given = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **settings}
    made = KafkaConsumer(*topics, bootstrap_servers=bootstrap, **given)
    try:
        yield made
    finally:
        made.close()


def read(made: Any, count: int) -> list[Any]:
    records: list[Any] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(records) < count:
        for batch in made.poll(timeout_ms=200).values():
            records += batch
        assert time.monotonic() < deadline, f"{len(records)} of {count}"
    assert len(records) == count
    return records


def test_key_value_headers_and_time_come_back(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    headers = [("trace", b"abc"), ("empty", b"")]
    with producer(bootstrap) as made:
        sent = made.send(
            topic, value=b"body", key=b"k", headers=headers, timestamp_ms=1_700_000_000_001
        ).get(SECONDS_MAX)
    assert (sent.topic, sent.partition, sent.offset) == (topic, 0, 0)
    with consumer(bootstrap, topic) as reader:
        (got,) = read(reader, 1)
    assert (got.key, got.value, got.timestamp) == (b"k", b"body", 1_700_000_000_001)
    assert list(got.headers) == headers


@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize("codec", [None, "gzip"])
def test_acknowledgements_and_compression(
    bootstrap: str, make_topic: MakeTopic, acks: int | str, codec: str | None
) -> None:
    topic = make_topic()
    settings = {"acks": acks, "compression_type": codec, "enable_idempotence": False}
    with producer(bootstrap, linger_ms=5, **settings) as made:
        for number in range(200):
            made.send(topic, value=b"%d" % number * 20)
        made.flush(SECONDS_MAX)
    with consumer(bootstrap, topic) as reader:
        assert [r.value for r in read(reader, 200)] == [b"%d" % n * 20 for n in range(200)]


def test_an_idempotent_producer_keeps_order(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with producer(bootstrap, enable_idempotence=True, batch_size=500) as made:
        for number in range(500):
            made.send(topic, value=b"%d" % number)
        made.flush(SECONDS_MAX)
    with consumer(bootstrap, topic) as reader:
        assert [int(r.value) for r in read(reader, 500)] == list(range(500))


def test_a_message_too_large_is_refused(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(max_message_bytes=5_000)
    # With idempotence this client takes any refusal for the end of the producer.
    with producer(bootstrap, enable_idempotence=False) as made:
        with pytest.raises(MessageSizeTooLargeError):
            made.send(topic, value=os.urandom(10_000)).get(SECONDS_MAX)
        assert made.send(topic, value=b"small").get(SECONDS_MAX).offset == 0


def test_seek_and_offsets_by_time(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    place = TopicPartition(topic, 0)
    first_ms = int(time.time() * 1_000) - 60_000
    with producer(bootstrap) as made:
        for number in range(10):
            made.send(topic, value=b"%d" % number, timestamp_ms=first_ms + number * 1_000)
            made.flush(SECONDS_MAX)
    with consumer(bootstrap) as reader:
        reader.assign([place])
        assert reader.beginning_offsets([place]) == {place: 0}
        assert reader.end_offsets([place]) == {place: 10}
        found = reader.offsets_for_times({place: first_ms + 4_001})[place]
        assert (found.offset, found.timestamp) == (5, first_ms + 5_000)
        assert reader.offsets_for_times({place: first_ms + 9_000_000})[place] is None
        reader.seek(place, 7)
        assert [r.value for r in read(reader, 3)] == [b"7", b"8", b"9"]
        reader.seek_to_beginning(place)
        assert [int(r.value) for r in read(reader, 10)] == list(range(10))
        reader.seek_to_end(place)
        assert reader.position(place) == 10


def test_a_group_goes_on_from_what_it_committed(
    bootstrap: str, make_topic: MakeTopic, name: Name
) -> None:
    topic, group = make_topic(), name("group")
    with producer(bootstrap) as made:
        for number in range(10):
            made.send(topic, value=b"%d" % number)
        made.flush(SECONDS_MAX)
    place = TopicPartition(topic, 0)
    with consumer(bootstrap, topic, group_id=group, max_poll_records=4) as reader:
        assert [int(r.value) for r in read(reader, 4)] == [0, 1, 2, 3]
        reader.commit({place: OffsetAndMetadata(4, "note", -1)})
        assert reader.committed(place) == 4
    with consumer(bootstrap, topic, group_id=group) as reader:
        assert [int(r.value) for r in read(reader, 6)] == list(range(4, 10))


def test_topics_are_found_by_pattern(bootstrap: str, make_topic: MakeTopic, name: Name) -> None:
    topics = [make_topic(), make_topic()]
    with producer(bootstrap) as made:
        for topic in topics:
            made.send(topic, value=topic.encode())
        made.flush(SECONDS_MAX)
    with consumer(bootstrap, group_id=name("group")) as reader:
        reader.subscribe(pattern="^(" + "|".join(topics) + ")$")
        assert {r.value.decode() for r in read(reader, 2)} == set(topics)
