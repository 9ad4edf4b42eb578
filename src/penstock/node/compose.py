"""Constructs a node: creates its parts and connects them, in the order of their dependencies.

The roles of a node decide which parts it has: either the metadata service only
(``metadata/metadata_node.py``), or frontend and broker, with the metadata in this process or
elsewhere (``metadata/metadata_link.py``). No other module knows where the metadata is, or that the
frontend calls the broker directly."""

import asyncio
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock.backup.admin import BackupAdmin, ClusterCut, NodeCut
from penstock.broker.context.disk import DiskBudget
from penstock.cursor.groups.settings import GroupSettings
from penstock.cursor.tenants import CoordinatorUsage
from penstock.cursor.transactions import IDS_MAX
from penstock.frontend.facts.fact_log import leads_all
from penstock.membership.registration import LiveFrontends
from penstock.metadata.security.identities import NewKey
from penstock.metadata.topics.catalog import TOMBSTONE_MS, TOPICS_MAX
from penstock.model import limits, quotas
from penstock.model.errors import PenstockError
from penstock.model.troubles import METADATA_AWAY
from penstock.node.cluster.cluster_role import ClusterRole
from penstock.node.configuration.cluster_config import SERVICE, parse_roles
from penstock.node.configuration.config import Config
from penstock.node.configuration.exposure import check_internal, is_auth_on, reachable
from penstock.node.configuration.settings import Loaded
from penstock.node.metadata.metadata_link import (
    EtcdMetadata,
    MetadataLink,
    OwnMetadata,
    RemoteMetadata,
)
from penstock.node.metadata.metadata_node import MetadataNode
from penstock.node.process import resources
from penstock.node.process.facts import Facts
from penstock.node.process.node_setup import NodeSetup, make_setup
from penstock.node.process.resources import MemoryKeeper
from penstock.node.wiring.broker_role import BrokerRole
from penstock.node.wiring.coordinator_admin import CoordinatorAdmin
from penstock.node.wiring.listeners import FrontendCalls, Listeners
from penstock.node.wiring.push_role import PushRole
from penstock.node.wiring.security import NodeSecurity
from penstock.node.worker_plan import check_not_of_workers
from penstock.telemetry import families
from penstock.telemetry.families import Family, Sample

CLUSTER_TOMBSTONE_MS = 7 * 24 * 3_600_000
TOMB_SWEEP_SECONDS = 60.0
POOL_THREADS = 4  # for fdatasync and opening logs; more would only wait in the kernel

log_ = logging.getLogger(__name__)


def make_node(loaded: Loaded[Config]) -> "Node | MetadataNode":
    config = loaded.config
    check_not_of_workers(Path(config.node.data))
    check_internal(config)
    setup = make_setup(loaded, is_auth_on=is_auth_on(config))
    return MetadataNode(setup) if parse_roles(config.node.roles) == SERVICE else Node(setup)


class Node:
    def __init__(self, setup: NodeSetup) -> None:
        self._setup = setup
        self._pool = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="disk")
        reserve = setup.config.log.disk_reserve_bytes
        self._disk = DiskBudget(setup.folder.path, setup.clock, reserve_bytes=reserve)

    async def start(self, stop: asyncio.Event) -> None:
        setup = self._setup
        files_max = resources.limit_now()
        partitions_max = resources.partitions_max(files_max)
        link: type[MetadataLink] = EtcdMetadata if setup.config.cluster.etcd else OwnMetadata
        if setup.config.metadata.service:
            link = RemoteMetadata
        metadata = self._metadata = link(setup, partitions_max=partitions_max)
        await metadata.start(stop)
        resources.check_room(metadata.topics.partition_count, files_max)
        self._security = NodeSecurity(setup, metadata)
        await self._security.start()
        cluster = ClusterRole(setup, metadata) if setup.config.cluster.node else None
        self._cluster = cluster
        node = setup.config.node
        self._role = BrokerRole(
            setup,
            metadata,
            pool=self._pool,
            disk=self._disk,
            usage=CoordinatorUsage(self._security.identities, own_account=node.account),
            cluster=cluster,
        )
        self._push = PushRole(setup, metadata, self._security, level=self._role.level)
        await self._push.start()
        setup.health.progress = self._role.broker.partitions.progress
        self._security.data_keys.retention_ms_of = self._role.dynamic.retention_ms_max
        self._calls = FrontendCalls(
            setup,
            self._role,
            metadata,
            self._security.identities,
            {
                quotas.QUEUES: TOPICS_MAX,
                quotas.PARTITIONS: partitions_max,
                quotas.STORED_BYTES: self._disk.size_bytes,
                quotas.CONNECTIONS: setup.config.http.connections_max,
                quotas.WAITS: limits.WAITS_PER_PARTITION_MAX,
                quotas.GROUPS: GroupSettings().groups_max,
                quotas.SUBSCRIPTIONS: limits.SUBSCRIPTIONS_MAX,
                quotas.TRANSACTIONAL_IDS: IDS_MAX,
            },
            self._push.subscriptions.used,
            cluster,
        )
        self._frontends: LiveFrontends | None = None
        if metadata.is_remote:  # otherwise this is the only frontend
            self._frontends = LiveFrontends(metadata.store, node=setup.name, entropy=setup.entropy)
            self._frontends.on_change(self._calls.share_among)
        setup.meter.register_collector(self._calls.callees.samples)
        self._listeners = Listeners(setup, self._security, self._calls, cluster, self._push)
        # The admin listener first: it shows the progress of a long recovery.
        await self._listeners.start_admin(
            self._make_backup(metadata, cluster),
            CoordinatorAdmin(
                metadata.topics, self._calls.unlimited, setup.clock, (node.account, node.region)
            ),
        )
        await self._role.start()
        unlimited = self._calls.unlimited
        self._facts = Facts(
            setup,
            unlimited,
            metadata.topics,
            self._role.producer_ids,
            groups=self._role.groups,
            leads=leads_all if cluster is None else cluster.leads,
        )
        is_clustered = cluster is not None
        self._push.serve(
            self._role,
            unlimited,
            self._facts.deliveries,
            queues=self._calls.copies,
            is_clustered=is_clustered,
        )
        self._facts.start()
        self._push.usage = self._facts.usage
        self._listeners.note_changes(self._facts)
        if self._frontends is not None:
            await self._frontends.start()
        await self._listeners.start_kafka(self._role, self._facts)
        await self._listeners.start_http(self._facts)
        if self._cluster is not None:
            await self._cluster.announce(
                http=reachable(self._listeners.http_url), kafka=self._listeners.kafka_advertised
            )
        self._protect_own()
        self._start_jobs()
        metadata.started()
        setup.health.ready()
        if not setup.is_auth_on:
            log_.warning(
                "authentication is off: requests are accepted with any credentials or none"
            )

    def _protect_own(self) -> None:
        """Let no subscription call the listeners and stores of this cluster."""
        setup, cluster = self._setup, self._cluster
        config = setup.config

        def protect() -> None:
            own = [*setup.endpoints.values(), self._listeners.admin_url, config.metadata.service]
            own += config.cluster.etcd.split(",")
            if cluster is not None:
                for entry in cluster.view.nodes.values():
                    own += (entry.internal, entry.http, entry.kafka)
            self._push.protect(own)

        protect()
        if cluster is not None:
            cluster.view.on_nodes(protect)

    def _make_backup(self, metadata: MetadataLink, cluster: ClusterRole | None) -> BackupAdmin:
        setup, cutting, topics = self._setup, self._role.cutting, metadata.topics
        cut = NodeCut(cutting, topics)
        if cluster is not None:
            peers, routes = cluster.peers, cluster.routes
            cut = ClusterCut(cutting, topics, metadata.store, routes, cluster.node, peers.caller)
        return BackupAdmin(
            cut,
            topics,
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

    def _start_jobs(self) -> None:
        self._memory = MemoryKeeper(self._pool)
        self._metadata.topics.on_change(self._memory.topic_changed)
        self._calls.quotas.start(self._calls.unlimited)
        self._setup.meter.register_collector(self._levels)
        self._jobs = self._setup.start_jobs(
            self._report,
            tombstone_sweep=self._sweep_tombs(),
            identity_flush=self._security.flush(),
            subscription_sweep=self._push.sweep(),
        )

    async def _sweep_tombs(self) -> None:
        """Periodically remove old tombstones, and data keys that no message needs."""
        topics = self._setup.folder.path / "topics"
        # Longer in a cluster: a node that was down needs the tombstone to remove its files.
        kept_ms = TOMBSTONE_MS if self._cluster is None else CLUSTER_TOMBSTONE_MS
        while True:
            await asyncio.sleep(TOMB_SWEEP_SECONDS)
            try:
                await self._metadata.topics.sweep(
                    now_ms=self._setup.clock.wall_ms(),
                    is_gone=lambda topic_id: not (topics / topic_id).exists(),
                    kept_ms=kept_ms,
                )
                await self._security.data_keys.sweep()
            except PenstockError as error:  # for example a full disk: retried
                log_.warning("removing old tombstones failed", extra={"reason": str(error)})

    def _report(self) -> None:
        # Reported once, because all of them are copies of the same store.
        links = (self._metadata, self._security, self._role, self._push)
        away = next((one.trouble for one in links if one.trouble is not None), None)
        self._setup.health.show(
            [
                *self._role.troubles(),
                *(() if away is None else (METADATA_AWAY.filled(away),)),
                *self._security.troubles(),
                *self._setup.certificates.troubles(now_ms=self._setup.clock.wall_ms()),
                *self._facts.troubles(),
            ]
        )

    def _levels(self) -> Iterable[tuple[Family, Sample]]:
        yield families.DISK_FREE, ((), self._disk.free_bytes)
        yield from self._setup.certificates.samples()
        yield from self._metadata.samples()
        partitions = self._role.broker.partitions
        yield families.PARTITIONS_DAMAGED, ((), len(partitions.damages()))
        yield families.SCRUB_ROUNDS, ((), partitions.scrubber.round_count)
        yield families.SCRUBBED, ((), partitions.scrubber.read_bytes)
        yield families.SCRUB_DAMAGES, ((), partitions.scrubber.damage_count)
        yield families.CONNECTIONS, ((), len(self._listeners.http.connections))

    @property
    def root_key(self) -> NewKey | None:
        security: NodeSecurity | None = getattr(self, "_security", None)  # None: the start failed
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
        self._setup.certificates.renew()

    async def drain(self) -> bool:
        self._setup.health.drain()
        if self._setup.config.node.drain_ms:
            await asyncio.sleep(self._setup.config.node.drain_ms / 1_000)
        await self._push.drain()  # while the results of its requests can still be written
        # With one replica, the node remains leader until all nodes have written their last records.
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
        for job in self._jobs:
            job.cancel()
        self._memory.stop()
        self._calls.quotas.stop()
        await self._role.stop()
        await self._listeners.stop_admin()
        await self._push.stop()
        await self._security.stop()
        await self._metadata.stop()
        self._pool.shutdown()
        self._setup.folder.release()
        return True
