"""Defaults of topics that an operator changes while the node runs: open logs follow at once."""

import asyncio
from pathlib import Path

import pytest
from tests.unit.broker.stage import HandClock, Stage, on_stage
from tests.unit.broker.storage.test_compaction import compacted_topic, partition_of, put, read
from tests.unit.broker.storage.test_segment_configs import configure, segments

from penstock.broker.context.timers import Interval
from penstock.model.calls import OpenShare
from penstock.model.errors import InvalidRequest
from penstock.model.ports import EARLIEST
from penstock.model.topic import Kind, Topic


async def default(stage: Stage, **configs: str) -> None:
    """Set these defaults and no others, as a change of broker configs does."""
    given = {name.replace("_", "."): value for name, value in configs.items()}
    stage.broker.partitions._context.defaults.replace(given)
    await asyncio.sleep(0)  # a reply to the operator takes longer


async def filled(stage: Stage, topic: Topic, count: int = 6) -> int:
    for number in range(count):
        await put(stage, topic, (f"k{number}", "." * 1_000))
    return segments(stage, topic)


async def test_a_changed_default_reaches_an_open_topic_at_the_next_append(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        plain = await stage.topic("plain", kind=Kind.STREAM)
        own = await stage.topic("own", kind=Kind.STREAM)
        await configure(stage, own, segment_bytes="1000000")
        internal = await stage.topic("__groups", kind=Kind.STREAM)
        for topic in (plain, own, internal):
            assert await filled(stage, topic) == 1
        await default(stage, segment_bytes="2500")
        assert await filled(stage, plain) > 3
        assert await filled(stage, own) == 1, "it has a value of its own"
        assert await filled(stage, internal) == 1, "it belongs to the node"
        before = segments(stage, plain)
        await default(stage)
        assert await filled(stage, plain) <= before + 1


async def test_a_topic_opened_later_has_the_default_as_well(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        await default(stage, segment_bytes="2500")
        assert await filled(stage, await stage.topic("later", kind=Kind.STREAM)) > 2


async def test_retention_follows_the_default(tmp_path: Path) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock) as stage:
        topic = await stage.topic("t", kind=Kind.STREAM)
        await configure(stage, topic, segment_bytes="2500")
        assert await filled(stage, topic) > 2
        clock.advance(60_000)
        partition = partition_of(stage, topic)
        assert await partition.clean() == 0
        await default(stage, retention_ms="1000")
        assert await partition.clean() > 0
        await default(stage, retention_ms="1000", cleanup_policy="")
        await filled(stage, topic)
        clock.advance(60_000)
        assert await partition.clean() == 0, "an empty policy deletes nothing"


async def test_compaction_follows_the_default(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic("t", kind=Kind.STREAM)
        await configure(stage, topic, segment_bytes="200")
        for number in range(20):
            await put(stage, topic, ("k", f"{number}"))
        partition = partition_of(stage, topic)
        assert await partition.compact() == 0
        await default(stage, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
        assert await partition.compact() > 0
        assert len(await read(stage, topic)) < 20
        with pytest.raises(InvalidRequest, match="compacted"):
            await stage.broker.call(OpenShare(topic, 0, "g", start=EARLIEST))


async def test_the_clock_of_compaction_changes_at_once(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:  # an hour between rounds
        topic = await compacted_topic(stage, segment_bytes="200", min_cleanable_dirty_ratio="0.01")
        for number in range(20):
            await put(stage, topic, ("k", f"{number}"))
        stage.broker.partitions.compact_interval.change(10)
        async with asyncio.timeout(10):
            while len(await read(stage, topic)) == 20:
                await asyncio.sleep(0.005)


async def test_an_interval_that_grows_is_waited_for_in_full() -> None:
    interval = Interval(50)
    waiting = asyncio.create_task(interval.wait())
    await asyncio.sleep(0)
    interval.change(3_600_000)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 0.2)
    interval.change(1)
    await asyncio.wait_for(waiting, 5)
