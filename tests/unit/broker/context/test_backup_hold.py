"""What a backup may ask of a broker: nothing crosses between logs for a moment, nothing is dropped
for a while, and all of it ends by itself."""

import asyncio
from pathlib import Path

import pytest
from tests.unit.broker.stage import bodies, claim, message, on_stage
from tests.unit.broker.storage.test_compaction import SMALL, compacted_topic, partition_of, put

from penstock.broker.backup_positions import STAGES, BackupPositions, Stage, stage_of
from penstock.broker.context.context import (
    CROSSINGS_MS_MAX,
    HOLDERS_MAX,
    SEGMENTS_MS_MAX,
    BackupHold,
)
from penstock.model.calls import Ack, Append, Ends, Lease, MoveBookmark, StartMove, Stats
from penstock.model.errors import InvalidRequest
from penstock.model.ports import LeaseRequest, MoveTask
from penstock.model.topic import QueueSettings, Redrive
from penstock.wire.internal.node_calls import HoldRequest, PositionsRequest

HELD_SECONDS = 0.2  # much longer than what is held would take


async def test_crossings_wait_for_everybody_who_holds_them() -> None:
    hold = BackupHold()
    await asyncio.wait_for(hold.crossing(), 1)
    assert hold.hold_crossings("a", CROSSINGS_MS_MAX)
    assert hold.hold_crossings("b", CROSSINGS_MS_MAX)
    waiting = asyncio.create_task(hold.crossing())
    hold.release_crossings("a")
    await asyncio.sleep(0)
    assert not waiting.done()
    hold.release_crossings("b")
    await asyncio.wait_for(waiting, 1)
    hold.release_crossings("b")


async def test_a_holder_that_is_gone_holds_nobody() -> None:
    hold = BackupHold()
    hold.hold_crossings("a", 20)
    await asyncio.wait_for(hold.crossing(), 5)
    assert not hold.holds_crossings("a")


async def test_holders_have_a_bound() -> None:
    hold = BackupHold()
    assert all(hold.hold_crossings(str(n), CROSSINGS_MS_MAX) for n in range(HOLDERS_MAX))
    assert not hold.hold_crossings("one more", CROSSINGS_MS_MAX)
    assert hold.hold_crossings("0", CROSSINGS_MS_MAX), "again is not more"
    for number in range(HOLDERS_MAX):
        hold.release_crossings(str(number))


def test_segments_are_kept_as_long_as_anybody_asked() -> None:
    hold = BackupHold()
    hold.keep_segments(1_000, now_ms=0)
    hold.keep_segments(10, now_ms=0)
    assert hold.keeps_segments(now_ms=999)
    assert not hold.keeps_segments(now_ms=1_000)
    hold.keep_segments(10 * SEGMENTS_MS_MAX, now_ms=0)
    assert not hold.keeps_segments(now_ms=SEGMENTS_MS_MAX)


async def test_a_dead_letter_is_finished_with_only_when_crossings_go_on(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        dead = await stage.topic("dead")
        rule = QueueSettings(redrive=Redrive(dead.arn, attempts_max=1))
        source = await stage.topic("source", settings=rule)
        hold = stage.broker._context.hold
        await stage.broker.call(Append(source, 0, [message("breaks")]))
        first = await stage.broker.call(Lease(source, LeaseRequest(1, 1_000)))
        assert bodies(first) == ["breaks"]
        stage.clock.advance(1_000)
        hold.hold_crossings("backup", CROSSINGS_MS_MAX)
        receive = asyncio.create_task(stage.broker.call(Lease(source, LeaseRequest(1))))
        letters = await stage.broker.call(Lease(dead, LeaseRequest(1, wait_ms=5_000)))
        assert bodies(letters) == ["breaks"]
        assert (await stage.broker.call(Stats(source))).in_flight == 1
        assert not receive.done()
        hold.release_crossings("backup")
        assert not await asyncio.wait_for(receive, 5)
        assert (await stage.broker.call(Stats(source))).in_flight == 0


async def test_a_message_that_is_moved_back_is_finished_with_only_then(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        dead, target = await stage.topic("dead"), await stage.topic("target")
        hold = stage.broker._context.hold
        await stage.broker.call(Append(dead, 0, [message("again")]))
        hold.hold_crossings("backup", CROSSINGS_MS_MAX)
        await stage.broker.call(
            StartMove(MoveTask("task", dead.arn, target.arn, None, "RUNNING", stage.clock.wall))
        )
        got = await stage.broker.call(Lease(target, LeaseRequest(1, wait_ms=5_000)))
        assert bodies(got) == ["again"]
        assert (await stage.broker.call(Stats(dead))).in_flight == 1
        hold.release_crossings("backup")
        async with asyncio.timeout(5):
            while (await stage.broker.call(Stats(dead))).in_flight:
                await asyncio.sleep(0.001)
        await stage.broker.call(Ack(target, 0, [claim(one) for one in got]))


async def test_a_bookmark_after_copied_messages_is_moved_only_then(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic("sns.orders")
        hold = stage.broker._context.hold
        await stage.broker.call(Append(topic, 0, [message("copied")]))
        hold.hold_crossings("backup", CROSSINGS_MS_MAX)
        end = (await stage.broker.call(Ends(topic, 0))).high_watermark
        move = asyncio.create_task(stage.broker.call(MoveBookmark(topic, 0, "sns", 1)))
        await asyncio.wait((move,), timeout=HELD_SECONDS)
        assert (await stage.broker.call(Ends(topic, 0))).high_watermark == end
        assert not move.done()
        hold.release_crossings("backup")
        assert await asyncio.wait_for(move, 5) == 1


async def test_a_stage_is_taken_only_while_crossings_are_held(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic(partitions=2)
        hold = stage.broker._context.hold
        cutting = BackupPositions(stage.broker.partitions, hold, stage.clock)
        await stage.broker.call(Append(topic, 1, [message() for _ in range(3)]))
        asked = PositionsRequest("backup", Stage.OTHERS)
        assert not cutting.take_held(asked).is_held
        assert cutting.hold(HoldRequest("backup", 1_000, 1_000))
        told = cutting.take_held(asked)
        assert [(one.index, one.start_offset, one.end_offset) for one in told.positions] == [
            (0, 0, 0),
            (1, 0, 3),
        ]
        assert all(one.topic_id == topic.topic_id and one.is_settled for one in told.positions)
        assert not cutting.take_held(PositionsRequest("backup", Stage.GROUPS)).positions
        with pytest.raises(InvalidRequest):
            cutting.take_held(PositionsRequest("backup", len(STAGES)))
        assert cutting.hold(HoldRequest("backup", 0, 0))
        assert not cutting.take_held(asked).is_held
        assert stage_of(topic) is Stage.OTHERS


async def test_nothing_is_compacted_while_a_backup_is_made(tmp_path: Path) -> None:
    async with on_stage(tmp_path, log=SMALL, compact_interval_ms=5) as stage:
        stage.broker._context.hold.keep_segments(60_000, now_ms=stage.clock.mono)
        topic = await compacted_topic(stage)
        for number in range(60):
            await put(stage, topic, (f"k{number % 3}", f"{number}" + "." * 80))
        log = partition_of(stage, topic).log
        size_bytes = log.size_bytes
        await asyncio.sleep(0.1)  # many rounds would have been made by now
        assert log.size_bytes == size_bytes
        stage.clock.advance(60_000)
        async with asyncio.timeout(10):
            while log.size_bytes == size_bytes:
                await asyncio.sleep(0.005)
