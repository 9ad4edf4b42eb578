"""One slow or broken callee must not take the others with it."""

import asyncio

import pytest
from tests.unit.frontend.memory import MemoryClock

from penstock.calls.bulkhead import Bulkhead, CalleeUnavailable
from penstock.flow.breaker import FAILURES_MAX, OPEN_MS_MAX, OPEN_MS_MIN, BreakerState
from penstock.model.errors import Overloaded, Throttled, TopicNotFound
from penstock.model.topic import Kind, Topic


class ConnectionLost(Overloaded):
    pass


async def answer() -> str:
    return "answer"


async def nowhere() -> str:
    raise TopicNotFound("q")


async def broken() -> str:
    raise ConnectionResetError("gone")


async def fail(bulkhead: Bulkhead, times: int) -> None:
    for _ in range(times):
        with pytest.raises(CalleeUnavailable):
            await bulkhead.call(broken)


async def test_a_full_compartment_refuses_at_once_and_leaves_others_alone() -> None:
    clock = MemoryClock()
    slow, quick = Bulkhead("slow", clock, calls_max=3), Bulkhead("quick", clock, calls_max=3)
    free = asyncio.Event()
    held = [asyncio.create_task(slow.call(free.wait)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Throttled, match="slow"):
        await slow.call(answer)
    assert await quick.call(answer) == "answer"
    assert (slow.in_use, slow.refused_count, quick.refused_count) == (3, 1, 0)
    free.set()
    await asyncio.gather(*held)
    assert await slow.call(answer) == "answer"
    assert slow.in_use == 0


def topic_of(account: str) -> Topic:
    return Topic(
        topic_id=account,
        account=account,
        region="us-east-1",
        name="q",
        kind=Kind.STANDARD,
        partition_count=1,
        created_at_ms=0,
        modified_at_ms=0,
        receipt_key=bytes(32),
    )


async def test_a_tenant_has_half_of_the_calls_and_the_nodes_own_has_all() -> None:
    bulkhead = Bulkhead("backend:n", MemoryClock(), calls_max=20, own_account="own")
    free = asyncio.Event()
    held: list[asyncio.Task[bool]] = []

    async def begin(account: str, count: int) -> int:
        """How many of so many calls are under way afterwards."""
        topic, before = topic_of(account), bulkhead.in_use
        tasks = [asyncio.create_task(bulkhead.call(free.wait, topic, 0)) for _ in range(count)]
        done, under_way = await asyncio.wait(tasks, timeout=0.01)
        for task in done:
            assert isinstance(task.exception(), Throttled)
        held.extend(under_way)
        return bulkhead.in_use - before

    assert await begin("greedy", 15) == 10
    with pytest.raises(Throttled, match="10 of at most 10 calls to backend:n in progress"):
        await bulkhead.call(answer, topic_of("greedy"), 0)
    assert await begin("other", 4) == 4
    assert await begin("own", 9) == 6
    assert await begin("other", 1) == 0, "full"
    free.set()
    await asyncio.gather(*held)
    assert bulkhead.in_use == 0
    free.clear()
    assert await begin("greedy", 10) == 10, "what was counted before is forgotten"
    free.set()
    await asyncio.gather(*held)


async def test_a_tenant_just_below_its_share_is_never_refused() -> None:
    bulkhead = Bulkhead("backend:n", MemoryClock(), calls_max=20, own_account="own")
    free = asyncio.Event()
    other, greedy = topic_of("other"), topic_of("greedy")
    held = [asyncio.create_task(bulkhead.call(free.wait, other, 0)) for _ in range(9)]
    held += [asyncio.create_task(bulkhead.call(free.wait, greedy, 0)) for _ in range(9)]
    await asyncio.sleep(0)
    for _ in range(500):
        assert await bulkhead.call(answer, greedy, 0) == "answer"
        with pytest.raises(TopicNotFound):
            await bulkhead.call(nowhere, greedy, 0)
    assert bulkhead.shares.of("greedy") == 9
    free.set()
    await asyncio.gather(*held)
    assert bulkhead.shares.total == 0


async def test_errors_of_the_way_to_a_callee_elsewhere_are_failures_and_its_own_are_not() -> None:
    bulkhead = Bulkhead("metadata", MemoryClock(), lost=(ConnectionLost,))

    async def lost() -> str:
        raise ConnectionLost("nobody there")

    async def refused() -> str:
        raise TopicNotFound("q")

    for _ in range(FAILURES_MAX - 1):
        with pytest.raises(ConnectionLost):
            await bulkhead.call(lost)
    with pytest.raises(TopicNotFound):
        await bulkhead.call(refused)  # somebody is there after all
    for _ in range(FAILURES_MAX):
        with pytest.raises(ConnectionLost):
            await bulkhead.call(lost)
    with pytest.raises(CalleeUnavailable, match="retry shortly"):
        await bulkhead.call(lost)


async def test_after_failures_in_a_row_nobody_waits_until_a_probe_succeeds() -> None:
    clock = MemoryClock()
    bulkhead = Bulkhead("metadata", clock)
    await fail(bulkhead, FAILURES_MAX)
    assert bulkhead.state() is BreakerState.OPEN
    begun: list[int] = []

    async def work() -> str:
        begun.append(1)
        return "answer"

    with pytest.raises(CalleeUnavailable, match="retry shortly"):
        await bulkhead.call(work)
    assert not begun, "nothing is sent to a callee that is cut off"
    clock.now_ms += OPEN_MS_MIN
    await fail(bulkhead, 1)
    clock.now_ms += OPEN_MS_MIN
    assert bulkhead.state() is BreakerState.OPEN, "the second pause is longer"
    clock.now_ms += OPEN_MS_MIN
    assert await bulkhead.call(work) == "answer"
    assert bulkhead.state() is BreakerState.CLOSED


async def test_only_one_probe_at_a_time_and_a_cancelled_one_is_made_up_for() -> None:
    clock = MemoryClock()
    bulkhead = Bulkhead("backend", clock)
    await fail(bulkhead, FAILURES_MAX)
    clock.now_ms += OPEN_MS_MIN
    never = asyncio.Event()
    probe = asyncio.create_task(bulkhead.call(never.wait))
    await asyncio.sleep(0)
    with pytest.raises(CalleeUnavailable):
        await bulkhead.call(answer)
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)
    clock.now_ms += OPEN_MS_MAX
    assert await bulkhead.call(answer) == "answer"


async def test_a_refusal_by_the_callee_is_an_answer() -> None:
    bulkhead = Bulkhead("backend", MemoryClock())

    async def refuse() -> str:
        raise TopicNotFound("q")

    for _ in range(2 * FAILURES_MAX):
        with pytest.raises(TopicNotFound):
            await bulkhead.call(refuse)
    assert bulkhead.state() is BreakerState.CLOSED


async def test_a_callee_that_is_late_counts_as_failed() -> None:
    bulkhead = Bulkhead("backend", MemoryClock(), deadline_ms=10)
    never = asyncio.Event()
    for _ in range(FAILURES_MAX):
        with pytest.raises(CalleeUnavailable, match="in time"):
            await bulkhead.call(never.wait)
    assert bulkhead.state() is BreakerState.OPEN
