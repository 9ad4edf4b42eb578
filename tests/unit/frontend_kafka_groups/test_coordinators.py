"""Coordinators that hang take nobody else with them: clients are told to look for another, and are
served again when these are back. The coordinators are real, on streams in memory; what is injected
is only that they do not answer."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast, get_args, get_type_hints

import msgspec
import pytest
from tests.unit.frontend.memory import MemoryClock
from tests.unit.frontend_kafka.rig import Rig
from tests.unit.frontend_kafka_groups.stage import GroupRig, groups

from penstock.broker.coordination.groups import DECISIONS, GroupHost, decide
from penstock.broker.coordination.transactions import TransactionHost
from penstock.calls.bulkhead import Bulkhead
from penstock.calls.callees import Callees
from penstock.cursor.coordinated_groups import Groups
from penstock.cursor.coordinator_calls import (
    AddGroup,
    AddPartitions,
    BeatConsumer,
    BeatShare,
    BeatStreams,
    ChangeConfigs,
    Commit,
    CommitInTransaction,
    CommitOffsets,
    CompleteTransaction,
    CoordinatorCall,
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    DescribeTransaction,
    EndTransaction,
    FetchOffsets,
    GroupCall,
    Heartbeat,
    InitProducer,
    Join,
    Leave,
    ListGroups,
    ListTransactions,
    MakeShareGroup,
    R,
    ReadConfigs,
    Sync,
    VerifyPartition,
    failed,
)
from penstock.cursor.groups.classic.classic_state import JoinRequest, SyncRequest
from penstock.cursor.groups.consumer import ConsumerHeartbeat
from penstock.cursor.groups.decision import Decision, Listing
from penstock.cursor.groups.offsets import CommitRequest
from penstock.cursor.groups.settings import GroupSettings, ShareSettings
from penstock.cursor.groups.share import ShareHeartbeat
from penstock.cursor.groups.streams.streams_requests import StreamsHeartbeat
from penstock.cursor.patterns.matches import Topics
from penstock.flow.breaker import FAILURES_MAX, OPEN_MS_MIN, BreakerState
from penstock.frontend.kafka.context import ProducerIds
from penstock.frontend.kafka.ports.coordinators import (
    RULES,
    GuardedCoordinators,
    GuardedGroups,
    ScopedCoordinators,
)
from penstock.frontend.limited_calls import guard
from penstock.wire.internal.node_calls import GroupComplete, GroupFetch
from penstock.wire.kafka.apis import APIS
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.init_producer_id import InitProducerIdRequest

OWN, OTHER, ANOTHER = "000000000000", "111111111111", "222222222222"
SOON_S = 10.0  # for what must not wait for a callee that hangs
JOIN = JoinRequest("", "m-1", 10_000, 60_000, "consumer", (("range", b""),), confirms_id=False)
COMMIT = CommitRequest(member_id="", generation=-1, partitions=())


class Stuck:
    """Whatever is asked of it waits at the gate, and then goes on to the real one if there is
    one."""

    def __init__(self, behind: Any = None, *, is_open: bool = False) -> None:
        self._behind = behind
        self.gate = asyncio.Event()
        if is_open:
            self.gate.set()

    async def call(self, call: CoordinatorCall[R]) -> R:
        await self.gate.wait()
        reply: R = await self._behind.call(call)
        return reply

    async def next_id(self) -> int:
        await self.gate.wait()
        found: int = await self._behind.next_id()
        return found

    def share_settings(self, group_id: str) -> ShareSettings:
        raise AssertionError("nobody asks for it here")

    has_stored_configs = False


class World:
    def __init__(self, rig: GroupRig, **callees: Any) -> None:
        self.clock = MemoryClock()
        self.callees = Callees(self.clock, **callees)
        self.host = Stuck(rig.host, is_open=True)
        self.groups = GuardedGroups(self.host, self.callees.groups("n"))

    @property
    def callee(self) -> Bulkhead:
        return self.callees.groups("n")

    async def commit(self) -> ErrorCode:
        async with asyncio.timeout(SOON_S):
            return (await self.groups.call(Commit("g", COMMIT))).code

    async def fail(self) -> None:
        """Until nobody waits for it any more."""
        self.host.gate.clear()
        for _ in range(FAILURES_MAX):
            assert await self.commit() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert self.callee.state() is BreakerState.OPEN


@asynccontextmanager
async def world_of(**callees: int) -> AsyncIterator[World]:
    async with groups() as rig:
        yield World(rig, **callees)


async def test_a_coordinator_that_hangs_is_given_up_and_served_again_when_it_is_back() -> None:
    async with world_of(backend_deadline_ms=40) as world:
        assert await world.commit() is ErrorCode.NONE
        await world.fail()
        asked = asyncio.create_task(world.groups.call(Commit("g", COMMIT)))
        await asyncio.sleep(0)
        assert asked.done(), "nothing waits for it, not even until the next turn"
        assert (await asked).code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert world.callees.transactions("n").state() is BreakerState.CLOSED
        assert world.callees.backend("n").state() is BreakerState.CLOSED
        world.host.gate.set()
        world.clock.now_ms += OPEN_MS_MIN
        assert await world.commit() is ErrorCode.NONE
        assert world.callee.state() is BreakerState.CLOSED
        assert world.callee.in_use == 0


async def test_a_coordinator_that_is_slow_fills_its_own_compartment_only() -> None:
    async with world_of(coordinator_calls_max=3) as world:
        world.host.gate.clear()
        held = [asyncio.create_task(world.groups.call(Commit("g", COMMIT))) for _ in range(3)]
        await asyncio.sleep(0)
        assert await world.commit() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (world.callee.in_use, world.callee.refused_count) == (3, 1)
        assert world.callee.state() is BreakerState.CLOSED, "being full is no failure"
        world.host.gate.set()
        assert [reply.code for reply in await asyncio.gather(*held)] == [ErrorCode.NONE] * 3
        assert await world.commit() is ErrorCode.NONE


async def test_who_waits_for_other_members_is_counted_apart_and_given_its_time() -> None:
    async with world_of(coordinator_calls_max=2, backend_deadline_ms=40) as world:
        world.host.gate.clear()
        waiting = [asyncio.create_task(world.groups.call(Join(f"g{n}", JOIN))) for n in range(20)]
        await asyncio.sleep(0.2)  # several deadlines of a call that does not wait
        assert (world.callee.parked, world.callee.in_use) == (20, 0)
        assert not any(task.done() for task in waiting)
        world.host.gate.set()
        assert {reply.code for reply in await asyncio.gather(*waiting)} == {ErrorCode.NONE}
        assert world.callee.parked == 0


async def test_nobody_begins_to_wait_at_a_coordinator_before_it_has_answered() -> None:
    async with world_of(backend_deadline_ms=40) as world:
        await world.fail()
        world.clock.now_ms += OPEN_MS_MIN
        async with asyncio.timeout(SOON_S):
            refused = await world.groups.call(Join("g", JOIN))
        assert refused.code is ErrorCode.COORDINATOR_NOT_AVAILABLE, "the probe came back late"
        assert world.callee.parked == 0
        world.host.gate.set()
        world.clock.now_ms += 2 * OPEN_MS_MIN
        async with asyncio.timeout(SOON_S):
            assert (await world.groups.call(Join("g", JOIN))).code is ErrorCode.NONE
        assert world.callee.state() is BreakerState.CLOSED


OFFSETS = ("x", 1, 0)  # a transactional id and its producer

# All calls by hand: one that lets an error through ends somebody's connection.
EVERY: list[CoordinatorCall[Any]] = [
    Join("g", JOIN),
    Sync("g", SyncRequest("m", 1)),
    Heartbeat("g", "m", 1, None),
    Leave("g", (("m", None),)),
    BeatConsumer("g", ConsumerHeartbeat("m", 0)),
    BeatShare("g", ShareHeartbeat("m", 0)),
    BeatStreams("g", StreamsHeartbeat("m", 0)),
    MakeShareGroup("g"),
    ReadConfigs("g"),
    ChangeConfigs("g", {}),
    Commit("g", COMMIT),
    CommitInTransaction("g", COMMIT, 1, 0),
    CompleteTransaction("g", 1, 0, is_commit=True),
    FetchOffsets("g", None),
    DeleteOffsets("g", ()),
    ListGroups(),
    DescribeGroup("g"),
    DeleteGroup("g"),
    InitProducer(*OFFSETS, timeout_ms=1_000),
    AddPartitions(*OFFSETS, ()),
    AddGroup(*OFFSETS, "g"),
    VerifyPartition(*OFFSETS, ("t", 0)),
    CommitOffsets(*OFFSETS, "g", COMMIT, adds_group=True),
    EndTransaction(*OFFSETS, is_commit=True, raises_epoch=False),
    DescribeTransaction("x"),
    ListTransactions(),
]


def code_of(reply: Any) -> ErrorCode:
    if isinstance(reply, tuple):
        reply = reply[0]
    return reply if isinstance(reply, ErrorCode) else reply.code


@pytest.mark.parametrize("call", EVERY, ids=lambda call: type(call).__name__)
async def test_every_call_has_a_reply_for_a_coordinator_that_is_away(
    call: CoordinatorCall[Any],
) -> None:
    callees = Callees(MemoryClock(), coordinator_calls_max=0)
    callees.groups("n").parked_max = 0
    guarded = GuardedCoordinators(Stuck(), callees.groups("n"))
    assert code_of(await guarded.call(call)) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_every_call_has_a_rule_and_a_handler() -> None:
    """A handler is found by the type of its call, which mypy cannot check."""
    kinds = {type(call) for call in EVERY}
    assert len(kinds) == len(EVERY)
    assert kinds == set(RULES)
    for kind in kinds - set(DECISIONS):
        host = TransactionHost if hasattr(TransactionHost, handler_of(kind)) else GroupHost
        hints = get_type_hints(getattr(host, handler_of(kind)))
        assert hints["call"] is kind
        assert hints["return"] == reply_of(kind), kind


def test_decisions_reply_as_their_calls_say() -> None:
    for call in EVERY:
        if isinstance(call, GroupCall) and type(call) in DECISIONS:
            decision = Decision(7, now_ms=1, wall_ms=2)
            decide(Groups(GroupSettings()), call, Topics(0, {}), decision)
            found = [(each.ticket, type(each.reply)) for each in decision.replies]
            assert found == [(7, reply_of(type(call)))] or type(call) is Join, "a join waits"


def reply_of(kind: type[CoordinatorCall[Any]]) -> Any:
    return get_args(vars(kind)["__orig_bases__"][0])[0]


def test_calls_between_coordinators_have_the_fields_of_those_here() -> None:
    """They are converted field by field."""
    assert GroupComplete.__struct_fields__ == CompleteTransaction.__struct_fields__
    assert GroupFetch.__struct_fields__ == FetchOffsets.__struct_fields__


def handler_of(kind: type[CoordinatorCall[Any]]) -> str:
    return "_" + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


async def test_an_account_reaches_its_own_groups_and_transactions_only() -> None:
    """Whatever id it is given: the account is put on before a coordinator is asked."""
    asked: list[CoordinatorCall[Any]] = []

    class Asked:
        async def call(self, call: CoordinatorCall[R]) -> R:
            asked.append(call)
            if isinstance(call, ListGroups):
                theirs = [Listing(f"{account}/g", "", "", "") for account in (OTHER, ANOTHER)]
                return cast(R, (ErrorCode.NONE, [*theirs, Listing("g", "", "", "")]))
            if isinstance(call, ListTransactions):
                return cast(R, (ErrorCode.NONE, {f"{OTHER}/x": "theirs", "x": "the node's"}))
            return failed(call, ErrorCode.NONE)

    scoped = ScopedCoordinators(Asked(), account=OTHER, own_account=OWN)
    for call in EVERY:
        reply = await scoped.call(call)
        named = [getattr(asked[-1], name, f"{OTHER}/") for name in ("group_id", "transactional_id")]
        assert all(each.startswith(f"{OTHER}/") for each in named), call
        if isinstance(call, ListGroups):
            assert [each.group_id for each in reply[1]] == ["g"]
        elif isinstance(call, ListTransactions):
            assert reply == (ErrorCode.NONE, {"x": "theirs"})
        elif isinstance(call, DescribeGroup):
            assert reply.group_id == "g"
    assert len(asked) == len(EVERY)


@pytest.mark.parametrize("call", EVERY, ids=lambda call: type(call).__name__)
async def test_members_and_producers_without_an_id_are_rejected(call: CoordinatorCall[Any]) -> None:
    name = "transactional_id" if hasattr(call, "transactional_id") else "group_id"
    if not hasattr(call, name):
        return
    stuck = Stuck(is_open=True)  # there is nobody behind it
    scoped = ScopedCoordinators(stuck, account=OTHER, own_account=OWN)
    nameless = msgspec.structs.replace(call, **{name: ""})
    code = RULES[type(call)].without_id
    if code is None:
        with pytest.raises(AttributeError):  # a coordinator is asked
            await scoped.call(nameless)
    else:
        assert code_of(await scoped.call(nameless)) is code


def test_calls_without_an_id_are_rejected_with_the_codes_of_kafka() -> None:
    rejected = {kind.__name__: rule.without_id for kind, rule in RULES.items() if rule.without_id}
    members = dict.fromkeys(("Join", "Sync", "Heartbeat", "Leave"), ErrorCode.INVALID_GROUP_ID)
    producers = ("InitProducer", "AddPartitions", "AddGroup", "EndTransaction")
    assert rejected == {**members, **dict.fromkeys(producers, ErrorCode.INVALID_REQUEST)}


async def test_producers_are_told_to_ask_again_while_the_metadata_hangs() -> None:
    rig = Rig()
    clock = MemoryClock()
    callees = Callees(clock, metadata_deadline_ms=40)
    ids = Stuck(rig.context.producer_ids)
    rig.context.producer_ids = guard(cast(ProducerIds, ids), callees.metadata)
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
    assert [each["name"] for each in callees.states()] == ["metadata", f"{kind}:n"]
