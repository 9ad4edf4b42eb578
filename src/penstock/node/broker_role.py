"""The broker role of a node: partitions, and beside them the coordinators of groups and of
transactions. Started in this order and stopped in the other."""

from collections.abc import Iterator
from concurrent.futures import Executor

from penstock.broker import coordinators
from penstock.broker.calls import Broker
from penstock.broker.coordinators import OtherCoordinators
from penstock.broker.cutting import Cutting
from penstock.broker.disk import DiskBudget
from penstock.broker.group_configs import GroupConfigs
from penstock.broker.groups import TOPIC_NAME as GROUPS_TOPIC
from penstock.broker.groups import GroupHost
from penstock.broker.partition import Partition
from penstock.broker.surroundings import Surroundings
from penstock.broker.transactions import TOPIC_NAME as TRANSACTIONS_TOPIC
from penstock.broker.transactions import TransactionHost
from penstock.cursor.group.settings import GroupSettings
from penstock.cursor.tenants import TenantRooms
from penstock.frontend.kafka.broker_table import COMPACTION_BACKOFF, TOPIC_NAMES
from penstock.log.log import LogConfig
from penstock.log.tail import TailBudget
from penstock.metadata.dynamic_configs import DynamicConfigs
from penstock.metadata.moves import MoveTasks
from penstock.metadata.producer_ids import StoredProducerIds
from penstock.metadata.resource_configs import ResourceConfigs
from penstock.model import troubles
from penstock.model.levels import LEVEL_MAX
from penstock.model.partitioning import partition_of_group
from penstock.model.replication import IN_SYNC_MIN
from penstock.model.stream import TopicDefaults
from penstock.model.troubles import Trouble
from penstock.node.basis import Basis
from penstock.node.cluster_role import ClusterRole
from penstock.node.config import Mode
from penstock.node.metadata_link import MetadataLink

# Whoever develops restarts consumers all day: nobody should wait for more of them then.
DEV_GROUPS = GroupSettings(initial_delay_ms=0, consumer_heartbeat_ms=1_000)


class BrokerRole:
    def __init__(
        self,
        basis: Basis,
        metadata: MetadataLink,
        *,
        pool: Executor,
        disk: DiskBudget,
        rooms: TenantRooms,
        cluster: ClusterRole | None = None,
    ) -> None:
        self._basis = basis
        self.rooms = rooms  # what tenants have at the coordinators
        self._metadata = metadata
        self._cluster = cluster
        self.configs = ResourceConfigs(metadata.store)
        self.dynamic = DynamicConfigs(
            self.configs,
            account=basis.config.node.account,
            node=basis.config.cluster.node or 1,
            level=self.level,
            topic_names=TOPIC_NAMES,
        )
        self._surroundings = _surroundings(
            basis,
            metadata,
            pool,
            disk,
            defaults=self.dynamic.defaults,
            is_clustered=cluster is not None,
        )
        self._tasks = MoveTasks(metadata.own_store)
        self.disk = disk
        self.broker = Broker(
            self._surroundings,
            self._tasks,
            entropy=basis.entropy,
            is_clustered=cluster is not None,
        )
        self.producer_ids = StoredProducerIds(metadata.store)
        self.cutting = Cutting(self.broker.partitions, self._surroundings.hold, basis.clock)

    async def start(self) -> None:
        """A long recovery happens here."""
        basis, node, cluster = self._basis, self._basis.config.node, self._cluster
        await self._tasks.start()
        self.dynamic.on_change(self._configs_changed)
        await self.configs.start()
        await self.broker.start()
        others = None if cluster is None else self._other_coordinators(cluster)
        self.groups = self._group_host(others)
        # Other nodes lease from shares as soon as this one is in the cluster.
        self.broker.shares.settings_of = self.groups.settings_of
        if cluster is not None:
            await cluster.start(self.broker, self._surroundings)
        await self.groups.start()
        self.transactions = TransactionHost(
            streams=self.broker,
            groups=self.groups,
            others=others,
            rooms=self.rooms,
            markers=None if cluster is None else cluster.anywhere,
            hold=self._surroundings.hold,
            catalog=self._metadata.topics,
            next_producer_id=self.producer_ids.next_id,
            clock=basis.clock,
            entropy=basis.entropy,
            account=node.account,
            region=node.region,
        )
        await self.transactions.start()
        if cluster is not None:
            cluster.level.on_change(self.groups.level_changed)
            self.groups.level_changed()  # it may have been raised before anybody listened
            self.cutting.register(cluster.answers)
            coordinators.register(
                cluster.answers, groups=self.groups, transactions=self.transactions
            )
            self.broker.partitions.on_led(self._led)
            for queue in self.broker.partitions.queues():
                for partition in queue.partitions.values():
                    self._led(partition, is_led=True)

    def _group_host(self, others: OtherCoordinators | None) -> GroupHost:
        basis, node = self._basis, self._basis.config.node
        return GroupHost(
            streams=self.broker,
            catalog=self._metadata.topics,
            clock=basis.clock,
            entropy=basis.entropy,
            account=node.account,
            region=node.region,
            settings=DEV_GROUPS if node.mode is Mode.DEV else GroupSettings(),
            others=others,
            rooms=self.rooms,
            configs=GroupConfigs(self.configs, rooms=self.rooms, level=self.level),
            level=self.level,
        )

    def level(self) -> int:
        """The feature level in force."""
        return LEVEL_MAX if self._cluster is None else self._cluster.level.in_force

    def _configs_changed(self) -> None:
        """Defaults of topics reach logs by themselves (``Surroundings.defaults``)."""
        backoff_ms = self.dynamic.value(COMPACTION_BACKOFF)
        own_ms = self._basis.config.log.compaction_check_ms
        self.broker.partitions.compact_interval.change(int(backoff_ms or own_ms))
        if self._cluster is not None:
            in_sync_min = self.dynamic.value(IN_SYNC_MIN)
            self._cluster.set_topics_in_sync_min(int(in_sync_min) if in_sync_min else None)

    def _led(self, partition: Partition, is_led: bool) -> None:
        """Groups and transactions are coordinated where their partition is led."""
        topic, node = partition.topic, self._basis.config.node
        if (topic.account, topic.region) != (node.account, node.region):
            return
        if topic.name == GROUPS_TOPIC:
            self.groups.led(partition.index, is_led)
        elif topic.name == TRANSACTIONS_TOPIC:
            self.transactions.led(partition.index, is_led)

    def _other_coordinators(self, cluster: ClusterRole) -> OtherCoordinators:
        node = self._basis.config.node

        def leader(name: str, key: str) -> int | None:
            topic = self._metadata.topics.find(node.account, node.region, name)
            if topic is None:
                return None
            led = cluster.routes.leader(topic, partition_of_group(key, topic.partition_count))
            return None if led is None else led[0]

        return OtherCoordinators(
            own_node=cluster.node,
            leader=leader,
            caller=cluster.peers.caller,
            wait_changed=cluster.routes.wait_changed,
        )

    def end_waits(self) -> None:
        """Whoever is parked is answered, so that listeners can drain."""
        self.broker.partitions.end_waits()
        if self._cluster is not None:
            self._cluster.anywhere.end_waits()
        self.groups.end_waits()

    async def stop_coordinators(self) -> None:
        await self.transactions.stop()
        await self.groups.stop()

    async def stop(self) -> None:
        if self._cluster is not None:
            await self._cluster.stop()
        await self.broker.stop()
        await self.configs.stop()
        await self._tasks.stop()

    @property
    def trouble(self) -> str | None:
        """Why what this node knows of the metadata may be old."""
        return self.configs.trouble or (None if self._cluster is None else self._cluster.trouble)

    def troubles(self) -> Iterator[Trouble]:
        disk = self.disk.trouble()
        if disk is not None:
            yield disk
        for place, reason in self.broker.partitions.damages():
            yield troubles.log_damaged(place, reason, is_replicated=self._cluster is not None)
        for reason in (*self.groups.troubles(), *self.transactions.troubles()):
            yield troubles.coordinator_down(reason)
        for row in (*self.groups.unreadable_rows(), *self.transactions.unreadable_rows()):
            yield troubles.row_unreadable(row.topic, row.partition, row.offset, str(row))
        if self._cluster is not None:
            yield from self._cluster.troubles()


def _surroundings(
    basis: Basis,
    metadata: MetadataLink,
    pool: Executor,
    disk: DiskBudget,
    *,
    defaults: TopicDefaults,
    is_clustered: bool,
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
        compact_interval_ms=config.log.compaction_check_ms,
        scrub_bytes_per_second=config.log.scrub_bytes_per_second,
        scrub_interval_ms=config.log.scrub_interval_ms,
        in_flight_max=config.queue.in_flight_max,
        defaults=defaults,
        # Times in a log that others have led are theirs.
        is_elapsed_trusted=basis.is_elapsed_trusted and not is_clustered,
    )
