"""The metadata as the rest of a node has it: a store of its own, or calls to a metadata service.

Both look alike from here on: a catalog for clients' requests, the topics for the broker, and a
store for identities, data keys and producer ids. What belongs to the logs, the tasks that move dead
letters, is where the logs are: with this node, or with the cluster that it is a node of.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from penstock.metadata.catalog import TOPICS_MAX, TOPICS_PREFIX, StoredCatalog
from penstock.metadata.remote import RemoteCatalog
from penstock.metadata.remote_store import RemoteConfig
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Store
from penstock.model.errors import Overloaded, PenstockError, SetupError
from penstock.model.ports import Catalog
from penstock.net.internal import NodeCertificates
from penstock.node.addresses import parse_places
from penstock.node.basis import Basis
from penstock.node.config import Config
from penstock.node.folder import DataFolder
from penstock.node.peers import Peers
from penstock.node.store_pin import StorePin
from penstock.telemetry import families
from penstock.telemetry.exposition import Sample
from penstock.telemetry.families import Family

if TYPE_CHECKING:
    from penstock.metadata.etcd import EtcdStore

log_ = logging.getLogger(__name__)

RETRY_SECONDS = 0.5  # between questions whether the metadata service is there by now
REASONS_MAX = 8  # for not being there, that are said
CALL_MS = 2_000  # less than a frontend gives the metadata for an answer


class GivenUp(PenstockError):
    """Told to stop before there was anything to stop."""


class FolderTaken(SetupError):
    """The data folder has metadata of its own."""


class MetadataLink(Protocol):
    is_remote: bool

    @property
    def catalog(self) -> Catalog:
        """For requests of clients: says when it cannot know of a topic."""
        ...

    @property
    def topics(self) -> StoredCatalog:
        """The same from memory alone: for the broker, and for a protocol whose clients ask again
        when there is no such topic."""
        ...

    @property
    def store(self) -> Store: ...

    @property
    def own_store(self) -> Store: ...

    @property
    def trouble(self) -> str | None: ...

    async def start(self, stop: asyncio.Event) -> None:
        """Returns when topics are in memory."""
        ...

    async def stop(self) -> None: ...

    def on_back(self, listener: Callable[[], None]) -> None:
        """Called when the metadata answers again after it did not."""
        ...

    def samples(self) -> Iterable[tuple[Family, Sample]]: ...


class OwnMetadata:
    """Of a node that keeps the store itself."""

    is_remote = False

    def __init__(self, basis: Basis, *, partitions_max: int) -> None:
        self._path = basis.folder.metadata_path
        self._recreate_guard_ms = basis.config.queue.recreate_guard_ms
        self._partitions_max = partitions_max

    async def start(self, _stop: asyncio.Event) -> None:
        self.store: Store = await SqliteStore.open(self._path)
        self.own_store = self.store
        self.topics = StoredCatalog(
            self.store,
            recreate_guard_ms=self._recreate_guard_ms,
            partitions_max=self._partitions_max,
        )
        self.catalog: Catalog = self.topics
        await self.topics.start()

    async def stop(self) -> None:
        await self.topics.stop()
        await self.store.close()

    @property
    def trouble(self) -> str | None:
        return self.topics.trouble

    def on_back(self, listener: Callable[[], None]) -> None:
        """It is never away."""

    def samples(self) -> Iterable[tuple[Family, Sample]]:
        return ()


class EtcdMetadata:
    """Of a node of a cluster: everything is in etcd, and a copy of the topics is here."""

    is_remote = True

    def __init__(self, basis: Basis, *, partitions_max: int) -> None:
        self._config = basis.config
        self._partitions_max = partitions_max
        self._folder = basis.folder
        self._meter = basis.meter
        self._on_back: list[Callable[[], None]] = []

    async def start(self, stop: asyncio.Event) -> None:
        """Waits for etcd, and says so once for each reason. Raises GivenUp."""
        await check_folder(self._folder)
        cluster = self._config.cluster

        async def open_store() -> None:
            self._etcd = await open_etcd(self._config)

        await start_when_there(open_store, cluster.etcd, stop)
        for method, durations in self._etcd.durations.items():
            self._meter.register_histogram(
                families.STORE_DURATION, (method.name.lower(),), durations
            )
        self.store: Store = self._etcd
        self.own_store: Store = self._etcd
        self.topics = StoredCatalog(
            self.store,
            recreate_guard_ms=self._config.queue.recreate_guard_ms,
            partitions_max=self._partitions_max,
        )
        self.catalog: Catalog = self.topics
        await start_when_there(self.topics.start, cluster.etcd, stop)

    async def stop(self) -> None:
        await self.topics.stop()
        await self.store.close()

    @property
    def trouble(self) -> str | None:
        return self.topics.trouble or self._etcd.trouble

    def on_back(self, listener: Callable[[], None]) -> None:
        self._on_back.append(listener)

    def samples(self) -> Iterable[tuple[Family, Sample]]:
        yield families.METADATA_STALENESS, ((), self._etcd.staleness_ms / 1_000)


async def open_etcd(config: Config) -> "EtcdStore":
    """As configured. Raises StoreUnusable, and Overloaded when it is not there yet."""
    try:
        from penstock.metadata.etcd import EtcdStore
        from penstock.metadata.etcd_links import EtcdConfig
    except ImportError:
        raise SetupError(
            "the package grpcio is not installed",
            "install it: pip install 'penstock[cluster]'",
            what="a node of a cluster needs more packages",
        ) from None
    cluster = config.cluster
    return await EtcdStore.open(
        EtcdConfig(
            endpoints=tuple(str(place) for place in parse_places(cluster.etcd)),
            namespace=f"/penstock/{config.internal.cluster}",
            ca_path=_path(cluster.etcd_ca),
            cert_path=_path(cluster.etcd_certificate),
            key_path=_path(cluster.etcd_key),
        )
    )


def _path(text: str) -> Path | None:
    return Path(text) if text else None


async def check_folder(folder: DataFolder) -> None:
    """What a node by itself has written cannot be carried into a cluster by starting it. Raises
    FolderTaken."""
    if not folder.metadata_path.exists():
        return
    own = await SqliteStore.open(folder.metadata_path)
    topics, _ = await own.list(TOPICS_PREFIX)
    await own.close()
    if topics:
        raise FolderTaken(
            f"the data folder {folder.path} has a catalog of its own with {len(topics)} topics",
            "give a node of a cluster a folder of its own: --data DIR",
        )


class RemoteMetadata:
    """Of a node that asks a metadata service."""

    is_remote = True

    def __init__(
        self, basis: Basis, certificates: NodeCertificates | None, *, partitions_max: int
    ) -> None:
        config = basis.config
        self._folder = basis.folder
        self._is_clustered = bool(config.cluster.node)
        self._service = config.metadata.service
        self._pin = StorePin(basis.folder.path)
        self._peers = Peers(
            own_name=basis.name,
            cluster=config.internal.cluster,
            certificates=certificates,
            check_hello=self._pin.check,
            secret=basis.worker_secret,
        )
        # A broker has to know every topic there is, and there are never more.
        self._remote = RemoteCatalog(
            self._peers.any_of(parse_places(config.metadata.service)),
            clock=basis.clock,
            config=RemoteConfig(entries_max=TOPICS_MAX, call_ms=CALL_MS),
            recreate_guard_ms=config.queue.recreate_guard_ms,
            partitions_max=partitions_max,
        )
        self.catalog: Catalog = self._remote
        self.topics = self._remote.stored
        self.store: Store = self._remote.store
        self.own_store: Store

    async def start(self, stop: asyncio.Event) -> None:
        """Waits for the service, and says so once for each reason. Raises GivenUp."""
        if self._is_clustered:
            # Its logs are the cluster's, and so is what is done with them.
            await check_folder(self._folder)
            self.own_store = self.store
            await start_when_there(self._remote.start, self._service, stop)
            return
        self.own_store = await SqliteStore.open(self._folder.metadata_path)
        topics, _ = await self.own_store.list(TOPICS_PREFIX)
        if topics:
            raise FolderTaken(
                f"the data folder {self._folder.path} has a catalog of its own with {len(topics)}"
                " topics",
                "start it without --metadata, or hand its metadata.sqlite3 and master key to the"
                " metadata service first",
            )
        await start_when_there(self._remote.start, self._service, stop)

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
        yield families.METADATA_STALENESS, ((), self._remote.staleness_ms / 1_000)


async def start_when_there(
    start: Callable[[], Awaitable[None]], service: str, stop: asyncio.Event
) -> None:
    """Again until the metadata service is there. Raises GivenUp when told to stop meanwhile."""
    said: set[str] = set()  # several nodes may be away for several reasons
    while True:
        try:
            await start()
        except Overloaded as error:
            why = str(error)
            if why not in said and len(said) < REASONS_MAX:
                said.add(why)
                log_.warning(
                    "waiting for the metadata service", extra={"service": service, "why": why}
                )
        else:
            return
        try:
            await asyncio.wait_for(stop.wait(), RETRY_SECONDS)
        except TimeoutError:
            continue
        raise GivenUp("stopped before the metadata service was there")
