"""The listeners of a node for clients and operators, each with its frontend: SQS over HTTP, Kafka,
and the admin API."""

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter

from penstock.calls.callees import Callees, GuardedBroker
from penstock.cursor.coordinator_calls import Coordinators, GroupCoordinators
from penstock.frontend.admin.api import AdminApi
from penstock.frontend.admin.ports import BackupPort, CoordinatorPort, PushPorts
from penstock.frontend.admin.request import ConfigRow, Context
from penstock.frontend.aws.context import FrontendConfig
from penstock.frontend.aws.incoming import is_link
from penstock.frontend.aws.pipeline import Frontend
from penstock.frontend.facts import deliveries
from penstock.frontend.kafka.access.quotas import ConnectionRates
from penstock.frontend.kafka.config import KafkaConfig as KafkaFrontendConfig
from penstock.frontend.kafka.configs import broker_configs
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.pipeline import KafkaFrontend, is_produce
from penstock.frontend.kafka.ports.cluster import Brokers
from penstock.frontend.kafka.ports.coordinators import GuardedCoordinators, GuardedGroups
from penstock.frontend.kafka.sessions.fetch_sessions import FetchSessions
from penstock.frontend.kafka.sessions.share_sessions import ShareSessions
from penstock.frontend.kafka.usage import KafkaUsage
from penstock.frontend.limited_calls import (
    GuardedCatalog,
    LimitedBroker,
    guard,
    guard_identities,
    queues_of,
    streams_of,
)
from penstock.frontend.limits.quotas import TenantQuotas
from penstock.frontend.limits.throttler import Throttler
from penstock.metadata.security.identities import StoredIdentities
from penstock.metadata.topics.resource_configs import DynamicConfigs
from penstock.model.calls import BrokerPort
from penstock.model.quotas import Quota
from penstock.model.subscription import Subscription
from penstock.net.http.listener import HttpListener
from penstock.net.kafka.listener import LOGIN_FRAME_BYTES_MAX, KafkaListener
from penstock.net.kafka.listener import KafkaConfig as KafkaListenerConfig
from penstock.net.listener import NO_LIMIT, Listener
from penstock.node.cluster.cluster_role import ClusterRole
from penstock.node.configuration.cluster_config import parse_listen
from penstock.node.configuration.config import KAFKA_LISTEN_DEFAULT, KAFKA_OFF, Mode
from penstock.node.configuration.exposure import kafka_protocol, reachable
from penstock.node.configuration.settings import describe
from penstock.node.listening import bind, make_listener, open_admin
from penstock.node.metadata.metadata_link import MetadataLink
from penstock.node.process.facts import Facts
from penstock.node.process.node_setup import NodeSetup
from penstock.node.wiring.broker_role import BrokerRole
from penstock.node.wiring.kafka_cluster import ClusterBrokers, ClusterChanges
from penstock.node.wiring.push_role import PushRole
from penstock.node.wiring.security import NodeSecurity
from penstock.wire.facts.deliveries import DeliveryRow


class FrontendCalls:
    """The objects that frontends call: the broker, its coordinators and the metadata, each behind
    bulkheads and quotas."""

    def __init__(
        self,
        setup: NodeSetup,
        role: BrokerRole,
        metadata: MetadataLink,
        identities: StoredIdentities,
        bounds: Mapping[Quota, int],  # capacity of this node for all tenants together
        subscriptions: Callable[[str], int],  # number of an account
        cluster: ClusterRole | None = None,
    ) -> None:
        node, broker, own_account = setup.name, role.broker, setup.config.node.account
        self._node = node
        callees = self.callees = Callees(setup.clock, own_account=own_account)
        guarded = GuardedBroker(broker, callees.backend(node), callees.metadata)
        self.unlimited: BrokerPort = broker  # the brokers of all nodes, for records of this node
        routed: BrokerPort = guarded
        if cluster is not None:
            routed = cluster.route(broker, callees)(guarded)
            self.unlimited = cluster.anywhere
        quotas = self.quotas = TenantQuotas(
            identities,
            metadata.topics,
            own_account=own_account,
            bounds=bounds,
            coordinators=role.usage,
            subscriptions=subscriptions,
        )
        # The watch notices at once that the metadata is back; a probe may be half a minute later.
        metadata.on_back(callees.metadata.mark_available)
        self.throttler = Throttler(own_account=own_account)
        self.broker = LimitedBroker(guarded, callees.metadata, quotas)  # of this node
        self.anywhere = LimitedBroker(routed, callees.metadata, quotas)  # of all nodes
        # For messages that this node sends to queues of tenants.
        self.copies = LimitedBroker(self.unlimited, callees.metadata, quotas)
        self.catalog = GuardedCatalog(metadata.catalog, callees.metadata, quotas)
        # For Kafka, whose clients retry if a topic does not exist.
        self.stream_catalog = GuardedCatalog(metadata.topics, callees.metadata, quotas)
        self.directory = guard_identities(identities, callees.metadata)

    # Called after the broker has started, because it creates the coordinators.

    def groups(self, groups: GroupCoordinators) -> GuardedGroups:
        return GuardedGroups(groups, self.callees.groups(self._node))

    def transactions(self, transactions: Coordinators) -> GuardedCoordinators:
        return GuardedCoordinators(transactions, self.callees.transactions(self._node))

    def share_among(self, frontend_count: int) -> None:
        """Set this frontend's part of the tenants' limits and quotas to 1 / ``frontend_count``."""
        self.throttler.share_among(frontend_count)
        self.quotas.share_among(frontend_count)


DRAIN_SECONDS_MAX = 10.0


class Listeners:
    def __init__(
        self,
        setup: NodeSetup,
        security: NodeSecurity,
        calls: FrontendCalls,
        cluster: ClusterRole | None,
        push: PushRole,
    ) -> None:
        self._cluster = cluster
        self._push = push
        self._setup = setup
        self._security = security
        self._calls = calls
        is_auth_on = self._is_auth_on = setup.is_auth_on
        self._tls = setup.certificates.context
        self._scheme = "http" if self._tls is None else "https"
        self._kafka_protocol = kafka_protocol(is_tls=self._tls is not None, is_auth_on=is_auth_on)
        self._kafka: KafkaListener | None = None
        self._kafka_address = KAFKA_LISTEN_DEFAULT
        self.http: HttpListener
        self._kafka_url: str | None = None  # shown to CLI commands
        self.kafka_address = ""
        self.http_url = ""
        self.admin_url = ""

    async def start_admin(self, backup: BackupPort, coordinators: CoordinatorPort) -> None:
        setup, calls = self._setup, self._calls
        api = AdminApi(
            Context(
                broker=calls.anywhere,
                catalog=queues_of(calls.catalog),
                meter=setup.meter,
                health=setup.health,
                clock=setup.clock,
                info=setup.info(kafka_protocol=self._kafka_protocol),
                config=[ConfigRow(r.key, r.value, r.origin) for r in describe(setup.loaded)],
                sealing=self._security.sealing,
                identities=calls.directory,
                callees=calls.callees,
                quotas=calls.quotas,
                throttler=calls.throttler,
                cluster=None if self._cluster is None else self._cluster.admin,
                backup=backup,
                coordinators=coordinators,
                everything=calls.catalog,
                push=PushPorts(
                    subscriptions=guard(self._push.subscriptions, calls.callees.metadata),
                    ring=self._security.ring,
                    entropy=setup.entropy,
                    find_share=calls.unlimited.find_share,
                    deliveries=self._deliveries,
                    is_usable=self._push.is_usable,
                ),
            ),
            token=setup.config.admin.token,
            is_auth_on=self._is_auth_on,
            is_audited=setup.config.audit.enabled,
        )
        self._admin_api = api
        self._admin, self.admin_url = await open_admin(setup, api.handle, is_open=api.is_open)

    async def _deliveries(self, one: Subscription, *, count: int) -> Sequence[DeliveryRow]:
        """Return the newest attempts to deliver messages of a subscription."""
        node = self._setup.config.node
        topic = self._calls.catalog.find(node.account, node.region, deliveries.TOPIC)
        if topic is None:  # nothing was sent yet
            return ()
        return await deliveries.recent_deliveries(
            self._calls.unlimited, topic, subscription_id=one.id, count=count
        )

    def note_changes(self, facts: Facts) -> None:
        """Give the audit log to the admin API, which rejects changes until it can audit them."""
        if facts.audit is not None:
            self._admin_api.note_in(facts.audit)

    # ── SQS ──────────────────────────────────────────────────────────────────────────────────

    async def start_http(self, facts: Facts) -> None:
        setup, config, calls = self._setup, self._setup.config, self._calls
        couriers = self._push.couriers
        frontend = Frontend(
            broker=calls.anywhere,
            sealing=self._security.sealing,
            everything=calls.catalog,
            subscriptions=guard(self._push.subscriptions, calls.callees.metadata),
            books=guard(self._push.books, calls.callees.metadata),
            couriers=couriers,
            relayed={} if couriers is None else couriers.relayed,
            has_application=_never if couriers is None else couriers.has_endpoint,
            ring=self._security.ring,
            token_key=self._push.token_key,
            is_usable=self._push.is_usable,
            prepare_key=self._push.keys.ready,
            confirm=self._push.confirm,
            unsubscribed=self._push.unsubscribed,
            certificate_of=self._push.keys.certificate,
            level=self._push.level,
            clock=setup.clock,
            config=FrontendConfig(
                account=config.node.account,
                region=config.node.region,
                external_url=config.http.external_url or None,
                is_dev=config.node.mode is Mode.DEV,
                is_auth_on=self._is_auth_on,
                recreate_guard_ms=config.queue.recreate_guard_ms,
                partitions_default=config.queue.partitions,
                sns_retention_ms=config.push.retention_ms,
                admin_url=reachable(self.admin_url),
                kafka_url=self._kafka_url,
            ),
            meter=setup.meter,
            entropy=setup.entropy,
            perf=perf_counter,
            identities=self._security.identities,
            usage=facts.usage,
            audit=facts.audit,
            throttler=calls.throttler,
            quotas=calls.quotas,
        )
        setup.meter.register_collector(frontend.samples)
        self.http = make_listener(
            setup,
            frontend.handle,
            "http",
            forbid=frontend.forbid,
            is_open=not self._is_auth_on,
            acts_on_get=True,
            is_proven=is_link,
            outlives=frontend.outlives,
        )
        at, is_shared = config.http.listen, config.http.reuse_port
        bound = await bind(self.http, at, "SQS", "--http", tls=self._tls, reuse_port=is_shared)
        self.http_url = f"{self._scheme}://{bound}"
        setup.endpoints["sqs"] = self._push.base_url = reachable(self.http_url)

    # ── Kafka ────────────────────────────────────────────────────────────────────────────────

    async def start_kafka(self, role: BrokerRole, facts: Facts) -> None:
        config = self._setup.config.kafka
        if config.listen == KAFKA_OFF:
            return
        context = self._kafka_context(role, facts)
        self._kafka_frontend = KafkaFrontend(context, perf=perf_counter)
        self._kafka = KafkaListener(
            self._kafka_frontend.answer,
            config=KafkaListenerConfig(
                frame_bytes_max=config.frame_bytes_max,
                connections_per_address_max=config.connections_per_ip_max,
                login_frame_bytes_max=LOGIN_FRAME_BYTES_MAX if self._is_auth_on else 0,
            ),
            outlives=is_produce,
        )
        rates = ConnectionRates(role.configs, account=self._setup.config.node.account)
        clock = self._setup.clock
        self._kafka.admits = lambda address: rates.admits(address, now_ms=clock.mono_ms())
        role.dynamic.on_change(partial(self._limit_connections, role.dynamic, rates))
        self._limit_connections(role.dynamic, rates)
        bound = await self._bind_kafka(self._kafka)
        self._kafka_address = parse_listen(config.advertised or bound)
        self.kafka_address = bound
        self._setup.endpoints["kafka"] = reachable(bound)
        self._kafka_url = f"{self._kafka_protocol}://{reachable(bound)}"

    def _limit_connections(self, dynamic: DynamicConfigs, rates: ConnectionRates) -> None:
        """Apply the connection limits that an operator has set, or else the configured ones."""
        assert self._kafka is not None, "the listener exists"
        per_ip = self._setup.config.kafka.connections_per_ip_max or NO_LIMIT
        self._kafka.limit(
            connections_max=int(dynamic.value(broker_configs.CONNECTIONS_MAX) or NO_LIMIT),
            per_address_max=int(dynamic.value(broker_configs.CONNECTIONS_PER_IP_MAX) or per_ip),
            addresses=broker_configs.addresses(
                dynamic.value(broker_configs.CONNECTIONS_PER_IP) or ""
            ),
        )
        per_s = dynamic.value(broker_configs.CONNECTIONS_PER_SECOND)
        rates.limit(None if per_s is None else int(per_s))

    def _kafka_context(self, role: BrokerRole, facts: Facts) -> KafkaContext:
        setup, calls, security = self._setup, self._calls, self._security
        node = setup.config.node
        table, config = facts.usage, self._kafka_config()
        if self._cluster is None:
            epoch_of = role.broker.partitions.epoch_of
            nodes = Brokers(config.node_id, config.advertised, epoch_of)
        else:
            namespace = (node.account, node.region)
            nodes = ClusterBrokers(self._cluster, calls.stream_catalog, namespace)
        return KafkaContext(
            broker=calls.broker,
            anywhere=calls.anywhere,
            catalog=streams_of(calls.stream_catalog),
            groups=calls.groups(role.groups),
            transactions=calls.transactions(role.transactions),
            producer_ids=guard(role.producer_ids, calls.callees.metadata),
            clock=setup.clock,
            config=config,
            meter=setup.meter,
            entropy=setup.entropy,
            sealing=security.sealing,
            identities=security.identities,
            changes=calls.directory,
            tokens=guard(security.tokens, calls.callees.metadata),
            login_seed=security.ring.derive(b"kafka log-in"),
            throttler=calls.throttler,
            quotas=calls.quotas,
            fetch_sessions=FetchSessions(own_account=node.account),
            share_sessions=ShareSessions(own_account=node.account),
            usage=None if table is None else KafkaUsage(table, region=node.region),
            audit=facts.audit,
            nodes=nodes,
            joined=None if self._cluster is None else ClusterChanges(self._cluster),
            level=role.level,
            volume=lambda: shutil.disk_usage(setup.folder.path)[::2],  # total and free
            dynamic=role.dynamic,
        )

    def _kafka_config(self) -> KafkaFrontendConfig:
        setup = self._setup
        config, node, cluster = setup.config.kafka, setup.config.node, setup.config.cluster
        return KafkaFrontendConfig(
            advertised=lambda: self._kafka_address,
            node_id=cluster.node or 1,
            # The same on every node: clients identify a cluster by it.
            cluster_id=(
                setup.config.internal.cluster
                if self._cluster is not None
                else setup.folder.identity(setup.entropy)
            ),
            replicas_default=cluster.replicas if self._cluster is not None else 1,
            in_sync_min_default=cluster.in_sync_min if self._cluster is not None else 1,
            account=node.account,
            region=node.region,
            auto_create=config.auto_create,
            partitions_default=config.partitions,
            log_dir=str(setup.folder.path),
            is_auth_on=self._is_auth_on,
            is_insecure=setup.config.auth.insecure,
            login_ms=config.login_ms,
            protocol=self._kafka_protocol,
            listeners=lambda: self.kafka_address,
            compaction_check_ms=setup.config.log.compaction_check_ms,
            connections_max=KafkaListenerConfig().connections_max,
            connections_per_ip_max=config.connections_per_ip_max,
        )

    async def _bind_kafka(self, listener: KafkaListener) -> str:
        listen = self._setup.config.kafka.listen
        if listen:
            return await bind(listener, listen, "Kafka", "--kafka", tls=self._tls)
        host, port = KAFKA_LISTEN_DEFAULT
        _, http_port = parse_listen(self._setup.config.http.listen)
        try:
            return await listener.start(host, port if http_port else 0, tls=self._tls)
        except OSError:
            # The default port is in use; it was not requested.
            return await listener.start(host, 0, tls=self._tls)

    @property
    def kafka_advertised(self) -> str:
        """The address that Kafka clients get, or an empty string if there is no Kafka listener."""
        if not self.kafka_address:
            return ""
        host, port = self._kafka_address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def refuse_more(self) -> None:
        self.http.is_draining = True

    async def drain(self) -> None:
        listeners: list[Listener] = [self.http]
        if self._kafka is not None:
            self._kafka_frontend.drain()
            listeners.append(self._kafka)
        await asyncio.gather(*(one.drain(seconds_max=DRAIN_SECONDS_MAX) for one in listeners))

    async def stop_admin(self) -> None:
        """Stop the admin listener. It is stopped last, so that health checks work until then."""
        await self._admin.drain(seconds_max=1.0)


def _never(_arn: str) -> bool:
    return False
