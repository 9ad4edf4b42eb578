"""The other nodes of the cluster, as this one calls them."""

from collections.abc import Callable, Sequence

from penstock.net.internal import FirstReachable, InternalClient, NodeCertificates
from penstock.node.addresses import Place
from penstock.wire.internal.calls import Caller
from penstock.wire.internal.faults import Unreachable
from penstock.wire.internal.frame import Hello


class Peers:
    """One connection to each, made when there is something to say."""

    def __init__(
        self,
        *,
        own_name: str,
        cluster: str,
        certificates: NodeCertificates | None,
        check_hello: Callable[[Hello], None],
        secret: bytes | None,
    ) -> None:
        """``secret``: the one that workers of one server share; None: this is not a worker."""
        self._own_name = own_name
        self._cluster = cluster
        self._tls = None if certificates is None else certificates.calling
        self._check_hello = check_hello
        self._secret = secret
        self._clients: dict[Place, InternalClient] = {}  # as many as the configuration names

    def any_of(self, places: Sequence[Place]) -> Caller:
        """Those that answer alike."""
        clients = [self._client(place) for place in places]
        return FirstReachable(lambda: clients)

    def by_name(self, places: Sequence[Place]) -> Callable[[str], Caller]:
        named = {place.name: place for place in places}

        def find(name: str) -> Caller:
            place = named.get(name)
            if place is None:
                raise Unreachable(f"Node {name} is not among the members.")
            return self._client(place)

        return find

    def _client(self, place: Place) -> InternalClient:
        client = self._clients.get(place)
        if client is None:
            client = self._clients[place] = InternalClient(
                place.host,
                place.port,
                own_id=self._own_name,
                cluster_id=self._cluster,
                node_id=place.name or None,
                tls=self._tls,
                check_hello=self._check_hello,
                secret=self._secret,
            )
        return client

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()
