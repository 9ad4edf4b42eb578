"""The basic parts of a node: configuration, clock, entropy, data folder, metrics, health,
certificates and the secret of a worker. They are created first and need not be started."""

import asyncio
import logging
import os
import platform
import secrets
import ssl
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock import __version__
from penstock.calls.internal.connection import NodeCertificates
from penstock.frontend.admin.ports import Health
from penstock.frontend.admin.request import Info
from penstock.model.errors import PenstockError
from penstock.model.troubles import CERTIFICATE_WARN_DAYS, Trouble, certificate_ending
from penstock.net.tls import Certificates, CertificateUnusable, TlsFiles
from penstock.node.configuration.cluster_config import InternalConfig, parse_roles
from penstock.node.configuration.config import Config, TlsConfig
from penstock.node.configuration.settings import Loaded
from penstock.node.process.folder import DataFolder
from penstock.telemetry import families
from penstock.telemetry.clock import SystemClock
from penstock.telemetry.families import Family, Sample
from penstock.telemetry.metrics import Meter
from penstock.wire.internal.frame import SECRET_BYTES

PAGE_BYTES: Final = 4_096
LOOK_SECONDS: Final = 1.0
CERTIFICATES_SECONDS: Final = 5.0

log_ = logging.getLogger(__name__)

# The processes of ``penstock serve --workers`` call each other over loopback ports, which every
# user of the machine can connect to. So both ends prove that they know a secret of this start
# (``wire/internal/proof.py``), which a process reads from a pipe that is its standard input.
_VARIABLE: Final = "PENSTOCK_WORKER_SECRET_FD"
SECRET_ENV: Final = {_VARIABLE: "0"}  # makes a child read the pipe


class SecretMissing(PenstockError):
    """Raised if a worker was started without the secret of its parent."""


def draw_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


def pipe_with(secret: bytes) -> int:
    reading, writing = os.pipe()
    os.write(writing, secret)  # far less than a pipe holds
    os.close(writing)
    return reading


def receive_secret(env: Mapping[str, str]) -> bytes | None:
    """Return the secret from the parent process, or None if this process is not a worker."""
    given = env.get(_VARIABLE)
    if given is None:
        return None
    try:
        secret = os.read(int(given), SECRET_BYTES + 1)
    except (ValueError, OSError) as error:
        raise SecretMissing(f"{_VARIABLE}={given} cannot be read: {error}") from error
    if len(secret) != SECRET_BYTES:
        raise SecretMissing(
            f"{_VARIABLE}={given}: the secret has {len(secret)} bytes instead of {SECRET_BYTES};"
            " only `penstock serve --workers N` may set this variable, unset it"
        )
    return secret


class CertificateKeeper:
    """The certificates for clients and for other nodes. Changed files are loaded while the node
    runs. If a file is unusable, an error is logged and the old certificate stays in use."""

    def __init__(self, tls: TlsConfig, internal: InternalConfig) -> None:
        self._clients: Certificates | None = None
        self.nodes: NodeCertificates | None = None
        if tls.cert_file:
            client_ca = Path(tls.client_ca_file) if tls.client_ca_file else None
            key = Path(tls.key_file or tls.cert_file)  # one file may contain both
            self._clients = Certificates(TlsFiles(Path(tls.cert_file), key, client_ca))
        if internal.certificate:
            key = Path(internal.key or internal.certificate)
            self.nodes = NodeCertificates(Path(internal.certificate), key, Path(internal.ca))
        known = (
            ("clients", families.TLS_EXPIRY, self._clients),
            ("other nodes", families.INTERNAL_TLS_EXPIRY, self.nodes),
        )
        self._all = [(users, family, one) for users, family, one in known if one is not None]

    @property
    def context(self) -> ssl.SSLContext | None:
        return None if self._clients is None else self._clients.context

    async def watch(self) -> None:
        while self._all:
            await asyncio.sleep(CERTIFICATES_SECONDS)
            self.renew()

    def renew(self) -> None:
        for _, _, certificates in self._all:
            try:
                if certificates.renew():
                    log_.info("certificate reloaded")
            except CertificateUnusable as error:
                log_.error("certificate not reloaded", extra={"reason": str(error)})

    def troubles(self, *, now_ms: int) -> Iterable[Trouble]:
        for users, _, one in self._all:
            days_left = (one.expires_at_ms - now_ms) // 86_400_000
            if days_left < CERTIFICATE_WARN_DAYS:
                yield certificate_ending(users, days_left)

    def samples(self) -> Iterable[tuple[Family, Sample]]:
        for _, family, one in self._all:
            yield family, ((), one.expires_at_ms / 1_000)


class Entropy:
    """A source of random bytes that reads a page at a time from the kernel, for speed."""

    __slots__ = ("_page", "_position")

    def __init__(self) -> None:
        self._page = b""
        self._position = 0

    def __call__(self, count: int) -> bytes:
        start = self._position
        end = start + count
        if end > len(self._page):
            self._page = os.urandom(max(PAGE_BYTES, count))
            start, end = 0, count
        self._position = end
        return self._page[start:end]


@dataclass(frozen=True)
class NodeSetup:
    loaded: Loaded[Config]
    clock: SystemClock
    meter: Meter
    health: Health
    entropy: Entropy
    folder: DataFolder
    certificates: CertificateKeeper
    is_auth_on: bool
    started_ms: int  # wall time
    elapsed_since_ms: int  # wall time since which clocks have run without a gap
    endpoints: dict[str, str]  # filled as listeners open
    worker_secret: bytes | None = None  # shared by the workers of one server; None: not a worker

    @property
    def config(self) -> Config:
        return self.loaded.config

    @property
    def name(self) -> str:
        return self.config.node.name or platform.node()

    def info(self, *, kafka_protocol: str = "") -> Info:
        node = self.config.node
        return Info(
            version=__version__,
            node=self.name,
            mode=node.mode,
            account=node.account,
            region=node.region,
            data=str(self.folder.path),
            started_at_ms=self.started_ms,
            endpoints=self.endpoints,
            kafka_protocol=kafka_protocol,
            roles=sorted(parse_roles(node.roles)),
            clock_trusted=self.elapsed_since_ms < self.started_ms,
        )

    def start_jobs(
        self, report: Callable[[], None], **more: Coroutine[Any, Any, None]
    ) -> list["asyncio.Task[None]"]:
        """Start ``more`` and the tasks that every node has: one calls ``report`` every second."""
        report()
        jobs = {
            "health watch": self._watch_health(report),
            "certificate watch": self.certificates.watch(),
            **more,
        }
        return [asyncio.create_task(job, name=name) for name, job in jobs.items()]

    async def _watch_health(self, report: Callable[[], None]) -> None:
        """Once a second, measure the lag of the event loop and call ``report``."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LOOK_SECONDS
            await asyncio.sleep(LOOK_SECONDS)
            self.meter.loop_lags.observe(max(0.0, loop.time() - due))
            report()


def make_setup(loaded: Loaded[Config], *, is_auth_on: bool) -> NodeSetup:
    """Lock the data folder and create the basic parts of a node."""
    certificates = CertificateKeeper(loaded.config.tls, loaded.config.internal)
    worker_secret = receive_secret(os.environ)
    clock = SystemClock()
    started_ms = clock.wall_ms()
    folder = DataFolder(Path(loaded.config.node.data))
    return NodeSetup(
        loaded=loaded,
        clock=clock,
        meter=Meter(),
        health=Health(),
        entropy=Entropy(),
        folder=folder,
        certificates=certificates,
        is_auth_on=is_auth_on,
        started_ms=started_ms,
        elapsed_since_ms=folder.renew_anchor(clock),
        endpoints={},
        worker_secret=worker_secret,
    )
