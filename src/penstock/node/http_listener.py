"""HTTP listeners of a node, with the bounds of its configuration: one for clients, one for
operators. The latter stands beside the former unless its address is given."""

import errno
import ssl
from collections.abc import Callable

from penstock.frontend.admin.api import BODY_BYTES_MAX
from penstock.frontend.admin.reply import forbidden
from penstock.net.browsers import BrowserGuard
from penstock.net.exchange import HttpRequest
from penstock.net.http import Answer, Forbid, HttpConfig, HttpListener
from penstock.node.addresses import parse_listen
from penstock.node.basis import Basis
from penstock.node.binding import binding


def make_listener(
    basis: Basis,
    answer: Answer,
    name: str,
    *,
    forbid: Forbid,
    is_open: bool,
    acts_on_get: bool = False,
    request_bytes_max: int = 0,
    outlives: Callable[[HttpRequest], bool] = lambda _request: False,
) -> HttpListener:
    """``is_open``, ``acts_on_get``: see ``BrowserGuard``. ``request_bytes_max``: 0: as configured
    for clients."""
    http = basis.config.http
    return HttpListener(
        answer,
        config=HttpConfig(
            request_bytes_max=request_bytes_max or http.request_bytes_max,
            connections_max=http.connections_max,
            connections_per_address_max=http.connections_per_ip_max,
            bodies_per_address_percent=100 if is_open else http.bodies_per_ip_percent,
            header_seconds_max=http.header_ms_max / 1_000,
            body_seconds_max=http.body_ms_max / 1_000,
            idle_seconds_max=http.idle_ms_max / 1_000,
        ),
        name=name,
        seed=basis.entropy(10),
        guard=BrowserGuard(
            is_open=is_open, external_url=http.external_url, acts_on_get=acts_on_get
        ),
        forbid=forbid,
        outlives=outlives,
    )


async def open_admin(
    basis: Basis, answer: Answer, tls: ssl.SSLContext | None, *, is_open: bool
) -> tuple[HttpListener, str]:
    """The operators' listener, and its URL."""
    listener = make_listener(
        basis,
        answer,
        "admin",
        forbid=forbidden,
        is_open=is_open,
        request_bytes_max=BODY_BYTES_MAX,
    )
    bound = await _start_admin(basis, listener, tls)
    return listener, f"{'http' if tls is None else 'https'}://{bound}"


async def _start_admin(basis: Basis, listener: HttpListener, tls: ssl.SSLContext | None) -> str:
    listen = basis.config.admin.listen
    if listen:
        host, port = parse_listen(listen)
        with binding("admin API", "--admin", host, port):
            return await listener.start(host, port, tls=tls)
    host, http_port = parse_listen(basis.config.http.listen)
    with binding("SQS", "--http", host, http_port):
        try:
            return await listener.start(host, http_port + 1 if http_port else 0, tls=tls)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise  # no port of that address will do
            return await listener.start(host, 0, tls=tls)  # nobody asked for that port by name
