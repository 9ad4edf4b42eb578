"""The admin API: its routes, its one gate and its error shape. Reads only; it changes nothing.

It stands on a port of its own, so that health checks and scrapes are answered when the data port
is full, and so that a firewall can tell operators from clients. Each resource is its own module.
"""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from penstock.frontend.admin import metrics, node, probes, queues
from penstock.frontend.admin.health import Health
from penstock.frontend.admin.messages import Messages
from penstock.frontend.admin.reply import error_reply, fault_reply
from penstock.frontend.admin.request import Call, ConfigRow, Context, Info, parse
from penstock.model.errors import PenstockError
from penstock.model.ports import Backend, Catalog, Clock, Sleep
from penstock.net.exchange import HttpReply, HttpRequest
from penstock.telemetry.metrics import Meter

Resource = Callable[[Context, Call], Awaitable[HttpReply]]

ANY = "*"  # stands for one segment of a path
# Open without the token: whoever asks these is a machine beside us and learns next to nothing.
PROBES: Mapping[tuple[str, ...], Resource] = {
    ("healthz",): probes.healthz,
    ("readyz",): probes.readyz,
    ("startupz",): probes.startupz,
}

log = logging.getLogger(__name__)


class AdminApi:
    def __init__(
        self,
        *,
        backend: Backend,
        catalog: Catalog,
        meter: Meter,
        health: Health,
        clock: Clock,
        info: Info,
        config: Sequence[ConfigRow] = (),
        token: str = "",
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._context = Context(
            backend=backend,
            catalog=catalog,
            meter=meter,
            health=health,
            clock=clock,
            sleep=sleep,
            info=info,
            config=config,
        )
        self._token = token.encode()
        self._resources: Mapping[tuple[str, ...], Resource] = {
            ("metrics",): metrics.totals,
            ("metrics", "objects"): metrics.objects,
            ("api", "v1", "info"): node.info,
            ("api", "v1", "config"): node.config,
            ("api", "v1", "queues"): queues.many,
            ("api", "v1", "queues", ANY): queues.one,
            ("api", "v1", "queues", ANY, "messages"): Messages(),
        }

    async def handle(self, request: HttpRequest) -> HttpReply:
        """Never raises, but for cancellation."""
        try:
            reply = await self._answer(request)
        except PenstockError as exc:
            reply = fault_reply(exc)
        except Exception:
            log.exception(
                "admin request failed",
                extra={"path": request.path, "request_id": request.request_id},
            )
            reply = error_reply(500, "failed", "The node failed to answer; its log says why.")
        if request.method == "HEAD":
            reply.body = b""
        return reply

    async def _answer(self, request: HttpRequest) -> HttpReply:
        call = parse(request)
        resource = PROBES.get(call.path)
        is_probe = resource is not None
        if resource is None:
            resource = self._find(call.path)
        if resource is None:
            return error_reply(404, "not_found", "There is nothing at this path.")
        if request.method not in ("GET", "HEAD"):
            return error_reply(
                405, "method_not_allowed", "This can only be read.", (("allow", "GET, HEAD"),)
            )
        if not is_probe and not self._is_allowed(request):
            return error_reply(
                401,
                "unauthorized",
                "This needs the bearer token of admin.token.",
                (("www-authenticate", "Bearer"),),
            )
        return await resource(self._context, call)

    def _find(self, path: tuple[str, ...]) -> Resource | None:
        found = self._resources.get(path)
        if found is None and path[:3] == ("api", "v1", "queues") and len(path) > 3 and path[3]:
            found = self._resources.get((*path[:3], ANY, *path[4:]))
        return found

    def _is_allowed(self, request: HttpRequest) -> bool:
        if not self._token:
            return True
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # In constant time, so that the token cannot be guessed byte by byte.
        return scheme.lower() == "bearer" and hmac.compare_digest(
            given.encode(errors="replace"), self._token
        )
