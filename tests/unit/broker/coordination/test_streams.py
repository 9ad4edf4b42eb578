"""Streams groups at their host: what a restart of the node finds, and what it needs."""

import asyncio
import threading
from pathlib import Path

import pytest
from tests.unit.broker.coordination.group_stage import hosting
from tests.unit.cursor.groups.streams.streams_topologies import ALL_TASKS, COUNTING

from penstock.broker.coordination import groups
from penstock.broker.coordination.groups import GroupHost
from penstock.cursor.coordinator_calls import BeatStreams, DescribeGroup, ListGroups
from penstock.cursor.groups.streams import task_assignor
from penstock.cursor.groups.streams.streams_requests import (
    StatusCode,
    StreamsHeartbeat,
    StreamsReply,
)
from penstock.cursor.groups.streams.task_assignor import Assignment, AssignmentInput
from penstock.model.levels import STREAMS_GROUPS
from penstock.wire.kafka.faults import ErrorCode

NOTHING: frozenset[tuple[str, int]] = frozenset()
JOIN = StreamsHeartbeat(
    "m",
    0,
    rebalance_ms=60_000,
    topology=COUNTING,
    active=NOTHING,
    standby=NOTHING,
    warmup=NOTHING,
    process_id="p",
)


async def test_a_group_and_its_members_outlive_a_restart(tmp_path: Path) -> None:
    async with hosting(tmp_path) as before:
        joined = await before.host.call(BeatStreams("g", JOIN))
        assert (joined.code, joined.member_epoch) == (ErrorCode.NONE, 2)
        assert [each.code for each in joined.statuses] == [StatusCode.MISSING_SOURCE_TOPICS]
        told = await before.host.call(DescribeGroup("g"))
    async with hosting(tmp_path) as after:
        assert await after.host.call(DescribeGroup("g")) == told
        again = await after.host.call(BeatStreams("g", StreamsHeartbeat("m", 2)))
        assert (again.code, again.member_epoch, again.assignment) == (ErrorCode.NONE, 2, None)
        code, listed = await after.host.call(ListGroups(states=(), kinds=("streams",)))
        assert (code, [each.group_id for each in listed]) == (ErrorCode.NONE, ["g"])


async def test_nothing_is_written_below_its_feature_level(tmp_path: Path) -> None:
    async with hosting(tmp_path) as one:
        level = [STREAMS_GROUPS - 1]
        one.host._level = lambda: level[0]
        refused = await one.host.call(BeatStreams("g", JOIN))
        assert refused.code is ErrorCode.UNSUPPORTED_VERSION
        assert not one.between.appended, "an older node could not read it"
        level[0] = STREAMS_GROUPS
        assert (await one.host.call(BeatStreams("g", JOIN))).code is ErrorCode.NONE
        assert one.between.appended


async def test_a_thread_assigns_the_tasks_of_a_large_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_assignor, "STREAMS_TASKS_AT_ONCE_MAX", 0)
    async with hosting(tmp_path) as one:
        for name in ("lines", "by-word", "counts"):
            await one.stage.topic(name, partitions=3)
        joined = await one.host.call(BeatStreams("g", JOIN))
        assert joined.assignment == (NOTHING, NOTHING)
        told = await until_assigned(one.host, joined.member_epoch)
        assert (told.member_epoch, told.assignment) == (2, (ALL_TASKS, NOTHING))


async def test_one_thread_assigns_one_group_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_assignor, "STREAMS_TASKS_AT_ONCE_MAX", 0)
    begun: list[str] = []
    has_begun, may_end = threading.Event(), threading.Event()

    def held(work: AssignmentInput) -> Assignment:
        begun.append(work.group_id)
        has_begun.set()
        assert may_end.wait(10)
        return task_assignor.compute_assignment(work)

    monkeypatch.setattr(groups, "compute_assignment", held)
    async with hosting(tmp_path) as one:
        for name in ("lines", "by-word", "counts"):
            await one.stage.topic(name, partitions=3)
        epochs = {
            group: (await one.host.call(BeatStreams(group, JOIN))).member_epoch
            for group in ("g", "h")
        }
        assert await asyncio.to_thread(has_begun.wait, 10)
        for _ in range(10):
            for group, epoch in epochs.items():
                reply = await one.host.call(BeatStreams(group, StreamsHeartbeat("m", epoch)))
                assert [each.code for each in reply.statuses] == [StatusCode.ASSIGNMENT_DELAYED]
        assert begun == ["g"]
        may_end.set()
        for group, epoch in epochs.items():
            told = await until_assigned(one.host, epoch, group)
            assert told.assignment == (ALL_TASKS, NOTHING)
        assert begun == ["g", "h"]


async def until_assigned(host: GroupHost, epoch: int, group: str = "g") -> StreamsReply:
    async with asyncio.timeout(10):
        while True:
            reply = await host.call(BeatStreams(group, StreamsHeartbeat("m", epoch)))
            assert reply.code is ErrorCode.NONE
            if reply.member_epoch > epoch:
                return reply
            await asyncio.sleep(0)
