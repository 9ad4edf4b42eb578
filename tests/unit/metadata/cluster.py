"""A few metadata nodes and frontends in one process: real sockets between them, one real store."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.harness.server import stable_port

from penstock.calls.internal.client import FirstReachable, InternalClient
from penstock.calls.internal.connection import InternalConfig, NodeEnd
from penstock.calls.internal.listener import InternalListener
from penstock.metadata.serving.remote_store import RemoteCatalog, RemoteConfig
from penstock.metadata.serving.service import MetadataConfig, MetadataService
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.topics.catalog import TOPICS_PREFIX
from penstock.model.topic import Kind, Topic
from penstock.telemetry.clock import SystemClock
from penstock.wire.internal.calls import Caller, CallHandlers
from penstock.wire.internal.faults import Unreachable

ACCOUNT = "111111111111"
REGION = "us-east-1"
CLUSTER = "test"
WIRE = InternalConfig(retry_seconds_min=0.01, retry_seconds_max=0.05)
QUICK = RemoteConfig(watch_ms=500, call_ms=3_000)


def make_topic(name: str, *, account: str = ACCOUNT, topic_id: str = "") -> Topic:
    return Topic(
        topic_id=topic_id or f"id-{account}-{name}",
        account=account,
        region=REGION,
        name=name,
        kind=Kind.STANDARD,
        partition_count=1,
        created_at_ms=1_000,
        modified_at_ms=1_000,
        receipt_key=b"\x00\xff" * 16,
    )


def delayed(delay_ms: int) -> Callable[[Topic], Topic]:
    return lambda topic: topic.with_settings(now_ms=2_000, delay_ms=delay_ms)


async def until(condition: Callable[[], bool], *, seconds: float = 10.0) -> None:
    """For what another node does, which has no event here to wait for."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


class Node:
    """One metadata node: its service, its listener, its way to the others."""

    def __init__(self, cluster: "Cluster", node_id: str) -> None:
        self.node_id = node_id
        self.service = MetadataService(
            cluster.store,
            node_id=node_id,
            members=lambda: tuple(cluster.members),
            peer=self._peer,
            config=cluster.config,
        )
        self.port = stable_port()  # nobody else is given it while this one does not listen
        self._cluster = cluster
        self._clients: dict[str, InternalClient] = {}
        self.listener: InternalListener | None = None

    def _peer(self, node_id: str) -> Caller:
        node = self._cluster.nodes.get(node_id)
        if node is None:
            raise Unreachable(f"Node {node_id} is nowhere.")
        client = self._clients.get(node_id)
        if client is None:
            client = self._clients[node_id] = self._cluster.client(
                node.port, own_id=self.node_id, node_id=node_id
            )
        return client

    async def start(self) -> None:
        await self.service.start()
        await self.listen()

    async def listen(self) -> None:
        answers = CallHandlers()
        self.service.register(answers)
        self.listener = InternalListener(answers, NodeEnd(self.node_id, CLUSTER, config=WIRE))
        bound = await self.listener.start("127.0.0.1", self.port)
        self.port = int(bound.rpartition(":")[2])

    async def cut_off(self) -> None:
        """Nobody reaches it any more; it goes on by itself."""
        listener, self.listener = self.listener, None
        if listener is not None:
            await listener.drain(seconds_max=0.0)

    async def stop(self) -> None:
        await self.service.stop()
        await self.cut_off()
        for client in self._clients.values():
            await client.close()


class Cluster:
    def __init__(self, store: SqliteStore, config: MetadataConfig) -> None:
        self.store = store
        self.config = config
        self.nodes: dict[str, Node] = {}
        self.members: list[str] = []
        self._frontends: list[RemoteCatalog] = []
        self._clients: list[InternalClient] = []

    def client(self, port: int, *, own_id: str, node_id: str | None = None) -> InternalClient:
        client = InternalClient(
            "127.0.0.1", port, NodeEnd(own_id, CLUSTER, config=WIRE), node_id=node_id
        )
        self._clients.append(client)
        return client

    async def join(self, node_id: str) -> Node:
        node = self.nodes[node_id] = Node(self, node_id)
        self.members.append(node_id)
        await node.start()
        for one in self.nodes.values():
            one.service.members_changed()
        return node

    async def leave(self, node_id: str) -> None:
        self.members = [member for member in self.members if member != node_id]
        await self.nodes.pop(node_id).stop()
        for one in self.nodes.values():
            one.service.members_changed()

    def caller(self, *node_ids: str, own_id: str = "frontend") -> Caller:
        clients = [self.client(self.nodes[one].port, own_id=own_id) for one in node_ids]
        return FirstReachable(lambda: clients, chance=lambda: 0.0)

    async def frontend(
        self, *node_ids: str, config: RemoteConfig = QUICK, recreate_guard_ms: int = 0
    ) -> RemoteCatalog:
        """One that asks these nodes, the first while it is there."""
        catalog = RemoteCatalog(
            self.caller(*node_ids),
            clock=SystemClock(),
            config=config,
            recreate_guard_ms=recreate_guard_ms,
        )
        await catalog.start()
        self._frontends.append(catalog)
        return catalog

    async def settled(self) -> None:
        """Every node has heard of everything and holds what it should."""
        entries, _ = await self.store.list(TOPICS_PREFIX)
        services = [node.service for node in self.nodes.values()]
        await until(
            lambda: all(
                one.is_settled and one.topics.entry_count == len(entries) for one in services
            )
        )

    async def stop(self) -> None:
        for catalog in self._frontends:
            await catalog.stop()
        for client in self._clients:
            await client.close()
        for node in self.nodes.values():
            await node.stop()


@asynccontextmanager
async def running(
    folder: Path,
    *node_ids: str,
    config: MetadataConfig | None = None,
    history_revisions_max: int = 1_024,
) -> AsyncIterator[Cluster]:
    store = await SqliteStore.open(
        folder / "metadata.db", history_revisions_max=history_revisions_max
    )
    cluster = Cluster(store, config or MetadataConfig())
    try:
        for node_id in node_ids:
            await cluster.join(node_id)
        yield cluster
    finally:
        await cluster.stop()
        await store.close()
