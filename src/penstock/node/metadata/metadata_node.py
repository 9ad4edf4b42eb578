"""A node with the metadata role only: a store, the metadata service, a listener for other nodes,
and an admin endpoint.

One metadata node keeps the store, in SQLite in its data folder. Any number of others may be started
with the address of that node (``--metadata``). They hold a copy, serve reads and watches from the
copy, and pass changes on to that node. While it is not reachable, they keep serving reads."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from penstock.frontend.admin.login import Gate, Unauthenticated
from penstock.frontend.admin.ports import State
from penstock.frontend.admin.request import ConfigRow, error_reply, finished, json_reply
from penstock.metadata.security.identities import NewKey
from penstock.metadata.serving.remote_store import RemoteConfig, RemoteStore
from penstock.metadata.serving.service import MetadataConfig, MetadataService
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Store, store_id
from penstock.model.troubles import METADATA_AWAY
from penstock.net.http.exchange import HttpReply, HttpRequest
from penstock.net.http.listener import Handle
from penstock.node.configuration.cluster_config import parse_node_addresses
from penstock.node.configuration.settings import describe
from penstock.node.listening import open_admin, open_internal
from penstock.node.metadata import metadata_link as link
from penstock.node.process.node_setup import NodeSetup
from penstock.telemetry import families
from penstock.telemetry.families import Family, Sample
from penstock.telemetry.metrics import CONTENT_TYPE
from penstock.wire.internal.calls import CallHandlers

log_ = logging.getLogger(__name__)

Levels = Callable[[], Iterable[tuple[Family, Sample]]]


def admin_handler(setup: NodeSetup, levels: Levels) -> tuple[Handle, bool]:
    """Return a function that handles HTTP requests for health, metrics, info and configuration of a
    metadata node, and whether clients can use it without authentication."""
    info, health = setup.info(), setup.health
    config = [ConfigRow(row.key, row.value, row.origin) for row in describe(setup.loaded)]
    account, is_required = setup.config.node.account, setup.is_auth_on
    token = setup.config.admin.token
    gate = Gate(token=token, identities=None, account=account, is_required=is_required)

    def readyz() -> HttpReply:
        if health.state is State.DRAINING:
            status, state = 404, "draining"
        elif health.is_ready:
            status, state = 200, "ready"
        else:
            status, state = 503, "starting"
        return json_reply(status, {"status": state, "reasons": health.reasons})

    def metrics() -> HttpReply:
        samples = [
            (families.READY, ((), int(health.is_ready))),
            (families.START_TIME, ((), info.started_at_ms / 1_000)),
            *health.samples(),
            *levels(),
        ]
        return HttpReply(200, setup.meter.render(samples), CONTENT_TYPE)

    def info_reply() -> HttpReply:
        names = ("version", "node", "roles", "data", "started_at_ms", "endpoints")
        of_health = {name: getattr(health, name) for name in ("state", "is_ready", "reasons")}
        return json_reply(200, {name: getattr(info, name) for name in names} | of_health)

    unprotected = {
        "/healthz": lambda: json_reply(200, {"status": "alive"}),
        "/readyz": readyz,
        "/startupz": readyz,
    }
    shown = {
        "/metrics": metrics,
        "/api/v1/info": info_reply,
        "/api/v1/config": lambda: json_reply(200, {"settings": config}),
    }

    def reply(request: HttpRequest) -> HttpReply:
        handler = (unprotected | shown).get(request.path)
        if handler is None:
            return error_reply(404, "not_found", "There is nothing at this path.")
        if request.method not in ("GET", "HEAD"):
            allowed = (("allow", "GET, HEAD"),)
            return error_reply(405, "method_not_allowed", "Only GET and HEAD are allowed.", allowed)
        if request.path in shown:
            given = request.headers.get("authorization", "")
            gate.caller(given, now_ms=setup.clock.wall_ms())
        return handler()

    async def handle(request: HttpRequest) -> HttpReply:
        try:
            found = reply(request)
        except Unauthenticated as error:
            found = error_reply(401, "unauthorized", str(error), (("www-authenticate", "Bearer"),))
        except Exception:
            log_.exception("admin request failed", extra={"path": request.path})
            found = error_reply(500, "failed", "Internal error; see the log of the node.")
        return finished(request, found)

    return handle, gate.is_open


DRAIN_SECONDS_MAX = 5.0
AWAY_MS = 10_000  # health checks report an outage of the node with the store after this time


class MetadataNode:
    def __init__(self, setup: NodeSetup) -> None:
        config = setup.config
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
        handle, is_open = admin_handler(self._setup, self._levels)
        self._admin, self._admin_url = await open_admin(self._setup, handle, is_open=is_open)
        await self._start_service(stop)
        answers = CallHandlers()
        self._service.register(answers)
        features = (link.STORE_FEATURE + self._expected.store_id,)
        self._listener, self._bound = await open_internal(self._setup, answers, features=features)
        self._jobs = self._setup.start_jobs(self._report)
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
            members=lambda: [member.name for member in self._members],
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
        """Do nothing: this node has too few objects for ``gc.freeze`` to save time."""

    def reread(self) -> None:
        self._setup.certificates.renew()

    async def drain(self) -> bool:
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
        return True

    def _report(self) -> None:
        reason = self._service.trouble
        if self._remote is not None and self._remote.staleness_ms > AWAY_MS:
            reason = self._remote.trouble or "the metadata node with the store cannot reach it"
        found = [] if reason is None else [METADATA_AWAY.filled(reason)]
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
