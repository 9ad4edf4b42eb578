"""Listeners on partitions of another node: one question per topic waits there for all of them.

The other side is told what is known and answers when that is no longer so, or when the time is
over; then it is asked again. What is not known yet is answered at once, so that a listener hears
from the beginning and nothing falls between its last look and the first question. When the node
does not answer, or does not lead a partition any more, listeners are told as well: they look, and
the look tells them what is wrong. Then it is asked again after a pause, for as long as anybody
listens.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from penstock.model.errors import PenstockError
from penstock.model.topic import Topic

K = TypeVar("K")

WAIT_MS: Final = 20_000
PAUSE_SECONDS_MIN: Final = 0.1
PAUSE_SECONDS_MAX: Final = 2.0

Known = Sequence[tuple[int, K]]
# What is new, by partition, and which of them are not led there.
Told = tuple[Known[K], Sequence[int]]
Ask = Callable[[Topic, Known[K], int], Awaitable[Told[K]]]


class Watches(Generic[K]):
    def __init__(self, ask: Ask[K], unknown: K) -> None:
        """``unknown``: what is said to be known of a partition that was never asked about."""
        self._ask = ask
        self._unknown = unknown
        self._topics: dict[str, _Watched[K]] = {}

    def add(self, topic: Topic, partition: int, listener: Callable[[], None]) -> Callable[[], None]:
        watched = self._topics.get(topic.topic_id)
        if watched is None:
            watched = self._topics[topic.topic_id] = _Watched(topic, self._ask, self._unknown)
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

    def __init__(self, topic: Topic, ask: Ask[K], unknown: K) -> None:
        self._topic = topic
        self._ask = ask
        self._unknown = unknown
        self._listeners: dict[int, dict[object, Callable[[], None]]] = {}
        self._known: dict[int, K] = {}
        self._gone_until: dict[int, float] = {}
        self._pause = PAUSE_SECONDS_MIN
        self._changed = asyncio.Event()  # who listens where
        self._loop = asyncio.get_running_loop()
        self.task = asyncio.create_task(self._run(), name=f"watch {topic.topic_id} elsewhere")

    def add(self, partition: int, token: object, listener: Callable[[], None]) -> None:
        listeners = self._listeners.get(partition)
        if listeners is None:
            listeners = self._listeners[partition] = {}
            self._changed.set()
        else:
            # The question under way is answered by what is new to it, not to this one.
            self._loop.call_soon(self._tell_one, partition, token)
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
        # The first of them is added behind the making of this task.
        while self._listeners:
            self._changed.clear()
            now = self._loop.time()
            again_at = min((at for at in self._gone_until.values() if at > now), default=None)
            wait_s = WAIT_MS / 1_000 if again_at is None else again_at - now
            asked = [
                (partition, self._known.get(partition, self._unknown))
                for partition in self._listeners
                if self._gone_until.get(partition, 0.0) <= now
            ]
            if not asked:
                await self._until_changed(wait_s)
                continue
            await self._ask_once(asked, wait_s)

    async def _ask_once(self, asked: Known[K], wait_s: float) -> None:
        question = asyncio.ensure_future(self._ask(self._topic, asked, int(wait_s * 1_000)))
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait((question, changed), return_when=asyncio.FIRST_COMPLETED)
            if not question.done():
                return  # to be asked again, about others
            news, gone = question.result()
        except PenstockError:
            self._tell([partition for partition, _ in asked])
            await self._until_changed(self._pause)
            self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)
            return
        finally:
            question.cancel()
            changed.cancel()
        self._pause = PAUSE_SECONDS_MIN
        again_at = self._loop.time() + PAUSE_SECONDS_MAX
        for partition in gone:
            self._gone_until[partition] = again_at
            self._known.pop(partition, None)
        for partition, value in news:
            if partition in self._listeners:
                self._known[partition] = value
        self._tell([*gone, *(partition for partition, _ in news)])

    def _tell(self, partitions: Sequence[int]) -> None:
        for partition in partitions:
            for listener in tuple(self._listeners.get(partition, {}).values()):
                listener()

    def _tell_one(self, partition: int, token: object) -> None:
        listener = self._listeners.get(partition, {}).get(token)
        if listener is not None:
            listener()

    async def _until_changed(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass
