"""The broker of this node: one handler for each call of ``model/calls.py``. The work is done in
queue.py, partition.py and shares.py."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import msgspec

from penstock.broker.context.context import BrokerContext
from penstock.broker.partition.partition import Partition
from penstock.broker.partition.partitions import Partitions
from penstock.broker.queues.redrive import Mover, Redriver
from penstock.broker.queues.shares import ShareCalls
from penstock.metadata.topics.catalog import MoveTasks
from penstock.model import calls
from penstock.model.calls import BrokerCall, BrokerPort, PartitionCall, R, Stats
from penstock.model.errors import DiskFull, InvalidRequest, PurgeInProgress, TopicNotFound
from penstock.model.levels import PUSH
from penstock.model.limits import PURGE_INTERVAL_MS
from penstock.model.message import AckReason, Appended, Delivery
from penstock.model.names import is_internal
from penstock.model.ports import BatchAppended, Fetched, MoveTask, Peeked, ProducerSeen, StreamEnds
from penstock.model.stream import settings_of
from penstock.model.topic import Kind, QueueStats, Topic

RECORD_OVERHEAD_BYTES = 192  # upper estimate of batch header, record framing and system fields


Handler = Callable[[Any], Coroutine[Any, Any, Any]]


class Broker:
    def __init__(
        self,
        context: BrokerContext,
        tasks: MoveTasks,
        *,
        entropy: Callable[[int], bytes],
        is_clustered: bool = False,
    ) -> None:
        self._context = context
        self._is_clustered = is_clustered
        self._disk = context.disk
        self._redriver = Redriver(self, context.catalog, context.hold)
        self.partitions = Partitions(
            context, dead_letters=self._redriver, is_clustered=is_clustered
        )
        self.shares = ShareCalls(context, self.partitions, self._redriver, entropy=entropy)
        self._mover = Mover(self, context.catalog, tasks, entropy=entropy, hold=context.hold)
        self._purged_at_ms: dict[str, int] = {}
        self.find_share = self.shares.find_share
        self.on_available = self.shares.on_available
        self.share_hooks = context.share_hooks
        self.moves = self._mover.of_source
        self.handlers: dict[type[BrokerCall[Any]], Handler] = {
            calls.Append: self._append,
            calls.Lease: self._lease,
            calls.Ack: self._ack,
            calls.Extend: self._extend,
            calls.Purge: self._purge,
            calls.Stats: self._stats,
            calls.Peek: self._peek,
            calls.StartMove: self._start_move,
            calls.CancelMove: self._cancel_move,
            calls.AppendBatches: self._append_batches,
            calls.AppendMarker: self._append_marker,
            calls.IsInTransaction: self._is_in_transaction,
            calls.Producers: self._producers,
            calls.Ends: self._ends,
            calls.Fetch: self._fetch,
            calls.FindTime: self._find_time,
            calls.MaxTimestamp: self._max_timestamp,
            calls.DeleteRecords: self._delete_records,
            calls.LogBytes: self._log_bytes,
            calls.ReadBookmark: self._read_bookmark,
            calls.ListBookmarks: self._list_bookmarks,
            calls.MoveBookmark: self._move_bookmark,
            **self.shares.handlers,
        }

    def call(self, call: BrokerCall[R]) -> Coroutine[Any, Any, R]:
        return self.handlers[type(call)](call)

    def go_through(self, brokers: BrokerPort) -> None:
        """Use ``brokers`` for calls to partitions that other nodes of the cluster lead."""
        self.shares.all_brokers = brokers
        self._redriver.broker = brokers
        self._mover.broker = brokers
        self.partitions.stats_of_all = lambda topic: brokers.call(Stats(topic))

    async def start(self) -> None:
        await self.partitions.start()
        if self._is_clustered:
            self.partitions.on_led(self._led)
        else:
            self._mover.resume()

    def _led(self, partition: Partition, is_led: bool) -> None:
        """Resume or stop a queue's move tasks when the leader of its first partition changes."""
        if partition.index == 0 and is_led:
            self._mover.resume_of(partition.topic.arn)
        elif partition.index == 0:
            self._mover.leave(partition.topic.arn)

    async def stop(self) -> None:
        await self._mover.stop()
        await self.partitions.stop()

    def _admit(self, append_bytes: int) -> None:
        if not self._disk.admits(append_bytes):
            raise DiskFull(self._disk.refusal)

    async def _partition(self, topic: Topic, partition: int) -> Partition:
        queue = await self.partitions.open(topic)
        found = queue.partitions.get(partition)
        if found is None:
            await self.partitions.grow(queue)  # partitions may have been added
            if not 0 <= partition < queue.topic.partition_count:
                raise TopicNotFound(topic.name)
            found = queue.partitions[partition]
        return found

    def _opened(self, call: PartitionCall[R]) -> Partition | None:
        queue = self.partitions.find(call.topic)
        return None if queue is None else queue.partitions.get(call.partition)

    def _of(self, call: PartitionCall[R]) -> Coroutine[Any, Any, Partition]:
        return self._partition(call.topic, call.partition)

    async def _append(self, call: calls.Append) -> Sequence[Appended]:
        topic, messages = call.topic, call.messages
        size = 0
        for message in messages:
            size += len(message.body) + RECORD_OVERHEAD_BYTES
            if message.attributes:
                size += sum(len(n) + len(a.value) for n, a in message.attributes.items())
        self._admit(size)
        if topic.source_id is not None:
            raise InvalidRequest(f"{topic.name} is a share; send to the topic that it reads.")
        if (
            topic.kind is Kind.STREAM and topic.sns is None
        ):  # such as the topics of the server itself
            raise InvalidRequest(f"{topic.name} is not a queue; send messages to queues only.")
        queue = self.partitions.find(topic) or await self.partitions.open(topic)
        owner = queue.partitions.get(call.partition) or await self._of(call)
        return await owner.append(messages)

    async def _lease(self, call: calls.Lease) -> Sequence[Delivery]:
        queue = self.partitions.find(call.topic) or await self.partitions.open(call.topic)
        return await queue.lease(call.request)

    async def _ack(self, call: calls.Ack) -> calls.Results:
        queue = self.partitions.find(call.topic) or await self.partitions.open(call.topic)
        leases = queue.leases[call.partition]
        # An expired receipt must not unlock a message group. For ACKED the cursor checks it.
        is_strict = call.reason is not AckReason.ACKED and leases.topic.is_fifo
        return await leases.ack(call.claims, reason=call.reason, is_strict=is_strict)

    async def _extend(self, call: calls.Extend) -> calls.Results:
        queue = await self.partitions.open(call.topic)
        return await queue.leases[call.partition].extend(call.claims, is_strict=call.is_strict)

    async def _check_led(self, call: calls.LeadersCall[R]) -> None:
        for partition, _ in call.counted_on:
            await self._partition(call.topic, partition)

    async def _purge(self, call: calls.Purge) -> None:
        await self._check_led(call)
        topic = call.topic
        now_ms = self._context.clock.mono_ms()
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
        queue = await self.partitions.open(topic)
        if topic.is_share:
            for leases in queue.leases.values():
                await leases.purge()
        else:
            for partition in queue.partitions.values():
                await partition.purge()
        await self._check_led(call)  # a partition that got another leader was not purged

    async def _stats(self, call: calls.Stats) -> QueueStats:
        await self._check_led(call)
        queue = await self.partitions.open(call.topic)
        if not call.is_detailed:
            return queue.stats()
        obstacles = await queue.obstacles()
        return msgspec.structs.replace(queue.stats(), obstacles=obstacles)

    async def _peek(self, call: calls.Peek) -> tuple[Sequence[Peeked], int]:
        leases = (await self.partitions.open(call.topic)).leases[call.partition]
        return await leases.peek(start=call.start, count=call.count)

    async def _start_move(self, call: calls.StartMove) -> None:
        await self._mover.start(call.task)

    async def _cancel_move(self, call: calls.CancelMove) -> MoveTask | None:
        return await self._mover.cancel(call.task_id)

    async def _append_batches(self, call: calls.AppendBatches) -> BatchAppended:
        topic, batches = call.topic, call.batches
        # The server's own rows may use the disk reserve, as acks do. Queues may not.
        if topic.is_queue or not is_internal(topic.name):
            self._admit(sum(map(len, batches)))
        is_append_time = settings_of(topic, self._context.defaults).is_append_time
        owner = self._opened(call) or await self._of(call)
        return await owner.append_batches(batches, acks=call.acks, is_append_time=is_append_time)

    async def _append_marker(self, call: calls.AppendMarker) -> None:
        await (await self._of(call)).stream.append_marker(call.marker).committed.wait()

    async def _is_in_transaction(self, call: calls.IsInTransaction) -> bool:
        producers = (await self._of(call)).stream.producers
        return producers.is_in_transaction(call.producer_id, call.producer_epoch)

    async def _producers(self, call: calls.Producers) -> Sequence[ProducerSeen]:
        producers = (await self._of(call)).stream.producers
        return producers.seen(wall_ms=self._context.clock.wall_ms())

    async def _ends(self, call: calls.Ends) -> StreamEnds:
        return (self._opened(call) or await self._of(call)).ends()

    async def _fetch(self, call: calls.Fetch) -> Fetched:
        return (self._opened(call) or await self._of(call)).fetch(call)

    async def _find_time(self, call: calls.FindTime) -> tuple[int, int]:
        return await (await self._of(call)).find_time(call.timestamp_ms)

    async def _max_timestamp(self, call: calls.MaxTimestamp) -> tuple[int, int]:
        owner = await self._of(call)
        return await owner.find_time(owner.log.last_timestamp_ms)

    async def _delete_records(self, call: calls.DeleteRecords) -> int:
        return await (await self._of(call)).delete_records(call.before)

    async def _log_bytes(self, call: calls.LogBytes) -> int:
        return (await self._of(call)).log.size_bytes

    async def _read_bookmark(self, call: calls.ReadBookmark) -> int:
        return (await self._of(call)).bookmark_of(call.reader)

    async def _list_bookmarks(self, call: calls.ListBookmarks) -> Mapping[str, int]:
        return (await self._of(call)).bookmarks()

    async def _move_bookmark(self, call: calls.MoveBookmark) -> int:
        self._context.check_level(PUSH, "Bookmarks")
        owner = await self._of(call)
        await self._context.hold.crossing()  # the messages before it were copied to queues
        return await owner.move_bookmark(call.reader, call.offset, may_move_back=call.may_move_back)

    def on_advance(
        self, topic: Topic, partition: int, listener: Callable[[], None]
    ) -> Callable[[], None]:
        queue = self.partitions.find(topic)
        if queue is None:
            raise TopicNotFound(topic.name)
        return queue.partitions[partition].stream.on_advance(listener)
