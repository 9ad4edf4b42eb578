"""The admin endpoint of a metadata node: health, metrics, info and configuration. It has no queues
and opens no secrets, so it has no admin API (``frontend/admin``); everything except health checks
requires the token ``admin.token``."""

import logging
from collections.abc import Callable, Iterable

from penstock.frontend.admin.health import State
from penstock.frontend.admin.login import Gate, Unauthenticated
from penstock.frontend.admin.reply import error_reply, finished, json_reply
from penstock.frontend.admin.request import ConfigRow
from penstock.net.http.exchange import HttpReply, HttpRequest
from penstock.node.configuration.settings import describe
from penstock.node.process.node_setup import NodeSetup
from penstock.telemetry import families
from penstock.telemetry.exposition import CONTENT_TYPE, Sample
from penstock.telemetry.families import Family

log_ = logging.getLogger(__name__)

Levels = Callable[[], Iterable[tuple[Family, Sample]]]


class MetadataAdmin:
    def __init__(self, setup: NodeSetup, levels: Levels, *, is_auth_on: bool) -> None:
        self._setup = setup
        self._levels = levels
        self._info = setup.info()
        self._config = [ConfigRow(r.key, r.value, r.origin) for r in describe(setup.loaded)]
        self._gate = Gate(
            token=setup.config.admin.token,
            identities=None,
            account=setup.config.node.account,
            is_required=is_auth_on,
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
