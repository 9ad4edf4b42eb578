"""One slow or broken callee must not take the others with it."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.frontend.memory import MemoryClock

from penstock.frontend.breaker import FAILURES_MAX, OPEN_MS_MAX, OPEN_MS_MIN, Breaker, BreakerState
from penstock.frontend.bulkhead import Bulkhead, CalleeUnavailable
from penstock.model.errors import Overloaded, Throttled, TopicNotFound


class ConnectionLost(Overloaded):
    pass


async def answer() -> str:
    return "answer"


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
    with pytest.raises(CalleeUnavailable, match="tried again"):
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

    with pytest.raises(CalleeUnavailable, match="tried again"):
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


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 40_000)), max_size=80))
def test_a_breaker_always_tries_again_and_never_more_than_one_at_a_time(
    steps: list[tuple[bool, int]],
) -> None:
    breaker = Breaker()
    now_ms = 0
    for is_success, pause_ms in steps:
        now_ms += pause_ms
        if breaker.admits(now_ms=now_ms):
            if breaker.state(now_ms=now_ms) is BreakerState.HALF_OPEN:
                assert not breaker.admits(now_ms=now_ms), "one probe at a time"
            if is_success:
                breaker.succeeded()
                assert breaker.state(now_ms=now_ms) is BreakerState.CLOSED
            else:
                breaker.failed(now_ms=now_ms)
    assert breaker.admits(now_ms=now_ms + OPEN_MS_MAX)
