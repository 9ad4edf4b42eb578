"""The partitions that this node leads: kept in step with the catalog, cleaned and closed.

A node by itself leads them all: it opens them from disk, and removes them once their topic is
deleted. In a cluster they come and go with their rows (``replicators.py``): who leads a partition
hands its log in here (``lead``) and takes it back (``release``).

Folders are named by topic id, never by name, and a folder is removed only when the catalog says
that the topic was deleted: a folder nobody knows is left alone and reported.
"""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Awaitable, Callable, Generator, Sequence
from pathlib import Path
from typing import Protocol

from penstock.broker.interval import Interval
from penstock.broker.journal import Replication
from penstock.broker.opening import log_config, open_log
from penstock.broker.partition import Partition
from penstock.broker.queue import AttemptsMax, MoveDead, Queue, StatsOfAll
from penstock.broker.restore import Restored, restore
from penstock.broker.scrubber import Scrubber
from penstock.broker.surroundings import Surroundings
from penstock.broker.waits import Waits
from penstock.log.log import Log
from penstock.model.errors import PenstockError, TopicNotFound
from penstock.model.ports import EARLIEST
from penstock.model.topic import QueueStats, Topic
from penstock.net.turns import in_turns

log_ = logging.getLogger(__name__)

TOPICS_FOLDER = "topics"


class Compacted(Protocol):
    """A log that may have something to be compacted."""

    @property
    def topic(self) -> Topic: ...

    async def compact(self) -> int: ...


class Partitions:
    def __init__(
        self,
        surroundings: Surroundings,
        *,
        attempts_max: AttemptsMax,
        move_dead: MoveDead,
        is_clustered: bool = False,
    ) -> None:
        self._surroundings = surroundings
        self._is_clustered = is_clustered
        self._on_led: list[Callable[[Partition, bool], None]] = []
        self._also_compacted: Callable[[], Sequence[Compacted]] = tuple
        # In a cluster logs are the replicators', who say which there are.
        self.scrubber = Scrubber(
            self._partitions,
            surroundings.pool,
            bytes_per_second=surroundings.scrub_bytes_per_second,
            interval_ms=surroundings.scrub_interval_ms,
        )
        self._stats_of_all: StatsOfAll | None = None
        self._attempts_max = attempts_max
        self._move_dead = move_dead
        self._queues: dict[str, Queue] = {}
        self._opening: dict[str, asyncio.Task[Queue]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._jobs: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()
        self._growing = asyncio.Lock()
        self.compact_interval = Interval(surroundings.compact_interval_ms)
        self.opened_count = 0
        self.to_open_count = 0

    # ── finding ──────────────────────────────────────────────────────────────────────────────

    def find(self, topic: Topic) -> Queue | None:
        """The hot path: None means that the topic must be opened first."""
        return self._queues.get(topic.topic_id)

    def epoch_of(self, topic: Topic, index: int) -> int:
        """In which a partition is led here; 0 when it is not, or not yet."""
        queue = self._queues.get(topic.topic_id)
        partition = None if queue is None else queue.partitions.get(index)
        return 0 if partition is None else partition.journal.leader_epoch

    def queues(self) -> Sequence[Queue]:
        return list(self._queues.values())

    def damages(self) -> Sequence[tuple[str, str]]:
        """Damaged partitions as topic and number, each with the reason."""
        return [
            (
                f"{partition.topic.name}/{partition.index}",
                str(partition.damage or partition.journal.failure),
            )
            for partition in self._partitions()
            if partition.damage is not None or partition.journal.failure is not None
        ]

    def _partitions(self) -> list[Partition]:
        """Each once: a share has its source's."""
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
        if self._surroundings.catalog.find_id(topic.topic_id) is None:
            raise TopicNotFound(topic.name)
        opening = self._opening.get(topic.topic_id)
        if opening is None:
            opening = asyncio.create_task(self._open(topic), name=f"open {topic.topic_id}")
            self._opening[topic.topic_id] = opening
            opening.add_done_callback(lambda _: self._opening.pop(topic.topic_id, None))
        return await asyncio.shield(opening)

    # ── life ─────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Keep up with the catalog; a node by itself opens every topic of it first."""
        catalog = self._surroundings.catalog
        if not self._is_clustered:
            await self._open_all()
        catalog.on_change(self._catalog_changed)
        self._surroundings.defaults.on_change(self._defaults_changed)
        self._jobs = [
            asyncio.create_task(self._clean_forever(), name="cleaner"),
            asyncio.create_task(self._compact_forever(), name="compactor"),
            asyncio.create_task(self._sync_forever(), name="interval sync"),
            asyncio.create_task(self.scrubber.run(), name="scrubber"),
        ]

    async def _open_all(self) -> None:
        catalog = self._surroundings.catalog
        topics = catalog.all_topics()
        self.to_open_count = len(topics)
        self._folder().mkdir(parents=True, exist_ok=True)
        for tomb in catalog.tombstones():
            await self._remove_folder(tomb)  # deleted just before the last process ended
        for start in range(0, len(topics), 64):
            await asyncio.gather(*(self.open(topic) for topic in topics[start : start + 64]))
        await self._loop.run_in_executor(self._surroundings.pool, self._report_strangers)

    # ── leading, in a cluster ────────────────────────────────────────────────────────────────

    def on_led(self, listener: Callable[[Partition, bool], None]) -> None:
        """Call ``listener`` with each partition that this node begins to lead (True) and that it
        leads no more (False)."""
        self._on_led.append(listener)

    async def lead(
        self, topic: Topic, index: int, log: Log, restored: Restored, replication: Replication
    ) -> Partition:
        """This node leads a partition from now on, with what its log says."""
        queue = await self.open(topic)
        partition = Partition(
            queue.topic,
            index,
            log,
            restored,
            queue.waits,
            self._surroundings,
            replication=replication,
        )
        if restored.damage is not None:
            partition.found_damage(restored.damage)
        partition.note_known_damage()
        queue.add(partition)
        for share in self._surroundings.catalog.shares_of(topic.topic_id):
            reader = self._queues.get(share.topic_id)
            if reader is not None and share.topic_id in partition.shares:
                reader.add(partition)
        for listener in self._on_led:
            listener(partition, True)
        return partition

    async def release(self, partition: Partition, reason: PenstockError) -> None:
        """Another node leads it. Whoever waits for an answer gets the reason."""
        for listener in self._on_led:
            listener(partition, False)
        queues = [self._queues.get(partition.topic.topic_id)]
        queues += [self._queues.get(share_id) for share_id in partition.shares]
        for queue in queues:
            if queue is not None and queue.partitions.get(partition.index) is partition:
                queue.remove(partition.index)
        await partition.release(reason)

    def ask_others_with(self, stats_of_all: StatsOfAll) -> None:
        """For queues that other nodes lead parts of."""
        self._stats_of_all = stats_of_all

    async def _stats_everywhere(self, topic: Topic) -> QueueStats:
        if self._stats_of_all is None:
            return (await self.open(topic)).stats()  # there is no way to others yet
        return await self._stats_of_all(topic)

    def compact_also(self, logs: Callable[[], Sequence[Compacted]]) -> None:
        """These take their turn with the partitions: a node compacts one log at a time."""
        self._also_compacted = logs

    # ── the end ──────────────────────────────────────────────────────────────────────────────

    async def stop(self) -> None:
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        for queue in self._queues.values():
            queue.waits.end_empty()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)
        partitions = self._partitions()
        for start in range(0, len(partitions), 64):
            results = await asyncio.gather(
                *(p.close() for p in partitions[start : start + 64]), return_exceptions=True
            )
            for result in results:
                if isinstance(result, BaseException):
                    log_.error("partition not closed cleanly", extra={"reason": str(result)})
        self._queues.clear()

    def end_waits(self) -> None:
        """Answer every parked receive with nothing: the node is draining."""
        for queue in self._queues.values():
            queue.waits.end_empty()

    async def _open(self, topic: Topic) -> Queue:
        surroundings = self._surroundings
        waits = Waits()
        partitions: list[Partition] = []
        if topic.source_id is None:
            if not self._is_clustered:
                partitions = await self._open_partitions(topic, waits)
        else:
            partitions = await self._open_source(topic, topic.source_id)
        current = surroundings.catalog.find_id(topic.topic_id)
        if current is None:
            # Deleted while it was being opened; whoever deletes waits for us to remove the folder.
            if not topic.is_share:
                for partition in partitions:
                    await partition.abandon()
            raise TopicNotFound(topic.name)
        queue = Queue(
            current,
            partitions,
            waits,
            in_flight_max=surroundings.in_flight_max,
            attempts_max=self._attempts_max,
            move_dead=self._move_dead,
            spawn=self.spawn,
            stats_of_all=self._stats_everywhere if self._is_clustered else None,
        )
        self._queues[topic.topic_id] = queue
        if current is not topic:
            self._reconfigure_logs(queue)  # changed while the logs were being opened
        self.opened_count += 1
        return queue

    async def _open_partitions(self, topic: Topic, waits: Waits) -> list[Partition]:
        """All of them, or none: what is open when one cannot be is closed again."""
        partitions: list[Partition] = []
        try:
            for index in range(topic.partition_count):
                # Not a comprehension: what is open must be known when the next one fails.
                partitions.append(await self._open_partition(topic, index, waits))  # noqa: PERF401
        except BaseException:
            for partition in partitions:
                partition.log.close(clean=False)
            raise
        return partitions

    async def _open_source(self, share: Topic, source_id: str) -> list[Partition]:
        source = self._surroundings.catalog.find_id(source_id)
        if source is None:
            raise TopicNotFound(share.name)
        partitions = list((await self.open(source)).partitions.values())
        for partition in partitions:
            if share.topic_id not in partition.shares:
                # It came into the catalog by another way than Shares.open_share.
                await partition.begin_share(share, EARLIEST)
        return partitions

    async def _open_partition(self, topic: Topic, index: int, waits: Waits) -> Partition:
        shares = self._surroundings.catalog.shares_of(topic.topic_id)
        log, restored = await self._loop.run_in_executor(
            self._surroundings.pool, self._open_log, topic, index, shares
        )
        partition = Partition(topic, index, log, restored, waits, self._surroundings)
        if restored.damage is not None:
            partition.found_damage(restored.damage)
        partition.note_known_damage()
        return partition

    def _open_log(self, topic: Topic, index: int, shares: Sequence[Topic]) -> tuple[Log, Restored]:
        surroundings = self._surroundings
        log = open_log(topic, index, self._folder(), surroundings)
        log.settle()  # what recovery had to do has been said; there is nobody else to be told
        restored = restore(log, topic, index, shares=shares, surroundings=surroundings)
        return log, restored

    def _folder(self) -> Path:
        return self._surroundings.folder / TOPICS_FOLDER

    # ── keeping up with the catalog ──────────────────────────────────────────────────────────

    def _catalog_changed(self, before: Topic | None, after: Topic | None) -> None:
        if before is not None and (after is None or after.topic_id != before.topic_id):
            self.spawn(self._let_go(before), f"let go of {before.topic_id}")
        if after is not None:
            queue = self._queues.get(after.topic_id)
            if queue is not None:
                queue.replace_topic(after)
                self._reconfigure_logs(queue)
                if after.partition_count > len(queue.partitions):
                    self.spawn(self.grow(queue), f"grow {after.topic_id}")

    def _reconfigure_logs(self, queue: Queue) -> None:
        """Let the next append of each log follow the topic's configs as they are now."""
        if self._is_clustered or queue.topic.is_share:
            return  # the replicators do it; a share has the logs of its source
        config = log_config(queue.topic, self._surroundings)
        for partition in queue.partitions.values():
            partition.log.config = config

    def _defaults_changed(self) -> None:
        self.spawn(in_turns(self._reconfigure_all()), "follow the defaults of topics")

    def _reconfigure_all(self) -> Generator[None, None, None]:
        for queue in self.queues():
            self._reconfigure_logs(queue)
            yield

    async def _let_go(self, topic: Topic) -> None:
        """The catalog has the topic no more. Its data goes only if it says that it was deleted:
        an entry may also be missing because a store was restored."""
        opening = self._opening.get(topic.topic_id)
        if opening is not None:
            await asyncio.wait([opening])
        queue = self._queues.pop(topic.topic_id, None)
        if queue is not None:
            queue.waits.fail(TopicNotFound(topic.name))
            for partition in tuple(queue.partitions.values()):
                if topic.is_share:
                    partition.end_share(topic.topic_id)
                elif not self._is_clustered:
                    await partition.abandon()
        if topic.is_share:
            return
        await self._delete_shares(topic)
        if self._is_clustered:
            return  # the files are the replicators'
        if self._surroundings.catalog.tombstone(topic.topic_id) is not None:
            await self._remove_folder(topic)

    async def _delete_shares(self, topic: Topic) -> None:
        """Nobody can read a topic that is gone, by whatever name."""
        catalog, now_ms = self._surroundings.catalog, self._surroundings.clock.wall_ms()
        for share in catalog.shares_of(topic.topic_id):
            with contextlib.suppress(TopicNotFound):
                await catalog.delete(share.account, share.region, share.name, now_ms=now_ms)

    async def _remove_folder(self, topic: Topic) -> None:
        folder = self._folder() / topic.topic_id
        await self._loop.run_in_executor(
            self._surroundings.pool, lambda: shutil.rmtree(folder, ignore_errors=True)
        )

    async def grow(self, queue: Queue) -> None:
        """Open the partitions that a topic has been given since it was opened."""
        if self._is_clustered:
            return  # their rows say who leads them
        async with self._growing:
            while len(queue.partitions) < queue.topic.partition_count:
                index = len(queue.partitions)
                partition = await self._open_partition(queue.topic, index, queue.waits)
                queue.add(partition)
                self._reconfigure_logs(queue)
                for share in self._surroundings.catalog.shares_of(queue.topic.topic_id):
                    reader = self._queues.get(share.topic_id)
                    if reader is not None and index not in reader.partitions:
                        reader.add(partition)

    def _report_strangers(self) -> None:
        known = {topic.topic_id for topic in self._surroundings.catalog.all_topics()}
        for folder in self._folder().iterdir():
            if folder.name not in known:
                log_.warning("folder without a topic left alone", extra={"folder": folder.name})

    def spawn(self, work: Awaitable[None], name: str) -> None:
        """Run something that nobody waits for; its failure is logged, not lost."""

        async def run() -> None:
            try:
                await work
            except PenstockError as error:
                log_.warning("background work failed", extra={"work": name, "reason": str(error)})
            except Exception:
                log_.exception("background work failed", extra={"work": name})

        task = asyncio.create_task(run(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ── batch jobs ───────────────────────────────────────────────────────────────────────────

    async def _clean_forever(self) -> None:
        """Retention and checkpoints, a partition at a time, so that no turn is long."""
        while True:
            await asyncio.sleep(self._surroundings.clean_interval_ms / 1_000)
            for partition in self._partitions():
                await asyncio.sleep(0)  # cleaning need not wait for anything
                try:
                    if partition.is_checkpoint_due:
                        await partition.checkpoint()
                    await partition.clean()
                except (PenstockError, OSError) as error:
                    log_.warning(
                        "cleaning failed",
                        extra={"topic": partition.topic.name, "reason": str(error)},
                    )

    async def _compact_forever(self) -> None:
        """One log at a time: a round may take long and remembers many keys. Retention does not
        wait for it."""
        while True:
            await self.compact_interval.pass_by()
            for log in (*self._partitions(), *self._also_compacted()):
                await asyncio.sleep(0)
                now_ms = self._surroundings.clock.mono_ms()
                if self._surroundings.hold.keeps_segments(now_ms=now_ms):
                    break  # a newer record is perhaps not in the backup that is being made
                try:
                    await log.compact()
                except (PenstockError, OSError) as error:
                    log_.warning(
                        "compaction failed",
                        extra={"topic": log.topic.name, "reason": str(error)},
                    )

    async def _sync_forever(self) -> None:
        while True:
            await asyncio.sleep(self._surroundings.fsync_interval_ms / 1_000)
            await in_turns(self._sync_all())

    def _sync_all(self) -> Generator[None, None, None]:
        for partition in self._partitions():
            partition.sync_soon()  # does nothing to one that was closed meanwhile
            yield None
