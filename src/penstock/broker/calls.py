"""The broker's calls: ``model.ports.Backend`` for the partitions of this node. A thin table; what a
call means is in queue.py and partition.py."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from penstock.broker.moves import Mover
from penstock.broker.partition import Partition
from penstock.broker.partitions import Partitions
from penstock.broker.queue import Queue
from penstock.broker.redrive import Redriver
from penstock.broker.shares import ShareCalls
from penstock.broker.surroundings import Surroundings
from penstock.metadata.moves import MoveTasks
from penstock.model.errors import DiskFull, InvalidRequest, PurgeInProgress, TopicNotFound
from penstock.model.limits import PURGE_INTERVAL_MS
from penstock.model.message import Appended, Claim, Delivery, Message
from penstock.model.names import is_internal
from penstock.model.ports import (
    Backend,
    BatchAppended,
    Fetched,
    LeaseRequest,
    Marker,
    MoveTask,
    Peeked,
    ProducerSeen,
    Shares,
    StreamEnds,
)
from penstock.model.stream import settings_of
from penstock.model.topic import Kind, QueueStats, Topic

RECORD_OVERHEAD_BYTES = 192  # batch header, record framing and system fields, generously


class BackendAndShares(Backend, Shares, Protocol):
    """Of all nodes."""


class Broker:
    def __init__(
        self,
        surroundings: Surroundings,
        tasks: MoveTasks,
        *,
        entropy: Callable[[int], bytes],
        is_clustered: bool = False,
    ) -> None:
        self._surroundings = surroundings
        self._is_clustered = is_clustered
        self._disk = surroundings.disk
        self._redriver = Redriver(self, surroundings.catalog, surroundings.hold)
        self.partitions = Partitions(
            surroundings,
            attempts_max=self._redriver.attempts_max,
            move_dead=self._redriver.move,
            is_clustered=is_clustered,
        )
        self.shares = ShareCalls(surroundings, self.partitions, self._redriver, entropy=entropy)
        self._mover = Mover(
            self, surroundings.catalog, tasks, entropy=entropy, hold=surroundings.hold
        )
        self._purged_at_ms: dict[str, int] = {}

    def go_through(self, backend: BackendAndShares) -> None:
        """In a cluster: what this broker sends to other queues goes to whoever leads them."""
        self.shares.elsewhere = backend
        self._redriver.backend = backend
        self._mover.backend = backend
        self.partitions.ask_others_with(backend.stats)

    async def start(self) -> None:
        await self.partitions.start()
        if self._is_clustered:
            self.partitions.on_led(self._led)
        else:
            self._mover.resume()

    def _led(self, partition: Partition, is_led: bool) -> None:
        """Tasks are where the first partition of their source is led."""
        if partition.index == 0 and is_led:
            self._mover.resume_of(partition.topic.arn)
        elif partition.index == 0:
            self._mover.leave(partition.topic.arn)

    async def stop(self) -> None:
        await self._mover.stop()
        await self.partitions.stop()

    async def _queue(self, topic: Topic) -> Queue:
        return self.partitions.find(topic) or await self.partitions.open(topic)

    def _admit(self, append_bytes: int) -> None:
        if not self._disk.admits(append_bytes):
            raise DiskFull(self._disk.refusal)

    # ── model.ports.Backend ──────────────────────────────────────────────────────────────────

    async def append(
        self, topic: Topic, partition: int, messages: Sequence[Message]
    ) -> Sequence[Appended]:
        size = 0
        for message in messages:
            size += len(message.body) + RECORD_OVERHEAD_BYTES
            if message.attributes:
                size += sum(len(n) + len(a.value) for n, a in message.attributes.items())
        self._admit(size)
        if topic.source_id is not None:
            raise InvalidRequest(f"{topic.name} is a share: send to the topic that it reads.")
        # No path of a client may write messages into the server's own rows.
        if topic.kind is Kind.STREAM:
            raise InvalidRequest(f"{topic.name} is not a queue: messages are sent to queues only.")
        queue = self.partitions.find(topic) or await self.partitions.open(topic)
        owner = queue.partitions.get(partition) or await self._partition(topic, partition)
        return await owner.append(messages)

    async def lease(self, topic: Topic, request: LeaseRequest) -> Sequence[Delivery]:
        queue = self.partitions.find(topic) or await self.partitions.open(topic)
        return await queue.lease(request)

    async def ack(
        self, topic: Topic, partition: int, claims: Sequence[Claim]
    ) -> Sequence[Exception | None]:
        queue = self.partitions.find(topic) or await self.partitions.open(topic)
        return await queue.leases[partition].ack(claims)

    async def extend(
        self,
        topic: Topic,
        partition: int,
        claims: Sequence[tuple[Claim, int]],
        *,
        is_strict: bool = False,
    ) -> Sequence[Exception | None]:
        queue = await self._queue(topic)
        return await queue.leases[partition].extend(claims, is_strict=is_strict)

    async def purge(self, topic: Topic) -> None:
        now_ms = self._surroundings.clock.mono_ms()
        last_ms = self._purged_at_ms.get(topic.topic_id)
        if last_ms is not None and now_ms - last_ms < PURGE_INTERVAL_MS:
            raise PurgeInProgress(
                f"Only one PurgeQueue operation on {topic.name} is allowed every 60 seconds."
            )
        self._purged_at_ms = {
            topic_id: at_ms
            for topic_id, at_ms in self._purged_at_ms.items()
            if now_ms - at_ms < PURGE_INTERVAL_MS
        }
        self._purged_at_ms[topic.topic_id] = now_ms
        queue = await self._queue(topic)
        if topic.is_share:
            for leases in queue.leases.values():
                await leases.purge()
            return
        for partition in queue.partitions.values():
            await partition.purge()

    async def stats(self, topic: Topic, *, is_detailed: bool = False) -> QueueStats:
        queue = await self._queue(topic)
        if not is_detailed:
            return queue.stats()
        obstacles = await queue.obstacles()
        return msgspec.structs.replace(queue.stats(), obstacles=obstacles)

    async def peek(
        self, topic: Topic, *, partition: int, start: int, count: int
    ) -> tuple[Sequence[Peeked], int]:
        leases = (await self._queue(topic)).leases[partition]
        return await leases.peek(start=start, count=count)

    # ── model.ports.Streams ──────────────────────────────────────────────────────────────────

    async def _partition(self, topic: Topic, partition: int) -> Partition:
        queue = await self._queue(topic)
        found = queue.partitions.get(partition)
        if found is None:
            await self.partitions.grow(queue)  # it may have just been given more
            if not 0 <= partition < queue.topic.partition_count:
                raise TopicNotFound(topic.name)
            found = queue.partitions[partition]
        return found

    async def append_batches(
        self, topic: Topic, partition: int, batches: Sequence[bytes | memoryview], *, acks: int
    ) -> BatchAppended:
        # Our own rows are written from the reserve, as acks are. A queue may have such a name.
        if topic.is_queue or not is_internal(topic.name):
            self._admit(sum(map(len, batches)))
        is_append_time = settings_of(topic, self._surroundings.defaults).is_append_time
        owner = await self._partition(topic, partition)
        return await owner.append_batches(batches, acks=acks, is_append_time=is_append_time)

    async def append_marker(self, topic: Topic, partition: int, marker: Marker) -> None:
        await (await self._partition(topic, partition)).append_marker(marker)

    async def is_in_transaction(
        self, topic: Topic, partition: int, producer_id: int, producer_epoch: int
    ) -> bool:
        owner = await self._partition(topic, partition)
        return owner.stream.is_in_transaction(producer_id, producer_epoch)

    async def producers(self, topic: Topic, partition: int) -> Sequence[ProducerSeen]:
        return (await self._partition(topic, partition)).stream.producers()

    async def ends(self, topic: Topic, partition: int) -> StreamEnds:
        return (await self._partition(topic, partition)).ends()

    async def fetch(
        self,
        topic: Topic,
        partition: int,
        *,
        offset: int,
        bytes_max: int,
        is_committed: bool,
        as_slices: bool = False,
    ) -> Fetched:
        owner = await self._partition(topic, partition)
        return owner.fetch(
            offset, bytes_max=bytes_max, is_committed=is_committed, as_slices=as_slices
        )

    async def find_time(self, topic: Topic, partition: int, timestamp_ms: int) -> tuple[int, int]:
        owner = await self._partition(topic, partition)
        return await owner.stream.find_time(
            timestamp_ms, start_offset=owner.start_offset, tenant=topic.account
        )

    async def max_timestamp(self, topic: Topic, partition: int) -> tuple[int, int]:
        owner = await self._partition(topic, partition)
        return await owner.stream.newest(start_offset=owner.start_offset, tenant=topic.account)

    async def delete_records(self, topic: Topic, partition: int, before: int) -> int:
        return await (await self._partition(topic, partition)).delete_records(before)

    async def log_bytes(self, topic: Topic, partition: int) -> int:
        return (await self._partition(topic, partition)).log.size_bytes

    def on_advance(
        self, topic: Topic, partition: int, listener: Callable[[], None]
    ) -> Callable[[], None]:
        queue = self.partitions.find(topic)
        if queue is None:
            raise TopicNotFound(topic.name)
        return queue.partitions[partition].stream.on_advance(listener)

    # ── move tasks ───────────────────────────────────────────────────────────────────────────

    async def start_move(self, task: MoveTask) -> None:
        await self._mover.start(task)

    async def cancel_move(self, task_id: str) -> MoveTask | None:
        return await self._mover.cancel(task_id)

    def moves(self, source_arn: str) -> Sequence[MoveTask]:
        return self._mover.of_source(source_arn)
