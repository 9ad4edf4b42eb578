"""Committed offsets are answered wherever they are asked for while the coordinator of a group moves
from one node to another: a client that is refused then may never ask again."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from tests.unit.broker.coordination.group_stage import SETTINGS, Hosting, Leading, hosting
from tests.unit.broker.stage import HandClock

from penstock.broker.coordination import remote_calls
from penstock.broker.coordination.host import PARTITION_COUNT
from penstock.calls.internal.client import InternalClient
from penstock.calls.internal.connection import NodeEnd
from penstock.calls.internal.listener import InternalListener
from penstock.cursor.coordinator_calls import BeatConsumer, Coordinators, FetchOffsets
from penstock.cursor.groups.consumer import ConsumerHeartbeat
from penstock.cursor.groups.settings import GroupSettings
from penstock.model.errors import DiskFull
from penstock.model.topic import partition_of_group
from penstock.telemetry.clock import SystemClock
from penstock.wire.internal.calls import Caller, CallHandlers
from penstock.wire.kafka.faults import ErrorCode

PARTITION = partition_of_group("g", PARTITION_COUNT)
CLUSTER = "c"


class Pair:
    """Node 1, which clients ask, and node 2, over real sockets."""

    def __init__(self, here: Hosting, there: Hosting, leading: Leading) -> None:
        self.here = here
        self.there = there
        self.leading = leading


@asynccontextmanager
async def pair(folder: Path, settings: GroupSettings = SETTINGS) -> AsyncIterator[Pair]:
    leading = Leading()
    callers: dict[int, Caller] = {}
    for name in ("here", "there"):
        (folder / name).mkdir()
    async with (
        hosting(
            folder / "here",
            settings=settings,
            others=leading.seen_by(1, callers),
        ) as here,
        hosting(folder / "there", others=leading.seen_by(2, callers)) as there,
    ):
        answers = CallHandlers()
        remote_calls.register(answers, groups=there.host, transactions=cast(Coordinators, None))
        listener = InternalListener(answers, NodeEnd("n2", CLUSTER))
        host, _, port = (await listener.start("127.0.0.1", 0)).rpartition(":")
        client = callers[2] = InternalClient(host, int(port), NodeEnd("n1", CLUSTER))
        try:
            yield Pair(here, there, leading)
        finally:
            await client.close()
            await listener.drain(seconds_max=1.0)


async def committed_there(two: Pair) -> None:
    two.there.host.led(PARTITION, True)
    async with asyncio.timeout(10):
        while (code := await two.there.commit("g", 42)) is not ErrorCode.NONE:
            assert code is ErrorCode.COORDINATOR_NOT_AVAILABLE
            await asyncio.sleep(0)


async def test_a_node_that_does_not_coordinate_asks_the_one_that_does(tmp_path: Path) -> None:
    async with pair(tmp_path) as two:
        await committed_there(two)
        two.leading.now(2)
        assert await two.here.committed("g") == 42
        assert await two.here.committed("g", partition=7) == -1
        everything = await two.here.host.call(
            FetchOffsets("g", None, requires_stable=True, member_id=None, member_epoch=-1)
        )
        assert [(each.partition, each.offset) for each in everything.partitions] == [(0, 42)]


async def test_what_the_other_coordinator_says_of_a_group_is_passed_on(tmp_path: Path) -> None:
    async with pair(tmp_path) as two:
        two.there.host.led(PARTITION, True)
        two.leading.now(2)
        assert await two.here.committed("g") == -1  # by then it has read its log
        joined = await two.there.host.call(
            BeatConsumer(
                "g",
                ConsumerHeartbeat(
                    "m", 0, rebalance_ms=60_000, topic_names=("t",), owned=frozenset()
                ),
            )
        )
        assert joined.code is ErrorCode.NONE
        told = await two.here.host.call(
            FetchOffsets("g", None, requires_stable=False, member_id="nobody", member_epoch=3)
        )
        assert told.code is ErrorCode.UNKNOWN_MEMBER_ID


async def test_who_asks_while_nobody_coordinates_is_answered_when_somebody_does(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as two:
        asked = asyncio.create_task(two.here.committed("g"))
        await committed_there(two)
        assert not asked.done()
        two.leading.now(2)
        async with asyncio.timeout(5):
            assert await asked == 42


async def test_who_asks_while_the_log_is_being_read_is_answered_when_it_was(
    tmp_path: Path,
) -> None:
    async with hosting(tmp_path, is_crash=True) as stage:
        assert await stage.commit("g", 42) is ErrorCode.NONE
    async with hosting(tmp_path, others=Leading(1).seen_by(1, {})) as stage:
        stage.host.led(PARTITION, True)
        assert await stage.commit("g", 43) is ErrorCode.COORDINATOR_NOT_AVAILABLE, "not read yet"
        assert await stage.committed("g") == 42


async def test_who_waits_for_the_log_goes_where_the_coordinator_went(tmp_path: Path) -> None:
    async with pair(tmp_path) as two:
        await committed_there(two)
        two.leading.now(1)
        two.here.host.led(PARTITION, True)
        asked = asyncio.create_task(two.here.committed("g"))
        await asyncio.sleep(0)
        two.here.host.led(PARTITION, False)
        two.leading.now(2)
        async with asyncio.timeout(5):
            assert await asked == 42


async def test_it_is_refused_when_nobody_coordinates_for_long(tmp_path: Path) -> None:
    async with pair(tmp_path, GroupSettings(fetch_ms_max=300)) as two:
        begun = time.monotonic()
        assert await two.here.committed("g") is ErrorCode.NOT_COORDINATOR
        assert 0.3 <= time.monotonic() - begun < 5


async def test_a_node_by_itself_answers_once_its_log_can_be_written_again(tmp_path: Path) -> None:
    async with hosting(tmp_path, HandClock(), host_clock=SystemClock()) as stage:
        assert await stage.commit("g", 42) is ErrorCode.NONE
        stage.between.failure = DiskFull("full")
        assert await stage.commit("g", 43) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        stage.between.failure = None
        assert await stage.committed("g") == 42
