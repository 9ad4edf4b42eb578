"""Opens the listeners of a node for other nodes, for HTTP clients and for operators, and explains
why a listener could not be opened."""

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from penstock.calls.internal.client import InternalClient
from penstock.calls.internal.connection import NodeEnd
from penstock.calls.internal.listener import InternalListener
from penstock.frontend.admin.api import BODY_BYTES_MAX
from penstock.frontend.admin.request import forbidden
from penstock.model.errors import CONFLICT, USAGE, SetupError
from penstock.net.http.browsers import BrowserGuard
from penstock.net.http.exchange import HttpRequest
from penstock.net.http.listener import Forbid, Handle, HttpConfig, HttpListener
from penstock.net.listener import Listener
from penstock.node.configuration.cluster_config import NodeAddress as Address
from penstock.node.configuration.cluster_config import parse_listen
from penstock.node.process.node_setup import NodeSetup
from penstock.wire.internal.calls import CallHandlers

LISTENING: Final = "0A"  # the state of a socket in /proc/net/tcp


@contextlib.contextmanager
def binding(what: str, flag: str, host: str, port: int) -> Iterator[None]:
    """Convert an OSError in the ``with`` block to a SetupError that names the listener's flag."""
    try:
        yield
    except OSError as error:
        raise _unusable(error, what, f"{flag} {Address(host, port)}", host, port, flag) from error


async def bind(listener: Listener, listen: str, what: str, flag: str, **more: Any) -> str:
    host, port = parse_listen(listen)
    with binding(what, flag, host, port):
        return await listener.start(host, port, **more)


def _node_end(setup: NodeSetup, **more: Any) -> NodeEnd:
    return NodeEnd(setup.name, setup.config.internal.cluster, secret=setup.worker_secret, **more)


def make_client(
    setup: NodeSetup, host: str, port: int, name: str | None, **more: Any
) -> InternalClient:
    """Return a client for calls to another node. The first call opens the connection."""
    nodes = setup.certificates.nodes
    tls = None if nodes is None else nodes.calling
    return InternalClient(host, port, _node_end(setup, **more), node_id=name, tls=tls)


async def open_internal(
    setup: NodeSetup, answers: CallHandlers, **more: Any
) -> tuple[InternalListener, str]:
    internal, nodes = setup.config.internal, setup.certificates.nodes
    listener = InternalListener(answers, _node_end(setup, **more))
    tls = None if nodes is None else nodes.listening
    bound = await bind(listener, internal.listen, "other nodes", "--internal", tls=tls)
    setup.endpoints["internal"] = bound
    return listener, bound


def _unusable(error: OSError, what: str, given: str, host: str, port: int, flag: str) -> SetupError:
    if error.errno == errno.EADDRINUSE:
        holder = who_listens(port)
        return SetupError(
            f"{'another process' if holder is None else holder} listens there",
            f"stop that process, or choose another port: {flag} {Address(host, 0)}",
            what=f"port {port} ({what}) is in use",
            code=CONFLICT,
        )
    reason = error.strerror or str(error)
    if error.errno is not None and error.errno in errno.errorcode:
        # Without the address, which ``what`` contains.
        reason = os.strerror(error.errno)
    if error.errno == errno.EADDRNOTAVAIL:
        what = f"this machine has no address {host} ({given})"
        do = f"choose one that `ip addr` shows, or 127.0.0.1: {flag} {Address('127.0.0.1', port)}"
    elif isinstance(error, socket.gaierror):
        what = f"the name {host} does not resolve ({given})"
        do = f"use an address of this machine: {flag} {Address('127.0.0.1', port)}"
    elif error.errno == errno.EACCES:
        what = f"port {port} ({what}) needs more rights than this user has"
        do = f"choose a port above 1023: {flag} {Address(host, 0)}"
    else:
        what = f"cannot listen for {what} ({given})"
        do = f"choose another address: {flag} {Address('127.0.0.1', 0)}"
    return SetupError(reason, do, what=what, code=USAGE)


def who_listens(port: int) -> str | None:
    """Return the name of the process that listens on a port, or None if this user cannot see it."""
    inodes = {f"socket:[{inode}]" for inode in _listening(port)}
    processes = (one for one in Path("/proc").iterdir() if one.name.isdecimal())
    for process in processes if inodes else ():
        with contextlib.suppress(OSError):  # of another user, or gone
            for fd in (process / "fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    if os.readlink(fd) in inodes:  # noqa: PTH115
                        name = (process / "comm").read_text("utf-8", "replace").strip()
                        return f"process {process.name} ({name})"
    return None


def _listening(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", table).read_text("ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def make_listener(
    setup: NodeSetup,
    handle: Handle,
    name: str,
    *,
    forbid: Forbid,
    is_open: bool,
    acts_on_get: bool = False,
    is_proven: Callable[[bytes], bool] = lambda _query: False,
    request_bytes_max: int = 0,
    outlives: Callable[[HttpRequest], bool] = lambda _request: False,
) -> HttpListener:
    # For ``is_open``, ``acts_on_get`` and ``is_proven`` see ``BrowserGuard``.
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
            is_open=is_open,
            external_url=http.external_url,
            acts_on_get=acts_on_get,
            is_proven=is_proven,
        ),
        forbid=forbid,
        outlives=outlives,
    )


async def open_admin(
    setup: NodeSetup, handle: Handle, *, is_open: bool
) -> tuple[HttpListener, str]:
    tls = setup.certificates.context
    listener = make_listener(
        setup, handle, "admin", forbid=forbidden, is_open=is_open, request_bytes_max=BODY_BYTES_MAX
    )
    if setup.config.admin.listen:
        bound = await bind(listener, setup.config.admin.listen, "admin API", "--admin", tls=tls)
    else:
        host, http_port = parse_listen(setup.config.http.listen)
        with binding("SQS", "--http", host, http_port):
            try:
                bound = await listener.start(host, http_port + 1 if http_port else 0, tls=tls)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise  # every port of that address would fail
                bound = await listener.start(host, 0, tls=tls)  # that port was not configured
    return listener, f"{'http' if tls is None else 'https'}://{bound}"
