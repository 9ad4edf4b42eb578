"""Listeners that learn when the leaders of a topic change, or that stay with the leader.

One task waits for changes for all listeners. It looks at each topic once, not once per listener,
and at most a hundred times a second: when a node dies, thousands of partitions get new leaders.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from penstock.calls.routing.leaders import Leaders, Routes
from penstock.model.call_times import FOLLOW_PAUSE_SECONDS
from penstock.model.calls import BrokerPort
from penstock.model.errors import PenstockError
from penstock.model.topic import Topic

LOOK_SECONDS_MIN: Final = 0.01
WAIT_SECONDS: Final = 60.0  # then the task looks again, in case it missed a change

Listener = Callable[[], None]
Remove = Callable[[], None]
_Seen = Sequence[tuple[int, int] | None]


class _Watched:
    """A topic with listeners."""

    def __init__(self, topic: Topic, seen: _Seen) -> None:
        self.topic = topic
        self.seen = seen
        self.listeners: dict[object, Listener] = {}


class LeaderChanges:
    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._topics: dict[str, _Watched] = {}
        self._task: asyncio.Task[None] | None = None

    def watch(self, topic: Topic, listener: Listener) -> Remove:
        """Call ``listener`` when the leader or the epoch of a partition changes. Returns the
        function that removes the listener."""
        watched = self._topics.get(topic.topic_id)
        if watched is None:
            watched = self._topics[topic.topic_id] = _Watched(topic, self._look(topic))
        elif topic.modified_at_ms > watched.topic.modified_at_ms:
            watched.topic = topic  # it may have more partitions
        token = object()
        watched.listeners[token] = listener
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="changes of leaders")
        return lambda: self._remove(topic.topic_id, token)

    def _remove(self, topic_id: str, token: object) -> None:
        watched = self._topics.get(topic_id)
        if watched is not None:
            watched.listeners.pop(token, None)
            if not watched.listeners:
                del self._topics[topic_id]

    def _look(self, topic: Topic) -> _Seen:
        leader = self._routes.leader
        return [leader(topic, partition) for partition in range(topic.partition_count)]

    async def _run(self) -> None:
        """Runs until ``close``: long polls come and go all the time."""
        while True:
            for watched in tuple(self._topics.values()):
                seen = self._look(watched.topic)
                if seen != watched.seen:
                    watched.seen = seen
                    for listener in tuple(watched.listeners.values()):
                        listener()
            # No await between the look and this wait, so that no change is missed.
            await self._routes.wait_changed(WAIT_SECONDS)
            await asyncio.sleep(LOOK_SECONDS_MIN)  # to look once at changes that come together

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))


class FollowingListener:
    """A listener at the leader of a partition. It moves to each new leader, and is called at every
    move, because a caller that waits for the partition has to look who leads. If the new leader has
    not opened the partition yet, the listener is added after a short pause."""

    def __init__(
        self,
        leaders: Leaders,
        changes: LeaderChanges,
        topic: Topic,
        partition: int,
        listener: Listener,
        add: Callable[[BrokerPort, Listener], Remove],
    ) -> None:
        """``add`` adds a listener at one broker. Raises what ``add`` raises at the leader."""
        self._leaders = leaders
        self._topic = topic
        self._partition = partition
        self._listener = listener
        self._add = add
        self._led: tuple[int, int] | None = None
        self._end: Remove | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._attach()
        self._unwatch = changes.watch(topic, self._check)

    def _attach(self) -> None:
        self._led = led = self._leaders.routes.leader(self._topic, self._partition)
        if led is not None:
            self._end = self._add(self._leaders.broker(led[0]), self._listener)

    def _check(self) -> None:
        if self._leaders.routes.leader(self._topic, self._partition) != self._led:
            self._move()

    def _move(self) -> None:
        self._detach()
        try:
            self._attach()
        except PenstockError:
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(FOLLOW_PAUSE_SECONDS, self._move)
        self._listener()

    def _detach(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            end()
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def end(self) -> None:
        self._unwatch()
        self._detach()
