"""HTTP listeners of a node: one for clients, one for operators. The latter uses the next port
unless its address is configured."""

import errno
import ssl
from collections.abc import Callable

from penstock.frontend.admin.api import BODY_BYTES_MAX
from penstock.frontend.admin.reply import forbidden
from penstock.net.http.browsers import BrowserGuard
from penstock.net.http.exchange import HttpRequest
from penstock.net.http.listener import Forbid, Handle, HttpConfig, HttpListener
from penstock.node.configuration.addresses import parse_listen
from penstock.node.listening.binding import binding
from penstock.node.process.node_setup import NodeSetup


def make_listener(
    setup: NodeSetup,
    handle: Handle,
    name: str,
    *,
    forbid: Forbid,
    is_open: bool,
    acts_on_get: bool = False,
    request_bytes_max: int = 0,
    outlives: Callable[[HttpRequest], bool] = lambda _request: False,
) -> HttpListener:
    """``is_open``, ``acts_on_get``: see ``BrowserGuard``. ``request_bytes_max``, 0: as
    configured."""
    http = setup.config.http
    return HttpListener(
        handle,
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
        seed=setup.entropy(10),
        guard=BrowserGuard(
            is_open=is_open, external_url=http.external_url, acts_on_get=acts_on_get
        ),
        forbid=forbid,
        outlives=outlives,
    )


async def open_admin(
    setup: NodeSetup, handle: Handle, tls: ssl.SSLContext | None, *, is_open: bool
) -> tuple[HttpListener, str]:
    """Open the admin listener. Returns it and its URL."""
    listener = make_listener(
        setup,
        handle,
        "admin",
        forbid=forbidden,
        is_open=is_open,
        request_bytes_max=BODY_BYTES_MAX,
    )
    bound = await _start_admin(setup, listener, tls)
    return listener, f"{'http' if tls is None else 'https'}://{bound}"


async def _start_admin(setup: NodeSetup, listener: HttpListener, tls: ssl.SSLContext | None) -> str:
    listen = setup.config.admin.listen
    if listen:
        host, port = parse_listen(listen)
        with binding("admin API", "--admin", host, port):
            return await listener.start(host, port, tls=tls)
    host, http_port = parse_listen(setup.config.http.listen)
    with binding("SQS", "--http", host, http_port):
        try:
            return await listener.start(host, http_port + 1 if http_port else 0, tls=tls)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise  # every port of that address would fail
            return await listener.start(host, 0, tls=tls)  # that port was not configured
