"""The lease view over all partitions of one topic, its own or a share's: whom to ask first, and
when to park.

The in-flight limit is the queue's. Where other nodes lead some of its partitions, this one uses up
to half of its part of the limit without asking; beyond that it asks now and then how much is in
flight in all, and counts what the others have. So a queue whose messages are all on one node has
the whole limit, and one that is full on several exceeds it by less than a half, and by what is
leased while the first question is under way."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from penstock.broker.leases import Leases
from penstock.broker.partition import Partition
from penstock.broker.taken import Taken
from penstock.broker.waits import Wait, Waits
from penstock.cursor.outcome import Pick
from penstock.model.errors import InFlightLimit, NotLeader, PenstockError
from penstock.model.message import Claim, Delivery
from penstock.model.ports import LeaseRequest
from penstock.model.topic import Obstacles, QueueStats, Topic, join_obstacles

# Moves picks of a partition to the topic's dead-letter target and acknowledges them.
MoveDead = Callable[[Leases, Sequence[Pick]], Awaitable[None]]
# The attempts a record has before it is dead-lettered; None without a rule or with a target gone.
AttemptsMax = Callable[[Topic], int | None]
# Of a topic on all nodes.
StatsOfAll = Callable[[Topic], Awaitable[QueueStats]]

ELSEWHERE_SECONDS = 1.0  # for which an answer about other nodes is good

T = TypeVar("T")


class Led(dict[int, T]):
    """By index, those partitions that this node leads. Asking for another one is an error that
    tells the caller so, at no cost to those who ask for the right one."""

    __slots__ = ("_topic_id",)

    def __init__(self, topic_id: str) -> None:
        super().__init__()
        self._topic_id = topic_id

    def __missing__(self, index: int) -> T:
        raise NotLeader(f"{self._topic_id}/{index}")


class Queue:
    def __init__(
        self,
        topic: Topic,
        partitions: Iterable[Partition],
        waits: Waits,
        *,
        in_flight_max: int,
        attempts_max: AttemptsMax,
        move_dead: MoveDead,
        spawn: Callable[[Awaitable[None], str], None],
        stats_of_all: StatsOfAll | None = None,
    ) -> None:
        """``stats_of_all``: None on a node by itself."""
        self.topic = topic
        # Those that this node leads, by their index; a share's are its source's.
        self.partitions: Led[Partition] = Led(topic.topic_id)
        self.leases: Led[Leases] = Led(topic.topic_id)
        self.waits = waits
        self._in_flight_max = in_flight_max
        self._attempts_max = attempts_max
        self._move_dead = move_dead
        self._spawn = spawn
        self._stats_of_all = stats_of_all
        self._held_elsewhere = 0  # in flight on other nodes, as was heard last
        self._elsewhere_at = -ELSEWHERE_SECONDS
        self._turn = 0
        self._views: tuple[Leases, ...] = ()
        self._loop = asyncio.get_running_loop()
        for partition in partitions:
            self.add(partition)

    def add(self, partition: Partition) -> None:
        """The topic has another partition."""
        topic = self.topic
        if topic.is_share:
            leases = partition.shares[topic.topic_id]
        else:
            leases = partition.leases
            partition.topic = topic
        leases.topic = topic
        leases.waits = self.waits
        leases.take_for_wait = self._taker(leases)
        self.partitions[partition.index] = partition
        self.leases[partition.index] = leases
        self._views = tuple(self.leases.values())

    def remove(self, index: int) -> None:
        """Another node leads it now."""
        self.partitions.pop(index, None)
        self.leases.pop(index, None)
        self._views = tuple(self.leases.values())
        if not self._views:
            self.waits.fail(NotLeader(self.topic.topic_id))

    def replace_topic(self, topic: Topic) -> None:
        """New settings. Leases already given keep theirs."""
        self.topic = topic
        if not topic.is_share:
            for partition in self.partitions.values():
                partition.topic = topic
        for leases in self._views:
            leases.topic = topic
            leases.wake()

    async def lease(self, request: LeaseRequest) -> Sequence[Delivery]:
        deliveries = await self._lease_now(request)
        if deliveries or request.wait_ms <= 0:
            return deliveries
        wait = Wait(request, self._loop)
        self.waits.park(wait)
        timer = self._loop.call_later(request.wait_ms / 1_000, _run_out, wait)
        try:
            for leases in self._views:
                # Something may have come while the first look was being written down.
                leases.wake()
            taken = await wait.taken
            if taken is None:
                return ()
            await self._settled(taken)
            return taken.deliveries
        except asyncio.CancelledError:
            # The client left in the very turn it was served: give back what it cannot receive.
            if wait.taken.done() and not wait.taken.cancelled() and not wait.taken.exception():
                taken = wait.taken.result()
                if taken is not None:
                    self._spawn(self._give_back(taken.deliveries), "give back")
            raise
        finally:
            timer.cancel()
            self.waits.leave(wait)

    async def _lease_now(self, request: LeaseRequest) -> Sequence[Delivery]:
        """Ask the partitions in turn, beginning with another one each time."""
        views = self._views
        count = len(views)
        if not count:
            raise NotLeader(self.topic.topic_id)
        self._turn = (self._turn + 1) % count
        attempts_max = self._attempts_max(self.topic)
        deliveries: list[Delivery] = []
        is_over_limit = False
        for step in range(count):
            leases = views[(self._turn + step) % count]
            wanted = request
            if deliveries:
                wanted = LeaseRequest(
                    request.count - len(deliveries), request.lease_ms, 0, request.attempt_id
                )
            is_cut = True
            while is_cut:
                taken = leases.take(
                    wanted, attempts_max=attempts_max, in_flight_max=self._room(leases)
                )
                is_cut = taken.is_cut
                is_over_limit = is_over_limit or taken.is_over_limit
                if taken.deliveries or taken.flush is not None or taken.dead or is_cut:
                    await self._taken(leases, taken, deliveries)
            if len(deliveries) >= request.count:
                break
        if is_over_limit and not deliveries and request.wait_ms <= 0 and not self.topic.is_fifo:
            raise InFlightLimit(f"Too many messages in flight: the limit is {self._in_flight_max}.")
        return deliveries

    async def _taken(self, leases: Leases, taken: Taken, deliveries: list[Delivery]) -> None:
        """Add to ``deliveries`` what was taken, once it can be answered; if the attempt was cut
        short, return when the next one can be made."""
        first = len(deliveries)
        deliveries.extend(taken.deliveries)
        try:
            if taken.dead:
                # Finished before the answer, so that who saw nothing here finds them there.
                await self._move_dead(leases, taken.dead)
            await self._settled(taken)
            deliveries[first:] = taken.deliveries  # with those that were late
            if taken.is_cut:
                await leases.ready()
        except asyncio.CancelledError:
            if deliveries:
                self._spawn(self._give_back(deliveries), "give back")
            raise

    def _room(self, leases: Leases) -> int:
        """The in-flight limit is the queue's: a partition may use what the others leave."""
        views, others = self._views, 0
        if len(views) > 1:
            others = sum(each.in_flight for each in views if each is not leases)
        if self._stats_of_all is not None and len(views) < self.topic.partition_count:
            own = others + leases.cursor.in_flight_most
            if own > self._in_flight_max * len(views) // (2 * self.topic.partition_count):
                self._ask_elsewhere()
                others += self._held_elsewhere
        return max(0, self._in_flight_max - others) if others else self._in_flight_max

    def _ask_elsewhere(self) -> None:
        now = self._loop.time()
        if now - self._elsewhere_at >= ELSEWHERE_SECONDS:
            self._elsewhere_at = now
            self._spawn(self._hear_elsewhere(), "what is in flight elsewhere")

    async def _hear_elsewhere(self) -> None:
        assert self._stats_of_all is not None
        try:
            in_all = (await self._stats_of_all(self.topic)).in_flight
        except PenstockError:
            return  # what was heard last is better than nothing
        own = sum(each.in_flight for each in self._views)
        before, self._held_elsewhere = self._held_elsewhere, max(0, in_all - own)
        if self._held_elsewhere < before:
            for leases in self._views:
                leases.wake()

    def _taker(self, leases: Leases) -> Callable[[LeaseRequest], Taken]:
        def take(request: LeaseRequest) -> Taken:
            taken = leases.take(
                request,
                attempts_max=self._attempts_max(self.topic),
                in_flight_max=self._room(leases),
            )
            if taken.dead:
                self._spawn(self._move_dead(leases, taken.dead), "dead-letter")
            return taken

        return take

    async def _settled(self, taken: Taken) -> None:
        flush = taken.flush
        if flush is not None:
            if self.topic.is_fifo:
                await flush.committed.wait()
            else:
                await flush.written.wait()
        if taken.finish is not None:
            await taken.finish(taken)

    async def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            claim = Claim(delivery.partition, delivery.record.offset, delivery.lease_seq)
            with contextlib.suppress(Exception):
                # Strictly: somebody else may have leased it since.
                await self.leases[delivery.partition].extend([(claim, 0)], is_strict=True)

    async def obstacles(self) -> Obstacles:
        attempts_max = self._attempts_max(self.topic)
        found = [await each.obstacles(attempts_max=attempts_max) for each in self._views]
        joined = join_obstacles(found)
        return msgspec.structs.replace(joined, in_flight_max=self._in_flight_max)

    def stats(self) -> QueueStats:
        visible = in_flight = delayed = 0
        oldest: int | None = None
        for leases in self._views:
            counts = leases.counts()
            visible += counts[0]
            in_flight += counts[1]
            delayed += counts[2]
            sent_at_ms = leases.oldest_sent_at_ms()
            if sent_at_ms is not None and (oldest is None or sent_at_ms < oldest):
                oldest = sent_at_ms
        views = self._views
        partitions = self.partitions.values()
        return QueueStats(
            visible=visible,
            in_flight=in_flight,
            delayed=delayed,
            oldest_sent_at_ms=oldest,
            log_bytes=sum(p.log.size_bytes for p in partitions),
            sent=sum(p.sent_count for p in partitions),
            received=sum(each.received_count for each in views),
            acked=sum(each.acked_count for each in views),
            dead_lettered=sum(each.dead_count for each in views),
            expired=sum(each.expired_count for each in views),
            waits=len(self.waits),
        )


def _run_out(wait: Wait) -> None:
    if not wait.taken.done():
        wait.taken.set_result(None)
