"""Runs long work in slices, so that one request never keeps the event loop busy for long.

A request with many entries checks after each entry whether its slice (a few milliseconds) is over,
and then lets the event loop do other work:

    async for each in slices.each(request.topics): ...

Usually no slice is over and nothing is awaited. All requests share one ``Turns``: in each iteration
of the event loop, only one of the requests that use slices runs, so that many large requests delay
other requests no more than one does. ``each`` costs 3 µs per entry; frequent requests check
``is_over`` themselves or use ``map``. Work that is written as a generator runs with ``in_slices``.

Batches of up to 1 MiB are decompressed at once, which takes about a millisecond. Larger batches are
decompressed in threads: two at a time, and only one at a time for each tenant."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from typing import Final, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from penstock.model.limits import KIB, MIB
from penstock.record.batch import BatchHeader
from penstock.record.compression import Codec, TooLarge
from penstock.record.record import RECORDS_BYTES_MAX, records_blob, records_view

# Well below the 20 ms for which a request may keep the event loop busy, with the work before the
# first slice (decoding) and after the last.
SLICE_SECONDS: Final = 0.005
LONG_AFTER: Final = 2  # slices, then a request counts as long
FEW: Final = 32  # entries that ``map`` converts before it checks the clock
PORTION: Final = 500  # entries of one call that cannot be interrupted
HASHED_BYTES: Final = 256 * 1_024  # bytes hashed in one step, about a millisecond

QUICK_BYTES_MAX: Final = MIB  # after decompression
QUICK_PACKED_BYTES_MAX: Final = 256 * KIB
THREADS_MAX: Final = 2
# A semaphore for the threads and a lock for each tenant, by event loop.
_Waits = tuple[asyncio.Semaphore, WeakValueDictionary[str, asyncio.Lock]]
_LOOPS: WeakKeyDictionary[asyncio.AbstractEventLoop, _Waits] = WeakKeyDictionary()

T = TypeVar("T")
Made = TypeVar("Made")


def portions(entries: Sequence[T]) -> list[tuple[T, ...]]:
    return [tuple(entries[at : at + PORTION]) for at in range(0, len(entries), PORTION)]


async def in_slices(steps: Generator[None, None, T]) -> T:
    """Run a generator, which must yield every few milliseconds, and return its result."""
    since = time.perf_counter()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if time.perf_counter() - since >= SLICE_SECONDS:
            await asyncio.sleep(0)
            since = time.perf_counter()


def hash_in_steps(data: bytes) -> Generator[None, None, str]:
    digest = hashlib.sha256()
    with memoryview(data) as view:
        for start in range(0, len(data), HASHED_BYTES):
            digest.update(view[start : start + HASHED_BYTES])
            yield None
    return digest.hexdigest()


class Turns:
    def __init__(self, perf: Callable[[], float] = time.perf_counter) -> None:
        self.perf = perf
        self._lock = asyncio.Lock()  # first come, first served

    async def next(self) -> None:
        async with self._lock:
            await asyncio.sleep(0)


class Slices:
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
        return self._used >= LONG_AFTER

    def expect_long(self) -> None:
        self._used = LONG_AFTER

    async def next(self) -> None:
        self._used += 1
        await self._turns.next()
        self.begin()

    def begin(self) -> None:
        self._since = self._turns.perf()

    async def map(self, make: Callable[[T], Made], entries: Collection[T]) -> list[Made]:
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


def unpacked_now(batch: bytes, header: BatchHeader) -> bytes | None:
    """Return the decompressed records, or None if decompressing takes more than a millisecond."""
    if header.codec == Codec.NONE:
        return records_blob(batch, header)
    if len(batch) > QUICK_PACKED_BYTES_MAX:
        return None
    try:
        return records_blob(batch, header, bytes_max=QUICK_BYTES_MAX)
    except TooLarge:
        return None


async def unpacked(
    batch: bytes, header: BatchHeader, *, tenant: str, bytes_max: int = RECORDS_BYTES_MAX
) -> bytes | memoryview:
    blob = unpacked_now(batch, header)
    if blob is not None:
        if len(blob) > bytes_max:
            raise TooLarge(bytes_max)
        return blob
    loop = asyncio.get_running_loop()
    if loop not in _LOOPS:
        _LOOPS[loop] = asyncio.Semaphore(THREADS_MAX), WeakValueDictionary()
    slots, turns = _LOOPS[loop]
    turn = turns.setdefault(tenant, asyncio.Lock())
    async with turn, slots:
        return await asyncio.to_thread(records_view, batch, header, bytes_max=bytes_max)
