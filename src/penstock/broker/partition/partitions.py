"""The partitions that this node leads. They are opened and closed when the catalog changes, cleaned
and compacted. A node without a cluster leads all partitions. In a cluster, ``replicators.py`` calls
``lead`` with a partition's log when this node becomes leader, and ``release`` when another does.

Folders are named by topic id. A folder is removed only if the catalog has a tombstone of the topic;
the folder of an unknown topic is kept and reported."""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from penstock.broker.context.context import BrokerContext, log_config, open_log
from penstock.broker.context.timers import Interval, cancel_all
from penstock.broker.leases.waits import Waits
from penstock.broker.partition.partition import Partition
from penstock.broker.partition.queue import DeadLetters, Queue, StatsOfAll
from penstock.broker.partition.replay import Replay
from penstock.broker.storage.journal import Replication
from penstock.broker.storage.scrubber import Scrubber
from penstock.log.log import Log
from penstock.model.errors import PenstockError, TopicNotFound
from penstock.model.ports import EARLIEST
from penstock.model.topic import QueueStats, Topic
from penstock.net.slices import in_slices

log_ = logging.getLogger(__name__)

TOPICS_FOLDER = "topics"


T = TypeVar("T")


def one_by_one(work: Callable[[T], None], items: Iterable[T]) -> Generator[None, None, None]:
    for item in items:
        work(item)
        yield


class FollowedLog(Protocol):
    @property
    def topic(self) -> Topic: ...

    async def compact(self) -> int: ...

    def sync_soon(self) -> None: ...


class Partitions:
    def __init__(
        self, context: BrokerContext, *, dead_letters: DeadLetters, is_clustered: bool = False
    ) -> None:
        self._context = context
        self._folder = context.folder / TOPICS_FOLDER
        self._is_clustered = is_clustered
        self._on_led: list[Callable[[Partition, bool], None]] = []
        # In a cluster: the logs of followers, which are compacted and synced too.
        self.also: Callable[[], Sequence[FollowedLog]] = tuple
        self.scrubber = Scrubber(
            self._partitions,
            context.pool,
            bytes_per_second=context.scrub_bytes_per_second,
            interval_ms=context.scrub_interval_ms,
        )
        self.stats_of_all: StatsOfAll | None = None  # set in a cluster, once nodes can be reached
        self._dead_letters = dead_letters
        self._queues: dict[str, Queue] = {}
        self._opening: dict[str, asyncio.Task[Queue]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._jobs: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()
        self._growing = asyncio.Lock()
        self.compact_interval = Interval(context.compact_interval_ms)
        self._opened_count = 0
        self._to_open_count = 0

    def progress(self) -> tuple[int, int]:
        """Return how many topics are open, and how many to open at the start (0 in a cluster)."""
        return self._opened_count, self._to_open_count

    def find(self, topic: Topic) -> Queue | None:
        return self._queues.get(topic.topic_id)

    def epoch_of(self, topic: Topic, index: int) -> int:
        """Return the epoch in which this node leads a partition, or 0 if it does not lead it."""
        queue = self._queues.get(topic.topic_id)
        partition = None if queue is None else queue.partitions.get(index)
        return 0 if partition is None else partition.journal.leader_epoch

    def queues(self) -> Sequence[Queue]:
        return list(self._queues.values())

    def damages(self) -> Sequence[tuple[str, str]]:
        return [
            (f"{each.topic.name}/{each.index}", str(each.damage or each.journal.failure))
            for each in self._partitions()
            if each.damage is not None or each.journal.failure is not None
        ]

    def _partitions(self) -> list[Partition]:
        """Return the partitions of all topics except shares, which use those of their topics."""
        return [
            partition
            for queue in self._queues.values()
            if not queue.topic.is_share
            for partition in queue.partitions.values()
        ]

    async def open(self, topic: Topic) -> Queue:
        queue = self._queues.get(topic.topic_id)
        if queue is not None:
            return queue
        if self._context.catalog.find_id(topic.topic_id) is None:
            raise TopicNotFound(topic.name)
        opening = self._opening.get(topic.topic_id)
        if opening is None:
            opening = asyncio.create_task(self._open(topic), name=f"open {topic.topic_id}")
            self._opening[topic.topic_id] = opening
            opening.add_done_callback(partial(self._opened, topic.topic_id))
        return await asyncio.shield(opening)

    def _opened(self, topic_id: str, opening: asyncio.Task[Queue]) -> None:
        del self._opening[topic_id]
        if not opening.cancelled():
            opening.exception()  # mark as read, in case all callers were cancelled

    async def start(self) -> None:
        catalog = self._context.catalog
        if not self._is_clustered:
            await self._open_all()
        catalog.on_change(self._catalog_changed)
        self._context.defaults.on_change(self._defaults_changed)
        self._jobs = [
            asyncio.create_task(self._clean_forever(), name="cleaner"),
            asyncio.create_task(self._compact_forever(), name="compactor"),
            asyncio.create_task(self._sync_forever(), name="interval sync"),
            asyncio.create_task(self.scrubber.run(), name="scrubber"),
        ]

    async def _open_all(self) -> None:
        catalog = self._context.catalog
        topics = catalog.all_topics()
        self._to_open_count = len(topics)
        self._folder.mkdir(parents=True, exist_ok=True)
        for tomb in catalog.tombstones():
            await self._remove_folder(tomb)  # deleted just before the last process stopped
        for start in range(0, len(topics), 64):
            await asyncio.gather(*(self.open(topic) for topic in topics[start : start + 64]))
        await self._loop.run_in_executor(self._context.pool, self._report_unknown_folders)

    def on_led(self, listener: Callable[[Partition, bool], None]) -> None:
        """Call ``listener`` when this node starts (True) or stops (False) leading a partition."""
        self._on_led.append(listener)

    async def lead(
        self, topic: Topic, index: int, log: Log, restored: Replay, replication: Replication
    ) -> Partition:
        queue = await self.open(topic)
        partition = Partition(
            queue.topic, index, log, restored, queue.waits, self._context, replication=replication
        )
        queue.add(partition)
        for share in self._context.catalog.shares_of(topic.topic_id):
            reader = self._queues.get(share.topic_id)
            if reader is not None and share.topic_id in partition.shares:
                reader.add(partition)
        for listener in self._on_led:
            listener(partition, True)
        return partition

    async def release(self, partition: Partition, reason: PenstockError) -> None:
        """Stop leading a partition. Requests in progress fail with ``reason``."""
        for listener in self._on_led:
            listener(partition, False)
        queues = [self._queues.get(partition.topic.topic_id)]
        queues += [self._queues.get(share_id) for share_id in partition.shares]
        for queue in queues:
            if queue is not None and queue.partitions.get(partition.index) is partition:
                queue.remove(partition.index)
        await partition.release(reason)

    async def _stats_everywhere(self, topic: Topic) -> QueueStats:
        if self.stats_of_all is None:
            return (await self.open(topic)).stats()  # other nodes cannot be reached yet
        return await self.stats_of_all(topic)

    async def stop(self) -> None:
        await cancel_all(self._jobs)
        self.end_waits()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)
        partitions = self._partitions()
        for start in range(0, len(partitions), 64):
            closing = [each.close() for each in partitions[start : start + 64]]
            for result in await asyncio.gather(*closing, return_exceptions=True):
                if isinstance(result, BaseException):
                    log_.error("partition not closed cleanly", extra={"reason": str(result)})
        self._queues.clear()

    def end_waits(self) -> None:
        """End all waiting receives with an empty reply, because the node is draining."""
        for queue in self._queues.values():
            queue.waits.end()

    async def _open(self, topic: Topic) -> Queue:
        context = self._context
        waits = Waits()
        partitions: list[Partition] = []
        if topic.source_id is None:
            if not self._is_clustered:
                partitions = await self._open_partitions(topic, waits)
        else:
            partitions = await self._open_source(topic, topic.source_id)
        current = context.catalog.find_id(topic.topic_id)
        if current is None:
            # Deleted in the meantime. ``_close_deleted`` waits for this and removes the folder.
            if not topic.is_share:
                for partition in partitions:
                    await partition.abandon()
            raise TopicNotFound(topic.name)
        queue = Queue(
            current,
            partitions,
            waits,
            in_flight_max=context.in_flight_max,
            dead_letters=self._dead_letters,
            spawn=self.spawn,
            stats_of_all=self._stats_everywhere if self._is_clustered else None,
        )
        self._queues[topic.topic_id] = queue
        if current is not topic:
            self._reconfigure_logs(queue)  # the topic changed in the meantime
        self._opened_count += 1
        return queue

    async def _open_partitions(self, topic: Topic, waits: Waits) -> list[Partition]:
        """Open all partitions of a topic. If one cannot be opened, the others are closed again."""
        partitions: list[Partition] = []
        try:
            for index in range(topic.partition_count):
                # Not a comprehension, because the opened ones must be closed if the next one fails.
                partitions.append(await self._open_partition(topic, index, waits))  # noqa: PERF401
        except BaseException:
            for partition in partitions:
                partition.log.close(clean=False)
            raise
        return partitions

    async def _open_source(self, share: Topic, source_id: str) -> list[Partition]:
        source = self._context.catalog.find_id(source_id)
        if source is None:
            raise TopicNotFound(share.name)
        partitions = list((await self.open(source)).partitions.values())
        for partition in partitions:
            if share.topic_id not in partition.shares:
                # The share was added to the catalog without the call OpenShare.
                await partition.begin_share(share, EARLIEST)
        return partitions

    async def _open_partition(self, topic: Topic, index: int, waits: Waits) -> Partition:
        context = self._context
        shares = context.catalog.shares_of(topic.topic_id)

        def work() -> tuple[Log, Replay]:
            log = open_log(topic, index, self._folder, context)
            log.settle()  # the recovery has been logged
            return log, Replay(log, topic, index, shares=shares, context=context).finish()

        log, restored = await self._loop.run_in_executor(context.pool, work)
        return Partition(topic, index, log, restored, waits, context)

    def _catalog_changed(self, before: Topic | None, after: Topic | None) -> None:
        if before is not None and (after is None or after.topic_id != before.topic_id):
            self.spawn(self._close_deleted(before), f"close {before.topic_id}")
        if after is not None:
            queue = self._queues.get(after.topic_id)
            if queue is not None:
                queue.replace_topic(after)
                self._reconfigure_logs(queue)
                if after.partition_count > len(queue.partitions):
                    self.spawn(self.grow(queue), f"grow {after.topic_id}")

    def _reconfigure_logs(self, queue: Queue) -> None:
        if self._is_clustered or queue.topic.is_share:
            return  # in a cluster the replicators do it; a share has no logs
        config = log_config(queue.topic, self._context)
        for partition in queue.partitions.values():
            partition.log.config = config

    def _defaults_changed(self) -> None:
        work = in_slices(one_by_one(self._reconfigure_logs, self.queues()))
        self.spawn(work, "apply topic defaults")

    async def _close_deleted(self, topic: Topic) -> None:
        """Close a topic that is no longer in the catalog. Its data is kept if there is no
        tombstone, because the metadata store may have been restored from a backup."""
        opening = self._opening.get(topic.topic_id)
        if opening is not None:
            await asyncio.wait([opening])
        queue = self._queues.pop(topic.topic_id, None)
        if queue is not None:
            queue.waits.end(TopicNotFound(topic.name))
            for partition in tuple(queue.partitions.values()):
                if topic.is_share:
                    partition.end_share(topic.topic_id)
                elif not self._is_clustered:
                    await partition.abandon()
        if topic.is_share:
            return
        catalog, now_ms = self._context.catalog, self._context.clock.wall_ms()
        for share in catalog.shares_of(topic.topic_id):
            with contextlib.suppress(TopicNotFound):
                await catalog.delete(share.account, share.region, share.name, now_ms=now_ms)
        # In a cluster, the replicators remove the files.
        if not self._is_clustered and catalog.tombstone(topic.topic_id) is not None:
            await self._remove_folder(topic)

    async def _remove_folder(self, topic: Topic) -> None:
        remove = partial(shutil.rmtree, self._folder / topic.topic_id, ignore_errors=True)
        await self._loop.run_in_executor(self._context.pool, remove)

    async def grow(self, queue: Queue) -> None:
        """Open partitions that were added to a topic since it was opened."""
        if self._is_clustered:
            return  # in a cluster their leaders open them
        async with self._growing:
            while len(queue.partitions) < queue.topic.partition_count:
                index = len(queue.partitions)
                partition = await self._open_partition(queue.topic, index, queue.waits)
                queue.add(partition)
                self._reconfigure_logs(queue)
                for share in self._context.catalog.shares_of(queue.topic.topic_id):
                    reader = self._queues.get(share.topic_id)
                    if reader is not None and index not in reader.partitions:
                        reader.add(partition)

    def _report_unknown_folders(self) -> None:
        known = {topic.topic_id for topic in self._context.catalog.all_topics()}
        for folder in self._folder.iterdir():
            if folder.name not in known:
                log_.warning(
                    "keeping the folder of an unknown topic", extra={"folder": folder.name}
                )

    def spawn(self, work: Awaitable[object], name: str) -> None:

        async def run() -> None:
            try:
                await work
            except PenstockError as error:
                log_.warning("background task failed", extra={"task": name, "reason": str(error)})
            except Exception:
                log_.exception("background task failed", extra={"task": name})

        task = asyncio.create_task(run(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _clean_forever(self) -> None:
        while True:
            await asyncio.sleep(self._context.clean_interval_ms / 1_000)
            for partition in self._partitions():
                await asyncio.sleep(0)  # cleaning may not suspend, so let other tasks run
                try:
                    if partition.is_checkpoint_due:
                        await partition.checkpoint()
                    await partition.clean()
                except (PenstockError, OSError) as error:
                    fields = {"topic": partition.topic.name, "reason": str(error)}
                    log_.warning("cleaning a partition failed", extra=fields)

    async def _compact_forever(self) -> None:
        """Compact one log at a time, because compaction needs time, and memory for the keys."""
        while True:
            await self.compact_interval.wait()
            for log in (*self._partitions(), *self.also()):
                await asyncio.sleep(0)
                now_ms = self._context.clock.mono_ms()
                if self._context.hold.keeps_segments(now_ms=now_ms):
                    break  # the backup in progress may lack the newer records
                try:
                    await log.compact()
                except (PenstockError, OSError) as error:
                    fields = {"topic": log.topic.name, "reason": str(error)}
                    log_.warning("compacting a partition failed", extra=fields)

    async def _sync_forever(self) -> None:
        while True:
            await asyncio.sleep(self._context.fsync_interval_ms / 1_000)
            logs = (*self._partitions(), *self.also())
            await in_slices(one_by_one(lambda log: log.sync_soon(), logs))
