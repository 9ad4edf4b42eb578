"""The broker role of a node: partitions, and the coordinators of groups and transactions. They are
started in this order and stopped in the reverse order."""

from collections.abc import Iterator
from concurrent.futures import Executor

from penstock.broker.backup_positions import BackupPositions
from penstock.broker.calls import Broker
from penstock.broker.context.context import BrokerContext
from penstock.broker.context.disk import DiskBudget
from penstock.broker.coordination import remote_calls
from penstock.broker.coordination.group_coordinator import GroupConfigs
from penstock.broker.coordination.groups import TOPIC_NAME as GROUPS_TOPIC
from penstock.broker.coordination.groups import GroupHost
from penstock.broker.coordination.host import CoordinatorSetup
from penstock.broker.coordination.remote_calls import RemoteCoordinators
from penstock.broker.coordination.transactions import TOPIC_NAME as TRANSACTIONS_TOPIC
from penstock.broker.coordination.transactions import TransactionHost
from penstock.broker.partition.partition import Partition
from penstock.cursor.groups.settings import GroupSettings
from penstock.cursor.tenants import CoordinatorUsage
from penstock.frontend.kafka.configs.broker_configs import COMPACTION_BACKOFF, TOPIC_NAMES
from penstock.log.batch_cache import BatchCacheBudget
from penstock.log.log import LogConfig
from penstock.metadata.topics.catalog import MoveTasks, StoredProducerIds
from penstock.metadata.topics.resource_configs import DynamicConfigs, ResourceConfigs
from penstock.model import limits, troubles
from penstock.model.levels import LEVEL_MAX
from penstock.model.replication import IN_SYNC_MIN
from penstock.model.topic import partition_of_group
from penstock.model.troubles import Trouble
from penstock.node.cluster.cluster_metrics import cluster_samples
from penstock.node.cluster.cluster_role import ClusterRole
from penstock.node.configuration.config import Mode
from penstock.node.metadata.metadata_link import MetadataLink
from penstock.node.process.node_setup import NodeSetup

# Developers restart consumers often: a new group does not wait for more members.
DEV_GROUPS = GroupSettings(initial_delay_ms=0, consumer_heartbeat_ms=1_000)


class BrokerRole:
    def __init__(
        self,
        setup: NodeSetup,
        metadata: MetadataLink,
        *,
        pool: Executor,
        disk: DiskBudget,
        usage: CoordinatorUsage,
        cluster: ClusterRole | None = None,
    ) -> None:
        self._setup = setup
        self.usage = usage  # of coordinators, by tenant
        self._metadata = metadata
        self._cluster = cluster
        self.configs = ResourceConfigs(metadata.store)
        self.dynamic = DynamicConfigs(
            self.configs,
            account=setup.config.node.account,
            node=setup.config.cluster.node or 1,
            level=self.level,
            topic_names=TOPIC_NAMES,
        )
        config, is_clustered = setup.config, cluster is not None
        self._context = BrokerContext(
            folder=setup.folder.path,
            clock=setup.clock,
            pool=pool,
            disk=disk,
            catalog=metadata.topics,
            meter=setup.meter,
            log=LogConfig(
                segment_bytes_max=config.log.segment_bytes_max,
                segment_age_ms_max=config.log.segment_age_ms_max,
                tail_bytes_max=config.log.tail_bytes_max,
                batch_cache_budget=BatchCacheBudget(config.log.tails_bytes_max),
            ),
            fsync_default=config.log.fsync,
            fsync_interval_ms=config.log.fsync_interval_ms,
            clean_interval_ms=config.log.retention_check_ms,
            compact_interval_ms=config.log.compaction_check_ms,
            scrub_bytes_per_second=config.log.scrub_bytes_per_second,
            scrub_interval_ms=config.log.scrub_interval_ms,
            in_flight_max=config.queue.in_flight_max,
            defaults=self.dynamic.defaults,
            level=self.level,
            # In a cluster, logs contain times of other nodes.
            elapsed_since_ms=limits.FOREVER_MS if is_clustered else setup.elapsed_since_ms,
        )
        self._tasks = MoveTasks(metadata.own_store)
        self.disk = disk
        self.broker = Broker(
            self._context, self._tasks, entropy=setup.entropy, is_clustered=is_clustered
        )
        self.producer_ids = StoredProducerIds(metadata.store)
        self.hold = self._context.hold
        self.cutting = BackupPositions(self.broker.partitions, self.hold, setup.clock)

    async def start(self) -> None:
        """Recover all logs, which may take minutes, and start the coordinators."""
        setup, node, cluster = self._setup, self._setup.config.node, self._cluster
        await self._tasks.start()
        self.dynamic.on_change(self._configs_changed)
        await self.configs.start()
        await self.broker.start()
        coordinators = CoordinatorSetup(
            broker=self.broker,
            catalog=self._metadata.topics,
            clock=setup.clock,
            entropy=setup.entropy,
            account=node.account,
            region=node.region,
            remote=None if cluster is None else self._remote_coordinators(cluster),
            usage=self.usage,
        )
        self.groups = GroupHost(
            coordinators,
            settings=DEV_GROUPS if node.mode is Mode.DEV else GroupSettings(),
            configs=GroupConfigs(self.configs, usage=self.usage, level=self.level),
            level=self.level,
        )
        # Set before this node joins the cluster: then other nodes may lease from shares.
        self.broker.shares.settings_of = self.groups.settings_of
        if cluster is not None:
            await cluster.start(self.broker, self._context)
            setup.meter.register_collector(lambda: cluster_samples(cluster))
        await self.groups.start()
        self.transactions = TransactionHost(
            coordinators,
            groups=self.groups,
            markers=None if cluster is None else cluster.anywhere,
            hold=self.hold,
            next_producer_id=self.producer_ids.next_id,
        )
        await self.transactions.start()
        if cluster is not None:
            cluster.level.on_change(self.groups.level_changed)
            self.groups.level_changed()  # it may have been raised before the listener was added
            self.cutting.register(cluster.answers)
            remote_calls.register(
                cluster.answers, groups=self.groups, transactions=self.transactions
            )
            self.broker.partitions.on_led(self._led)
            for queue in self.broker.partitions.queues():
                for partition in queue.partitions.values():
                    self._led(partition, is_led=True)

    def level(self) -> int:
        return LEVEL_MAX if self._cluster is None else self._cluster.level.in_force

    def _configs_changed(self) -> None:
        """Apply changed broker configs, except those that are defaults of topic configs."""
        backoff_ms = self.dynamic.value(COMPACTION_BACKOFF)
        own_ms = self._setup.config.log.compaction_check_ms
        self.broker.partitions.compact_interval.change(int(backoff_ms or own_ms))
        if self._cluster is not None:
            in_sync_min = self.dynamic.value(IN_SYNC_MIN)
            self._cluster.set_topics_in_sync_min(int(in_sync_min) if in_sync_min else None)

    def _led(self, partition: Partition, is_led: bool) -> None:
        """Start or stop a coordinator, if the partition is the log of a coordinator."""
        topic, node = partition.topic, self._setup.config.node
        if (topic.account, topic.region) != (node.account, node.region):
            return
        if topic.name == GROUPS_TOPIC:
            self.groups.led(partition.index, is_led)
        elif topic.name == TRANSACTIONS_TOPIC:
            self.transactions.led(partition.index, is_led)

    def _remote_coordinators(self, cluster: ClusterRole) -> RemoteCoordinators:
        node = self._setup.config.node

        def leader(name: str, key: str) -> int | None:
            topic = self._metadata.topics.find(node.account, node.region, name)
            if topic is None:
                return None
            led = cluster.routes.leader(topic, partition_of_group(key, topic.partition_count))
            return None if led is None else led[0]

        return RemoteCoordinators(
            own_node=cluster.node,
            leader=leader,
            caller=cluster.peers.caller,
            wait_changed=cluster.routes.wait_changed,
        )

    def end_waits(self) -> None:
        """Reply to all waiting requests, such as long polls, so that listeners can stop."""
        self.broker.partitions.end_waits()
        if self._cluster is not None:
            self._cluster.end_waits()
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
        return self.configs.trouble or (None if self._cluster is None else self._cluster.trouble)

    def troubles(self) -> Iterator[Trouble]:
        disk = self.disk.trouble()
        if disk is not None:
            yield disk
        for place, reason in self.broker.partitions.damages():
            is_alone = self._cluster is None
            found = troubles.LOG_DAMAGED if is_alone else troubles.REPLICATED_LOG_DAMAGED
            yield found.filled(reason, place=place)
        for reason in (*self.groups.troubles(), *self.transactions.troubles()):
            yield troubles.COORDINATOR_DOWN.filled(reason, place=reason.partition(":")[0])
        for row in (*self.groups.unreadable_rows(), *self.transactions.unreadable_rows()):
            yield troubles.ROW_UNREADABLE.filled(
                topic=row.topic, partition=row.partition, offset=row.offset, row=row
            )
        if self._cluster is not None:
            yield from self._cluster.troubles()
