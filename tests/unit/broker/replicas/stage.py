"""Several brokers in one process that hold each other's partitions: real logs, real sockets between
them, one real store. Rows are written by hand, as a manager would."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec

from penstock.broker.calls import Broker
from penstock.broker.context.context import BrokerContext
from penstock.broker.context.disk import DiskBudget
from penstock.broker.replicas.replicator import Replicator
from penstock.broker.replicas.replicators import Replicators
from penstock.calls.internal.client import InternalClient
from penstock.calls.internal.connection import NodeEnd
from penstock.calls.internal.listener import InternalListener
from penstock.log.log import LogConfig
from penstock.membership.cluster_view import ClusterView
from penstock.membership.registration import Membership
from penstock.metadata.cluster_entries import (
    NodeEntry,
    PartitionKey,
    encode_entry,
    partition_key,
)
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Store
from penstock.metadata.topics.catalog import MoveTasks, StoredCatalog
from penstock.model.calls import Append
from penstock.model.errors import Draining, NotLeader
from penstock.model.levels import LEVEL_FIRST
from penstock.model.limits import IN_FLIGHT_MAX
from penstock.model.message import Message
from penstock.model.topic import Fsync, Kind, Topic
from penstock.replication.election import elect
from penstock.replication.row import PartitionRow
from penstock.telemetry.clock import SystemClock
from penstock.telemetry.metrics import Meter
from penstock.wire.internal.calls import Caller, CallHandlers
from penstock.wire.internal.faults import Unreachable

WAIT_SECONDS = 10.0


async def until(what: Callable[[], bool], *, seconds: float = WAIT_SECONDS) -> None:
    """Tests of a running cluster wait for what they need, and for nothing else."""
    async with asyncio.timeout(seconds):
        while not what():
            await asyncio.sleep(0.005)


class ClusterNode:
    def __init__(
        self,
        number: int,
        folder: Path,
        store: Store,
        *,
        fsync: Fsync,
        ttl_ms: int,
        clean_interval_ms: int,
        compact_interval_ms: int,
        in_flight_max: int,
    ) -> None:
        self.number = number
        self.folder = folder
        self.is_cut = False  # from the other nodes, both ways
        self.level = LEVEL_FIRST  # the feature level, as this node has heard
        self._store = store
        self._fsync = fsync
        self._ttl_ms = ttl_ms
        self._clean_interval_ms = clean_interval_ms
        self._compact_interval_ms = compact_interval_ms
        self._in_flight_max = in_flight_max
        self._clients: dict[str, InternalClient] = {}

    async def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        clock = SystemClock()
        self.catalog = StoredCatalog(self._store)
        await self.catalog.start()
        self.tasks = MoveTasks(self._store)
        await self.tasks.start()
        self.pool = ThreadPoolExecutor(2)
        context = BrokerContext(
            folder=self.folder,
            clock=clock,
            pool=self.pool,
            disk=DiskBudget(self.folder, clock, reserve_bytes=1),
            catalog=self.catalog,
            meter=Meter(),
            log=LogConfig(segment_bytes_max=64 * 1_024),
            fsync_default=self._fsync,
            fsync_interval_ms=20,
            clean_interval_ms=self._clean_interval_ms,
            compact_interval_ms=self._compact_interval_ms,
            scrub_bytes_per_second=1 << 30,
            in_flight_max=self._in_flight_max,
        )
        self.broker = Broker(context, self.tasks, entropy=secrets.token_bytes, is_clustered=True)
        await self.broker.start()
        self.view = ClusterView(self._store)
        await self.view.start()
        answers = CallHandlers()
        self.listener = InternalListener(answers, NodeEnd(str(self.number), "test"))
        bound = await self.listener.start("127.0.0.1", 0)
        entry = NodeEntry(self.number, f"n{self.number}", bound, folder_id=str(self.folder))
        self.membership = Membership(
            self._store,
            entry,
            clock=clock,
            on_lost=lambda: self.replicators.lost_lease(),
            ttl_ms=self._ttl_ms,
        )
        self.replicators = Replicators(
            context,
            self.broker.partitions,
            store=self._store,
            view=self.view,
            membership=self.membership,
            peer=self._peer,
            level=lambda: self.level,
        )
        self.replicators.register(answers)
        await self.replicators.start()

    def _peer(self, node: int) -> Caller:
        entry = self.view.nodes.get(node)
        if entry is None or self.is_cut:
            raise Unreachable(f"Node {node} is not there.")
        client = self._clients.get(entry.internal)
        if client is None:
            host, _, port = entry.internal.rpartition(":")
            client = self._clients[entry.internal] = InternalClient(
                host, int(port), NodeEnd(str(self.number), "test")
            )
        return client

    async def stop(self) -> None:
        await self.replicators.leave()
        await self.replicators.stop()
        await self._close()

    async def kill(self) -> None:
        """As a killed process: nothing is synced, written down or given back."""
        self.replicators._is_stopped = True
        await self.listener.drain(seconds_max=0)
        for task in (*self.replicators._jobs,):
            task.cancel()
        await self.replicators._fetcher.stop()
        await self.replicators._damaged.stop()
        held = self.membership._task
        if held is not None:
            held.cancel()
        for replicator in self.replicators.all():
            if replicator.partition is not None:
                await replicator.partition.journal.end(Draining("killed"))
            await replicator.follower_log.rest()
            replicator.log.close(clean=False)
        self.replicators._replicas.clear()
        await self._store.revoke(self.membership.lease)
        await self._close()

    async def _close(self) -> None:
        await self.listener.drain(seconds_max=0)
        for client in self._clients.values():
            await client.close()
        self._clients.clear()
        await self.view.stop()
        await self.broker.stop()
        await self.tasks.stop()
        await self.catalog.stop()
        self.pool.shutdown()

    def replica(self, key: PartitionKey) -> Replicator:
        found = self.replicators.find(key)
        assert found is not None, f"{key} is not on node {self.number}"
        return found


class Cluster:
    def __init__(self, store: Store, nodes: dict[int, ClusterNode]) -> None:
        self.store = store
        self.nodes = nodes

    async def topic(
        self,
        name: str = "q",
        *,
        replicas: Sequence[int] = (1, 2, 3),
        in_sync_min: int = 2,
        kind: Kind = Kind.STANDARD,
        configs: dict[str, str] | None = None,
        partition_count: int = 1,
    ) -> tuple[Topic, PartitionKey]:
        """With one partition, led by the first of its replicas; of several, each is led by the
        next one in turn, and the first is given back."""
        first = self.nodes[replicas[0]]
        topic = await first.catalog.create(
            Topic(
                topic_id=secrets.token_hex(16),
                account="000000000000",
                region="us-east-1",
                name=name,
                kind=kind,
                partition_count=partition_count,
                created_at_ms=0,
                modified_at_ms=0,
                receipt_key=b"k" * 32,
                configs=configs or {},
            )
        )
        for index in range(partition_count):
            key = PartitionKey(topic.topic_id, index)
            leader = self.nodes[replicas[index % len(replicas)]]
            row = PartitionRow(
                tuple(replicas),
                frozenset(replicas),
                leader=leader.number,
                leader_incarnation=leader.membership.incarnation,
                epoch=1,
                in_sync_min=in_sync_min,
            )
            await self.store.put(partition_key(key), encode_entry(row), if_version=0)
            await until(partial(self.is_led, leader, key))
            for number in replicas:
                await until(partial(self.is_held, self.nodes[number], key))
        return topic, PartitionKey(topic.topic_id, 0)

    def is_held(self, node: ClusterNode, key: PartitionKey) -> bool:
        return node.replicators.find(key) is not None

    def is_led(self, node: ClusterNode, key: PartitionKey) -> bool:
        found = node.replicators.find(key)
        return found is not None and found.partition is not None

    def row(self, key: PartitionKey) -> PartitionRow:
        return max(
            (node.view.rows[key] for node in self.nodes.values() if key in node.view.rows),
            key=lambda view: view.revision,
        ).row

    async def elect(self, key: PartitionKey, node: int, *, is_awaited: bool = True) -> None:
        """This one leads from now on, as a manager would have it."""
        chosen = self.nodes[node]
        while True:
            await chosen.view.refresh_rows()
            view = chosen.view.rows[key]
            row = view.row
            preferred = msgspec.structs.replace(
                row, replicas=(node, *(one for one in row.replicas if one != node))
            )
            change = elect(view._replace(row=preferred), {node: chosen.membership.incarnation})
            assert change is not None, f"{node} cannot lead {row}"
            await chosen.view.propose(key, change)
            break
        if is_awaited:
            await until(lambda: self.is_led(chosen, key))

    async def sent(self, node: int, topic: Topic, *bodies: str) -> list[int]:
        broker = self.nodes[node].broker
        found = await broker.call(Append(topic, 0, [message(body) for body in bodies]))
        return [one.offset for one in found]

    def logs(self, key: PartitionKey) -> dict[int, bytes]:
        """What each node's log holds, byte by byte."""
        return {
            number: b"".join(_read_all(node.replica(key)))
            for number, node in self.nodes.items()
            if node.replicators.find(key) is not None
        }

    async def alike(self, key: PartitionKey) -> None:
        """Waits until all logs hold the same, to the byte."""
        await until(lambda: len(set(self.logs(key).values())) == 1)


def message(body: str, **more: object) -> Message:
    return Message(message_id=secrets.token_hex(16), body=body.encode(), **more)  # type: ignore[arg-type]


def _read_all(replicator: Replicator) -> list[bytes]:
    log, found = replicator.log, []
    offset = log.start_offset
    while offset < log.end_offset:
        batches = log.read(offset, bytes_max=1 << 20)
        found += batches
        offset += sum(int.from_bytes(one[23:27], "big") + 1 for one in batches)
    return found


@asynccontextmanager
async def cluster(
    folder: Path,
    *,
    nodes: int = 3,
    fsync: Fsync = Fsync.ALWAYS,
    ttl_ms: int = 6_000,
    clean_interval_ms: int = 3_600_000,
    compact_interval_ms: int = 3_600_000,
    in_flight_max: int = IN_FLIGHT_MAX,
) -> AsyncIterator[Cluster]:
    store = await SqliteStore.open(folder / "store.sqlite3")
    found = {
        number: ClusterNode(
            number,
            folder / f"n{number}",
            store,
            fsync=fsync,
            ttl_ms=ttl_ms,
            clean_interval_ms=clean_interval_ms,
            compact_interval_ms=compact_interval_ms,
            in_flight_max=in_flight_max,
        )
        for number in range(1, nodes + 1)
    }
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        for node in found.values():
            await node.start()
            stack.push_async_callback(_stop_if_running, node)
        await until(lambda: all(len(node.view.nodes) == nodes for node in found.values()))
        yield Cluster(store, found)


async def _stop_if_running(node: ClusterNode) -> None:
    if node.membership.incarnation and not node.replicators._is_stopped:
        await node.replicators.stop()
        await node._close()


async def settles(work: Awaitable[object]) -> object:
    """A call that must come back within a bounded time."""
    async with asyncio.timeout(WAIT_SECONDS):
        return await work


__all__ = ["Cluster", "ClusterNode", "NotLeader", "cluster", "message", "settles", "until"]
