"""A process with the metadata role only: the store, the service over it, and a listener for other
nodes.

One metadata node keeps the store, in SQLite in its data folder. Any number of others may be started
with its address (``--metadata``): they hold a copy, serve reads and watches from it, and pass
changes on. While the node with the store is not reachable, the others keep serving reads and report
for how long they have heard nothing.
"""

import asyncio
import logging
from collections.abc import Iterable

from penstock.calls.internal.connection import NodeEnd
from penstock.calls.internal.listener import InternalListener
from penstock.metadata.security.identities import NewKey
from penstock.metadata.serving.remote_store import RemoteConfig, RemoteStore
from penstock.metadata.serving.ring import Member
from penstock.metadata.serving.service import MetadataConfig, MetadataService
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Store
from penstock.metadata.store_id import store_id
from penstock.model.troubles import metadata_away
from penstock.node.configuration.addresses import parse_listen, parse_node_addresses
from penstock.node.listening.binding import binding
from penstock.node.listening.certificates import CertificateKeeper
from penstock.node.listening.http_listener import open_admin
from penstock.node.metadata.metadata_admin import MetadataAdmin
from penstock.node.metadata.metadata_link import CALL_MS, start_when_there
from penstock.node.metadata.service_peers import ExpectedStore, Peers, store_feature
from penstock.node.process.health_watch import watch_loop
from penstock.node.process.node_setup import NodeSetup
from penstock.telemetry import families
from penstock.telemetry.exposition import Sample
from penstock.telemetry.families import Family
from penstock.wire.internal.calls import CallHandlers

log_ = logging.getLogger(__name__)

DRAIN_SECONDS_MAX = 5.0
AWAY_MS = 10_000  # time without the node that has the store until health checks report it


class MetadataNode:
    def __init__(
        self, setup: NodeSetup, certificates: CertificateKeeper, *, is_auth_on: bool
    ) -> None:
        config = setup.config
        self.is_auth_on = is_auth_on
        self.root_key: NewKey | None = None
        self.http_url = ""
        self._setup = setup
        self._certificates = certificates
        self._members = parse_node_addresses(config.metadata.members)
        self._expected = ExpectedStore(setup.folder.path)
        self._peers = Peers(setup, certificates.nodes, check_hello=self._expected.check)
        self._remote: RemoteStore | None = None
        self._jobs: list[asyncio.Task[None]] = []

    async def start(self, stop: asyncio.Event) -> None:
        # First: while the node waits for another one, health checks show it.
        await self._start_admin()
        await self._start_service(stop)
        await self._listen()
        self._report()
        self._jobs = [
            asyncio.create_task(watch_loop(self._setup.meter, self._report), name="health watch")
        ]
        if self._certificates.has_any:
            watch = self._certificates.watch()
            self._jobs.append(asyncio.create_task(watch, name="certificate watch"))
        self._setup.health.ready()

    async def _start_service(self, stop: asyncio.Event) -> None:
        config = self._setup.config.metadata
        self._store = await self._open_store()
        self._service = MetadataService(
            self._store,
            node_id=self._setup.name,
            members=lambda: [Member(member.name) for member in self._members],
            peer=self._peers.by_name(self._members),
            config=MetadataConfig(whole_entries_max=config.whole_topics_max),
            store_stale_ms=lambda: 0 if self._remote is None else self._remote.staleness_ms,
        )
        await start_when_there(self._service.start, config.service, stop)
        if self._remote is None:
            self._expected.store_id = await store_id(self._store, self._setup.entropy)
        self._store_feature = store_feature(self._expected.store_id)

    async def _open_store(self) -> Store:
        addresses = parse_node_addresses(self._setup.config.metadata.service)
        if not addresses:
            return await SqliteStore.open(self._setup.folder.metadata_path)
        self._remote = RemoteStore(
            self._peers.any_of(addresses),
            clock=self._setup.clock,
            config=RemoteConfig(call_ms=CALL_MS, is_relay=True),
        )
        return self._remote

    async def _listen(self) -> None:
        internal = self._setup.config.internal
        answers = CallHandlers()
        self._service.register(answers)
        nodes = self._certificates.nodes
        self._listener = InternalListener(
            answers,
            NodeEnd(
                self._setup.name,
                internal.cluster,
                features=(self._store_feature,),
                secret=self._setup.worker_secret,
            ),
        )
        host, port = parse_listen(internal.listen)
        with binding("other nodes", "--internal", host, port):
            self._bound = await self._listener.start(
                host, port, tls=None if nodes is None else nodes.listening
            )
        self._setup.endpoints["internal"] = self._bound

    async def _start_admin(self) -> None:
        api = MetadataAdmin(self._setup, self._levels, is_auth_on=self.is_auth_on)
        self._admin, self._admin_url = await open_admin(
            self._setup, api.handle, self._certificates.context, is_open=api.is_open
        )

    @property
    def ready_text(self) -> str:
        return f"internal={self._bound} admin={self._admin_url}"

    def freeze(self) -> None:
        """Do nothing: there are too few long-lived objects."""

    def reread(self) -> None:
        self._certificates.renew()

    async def drain(self) -> None:
        self._setup.health.drain()
        for job in self._jobs:
            job.cancel()
        # The service first: it replies to waiting watches, so that connections can end.
        await self._service.stop()
        await self._listener.drain(seconds_max=DRAIN_SECONDS_MAX)
        await self._admin.drain(seconds_max=1.0)
        await self._peers.close()
        await self._store.close()
        self._setup.folder.release()

    # ── Health and metrics ───────────────────────────────────────────────────────────────────

    def _report(self) -> None:
        reason = self._service.trouble
        if self._remote is not None and self._remote.staleness_ms > AWAY_MS:
            reason = self._remote.trouble or "the node with the store has lost it"
        found = [] if reason is None else [metadata_away(reason)]
        found += self._certificates.troubles(now_ms=self._setup.clock.wall_ms())
        self._setup.health.show(found)

    def _levels(self) -> Iterable[tuple[Family, Sample]]:
        yield from self._certificates.samples()
        if not self._setup.health.is_ready:
            return
        service = self._service
        yield families.METADATA_TOPICS, ((), service.topics.entry_count)
        yield families.METADATA_HELD, ((), service.topics.held_count)
        yield families.METADATA_WATCHERS, ((), service.watcher_count)
        yield families.METADATA_FORWARDED, ((), service.forwarded_count)
        yield families.METADATA_FALLBACKS, ((), service.fallback_count)
        yield families.CONNECTIONS, ((), len(self._listener.connections))
        stale_ms = 0 if self._remote is None else self._remote.staleness_ms
        yield families.METADATA_STALENESS, ((), stale_ms / 1_000)
