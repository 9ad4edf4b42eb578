"""The one place where the parts of a node are connected, in the order that each needs the others.

Which parts there are is decided by the roles: the metadata service alone (``metadata_node.py``), or
frontend and broker, with the metadata in the same process or behind calls (``metadata_link.py``).
The frontend holds the broker itself; nothing else in the program knows that, nor where the metadata
is.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from penstock.broker.disk import DiskBudget
from penstock.cursor.group.settings import GroupSettings
from penstock.cursor.tenants import TenantRooms
from penstock.cursor.transactions import IDS_MAX
from penstock.frontend.fact_writer import leads_all
from penstock.metadata.catalog import TOPICS_MAX
from penstock.metadata.frontends import LiveFrontends
from penstock.metadata.identities import NewKey
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
from penstock.node import open_files
from penstock.node.backup_admin import BackupAdmin
from penstock.node.backup_cut import ClusterCut, NodeCut
from penstock.node.basis import Basis, make_basis
from penstock.node.broker_role import BrokerRole
from penstock.node.certificates import CertificateKeeper
from penstock.node.cluster_role import ClusterRole
from penstock.node.config import Config
from penstock.node.coordinator_admin import CoordinatorAdmin
from penstock.node.exposure import check_internal, is_auth_on, reachable
from penstock.node.facts import Facts
from penstock.node.farewell import say_farewell
from penstock.node.frontend_calls import make_calls
from penstock.node.listeners import Listeners
from penstock.node.memory import MemoryKeeper
from penstock.node.metadata_link import (
    EtcdMetadata,
    MetadataLink,
    OwnMetadata,
    RemoteMetadata,
)
from penstock.node.metadata_node import MetadataNode
from penstock.node.roles import SERVICE, parse_roles
from penstock.node.settings import Loaded
from penstock.node.upkeep import Upkeep
from penstock.node.vault import Vault
from penstock.node.worker_plan import check_not_of_workers

POOL_THREADS = 4  # fdatasync and opening logs; more only queue in the kernel


class AnyNode(Protocol):
    """What the life of a process needs of what it runs."""

    is_auth_on: bool

    @property
    def root_key(self) -> NewKey | None:
        """Made by this start, and shown once."""
        ...

    @property
    def ready_text(self) -> str:
        """Where it listens, for the line that says so."""
        ...

    @property
    def http_url(self) -> str:
        """Where clients are served; empty: they are not."""
        ...

    async def start(self, stop: asyncio.Event) -> None:
        """Returns once requests are served. Raises GivenUp when told to stop while it waits for
        another node."""
        ...

    def freeze(self) -> None:
        """Nothing that is there now is looked at by the collector again."""
        ...

    def reread(self) -> None:
        """An operator says that files have changed."""
        ...

    async def drain(self) -> None:
        """Turn away, finish what is under way, write everything down."""
        ...


def make_node(loaded: Loaded[Config]) -> AnyNode:
    """Raises PenstockError with one line for the operator."""
    config = loaded.config
    check_not_of_workers(Path(config.node.data))
    check_internal(config)
    auth = is_auth_on(config)
    certificates = CertificateKeeper(config.tls, config.internal)
    if parse_roles(config.node.roles) == SERVICE:
        return MetadataNode(make_basis(loaded), certificates, is_auth_on=auth)
    return Node(make_basis(loaded), certificates, is_auth_on=auth)


class Node:
    """Frontend and broker in one process."""

    def __init__(self, basis: Basis, certificates: CertificateKeeper, *, is_auth_on: bool) -> None:
        self.is_auth_on = is_auth_on
        self._basis = basis
        self._certificates = certificates
        self._pool = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="disk")
        reserve = basis.config.log.disk_reserve_bytes
        self._disk = DiskBudget(basis.folder.path, basis.clock, reserve_bytes=reserve)

    async def start(self, stop: asyncio.Event) -> None:
        basis = self._basis
        files_max = open_files.limit_now()
        partitions_max = open_files.partitions_max(files_max)
        metadata = self._metadata = self._make_metadata(partitions_max)
        await metadata.start(stop)
        open_files.check_room(metadata.topics.partition_count, files_max)
        self._vault = Vault(basis, metadata, is_auth_on=self.is_auth_on)
        await self._vault.start()
        cluster = self._cluster = self._make_cluster(metadata)
        own_account = basis.config.node.account
        self._role = BrokerRole(
            basis,
            metadata,
            pool=self._pool,
            disk=self._disk,
            rooms=TenantRooms(self._vault.identities, own_account=own_account),
            cluster=cluster,
        )
        self._vault.data_keys.retention_ms_of = self._role.dynamic.retention_ms_max
        self._calls = make_calls(
            self._role.broker,
            metadata,
            self._vault.identities,
            clock=basis.clock,
            node=basis.name,
            own_account=own_account,
            coordinators=self._role.rooms,
            bounds={
                QUEUES: TOPICS_MAX,
                PARTITIONS: partitions_max,
                STORED_BYTES: self._disk.size_bytes,
                CONNECTIONS: basis.config.http.connections_max,
                WAITS: limits.WAITS_PER_PARTITION_MAX,
                GROUPS: GroupSettings().groups_max,
                TRANSACTIONAL_IDS: IDS_MAX,
            },
            cluster=cluster,
        )
        self._frontends: LiveFrontends | None = None
        if metadata.is_remote:  # one that keeps the store itself is the only one there is
            self._frontends = LiveFrontends(metadata.store, node=basis.name, entropy=basis.entropy)
            self._frontends.on_change(self._calls.share_among)
        basis.meter.register_collector(self._calls.callees.samples)
        self._listeners = Listeners(
            basis,
            self._certificates,
            self._vault,
            self._calls,
            is_auth_on=self.is_auth_on,
            cluster=cluster,
            backup=self._make_backup(metadata, cluster),
            coordinators=CoordinatorAdmin(
                metadata.topics,
                self._calls.anywhere,
                clock=basis.clock,
                namespace=(basis.config.node.account, basis.config.node.region),
            ),
        )
        # The admin address opens first: a long recovery can be watched on it.
        await self._listeners.start_admin()
        await self._role.start()
        self._facts = Facts(
            basis.config,
            node=basis.name,
            broker=self._calls.anywhere,
            catalog=metadata.topics,
            producer_ids=self._role.producer_ids,
            clock=basis.clock,
            entropy=basis.entropy,
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
            await self._cluster.tell(
                http=reachable(self._listeners.http_url), kafka=self._listeners.kafka_advertised
            )
        self._begin_upkeep()
        basis.health.ready()

    def _make_backup(self, metadata: MetadataLink, cluster: ClusterRole | None) -> BackupAdmin:
        basis, cutting = self._basis, self._role.cutting
        cut = (
            NodeCut(cutting, metadata.topics)
            if cluster is None
            else ClusterCut(cutting, metadata.topics, metadata.store, cluster)
        )
        return BackupAdmin(
            cut,
            metadata.topics,
            self._calls.anywhere,
            store=metadata.store,
            own_store=metadata.own_store,
            health=basis.health,
            clock=basis.clock,
            entropy=basis.entropy,
            node=basis.name,
            namespace=(basis.config.node.account, basis.config.node.region),
            master_key_id=self._vault.ring.master_id,
        )

    def _make_cluster(self, metadata: MetadataLink) -> ClusterRole | None:
        if not self._basis.config.cluster.node:
            return None
        return ClusterRole(self._basis, self._certificates, metadata)

    def _make_metadata(self, partitions_max: int) -> MetadataLink:
        if self._basis.config.cluster.etcd:
            return EtcdMetadata(self._basis, partitions_max=partitions_max)
        if not self._basis.config.metadata.service:
            return OwnMetadata(self._basis, partitions_max=partitions_max)
        return RemoteMetadata(self._basis, self._certificates.nodes, partitions_max=partitions_max)

    def _begin_upkeep(self) -> None:
        self._memory = MemoryKeeper(self._pool)
        self._metadata.topics.on_change(self._memory.topic_changed)
        self._calls.quotas.start(self._calls.anywhere)
        upkeep = self._upkeep = Upkeep(
            self._basis,
            self._metadata,
            self._role,
            self._vault,
            self._facts,
            self._certificates,
        )
        http = self._listeners.http
        self._basis.meter.register_collector(lambda: upkeep.levels(http))
        upkeep.start()

    @property
    def root_key(self) -> NewKey | None:
        vault: Vault | None = getattr(self, "_vault", None)  # None: the start ended before it
        return None if vault is None else vault.root_key

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
        self._basis.health.drain()
        if self._basis.config.node.drain_ms:
            await asyncio.sleep(self._basis.config.node.drain_ms / 1_000)
        # Where nobody else has what this node has, there is nothing to hand over, and it goes on
        # managing for as long as anybody may still write.
        is_only = self._basis.config.cluster.replicas == 1
        if self._cluster is not None and not is_only:
            await self._cluster.leave()
        self._listeners.refuse_more()
        if self._frontends is not None:
            await self._frontends.stop()
        self._role.end_waits()
        await self._listeners.drain()
        await self._facts.stop()
        if self._cluster is not None and is_only:
            await say_farewell(self._cluster)
            await self._cluster.leave()
        await self._role.stop_coordinators()
        self._upkeep.stop()
        self._memory.stop()
        self._calls.quotas.stop()
        await self._role.stop()
        await self._listeners.stop_admin()
        await self._vault.stop()
        await self._metadata.stop()
        self._pool.shutdown()
        self._basis.folder.release()
