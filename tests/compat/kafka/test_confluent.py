"""confluent-kafka: records in, records out, whatever their form, size and place."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition
from tests.compat.kafka.confluent import Sent, consumer, producer, read, read_all, send
from tests.compat.kafka.conftest import SECONDS_MAX, MakeTopic

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
Name = Callable[..., str]


def test_key_value_headers_and_time_come_back(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    headers: list[tuple[str, bytes | None]] = [("a", b"1"), ("b", b""), ("a", b"2"), ("n", None)]
    (sent,) = send(
        producer(bootstrap),
        topic,
        ["värde ☃".encode()],
        key=b"\x00key",
        headers=headers,
        timestamp_ms=1_700_000_000_123,
    )
    assert (sent.partition(), sent.offset()) == (0, 0)
    (got,) = read_all(bootstrap, topic)
    assert got.value() == "värde ☃".encode()
    assert got.key() == b"\x00key"
    assert got.headers() == headers
    assert got.timestamp()[1] == 1_700_000_000_123


def test_null_and_empty_are_told_apart(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    made = producer(bootstrap)
    send(made, topic, [None], key=b"gone")
    send(made, topic, [b""], key=b"")
    tombstone, empty = read_all(bootstrap, topic)
    assert (tombstone.key(), tombstone.value()) == (b"gone", None)
    assert (empty.key(), empty.value()) == (b"", b"")


@pytest.mark.parametrize("codec", COMPRESSIONS)
def test_every_compression_is_kept(bootstrap: str, make_topic: MakeTopic, codec: str) -> None:
    topic = make_topic()
    values = [b"%d " % number * 50 for number in range(500)]
    made = producer(bootstrap, compression_type=codec, linger_ms=50)
    send(made, topic, values)
    got = read_all(bootstrap, topic)
    assert [message.value() for message in got] == values
    assert [message.offset() for message in got] == list(range(500))


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement(bootstrap: str, make_topic: MakeTopic, acks: str) -> None:
    topic = make_topic()
    values = [b"%d" % number for number in range(200)]
    send(producer(bootstrap, acks=acks), topic, values)
    with consumer(bootstrap, "reader") as made:
        made.assign([TopicPartition(topic, 0, 0)])
        assert [message.value() for message in read(made, 200)] == values


def test_an_idempotent_producer_keeps_order(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    made = producer(bootstrap, enable_idempotence=True, batch_num_messages=20, linger_ms=0)
    for partition in range(3):
        send(made, topic, [b"%d" % n for n in range(500)], partition=partition)
    for partition in range(3):
        mine = [m for m in read_all(bootstrap, topic, 3) if m.partition() == partition]
        assert [int(m.value()) for m in mine] == list(range(500))
        assert [m.offset() for m in mine] == list(range(500))


def test_a_message_of_a_megabyte(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    value = os.urandom(1_000_000)
    send(producer(bootstrap, message_max_bytes=2_000_000), topic, [value])
    (got,) = read_all(bootstrap, topic)
    assert got.value() == value


def test_a_message_too_large_is_refused_and_the_next_is_taken(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(max_message_bytes=10_000)
    made = producer(bootstrap)
    with pytest.raises(Sent) as refused:
        send(made, topic, [os.urandom(20_000)])
    assert refused.value.error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    send(made, topic, [b"small"])
    assert [message.value() for message in read_all(bootstrap, topic)] == [b"small"]


def test_a_batch_larger_than_the_fetch_limit_is_handed_out_whole(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    values = [os.urandom(200_000) for _ in range(6)]
    send(producer(bootstrap), topic, values)
    limits = {"max_partition_fetch_bytes": 1_024, "fetch_max_bytes": 1_000_000}
    with consumer(bootstrap, "reader", **limits) as made:
        made.assign([TopicPartition(topic, 0, 0)])
        assert [message.value() for message in read(made, 6)] == values


def test_many_partitions_are_all_read(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(60)
    made = producer(bootstrap)
    for partition in range(60):
        made.produce(topic, b"%d" % partition, partition=partition)
    assert made.flush(30) == 0
    got = read_all(bootstrap, topic, 60)
    assert {message.partition(): message.value() for message in got} == {
        number: b"%d" % number for number in range(60)
    }


def test_an_unknown_topic_is_made_by_producing_to_it(bootstrap: str, name: Name) -> None:
    topic = name()
    send(producer(bootstrap), topic, [b"first"])
    assert [message.value() for message in read_all(bootstrap, topic)] == [b"first"]


def test_an_impossible_topic_name_is_refused(bootstrap: str) -> None:
    with pytest.raises(Sent) as refused:
        send(producer(bootstrap, message_timeout_ms=5_000), "not/a topic", [b"x"])
    assert refused.value.error.code() in (
        KafkaError.TOPIC_EXCEPTION,
        KafkaError._UNKNOWN_TOPIC,
    )


def test_an_unknown_partition_is_refused(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    made = producer(bootstrap)
    send(made, topic, [b"known"], partition=1)
    with pytest.raises(KafkaException) as refused:  # known from metadata, and not even sent
        send(made, topic, [b"x"], partition=7)
    assert refused.value.args[0].code() == KafkaError._UNKNOWN_PARTITION


def test_reading_begins_at_an_offset_at_the_end_or_at_a_time(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    made = producer(bootstrap)
    first_ms = int(time.time() * 1_000) - 60_000
    for number in range(20):
        at_ms = first_ms + 1_000 * number
        send(made, topic, [b"%d" % number], timestamp_ms=at_ms)
    with consumer(bootstrap, "reader") as reader:
        reader.assign([TopicPartition(topic, 0, 12)])
        assert [int(m.value()) for m in read(reader, 8)] == list(range(12, 20))

        reader.seek(TopicPartition(topic, 0, 3))
        assert int(read(reader, 1)[0].value()) == 3

        wanted = [TopicPartition(topic, 0, first_ms + 9_500)]
        (found,) = reader.offsets_for_times(wanted, timeout=10)
        assert found.offset == 10
        (late,) = reader.offsets_for_times(
            [TopicPartition(topic, 0, first_ms + 3_600_000)], timeout=10
        )
        assert late.offset == OFFSET_END

        assert reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (0, 20)
    with consumer(bootstrap, "reader", enable_partition_eof=True) as reader:
        reader.assign([TopicPartition(topic, 0, OFFSET_END)])
        # Where the end is, is asked for in the background: what is sent before the answer is
        # before the end.
        reached = reader.poll(SECONDS_MAX)
        assert reached.error().code() == KafkaError._PARTITION_EOF
        send(made, topic, [b"new"])
        assert reader.poll(SECONDS_MAX).value() == b"new"


def test_an_offset_out_of_range_resets_as_asked(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    send(producer(bootstrap), topic, [b"0", b"1"])
    with consumer(bootstrap, "reader", auto_offset_reset="earliest") as reader:
        reader.assign([TopicPartition(topic, 0, 99)])
        assert [m.value() for m in read(reader, 2)] == [b"0", b"1"]
    with consumer(bootstrap, "reader", auto_offset_reset="error") as reader:
        reader.assign([TopicPartition(topic, 0, 99)])
        message = None
        deadline = time.monotonic() + 10
        while message is None and time.monotonic() < deadline:
            message = reader.poll(0.2)
        assert message is not None
        assert message.error().code() == KafkaError._AUTO_OFFSET_RESET


def test_a_waiting_consumer_gets_a_record_at_once(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    made = producer(bootstrap, linger_ms=0)
    with consumer(bootstrap, "reader", fetch_wait_max_ms=20_000) as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        assert reader.poll(1.0) is None
        sent_at = time.monotonic()
        send(made, topic, [b"now"])
        assert read(reader, 1)[0].value() == b"now"
        assert time.monotonic() - sent_at < 10.0, "the fetch slept through an append"


def test_a_compacted_topic_names_the_records_without_a_key(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(cleanup_policy="compact")
    made = producer(bootstrap, linger_ms=500)
    told: dict[bytes, int] = {}

    def report(error: KafkaError | None, message: Any) -> None:
        told[message.value()] = 0 if error is None else error.code()

    for value, key in ((b"0", b"a"), (b"1", None), (b"2", b""), (b"3", None)):
        made.produce(topic, value, key, 0, on_delivery=report)
    assert made.flush(SECONDS_MAX) == 0
    other = KafkaError._INVALID_DIFFERENT_RECORD
    bad = KafkaError.INVALID_RECORD
    assert told == {b"0": other, b"1": bad, b"2": other, b"3": bad}
    assert read_all(bootstrap, topic) == []


@pytest.mark.slow
def test_duplicates_are_gone_20_seconds_after_they_are_due(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    """With the node's own clock, which looks every 15 s."""
    topic = make_topic(cleanup_policy="compact", max_compaction_lag_ms=1_000)
    made = producer(bootstrap)
    send(made, topic, [b"%d" % number for number in range(10)], key=b"k")
    time.sleep(1.1)  # the lag
    send(made, topic, [b"next"], key=b"other")
    began = time.monotonic()
    while len(found := read_all(bootstrap, topic)) > 2:
        assert time.monotonic() - began < 20, f"{len(found)} records are left"
        time.sleep(0.5)
    assert [message.value() for message in found] == [b"9", b"next"]
