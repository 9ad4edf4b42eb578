"""Leaders of partitions, and connections to the other nodes of the cluster."""

import asyncio
from collections.abc import Mapping, Sequence

from penstock.calls.internal.client import InternalClient
from penstock.calls.internal.connection import NodeEnd
from penstock.calls.remote.broker import no_outcomes
from penstock.membership.cluster_view import ClusterView
from penstock.metadata.cluster_entries import NodeEntry, PartitionKey
from penstock.model.levels import Levels
from penstock.model.topic import Topic
from penstock.node.configuration.cluster_config import parse_listen
from penstock.node.process.node_setup import NodeSetup
from penstock.replication.row import View
from penstock.wire.internal.calls import Caller
from penstock.wire.internal.faults import Unreachable

HINTS_MAX = 10_000  # the oldest are dropped


class ClusterRoutes:
    """Leaders, from the rows that this node knows, and from hints of other nodes, which may be
    newer than its watch. Implements ``calls.routing.Routes``."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._hints: dict[tuple[str, int], tuple[int, int]] = {}
        self._waiting: set[asyncio.Future[None]] = set()
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
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait((future,), timeout=timeout_s)
        finally:
            self._waiting.discard(future)

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
        if self._waiting:
            waiting, self._waiting = self._waiting, set()
            for future in waiting:
                if not future.done():
                    future.set_result(None)


class ClusterPeers:
    """One connection per node and purpose, opened by the first call, to its registered address and
    verified by the name in its certificate. Calls that wait for long use separate connections, so
    that they do not delay others."""

    def __init__(self, view: ClusterView, setup: NodeSetup, levels: Levels) -> None:
        self._view = view
        self._setup = setup
        self._levels = levels
        self._clients: dict[tuple[int, str], tuple[NodeEntry, InternalClient]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.passed_on = no_outcomes()  # of calls served by other nodes
        view.on_nodes(self._forget_gone)

    @property
    def connection_count(self) -> int:
        return sum(client.is_connected for _, client in self._clients.values())

    def caller(self, node: int, purpose: str = "calls") -> Caller:
        """Raises Unreachable for a node that is not registered."""
        entry = self._view.nodes.get(node)
        if entry is None:
            raise Unreachable(f"Node {node} is not registered.")
        known = self._clients.get((node, purpose))
        if known is not None and known[0].internal == entry.internal:
            return known[1]
        if known is not None:
            self._close_later(known[1])
        setup, nodes = self._setup, self._setup.certificates.nodes
        client = InternalClient(
            *parse_listen(entry.internal),
            NodeEnd(
                setup.name,
                setup.config.internal.cluster,
                levels=self._levels,
                secret=setup.worker_secret,
            ),
            node_id=entry.name,
            tls=None if nodes is None else nodes.calling,
        )
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
