"""Listeners for other nodes: a question that waits until there is something new.

A listener cannot travel, so its owner says what it knows and asks again from there. Of ends that is
the ends themselves, and nothing has to be kept here between two questions. That something has
become available in a share is no state that one could compare: it is counted here, from the first
question on and for a while after the last, so that what happens between two of them is not missed.
A count that was dropped begins again with a number that was never given out, which its owner takes
for news: looking once too often does no harm. So does one that was begun in another epoch, for the
cursor it listened to is gone.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from penstock.model.errors import NotLeader
from penstock.model.ports import Shares, StreamEnds, Streams
from penstock.model.topic import Topic
from penstock.wire.internal.broker_calls import AdvanceTold, AvailableTold

COUNTED_MAX: Final = 10_000  # partitions of shares; the one asked for least lately goes first
IDLE_SECONDS_MAX: Final = 60.0  # thrice the longest that an owner waits before it asks again
WAIT_MS_MAX: Final = 30_000


class _Counted:
    """How often something has become available in one partition of a share."""

    __slots__ = ("asked_at", "end", "led", "number", "wakers")

    def __init__(self, number: int, led: tuple[int, int] | None) -> None:
        self.number = number
        self.led = led
        self.asked_at = 0.0
        self.end: Callable[[], None] = lambda: None
        self.wakers: set[Callable[[], None]] = set()


class Watching:
    def __init__(
        self,
        streams: Streams,
        shares: Shares,
        led: Callable[[Topic, int], tuple[int, int] | None],
    ) -> None:
        self._streams = streams
        self._shares = shares
        self._led = led
        self._loop = asyncio.get_running_loop()
        self._serial = secrets.randbits(48)  # not where the process before this one began
        self._counted: OrderedDict[tuple[str, int], _Counted] = OrderedDict()

    def close(self) -> None:
        for counted in self._counted.values():
            counted.end()
        self._counted.clear()

    # ── Ends ─────────────────────────────────────────────────────────────────────────────────

    async def advanced(
        self, topic: Topic, known: Sequence[tuple[int, StreamEnds | None]], *, wait_ms: int
    ) -> AdvanceTold:
        until = self._loop.time() + min(wait_ms, WAIT_MS_MAX) / 1_000
        told = await self._look(topic, known)
        if told is not None:
            return told
        woken = asyncio.Event()
        endings: list[Callable[[], None]] = []
        try:
            for partition, _ in known:
                endings.append(self._streams.on_advance(topic, partition, woken.set))
            while True:
                # First: what has moved before there was a listener has woken nobody.
                woken.clear()
                told = await self._look(topic, known)
                if told is not None:
                    return told
                if not await _is_set(woken, until - self._loop.time()):
                    return AdvanceTold()
        finally:
            for end in endings:
                end()

    async def _look(
        self, topic: Topic, known: Sequence[tuple[int, StreamEnds | None]]
    ) -> AdvanceTold | None:
        moved, gone = [], []
        for partition, before in known:
            try:
                ends = await self._streams.ends(topic, partition)
            except NotLeader:
                gone.append(partition)
                continue
            if ends != before:
                moved.append((partition, ends))
        return AdvanceTold(moved, gone) if moved or gone else None

    # ── Availability ─────────────────────────────────────────────────────────────────────────

    async def available(
        self, share: Topic, known: Sequence[tuple[int, int]], *, wait_ms: int
    ) -> AvailableTold:
        until = self._loop.time() + min(wait_ms, WAIT_MS_MAX) / 1_000
        gone = []
        for partition, _ in known:
            try:
                await self._shares.share_start(share, partition)  # opens what is not open yet
            except NotLeader:
                gone.append(partition)
        if gone:
            return AvailableTold((), gone)
        counts = [(partition, number, self._count(share, partition)) for partition, number in known]
        woken = asyncio.Event()
        for _, _, counted in counts:
            counted.wakers.add(woken.set)
        try:
            while True:
                woken.clear()
                news = [
                    (partition, counted.number)
                    for partition, number, counted in counts
                    if counted.number != number
                ]
                if news or not await _is_set(woken, until - self._loop.time()):
                    return AvailableTold(news)
        finally:
            for _, _, counted in counts:
                counted.wakers.discard(woken.set)

    def _count(self, share: Topic, partition: int) -> _Counted:
        now = self._loop.time()
        key = (share.topic_id, partition)
        led = self._led(share, partition)
        counted = self._counted.get(key)
        if counted is not None and counted.led != led:
            counted.end()
            counted = None
        if counted is None:
            counted = _Counted(self._next(), led)
            counted.end = self._shares.on_available(share, partition, self._counter(counted))
            self._counted[key] = counted
        self._counted.move_to_end(key)
        counted.asked_at = now
        self._drop_idle(now)
        return counted

    def _counter(self, counted: _Counted) -> Callable[[], None]:
        def count() -> None:
            counted.number = self._next()
            for wake in tuple(counted.wakers):
                wake()

        return count

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _drop_idle(self, now: float) -> None:
        """Least lately asked for first. One that somebody waits at is dropped only when there are
        too many; its owner asks again when its time is over."""
        counts = self._counted
        while counts:
            key, oldest = next(iter(counts.items()))
            is_idle = now - oldest.asked_at > IDLE_SECONDS_MAX and not oldest.wakers
            if not is_idle and len(counts) <= COUNTED_MAX:
                return
            oldest.end()
            del counts[key]


async def _is_set(event: asyncio.Event, seconds: float) -> bool:
    """Whether it happened within so long."""
    if event.is_set():
        return True
    if seconds <= 0:
        return False
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True
