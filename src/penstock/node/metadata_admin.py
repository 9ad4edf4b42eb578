"""What a metadata node shows operators: health, metrics, what it is and how it is set. It has no
queues and opens no secrets, so the admin API of a frontend (``frontend/admin``) is not for it; who
asks for more than probes shows the token of ``admin.token``."""

import logging
from collections.abc import Callable, Iterable

from penstock.frontend.admin.health import State
from penstock.frontend.admin.login import Gate, Unauthenticated
from penstock.frontend.admin.reply import error_reply, finished, json_reply
from penstock.frontend.admin.request import ConfigRow
from penstock.net.exchange import HttpReply, HttpRequest
from penstock.node.basis import Basis
from penstock.node.settings import describe
from penstock.telemetry import families
from penstock.telemetry.exposition import CONTENT_TYPE, Sample
from penstock.telemetry.families import Family

log_ = logging.getLogger(__name__)

Levels = Callable[[], Iterable[tuple[Family, Sample]]]


class MetadataAdmin:
    def __init__(self, basis: Basis, levels: Levels, *, is_auth_on: bool) -> None:
        self._basis = basis
        self._levels = levels
        self._info = basis.info()
        self._config = [ConfigRow(r.key, r.value, r.origin) for r in describe(basis.loaded)]
        self._gate = Gate(
            token=basis.config.admin.token,
            identities=None,
            account=basis.config.node.account,
            is_required=is_auth_on,
        )
        self.is_open = self._gate.is_open
        self._open = {"/healthz": self._healthz, "/readyz": self._readyz, "/startupz": self._readyz}
        self._shown = {
            "/metrics": self._metrics,
            "/api/v1/info": self._tell_info,
            "/api/v1/config": self._tell_config,
        }

    async def handle(self, request: HttpRequest) -> HttpReply:
        """Never raises."""
        try:
            reply = self._answer(request)
        except Unauthenticated as error:
            reply = error_reply(401, "unauthorized", str(error), (("www-authenticate", "Bearer"),))
        except Exception:
            log_.exception("admin request failed", extra={"path": request.path})
            reply = error_reply(500, "failed", "The node failed to answer; its log says why.")
        return finished(request, reply)

    def _answer(self, request: HttpRequest) -> HttpReply:
        answer = self._open.get(request.path) or self._shown.get(request.path)
        if answer is None:
            return error_reply(404, "not_found", "There is nothing at this path.")
        if request.method not in ("GET", "HEAD"):
            allowed = (("allow", "GET, HEAD"),)
            return error_reply(405, "method_not_allowed", "This can only be read.", allowed)
        if request.path in self._shown:
            given = request.headers.get("authorization", "")
            self._gate.caller(given, now_ms=self._basis.clock.wall_ms())
        return answer()

    def _healthz(self) -> HttpReply:
        return json_reply(200, {"status": "alive"})

    def _readyz(self) -> HttpReply:
        health = self._basis.health
        if health.state is State.DRAINING:
            status, state = 404, "draining"
        elif health.is_ready:
            status, state = 200, "ready"
        else:
            status, state = 503, "starting"
        return json_reply(status, {"status": state, "reasons": health.reasons})

    def _metrics(self) -> HttpReply:
        ready = int(self._basis.health.is_ready)
        samples = [
            (families.READY, ((), ready)),
            (families.START_TIME, ((), self._info.started_at_ms / 1_000)),
            *self._basis.health.samples(),
            *self._levels(),
        ]
        return HttpReply(200, self._basis.meter.render(samples), CONTENT_TYPE)

    def _tell_info(self) -> HttpReply:
        health = self._basis.health
        facts = {
            name: getattr(self._info, name)
            for name in ("version", "node", "roles", "data", "started_at_ms", "endpoints")
        }
        facts["state"], facts["is_ready"] = health.state, health.is_ready
        facts["reasons"] = health.reasons
        return json_reply(200, facts)

    def _tell_config(self) -> HttpReply:
        return json_reply(200, {"settings": self._config})
