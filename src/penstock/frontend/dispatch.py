"""Calls out, each behind its callee's bulkhead: bounded, timed, cut off while the callee fails.

These are the ports over themselves: whoever calls does not know that they are there. On one machine
the callee is a plain object, and this is still how a disk that hangs or a store that is locked
stays without effect on everything else; in a cluster it is another node.

Only what changes nothing is tried again, once, and only when the way to the callee broke. Whatever
may have been done already is for the client to repeat, who knows whether it may.

What a tenant may have at most is checked here as well (``quotas.py``): every way to make a topic,
to store a message or to park passes here. The hot calls are written out, because a closure and a
coroutine more would cost as much as all of it."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from penstock.frontend.bulkhead import Bulkhead
from penstock.frontend.callees import Callees
from penstock.frontend.quotas import TenantQuotas
from penstock.model.message import Appended, Claim, Delivery, Message
from penstock.model.ports import Backend, Catalog, LeaseRequest, MoveTask, Peeked
from penstock.model.topic import QueueStats, Topic

CHANGES: Final = "changes of queues and topics under way"

# Which node serves a partition of a topic; None: the topic as a whole.
NodeOf = Callable[[Topic, int | None], str]


class DispatchedBackend:
    """Implements ``model.ports.Backend`` over another one."""

    def __init__(
        self, backend: Backend, callees: Callees, quotas: TenantQuotas, *, node_of: NodeOf
    ) -> None:
        self._backend = backend
        self._callees = callees
        self._quotas = quotas
        self._rooms = quotas.rooms
        self._node_of = node_of

    def _of(self, topic: Topic, partition: int | None = None) -> Bulkhead:
        return self._callees.backend(self._node_of(topic, partition))

    async def append(
        self, topic: Topic, partition: int, messages: Sequence[Message]
    ) -> Sequence[Appended]:
        if topic.account in self._rooms:
            self._quotas.take_room(topic.account, _size_of(messages))
        bulkhead = self._callees.backend(self._node_of(topic, partition))
        place = bulkhead.enter(topic, partition)
        try:
            appended = await self._backend.append(topic, partition, messages)
        except BaseException as error:
            bulkhead.failed(place, error)
            raise
        bulkhead.left(place)
        return appended

    async def lease(self, topic: Topic, request: LeaseRequest) -> Sequence[Delivery]:
        bulkhead = self._callees.backend(self._node_of(topic, None))
        if request.wait_ms > 0:
            if not bulkhead.is_suspect(topic):
                return await self._parked(bulkhead, topic, request)
            request = LeaseRequest(request.count, request.lease_ms, 0, request.attempt_id)
        place = bulkhead.enter(topic)
        try:
            deliveries = await self._backend.lease(topic, request)
        except BaseException as error:
            bulkhead.failed(place, error)
            raise
        bulkhead.left(place)
        return deliveries

    async def _parked(
        self, bulkhead: Bulkhead, topic: Topic, request: LeaseRequest
    ) -> Sequence[Delivery]:
        is_counted = self._quotas.begin_wait(topic.account)
        try:
            place = bulkhead.park(request.wait_ms, topic)
            try:
                deliveries = await self._backend.lease(topic, request)
            except BaseException as error:
                bulkhead.failed(place, error)
                raise
            bulkhead.left(place)
            return deliveries
        finally:
            if is_counted:
                self._quotas.end_wait(topic.account)

    async def ack(
        self, topic: Topic, partition: int, claims: Sequence[Claim]
    ) -> Sequence[Exception | None]:
        bulkhead = self._callees.backend(self._node_of(topic, partition))
        place = bulkhead.enter(topic, partition)
        try:
            results = await self._backend.ack(topic, partition, claims)
        except BaseException as error:
            bulkhead.failed(place, error)
            raise
        bulkhead.left(place)
        return results

    async def extend(
        self,
        topic: Topic,
        partition: int,
        claims: Sequence[tuple[Claim, int]],
        *,
        is_strict: bool = False,
    ) -> Sequence[Exception | None]:
        return await self._of(topic, partition).call(
            lambda: self._backend.extend(topic, partition, claims, is_strict=is_strict),
            topic,
            partition,
        )

    async def purge(self, topic: Topic) -> None:
        await self._of(topic).call(lambda: self._backend.purge(topic), topic)

    async def stats(self, topic: Topic, *, is_detailed: bool = False) -> QueueStats:
        return await self._of(topic).read(
            lambda: self._backend.stats(topic, is_detailed=is_detailed), topic
        )

    async def peek(
        self, topic: Topic, *, partition: int, start: int, count: int
    ) -> tuple[Sequence[Peeked], int]:
        return await self._of(topic, partition).read(
            lambda: self._backend.peek(topic, partition=partition, start=start, count=count),
            topic,
            partition,
        )

    # Tasks are kept in the metadata, and the metadata is what these wait for.

    async def start_move(self, task: MoveTask) -> None:
        await self._callees.metadata.call(lambda: self._backend.start_move(task))

    async def cancel_move(self, task_id: str) -> MoveTask | None:
        return await self._callees.metadata.call(lambda: self._backend.cancel_move(task_id))

    def moves(self, source_arn: str) -> Sequence[MoveTask]:
        return self._backend.moves(source_arn)


class DispatchedCatalog:
    """Implements ``model.ports.Catalog`` over another one: what is in memory is asked directly,
    changes go through the metadata's bulkhead."""

    def __init__(self, catalog: Catalog, callees: Callees, quotas: TenantQuotas) -> None:
        self._catalog = catalog
        self._metadata = callees.metadata
        self._quotas = quotas
        # Nothing to add to what only looks, and one of them is on the path of every message.
        self.find = catalog.find
        self.find_arn = catalog.find_arn
        self.find_id = catalog.find_id
        self.topics = catalog.topics
        self.all_topics = catalog.all_topics
        self.recently_deleted = catalog.recently_deleted
        self.tombstone = catalog.tombstone
        self.on_change = catalog.on_change

    async def create(self, topic: Topic) -> Topic:
        with (
            self._metadata.shares.holding(topic.account, CHANGES),
            self._quotas.adding(topic.account, topics=1, partitions=topic.partition_count),
        ):
            return await self._metadata.call(lambda: self._catalog.create(topic))

    async def change(
        self, account: str, region: str, name: str, change: Callable[[Topic], Topic]
    ) -> Topic:
        with self._metadata.shares.holding(account, CHANGES), ExitStack() as room:

            def checked(before: Topic) -> Topic:
                after = change(before)
                room.pop_all().close()  # of the try before, if another node was faster
                added = max(0, after.partition_count - before.partition_count)
                room.enter_context(self._quotas.adding(account, partitions=added))
                return after

            return await self._metadata.call(
                lambda: self._catalog.change(account, region, name, checked)
            )

    async def delete(self, account: str, region: str, name: str, *, now_ms: int) -> Topic:
        with self._metadata.shares.holding(account, CHANGES):
            return await self._metadata.call(
                lambda: self._catalog.delete(account, region, name, now_ms=now_ms)
            )


def _size_of(messages: Sequence[Message]) -> int:
    size = 0
    for message in messages:
        size += len(message.body)
        if message.attributes:
            size += sum(len(n) + len(a.value) for n, a in message.attributes.items())
    return size
