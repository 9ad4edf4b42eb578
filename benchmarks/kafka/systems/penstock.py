"""Penstock itself, by its ``--fsync``."""

from pathlib import Path

from benchmarks.kafka.systems.kafka_topics import KafkaTopics
from benchmarks.server import NotAvailable, Server
from benchmarks.systems.penstock import PROGRAM


class Penstock(KafkaTopics):
    warm_up_s = 0.0

    def __init__(self, policy: str) -> None:
        self.name = f"penstock-{policy}"
        self.policy = policy

    def prepare(self) -> None:
        if not PROGRAM.exists():
            raise NotAvailable("the penstock program is not installed beside this Python")

    def start(self, *, folder: Path, cores: set[int]) -> Server:
        command = [str(PROGRAM), "serve", "--data", str(folder / "data"), "--fsync", self.policy]
        command += ["--http", "127.0.0.1:0", "--kafka", "127.0.0.1:0"]
        server = Server(command, env={}, cores=cores, folder=folder)
        server.wait_for_line(address="kafka")
        return server
