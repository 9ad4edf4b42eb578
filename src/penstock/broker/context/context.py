"""What all partitions of a node share: clock, threads, disk budget, defaults. Built in node/."""

from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from penstock.broker.context.backup_hold import BackupHold
from penstock.broker.context.disk import DiskBudget
from penstock.broker.context.opened_batches import OpenedBatches
from penstock.log.log import LogConfig
from penstock.metadata.topics.catalog import StoredCatalog
from penstock.model import limits
from penstock.model.ports import Clock
from penstock.model.stream import TopicDefaults
from penstock.model.topic import Fsync


class BrokerMeter(Protocol):
    """The counters of a broker. Nothing here is called per message on the hot path."""

    def dedup_hit(self) -> None: ...
    def dead_lettered(self, count: int) -> None: ...
    def expired(self, count: int) -> None: ...
    def fsynced(self, seconds: float) -> None: ...
    def appended(self, size_bytes: int, seconds: float) -> None: ...


@dataclass(frozen=True)
class BrokerContext:
    folder: Path  # partitions are in folder/topics/<topic id>/<index>/
    clock: Clock
    pool: Executor  # for fdatasync, checkpoints and opening logs
    disk: DiskBudget
    catalog: StoredCatalog
    meter: BrokerMeter
    log: LogConfig
    fsync_default: Fsync = Fsync.ALWAYS
    fsync_interval_ms: int = 100
    clean_interval_ms: int = 5_000
    compact_interval_ms: int = 15_000
    scrub_bytes_per_second: int = 0
    scrub_interval_ms: int = limits.SCRUB_INTERVAL_MS
    in_flight_max: int = limits.IN_FLIGHT_MAX
    # Clocks are read in whole milliseconds, rounded down at both ends: without this a lease could
    # end a fraction of one too early, and two consumers have one message.
    grain_ms: int = 1
    # Whether the wall clock can measure time since before this process started.
    is_elapsed_trusted: bool = False
    hold: BackupHold = field(default_factory=BackupHold)  # of backups in progress
    opened: OpenedBatches = field(default_factory=OpenedBatches)
    defaults: TopicDefaults = field(default_factory=TopicDefaults)
