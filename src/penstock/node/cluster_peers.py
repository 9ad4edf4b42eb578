"""The other nodes of the cluster, as this one calls them: by number, at the address that each has
registered, under the name in its certificate."""

from collections.abc import Callable

from penstock.metadata.cluster_entries import NodeEntry
from penstock.metadata.cluster_view import ClusterView
from penstock.model.errors import PenstockError
from penstock.model.levels import Levels
from penstock.net.internal import InternalClient, NodeCertificates
from penstock.node.addresses import parse_listen
from penstock.wire.internal.calls import Call, Caller, Q, R
from penstock.wire.internal.faults import (
    DeadlineExceeded,
    MalformedFrame,
    OutcomeUnknown,
    Unreachable,
)

DONE, REFUSED, UNREACHABLE, UNKNOWN = "done", "refused", "unreachable", "unknown"


class ClusterPeers:
    """One connection to each for each purpose, made when there is something to say. Calls that wait
    for long have another one than those that do not, so that neither is in the other's way."""

    def __init__(
        self,
        view: ClusterView,
        *,
        own_name: str,
        cluster: str,
        certificates: NodeCertificates | None,
        levels: Levels,
        secret: bytes | None,
        spawn: Callable[[InternalClient], None],
    ) -> None:
        """``secret``: the one that workers of one server share; None: this is not a worker.
        ``spawn`` closes a client that is not needed any more."""
        self._view = view
        self._own_name = own_name
        self._cluster = cluster
        self._levels = levels
        self._secret = secret
        self._tls = None if certificates is None else certificates.calling
        self._spawn = spawn
        self._clients: dict[tuple[int, str], tuple[NodeEntry, InternalClient]] = {}
        # Calls of clients that another node carries out, by what became of them.
        self.passed_on = dict.fromkeys((DONE, REFUSED, UNREACHABLE, UNKNOWN), 0)
        view.on_nodes(self._forget_gone)

    @property
    def connection_count(self) -> int:
        return sum(client.is_connected for _, client in self._clients.values())

    def caller(self, node: int, purpose: str = "calls") -> Caller:
        """Raises Unreachable for a node that is not registered."""
        entry = self._view.nodes.get(node)
        if entry is None:
            raise Unreachable(f"Node {node} is not there.")
        known = self._clients.get((node, purpose))
        if known is not None and known[0].internal == entry.internal:
            return known[1]
        if known is not None:
            self._spawn(known[1])
        host, port = parse_listen(entry.internal)
        client = InternalClient(
            host,
            port,
            own_id=self._own_name,
            cluster_id=self._cluster,
            levels=self._levels,
            node_id=entry.name,
            tls=self._tls,
            secret=self._secret,
        )
        self._clients[node, purpose] = (entry, client)
        return client

    def _forget_gone(self) -> None:
        for key in [key for key in self._clients if key[0] not in self._view.nodes]:
            _, client = self._clients.pop(key)
            self._spawn(client)

    async def close(self) -> None:
        for _, client in self._clients.values():
            await client.close()
        self._clients.clear()


class NodeCaller:
    """One node, wherever it is at the moment."""

    def __init__(self, peers: ClusterPeers, node: int, purpose: str = "calls") -> None:
        self._peers = peers
        self._node = node
        self._purpose = purpose

    async def call(self, call: Call[Q, R], request: Q, *, timeout_ms: int) -> R:
        counts = self._peers.passed_on
        try:
            caller = self._peers.caller(self._node, self._purpose)
            answer = await caller.call(call, request, timeout_ms=timeout_ms)
        except PenstockError as error:
            counts[_outcome(error)] += 1
            raise
        counts[DONE] += 1
        return answer


def _outcome(error: PenstockError) -> str:
    if isinstance(error, OutcomeUnknown | DeadlineExceeded | MalformedFrame):
        return UNKNOWN
    return UNREACHABLE if isinstance(error, Unreachable) else REFUSED
