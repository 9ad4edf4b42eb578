"""The base of the group and the transaction coordinators of a node: one internal topic, and one
coordinator per partition. The topic is created at the first start, and again if it was deleted. Its
partition count never changes, because the hash of a group id or transactional id selects the
partition and so the coordinator.

A coordinator keeps its memory consistent with its partition: it reads the log into memory at the
start, and appends the rows of every decision.

- **Appends** run one at a time, in the order of the decisions. Decisions made during an append are
  written together by the next append, with one sync.
- **A reply that must be durable** waits for all rows appended so far, and so for all state that its
  decision was based on.
- **A failed append** leaves memory ahead of the log. All waiting requests fail, and memory is read
  from the log again. The pause between reads grows until an append succeeds, so that a full disk
  does not cause constant reading."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from penstock.broker.context.timers import Alarm, cancel_all
from penstock.broker.coordination.remote_calls import RemoteCoordinators
from penstock.broker.coordination.row_log import RowLog, RowUnreadable, portions
from penstock.cursor.coordinator_calls import CoordinatorCall, Handlers, R
from penstock.cursor.rows import Row
from penstock.cursor.tenants import NO_QUOTAS, CoordinatorUsage
from penstock.metadata.topics.catalog import make_internal_topic
from penstock.model.calls import BrokerPort
from penstock.model.errors import PenstockError
from penstock.model.limits import MIB
from penstock.model.ports import Catalog, Clock
from penstock.model.topic import Topic, partition_of_group

log_ = logging.getLogger(__name__)

PARTITION_COUNT = 4  # separate logs, so that decisions rarely wait for a sync of another partition
# The last segment is not compacted, and is read completely when a coordinator starts.
SEGMENT_BYTES = 16 * MIB
# Rows are kept until they are overwritten, regardless of their age.
CONFIGS = {"cleanup.policy": "compact", "retention.ms": "-1"}

RELOAD_MS_MIN = 1_000
RELOAD_MS_MAX = 10_000
STOP_SECONDS_MAX = 3.0

OnCommitted = Callable[[bool], None]


@dataclass(frozen=True)
class CoordinatorSetup:
    broker: BrokerPort
    catalog: Catalog
    clock: Clock
    entropy: Callable[[int], bytes]
    account: str
    region: str
    segment_bytes: int = SEGMENT_BYTES  # of the internal topic, if it is created
    # Calls to the coordinators of other nodes, which lead other partitions; None without a cluster.
    remote: RemoteCoordinators | None = None
    usage: CoordinatorUsage = NO_QUOTAS  # counts groups, offsets and transactions per tenant


class _Append:
    def __init__(self) -> None:
        self.decisions: list[Sequence[Row]] = []
        self.waiting: list[OnCommitted] = []

    def notify(self, is_committed: bool) -> None:
        waiting, self.waiting = self.waiting, []
        for on_committed in waiting:
            on_committed(is_committed)


class CoordinatorRuntime(ABC):
    def __init__(self, host: "CoordinatorHost[Any]", partition: int) -> None:
        clock = host.setup.clock
        self.trouble: str | None = None  # why this coordinator serves no requests
        self.unreadable: RowUnreadable | None = None  # the row that caused it, if any
        self.is_standing_by = False  # another node leads the log and makes the decisions
        self.epoch = 0  # leader epoch of the log when it was read
        self._clock = clock
        self._usage = host.setup.usage
        self._label = f"{host.topic_name}/{partition}"
        self._loop = asyncio.get_running_loop()
        self._open_log = partial(host.open_log, partition)
        self._log: RowLog | None = None  # None: memory is not loaded
        self._is_stopping = False
        self._next = _Append()
        self._in_progress: _Append | None = None
        self._appender: asyncio.Task[None] | None = None
        self._loader: asyncio.Task[None] | None = None
        self._load_began_ms = 0
        self._reload_ms = 0  # pause between the starts of two loads
        self._reload_alarm = Alarm(clock, self._start_load)
        self._alarm = Alarm(clock, self.tick)  # set by subclasses
        self._changed: asyncio.Future[None] | None = None  # wakes ``wait_ready``

    @abstractmethod
    def reset(self) -> None: ...

    @abstractmethod
    def replay(self, row: Row) -> None:
        """Apply the next row of the log. Raises ValueError if the row cannot be applied."""

    @abstractmethod
    def loaded(self) -> None:
        """Called when the whole log was read. Requests may be served from now on."""

    @abstractmethod
    def lost(self) -> None:
        """Called when the state no longer matches the log. Requests fail until it is reloaded."""

    @abstractmethod
    def tick(self) -> None: ...

    async def start(self) -> None:
        self._start_load()
        if self._loader is not None:
            await asyncio.shield(self._loader)

    async def stop(self) -> None:
        """Wait some seconds for appends in progress, then fail all waiting requests."""
        self._is_stopping = True
        self._reload_alarm.clear()
        self._notify_changed()
        await cancel_all((self._loader,))
        if self._appender is not None:
            # In a cluster, the other nodes that must commit the append may have stopped.
            await asyncio.wait((self._appender,), timeout=STOP_SECONDS_MAX)
        dropped, self._next = self._next, _Append()
        dropped.notify(is_committed=False)
        while self._appender is not None:
            self._appender.cancel()
            await asyncio.wait((self._appender,))
        if self._log is not None:
            self._log = None
            self.lost()
        self._alarm.clear()

    def stand_by(self) -> None:
        self.is_standing_by = True
        self._reload_alarm.clear()
        if self._loader is not None:
            self._loader.cancel()
        self.lose("another node leads")
        self.trouble = self.unreadable = None
        self._notify_changed()

    def take_over(self) -> None:
        """Load the state from the log, because this node now leads the partition."""
        self.is_standing_by = False
        self.read_again()

    def read_again(self) -> None:
        """Retry a failed load of the log now, for example because an operator skipped a row."""
        self._reload_ms = 0
        self._start_load()

    async def wait_ready(self, *, until_s: float) -> None:
        """Wait until the state is loaded, another node coordinates, or ``until_s`` is reached."""
        while not self.ready() and not (self.is_standing_by or self._is_stopping):
            left_s = until_s - self._loop.time()
            if left_s <= 0:
                break
            if self._changed is None:
                self._changed = self._loop.create_future()
            await asyncio.wait((self._changed,), timeout=left_s)

    def _notify_changed(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set_result(None)

    def ready(self) -> bool:
        """Return whether requests can be served now. If not, start loading the log."""
        if self._log is None:
            self._start_load()
        return self._log is not None

    def append(self, rows: Sequence[Row], *, is_divisible: bool = False) -> None:
        """Append the rows of a change that was already made in memory. If ``is_divisible``, the
        rows may be written as several batches, and after a crash some may be missing."""
        assert self._log is not None, "decisions are made once the log was read"
        if not rows:
            return
        if is_divisible:
            self._next.decisions.extend(portions(rows))
        else:
            self._next.decisions.append(rows)
        self._start_appender()

    def when_committed(self, on_committed: OnCommitted) -> None:
        """Call ``on_committed`` with True once all rows so far are committed, or False on error."""
        append = self._next if self._next.decisions else self._in_progress
        if self._log is None or append is None:
            on_committed(self._log is not None)
        else:
            append.waiting.append(on_committed)

    async def committed(self) -> bool:
        future: asyncio.Future[bool] = self._loop.create_future()
        self.when_committed(lambda is_done: None if future.done() else future.set_result(is_done))
        return await future

    def lose(self, reason: str) -> None:
        if self._log is None:
            return
        if not self.is_standing_by:
            fields = {"coordinator": self._label, "reason": reason}
            log_.warning("coordinator state discarded, reading its log again", extra=fields)
        self._log = None
        self.trouble = f"{self._label}: {reason}"
        dropped, self._next = self._next, _Append()
        self.lost()
        if self._in_progress is not None:
            self._in_progress.notify(is_committed=False)
        dropped.notify(is_committed=False)
        self._start_load()

    def _start_appender(self) -> None:
        if self._appender is None:
            name = f"append {self._label}"
            self._appender = self._loop.create_task(self._append_all(), name=name)
            self._appender.add_done_callback(self._appender_ended)

    async def _append_all(self) -> None:
        while self._log is not None and self._next.decisions:
            await self._append_next(self._log)

    def _appender_ended(self, _: asyncio.Task[None]) -> None:
        self._appender = None
        if self._log is not None and self._next.decisions:
            self._start_appender()  # decided after the appender's last check
        self._start_load()

    async def _append_next(self, log: RowLog) -> None:
        append = self._in_progress = self._next
        self._next = _Append()
        try:
            await log.append(append.decisions)
        except PenstockError as error:
            self.lose(f"append failed: {error}")
        except Exception as error:
            log_.exception("coordinator append failed", extra={"coordinator": self._label})
            self.lose(f"append failed: {type(error).__name__}")
        else:
            self._reload_ms = RELOAD_MS_MIN
            append.notify(is_committed=True)  # after a loss of memory, the list is already empty
        finally:
            append.notify(is_committed=False)  # on failure, whatever still waits
            self._in_progress = None

    def _start_load(self) -> None:
        if self._log is not None or self._loader is not None or self._is_stopping:
            return
        # The outcome of an append in progress is unknown. Its end calls this again.
        if self.is_standing_by or self._appender is not None:
            return
        now_ms = self._clock.mono_ms()
        load_from_ms = self._load_began_ms + self._reload_ms
        if now_ms < load_from_ms:
            self._reload_alarm.set(load_from_ms)
            return
        self._load_began_ms = now_ms
        self._reload_ms = min(max(2 * self._reload_ms, RELOAD_MS_MIN), RELOAD_MS_MAX)
        self._loader = self._loop.create_task(self._load(), name=f"load {self._label}")
        self._loader.add_done_callback(self._load_ended)

    async def _load(self) -> None:
        try:
            log = await self._open_log()
            start, end = await log.ends()
            self.epoch = log.epoch
            self.reset()
            await log.replay(start, end, self.replay)
            self._log = log
            self.trouble = self.unreadable = None
            self.loaded()
            self._notify_changed()
        except (PenstockError, ValueError) as error:  # MalformedBatch is a ValueError
            self._not_loaded(error, str(error))
        except Exception as error:
            log_.exception("coordinator load failed", extra={"coordinator": self._label})
            self._not_loaded(error, type(error).__name__)

    def _load_ended(self, _: asyncio.Task[None]) -> None:
        self._loader = None
        self._start_load()

    def _not_loaded(self, error: Exception, reason: str) -> None:
        self._log = None
        self._next = _Append()
        before, self.trouble = self.trouble, f"{self._label}: reading the log failed: {reason}"
        self.unreadable = error if isinstance(error, RowUnreadable) else None
        if self.trouble == before:
            return  # already logged by an earlier attempt
        fields: dict[str, object] = {"coordinator": self._label, "reason": reason}
        if self.unreadable is not None:
            row = self.unreadable
            fields |= {"topic": row.topic, "partition": row.partition, "offset": row.offset}
        log_.error("coordinator out of service", extra=fields)


C = TypeVar("C", bound=CoordinatorRuntime)


class CoordinatorHost(ABC, Generic[C]):
    handlers: Handlers

    def __init__(self, topic_name: str, setup: CoordinatorSetup, *, expire_ms: int) -> None:
        self.setup = setup
        self.topic_name = topic_name
        self._catalog = setup.catalog
        self._clock = setup.clock
        self._remote = setup.remote
        self._namespace = (setup.account, setup.region)
        self._expire_ms = expire_ms
        self._coordinators: list[C] = []
        # The partitions that this node leads; None without a cluster, where it leads all.
        self._led: set[int] | None = None if setup.remote is None else set()
        self._job: asyncio.Task[None] | None = None

    @abstractmethod
    def _new_coordinator(self, partition: int) -> C: ...

    @abstractmethod
    def expire(self) -> None: ...

    def call(self, call: CoordinatorCall[R]) -> Coroutine[Any, Any, R]:
        return self.handlers[type(call)](call)

    async def start(self) -> None:
        topic = await self._find_or_create_topic()
        self._coordinators = [self._new_coordinator(each) for each in range(topic.partition_count)]
        self._catalog.on_change(self._skipped_rows_changed)
        if self._led is None:
            await asyncio.gather(*(coordinator.start() for coordinator in self._coordinators))
        else:
            for partition in range(topic.partition_count):
                self.led(partition, partition in self._led)
        self._job = asyncio.create_task(self._expire_forever(), name=f"expire {self.topic_name}")

    async def stop(self) -> None:
        await cancel_all((self._job,))
        for coordinator in self._coordinators:
            await coordinator.stop()

    def led(self, partition: int, is_led: bool) -> None:
        assert self._led is not None, "a node without a cluster leads all partitions"
        (self._led.add if is_led else self._led.discard)(partition)
        if partition < len(self._coordinators):
            coordinator = self._coordinators[partition]
            coordinator.take_over() if is_led else coordinator.stand_by()

    def _own_coordinators(self) -> list[C]:
        led = self._led
        return [c for index, c in enumerate(self._coordinators) if led is None or index in led]

    def _at(self, key: str) -> C:
        return self._coordinators[partition_of_group(key, len(self._coordinators))]

    def troubles(self) -> Sequence[str]:
        return [c.trouble for c in self._coordinators if c.trouble is not None and not c.unreadable]

    def unreadable_rows(self) -> Sequence[RowUnreadable]:
        """Return the rows that coordinators of this node cannot read and at which they stopped."""
        return [each.unreadable for each in self._coordinators if each.unreadable is not None]

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(self._expire_ms / 1_000)
            self.expire()

    def tick(self) -> None:
        for coordinator in self._coordinators:
            coordinator.tick()

    async def _find_or_create_topic(self) -> Topic:
        topic = self._catalog.find(*self._namespace, self.topic_name)
        if topic is not None:
            return topic
        return await make_internal_topic(
            self._catalog,
            self._namespace,
            self.topic_name,
            # A topic that is created again must have one partition per coordinator.
            partition_count=len(self._coordinators) or PARTITION_COUNT,
            configs={**CONFIGS, "segment.bytes": str(self.setup.segment_bytes)},
            clock=self._clock,
            entropy=self.setup.entropy,
        )

    async def open_log(self, partition: int) -> RowLog:
        topic = await self._find_or_create_topic()
        return RowLog(self.setup.broker, topic, partition, self._clock)

    def _skipped_rows_changed(self, before: Topic | None, after: Topic | None) -> None:
        if (
            before is not None
            and after is not None
            and (after.account, after.region) == self._namespace
            and after.name == self.topic_name
            and before.skipped_rows != after.skipped_rows
        ):
            for coordinator in self._coordinators:
                coordinator.read_again()
