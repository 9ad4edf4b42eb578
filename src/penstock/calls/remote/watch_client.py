"""Listeners on partitions of another node: one call per topic waits there for all of them.

The call sends what is known, and gets a reply when that is no longer true or the time is over; then
it is made again. For a new partition the reply comes at once, so that no change is missed. If the
node does not reply or no longer leads a partition, the listeners are called as well, and the call
is made again after a pause.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from penstock.model.call_times import (
    WATCH_MS,
    WATCH_PAUSE_SECONDS_MAX,
    WATCH_PAUSE_SECONDS_MIN,
)
from penstock.model.errors import PenstockError
from penstock.model.topic import Topic

K = TypeVar("K")

Known = Sequence[tuple[int, K]]
# What is new, by partition, and the partitions that the node does not lead.
News = tuple[Known[K], Sequence[int]]
Wait = Callable[[Topic, Known[K], int], Awaitable[News[K]]]


class Watches(Generic[K]):
    def __init__(self, wait: Wait[K], unknown: K) -> None:
        """``unknown``: sent for a partition without a reply so far."""
        self._wait = wait
        self._unknown = unknown
        self._topics: dict[str, _Watched[K]] = {}

    def add(self, topic: Topic, partition: int, listener: Callable[[], None]) -> Callable[[], None]:
        watched = self._topics.get(topic.topic_id)
        if watched is None:
            watched = self._topics[topic.topic_id] = _Watched(topic, self._wait, self._unknown)
            watched.task.add_done_callback(lambda _: self._ended(topic.topic_id, watched))
        token = object()
        watched.add(partition, token, listener)
        return lambda: watched.remove(partition, token)

    def _ended(self, topic_id: str, watched: "_Watched[K]") -> None:
        if self._topics.get(topic_id) is watched:
            del self._topics[topic_id]

    async def close(self) -> None:
        tasks = [watched.task for watched in self._topics.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class _Watched(Generic[K]):
    """The listeners on one topic."""

    def __init__(self, topic: Topic, wait: Wait[K], unknown: K) -> None:
        self._topic = topic
        self._wait = wait
        self._unknown = unknown
        self._listeners: dict[int, dict[object, Callable[[], None]]] = {}
        self._known: dict[int, K] = {}
        self._gone_until: dict[int, float] = {}
        self._pause = WATCH_PAUSE_SECONDS_MIN
        self._changed = asyncio.Event()  # set when the partitions with listeners change
        self._loop = asyncio.get_running_loop()
        self.task = asyncio.create_task(self._run(), name=f"watch {topic.topic_id} elsewhere")

    def add(self, partition: int, token: object, listener: Callable[[], None]) -> None:
        listeners = self._listeners.get(partition)
        if listeners is None:
            listeners = self._listeners[partition] = {}
            self._changed.set()
        else:
            # The call in progress has no reply for what is new to this listener only.
            self._loop.call_soon(self._call_one, partition, token)
        listeners[token] = listener

    def remove(self, partition: int, token: object) -> None:
        listeners = self._listeners.get(partition)
        if listeners is not None and listeners.pop(token, None) is not None and not listeners:
            del self._listeners[partition]
            self._known.pop(partition, None)
            self._gone_until.pop(partition, None)
            if not self._listeners:
                self._changed.set()

    async def _run(self) -> None:
        while self._listeners:
            self._changed.clear()
            now = self._loop.time()
            again_at = min((at for at in self._gone_until.values() if at > now), default=None)
            wait_s = WATCH_MS / 1_000 if again_at is None else again_at - now
            known = [
                (partition, self._known.get(partition, self._unknown))
                for partition in self._listeners
                if self._gone_until.get(partition, 0.0) <= now
            ]
            if known:
                await self._wait_once(known, wait_s)
            else:
                await self._until_changed(wait_s)

    async def _wait_once(self, known: Known[K], wait_s: float) -> None:
        call = asyncio.ensure_future(self._wait(self._topic, known, int(wait_s * 1_000)))
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait((call, changed), return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                return  # to be made again, for other partitions
            news, gone = call.result()
        except PenstockError:
            self._call_listeners([partition for partition, _ in known])
            await self._until_changed(self._pause)
            self._pause = min(2 * self._pause, WATCH_PAUSE_SECONDS_MAX)
            return
        finally:
            call.cancel()
            changed.cancel()
        self._pause = WATCH_PAUSE_SECONDS_MIN
        again_at = self._loop.time() + WATCH_PAUSE_SECONDS_MAX
        for partition in gone:
            self._gone_until[partition] = again_at
            self._known.pop(partition, None)
        for partition, value in news:
            if partition in self._listeners:
                self._known[partition] = value
        self._call_listeners([*gone, *(partition for partition, _ in news)])

    def _call_listeners(self, partitions: Sequence[int]) -> None:
        for partition in partitions:
            for listener in tuple(self._listeners.get(partition, {}).values()):
                listener()

    def _call_one(self, partition: int, token: object) -> None:
        listener = self._listeners.get(partition, {}).get(token)
        if listener is not None:
            listener()

    async def _until_changed(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass
