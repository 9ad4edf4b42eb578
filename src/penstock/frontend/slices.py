"""Long work in slices, so that one request never keeps the event loop busy for long.

A request that works on many entries asks after each entry whether its slice is over, and then lets
the loop do other work before it goes on:

    async for each in slices.each(asked.topics): ...

Usually the slice is never over and nothing is awaited. ``Turns`` is shared by all requests: of
those that are in slices only one goes on in a turn of the loop, so many large requests at once
delay others no more than one does.

``each`` costs 3 µs per loop. Requests that clients send all the time use cheaper forms:

    for each in asked.topics:
        if slices.is_over:
            await slices.next()
        ...

    rows = await slices.map(make, entries)
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, Generic, TypeVar

# With the work before the first slice (decoding) and after the last one, well below the 20 ms that
# a request may keep the loop busy at a stretch.
SLICE_SECONDS: Final = 0.005

LONG_AFTER: Final = 2  # slices
FEW: Final = 32  # entries that ``map`` makes without a look at the clock
# Entries that a decision takes at once: decisions cannot be interrupted.
PORTION: Final = 500

T = TypeVar("T")
Made = TypeVar("Made")


def portions(entries: Sequence[T]) -> list[tuple[T, ...]]:
    """The entries in order, in parts of at most PORTION."""
    return [tuple(entries[at : at + PORTION]) for at in range(0, len(entries), PORTION)]


class Turns:
    def __init__(self, perf: Callable[[], float] = time.perf_counter) -> None:
        """``perf`` is a monotonic clock in seconds."""
        self.perf = perf
        self._line = asyncio.Lock()  # first come, first served

    async def next(self) -> None:
        async with self._line:
            await asyncio.sleep(0)


class Slices:
    """The slices of one request."""

    __slots__ = ("_since", "_turns", "_used")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._used = 0
        self.begin()

    @property
    def is_over(self) -> bool:
        return self._turns.perf() - self._since > SLICE_SECONDS

    @property
    def is_long(self) -> bool:
        """Whether the request has worked for several slices. One slice that is over is no sign of
        that: the time in which a request waits, for a disk say, counts as well."""
        return self._used >= LONG_AFTER

    def expect_long(self) -> None:
        """The request is known to have many entries before it has worked on them."""
        self._used = LONG_AFTER

    async def next(self) -> None:
        self._used += 1
        await self._turns.next()
        self.begin()

    def begin(self) -> None:
        """The request has waited: its slice begins now."""
        self._since = self._turns.perf()

    async def map(self, make: Callable[[T], Made], entries: Collection[T]) -> list[Made]:
        """Return ``make(entry)`` for each entry, with a look at the clock every FEW entries."""
        if self.is_over:
            await self.next()
        if len(entries) <= FEW:
            return [make(each) for each in entries]
        made = []
        for number, each in enumerate(entries, 1):
            made.append(make(each))
            if not number % FEW and self.is_over:
                await self.next()
        return made

    def each(self, entries: Iterable[T]) -> "Each[T]":
        return Each(self, iter(entries))


class Each(Generic[T]):
    """The entries one by one. A new slice begins between two of them when one is over."""

    __slots__ = ("_entries", "_slices")

    def __init__(self, slices: Slices, entries: Iterator[T]) -> None:
        self._slices = slices
        self._entries = entries

    def __aiter__(self) -> "Each[T]":
        return self

    async def __anext__(self) -> T:
        if self._slices.is_over:
            await self._slices.next()
        for entry in self._entries:
            return entry
        raise StopAsyncIteration
