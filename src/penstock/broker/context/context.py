"""The objects that all partitions of a node share: clock, threads, disk budget, default settings,
cache of decompressed batches, and ``BackupHold``, with which a backup delays other work.

A crossing is a message that moves from one log to another (a dead letter, a redriven message, the
end of a transaction): it is written to the second log before it is acked in the first. The nodes of
a cluster do not take backup positions at the same instant, so a backup could contain the ack but
not the copy. While a backup holds crossings, a message that was copied is not acked yet.

While a backup holds segments, no segment is deleted or compacted: otherwise a record could be
removed because of a newer record with the same key, which the backup does not contain. Both holds
expire, in case the client that makes the backup is gone. A node that is low on disk space deletes
segments anyway (``partition.py``)."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from penstock.broker.context.disk import DiskBudget
from penstock.log.log import Log, LogConfig
from penstock.metadata.topics.catalog import StoredCatalog
from penstock.model import limits
from penstock.model.errors import InvalidRequest
from penstock.model.levels import LEVEL_MAX
from penstock.model.limits import OPENED_BYTES_MAX
from penstock.model.message import Record
from penstock.model.ports import Clock
from penstock.model.stream import TopicDefaults, settings_of
from penstock.model.topic import Fsync, Topic
from penstock.record.opened import OpenedBatch
from penstock.telemetry.metrics import Meter

HOLDERS_MAX: Final = 16  # backups that begin at the same time
CROSSINGS_MS_MAX: Final = 10_000
SEGMENTS_MS_MAX: Final = 600_000


class BackupHold:
    def __init__(self) -> None:
        self._segments_until_ms = 0
        self._holders: dict[str, asyncio.TimerHandle] = {}
        self._released: asyncio.Event | None = None  # None: no crossing is held

    def keep_segments(self, for_ms: int, *, now_ms: int) -> None:
        until_ms = now_ms + min(for_ms, SEGMENTS_MS_MAX)
        self._segments_until_ms = max(self._segments_until_ms, until_ms)

    def keeps_segments(self, *, now_ms: int) -> bool:
        return now_ms < self._segments_until_ms

    async def crossing(self) -> None:
        """Wait while a backup delays acks of copied messages. Called after a message was copied to
        another log, such as a dead-letter queue, and before the ack of the original, so that the
        backup contains at least one of the two."""
        if self._released is not None:
            await self._released.wait()

    def hold_crossings(self, holder: str, for_ms: int) -> bool:
        """Delay messages that move between logs while a backup runs. Returns False if too many
        backups are delaying them already."""
        if holder not in self._holders and len(self._holders) >= HOLDERS_MAX:
            return False
        self.release_crossings(holder)
        loop = asyncio.get_running_loop()
        seconds = min(for_ms, CROSSINGS_MS_MAX) / 1_000
        self._holders[holder] = loop.call_later(seconds, self.release_crossings, holder)
        if self._released is None:
            self._released = asyncio.Event()
        return True

    def holds_crossings(self, holder: str) -> bool:
        return holder in self._holders

    def release_crossings(self, holder: str) -> None:
        timer = self._holders.pop(holder, None)
        if timer is not None:
            timer.cancel()
        if not self._holders and self._released is not None:
            self._released.set()
            self._released = None


BATCHES_MAX: Final = 64


class OpenedBatches:
    def __init__(self, bytes_max: int = OPENED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._size_bytes = 0
        # The key is (record reader, base offset). The most recently used batch is last.
        self.kept: OrderedDict[tuple[object, int], OpenedBatch] = OrderedDict()

    def find(self, owner: object, offset: int) -> OpenedBatch | None:
        for key, opened in self.kept.items():
            header = opened.header
            if key[0] is owner and header.base_offset <= offset < header.next_offset:
                self.kept.move_to_end(key)
                return opened
        return None

    def add(self, owner: object, opened: OpenedBatch) -> None:
        key = (owner, opened.header.base_offset)
        self._drop(key)
        self.kept[key] = opened
        self._size_bytes += opened.size_bytes
        kept = self.kept
        while len(kept) > 1 and (self._size_bytes > self._bytes_max or len(kept) > BATCHES_MAX):
            self._drop(next(iter(kept)))

    def forget(self, owner: object) -> None:
        for key in [key for key in self.kept if key[0] is owner]:
            self._drop(key)

    def _drop(self, key: tuple[object, int]) -> None:
        opened = self.kept.pop(key, None)
        if opened is not None:
            self._size_bytes -= opened.size_bytes


class ShareHooks:
    """What another role knows about shares, or is notified of. The functions must neither block
    nor raise."""

    # Returns the filter of a share in a partition, or None if it wants all records. Called for each
    # read, so that a changed filter applies to the next records. The filter gets each record that
    # the cursor reads, except encrypted ones, which are always wanted.
    find_filter: Callable[[Topic, int], Callable[[Record], bool] | None] | None = None
    # Gets a share, a partition, and the number of messages that retention has deleted there before
    # they were acked.
    lost: Callable[[Topic, int, int], None] | None = None


@dataclass(frozen=True)
class BrokerContext:
    folder: Path  # partitions are in folder/topics/<topic id>/<index>/
    clock: Clock
    pool: Executor  # for fdatasync, checkpoints and opening logs
    disk: DiskBudget
    catalog: StoredCatalog
    meter: Meter
    log: LogConfig
    fsync_default: Fsync = Fsync.ALWAYS
    fsync_interval_ms: int = 100
    clean_interval_ms: int = 5_000
    compact_interval_ms: int = 15_000
    scrub_bytes_per_second: int = 0
    scrub_interval_ms: int = limits.SCRUB_INTERVAL_MS
    in_flight_max: int = limits.IN_FLIGHT_MAX
    # Clocks are read in whole milliseconds, rounded down. Without this margin a lease could end a
    # fraction of a millisecond too early, and two consumers could hold the same message.
    grain_ms: int = 1
    # The wall clock measures elapsed time since this wall time, also while no process was running.
    elapsed_since_ms: int = limits.FOREVER_MS
    hold: BackupHold = field(default_factory=BackupHold)  # of backups in progress
    opened: OpenedBatches = field(default_factory=OpenedBatches)
    defaults: TopicDefaults = field(default_factory=TopicDefaults)
    level: Callable[[], int] = lambda: LEVEL_MAX  # the current feature level
    share_hooks: ShareHooks = field(default_factory=ShareHooks)

    def check_level(self, needed: int, feature: str) -> None:
        """Raise InvalidRequest if the cluster's feature level is too low for a feature."""
        level = self.level()
        if level < needed:
            raise InvalidRequest(
                f"{feature} need feature level {needed}, but the cluster is at level {level}: run"
                " `penstock cluster upgrade`."
            )


log_ = logging.getLogger(__name__)


def log_config(topic: Topic, context: BrokerContext) -> LogConfig:
    """Return a topic's log settings. Each limit is the lower of the topic's and the node's."""
    stream, node = settings_of(topic, context.defaults), context.log
    age_ms_max = stream.segment_ms
    if stream.is_compacted:
        # Only closed segments are compacted, so the last segment must be closed in time.
        age_ms_max = min(age_ms_max, stream.compaction_lag_ms_max)
    return replace(
        node,
        segment_bytes_max=min(node.segment_bytes_max, stream.segment_bytes),
        segment_age_ms_max=min(node.segment_age_ms_max, age_ms_max),
    )


def open_log(topic: Topic, index: int, topics: Path, context: BrokerContext) -> Log:
    """Open the log of a partition, and write log events about what the recovery found."""
    folder = topics / topic.topic_id / str(index)
    log = Log.open(folder, log_config(topic, context), now_ms=context.clock.wall_ms())
    report = log.recovery
    fields = {"topic": topic.name, "partition": index}
    if report.truncated_bytes:
        truncated = {"bytes": report.truncated_bytes, "reason": report.reason}
        log_.warning("incomplete write at the end of the log removed", extra=fields | truncated)
    if report.is_low_watermark_damaged:
        log_.error(
            "low watermark file damaged: some deleted records are readable again",
            extra=fields | {"folder": str(folder)},
        )
    for damage in report.damage:
        log_.error("damage found in log", extra=fields | {"reason": str(damage)})
    return log
