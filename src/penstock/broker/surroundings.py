"""What every partition of a node shares: clock, threads, disk budget, defaults. Built in node/."""

from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from penstock.broker.disk import DiskBudget
from penstock.broker.hold import Hold
from penstock.broker.opened_batches import OpenedBatches
from penstock.log.log import LogConfig
from penstock.metadata.catalog import StoredCatalog
from penstock.model import limits
from penstock.model.ports import Clock
from penstock.model.stream import TopicDefaults
from penstock.model.topic import Fsync


class BrokerMeter(Protocol):
    """What a broker counts. Totals only: nothing here is per message on the hot path."""

    def dedup_hit(self) -> None: ...

    def dead_lettered(self, count: int) -> None: ...

    def expired(self, count: int) -> None: ...

    def fsynced(self, seconds: float) -> None: ...

    def appended(self, size_bytes: int, seconds: float) -> None: ...


@dataclass(frozen=True)
class Surroundings:
    folder: Path  # partitions live in folder/topics/<topic id>/<index>/
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
    # end a fraction of one too early, and two consumers hold one message.
    grain_ms: int = 1
    # Whether durations written before this process started can be measured by the wall clock.
    is_elapsed_trusted: bool = False
    hold: Hold = field(default_factory=Hold)  # what a backup under way asks for
    opened: OpenedBatches = field(default_factory=OpenedBatches)
    defaults: TopicDefaults = field(default_factory=TopicDefaults)
