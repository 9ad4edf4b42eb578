"""The partitions of one queue or share on this node: the order in which receives try them, parked
receives, and the in-flight limit. If other nodes lead some of the partitions, this node ignores
messages in flight there until its own partitions use half of the limit that an equal division gives
them. Above that, it periodically fetches the number in flight on all nodes. So a queue with all
messages on one node can use the whole limit, and a full queue exceeds it by less than half."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol, TypeVar

import msgspec

from penstock.broker.leases.leases import Leases
from penstock.broker.leases.waits import LeaseResult, Wait, Waits
from penstock.broker.partition.partition import Partition
from penstock.cursor.leases.events import Pick
from penstock.model.errors import InFlightLimit, NotLeader, PenstockError
from penstock.model.message import Delivery
from penstock.model.ports import LeaseRequest
from penstock.model.topic import Obstacles, QueueStats, Topic, join_obstacles

StatsOfAll = Callable[[Topic], Awaitable[QueueStats]]

REMOTE_STATS_SECONDS = 1.0  # minimum interval between two requests for the total

T = TypeVar("T")


class DeadLetters(Protocol):
    # Returns the attempts before a message is dead-lettered; None without a dead-letter queue.
    def attempts_max(self, topic: Topic) -> int | None: ...

    # Moves records to the topic's dead-letter queue and acks them.
    async def move(self, leases: Leases, picks: Sequence[Pick]) -> None: ...


class Led(dict[int, T]):
    """A dict of objects by partition index. Raises NotLeader for partitions of other nodes."""

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
        dead_letters: DeadLetters,
        spawn: Callable[[Awaitable[None], str], None],
        stats_of_all: StatsOfAll | None = None,
    ) -> None:
        self.topic = topic
        self.partitions: Led[Partition] = Led(topic.topic_id)
        self.leases: Led[Leases] = Led(topic.topic_id)
        self.waits = waits
        self._in_flight_max = in_flight_max
        self._attempts_max = dead_letters.attempts_max
        self._move_dead = dead_letters.move
        self._spawn = spawn
        self._stats_of_all = stats_of_all
        self._remote_in_flight = 0  # on other nodes, at the last request
        self._remote_requested_at = -REMOTE_STATS_SECONDS
        self._turn = 0
        self._views: tuple[Leases, ...] = ()
        self._loop = asyncio.get_running_loop()
        for partition in partitions:
            self.add(partition)

    def add(self, partition: Partition) -> None:
        topic = self.topic
        if topic.is_share:
            leases = partition.shares[topic.topic_id]
        else:
            leases = partition.leases
            partition.topic = topic
        leases.topic = topic
        leases.waits = self.waits
        leases.lease_for_wait = self._lease_for_wait(leases)
        self.partitions[partition.index] = partition
        self.leases[partition.index] = leases
        self._views = tuple(self.leases.values())

    def remove(self, index: int) -> None:
        self.partitions.pop(index, None)
        self.leases.pop(index, None)
        self._views = tuple(self.leases.values())
        if not self._views:
            self.waits.end(NotLeader(self.topic.topic_id))

    def replace_topic(self, topic: Topic) -> None:
        """Apply new settings. Messages in flight keep their visibility timeout."""
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
        timer = self._loop.call_later(request.wait_ms / 1_000, _end_wait, wait)
        try:
            for leases in self._views:
                # Messages may have arrived while the first attempt was written.
                leases.wake()
            result = await wait.result
            if result is None:
                return ()
            await self._settled(result)
            return result.deliveries
        except asyncio.CancelledError:
            # The client disconnected just when it was served: release the messages.
            if wait.result.done() and not wait.result.cancelled() and not wait.result.exception():
                result = wait.result.result()
                if result is not None:
                    self._spawn(self._release(result.deliveries), "release")
            raise
        finally:
            timer.cancel()
            self.waits.leave(wait)

    async def _lease_now(self, request: LeaseRequest) -> Sequence[Delivery]:
        """Lease from the partitions in turn, starting with a different one each time."""
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
                wanted = msgspec.structs.replace(
                    request, count=request.count - len(deliveries), wait_ms=0
                )
            is_cut = True
            while is_cut:
                room = self._room(leases)
                result = leases.lease(wanted, attempts_max=attempts_max, in_flight_max=room)
                is_cut = result.is_cut
                is_over_limit = is_over_limit or result.is_over_limit
                if result.deliveries or result.flush is not None or result.dead or is_cut:
                    await self._collect(leases, result, deliveries)
            if len(deliveries) >= request.count:
                break
        if is_over_limit and not deliveries and request.wait_ms <= 0 and not self.topic.is_fifo:
            raise InFlightLimit(f"Too many messages in flight: the limit is {self._in_flight_max}.")
        return deliveries

    async def _collect(
        self, leases: Leases, result: LeaseResult, deliveries: list[Delivery]
    ) -> None:
        """Wait until the leases are durable, and add their messages to ``deliveries``."""
        first = len(deliveries)
        deliveries.extend(result.deliveries)
        try:
            if result.dead:
                # Before the reply, so that a client that receives nothing finds them there.
                await self._move_dead(leases, result.dead)
            await self._settled(result)
            deliveries[first:] = result.deliveries  # now including late ones
            if result.is_cut:
                await leases.reader.ready()
        except asyncio.CancelledError:
            if deliveries:
                self._spawn(self._release(deliveries), "release")
            raise

    def _room(self, leases: Leases) -> int:
        """Return how many messages of a partition may be in flight, given the other partitions."""
        views, others = self._views, 0
        if len(views) > 1:
            others = sum(each.in_flight for each in views if each is not leases)
        if self._stats_of_all is not None and len(views) < self.topic.partition_count:
            own = others + leases.cursor.in_flight_most
            if own > self._in_flight_max * len(views) // (2 * self.topic.partition_count):
                now = self._loop.time()
                if now - self._remote_requested_at >= REMOTE_STATS_SECONDS:
                    self._remote_requested_at = now
                    self._spawn(self._request_remote(), "request the total in flight")
                others += self._remote_in_flight
        return max(0, self._in_flight_max - others) if others else self._in_flight_max

    async def _request_remote(self) -> None:
        assert self._stats_of_all is not None
        try:
            total = (await self._stats_of_all(self.topic)).in_flight
        except PenstockError:
            return  # keep the last number
        own = sum(each.in_flight for each in self._views)
        before, self._remote_in_flight = self._remote_in_flight, max(0, total - own)
        if self._remote_in_flight < before:
            for leases in self._views:
                leases.wake()

    def _lease_for_wait(self, leases: Leases) -> Callable[[LeaseRequest], LeaseResult]:
        def lease(request: LeaseRequest) -> LeaseResult:
            result = leases.lease(
                request,
                attempts_max=self._attempts_max(self.topic),
                in_flight_max=self._room(leases),
            )
            if result.dead:
                self._spawn(self._move_dead(leases, result.dead), "dead-letter")
            return result

        return lease

    async def _settled(self, result: LeaseResult) -> None:
        flush = result.flush
        if flush is not None:
            if self.topic.is_fifo:
                await flush.committed.wait()
            else:
                await flush.written.wait()
        if result.finish is not None:
            await result.finish(result)

    async def _release(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            with contextlib.suppress(Exception):
                # Strict, because another consumer may have leased the message since.
                await self.leases[delivery.partition].extend([(delivery.claim, 0)], is_strict=True)

    async def obstacles(self) -> Obstacles:
        attempts_max = self._attempts_max(self.topic)
        found = [await each.obstacles(attempts_max=attempts_max) for each in self._views]
        joined = join_obstacles(found)
        return msgspec.structs.replace(joined, in_flight_max=self._in_flight_max)

    def stats(self) -> QueueStats:
        views = self._views
        partitions = self.partitions.values()
        counts = [each.counts() for each in views]
        oldest = [at_ms for each in views if (at_ms := each.oldest_sent_at_ms()) is not None]
        return QueueStats(
            visible=sum(visible for visible, _, _ in counts),
            in_flight=sum(in_flight for _, in_flight, _ in counts),
            delayed=sum(delayed for _, _, delayed in counts),
            oldest_sent_at_ms=min(oldest, default=None),
            log_bytes=sum(p.log.size_bytes for p in partitions),
            sent=sum(p.sent_count for p in partitions),
            received=sum(each.received_count for each in views),
            acked=sum(each.acked_count for each in views),
            dead_lettered=sum(each.dead_count for each in views),
            expired=sum(each.expired_count for each in views),
            waits=len(self.waits),
        )


def _end_wait(wait: Wait) -> None:
    if not wait.result.done():
        wait.result.set_result(None)
