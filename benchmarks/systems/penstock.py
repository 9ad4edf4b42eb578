"""Penstock itself, with a durability per instance: ``always`` answers once the disk has it,
``never`` once the kernel has it."""

import sys
from pathlib import Path

from benchmarks.server import NotAvailable, Server

PROGRAM = Path(sys.prefix) / "bin" / "penstock"


class Penstock:
    is_queue = True
    warm_up_s = 0.0

    def __init__(self, fsync: str) -> None:
        self.name = f"penstock-{fsync}"
        self._fsync = fsync

    def prepare(self) -> None:
        if not PROGRAM.exists():
            raise NotAvailable("the penstock program is not installed beside this Python")

    def start(self, *, folder: Path, cores: set[int]) -> Server:
        command = [str(PROGRAM), "serve", "--data", str(folder / "data")]
        command += ["--http", "127.0.0.1:0", "--fsync", self._fsync]
        server = Server(command, env={}, cores=cores, folder=folder)
        server.wait_for_line()
        return server
