"""Redis Streams with an append-only file: a partition is a stream. ``always`` syncs once for all
that one turn of its loop has taken in. Streams stay in memory as a whole."""

from pathlib import Path

from benchmarks.kafka.drivers import redis
from benchmarks.kafka.job import Driver
from benchmarks.kafka.systems import debian
from benchmarks.server import NotAvailable, Server, free_port

PROGRAM = "redis-server"
PACKAGES = (PROGRAM, "redis-tools", "libjemalloc2", "liblzf1")


class Redis:
    raw_driver = Driver.REDIS
    is_kafka = False
    warm_up_s = 0.0

    def __init__(self, policy: str) -> None:
        self.name = f"redis-{policy}"
        self.policy = policy

    def prepare(self) -> None:
        debian.prepare(PROGRAM, PACKAGES)

    def start(self, *, folder: Path, cores: set[int]) -> Server:
        program = debian.find(PROGRAM)
        if program is None:
            raise NotAvailable(f"{PROGRAM} has gone")
        port = free_port()
        sync = "always" if self.policy == "always" else "no"
        command = [str(program), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
        command += ["--appendonly", "yes", "--appendfsync", sync, "--save", ""]
        # A rewrite in the middle of a run would be measured with it.
        command += ["--auto-aof-rewrite-percentage", "0"]
        server = Server(command, env=debian.libraries(), cores=cores, folder=folder)
        server.wait_for_port(port)
        return server

    def create(self, server: Server, topic: str, partitions: int, *, readers: int) -> None:
        """The first XADD makes the stream."""

    def delete(self, server: Server, topic: str, partitions: int) -> None:
        keys = [redis.key_of(topic, partition) for partition in range(partitions)]
        redis.call(server.host, server.port, b"UNLINK", *keys)
