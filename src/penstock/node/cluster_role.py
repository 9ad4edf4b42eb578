"""A node's part in its cluster: what it holds of partitions and for whom, who else is there, and
standing for manager. Started when the broker can lead something, stopped while it still can."""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock import __version__
from penstock.broker.calls import Broker
from penstock.broker.replicators import Replicators
from penstock.broker.service import BrokerService
from penstock.broker.surroundings import Surroundings
from penstock.frontend.callees import Callees
from penstock.frontend.routing import Joined, Routed
from penstock.manager.decisions import Policy
from penstock.manager.in_cluster import Manager
from penstock.metadata.cluster_entries import NodeEntry, PartitionKey
from penstock.metadata.cluster_level import ClusterLevel
from penstock.metadata.cluster_view import ClusterView
from penstock.metadata.membership import Membership
from penstock.model.errors import PenstockError
from penstock.model.levels import Levels
from penstock.model.topic import Topic
from penstock.model.troubles import Trouble, clock_skew, replica_halted
from penstock.net.internal import InternalClient, InternalListener
from penstock.net.remote import RemoteBroker
from penstock.node.addresses import parse_listen
from penstock.node.basis import Basis
from penstock.node.binding import binding
from penstock.node.certificates import CertificateKeeper
from penstock.node.clock_skew import ClockSkew
from penstock.node.cluster_admin import ClusterAdmin
from penstock.node.cluster_metrics import ClusterMetrics
from penstock.node.cluster_peers import ClusterPeers, NodeCaller
from penstock.node.cluster_troubles import ClusterTroubles
from penstock.node.facts import TELEMETRY_TOPIC
from penstock.node.metadata_link import MetadataLink
from penstock.node.routes import ClusterRoutes
from penstock.replication.election import Standing
from penstock.wire.internal.broker_calls import ANY_EPOCH
from penstock.wire.internal.calls import Answers
from penstock.wire.internal.replica_calls import NOT_HERE, STANDINGS, StandingsAsked

DRAIN_SECONDS_MAX = 2.0
STANDINGS_MS = 3_000
REPLICATION = "replication"  # connections for followers, whose questions wait
PARKED = "parked"


class ClusterRole:
    def __init__(
        self,
        basis: Basis,
        certificates: CertificateKeeper,
        metadata: MetadataLink,
    ) -> None:
        config = basis.config
        self.node = config.cluster.node
        self._basis = basis
        self._certificates = certificates
        self._metadata = metadata
        self._closing: set[asyncio.Task[None]] = set()
        self.store = metadata.store
        self.catalog = metadata.topics
        self.level = ClusterLevel(metadata.store, _levels(config.cluster.feature_level_max))
        self.view = ClusterView(metadata.store)
        self.routes = ClusterRoutes(self.view)
        self._routed: Routed | None = None
        self.policy = Policy(
            replication_factor=config.cluster.replicas, in_sync_min=config.cluster.in_sync_min
        )
        self.manager: Manager | None = None
        self.admin = ClusterAdmin(
            metadata.store,
            self.view,
            metadata.topics,
            node=self.node,
            policy=self.policy,
            level=self.level,
            manager=self._manager,
        )
        self._troubles = ClusterTroubles(self.view, self.admin.seen, manager=self._manager)
        self._clocks = ClockSkew(write_ms=config.telemetry.flush_ms)
        self._greeted: dict[int, int] = {}
        self.peers = ClusterPeers(
            self.view,
            own_name=basis.name,
            cluster=config.internal.cluster,
            certificates=certificates.nodes,
            levels=self.level.levels,
            secret=basis.worker_secret,
            spawn=self._close_later,
        )

    def _manager(self) -> int | None:
        """The node that manages, NOBODY if there is none, None before this node has heard."""
        return None if self.manager is None else self.manager.manager

    def _close_later(self, client: InternalClient) -> None:
        task = asyncio.create_task(client.close(), name="close a connection to a node")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # ── Life ─────────────────────────────────────────────────────────────────────────────────

    async def start(self, broker: Broker, surroundings: Surroundings) -> None:
        """After the broker. Returns when this node is registered and holds what it should. Raises
        LevelRefused."""
        basis, config = self._basis, self._basis.config
        await self.level.start()
        await self.view.start()
        answers = self.answers = Answers()
        self._listener = InternalListener(
            answers,
            node_id=basis.name,
            cluster_id=config.internal.cluster,
            levels=self.level.levels,
            check_hello=self.level.check_hello,
            secret=basis.worker_secret,
        )
        nodes = self._certificates.nodes
        host, port = parse_listen(config.internal.listen)
        with binding("other nodes", "--internal", host, port):
            bound = await self._listener.start(
                host, port, tls=None if nodes is None else nodes.listening
            )
        basis.endpoints["internal"] = bound
        self.membership = Membership(
            self._metadata.store,
            NodeEntry(
                self.node,
                basis.name,
                config.internal.advertised or bound,
                folder_id=basis.folder.identity(basis.entropy),
                version=__version__,
                feature_level=self.level.levels.highest,
                feature_level_min=self.level.levels.lowest,
                rack=config.cluster.rack,
            ),
            clock=basis.clock,
            on_lost=self._lost,
            ttl_ms=config.cluster.lease_ms,
            admit=self.level.admit,
        )
        self.replicators = Replicators(
            surroundings,
            broker.partitions,
            store=self._metadata.store,
            view=self.view,
            membership=self.membership,
            peer=lambda node: self.peers.caller(node, REPLICATION),
            level=lambda: self.level.in_force,
        )
        self.replicators.register(answers)
        BrokerService(
            broker, broker.shares, self._metadata.topics, node=self.node, led=self.led
        ).register(answers)
        self.manager = Manager(
            self._metadata.store,
            self.node,
            view=self.view,
            catalog=self._metadata.topics,
            lease=lambda: self.membership.lease,
            ask_standings=self._ask_standings,
            clock=basis.clock,
            policy=self.policy,
            level=self.level,
        )
        await self.replicators.start()
        await self.manager.start()
        basis.meter.register_collector(self._metrics(self.manager).samples)

    def _metrics(self, manager: Manager) -> ClusterMetrics:
        return ClusterMetrics(
            level=self.level,
            listener=self._listener,
            manager=manager,
            membership=self.membership,
            peers=self.peers,
            replicators=self.replicators,
            view=self.view,
        )

    def _lost(self) -> None:
        self.replicators.lost_lease()

    def set_topics_in_sync_min(self, count: int | None) -> None:
        """What an operator has set for topics that say nothing of it; None: nothing."""
        if count != self.policy.topics_in_sync_min:
            self.policy.topics_in_sync_min = count
            if self.manager is not None:
                self.manager.policy_changed()

    async def tell(self, **changes: Any) -> None:
        """The others something new about this node, as soon as the store can be reached."""
        with contextlib.suppress(PenstockError):
            await self.membership.change(**changes)

    async def leave(self) -> None:
        """Let others lead and manage; requests are still served."""
        if self.manager is not None:
            await self.manager.stop()
        await self.replicators.leave()

    async def stop(self) -> None:
        self._troubles.stop()
        if self._routed is not None:
            await self._routed.close()
        await self.replicators.stop()
        await self._listener.drain(seconds_max=DRAIN_SECONDS_MAX)
        await self.view.stop()
        await self.level.stop()
        await self.peers.close()
        if self._closing:
            await asyncio.wait(self._closing)

    # ── Routing ──────────────────────────────────────────────────────────────────────────────

    def routed(self, broker: Broker, callees: Callees) -> Routed:
        """The brokers of all nodes, as one."""
        local = Joined(broker, broker, broker.shares)
        remotes: dict[int, RemoteBroker] = {}

        def epoch_of(topic: Topic, partition: int) -> int:
            led = self.routes.leader(topic, partition)
            return ANY_EPOCH if led is None else led[1]

        def led_by(topic: Topic, node: int) -> Sequence[tuple[int, int]]:
            led = ((at, self.routes.leader(topic, at)) for at in self.routes.leaders(topic))
            return [(at, found[1]) for at, found in led if found is not None and found[0] == node]

        def remote(node: int) -> RemoteBroker:
            found = remotes.get(node)
            if found is None:
                found = remotes[node] = RemoteBroker(
                    NodeCaller(self.peers, node),
                    moves=broker.moves,
                    find_share=broker.shares.find_share,
                    epoch_of=epoch_of,
                    led_there=lambda topic: led_by(topic, node),
                    parked=NodeCaller(self.peers, node, PARKED),
                )
            return found

        self._routed = Routed(
            local,
            own_node=self.node,
            routes=self.routes,
            remote=remote,
            bulkhead=lambda node: callees.remote(f"node {node}"),
            find_arn=self._metadata.topics.find_arn,
        )
        broker.go_through(self._routed)
        self.view.on_nodes(lambda: self._greet(callees))
        return self._routed

    def _greet(self, callees: Callees) -> None:
        """A node that has registered again is asked at once, not when a probe is due."""
        known = {node: made for node, made in self.view.incarnations.items() if node != self.node}
        for node, made in known.items():
            if self._greeted.get(node) not in (None, made):
                callees.remote(f"node {node}").answers_again()
        self._greeted.update(known)

    @property
    def anywhere(self) -> Routed:
        assert self._routed is not None, "made before the broker starts"
        return self._routed

    # ── Questions ────────────────────────────────────────────────────────────────────────────

    def led(self, topic: Topic, partition: int) -> tuple[int, int] | None:
        """Who leads a partition, and in which epoch, as far as this node has heard."""
        return self.routes.leader(topic, partition)

    def leads(self, topic: Topic, partition: int) -> bool:
        """Whether this node does."""
        led = self.routes.leader(topic, partition)
        return led is not None and led[0] == self.node

    async def _ask_standings(
        self, node: int, keys: Sequence[PartitionKey]
    ) -> Mapping[PartitionKey, Standing]:
        asked = StandingsAsked([(key.topic_id, key.index) for key in keys])
        told = await self.peers.caller(node).call(STANDINGS, asked, timeout_ms=STANDINGS_MS)
        if told.incarnation != self.view.incarnations.get(node):
            return {}  # of another life than the one that would be elected
        return {
            key: Standing(*standing)
            for key, standing in zip(keys, told.standings, strict=True)
            if tuple(standing) != NOT_HERE
        }

    @property
    def trouble(self) -> str | None:
        """Why what this node knows of its cluster may be old."""
        return self.view.trouble or self.level.trouble

    def troubles(self) -> Iterator[Trouble]:
        for place, reason in self.replicators.troubles():
            yield replica_halted(place, reason)
        yield from self._troubles.look()
        clock = self._basis.clock
        newest_ms = self._newest_telemetry_ms()
        skew_ms = self._clocks.look(newest_ms, wall_ms=clock.wall_ms(), mono_ms=clock.mono_ms())
        if skew_ms:
            yield clock_skew(skew_ms)

    def _newest_telemetry_ms(self) -> int | None:
        """Return the latest timestamp in this node's replica of ``__telemetry``."""
        node = self._basis.config.node
        topic = self.catalog.find(node.account, node.region, TELEMETRY_TOPIC)
        found = None if topic is None else self.replicators.find(PartitionKey(topic.topic_id, 0))
        return None if found is None else found.log.last_timestamp_ms


def _levels(highest: int) -> Levels:
    return Levels(highest=highest) if highest else Levels()
