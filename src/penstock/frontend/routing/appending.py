"""Sending messages to a queue whose partitions are led by several nodes.

A FIFO message has one partition to go to and waits for its leader. A message to a standard queue
may go to any, and one of another node's costs both nodes about as much as doing it here. So those
led here are used in turn, and the others by whoever meets their leaders; without one of its own a
node keeps to the turn of its caller, and passes over partitions whose leaders are away.

A partition that takes nothing (its disk is full, it is damaged, it has too few replicas) must not
hold on to whoever asks this node: for a while after that the caller's turn counts again, which
comes to other nodes as well.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from penstock.frontend.routing.leaders import Leaders, NotDone, Routes, place_of
from penstock.model.errors import DiskFull, NotLeader, Overloaded, PenstockError
from penstock.model.message import Appended, Message
from penstock.model.topic import Kind, Topic

TURNS_MAX: Final = 10_000  # queues whose turn is remembered; forgetting one restarts its round
REFUSED_MAX: Final = 10_000  # queues whose partitions here are avoided; forgetting one tries them
REFUSED_SECONDS: Final = 1.0


class Appending:
    def __init__(self, leaders: Leaders) -> None:
        self._leaders = leaders
        self._local = leaders.local
        self._own = leaders.own_node
        self._leader = leaders.routes.leader
        self._loop = asyncio.get_running_loop()
        self._nearby = Nearby(leaders.own_node, leaders.routes, self._loop.time)

    async def append(
        self, topic: Topic, partition: int, messages: Sequence[Message]
    ) -> Sequence[Appended]:
        led = self._leader(topic, partition)
        if led is not None and led[0] == self._own:
            try:
                return await self._local.append(topic, partition, messages)
            except NotLeader as error:
                self._leaders.note(error)
        if topic.kind is Kind.STANDARD and topic.partition_count > 1:
            # What carries a deduplication id, as a dead letter does, is known to be there already
            # only by the partition it went to before.
            if all(each.dedup_id is None for each in messages):
                near = self._nearby.partition(topic)
                if near is not None:
                    return await self._append_near(topic, near, partition, messages)
            return await self._append_anywhere(topic, partition, messages)
        return await self._leaders.ask(
            topic,
            partition,
            lambda at: at.append(topic, partition, messages),
            is_harmless=topic.is_fifo and all(each.dedup_id is not None for each in messages),
        )

    async def _append_near(
        self, topic: Topic, near: int, wanted: int, messages: Sequence[Message]
    ) -> Sequence[Appended]:
        """Here; elsewhere only when it is certain that nothing was done."""
        try:
            return await self._local.append(topic, near, messages)
        except NotLeader as error:
            self._leaders.note(error)
        except DiskFull:
            self._nearby.refused(topic)
        except Overloaded:
            self._nearby.refused(topic)
            raise
        return await self._append_anywhere(topic, wanted, messages)

    async def _append_anywhere(
        self, topic: Topic, wanted: int, messages: Sequence[Message]
    ) -> Sequence[Appended]:
        """To the partition whose turn it is, or else to the next one behind it whose leader can
        be asked."""
        until = self._loop.time() + self._leaders.retry_seconds_max
        count = topic.partition_count
        tries = 0
        while True:
            error: PenstockError = NotLeader(place_of(topic, wanted))
            away: set[int] = set()
            led = [self._leader(topic, partition) for partition in range(count)]
            for step in range(count):
                partition = (wanted + step) % count
                one = led[partition]
                if one is None or one[0] in away:
                    continue
                try:
                    return await self._append_at(one[0], topic, partition, messages)
                except NotDone as not_done:
                    error = not_done.error
                    if not isinstance(error, NotLeader):
                        away.add(one[0])
            tries += 1
            if self._loop.time() >= until:
                raise error
            await self._leaders.pause(topic, range(count), led, tries, until)

    async def _append_at(
        self, node: int, topic: Topic, partition: int, messages: Sequence[Message]
    ) -> Sequence[Appended]:
        return await self._leaders.attempt(
            node,
            lambda at: at.append(topic, partition, messages),
            topic,
            partition,
            is_harmless=False,
        )


class Nearby:
    """Those partitions of standard queues that are led here, in turn."""

    __slots__ = ("_leader", "_now", "_own", "_refused", "_turns")

    def __init__(self, own_node: int, routes: Routes, now: Callable[[], float]) -> None:
        """``now``: seconds of a clock that only goes forward."""
        self._own = own_node
        self._leader = routes.leader
        self._now = now
        self._turns: dict[str, int] = {}  # where to look first, by topic
        self._refused: dict[str, float] = {}  # until when, by topic

    def partition(self, topic: Topic) -> int | None:
        """The next one; None when there is none to be used."""
        topic_id = topic.topic_id
        if self._refused and not self._is_willing(topic_id):
            return None
        own, leader, turns = self._own, self._leader, self._turns
        count = topic.partition_count
        begin = turns.get(topic_id, 0)
        for at in range(begin, begin + count):
            partition = at % count
            led = leader(topic, partition)
            if led is not None and led[0] == own:
                if len(turns) >= TURNS_MAX and topic_id not in turns:
                    turns.clear()
                turns[topic_id] = partition + 1
                return partition
        return None

    def refused(self, topic: Topic) -> None:
        """One of them has: none of them is used for a while."""
        if len(self._refused) >= REFUSED_MAX:
            self._refused.clear()
        self._refused[topic.topic_id] = self._now() + REFUSED_SECONDS

    def _is_willing(self, topic_id: str) -> bool:
        until = self._refused.get(topic_id)
        if until is None:
            return True
        if self._now() < until:
            return False
        del self._refused[topic_id]
        return True
