"""Who waits for the leaders of a topic to move is told when they have.

One task waits for changes on behalf of all, looks at each topic that somebody is interested in once
and not once for each of them, and does so no more than a hundred times a second: when a node dies,
thousands of partitions find new leaders one by one.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from penstock.frontend.routing.leaders import Routes
from penstock.model.topic import Topic

LOOK_SECONDS_MIN: Final = 0.01
WAIT_SECONDS: Final = 60.0  # by then it is asked again, whatever was missed

_Seen = Sequence[tuple[int, int] | None]


class _Interest:
    __slots__ = ("listeners", "seen", "topic")

    def __init__(self, topic: Topic, seen: _Seen) -> None:
        self.topic = topic
        self.seen = seen
        self.listeners: dict[object, Callable[[], None]] = {}


class Changes:
    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._topics: dict[str, _Interest] = {}
        self._task: asyncio.Task[None] | None = None

    def watch(self, topic: Topic, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` when another node, or the same in another epoch, leads one of the
        partitions. Returns what ends that."""
        interest = self._topics.get(topic.topic_id)
        if interest is None:
            interest = self._topics[topic.topic_id] = _Interest(topic, self._look(topic))
        elif topic.modified_at_ms > interest.topic.modified_at_ms:
            interest.topic = topic  # it may have been given more partitions
        token = object()
        interest.listeners[token] = listener
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="changes of leaders")
        return lambda: self._leave(topic.topic_id, token)

    def _leave(self, topic_id: str, token: object) -> None:
        interest = self._topics.get(topic_id)
        if interest is None or interest.listeners.pop(token, None) is None:
            return
        if not interest.listeners:
            del self._topics[topic_id]

    def _look(self, topic: Topic) -> _Seen:
        leader = self._routes.leader
        return [leader(topic, partition) for partition in range(topic.partition_count)]

    async def _run(self) -> None:
        """Goes on for good once it has begun: what comes and goes all the time is waits."""
        while True:
            for interest in tuple(self._topics.values()):
                seen = self._look(interest.topic)
                if seen != interest.seen:
                    interest.seen = seen
                    for listener in tuple(interest.listeners.values()):
                        listener()
            # Between this look and that wait there is no turn of the loop: nothing falls between.
            await self._routes.wait_changed(WAIT_SECONDS)
            await asyncio.sleep(LOOK_SECONDS_MIN)  # to look once at what changes together

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
