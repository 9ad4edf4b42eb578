"""Long work is done in slices; short work is not interrupted at all."""

import asyncio
import itertools

import pytest

from penstock.net.slices import FEW, PORTION, SLICE_SECONDS, Slices, Turns, portions


class HandPerf:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def worked(slices: Slices, perf: HandPerf, log: list[str], name: str) -> None:
    async for number in slices.each(range(4)):
        log.append(f"{name}{number}")
        perf.now += SLICE_SECONDS * 0.6


async def test_short_work_awaits_nothing() -> None:
    perf = HandPerf()
    slices = Slices(Turns(perf))
    with pytest.raises(StopIteration) as end:  # it did not wait
        slices.each([1]).__anext__().send(None)
    assert end.value.value == 1
    assert not slices.is_long


async def test_few_entries_are_made_without_waiting() -> None:
    slices = Slices(Turns(HandPerf()))
    with pytest.raises(StopIteration) as end:  # it did not wait
        slices.map(str, range(FEW)).send(None)
    assert end.value.value == [str(number) for number in range(FEW)]
    assert not slices.is_long


async def test_many_entries_are_made_in_slices() -> None:
    perf = HandPerf()
    slices = Slices(Turns(perf))
    seen: list[int] = []  # entries made, in each turn
    made: list[int] = []

    def make(number: int) -> int:
        perf.now += SLICE_SECONDS / FEW * 0.6
        made.append(number)
        return -number

    async def watch() -> None:
        while len(made) < 10 * FEW:
            seen.append(len(made))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    assert await slices.map(make, range(10 * FEW)) == [-number for number in range(10 * FEW)]
    await watching
    longest = max(after - before for before, after in itertools.pairwise((*seen, len(made))))
    assert 0 < longest <= 2 * FEW
    assert slices.is_long


async def test_few_entries_wait_for_the_next_slice_if_the_last_is_over() -> None:
    """Many loops of a few entries each are long work as well."""
    perf = HandPerf()
    slices = Slices(Turns(perf))
    perf.now += SLICE_SECONDS * 1.1
    begun = slices.map(str, (1,))
    assert begun.send(None) is None, "it waits for the next turn"
    begun.close()


async def test_only_one_of_several_goes_on_in_a_turn() -> None:
    perf, log = HandPerf(), list[str]()
    turns = Turns(perf)
    many = [Slices(turns) for _ in range(3)]
    work = [worked(each, perf, log, name) for each, name in zip(many, "abc", strict=True)]
    ended = asyncio.gather(*work)
    most = 0
    while not ended.done():
        before = len(log)
        await asyncio.sleep(0)
        if before:
            most = max(most, len(log) - before)
    assert sorted(log) == sorted(f"{name}{number}" for name in "abc" for number in range(4))
    assert most <= 2, "entries of one slice"
    assert all(each.is_long for each in many)


def test_portions_keep_order_and_size() -> None:
    entries = list(range(2 * PORTION + 1))
    assert [len(each) for each in portions(entries)] == [PORTION, PORTION, 1]
    assert [each for some in portions(entries) for each in some] == entries
    assert portions([]) == []
