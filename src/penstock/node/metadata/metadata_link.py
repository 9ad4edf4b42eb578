"""Access of a node to the metadata: SQLite in this process, etcd, or calls to a metadata service.

Each kind of access provides a catalog for clients' requests, the topics for the broker, and a store
for identities, data keys and producer ids. ``own_store``, the store of this node or of its cluster,
contains the tasks that move dead letters."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.calls.internal.client import FirstReachable, InternalClient
from penstock.metadata.serving.remote_store import RemoteCatalog, RemoteConfig
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Store
from penstock.metadata.topics.catalog import TOPICS_PREFIX, StoredCatalog
from penstock.model.errors import Overloaded, PenstockError, SetupError
from penstock.model.ports import Catalog
from penstock.node.configuration.cluster_config import NodeAddress, parse_node_addresses
from penstock.node.configuration.config import Config
from penstock.node.listening import make_client
from penstock.node.process.folder import DataFolder, replace_file
from penstock.node.process.node_setup import NodeSetup
from penstock.telemetry import families
from penstock.telemetry.families import Family, Sample
from penstock.wire.internal.calls import Caller
from penstock.wire.internal.faults import HelloRefused, Unreachable
from penstock.wire.internal.frame import Hello

if TYPE_CHECKING:
    from penstock.metadata.etcd.store import EtcdStore

log_ = logging.getLogger(__name__)

FILE_NAME = "metadata-id"
STORE_FEATURE = "store="  # before the store id in the hello of a metadata node
RETRY_SECONDS = 0.5  # delay before the metadata service is called again at the start
REASONS_MAX = 8  # different reasons for waiting that are logged
# Timeout of calls to etcd while the node starts: an etcd that is slow for a while must not end it.
START_CALL_SECONDS = 20.0
CALL_MS = 2_000  # less than the timeout of a frontend for the metadata


class ExpectedStore:
    """The id of the store to which a node belongs. A file keeps the id of the first store that
    replied; metadata nodes with another store are rejected, as an address may be mistyped."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE_NAME
        try:
            self.store_id = self._file.read_text("ascii").strip()
        except FileNotFoundError:
            self.store_id = ""

    def check(self, hello: Hello) -> None:
        """Raise HelloRefused if a metadata node has another store."""
        feature = next((one for one in hello.features if one.startswith(STORE_FEATURE)), "")
        found = feature.removeprefix(STORE_FEATURE)
        if not found:
            raise HelloRefused(f"Node {hello.node_id} is not a metadata node.")
        if not self.store_id:
            replace_file(self._file, (found + "\n").encode("ascii", "replace"))
            self.store_id = found
        elif found != self.store_id:
            raise HelloRefused(
                f"Node {hello.node_id} uses another store ({found}) than this node"
                f" ({self.store_id}). Only one of several metadata nodes keeps the store; start the"
                " others with --metadata and the address of that node"
            )


class Peers:
    """Connections to metadata nodes, each opened by the first call."""

    def __init__(self, setup: NodeSetup, check_hello: Callable[[Hello], None]) -> None:
        self._setup = setup
        self._check_hello = check_hello
        self._clients: dict[NodeAddress, InternalClient] = {}

    def any_of(self, addresses: Sequence[NodeAddress]) -> Caller:
        clients = [self._client(address) for address in addresses]
        return FirstReachable(lambda: clients)

    def by_name(self, addresses: Sequence[NodeAddress]) -> Callable[[str], Caller]:
        named = {address.name: address for address in addresses}

        def find(name: str) -> Caller:
            if name not in named:
                raise Unreachable(f"Node {name} is not one of metadata.members.")
            return self._client(named[name])

        return find

    def _client(self, address: NodeAddress) -> InternalClient:
        client = self._clients.get(address)
        if client is None:
            host, port, name = address
            client = make_client(
                self._setup, host, port, name or None, check_hello=self._check_hello
            )
            self._clients[address] = client
        return client

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()


class GivenUp(PenstockError):
    """Raised if the node is stopped while it waits for the metadata service."""


class MetadataLink(ABC):
    """Access to the metadata. The constructor or ``start`` of a subclass sets the attributes."""

    is_remote = True
    catalog: Catalog  # for requests of clients; raises Throttled if a missing topic may exist
    # From memory only, for the broker and for Kafka, whose clients retry if a topic is missing.
    topics: StoredCatalog
    store: Store
    own_store: Store

    def __init__(self, setup: NodeSetup, *, partitions_max: int) -> None:
        self._setup = setup
        self._partitions_max = partitions_max

    @abstractmethod
    async def start(self, stop: asyncio.Event) -> None:
        """Load all topics into memory. Raises GivenUp if ``stop`` is set before that is done."""

    def started(self) -> None:  # noqa: B027 - see EtcdMetadata
        """Switch from the long timeout during the start to the normal timeout of calls."""

    def _use(self, store: Store) -> None:
        self.store = self.own_store = store
        self.catalog = self.topics = StoredCatalog(
            store,
            recreate_guard_ms=self._setup.config.queue.recreate_guard_ms,
            partitions_max=self._partitions_max,
        )

    async def stop(self) -> None:
        await self.topics.stop()
        await self.store.close()

    @property
    def trouble(self) -> str | None:
        return self.topics.trouble

    def on_back(self, listener: Callable[[], None]) -> None:  # noqa: B027 - see RemoteMetadata
        """Call ``listener`` when the metadata service replies again after an outage."""

    def samples(self) -> Iterable[tuple[Family, Sample]]:
        return ()


class OwnMetadata(MetadataLink):
    """The metadata in SQLite, in the data folder of this node."""

    is_remote = False

    async def start(self, stop: asyncio.Event) -> None:  # noqa: ARG002
        self._use(await SqliteStore.open(self._setup.folder.metadata_path))
        await self.topics.start()


class EtcdMetadata(MetadataLink):
    async def start(self, stop: asyncio.Event) -> None:
        await check_folder(self._setup.folder)
        config = self._setup.config

        async def open_store() -> None:
            self._etcd = await open_etcd(config)
            self._call_seconds = self._etcd.call_seconds
            self._etcd.call_seconds = START_CALL_SECONDS

        await start_when_there(open_store, config.cluster.etcd, stop)
        for method, durations in self._etcd.durations.items():
            self._setup.meter.register_histogram(
                families.STORE_DURATION, (method.name.lower(),), durations
            )
        self._use(self._etcd)
        await start_when_there(self.topics.start, config.cluster.etcd, stop)

    def started(self) -> None:
        self._etcd.call_seconds = self._call_seconds

    @property
    def trouble(self) -> str | None:
        return self.topics.trouble or self._etcd.trouble

    def samples(self) -> Iterable[tuple[Family, Sample]]:
        yield families.METADATA_STALENESS, ((), self._etcd.staleness_ms / 1_000)


async def open_etcd(config: Config) -> "EtcdStore":
    try:
        from penstock.metadata.etcd.links import EtcdConfig
        from penstock.metadata.etcd.store import EtcdStore
    except ImportError:
        raise SetupError(
            "the package grpcio is not installed",
            "install it: pip install 'penstock[cluster]'",
            what="a cluster node needs more packages",
        ) from None
    cluster = config.cluster
    files = (cluster.etcd_ca, cluster.etcd_certificate, cluster.etcd_key)
    ca, cert, key = (Path(name) if name else None for name in files)
    return await EtcdStore.open(
        EtcdConfig(
            endpoints=tuple(str(place) for place in parse_node_addresses(cluster.etcd)),
            namespace=f"/penstock/{config.internal.cluster}",
            ca_path=ca,
            cert_path=cert,
            key_path=key,
        )
    )


async def check_folder(folder: DataFolder) -> None:
    """Raise SetupError if the folder has topics of a single node: a cluster would ignore them."""
    if folder.metadata_path.exists():
        store = await SqliteStore.open(folder.metadata_path)
        try:
            await _check_no_topics(
                store, folder, "use a separate folder for a cluster node: --data DIR"
            )
        finally:
            await store.close()


async def _check_no_topics(store: Store, folder: DataFolder, do: str) -> None:
    topics, _ = await store.list(TOPICS_PREFIX)
    if topics:
        raise SetupError(
            f"the data folder {folder.path} already contains metadata with {len(topics)} topics", do
        )


class RemoteMetadata(MetadataLink):
    def __init__(self, setup: NodeSetup, *, partitions_max: int) -> None:
        super().__init__(setup, partitions_max=partitions_max)
        config = setup.config
        self._peers = Peers(setup, ExpectedStore(setup.folder.path).check)
        self._remote = RemoteCatalog(
            self._peers.any_of(parse_node_addresses(config.metadata.service)),
            clock=setup.clock,
            config=RemoteConfig(call_ms=CALL_MS),
            recreate_guard_ms=config.queue.recreate_guard_ms,
            partitions_max=partitions_max,
        )
        self.catalog = self._remote
        self.topics = self._remote.stored
        self.store = self._remote.store

    async def start(self, stop: asyncio.Event) -> None:
        folder, config = self._setup.folder, self._setup.config
        if config.cluster.node:
            await check_folder(folder)
            self.own_store = self.store
        else:
            self.own_store = await SqliteStore.open(folder.metadata_path)
            await _check_no_topics(
                self.own_store,
                folder,
                "start it without --metadata, or move its metadata.sqlite3 and master key to the"
                " metadata service first",
            )
        await start_when_there(self._remote.start, config.metadata.service, stop)

    async def stop(self) -> None:
        await self._remote.stop()
        await self._peers.close()
        if self.own_store is not self.store:
            await self.own_store.close()

    @property
    def trouble(self) -> str | None:
        return self._remote.trouble

    def on_back(self, listener: Callable[[], None]) -> None:
        self._remote.store.on_back(listener)

    def samples(self) -> Iterable[tuple[Family, Sample]]:
        yield families.METADATA_STALENESS, ((), self._remote.store.staleness_ms / 1_000)


async def start_when_there(
    start: Callable[[], Awaitable[None]], service: str, stop: asyncio.Event
) -> None:
    """Call ``start`` repeatedly until it succeeds. Raises GivenUp if ``stop`` is set."""
    logged: set[str] = set()
    while True:
        try:
            await start()
        except Overloaded as error:
            reason = str(error)
            if reason not in logged and len(logged) < REASONS_MAX:
                logged.add(reason)
                log_.warning(
                    "waiting for the metadata service", extra={"service": service, "reason": reason}
                )
        else:
            return
        try:
            await asyncio.wait_for(stop.wait(), RETRY_SECONDS)
        except TimeoutError:
            continue
        raise GivenUp("the node was stopped while waiting for the metadata service")
