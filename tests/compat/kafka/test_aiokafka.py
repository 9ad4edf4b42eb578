"""aiokafka: produce, consume, groups, on one event loop."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import MessageSizeTooLargeError
from tests.compat.kafka.conftest import MakeTopic

SECONDS_MAX = 30.0
Name = Callable[..., str]


@asynccontextmanager
async def producer(bootstrap: str, **settings: Any) -> AsyncIterator[Any]:
    made = AIOKafkaProducer(bootstrap_servers=bootstrap, **settings)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


@asynccontextmanager
async def consumer(bootstrap: str, *topics: str, **settings: Any) -> AsyncIterator[Any]:
    given = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **settings}
    made = AIOKafkaConsumer(*topics, bootstrap_servers=bootstrap, **given)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def read(made: Any, count: int) -> list[Any]:
    async with asyncio.timeout(SECONDS_MAX):
        return [await made.getone() for _ in range(count)]


async def test_key_value_headers_and_time_come_back(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    headers = [("trace", b"abc"), ("empty", b"")]
    async with producer(bootstrap) as made:
        sent = await made.send_and_wait(
            topic, b"body", key=b"k", headers=headers, timestamp_ms=1_700_000_000_001
        )
    assert (sent.partition, sent.offset) == (0, 0)
    async with consumer(bootstrap, topic) as reader:
        (got,) = await read(reader, 1)
    assert (got.key, got.value, got.timestamp) == (b"k", b"body", 1_700_000_000_001)
    assert list(got.headers) == headers


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_every_compression_is_kept(
    bootstrap: str, make_topic: MakeTopic, codec: str | None
) -> None:
    topic = make_topic()
    values = [b"%d " % number * 30 for number in range(300)]
    async with producer(bootstrap, compression_type=codec, linger_ms=20) as made:
        await asyncio.gather(*[await made.send(topic, value) for value in values])
    async with consumer(bootstrap, topic) as reader:
        assert [record.value for record in await read(reader, 300)] == values


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_every_kind_of_acknowledgement(
    bootstrap: str, make_topic: MakeTopic, acks: int | str
) -> None:
    topic = make_topic()
    async with producer(bootstrap, acks=acks) as made:
        for number in range(100):
            await made.send(topic, b"%d" % number)
        await made.flush()
    async with consumer(bootstrap, topic) as reader:
        assert [int(r.value) for r in await read(reader, 100)] == list(range(100))


async def test_an_idempotent_producer_keeps_order(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    async with producer(bootstrap, enable_idempotence=True, max_batch_size=500) as made:
        await asyncio.gather(*[await made.send(topic, b"%d" % n) for n in range(500)])
    async with consumer(bootstrap, topic) as reader:
        assert [int(r.value) for r in await read(reader, 500)] == list(range(500))


async def test_large_messages(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    value = os.urandom(1_000_000)
    async with producer(bootstrap, max_request_size=4_000_000) as made:
        await made.send_and_wait(topic, value)
        with pytest.raises(MessageSizeTooLargeError):
            await made.send_and_wait(topic, os.urandom(2_000_000))
    async with consumer(bootstrap, topic, max_partition_fetch_bytes=10_000) as reader:
        assert (await read(reader, 1))[0].value == value


async def test_seek_end_and_time(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    place = TopicPartition(topic, 0)
    first_ms = int(time.time() * 1_000) - 60_000
    async with producer(bootstrap) as made:
        for number in range(10):
            await made.send_and_wait(topic, b"%d" % number, timestamp_ms=first_ms + number * 1_000)
    async with consumer(bootstrap) as reader:
        reader.assign([place])
        assert await reader.end_offsets([place]) == {place: 10}
        assert await reader.beginning_offsets([place]) == {place: 0}
        found = (await reader.offsets_for_times({place: first_ms + 4_001}))[place]
        assert (found.offset, found.timestamp) == (5, first_ms + 5_000)
        reader.seek(place, 8)
        assert [r.value for r in await read(reader, 2)] == [b"8", b"9"]
        await reader.seek_to_beginning(place)
        assert [int(r.value) for r in await read(reader, 10)] == list(range(10))


async def test_two_members_share_the_partitions_and_one_takes_over(
    bootstrap: str, make_topic: MakeTopic, name: Name
) -> None:
    topic, group = make_topic(4), name("group")
    settings: dict[str, Any] = {
        "group_id": group,
        "heartbeat_interval_ms": 300,
        "session_timeout_ms": 10_000,
        "metadata_max_age_ms": 1_000,
    }
    async with consumer(bootstrap, topic, **settings) as first:
        async with consumer(bootstrap, topic, **settings) as second:
            async with asyncio.timeout(SECONDS_MAX):
                while len(first.assignment()) != 2 or len(second.assignment()) != 2:
                    await first.getmany(timeout_ms=100)
                    await second.getmany(timeout_ms=100)
            assert not first.assignment() & second.assignment()
        async with asyncio.timeout(SECONDS_MAX):
            while len(first.assignment()) != 4:
                await first.getmany(timeout_ms=100)


async def test_a_group_goes_on_from_what_it_committed(
    bootstrap: str, make_topic: MakeTopic, name: Name
) -> None:
    topic, group = make_topic(), name("group")
    async with producer(bootstrap) as made:
        for number in range(10):
            await made.send_and_wait(topic, b"%d" % number)
    async with consumer(bootstrap, topic, group_id=group) as reader:
        await read(reader, 4)
        await reader.commit({TopicPartition(topic, 0): 4})
    async with consumer(bootstrap, topic, group_id=group) as reader:
        assert [int(r.value) for r in await read(reader, 6)] == list(range(4, 10))
