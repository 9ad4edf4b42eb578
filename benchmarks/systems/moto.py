"""moto's server mode: a mock of AWS in Python; in memory, threads, one connection per request."""

from pathlib import Path

from benchmarks.server import Server, free_port
from benchmarks.systems import venv


class Moto:
    name = "moto"
    is_queue = True
    warm_up_s = 8.0

    def prepare(self) -> None:
        venv.prepare(self.name)

    def start(self, *, folder: Path, cores: set[int]) -> Server:
        port = free_port()
        command = [str(venv.python_of(self.name)), "-m", "moto.server"]
        command += ["-H", "127.0.0.1", "-p", str(port)]
        server = Server(command, env={}, cores=cores, folder=folder)
        server.wait_for_answer(port, "/moto-api/")
        return server
