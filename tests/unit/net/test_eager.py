"""A coroutine that takes its first step at once, and the rest in whatever task awaits it."""

import asyncio

import pytest

from penstock.net.kafka.listener import EagerCoroutine, rest_of


async def test_what_need_not_wait_is_done_when_it_is_made() -> None:
    async def seven() -> int:
        return 7

    begun = EagerCoroutine(seven())
    assert begun.is_done
    assert begun.result == 7
    assert await begun == 7


async def test_the_rest_is_done_by_whoever_awaits_it() -> None:
    steps: list[str] = []
    first, second = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        steps.append("begun")
        await first.wait()
        steps.append("first")
        await asyncio.sleep(0)
        await second.wait()
        return "done"

    begun = EagerCoroutine(work())
    assert steps == ["begun"]
    assert not begun.is_done
    task = asyncio.create_task(rest_of(begun))
    first.set()
    second.set()
    assert await asyncio.wait_for(task, 5) == "done"
    assert steps == ["begun", "first"]


async def test_what_it_waits_for_may_have_happened_before_anybody_awaits_it() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def work() -> int:
        return await future + 1

    begun = EagerCoroutine(work())
    future.set_result(1)
    await asyncio.sleep(0)
    assert await begun == 2


async def test_errors_are_raised_where_they_happen() -> None:
    async def at_once() -> None:
        raise ValueError("first step")

    with pytest.raises(ValueError, match="first step"):
        EagerCoroutine(at_once())

    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def later() -> str:
        try:
            await future
        except ValueError as error:
            return str(error)
        raise LookupError("never")

    begun = EagerCoroutine(later())
    future.set_exception(ValueError("second step"))
    assert await begun == "second step"


async def test_a_cancelled_task_cancels_what_it_goes_on_with() -> None:
    is_ended = False

    async def park() -> None:
        nonlocal is_ended
        try:
            await asyncio.Event().wait()
        finally:
            is_ended = True

    task = asyncio.create_task(rest_of(EagerCoroutine(park())))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert is_ended
