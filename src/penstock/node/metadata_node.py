"""A process with the metadata role alone: the store, the service over it, and a listener for other
nodes.

One metadata node keeps the store, in SQLite in its data folder. Any number of others may be started
with its address (``--metadata``): they hold a copy, answer questions and watches from it, and pass
changes on. Several that write need a store they share, which there is not yet. When the one with
the store is away, the others go on answering and say for how long they have heard nothing.
"""

import asyncio
import logging
from collections.abc import Iterable

from penstock.metadata.catalog import TOPICS_MAX
from penstock.metadata.identities import NewKey
from penstock.metadata.remote_store import RemoteConfig, RemoteStore
from penstock.metadata.ring import Member
from penstock.metadata.service import MetadataConfig, MetadataService
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Store
from penstock.metadata.store_id import store_id
from penstock.model.troubles import metadata_away
from penstock.net.internal import InternalListener
from penstock.node.addresses import parse_listen, parse_places
from penstock.node.basis import Basis
from penstock.node.binding import binding
from penstock.node.certificates import CertificateKeeper
from penstock.node.health_watch import watch_loop
from penstock.node.http_listener import open_admin
from penstock.node.metadata_admin import MetadataAdmin
from penstock.node.metadata_link import CALL_MS, start_when_there
from penstock.node.peers import Peers
from penstock.node.store_pin import StorePin, store_feature
from penstock.telemetry import families
from penstock.telemetry.exposition import Sample
from penstock.telemetry.families import Family
from penstock.wire.internal.calls import Answers

log_ = logging.getLogger(__name__)

DRAIN_SECONDS_MAX = 5.0
AWAY_MS = 10_000  # after so long without the node that has the store the probes say so


class MetadataNode:
    def __init__(self, basis: Basis, certificates: CertificateKeeper, *, is_auth_on: bool) -> None:
        config = basis.config
        self.is_auth_on = is_auth_on
        self.root_key: NewKey | None = None  # nobody is known here by a key
        self.http_url = ""
        self._basis = basis
        self._certificates = certificates
        self._members = parse_places(config.metadata.members)
        self._pin = StorePin(basis.folder.path)
        self._peers = Peers(
            own_name=basis.name,
            cluster=config.internal.cluster,
            certificates=certificates.nodes,
            check_hello=self._pin.check,
            secret=basis.worker_secret,
        )
        self._remote: RemoteStore | None = None
        self._jobs: list[asyncio.Task[None]] = []

    async def start(self, stop: asyncio.Event) -> None:
        # The admin address opens first: waiting for another node can be watched on it.
        await self._start_admin()
        await self._start_service(stop)
        await self._listen()
        self._report()
        self._jobs = [
            asyncio.create_task(watch_loop(self._basis.meter, self._report), name="health watch")
        ]
        if self._certificates.has_any:
            watch = self._certificates.watch()
            self._jobs.append(asyncio.create_task(watch, name="certificate watch"))
        self._basis.health.ready()

    async def _start_service(self, stop: asyncio.Event) -> None:
        config = self._basis.config.metadata
        self._store = await self._open_store()
        self._service = MetadataService(
            self._store,
            node_id=self._basis.name,
            members=self._ring_members,
            peer=self._peers.by_name(self._members),
            config=MetadataConfig(whole_entries_max=config.whole_topics_max),
            store_stale_ms=lambda: 0 if self._remote is None else self._remote.staleness_ms,
        )
        await start_when_there(self._service.start, config.service, stop)
        if self._remote is None:
            self._pin.store_id = await store_id(self._store, self._basis.entropy)
        self._store_feature = store_feature(self._pin.store_id)

    async def _open_store(self) -> Store:
        places = parse_places(self._basis.config.metadata.service)
        if not places:
            return await SqliteStore.open(self._basis.folder.metadata_path)
        # Another node's answers are handed on as if they were the store's own.
        self._remote = RemoteStore(
            self._peers.any_of(places),
            clock=self._basis.clock,
            config=RemoteConfig(entries_max=TOPICS_MAX, call_ms=CALL_MS, is_relay=True),
        )
        return self._remote

    def _ring_members(self) -> tuple[Member, ...]:
        return tuple(Member(place.name) for place in self._members)

    async def _listen(self) -> None:
        internal = self._basis.config.internal
        answers = Answers()
        self._service.register(answers)
        nodes = self._certificates.nodes
        self._listener = InternalListener(
            answers,
            node_id=self._basis.name,
            cluster_id=internal.cluster,
            features=(self._store_feature,),
            secret=self._basis.worker_secret,
        )
        host, port = parse_listen(internal.listen)
        with binding("other nodes", "--internal", host, port):
            self._bound = await self._listener.start(
                host, port, tls=None if nodes is None else nodes.listening
            )
        self._basis.endpoints["internal"] = self._bound

    async def _start_admin(self) -> None:
        api = MetadataAdmin(self._basis, self._levels, is_auth_on=self.is_auth_on)
        self._admin, self._admin_url = await open_admin(
            self._basis, api.handle, self._certificates.context, is_open=api.is_open
        )

    @property
    def ready_text(self) -> str:
        return f"internal={self._bound} admin={self._admin_url}"

    def freeze(self) -> None:
        """Nothing here lives as long as the process in numbers that would be worth it."""

    def reread(self) -> None:
        self._certificates.renew()

    async def drain(self) -> None:
        self._basis.health.drain()
        for job in self._jobs:
            job.cancel()
        # First the service: it answers the watches that wait, so that connections come to an end.
        await self._service.stop()
        await self._listener.drain(seconds_max=DRAIN_SECONDS_MAX)
        await self._admin.drain(seconds_max=1.0)
        await self._peers.close()
        await self._store.close()
        self._basis.folder.release()

    # ── What operators see ───────────────────────────────────────────────────────────────────

    def _report(self) -> None:
        reason = self._service.trouble
        if self._remote is not None and self._remote.staleness_ms > AWAY_MS:
            reason = self._remote.trouble or "the node with the store does not hear from it"
        found = [] if reason is None else [metadata_away(reason)]
        found += self._certificates.troubles(now_ms=self._basis.clock.wall_ms())
        self._basis.health.show(found)

    def _levels(self) -> Iterable[tuple[Family, Sample]]:
        yield from self._certificates.samples()
        if not self._basis.health.is_ready:
            return
        service = self._service
        yield families.METADATA_TOPICS, ((), service.topic_count)
        yield families.METADATA_HELD, ((), service.held_count)
        yield families.METADATA_WATCHERS, ((), service.watcher_count)
        yield families.METADATA_FORWARDED, ((), service.forwarded_count)
        yield families.METADATA_FALLBACKS, ((), service.fallback_count)
        yield families.CONNECTIONS, ((), len(self._listener.connections))
        stale_ms = 0 if self._remote is None else self._remote.staleness_ms
        yield families.METADATA_STALENESS, ((), stale_ms / 1_000)
