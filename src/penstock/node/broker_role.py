"""The broker role of a node: partitions, and beside them the coordinators of groups and of
transactions. Started in this order and stopped in the other."""

from concurrent.futures import Executor

from penstock.broker.calls import Broker
from penstock.broker.disk import DiskBudget
from penstock.broker.groups import GroupHost
from penstock.broker.surroundings import Surroundings
from penstock.broker.transactions import TransactionHost
from penstock.cursor.group.settings import GroupSettings
from penstock.log.log import LogConfig
from penstock.log.tail import TailBudget
from penstock.metadata.moves import MoveTasks
from penstock.metadata.producer_ids import StoredProducerIds
from penstock.node.basis import Basis
from penstock.node.config import Mode
from penstock.node.metadata_link import MetadataLink

# Whoever develops restarts consumers all day: nobody should wait for more of them then.
DEV_GROUPS = GroupSettings(initial_delay_ms=0, consumer_heartbeat_ms=1_000)


class BrokerRole:
    def __init__(
        self, basis: Basis, metadata: MetadataLink, *, pool: Executor, disk: DiskBudget
    ) -> None:
        self._basis = basis
        self._metadata = metadata
        self._tasks = MoveTasks(metadata.own_store)
        self.disk = disk
        self.broker = Broker(
            _surroundings(basis, metadata, pool, disk), self._tasks, entropy=basis.entropy
        )
        self.producer_ids = StoredProducerIds(metadata.store)

    async def start(self) -> None:
        """A long recovery happens here."""
        basis, node = self._basis, self._basis.config.node
        await self._tasks.start()
        await self.broker.start()
        self.groups = GroupHost(
            streams=self.broker,
            catalog=self._metadata.topics,
            clock=basis.clock,
            entropy=basis.entropy,
            account=node.account,
            region=node.region,
            settings=DEV_GROUPS if node.mode is Mode.DEV else GroupSettings(),
        )
        await self.groups.start()
        self.transactions = TransactionHost(
            streams=self.broker,
            groups=self.groups,
            catalog=self._metadata.topics,
            next_producer_id=self.producer_ids.next_id,
            clock=basis.clock,
            entropy=basis.entropy,
            account=node.account,
            region=node.region,
        )
        await self.transactions.start()

    def end_waits(self) -> None:
        """Whoever is parked is answered, so that listeners can drain."""
        self.broker.partitions.end_waits()
        self.groups.end_waits()

    async def stop_coordinators(self) -> None:
        await self.transactions.stop()
        await self.groups.stop()

    async def stop(self) -> None:
        await self.broker.stop()
        await self._tasks.stop()

    def troubles(self) -> dict[str, str]:
        """By what they are about."""
        found = {f"partition {text}": text for text in self.broker.partitions.damages()}
        found.update({f"groups {text}": text for text in self.groups.troubles()})
        found.update({text: text for text in self.transactions.troubles()})
        if self.disk.is_low:
            found["disk"] = "the disk is full: messages are refused, receiving goes on"
        return found


def _surroundings(
    basis: Basis, metadata: MetadataLink, pool: Executor, disk: DiskBudget
) -> Surroundings:
    config = basis.config
    return Surroundings(
        folder=basis.folder.path,
        clock=basis.clock,
        pool=pool,
        disk=disk,
        catalog=metadata.topics,
        meter=basis.meter,
        log=LogConfig(
            segment_bytes_max=config.log.segment_bytes_max,
            segment_age_ms_max=config.log.segment_age_ms_max,
            tail_bytes_max=config.log.tail_bytes_max,
            tail_budget=TailBudget(config.log.tails_bytes_max),
        ),
        fsync_default=config.log.fsync,
        fsync_interval_ms=config.log.fsync_interval_ms,
        clean_interval_ms=config.log.retention_check_ms,
        in_flight_max=config.queue.in_flight_max,
        is_elapsed_trusted=basis.is_elapsed_trusted,
    )
