"""Configs of an open topic that say when its log begins a new segment: the next append follows."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.unit.broker.stage import HandClock, Stage, on_stage
from tests.unit.broker.storage.test_compaction import compacted_topic, partition_of, put, read

from penstock.log.log import LogConfig
from penstock.model.calls import AppendBatches
from penstock.model.topic import Kind, Topic
from penstock.record.batch import encode_batch
from penstock.record.record import encode_record

HOUR_MS = 3_600_000


async def configure(stage: Stage, topic: Topic, **configs: str) -> None:
    given = {name.replace("_", "."): value for name, value in configs.items()}
    await stage.catalog.change(
        topic.account,
        topic.region,
        topic.name,
        lambda t: msgspec.structs.replace(t, configs={**t.configs, **given}),
    )


def segments(stage: Stage, topic: Topic) -> int:
    return len(partition_of(stage, topic).log.segments())


async def test_a_changed_size_holds_for_the_next_append(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic("t", kind=Kind.STREAM)
        for _ in range(20):
            await put(stage, topic, ("k", "." * 1_000))
        assert segments(stage, topic) == 1
        await configure(stage, topic, segment_bytes="3000")
        await put(stage, topic, ("k", "next"))
        assert segments(stage, topic) == 2
        for number in range(6):
            await put(stage, topic, (f"k{number}", "." * 1_000))
        assert segments(stage, topic) == 4
        await configure(stage, topic, segment_bytes="1000000")
        for number in range(6):
            await put(stage, topic, (f"k{number}", "." * 1_000))
        assert segments(stage, topic) == 4


async def test_a_changed_age_holds_for_the_next_append(tmp_path: Path) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock) as stage:
        topic = await stage.topic("t", kind=Kind.STREAM)
        await put(stage, topic, ("k", "1"))
        clock.advance(HOUR_MS)
        await put(stage, topic, ("k", "2"))
        assert segments(stage, topic) == 1
        await configure(stage, topic, segment_ms=str(HOUR_MS))
        await put(stage, topic, ("k", "3"))
        assert segments(stage, topic) == 2


async def test_a_topic_never_exceeds_the_segments_of_its_node(tmp_path: Path) -> None:
    async with on_stage(tmp_path, log=LogConfig(segment_bytes_max=2_500)) as stage:
        topic = await stage.topic("t", kind=Kind.STREAM)
        await configure(stage, topic, segment_bytes="1000000")
        for _ in range(6):
            await put(stage, topic, ("k", "." * 1_000))
        assert segments(stage, topic) == 3


@pytest.mark.parametrize(("policy", "expected"), [("compact", 2), ("delete", 1)])
async def test_the_longest_compaction_lag_closes_a_segment_of_a_compacted_topic(
    tmp_path: Path, policy: str, expected: int
) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock) as stage:
        topic = await compacted_topic(stage, policy)
        await put(stage, topic, ("k", "1"), ("k", "2"))
        await configure(stage, topic, max_compaction_lag_ms="1000")
        clock.advance(999)
        await put(stage, topic, ("k", "3"))
        assert segments(stage, topic) == 1
        clock.advance(1)
        await put(stage, topic, ("k", "4"))
        assert segments(stage, topic) == expected


async def test_duplicates_older_than_the_lag_go_soon_after_the_next_append(tmp_path: Path) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock, compact_interval_ms=10) as stage:
        topic = await compacted_topic(stage, max_compaction_lag_ms="1000")
        for value in "123":
            await put(stage, topic, ("k", value))
        clock.advance(1_001)
        await put(stage, topic, ("other", "4"))
        async with asyncio.timeout(10):
            while len(await read(stage, topic)) > 2:
                await asyncio.sleep(0.005)
        assert await read(stage, topic) == [(2, "k", "3"), (3, "other", "4")]


async def test_compaction_has_a_clock_of_its_own(tmp_path: Path) -> None:
    async with on_stage(tmp_path, clean_interval_ms=5) as stage:
        topic = await compacted_topic(stage, segment_bytes="200", min_cleanable_dirty_ratio="0.01")
        for number in range(20):
            await put(stage, topic, ("k", f"{number}"))
        await asyncio.sleep(0.1)  # many rounds of retention
        assert len(await read(stage, topic)) == 20


async def test_keyless_records_that_are_stored_are_dropped_by_compaction(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await compacted_topic(stage, segment_bytes="400", min_cleanable_dirty_ratio="0.01")
        for number in range(12):
            await stage.broker.call(
                AppendBatches(topic, 0, acks=-1, batches=[keyless(f"{number}")])
            )
            await put(stage, topic, (f"k{number}", "kept"))
        before = await read(stage, topic)
        assert [key for _, key, _ in before].count("") == 12
        partition = partition_of(stage, topic)
        active = partition.log.segments()[-1].base_offset
        assert await partition.compact() > 0
        assert await read(stage, topic) == [row for row in before if row[1] or row[0] >= active]


def keyless(value: str) -> bytes:
    record = encode_record(offset_delta=0, timestamp_delta=0, key=None, value=value.encode())
    return encode_batch([record], base_offset=0, leader_epoch=-1, base_timestamp=1, max_timestamp=1)
