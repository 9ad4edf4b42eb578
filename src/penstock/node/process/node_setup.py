"""The basic parts of a node: configuration, clock, entropy, data folder, metrics and health.
Created first; nothing here has to be started."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from penstock import __version__
from penstock.frontend.admin.health import Health
from penstock.frontend.admin.request import Info
from penstock.node.configuration.config import Config
from penstock.node.configuration.roles import parse_roles
from penstock.node.configuration.settings import Loaded
from penstock.node.keys.worker_secret import receive_secret
from penstock.node.process.folder import DataFolder
from penstock.telemetry.clock import SystemClock
from penstock.telemetry.metrics import Meter

PAGE_BYTES = 4_096


class Entropy:
    """Random bytes, read from the kernel a page at a time: a system call per message id would cost
    as much as encoding the message."""

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
    is_elapsed_trusted: bool  # the wall clock has run evenly since the last process
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
        roles = parse_roles(node.roles)
        return Info(
            version=__version__,
            node=self.name,
            mode=node.mode,
            account=node.account,
            region=node.region,
            data=str(self.folder.path),
            started_at_ms=self.clock.wall_ms(),
            endpoints=self.endpoints,
            kafka_protocol=kafka_protocol,
            roles=sorted(roles),
            clock_trusted=self.is_elapsed_trusted,
        )


def make_setup(loaded: Loaded[Config]) -> NodeSetup:
    """Lock the data folder. Raises FolderUnusable, SecretMissing."""
    worker_secret = receive_secret(os.environ)
    clock = SystemClock()
    folder = DataFolder(Path(loaded.config.node.data))
    return NodeSetup(
        loaded=loaded,
        clock=clock,
        meter=Meter(),
        health=Health(),
        entropy=Entropy(),
        folder=folder,
        is_elapsed_trusted=folder.renew_anchor(clock),
        endpoints={},
        worker_secret=worker_secret,
    )
