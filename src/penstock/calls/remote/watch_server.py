"""Listeners of other nodes: calls that wait until there is something new.

A listener cannot be sent to another node, so a call says what its node knows, and is repeated from
there. For ends these are the ends themselves, and nothing is kept here between two calls. That
records of a share are available again is not a state to compare: it is counted here, from the first
call until a while after the last, so that nothing between two calls is missed. A counter that was
dropped begins with a number that was never sent, which the other node considers news: one check too
many is safe. So does a counter of another epoch, whose cursor is gone.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from penstock.model.calls import BrokerPort, Ends, ShareStart
from penstock.model.errors import NotLeader
from penstock.model.ports import StreamEnds
from penstock.model.topic import Topic
from penstock.wire.internal.broker_calls import AdvancedReply, AvailableReply

COUNTERS_MAX: Final = 10_000  # partitions of shares; the least recently used is dropped first
IDLE_SECONDS_MAX: Final = 60.0  # three times the longest pause of a node between two calls
WAIT_MS_MAX: Final = 30_000


class _Counter:
    """Counts how often records of one partition of a share became available."""

    __slots__ = ("led", "number", "remove", "used_at", "wakers")

    def __init__(self, number: int, led: tuple[int, int] | None) -> None:
        self.number = number
        self.led = led
        self.used_at = 0.0
        self.remove: Callable[[], None] = lambda: None
        self.wakers: set[Callable[[], None]] = set()


class RemoteListeners:
    def __init__(
        self,
        broker: BrokerPort,
        led: Callable[[Topic, int], tuple[int, int] | None],
    ) -> None:
        self._broker = broker
        self._led = led
        self._loop = asyncio.get_running_loop()
        self._serial = secrets.randbits(48)  # differs from that of an earlier process
        self._counters: OrderedDict[tuple[str, int], _Counter] = OrderedDict()

    def close(self) -> None:
        for counter in self._counters.values():
            counter.remove()
        self._counters.clear()

    # ── Ends ─────────────────────────────────────────────────────────────────────────────────

    async def advanced(
        self, topic: Topic, known: Sequence[tuple[int, StreamEnds | None]], *, wait_ms: int
    ) -> AdvancedReply:
        until = self._loop.time() + min(wait_ms, WAIT_MS_MAX) / 1_000
        reply = await self._changed_ends(topic, known)
        if reply is not None:
            return reply
        woken = asyncio.Event()
        removes: list[Callable[[], None]] = []
        try:
            for partition, _ in known:
                removes.append(self._broker.on_advance(topic, partition, woken.set))
            while True:
                # Compare first: a change before the listener was added has not set the event.
                woken.clear()
                reply = await self._changed_ends(topic, known)
                if reply is not None:
                    return reply
                if not await _is_set(woken, until - self._loop.time()):
                    return AdvancedReply()
        finally:
            for remove in removes:
                remove()

    async def _changed_ends(
        self, topic: Topic, known: Sequence[tuple[int, StreamEnds | None]]
    ) -> AdvancedReply | None:
        moved, gone = [], []
        for partition, before in known:
            try:
                ends = await self._broker.call(Ends(topic, partition))
            except NotLeader:
                gone.append(partition)
                continue
            if ends != before:
                moved.append((partition, ends))
        return AdvancedReply(moved, gone) if moved or gone else None

    # ── Availability ─────────────────────────────────────────────────────────────────────────

    async def available(
        self, share: Topic, known: Sequence[tuple[int, int]], *, wait_ms: int
    ) -> AvailableReply:
        until = self._loop.time() + min(wait_ms, WAIT_MS_MAX) / 1_000
        gone = []
        for partition, _ in known:
            try:
                await self._broker.call(ShareStart(share, partition))  # opens the share if needed
            except NotLeader:
                gone.append(partition)
        if gone:
            return AvailableReply((), gone)
        counters = [(each, number, self._counter(share, each)) for each, number in known]
        woken = asyncio.Event()
        for _, _, counter in counters:
            counter.wakers.add(woken.set)
        try:
            while True:
                woken.clear()
                news = [
                    (partition, counter.number)
                    for partition, number, counter in counters
                    if counter.number != number
                ]
                if news or not await _is_set(woken, until - self._loop.time()):
                    return AvailableReply(news)
        finally:
            for _, _, counter in counters:
                counter.wakers.discard(woken.set)

    def _counter(self, share: Topic, partition: int) -> _Counter:
        now = self._loop.time()
        key = (share.topic_id, partition)
        led = self._led(share, partition)
        counter = self._counters.get(key)
        if counter is not None and counter.led != led:
            counter.remove()
            counter = None
        if counter is None:
            counter = self._counters[key] = self._new_counter(share, partition, led)
        self._counters.move_to_end(key)
        counter.used_at = now
        self._drop_idle(now)
        return counter

    def _new_counter(self, share: Topic, partition: int, led: tuple[int, int] | None) -> _Counter:
        counter = _Counter(self._next(), led)

        def count() -> None:
            counter.number = self._next()
            for wake in tuple(counter.wakers):
                wake()

        counter.remove = self._broker.on_available(share, partition, count)
        return counter

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _drop_idle(self, now: float) -> None:
        """Drop the least recently used counters. One with a waiting call is dropped only if there
        are too many; the other node calls again when its time is over."""
        counters = self._counters
        while counters:
            key, oldest = next(iter(counters.items()))
            is_idle = now - oldest.used_at > IDLE_SECONDS_MAX and not oldest.wakers
            if not is_idle and len(counters) <= COUNTERS_MAX:
                return
            oldest.remove()
            del counters[key]


async def _is_set(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, at most for a number of seconds."""
    if not event.is_set() and seconds > 0:
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass
    return event.is_set()
