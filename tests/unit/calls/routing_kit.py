"""A few real brokers in one process, real sockets between them, one real store, and leaders that a
test moves by hand.

Brokers here do not replicate: what a partition holds stays with the node that led it. That is all
that routing needs, for it never looks into a partition. A broker is made to refuse what its node
does not lead (``Owned``), as one of a cluster does.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

from tests.harness.served import name_of
from tests.harness.server import stable_port
from tests.unit.broker.stage import HandClock, claim

from penstock.broker.calls import Broker
from penstock.broker.context.context import BrokerContext
from penstock.broker.context.disk import DiskBudget
from penstock.calls.callees import Callees
from penstock.calls.internal.client import InternalClient
from penstock.calls.internal.connection import InternalConfig, NodeEnd
from penstock.calls.internal.listener import InternalListener
from penstock.calls.remote.broker import RemoteBroker
from penstock.calls.remote.service import BrokerService
from penstock.calls.routing.leaders import Leaders
from penstock.calls.routing.router import Router
from penstock.log.log import LogConfig
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.topics.catalog import MoveTasks, StoredCatalog
from penstock.model.calls import (
    Append,
    BrokerCall,
    BrokerPort,
    Extend,
    LeadersCall,
    Lease,
    OpenShare,
    PartitionCall,
    R,
)
from penstock.model.errors import InFlightLimit, NotLeader
from penstock.model.message import Delivery, Message
from penstock.model.ports import LeaseRequest
from penstock.model.topic import Fsync, Kind, QueueSettings, Topic
from penstock.telemetry.clock import SystemClock
from penstock.telemetry.metrics import Meter
from penstock.wire.internal.calls import CallHandlers

CLUSTER = "test"
WIRE = InternalConfig(retry_seconds_min=0.01, retry_seconds_max=0.05, connect_seconds_max=20.0)
CALLS_MAX = 64


class HandRoutes:
    """Implements ``Routes``."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self._nodes = list(nodes)
        self._led: dict[tuple[str, int], tuple[int, int]] = {}
        self._epochs: dict[tuple[str, int], int] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        self.listeners: list[Callable[[], None]] = []
        self.hints: list[tuple[str, int, int]] = []

    def leader(self, topic: Topic, partition: int) -> tuple[int, int] | None:
        return self._led.get((topic.source_id or topic.topic_id, partition))

    def leaders(self, topic: Topic) -> Mapping[int, int]:
        found = {}
        for partition in range(topic.partition_count):
            led = self.leader(topic, partition)
            if led is not None:
                found[partition] = led[0]
        return found

    def nodes(self) -> Sequence[int]:
        return self._nodes

    async def wait_changed(self, timeout_s: float) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await asyncio.wait((waiting,), timeout=timeout_s)
        finally:
            self._waiting.discard(waiting)

    def note_leader(self, place: str, leader: int, epoch: int) -> None:
        self.hints.append((place, leader, epoch))
        topic_id, _, partition = place.rpartition("/")
        key = (topic_id, int(partition))
        if epoch > self._epochs.get(key, -1):
            self._epochs[key] = epoch
            self._led[key] = (leader, epoch)
            self.tell()

    # ── By hand ──────────────────────────────────────────────────────────────────────────────

    def move(self, topic: Topic, partition: int, node: int | None) -> None:
        key = (topic.topic_id, partition)
        epoch = self._epochs[key] = self._epochs.get(key, 0) + 1
        if node is None:
            self._led.pop(key, None)
        else:
            self._led[key] = (node, epoch)
        self.tell()

    def copy(self) -> "HandRoutes":
        """As somebody knows it who hears of nothing from now on."""
        other = HandRoutes(self._nodes)
        other._led = dict(self._led)
        other._epochs = dict(self._epochs)
        return other

    def tell(self) -> None:
        for waiting in tuple(self._waiting):
            if not waiting.done():
                waiting.set_result(None)
        for listener in self.listeners:
            listener()


class Owned:
    """A broker that serves only what its node leads."""

    def __init__(self, broker: Broker, node: int, truth: HandRoutes) -> None:
        self._broker = broker
        self._node = node
        self._truth = truth
        self.begun: list[str] = []  # calls that came this far
        self._releasing: set[asyncio.Future[Any]] = set()
        self.done: list[str] = []  # those that are held
        self.held: dict[str, asyncio.Event] = {}  # what is done, and not answered before this
        self.instead: dict[type[BrokerCall[Any]], Callable[[Any], Coroutine[Any, Any, Any]]] = {}
        self.moves = broker.moves
        self.find_share = broker.find_share
        truth.listeners.append(self._moved)

    def _check(self, topic: Topic, partition: int) -> None:
        led = self._truth.leader(topic, partition)
        if led is None or led[0] != self._node:
            place = f"{topic.source_id or topic.topic_id}/{partition}"
            raise NotLeader(place, leader=led[0] if led else -1, epoch=led[1] if led else -1)

    async def call(self, call: BrokerCall[R]) -> R:
        name = name_of(type(call))
        instead = self.instead.get(type(call))
        if instead is not None:
            found: R = await instead(call)
            return found
        if isinstance(call, Lease):
            return cast(R, await self._lease_own(call.topic, call.request))
        if isinstance(call, PartitionCall) and not isinstance(call, OpenShare):
            self._check(call.topic, call.partition)
            self.begun.append(name)
        elif isinstance(call, LeadersCall):
            for partition, _ in call.counted_on:
                self._check(call.topic, partition)
        reply = await self._broker.call(call)
        if isinstance(call, LeadersCall):
            for partition, _ in call.counted_on:
                self._check(call.topic, partition)
        if name in self.held:
            self.done.append(name)
            await self.held[name].wait()
        return reply

    async def _lease(self, topic: Topic, request: LeaseRequest) -> Sequence[Delivery]:
        return await self._broker.call(Lease(topic, request))

    def on_advance(
        self, topic: Topic, partition: int, listener: Callable[[], None]
    ) -> Callable[[], None]:
        self._check(topic, partition)
        self.begun.append("on_advance")
        return self._broker.on_advance(topic, partition, listener)

    def on_available(
        self, share: Topic, partition: int, listener: Callable[[], None]
    ) -> Callable[[], None]:
        self._check(share, partition)
        self.begun.append("on_available")
        return self._broker.on_available(share, partition, listener)

    async def _lease_own(self, topic: Topic, request: LeaseRequest) -> Sequence[Delivery]:
        self._check_any(topic)
        self.begun.append("lease")
        now = LeaseRequest(request.count, request.lease_ms, 0, request.attempt_id)
        look = asyncio.ensure_future(self._lease(topic, now))
        try:
            deliveries = await asyncio.shield(look)
        except asyncio.CancelledError:
            # As the port promises: who is cancelled here has consumed nothing.
            look.add_done_callback(lambda done: self._release(topic, done.result()))
            raise
        except InFlightLimit:
            deliveries = ()
            if request.wait_ms <= 0:
                raise
        return deliveries or (await self._lease(topic, request) if request.wait_ms > 0 else ())

    def _release(self, topic: Topic, deliveries: Sequence[Delivery]) -> None:
        for each in deliveries:
            claims = [(claim(each), 0)]
            task = asyncio.ensure_future(self._broker.call(Extend(topic, each.partition, claims)))
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)

    def _check_any(self, topic: Topic) -> None:
        if self._node not in self._truth.leaders(topic).values():
            led = self._truth.leader(topic, 0)
            place = f"{topic.source_id or topic.topic_id}/0"
            raise NotLeader(place, leader=led[0] if led else -1, epoch=led[1] if led else -1)

    def _moved(self) -> None:
        for queue in self._broker.partitions.queues():
            try:
                self._check_any(queue.topic)
            except NotLeader as error:
                queue.waits.end(error)


class Node:
    def __init__(
        self,
        cluster: "Cluster",
        number: int,
        broker: Broker,
        catalog: StoredCatalog,
        tasks: MoveTasks,
    ) -> None:
        self.cluster = cluster
        self.number = number
        self.broker = broker
        self.catalog = catalog
        self.tasks = tasks
        self.owned = Owned(broker, number, cluster.truth)
        self.service = BrokerService(
            self.owned,
            catalog,
            node=number,
            led=cluster.truth.leader,
            catch_up_seconds=0.3,
        )
        self.port = stable_port()  # nobody else is given it while this one does not listen
        self.listener: InternalListener | None = None

    def waits(self, topic: Topic) -> int:
        """Receives that are parked here."""
        queue = self.broker.partitions.find(topic)
        return 0 if queue is None else len(queue.waits)

    def in_flight(self, topic: Topic) -> int:
        queue = self.broker.partitions.find(topic)
        return 0 if queue is None else queue.stats().in_flight

    async def listen(self, config: InternalConfig = WIRE) -> None:
        answers = CallHandlers()
        self.service.register(answers)
        self.listener = InternalListener(answers, NodeEnd(str(self.number), CLUSTER, config=config))
        bound = await self.listener.start("127.0.0.1", self.port)
        self.port = int(bound.rpartition(":")[2])

    async def vanish(self) -> None:
        """All connections break at once and nobody answers any more."""
        listener, self.listener = self.listener, None
        if listener is not None:
            await listener.drain(seconds_max=0.0)


class Cluster:
    def __init__(self, store: SqliteStore, clock: HandClock, numbers: Sequence[int]) -> None:
        self.store = store
        self.clock = clock
        self.truth = HandRoutes(numbers)
        self.nodes: dict[int, Node] = {}
        self._ending = AsyncExitStack()

    async def topic(
        self,
        name: str = "q",
        *,
        led_by: Sequence[int | None] = (1,),
        kind: Kind = Kind.STANDARD,
        settings: QueueSettings | None = None,
    ) -> Topic:
        """One partition for each of these nodes. Known to all catalogs when this returns."""
        topic = Topic(
            topic_id=secrets.token_hex(16),
            account="000000000000",
            region="us-east-1",
            name=name,
            kind=kind,
            partition_count=len(led_by),
            created_at_ms=self.clock.wall,
            modified_at_ms=self.clock.wall,
            receipt_key=b"k" * 32,
            fsync=Fsync.NEVER,
            settings=settings or QueueSettings(),
        )
        await next(iter(self.nodes.values())).catalog.create(topic)
        await self.known(topic)
        for partition, node in enumerate(led_by):
            if node is not None:
                self.truth.move(topic, partition, node)
        return topic

    async def put(self, topic: Topic, partition: int, messages: Sequence[Message]) -> None:
        """Into this very partition: a message that is sent may go to another one."""
        led = self.truth.leader(topic, partition)
        assert led is not None, "somebody leads it"
        await self.nodes[led[0]].owned.call(Append(topic, partition, messages))

    async def known(self, topic: Topic) -> None:
        await until(
            lambda: all(
                node.catalog.find_id(topic.topic_id) is not None for node in self.nodes.values()
            )
        )

    def client(self, to: int, own_id: str, config: InternalConfig = WIRE) -> InternalClient:
        client = InternalClient(
            "127.0.0.1",
            self.nodes[to].port,
            NodeEnd(own_id, CLUSTER, config=config),
            node_id=str(to),
        )
        self._ending.push_async_callback(client.close)
        return client

    def remote(self, to: int, routes: HandRoutes | None = None, **more: Any) -> RemoteBroker:
        known = routes or self.truth

        def epoch_of(topic: Topic, partition: int) -> int:
            led = known.leader(topic, partition)
            return -1 if led is None else led[1]

        node, client = self.nodes[to], self.client(to, "frontend")
        remote = RemoteBroker(
            lambda: client,
            moves=node.owned.moves,
            find_share=node.owned.find_share,
            epoch_of=epoch_of,
            **more,
        )
        self._ending.push_async_callback(remote.close)
        return remote

    def routed(
        self,
        own: int,
        routes: HandRoutes | None = None,
        *,
        retry_seconds_max: float = 5.0,
        callees: Callees | None = None,
        local: BrokerPort | None = None,
    ) -> Router:
        """The frontend of a node, which believes in these routes. ``callees`` have the bulkheads of
        the other nodes; ``local`` is the broker of this one."""
        known = routes or self.truth
        remotes: dict[int, RemoteBroker] = {}
        calls = callees or Callees(SystemClock(), backend_calls_max=CALLS_MAX)

        def remote(number: int) -> RemoteBroker:
            if number not in remotes:
                remotes[number] = self.remote(number, known)
            return remotes[number]

        routed = Router(
            Leaders(
                local or self.nodes[own].owned,
                own_node=own,
                routes=known,
                remote=remote,
                bulkhead=lambda number: calls.remote(f"node {number}"),
                retry_seconds_max=retry_seconds_max,
            ),
            self.nodes[own].catalog.find_arn,
        )
        self._ending.push_async_callback(routed.close)
        return routed

    def leads(self, own: int) -> Callable[[Topic, int], bool]:
        def is_led(topic: Topic, partition: int) -> bool:
            led = self.truth.leader(topic, partition)
            return led is not None and led[0] == own

        return is_led

    async def end(self) -> None:
        await self._ending.aclose()


@asynccontextmanager
async def on_nodes(
    folder: Path, *numbers: int, in_flight_max: int = 120_000
) -> AsyncIterator[Cluster]:
    folder.mkdir(parents=True, exist_ok=True)
    clock = HandClock()
    store = await SqliteStore.open(folder / "metadata.sqlite3")
    cluster = Cluster(store, clock, numbers)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        for number in numbers:
            node = await _start(stack, cluster, number, folder / str(number), in_flight_max)
            cluster.nodes[number] = node
            # With this node's own way to the others, as every broker of a cluster has one.
            node.broker.shares.all_brokers = cluster.routed(number, retry_seconds_max=1.0)
        stack.push_async_callback(cluster.end)
        yield cluster


async def _start(
    stack: AsyncExitStack, cluster: Cluster, number: int, folder: Path, in_flight_max: int
) -> Node:
    folder.mkdir()
    catalog, tasks = StoredCatalog(cluster.store), MoveTasks(cluster.store)
    await catalog.start()
    stack.push_async_callback(catalog.stop)
    await tasks.start()
    stack.push_async_callback(tasks.stop)
    pool = ThreadPoolExecutor(2)
    stack.callback(pool.shutdown)
    context = BrokerContext(
        folder=folder,
        clock=cluster.clock,
        pool=pool,
        disk=DiskBudget(folder, cluster.clock, reserve_bytes=1),
        catalog=catalog,
        meter=Meter(),
        log=LogConfig(),
        fsync_interval_ms=1_000,
        clean_interval_ms=3_600_000,
        in_flight_max=in_flight_max,
        grain_ms=0,
        elapsed_since_ms=0,
    )
    broker = Broker(context, tasks, entropy=secrets.token_bytes)
    await broker.start()
    stack.push_async_callback(broker.stop)
    node = Node(cluster, number, broker, catalog, tasks)
    stack.callback(node.service.close)
    await node.listen()
    stack.push_async_callback(node.vanish)
    return node


async def until(condition: Callable[[], bool], *, seconds: float = 10.0) -> None:
    """For what another node does, which has no event here to wait for."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)
