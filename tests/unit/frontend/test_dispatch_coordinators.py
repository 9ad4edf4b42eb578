"""Coordinators that hang take nobody else with them: clients are told to look for another, and are
served again when these are back. The coordinators are real, on streams in memory; what is injected
is only that they do not answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from tests.unit.frontend.memory import MemoryClock
from tests.unit.frontend_kafka.rig import Rig
from tests.unit.frontend_kafka_groups.stage import GroupRig, groups

from penstock.cursor.group.classic_state import JoinRequest, SyncRequest
from penstock.cursor.group.codes import Code
from penstock.cursor.group.consumer import ConsumerHeartbeat
from penstock.cursor.group.offsets import CommitRequest
from penstock.cursor.group.share import ShareHeartbeat
from penstock.cursor.group.streams_requests import StreamsHeartbeat
from penstock.frontend.breaker import FAILURES_MAX, OPEN_MS_MIN, BreakerState
from penstock.frontend.bulkhead import Bulkhead
from penstock.frontend.callees import Callees
from penstock.frontend.dispatch_coordinators import (
    DispatchedGroups,
    DispatchedProducerIds,
    DispatchedTransactions,
)
from penstock.frontend.kafka.group_calls import GroupCalls
from penstock.frontend.kafka.transaction_calls import TransactionCalls
from penstock.wire.kafka.apis import APIS
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.init_producer_id import InitProducerIdRequest

SOON_S = 10.0  # for what must not wait for a callee that hangs
JOIN = JoinRequest("", "m-1", 10_000, 60_000, "consumer", (("range", b""),), confirms_id=False)
COMMIT = CommitRequest(member_id="", generation=-1, partitions=())


class Stuck:
    """Whatever is asked of it waits at the gate, and then goes on to the real one if there is
    one."""

    def __init__(self, behind: object = None, *, is_open: bool = False) -> None:
        self._behind = behind
        self.gate = asyncio.Event()
        if is_open:
            self.gate.set()

    def __getattr__(self, name: str) -> Any:
        async def ask(*arguments: Any, **named: Any) -> Any:
            await self.gate.wait()
            return await getattr(self._behind, name)(*arguments, **named)

        return ask


class World:
    def __init__(self, rig: GroupRig, **callees: Any) -> None:
        self.clock = MemoryClock()
        self.callees = Callees(self.clock, **callees)
        self.host = Stuck(rig.host, is_open=True)
        self.groups = DispatchedGroups(cast(GroupCalls, self.host), self.callees.groups("n"))

    @property
    def callee(self) -> Bulkhead:
        return self.callees.groups("n")

    async def commit(self) -> Code:
        async with asyncio.timeout(SOON_S):
            return (await self.groups.commit("g", COMMIT)).code

    async def fail(self) -> None:
        """Until nobody waits for it any more."""
        self.host.gate.clear()
        for _ in range(FAILURES_MAX):
            assert await self.commit() is Code.COORDINATOR_NOT_AVAILABLE
        assert self.callee.state() is BreakerState.OPEN


@asynccontextmanager
async def world_of(**callees: int) -> AsyncIterator[World]:
    async with groups() as rig:
        yield World(rig, **callees)


async def test_a_coordinator_that_hangs_is_given_up_and_served_again_when_it_is_back() -> None:
    async with world_of(backend_deadline_ms=40) as world:
        assert await world.commit() is Code.NONE
        await world.fail()
        asked = asyncio.create_task(world.groups.commit("g", COMMIT))
        await asyncio.sleep(0)
        assert asked.done(), "nothing waits for it, not even until the next turn"
        assert (await asked).code is Code.COORDINATOR_NOT_AVAILABLE
        assert world.callees.transactions("n").state() is BreakerState.CLOSED
        assert world.callees.backend("n").state() is BreakerState.CLOSED
        world.host.gate.set()
        world.clock.now_ms += OPEN_MS_MIN
        assert await world.commit() is Code.NONE
        assert world.callee.state() is BreakerState.CLOSED
        assert world.callee.in_use == 0


async def test_a_coordinator_that_is_slow_fills_its_own_compartment_only() -> None:
    async with world_of(coordinator_calls_max=3) as world:
        world.host.gate.clear()
        held = [asyncio.create_task(world.groups.commit("g", COMMIT)) for _ in range(3)]
        await asyncio.sleep(0)
        assert await world.commit() is Code.COORDINATOR_NOT_AVAILABLE
        assert (world.callee.in_use, world.callee.refused_count) == (3, 1)
        assert world.callee.state() is BreakerState.CLOSED, "being full is no failure"
        world.host.gate.set()
        assert [reply.code for reply in await asyncio.gather(*held)] == [Code.NONE] * 3
        assert await world.commit() is Code.NONE


async def test_who_waits_for_other_members_is_counted_apart_and_given_its_time() -> None:
    async with world_of(coordinator_calls_max=2, backend_deadline_ms=40) as world:
        world.host.gate.clear()
        waiting = [asyncio.create_task(world.groups.join(f"g{n}", JOIN)) for n in range(20)]
        await asyncio.sleep(0.2)  # several deadlines of a call that does not wait
        assert (world.callee.parked, world.callee.in_use) == (20, 0)
        assert not any(task.done() for task in waiting)
        world.host.gate.set()
        assert {reply.code for reply in await asyncio.gather(*waiting)} == {Code.NONE}
        assert world.callee.parked == 0


async def test_nobody_begins_to_wait_at_a_coordinator_before_it_has_answered() -> None:
    async with world_of(backend_deadline_ms=40) as world:
        await world.fail()
        world.clock.now_ms += OPEN_MS_MIN
        async with asyncio.timeout(SOON_S):
            refused = await world.groups.join("g", JOIN)
        assert refused.code is Code.COORDINATOR_NOT_AVAILABLE, "the probe came back late"
        assert world.callee.parked == 0
        world.host.gate.set()
        world.clock.now_ms += 2 * OPEN_MS_MIN
        async with asyncio.timeout(SOON_S):
            assert (await world.groups.join("g", JOIN)).code is Code.NONE
        assert world.callee.state() is BreakerState.CLOSED


async def test_every_call_has_an_answer_for_a_coordinator_that_is_away() -> None:
    """All of them by hand: one that lets an error through ends somebody's connection."""
    callees = Callees(MemoryClock(), coordinator_calls_max=0)
    callees.groups("n").parked_max = 0
    calls = DispatchedGroups(cast(GroupCalls, Stuck()), callees.groups("n"))
    fenced: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0}
    whole: list[Any] = [
        await calls.join("g", JOIN),
        await calls.sync("g", SyncRequest("m", 1)),
        await calls.heartbeat("g", member_id="m", generation=1, instance_id=None),
        await calls.leave("g", (("m", None),)),
        await calls.consumer_heartbeat("g", ConsumerHeartbeat("m", 0)),
        await calls.share_heartbeat("g", ShareHeartbeat("m", 0)),
        await calls.streams_heartbeat("g", StreamsHeartbeat("m", 0)),
        await calls.make_share_group("g"),
        await calls.change_configs("g", {}),
        await calls.commit("g", COMMIT),
        await calls.commit_in_transaction("g", COMMIT, **fenced),
        await calls.complete_transaction("g", **fenced, is_commit=True),
        await calls.fetch("g", None, requires_stable=False, member_id=None, member_epoch=-1),
        await calls.delete_offsets("g", ()),
        await calls.describe("g"),
        await calls.delete_group("g"),
    ]
    pairs: list[tuple[Code, object]] = [
        await calls.configs("g"),
        await calls.list_groups(states=(), kinds=()),
    ]
    found = [reply.code for reply in whole] + [code for code, _ in pairs]
    assert set(found) == {Code.COORDINATOR_NOT_AVAILABLE}
    public = {name for name in vars(GroupCalls) if not name.startswith("_")}
    public -= {"share_settings", "has_stored_configs"}  # from memory: these ask nobody
    assert len(found) == len(public)


async def test_every_call_has_an_answer_for_transactions_that_are_away() -> None:
    callees = Callees(MemoryClock(), coordinator_calls_max=0)
    calls = DispatchedTransactions(cast(TransactionCalls, Stuck()), callees.transactions("n"))
    fenced: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0}
    commit = calls.commit_offsets("x", "g", COMMIT, **fenced, adds_group=True)
    found = [
        (await calls.init("x", timeout_ms=1_000, **fenced)).code,
        await calls.add("x", **fenced, partitions=()),
        await calls.add_group("x", **fenced, group_id="g"),
        await calls.verify("x", **fenced, partition=("t", 0)),
        (await commit).code,
        (await calls.end("x", **fenced, is_commit=True, raises_epoch=False)).code,
        (await calls.describe("x"))[0],
        (await calls.all_ids())[0],
    ]
    assert set(found) == {Code.COORDINATOR_NOT_AVAILABLE}
    public = {name for name in vars(TransactionCalls) if not name.startswith("_")}
    assert len(found) == len(public)


async def test_producers_are_told_to_ask_again_while_the_metadata_hangs() -> None:
    rig = Rig()
    clock = MemoryClock()
    callees = Callees(clock, metadata_deadline_ms=40)
    ids = Stuck(rig.context.producer_ids)
    rig.context.producer_ids = DispatchedProducerIds(cast(Any, ids), callees.metadata)
    asked = InitProducerIdRequest(None, 60_000)
    version = APIS[22].version_max
    for _ in range(FAILURES_MAX + 1):  # given up, then not even tried
        async with asyncio.timeout(SOON_S):
            refused = await rig.ask(22, version, asked)
        assert refused.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert callees.metadata.state() is BreakerState.OPEN
    ids.gate.set()
    clock.now_ms += OPEN_MS_MIN
    found = await rig.ask(22, version, asked)
    assert (found.error_code, callees.metadata.state()) == (0, BreakerState.CLOSED)


@pytest.mark.parametrize("kind", ["groups", "transactions"])
def test_coordinators_are_shown_to_operators(kind: str) -> None:
    callees = Callees(MemoryClock())
    assert getattr(callees, kind)("n") is getattr(callees, kind)("n")
    assert [each.name for each in callees.states()] == ["metadata", f"{kind}:n"]
