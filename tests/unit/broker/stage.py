"""A real broker on a real folder with a clock that tests move by hand."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.broker.calls import Broker
from penstock.broker.context.context import BrokerContext
from penstock.broker.context.disk import DiskBudget
from penstock.log.log import LogConfig
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.topics.catalog import MoveTasks, StoredCatalog
from penstock.model.errors import Draining
from penstock.model.message import Claim, Delivery, Message
from penstock.model.topic import Fsync, Kind, QueueSettings, Topic
from penstock.telemetry.metrics import Meter


class HandClock:
    """Implements model.ports.Clock; stands still unless moved."""

    def __init__(self) -> None:
        self.wall = 1_700_000_000_000
        self.mono = 1_000_000

    def wall_ms(self) -> int:
        return self.wall

    def mono_ms(self) -> int:
        return self.mono

    def advance(self, ms: int) -> None:
        self.wall += ms
        self.mono += ms


@dataclass
class Stage:
    broker: Broker
    catalog: StoredCatalog
    tasks: MoveTasks
    clock: HandClock
    meter: Meter

    async def topic(
        self,
        name: str = "q",
        *,
        fifo: bool = False,
        kind: Kind | None = None,
        account: str = "000000000000",
        partitions: int = 1,
        fsync: Fsync | None = None,
        settings: QueueSettings | None = None,
    ) -> Topic:
        return await self.catalog.create(
            Topic(
                topic_id=secrets.token_hex(16),
                account=account,
                region="us-east-1",
                name=name,
                kind=kind or (Kind.FIFO if fifo else Kind.STANDARD),
                partition_count=partitions,
                created_at_ms=self.clock.wall,
                modified_at_ms=self.clock.wall,
                receipt_key=b"k" * 32,
                fsync=fsync,
                settings=settings or QueueSettings(),
            )
        )


@asynccontextmanager
async def on_stage(
    folder: Path,
    clock: HandClock | None = None,
    *,
    log: LogConfig | None = None,
    in_flight_max: int = 120_000,
    clean_interval_ms: int = 3_600_000,
    compact_interval_ms: int = 3_600_000,
    elapsed_since_ms: int = 0,
    is_crash: bool = False,
) -> AsyncIterator[Stage]:
    """A broker from start to stop; with ``is_crash`` it is dropped as a killed process would be:
    nothing is closed, checkpointed or synced beyond what was promised."""
    clock = clock or HandClock()
    folder.mkdir(parents=True, exist_ok=True)
    store = await SqliteStore.open(folder / "metadata.sqlite3")
    catalog = StoredCatalog(store)
    tasks = MoveTasks(store)
    await catalog.start()
    await tasks.start()
    meter = Meter()
    pool = ThreadPoolExecutor(2)
    context = BrokerContext(
        folder=folder,
        clock=clock,
        pool=pool,
        disk=DiskBudget(folder, clock, reserve_bytes=1),
        catalog=catalog,
        meter=meter,
        log=log or LogConfig(),
        fsync_interval_ms=20,
        clean_interval_ms=clean_interval_ms,
        compact_interval_ms=compact_interval_ms,
        in_flight_max=in_flight_max,
        grain_ms=0,  # a clock moved by hand has no fractions
        elapsed_since_ms=elapsed_since_ms,
    )
    broker = Broker(context, tasks, entropy=secrets.token_bytes)
    await broker.start()
    try:
        yield Stage(broker, catalog, tasks, clock, meter)
    finally:
        if is_crash:
            await drop(broker)
        else:
            await broker.stop()
        await tasks.stop()
        await catalog.stop()
        await store.close()
        pool.shutdown()


async def drop(broker: Broker) -> None:
    """End the broker's tasks and let go of its files without any of the courtesies of a stop."""
    for task in asyncio.all_tasks():
        if task.get_name() in (
            "cleaner",
            "compactor",
            "interval sync",
            "scrubber",
        ) or task.get_name().startswith("move "):
            task.cancel()
    for queue in broker.partitions.queues():
        for partition in queue.partitions.values():
            await partition.journal.end(Draining("killed"))
            partition.log.close(clean=False)


def message(body: str = "hello", **fields: object) -> Message:
    return Message(secrets.token_bytes(16), body.encode(), **fields)  # type: ignore[arg-type]


def claim(delivery: Delivery) -> Claim:
    return Claim(delivery.partition, delivery.record.offset, delivery.lease_seq)


def bodies(deliveries: object) -> list[str]:
    return [d.record.message.body.decode() for d in deliveries]  # type: ignore[attr-defined]
