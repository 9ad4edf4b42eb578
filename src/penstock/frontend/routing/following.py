"""A listener that stays with the leader of a partition, wherever that goes.

It is added at whoever leads, taken along when another does, and told of each move: who parks on a
partition that has just left this node has to look, to hear that it has. A node may be known to lead
before it has opened the partition: then it is tried again shortly. Where nobody leads there is
nothing to listen to until somebody does.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.frontend.routing.changes import Changes
from penstock.frontend.routing.leaders import BrokerCalls, Leaders
from penstock.model.errors import PenstockError
from penstock.model.topic import Topic

RETRY_SECONDS: Final = 0.05

Listener = Callable[[], None]
# Adds a listener at one broker and returns what ends that.
Add = Callable[[BrokerCalls, Listener], Callable[[], None]]


class Following:
    __slots__ = (
        "_add",
        "_end",
        "_leaders",
        "_led",
        "_listener",
        "_partition",
        "_retry",
        "_topic",
        "_unwatch",
    )

    def __init__(
        self,
        leaders: Leaders,
        changes: Changes,
        topic: Topic,
        partition: int,
        listener: Listener,
        add: Add,
    ) -> None:
        """Raises what adding it raises where the partition is led right now."""
        self._leaders = leaders
        self._topic = topic
        self._partition = partition
        self._listener = listener
        self._add = add
        self._led: tuple[int, int] | None = None
        self._end: Callable[[], None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._attach()
        self._unwatch = changes.watch(topic, self._moved)

    def _attach(self) -> None:
        self._led = led = self._leaders.routes.leader(self._topic, self._partition)
        if led is not None:
            self._end = self._add(self._leaders.broker(led[0]), self._listener)

    def _moved(self) -> None:
        if self._leaders.routes.leader(self._topic, self._partition) != self._led:
            self._follow()

    def _follow(self) -> None:
        self._detach()
        try:
            self._attach()
        except PenstockError:
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(RETRY_SECONDS, self._follow)
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
