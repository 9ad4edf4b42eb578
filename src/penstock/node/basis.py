"""What every part of a node is made from: its configuration, its clock, chance, folder, counters
and the state that its probes show. Made first; holds nothing that has to be started."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from penstock import __version__
from penstock.frontend.admin.health import Health
from penstock.frontend.admin.request import Info
from penstock.node.config import Config
from penstock.node.entropy import Entropy
from penstock.node.folder import DataFolder
from penstock.node.roles import parse_roles
from penstock.node.settings import Loaded
from penstock.node.worker_secret import receive_secret
from penstock.telemetry.clock import SystemClock
from penstock.telemetry.metrics import Meter


@dataclass(frozen=True)
class Basis:
    loaded: Loaded[Config]
    clock: SystemClock
    meter: Meter
    health: Health
    entropy: Entropy
    folder: DataFolder
    is_elapsed_trusted: bool  # durations from before this start can be measured by the wall clock
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


def make_basis(loaded: Loaded[Config]) -> Basis:
    """Takes the data folder: one process at a time. Raises FolderUnusable, SecretMissing."""
    worker_secret = receive_secret(os.environ)
    clock = SystemClock()
    folder = DataFolder(Path(loaded.config.node.data))
    return Basis(
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
