"""The limit: the parser and event loop that Penstock uses, and nothing behind them."""

import sys
from pathlib import Path

from benchmarks.server import Server

ROOT = Path(__file__).parents[2]


class Bare:
    name = "bare"
    is_queue = False
    warm_up_s = 0.0

    def prepare(self) -> None:
        """Comes with Penstock's own dependencies."""

    def start(self, *, folder: Path, cores: set[int]) -> Server:
        command = [sys.executable, "-m", "benchmarks.systems.bare_server"]
        server = Server(command, env={"PYTHONPATH": str(ROOT)}, cores=cores, folder=folder)
        server.wait_for_line()
        return server
