"""The construction of a node: its parts are connected here, in the order of their dependencies.

The roles decide which parts there are: the metadata service only (``metadata/metadata_node.py``),
or frontend and broker, with the metadata in this process or elsewhere
(``metadata/metadata_link.py``). No other module knows that the frontend calls the broker directly,
or where the metadata is."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock.backup.admin import BackupAdmin
from penstock.backup.cut import ClusterCut, NodeCut
from penstock.broker.context.disk import DiskBudget
from penstock.cursor.groups.settings import GroupSettings
from penstock.cursor.tenants import CoordinatorUsage
from penstock.cursor.transactions import IDS_MAX
from penstock.frontend.facts.fact_log import leads_all
from penstock.membership.frontends import LiveFrontends
from penstock.metadata.security.identities import NewKey
from penstock.metadata.topics.catalog import TOPICS_MAX
from penstock.model import limits
from penstock.model.quotas import (
    CONNECTIONS,
    GROUPS,
    PARTITIONS,
    QUEUES,
    STORED_BYTES,
    TRANSACTIONAL_IDS,
    WAITS,
)
from penstock.node.cluster.cluster_role import ClusterRole
from penstock.node.configuration.config import Config
from penstock.node.configuration.exposure import check_internal, is_auth_on, reachable
from penstock.node.configuration.roles import SERVICE, parse_roles
from penstock.node.configuration.settings import Loaded
from penstock.node.listening.certificates import CertificateKeeper
from penstock.node.metadata.metadata_link import (
    EtcdMetadata,
    MetadataLink,
    OwnMetadata,
    RemoteMetadata,
)
from penstock.node.metadata.metadata_node import MetadataNode
from penstock.node.process import open_files
from penstock.node.process.facts import Facts
from penstock.node.process.memory import MemoryKeeper
from penstock.node.process.node_setup import NodeSetup, make_setup
from penstock.node.wiring.background_jobs import BackgroundJobs
from penstock.node.wiring.broker_role import BrokerRole
from penstock.node.wiring.coordinator_admin import CoordinatorAdmin
from penstock.node.wiring.frontend_calls import make_calls
from penstock.node.wiring.listeners import Listeners
from penstock.node.wiring.security import NodeSecurity
from penstock.node.worker_plan import check_not_of_workers

POOL_THREADS = 4  # for fdatasync and opening logs; more would only wait in the kernel


def make_node(loaded: Loaded[Config]) -> "Node | MetadataNode":
    """Raises PenstockError."""
    config = loaded.config
    check_not_of_workers(Path(config.node.data))
    check_internal(config)
    auth = is_auth_on(config)
    certificates = CertificateKeeper(config.tls, config.internal)
    if parse_roles(config.node.roles) == SERVICE:
        return MetadataNode(make_setup(loaded), certificates, is_auth_on=auth)
    return Node(make_setup(loaded), certificates, is_auth_on=auth)


class Node:
    """Frontend and broker in one process."""

    def __init__(
        self, setup: NodeSetup, certificates: CertificateKeeper, *, is_auth_on: bool
    ) -> None:
        self.is_auth_on = is_auth_on
        self._setup = setup
        self._certificates = certificates
        self._pool = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="disk")
        reserve = setup.config.log.disk_reserve_bytes
        self._disk = DiskBudget(setup.folder.path, setup.clock, reserve_bytes=reserve)

    async def start(self, stop: asyncio.Event) -> None:
        setup = self._setup
        files_max = open_files.limit_now()
        partitions_max = open_files.partitions_max(files_max)
        metadata = self._metadata = self._make_metadata(partitions_max)
        await metadata.start(stop)
        open_files.check_room(metadata.topics.partition_count, files_max)
        self._security = NodeSecurity(setup, metadata, is_auth_on=self.is_auth_on)
        await self._security.start()
        cluster = self._cluster = self._make_cluster(metadata)
        own_account = setup.config.node.account
        self._role = BrokerRole(
            setup,
            metadata,
            pool=self._pool,
            disk=self._disk,
            usage=CoordinatorUsage(self._security.identities, own_account=own_account),
            cluster=cluster,
        )
        self._security.data_keys.retention_ms_of = self._role.dynamic.retention_ms_max
        self._calls = make_calls(
            self._role.broker,
            metadata,
            self._security.identities,
            clock=setup.clock,
            node=setup.name,
            own_account=own_account,
            coordinators=self._role.usage,
            bounds={
                QUEUES: TOPICS_MAX,
                PARTITIONS: partitions_max,
                STORED_BYTES: self._disk.size_bytes,
                CONNECTIONS: setup.config.http.connections_max,
                WAITS: limits.WAITS_PER_PARTITION_MAX,
                GROUPS: GroupSettings().groups_max,
                TRANSACTIONAL_IDS: IDS_MAX,
            },
            cluster=cluster,
        )
        self._frontends: LiveFrontends | None = None
        if metadata.is_remote:  # otherwise this is the only frontend
            self._frontends = LiveFrontends(metadata.store, node=setup.name, entropy=setup.entropy)
            self._frontends.on_change(self._calls.share_among)
        setup.meter.register_collector(self._calls.callees.samples)
        self._listeners = Listeners(
            setup,
            self._certificates,
            self._security,
            self._calls,
            is_auth_on=self.is_auth_on,
            cluster=cluster,
            backup=self._make_backup(metadata, cluster),
            coordinators=CoordinatorAdmin(
                metadata.topics,
                self._calls.unlimited,
                clock=setup.clock,
                namespace=(setup.config.node.account, setup.config.node.region),
            ),
        )
        # The admin listener first: it shows the progress of a long recovery.
        await self._listeners.start_admin()
        await self._role.start()
        self._facts = Facts(
            setup.config,
            node=setup.name,
            broker=self._calls.unlimited,
            catalog=metadata.topics,
            producer_ids=self._role.producer_ids,
            clock=setup.clock,
            entropy=setup.entropy,
            groups=self._role.groups,
            leads=leads_all if cluster is None else cluster.leads,
        )
        self._facts.start()
        self._listeners.note_changes(self._facts)
        if self._frontends is not None:
            await self._frontends.start()
        await self._listeners.start_kafka(self._role, self._facts)
        await self._listeners.start_http(self._facts)
        if self._cluster is not None:
            await self._cluster.announce(
                http=reachable(self._listeners.http_url), kafka=self._listeners.kafka_advertised
            )
        self._start_jobs()
        metadata.started()
        setup.health.ready()

    def _make_backup(self, metadata: MetadataLink, cluster: ClusterRole | None) -> BackupAdmin:
        setup, cutting = self._setup, self._role.cutting
        cut = (
            NodeCut(cutting, metadata.topics)
            if cluster is None
            else ClusterCut(
                cutting,
                metadata.topics,
                metadata.store,
                cluster.routes,
                own_node=cluster.node,
                caller=cluster.peers.caller,
            )
        )
        return BackupAdmin(
            cut,
            metadata.topics,
            self._calls.unlimited,
            store=metadata.store,
            own_store=metadata.own_store,
            health=setup.health,
            clock=setup.clock,
            entropy=setup.entropy,
            node=setup.name,
            namespace=(setup.config.node.account, setup.config.node.region),
            master_key_id=self._security.ring.master_id,
        )

    def _make_cluster(self, metadata: MetadataLink) -> ClusterRole | None:
        if not self._setup.config.cluster.node:
            return None
        return ClusterRole(self._setup, self._certificates, metadata)

    def _make_metadata(self, partitions_max: int) -> MetadataLink:
        if self._setup.config.cluster.etcd:
            return EtcdMetadata(self._setup, partitions_max=partitions_max)
        if not self._setup.config.metadata.service:
            return OwnMetadata(self._setup, partitions_max=partitions_max)
        return RemoteMetadata(self._setup, self._certificates.nodes, partitions_max=partitions_max)

    def _start_jobs(self) -> None:
        self._memory = MemoryKeeper(self._pool)
        self._metadata.topics.on_change(self._memory.topic_changed)
        self._calls.quotas.start(self._calls.unlimited)
        jobs = self._jobs = BackgroundJobs(
            self._setup,
            self._metadata,
            self._role,
            self._security,
            self._facts,
            self._certificates,
        )
        http = self._listeners.http
        self._setup.meter.register_collector(lambda: jobs.levels(http))
        jobs.start()

    @property
    def root_key(self) -> NewKey | None:
        security: NodeSecurity | None = getattr(
            self, "_security", None
        )  # None: the start failed before
        return None if security is None else security.root_key

    @property
    def http_url(self) -> str:
        return self._listeners.http_url

    @property
    def ready_text(self) -> str:
        listeners = self._listeners
        text = f"http={listeners.http_url} admin={listeners.admin_url}"
        return f"{text} kafka={listeners.kafka_address}" if listeners.kafka_address else text

    def freeze(self) -> None:
        self._memory.freeze(self._metadata.topics.all_topics())

    def reread(self) -> None:
        self._certificates.renew()

    async def drain(self) -> None:
        self._setup.health.drain()
        if self._setup.config.node.drain_ms:
            await asyncio.sleep(self._setup.config.node.drain_ms / 1_000)
        # With one replica there is nothing to hand over: the node keeps leading and managing until
        # all nodes have written their last records.
        is_only = self._setup.config.cluster.replicas == 1
        if self._cluster is not None and not is_only:
            await self._cluster.leave()
        self._listeners.refuse_more()
        if self._frontends is not None:
            await self._frontends.stop()
        self._role.end_waits()
        await self._listeners.drain()
        await self._facts.stop()
        if self._cluster is not None and is_only:
            await self._cluster.wait_for_last_writes()
            await self._cluster.leave()
        await self._role.stop_coordinators()
        self._jobs.stop()
        self._memory.stop()
        self._calls.quotas.stop()
        await self._role.stop()
        await self._listeners.stop_admin()
        await self._security.stop()
        await self._metadata.stop()
        self._pool.shutdown()
        self._setup.folder.release()
