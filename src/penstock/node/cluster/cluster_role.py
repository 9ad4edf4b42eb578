"""The part of a node that makes it a member of a cluster: its replicas, the routes and connections
to other nodes, and its candidacy for manager. It starts after the broker and stops before it."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from penstock import __version__
from penstock.broker.calls import Broker
from penstock.broker.context.context import BrokerContext
from penstock.broker.replicas.replicators import Replicators
from penstock.calls.callees import Callees
from penstock.calls.internal.client import InternalClient
from penstock.calls.remote.broker import RemoteBroker, no_outcomes
from penstock.calls.remote.service import BrokerService
from penstock.calls.routing.leaders import Leaders
from penstock.calls.routing.router import Router
from penstock.manager.decisions import Policy
from penstock.manager.in_cluster import Manager
from penstock.membership.cluster_view import ClusterLevel, ClusterView
from penstock.membership.registration import Membership
from penstock.metadata.cluster_entries import NodeEntry, PartitionKey
from penstock.model.calls import BrokerPort
from penstock.model.errors import PenstockError
from penstock.model.levels import LEVEL_MAX, Levels
from penstock.model.topic import Topic
from penstock.model.troubles import CLOCK_SKEW, REPLICA_HALTED, Trouble
from penstock.node.cluster.cluster_admin import ClusterAdmin
from penstock.node.cluster.cluster_troubles import ClockSkew, ClusterTroubles
from penstock.node.configuration.cluster_config import parse_listen
from penstock.node.listening import make_client, open_internal
from penstock.node.metadata.metadata_link import MetadataLink
from penstock.node.process.facts import TELEMETRY_TOPIC
from penstock.node.process.node_setup import NodeSetup
from penstock.replication.election import Standing
from penstock.replication.row import View
from penstock.wire.internal.broker_calls import ANY_EPOCH
from penstock.wire.internal.calls import Caller, CallHandlers
from penstock.wire.internal.faults import Unreachable
from penstock.wire.internal.node_calls import NOT_HERE, STANDINGS, StandingsRequest

HINTS_MAX = 10_000  # above it the oldest are dropped
DRAIN_SECONDS_MAX = 2.0
STANDINGS_MS = 3_000
LAST_WRITES_SECONDS: float = 1.0  # wait for other nodes that stop at the same time
REPLICATION = "replication"  # connections of followers, whose fetches wait
PARKED = "parked"


class ClusterRoutes:
    """The leaders of partitions, from the partition rows in memory and from replies of other nodes
    (hints), which may be newer than the rows. Implements ``calls.routing.Routes``."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._hints: dict[tuple[str, int], tuple[int, int]] = {}
        self._changed = asyncio.Event()
        view.on_row(self._row_changed)
        view.on_nodes(self._wake)

    def leader(self, topic: Topic, partition: int) -> tuple[int, int] | None:
        topic_id = topic.source_id or topic.topic_id
        found = self._view.of_topic(topic_id).get(partition)
        if self._hints:
            hint = self._hints.get((topic_id, partition))
            if hint is not None and (found is None or found.row.epoch < hint[1]):
                return hint if hint[0] in self._view.nodes else None
        if found is None or found.row.leader not in self._view.nodes:
            return None
        return found.row.leader, found.row.epoch

    def leaders(self, topic: Topic) -> Mapping[int, int]:
        found = {}
        for partition in self._view.of_topic(topic.source_id or topic.topic_id):
            led = self.leader(topic, partition)
            if led is not None:
                found[partition] = led[0]
        return found

    def nodes(self) -> Sequence[int]:
        return list(self._view.nodes)

    async def wait_changed(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout_s)

    def note_leader(self, place: str, leader: int, epoch: int) -> None:
        topic_id, _, index = place.partition("/")
        if leader < 0 or not index.isdigit():
            return
        key = (topic_id, int(index))
        known = self._view.of_topic(topic_id).get(key[1])
        if known is not None and known.row.epoch >= epoch:
            return
        while len(self._hints) >= HINTS_MAX:
            del self._hints[next(iter(self._hints))]
        self._hints[key] = (leader, epoch)
        self._wake()

    def _row_changed(self, key: PartitionKey, view: View | None) -> None:
        hint = self._hints.get((key.topic_id, key.index))
        if hint is not None and (view is None or view.row.epoch >= hint[1]):
            del self._hints[key.topic_id, key.index]
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class ClusterPeers:
    """Connections to other nodes, one per node and purpose, opened by the first call. Long polls
    have separate connections, so that they do not delay other calls."""

    def __init__(self, view: ClusterView, setup: NodeSetup, levels: Levels) -> None:
        self._view = view
        self._setup = setup
        self._levels = levels
        self._clients: dict[tuple[int, str], tuple[NodeEntry, InternalClient]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.passed_on = no_outcomes()  # outcomes of calls to other nodes
        view.on_nodes(self._forget_gone)

    @property
    def connection_count(self) -> int:
        return sum(client.is_connected for _, client in self._clients.values())

    def caller(self, node: int, purpose: str = "calls") -> Caller:
        """Return a client for calls to a node. Raises Unreachable if the node is not registered."""
        entry = self._view.nodes.get(node)
        if entry is None:
            raise Unreachable(f"Node {node} is not registered.")
        known = self._clients.get((node, purpose))
        if known is not None and known[0].internal == entry.internal:
            return known[1]
        if known is not None:
            self._close_later(known[1])
        host, port = parse_listen(entry.internal)
        client = make_client(self._setup, host, port, entry.name, levels=self._levels)
        self._clients[node, purpose] = (entry, client)
        return client

    def _forget_gone(self) -> None:
        for key in [key for key in self._clients if key[0] not in self._view.nodes]:
            self._close_later(self._clients.pop(key)[1])

    def _close_later(self, client: InternalClient) -> None:
        task = asyncio.create_task(client.close(), name="close a connection to a node")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for _, client in self._clients.values():
            await client.close()
        self._clients.clear()
        if self._closing:
            await asyncio.wait(self._closing)


class ClusterRole:
    def __init__(self, setup: NodeSetup, metadata: MetadataLink) -> None:
        config = setup.config
        self.node = config.cluster.node
        self._setup = setup
        self._metadata = metadata
        self.store = metadata.store
        self.catalog = metadata.topics
        self.level = ClusterLevel(
            metadata.store, Levels(highest=config.cluster.feature_level_max or LEVEL_MAX)
        )
        self.view = ClusterView(metadata.store)
        self.routes = ClusterRoutes(self.view)
        self._routers: list[Router] = []  # the first one has no bulkhead for this node
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
        self._seen_incarnations: dict[int, int] = {}
        self.peers = ClusterPeers(self.view, setup, self.level.levels)

    def _manager(self) -> int | None:
        """Return the manager's node id, NO_NODE if there is none, or None if not known yet."""
        return None if self.manager is None else self.manager.manager

    async def start(self, broker: Broker, context: BrokerContext) -> None:
        """Open the replicas of this node, and register this node in the cluster."""
        setup, config = self._setup, self._setup.config
        await self.level.start()
        await self.view.start()
        answers = self.answers = CallHandlers()
        self.listener, bound = await open_internal(
            setup, answers, levels=self.level.levels, check_hello=self.level.check_hello
        )
        self.membership = Membership(
            self._metadata.store,
            NodeEntry(
                self.node,
                setup.name,
                config.internal.advertised or bound,
                folder_id=setup.folder.identity(setup.entropy),
                version=__version__,
                feature_level=self.level.levels.highest,
                feature_level_min=self.level.levels.lowest,
                rack=config.cluster.rack,
            ),
            clock=setup.clock,
            on_lost=lambda: self.replicators.lost_lease(),
            ttl_ms=config.cluster.lease_ms,
            admit=self.level.admit,
        )
        self.replicators = Replicators(
            context,
            broker.partitions,
            store=self._metadata.store,
            view=self.view,
            membership=self.membership,
            peer=lambda node: self.peers.caller(node, REPLICATION),
            level=lambda: self.level.in_force,
        )
        self.replicators.register(answers)
        BrokerService(
            broker, self._metadata.topics, node=self.node, led=self.routes.leader
        ).register(answers)
        self.manager = Manager(
            self._metadata.store,
            self.node,
            view=self.view,
            catalog=self._metadata.topics,
            lease=lambda: self.membership.lease,
            ask_standings=self._ask_standings,
            clock=setup.clock,
            policy=self.policy,
            level=self.level,
        )
        await self.replicators.start()
        await self.manager.start()

    def set_topics_in_sync_min(self, count: int | None) -> None:
        """Set the default ``min.insync.replicas`` of topics. None means the configured value."""
        if count != self.policy.topics_in_sync_min:
            self.policy.topics_in_sync_min = count
            if self.manager is not None:
                self.manager.policy_changed()

    async def announce(self, **changes: Any) -> None:
        """Change fields of this node's registration. Ignores errors of the store."""
        with contextlib.suppress(PenstockError):
            await self.membership.change(**changes)

    async def leave(self) -> None:
        """Hand over the leadership of partitions and the role of manager to other nodes."""
        if self.manager is not None:
            await self.manager.stop()
        await self.replicators.leave()

    async def wait_for_last_writes(self) -> None:
        """Report that this node has written its last records, and wait a second for other nodes.

        If all workers of a server are stopped at once, a slow worker must still be able to write
        its last usage counts and audit records to partitions that other workers lead. So each node
        removes its addresses from its registration when it has nothing more to write, and remains
        leader until the other nodes have done the same."""
        changed = asyncio.Event()
        self.view.on_nodes(changed.set)
        await self.announce(http="", kafka="")
        with contextlib.suppress(TimeoutError):  # the others may not be stopping at all
            async with asyncio.timeout(LAST_WRITES_SECONDS):
                while any(e.http for node, e in self.view.nodes.items() if node != self.node):
                    changed.clear()
                    await changed.wait()

    async def stop(self) -> None:
        self._troubles.stop()
        for router in self._routers:
            await router.close()
        await self.replicators.stop()
        await self.listener.drain(seconds_max=DRAIN_SECONDS_MAX)
        await self.view.stop()
        await self.level.stop()
        await self.peers.close()

    def route(self, broker: Broker, callees: Callees) -> Callable[[BrokerPort], Router]:
        """Make ``broker`` forward calls to leaders on other nodes. Returns a function that makes a
        router: an object that passes calls to the given broker object or to other nodes."""

        def epoch_of(topic: Topic, partition: int) -> int:
            led = self.routes.leader(topic, partition)
            return ANY_EPOCH if led is None else led[1]

        @cache
        def remote(node: int) -> RemoteBroker:
            return RemoteBroker(
                lambda: self.peers.caller(node),
                moves=broker.moves,
                find_share=broker.find_share,
                epoch_of=epoch_of,
                parked=lambda: self.peers.caller(node, PARKED),
                outcomes=self.peers.passed_on,
            )

        def make(local: BrokerPort) -> Router:
            router = Router(
                Leaders(
                    local,
                    own_node=self.node,
                    routes=self.routes,
                    remote=remote,
                    bulkhead=lambda node: callees.remote(f"node {node}"),
                ),
                self._metadata.topics.find_arn,
            )
            self._routers.append(router)
            return router

        broker.go_through(make(broker))
        self.view.on_nodes(lambda: self._reset_breakers(callees))
        return make

    def _reset_breakers(self, callees: Callees) -> None:
        """Close the circuit breakers for nodes that have restarted and registered again."""
        known = {node: made for node, made in self.view.incarnations.items() if node != self.node}
        for node, made in known.items():
            if self._seen_incarnations.get(node) not in (None, made):
                callees.remote(f"node {node}").mark_available()
        self._seen_incarnations.update(known)

    @property
    def anywhere(self) -> Router:
        """The router for records that this node itself writes to partitions of any node."""
        assert self._routers, "``route`` is called before the broker starts"
        return self._routers[0]

    def end_waits(self) -> None:
        for router in self._routers:
            router.end_waits()

    def leads(self, topic: Topic, partition: int) -> bool:
        led = self.routes.leader(topic, partition)
        return led is not None and led[0] == self.node

    async def _ask_standings(
        self, node: int, keys: Sequence[PartitionKey]
    ) -> Mapping[PartitionKey, Standing]:
        request = StandingsRequest([(key.topic_id, key.index) for key in keys])
        reply = await self.peers.caller(node).call(STANDINGS, request, timeout_ms=STANDINGS_MS)
        if reply.incarnation != self.view.incarnations.get(node):
            return {}  # the node was restarted: the reply is not valid for its present incarnation
        return {
            key: Standing(*standing)
            for key, standing in zip(keys, reply.standings, strict=True)
            if tuple(standing) != NOT_HERE
        }

    @property
    def trouble(self) -> str | None:
        return self.view.trouble or self.level.trouble

    def troubles(self) -> Iterator[Trouble]:
        for place, reason in self.replicators.troubles():
            yield REPLICA_HALTED.filled(reason, place=place)
        yield from self._troubles.look()
        clock = self._setup.clock
        node = self._setup.config.node
        topic = self.catalog.find(node.account, node.region, TELEMETRY_TOPIC)
        found = None if topic is None else self.replicators.find(PartitionKey(topic.topic_id, 0))
        newest_ms = None if found is None else found.log.last_timestamp_ms
        skew_ms = self._clocks.look(newest_ms, wall_ms=clock.wall_ms(), mono_ms=clock.mono_ms())
        if skew_ms:
            places = "this node and another node"
            yield CLOCK_SKEW.filled(places=places, skew_ms=abs(skew_ms))
