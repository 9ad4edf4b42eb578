"""Bookmarks of a partition: readers continue where they were, after crashes and clean stops."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.broker.partition.test_stream import batch, stream
from tests.unit.broker.stage import HandClock, Stage, on_stage

from penstock.broker.partition.replay import read_checkpoint
from penstock.log.log import LogConfig
from penstock.model.calls import AppendBatches, Ends, MoveBookmark, OpenShare, ReadBookmark
from penstock.model.errors import InvalidRequest, OffsetOutOfRange
from penstock.model.levels import PUSH
from penstock.model.limits import KIB
from penstock.model.ports import EARLIEST
from penstock.model.topic import Topic


async def send(stage: Stage, topic: Topic, *values: str) -> None:
    sent = batch(*values, at_ms=stage.clock.wall)
    await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[sent]))


async def read(stage: Stage, topic: Topic, reader: str = "r") -> int:
    return await stage.broker.call(ReadBookmark(topic, 0, reader))


async def move(stage: Stage, topic: Topic, offset: int, *, may_move_back: bool = False) -> int:
    return await stage.broker.call(MoveBookmark(topic, 0, "r", offset, may_move_back))


@pytest.mark.parametrize("is_crash", [False, True])
async def test_a_bookmark_survives_a_restart(tmp_path: Path, *, is_crash: bool) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock, is_crash=is_crash) as stage:
        topic = await stream(stage)
        await send(stage, topic, "a", "b", "c")
        assert await read(stage, topic) == 0
        assert await move(stage, topic, 2) == 2
        assert await move(stage, topic, 1) == 2, "it does not move back by itself"
    async with on_stage(tmp_path, clock) as stage:
        assert await read(stage, topic) == 2
        assert await read(stage, topic, "other") == 0
        assert await move(stage, topic, 1, may_move_back=True) == 1
        assert await read(stage, topic) == 1
        assert await move(stage, topic, -1) == 0
        assert await read(stage, topic) == 0


async def test_a_bookmark_is_within_the_log_and_needs_the_level(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage)
        await send(stage, topic, "a")
        for offset in (-2, 2):
            with pytest.raises(OffsetOutOfRange):
                await move(stage, topic, offset)
        with pytest.raises(InvalidRequest, match="printable"):
            await stage.broker.call(MoveBookmark(topic, 0, "", 1))
        stage.broker._context = replace(stage.broker._context, level=lambda: PUSH - 1)
        with pytest.raises(InvalidRequest, match="penstock cluster upgrade"):
            await move(stage, topic, 1)
        assert (await stage.broker.call(Ends(topic, 0))).high_watermark == 1, "nothing was written"


async def test_a_checkpoint_without_bookmarks_is_that_of_the_version_before(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage)
        await send(stage, topic, "a")
        partition = (await stage.broker.partitions.open(topic)).partitions[0]
        await partition.checkpoint()
        data = partition.log.read_checkpoint("cursor")
        assert data is not None
        assert data[0] == 0x96, "an array of six"
        await move(stage, topic, 1)
        await partition.checkpoint()
        found = read_checkpoint(partition.log)
        assert found is not None
        assert found.bookmarks == {"r": 1}


async def test_without_its_event_a_reader_begins_at_the_start_of_the_log(tmp_path: Path) -> None:
    clock = HandClock()
    small = LogConfig(segment_bytes_max=16 * KIB)
    async with on_stage(tmp_path, clock, log=small, is_crash=True) as stage:
        topic = await stream(stage, retention_ms="60000")
        await send(stage, topic, "x" * 2_000)
        await move(stage, topic, 1)
        for _ in range(20):
            await send(stage, topic, "x" * 2_000)
        clock.advance(61_000)
        await send(stage, topic, "young")
        partition = (await stage.broker.partitions.open(topic)).partitions[0]
        assert await partition.clean() > 0
        start = partition.log.start_offset
        assert start > 2
        assert await read(stage, topic) == start, "what it lacks is gone"
        for each in partition.log.folder.glob("cursor.*"):
            each.unlink()
    async with on_stage(tmp_path, clock, log=small) as stage:
        assert await read(stage, topic) == start


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "share", "move", "back", "checkpoint", "crash", "stop"]),
        st.sampled_from("ab"),
        st.integers(0, 20),
    ),
    max_size=30,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
async def test_bookmarks_are_their_model_over_crashes_and_checkpoints(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int]]
) -> None:
    folder, clock = tmp_path_factory.mktemp("bookmarks"), HandClock()
    rounds: list[list[tuple[str, str, int]]] = [[]]
    for each in steps:
        rounds[-1].append(each)
        if each[0] in ("crash", "stop"):
            rounds.append([])
    model: dict[str, int] = {}
    topic: Topic | None = None
    for todo in rounds:
        is_crash = bool(todo) and todo[-1][0] == "crash"
        async with on_stage(folder, clock, is_crash=is_crash) as stage:
            if topic is None:
                topic = await stream(stage)
            partition = (await stage.broker.partitions.open(topic)).partitions[0]
            for step, reader, number in todo:
                if step == "send":
                    await send(stage, topic, "m")
                elif step == "share":
                    await stage.broker.call(OpenShare(topic, 0, reader, start=EARLIEST))
                elif step == "checkpoint":
                    await partition.checkpoint()
                elif step in ("move", "back"):
                    offset = min(number, partition.log.end_offset)
                    is_back = step == "back"
                    known = model.get(reader, -1)
                    model[reader] = offset if is_back else max(offset, known)
                    call = MoveBookmark(topic, 0, reader, offset, is_back)
                    assert await stage.broker.call(call) == model[reader]
            for reader in "ab":
                assert await read(stage, topic, reader) == model.get(reader, 0)
