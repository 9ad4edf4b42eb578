"""The other nodes of the cluster, as this one calls them: by number, at the address that each has
registered, under the name in its certificate."""

from collections.abc import Callable

from penstock.metadata.cluster_entries import NodeEntry
from penstock.metadata.cluster_view import ClusterView
from penstock.net.internal import InternalClient, NodeCertificates
from penstock.node.addresses import parse_listen
from penstock.wire.internal.calls import Call, Caller, Q, R
from penstock.wire.internal.faults import Unreachable


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
        spawn: Callable[[InternalClient], None],
    ) -> None:
        """``spawn`` closes a client that is not needed any more."""
        self._view = view
        self._own_name = own_name
        self._cluster = cluster
        self._tls = None if certificates is None else certificates.calling
        self._spawn = spawn
        self._clients: dict[tuple[int, str], tuple[NodeEntry, InternalClient]] = {}
        view.on_nodes(self._forget_gone)

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
            node_id=entry.name,
            tls=self._tls,
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
        caller = self._peers.caller(self._node, self._purpose)
        return await caller.call(call, request, timeout_ms=timeout_ms)
