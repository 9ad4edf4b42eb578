"""Connections to metadata nodes, and the check that they use the expected store.

A node belongs to one store. It keeps the id of the first store that replied, and from then on
rejects metadata nodes with another one: an address may be mistyped, or two metadata processes may
each have a store.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.calls.internal.client import FirstReachable, InternalClient
from penstock.calls.internal.connection import NodeCertificates, NodeEnd
from penstock.node.configuration.addresses import NodeAddress
from penstock.node.process.node_setup import NodeSetup
from penstock.wire.internal.calls import Caller
from penstock.wire.internal.faults import HelloRefused, Unreachable
from penstock.wire.internal.frame import Hello

FILE_NAME = "metadata-id"
_FEATURE = "store="


def store_feature(store_id: str) -> str:
    """Return the feature by which a metadata node names its store in its hello."""
    return _FEATURE + store_id


class ExpectedStore:
    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE_NAME
        try:
            self.store_id = self._file.read_text("ascii").strip()
        except FileNotFoundError:
            self.store_id = ""

    def check(self, hello: Hello) -> None:
        """For a client's ``check_hello``. Raises HelloRefused."""
        feature = next((one for one in hello.features if one.startswith(_FEATURE)), "")
        found = feature.removeprefix(_FEATURE)
        if not found:
            raise HelloRefused(f"Node {hello.node_id} is not a metadata node.")
        if not self.store_id:
            new = self._file.with_suffix(".new")
            new.write_text(found + "\n", "ascii", errors="replace")
            new.replace(self._file)
            self.store_id = found
        elif found != self.store_id:
            raise HelloRefused(
                f"Node {hello.node_id} uses another store ({found}) than the one this node belongs"
                f" to ({self.store_id}). Only one of several metadata processes keeps the store;"
                " start the others with --metadata and its address"
            )


class Peers:
    """One connection per node, opened by the first call."""

    def __init__(
        self,
        setup: NodeSetup,
        certificates: NodeCertificates | None,
        *,
        check_hello: Callable[[Hello], None],
    ) -> None:
        self._setup = setup
        self._tls = None if certificates is None else certificates.calling
        self._check_hello = check_hello
        self._clients: dict[NodeAddress, InternalClient] = {}  # at most those of the configuration

    def any_of(self, addresses: Sequence[NodeAddress]) -> Caller:
        """Return a caller that uses any of several equivalent nodes."""
        clients = [self._client(address) for address in addresses]
        return FirstReachable(lambda: clients)

    def by_name(self, addresses: Sequence[NodeAddress]) -> Callable[[str], Caller]:
        named = {address.name: address for address in addresses}

        def find(name: str) -> Caller:
            if name not in named:
                raise Unreachable(f"Node {name} is not among the members.")
            return self._client(named[name])

        return find

    def _client(self, address: NodeAddress) -> InternalClient:
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = InternalClient(
                address.host,
                address.port,
                NodeEnd(
                    self._setup.name,
                    self._setup.config.internal.cluster,
                    check_hello=self._check_hello,
                    secret=self._setup.worker_secret,
                ),
                node_id=address.name or None,
                tls=self._tls,
            )
        return client

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()
