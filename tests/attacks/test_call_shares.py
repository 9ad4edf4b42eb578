"""Calls of one tenant that hang: at a disk, at a coordinator, at the metadata. Each callee takes a
bounded number of calls, and one tenant has at most half of them; another tenant is served."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from tests.unit.broker.stage import on_stage
from tests.unit.frontend.limits.test_quotas import limited, message, new_topic
from tests.unit.frontend.memory import MemoryIdentities

from penstock.calls.callees import METADATA_CALLS_MAX, BrokerWrapper, Callees
from penstock.cursor.coordinator_calls import Commit, CoordinatorCall
from penstock.cursor.coordinator_calls import R as T
from penstock.cursor.groups.offsets import CommitReply, CommitRequest
from penstock.frontend.kafka.ports.coordinators import GuardedCoordinators
from penstock.frontend.limited_calls import GuardedCatalog
from penstock.frontend.limits.quotas import TenantQuotas
from penstock.model.calls import Append, BrokerCall, R
from penstock.model.errors import Throttled
from penstock.model.ports import Catalog
from penstock.wire.kafka.faults import ErrorCode

GREEDY, OTHER = "111111111111", "222222222222"


class Hanging:
    """Stands before another object; calls for one tenant wait for ever."""

    def __init__(self, real: object) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if not inspect.iscoroutinefunction(real):
            return real

        async def call(first: Any, *rest: Any, **named: Any) -> Any:
            account = getattr(first, "account", first)
            if str(account).startswith(GREEDY):
                await asyncio.Event().wait()
            return await real(first, *rest, **named)

        return call


class HangingBroker(BrokerWrapper):
    async def call(self, call: BrokerCall[R]) -> R:
        topic = call.topic
        if topic is not None and topic.account == GREEDY:
            await asyncio.Event().wait()
        return await self._broker.call(call)


class Coordinator:
    """Calls for one tenant wait for ever."""

    async def call(self, call: CoordinatorCall[T]) -> T:
        assert isinstance(call, Commit)
        if call.group_id.startswith(GREEDY):
            await asyncio.Event().wait()
        return cast(T, CommitReply())


@asynccontextmanager
async def begun(calls: list[Coroutine[Any, Any, Any]]) -> AsyncIterator[tuple[int, list[Any]]]:
    """How many hang, and what the others ended with."""
    tasks = [asyncio.create_task(call) for call in calls]
    done, hanging = await asyncio.wait(tasks, timeout=0.1)
    yield len(hanging), [task.exception() or task.result() for task in done]
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)


async def test_calls_that_hang_at_a_node(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        theirs, mine = [
            await stage.catalog.create(new_topic("q", account)) for account in (GREEDY, OTHER)
        ]
        callees = Callees(stage.clock, backend_calls_max=20, own_account="000000000000")
        quotas = TenantQuotas(MemoryIdentities(), stage.catalog)
        backend = limited(HangingBroker(stage.broker), callees, quotas)
        sends = [backend.call(Append(theirs, 0, (message(1),))) for _ in range(30)]
        async with begun(sends) as (hanging, ended):
            assert hanging == 10
            assert {type(error) for error in ended} == {Throttled}
            assert "10 of at most 10 calls to backend:n" in str(ended[0])
            assert await backend.call(Append(mine, 0, (message(1),)))


async def test_calls_that_hang_at_a_coordinator(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        callees = Callees(stage.clock, coordinator_calls_max=20, own_account="000000000000")
        groups = GuardedCoordinators(Coordinator(), callees.groups("n"))
        request = CommitRequest(())
        commits = [groups.call(Commit(f"{GREEDY}/g", request)) for _ in range(30)]
        async with begun(commits) as (hanging, ended):
            assert hanging == 10
            assert {reply.code for reply in ended} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
            assert (await groups.call(Commit(f"{OTHER}/g", request))).code is ErrorCode.NONE


async def test_changes_that_hang_at_the_metadata(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        callees = Callees(stage.clock, own_account="000000000000")
        quotas = TenantQuotas(MemoryIdentities(), stage.catalog)
        catalog = GuardedCatalog(cast(Catalog, Hanging(stage.catalog)), callees.metadata, quotas)
        half = METADATA_CALLS_MAX // 2
        made = [catalog.create(new_topic(f"q{n}", GREEDY)) for n in range(half + 5)]
        async with begun(made) as (hanging, ended):
            assert hanging == half
            assert {type(error) for error in ended} == {Throttled}
            assert f"{half} of {half} changes" in str(ended[0])
            assert await catalog.create(new_topic("q", OTHER))
