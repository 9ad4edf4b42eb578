"""The base of the group and the transaction coordinators of a node: one internal topic, and one
coordinator per partition. The topic is created at the first start, and again if it was deleted. Its
partition count never changes, because the hash of a group id or transactional id selects the
partition and so the coordinator."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from penstock.broker.context.timers import cancel_all
from penstock.broker.coordination.remote_calls import RemoteCoordinators
from penstock.broker.coordination.row_log import RowLog, RowUnreadable
from penstock.broker.coordination.runtime import CoordinatorRuntime
from penstock.cursor.coordinator_calls import CoordinatorCall, Handlers, R
from penstock.cursor.tenants import NO_QUOTAS, CoordinatorUsage
from penstock.metadata.topics.catalog import make_internal_topic
from penstock.model.calls import BrokerPort
from penstock.model.limits import MIB
from penstock.model.ports import Catalog, Clock
from penstock.model.topic import Topic, partition_of_group

PARTITION_COUNT = 4  # separate logs, so that decisions rarely wait for a sync of another partition
# The last segment is not compacted, and is read completely when a coordinator starts.
SEGMENT_BYTES = 16 * MIB
# Rows are kept until they are overwritten, regardless of their age.
CONFIGS = {"cleanup.policy": "compact", "retention.ms": "-1"}


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


C = TypeVar("C", bound=CoordinatorRuntime)


class CoordinatorHost(ABC, Generic[C]):
    handlers: Handlers

    def __init__(self, topic_name: str, setup: CoordinatorSetup, *, expire_ms: int) -> None:
        self._setup = setup
        self._topic_name = topic_name
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
    def _new_coordinator(self, label: str, open_log: Callable[[], Awaitable[RowLog]]) -> C: ...

    @abstractmethod
    def expire(self) -> None: ...

    def call(self, call: CoordinatorCall[R]) -> Coroutine[Any, Any, R]:
        return self.handlers[type(call)](call)

    async def start(self) -> None:
        topic = await self._find_or_create_topic()
        self._coordinators = [
            self._new_coordinator(f"{self._topic_name}/{each}", partial(self._open_log, each))
            for each in range(topic.partition_count)
        ]
        self._catalog.on_change(self._skipped_rows_changed)
        if self._led is None:
            await asyncio.gather(*(coordinator.start() for coordinator in self._coordinators))
        else:
            for partition in range(topic.partition_count):
                self.led(partition, partition in self._led)
        self._job = asyncio.create_task(self._expire_forever(), name=f"expire {self._topic_name}")

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
        """Return the log records that stop a coordinator until an operator skips them."""
        return [each.unreadable for each in self._coordinators if each.unreadable is not None]

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(self._expire_ms / 1_000)
            self.expire()

    def tick(self) -> None:
        for coordinator in self._coordinators:
            coordinator.tick()

    async def _find_or_create_topic(self) -> Topic:
        topic = self._catalog.find(*self._namespace, self._topic_name)
        if topic is not None:
            return topic
        return await make_internal_topic(
            self._catalog,
            self._namespace,
            self._topic_name,
            # A topic that is created again must have one partition per coordinator.
            partition_count=len(self._coordinators) or PARTITION_COUNT,
            configs={**CONFIGS, "segment.bytes": str(self._setup.segment_bytes)},
            clock=self._clock,
            entropy=self._setup.entropy,
        )

    async def _open_log(self, partition: int) -> RowLog:
        topic = await self._find_or_create_topic()
        return RowLog(self._setup.broker, topic, partition, self._clock)

    def _skipped_rows_changed(self, before: Topic | None, after: Topic | None) -> None:
        if (
            before is not None
            and after is not None
            and (after.account, after.region) == self._namespace
            and after.name == self._topic_name
            and before.skipped_rows != after.skipped_rows
        ):
            for coordinator in self._coordinators:
                coordinator.read_again()
