"""Shares with a filter, which pass over unwanted records, and shares of a range."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.broker.partition.test_stream import batch, stream
from tests.unit.broker.queues.test_ordered_shares import acquire, keyed
from tests.unit.broker.queues.test_shares import claims, receive_all, values
from tests.unit.broker.stage import HandClock, Stage, message, on_stage

from penstock.broker.queues import acquisition
from penstock.log.log import LogConfig
from penstock.model.calls import (
    Append,
    AppendBatches,
    DeleteRecords,
    Ends,
    Finish,
    OpenShare,
    RestartShare,
    ShareLag,
    ShareStart,
)
from penstock.model.errors import InvalidRequest, OffsetOutOfRange
from penstock.model.limits import UNWANTED_MAX
from penstock.model.message import Record
from penstock.model.ports import EARLIEST
from penstock.model.topic import Topic


def use_filter(stage: Stage, share: Topic, wants: Callable[[Record], bool] | None) -> None:
    hooks, share_id = stage.broker.share_hooks, share.topic_id
    hooks.find_filter = lambda topic, _: wants if topic.topic_id == share_id else None


def is_red(record: Record) -> bool:
    return record.message.body.startswith(b"red")


async def open_share(
    stage: Stage,
    source: Topic,
    group: str = "g",
    *,
    is_ordered: bool = False,
    until: tuple[int, ...] = (),
) -> Topic:
    call = OpenShare(source, 0, group, start=EARLIEST, is_ordered=is_ordered, until=until)
    return await stage.broker.call(call)


async def send(stage: Stage, topic: Topic, *values: str) -> None:
    sent = keyed(*[(None, value) for value in values])
    await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[sent]))


async def end_of(stage: Stage, topic: Topic) -> int:
    return (await stage.broker.call(Ends(topic, 0))).high_watermark


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("is_queue", [False, True])
async def test_a_share_passes_over_what_it_does_not_want(
    tmp_path: Path, *, is_ordered: bool, is_queue: bool
) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock, is_crash=True) as stage:
        topic = await (stage.topic() if is_queue else stream(stage))
        reader = await open_share(stage, topic, is_ordered=is_ordered)
        other = await open_share(stage, topic, "other", is_ordered=is_ordered)
        use_filter(stage, reader, is_red)

        async def send_all(*bodies: str) -> None:
            if is_queue:
                await stage.broker.call(Append(topic, 0, [message(body) for body in bodies]))
            else:
                await send(stage, topic, *bodies)

        await send_all("blue 1", "red 1", "blue 2", "blue 3", "red 2", "blue 4")
        first = await acquire(stage, reader, 1)
        assert values(first) == ["red 1"]
        assert values(await acquire(stage, reader)) == ["red 2"]
        assert (await acquire(stage, reader)).picks == []
        assert await stage.broker.call(ShareLag(reader, 0)) == 2
        assert len((await acquire(stage, other)).picks) == 6, "another share wants all"
        await stage.broker.call(Finish(reader, 0, claims(first)))
        use_filter(stage, reader, None)
        await send_all("blue 5")
        assert values(await acquire(stage, reader)) == ["blue 5"], "from the next record on"
    async with on_stage(tmp_path, clock) as stage:
        use_filter(stage, reader, is_red)
        assert (await acquire(stage, reader)).picks == []
        assert await stage.broker.call(ShareLag(reader, 0)) == 2
        clock.advance(30_000)
        assert values(await acquire(stage, reader)) == ["red 2", "blue 5"], "they were delivered"


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_the_cursor_moves_past_many_unwanted_records(
    tmp_path: Path, *, is_ordered: bool
) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock, is_crash=True) as stage:
        topic = await stream(stage)
        reader = await open_share(stage, topic, is_ordered=is_ordered)
        use_filter(stage, reader, is_red)
        for _ in range(7):
            await send(stage, topic, *["blue"] * 500)
        assert (await acquire(stage, reader)).picks == []
        assert await stage.broker.call(ShareLag(reader, 0)) == 0
        end = await end_of(stage, topic)
        assert await stage.broker.call(ShareStart(reader, 0)) > end - UNWANTED_MAX - 500
        assert end - 3_500 < 10, "few events were written"
        start = await stage.broker.call(ShareStart(reader, 0))
    async with on_stage(tmp_path, clock) as stage:
        assert await stage.broker.call(ShareStart(reader, 0)) == start
        await send(stage, topic, "red")
        assert len(await receive_all(stage, reader)) < UNWANTED_MAX + 502, "unfiltered now"


async def test_a_long_search_ends_and_calls_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acquisition, "JUDGING_TURNS_MAX", 3)
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage)
        reader = await open_share(stage, topic)
        use_filter(stage, reader, is_red)
        for _ in range(4):
            await send(stage, topic, *["blue"] * 500)
        await send(stage, topic, "red")
        woken = asyncio.Event()
        await stage.broker.call(ShareStart(reader, 0))  # opens it
        stage.broker.on_available(reader, 0, woken.set)
        calls = 0
        while not (got := await acquire(stage, reader)).picks:
            await asyncio.wait_for(woken.wait(), 10)
            woken.clear()
            calls += 1
        assert values(got) == ["red"]
        assert calls > 2


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_unwanted_records_that_are_deleted_are_counted_once(
    tmp_path: Path, *, is_ordered: bool
) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock, is_crash=True) as stage:
        topic = await stream(stage)
        reader = await open_share(stage, topic, is_ordered=is_ordered)
        use_filter(stage, reader, is_red)
        await send(stage, topic, *["blue", "blue", "red", "blue"] * 10)
        assert len((await acquire(stage, reader, 3)).picks) == 3
        base = (await stage.broker.call(Ends(topic, 0))).start_offset
        first = await stage.broker.call(ShareStart(reader, 0))
        assert first > base
        await stage.broker.call(DeleteRecords(topic, 0, first + 16))  # into what was read ahead
        got = await acquire(stage, reader)
        assert len(got.picks) == 6
        assert await stage.broker.call(ShareLag(reader, 0)) == 6
    async with on_stage(tmp_path, clock) as stage:
        use_filter(stage, reader, is_red)
        assert (await acquire(stage, reader)).picks == []
        assert await stage.broker.call(ShareLag(reader, 0)) == 6


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("is_crash", [False, True])
async def test_a_range_ends_in_the_middle_of_a_batch_and_says_when_it_is_finished(
    tmp_path: Path, *, is_ordered: bool, is_crash: bool
) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock, is_crash=is_crash) as stage:
        topic = await stream(stage)
        await send(stage, topic, "a", "b")
        await send(stage, topic, "c", "d", "e")
        reader = await open_share(stage, topic, is_ordered=is_ordered, until=(4,))
        await send(stage, topic, "f")
        assert await stage.broker.call(ShareLag(reader, 0)) == 4
        await stage.broker.call(RestartShare(reader, 0, 1))
        assert await stage.broker.call(ShareLag(reader, 0)) == 3
        first = await acquire(stage, reader, 1)
        assert values(first) == ["b"]
        assert await stage.broker.call(Finish(reader, 0, claims(first))) == (None,)
        rest = await acquire(stage, reader)
        assert values(rest) == ["c", "d"]
        await send(stage, topic, "g")
    async with on_stage(tmp_path, clock) as stage:
        await send(stage, topic, "h")
        assert (await acquire(stage, reader)).picks == []
        assert await stage.broker.call(ShareLag(reader, 0)) == 2, "leased, so not finished"
        assert await stage.broker.call(Finish(reader, 0, claims(rest))) == (None, None)
        assert await stage.broker.call(ShareLag(reader, 0)) == 0
        assert (await acquire(stage, reader)).picks == []


async def test_a_filtered_range_is_finished_when_the_rest_is_unwanted(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage)
        await send(stage, topic, "red", "blue", "blue", "red")
        reader = await open_share(stage, topic, until=(3,))
        use_filter(stage, reader, is_red)
        got = await acquire(stage, reader)
        assert values(got) == ["red"]
        await stage.broker.call(Finish(reader, 0, claims(got)))
        assert (await acquire(stage, reader)).picks == []
        assert await stage.broker.call(ShareLag(reader, 0)) == 0


async def test_retention_may_take_a_whole_range(tmp_path: Path) -> None:
    clock = HandClock()
    small = LogConfig(segment_bytes_max=16 * 1_024)
    async with on_stage(tmp_path, clock, log=small, is_crash=True) as stage:
        topic = await stream(stage, retention_ms="60000")
        sent = [batch("x" * 2_000, at_ms=clock.wall)]
        for _ in range(20):
            await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=sent))
        reader = await open_share(stage, topic, until=(3,))
        assert await stage.broker.call(ShareLag(reader, 0)) == 3
        clock.advance(61_000)
        young = [batch("young", at_ms=clock.wall)]
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=young))
        partition = (await stage.broker.partitions.open(topic)).partitions[0]
        assert await partition.clean() > 0
        assert await stage.broker.call(ShareLag(reader, 0)) == 0
        assert (await acquire(stage, reader)).picks == []
        late = await open_share(stage, topic, "late", until=(3,))
        assert await stage.broker.call(ShareLag(late, 0)) == 0
    async with on_stage(tmp_path, clock, log=small) as stage:
        for each in (reader, late):
            assert await stage.broker.call(ShareLag(each, 0)) == 0
            assert (await acquire(stage, each)).picks == []


async def test_a_range_needs_an_end_in_each_partition_within_the_log(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage)
        await send(stage, topic, "a")
        for until in ((1, 1), (-1,)):
            with pytest.raises(InvalidRequest, match="end offset for each partition"):
                await open_share(stage, topic, until=until)
        with pytest.raises(OffsetOutOfRange):
            await open_share(stage, topic, until=(2,))
        assert stage.broker.shares.find_share(topic, "g") is None
        await open_share(stage, topic, until=(1,))
