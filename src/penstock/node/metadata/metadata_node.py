"""A node with the metadata role only: a store, the metadata service, a listener for other nodes,
and an admin endpoint.

One metadata node keeps the store, in SQLite in its data folder. Any number of others may be started
with its address (``--metadata``): they hold a copy, serve reads and watches from it, and pass
changes on. While the node with the store is not reachable, the others keep serving reads."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from penstock.frontend.admin.login import Gate, Unauthenticated
from penstock.frontend.admin.ports import State
from penstock.frontend.admin.request import ConfigRow, error_reply, finished, json_reply
from penstock.metadata.security.identities import NewKey
from penstock.metadata.serving.mirror import Member
from penstock.metadata.serving.remote_store import RemoteConfig, RemoteStore
from penstock.metadata.serving.service import MetadataConfig, MetadataService
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Store, store_id
from penstock.model.troubles import metadata_away
from penstock.net.http.exchange import HttpReply, HttpRequest
from penstock.node.configuration.cluster_config import parse_node_addresses
from penstock.node.configuration.settings import describe
from penstock.node.listening import open_admin, open_internal
from penstock.node.metadata import metadata_link as link
from penstock.node.process.node_setup import NodeSetup
from penstock.telemetry import families
from penstock.telemetry.exposition import CONTENT_TYPE, Sample
from penstock.telemetry.families import Family
from penstock.wire.internal.calls import CallHandlers

log_ = logging.getLogger(__name__)

Levels = Callable[[], Iterable[tuple[Family, Sample]]]


class MetadataAdmin:
    """Serves health, metrics, info and configuration of a metadata node over HTTP."""

    def __init__(self, setup: NodeSetup, levels: Levels) -> None:
        self._setup = setup
        self._levels = levels
        self._info = setup.info()
        self._config = [ConfigRow(r.key, r.value, r.origin) for r in describe(setup.loaded)]
        self._gate = Gate(
            token=setup.config.admin.token,
            identities=None,
            account=setup.config.node.account,
            is_required=setup.is_auth_on,
        )
        self.is_open = self._gate.is_open
        self._open = {
            "/healthz": lambda: json_reply(200, {"status": "alive"}),
            "/readyz": self._readyz,
            "/startupz": self._readyz,
        }
        self._shown = {
            "/metrics": self._metrics,
            "/api/v1/info": self._info_reply,
            "/api/v1/config": lambda: json_reply(200, {"settings": self._config}),
        }

    async def handle(self, request: HttpRequest) -> HttpReply:
        try:
            reply = self._reply(request)
        except Unauthenticated as error:
            reply = error_reply(401, "unauthorized", str(error), (("www-authenticate", "Bearer"),))
        except Exception:
            log_.exception("admin request failed", extra={"path": request.path})
            reply = error_reply(500, "failed", "Internal error; see the log of the node.")
        return finished(request, reply)

    def _reply(self, request: HttpRequest) -> HttpReply:
        handler = self._open.get(request.path) or self._shown.get(request.path)
        if handler is None:
            return error_reply(404, "not_found", "There is nothing at this path.")
        if request.method not in ("GET", "HEAD"):
            allowed = (("allow", "GET, HEAD"),)
            return error_reply(405, "method_not_allowed", "Only GET and HEAD are allowed.", allowed)
        if request.path in self._shown:
            given = request.headers.get("authorization", "")
            self._gate.caller(given, now_ms=self._setup.clock.wall_ms())
        return handler()

    def _readyz(self) -> HttpReply:
        health = self._setup.health
        if health.state is State.DRAINING:
            status, state = 404, "draining"
        elif health.is_ready:
            status, state = 200, "ready"
        else:
            status, state = 503, "starting"
        return json_reply(status, {"status": state, "reasons": health.reasons})

    def _metrics(self) -> HttpReply:
        ready = int(self._setup.health.is_ready)
        samples = [
            (families.READY, ((), ready)),
            (families.START_TIME, ((), self._info.started_at_ms / 1_000)),
            *self._setup.health.samples(),
            *self._levels(),
        ]
        return HttpReply(200, self._setup.meter.render(samples), CONTENT_TYPE)

    def _info_reply(self) -> HttpReply:
        health = self._setup.health
        facts = {
            name: getattr(self._info, name)
            for name in ("version", "node", "roles", "data", "started_at_ms", "endpoints")
        }
        facts["state"], facts["is_ready"] = health.state, health.is_ready
        facts["reasons"] = health.reasons
        return json_reply(200, facts)


DRAIN_SECONDS_MAX = 5.0
AWAY_MS = 10_000  # health checks report an outage of the node with the store after this time


class MetadataNode:
    def __init__(self, setup: NodeSetup) -> None:
        config = setup.config
        self.is_auth_on = setup.is_auth_on
        self.root_key: NewKey | None = None
        self.http_url = ""
        self._setup = setup
        self._members = parse_node_addresses(config.metadata.members)
        self._expected = link.ExpectedStore(setup.folder.path)
        self._peers = link.Peers(setup, self._expected.check)
        self._store: Store
        self._remote: RemoteStore | None = None
        self._jobs: list[asyncio.Task[None]] = []

    async def start(self, stop: asyncio.Event) -> None:
        # First, so that health checks work while this node waits for another one.
        api = MetadataAdmin(self._setup, self._levels)
        self._admin, self._admin_url = await open_admin(
            self._setup, api.handle, is_open=api.is_open
        )
        await self._start_service(stop)
        answers = CallHandlers()
        self._service.register(answers)
        features = (link.STORE_FEATURE + self._expected.store_id,)
        self._listener, self._bound = await open_internal(self._setup, answers, features=features)
        self._report()
        self._jobs = [
            asyncio.create_task(self._setup.watch_health(self._report), name="health watch")
        ]
        if self._setup.certificates.has_any:
            watch = self._setup.certificates.watch()
            self._jobs.append(asyncio.create_task(watch, name="certificate watch"))
        self._setup.health.ready()

    async def _start_service(self, stop: asyncio.Event) -> None:
        config = self._setup.config.metadata
        addresses = parse_node_addresses(config.service)
        if addresses:
            self._store = self._remote = RemoteStore(
                self._peers.any_of(addresses),
                clock=self._setup.clock,
                config=RemoteConfig(call_ms=link.CALL_MS, is_relay=True),
            )
        else:
            self._store = await SqliteStore.open(self._setup.folder.metadata_path)
        self._service = MetadataService(
            self._store,
            node_id=self._setup.name,
            members=lambda: [Member(member.name) for member in self._members],
            peer=self._peers.by_name(self._members),
            config=MetadataConfig(whole_entries_max=config.whole_topics_max),
            store_stale_ms=lambda: 0 if self._remote is None else self._remote.staleness_ms,
        )
        await link.start_when_there(self._service.start, config.service, stop)
        if self._remote is None:
            self._expected.store_id = await store_id(self._store, self._setup.entropy)

    @property
    def ready_text(self) -> str:
        return f"internal={self._bound} admin={self._admin_url}"

    def freeze(self) -> None:
        """Do nothing, because this node has few long-lived objects."""

    def reread(self) -> None:
        self._setup.certificates.renew()

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

    def _report(self) -> None:
        reason = self._service.trouble
        if self._remote is not None and self._remote.staleness_ms > AWAY_MS:
            reason = self._remote.trouble or "the metadata node with the store cannot reach it"
        found = [] if reason is None else [metadata_away(reason)]
        found += self._setup.certificates.troubles(now_ms=self._setup.clock.wall_ms())
        self._setup.health.show(found)

    def _levels(self) -> Iterable[tuple[Family, Sample]]:
        yield from self._setup.certificates.samples()
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
