"""The limit: a socket and a file, see ``bare_server``."""

import sys
from pathlib import Path

from benchmarks.kafka.job import Driver
from benchmarks.server import Server

ROOT = Path(__file__).parents[3]


class Bare:
    raw_driver = Driver.BYTES
    is_kafka = False
    warm_up_s = 0.0

    def __init__(self, policy: str) -> None:
        self.name = f"bare-{policy}"
        self.policy = policy

    def prepare(self) -> None:
        """Needs nothing but Python."""

    def start(self, *, folder: Path, cores: set[int]) -> Server:
        command = [sys.executable, "-m", "benchmarks.kafka.systems.bare_server"]
        command += [self.policy, str(folder)]
        server = Server(command, env={"PYTHONPATH": str(ROOT)}, cores=cores, folder=folder)
        server.wait_for_line(address="bytes")
        return server

    def create(self, server: Server, topic: str, partitions: int, *, readers: int) -> None:
        """Has no topics."""

    def delete(self, server: Server, topic: str, partitions: int) -> None:
        """Has no topics."""
