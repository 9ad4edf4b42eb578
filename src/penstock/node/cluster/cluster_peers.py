"""Connections to the other nodes of the cluster, by number: each at its registered address,
verified by the name in its certificate."""

from collections.abc import Callable

from penstock.calls.internal.client import InternalClient
from penstock.calls.internal.connection import NodeCertificates, NodeEnd
from penstock.calls.remote.broker import no_outcomes
from penstock.membership.cluster_view import ClusterView
from penstock.metadata.cluster_entries import NodeEntry
from penstock.model.levels import Levels
from penstock.node.configuration.addresses import parse_listen
from penstock.wire.internal.calls import Caller
from penstock.wire.internal.faults import Unreachable


class ClusterPeers:
    """One connection per node and purpose, opened by the first call. Calls that wait for long use
    separate connections, so that they do not delay others."""

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
        """``secret``: shared by the workers of a server; None: not a worker. ``spawn`` closes a
        client that is no longer needed."""
        self._view = view
        self._own_name = own_name
        self._cluster = cluster
        self._levels = levels
        self._secret = secret
        self._tls = None if certificates is None else certificates.calling
        self._spawn = spawn
        self._clients: dict[tuple[int, str], tuple[NodeEntry, InternalClient]] = {}
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
            self._spawn(known[1])
        host, port = parse_listen(entry.internal)
        client = InternalClient(
            host,
            port,
            NodeEnd(self._own_name, self._cluster, levels=self._levels, secret=self._secret),
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
