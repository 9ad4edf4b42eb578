"""NATS JetStream with file storage: a partition is a stream. Debian's version syncs by the clock
only, so there is nothing to compare under ``always``."""

from pathlib import Path

from benchmarks.kafka.drivers import nats
from benchmarks.kafka.job import Driver
from benchmarks.kafka.pump import Fault
from benchmarks.kafka.systems import debian
from benchmarks.scenarios import LoadFailed
from benchmarks.server import NotAvailable, Server, free_port

PROGRAM = "nats-server"


class Nats:
    raw_driver = Driver.NATS
    is_kafka = False
    warm_up_s = 0.0

    def __init__(self, policy: str) -> None:
        self.name = f"nats-{policy}"
        self.policy = policy

    def prepare(self) -> None:
        debian.prepare(PROGRAM, [PROGRAM])

    def start(self, *, folder: Path, cores: set[int]) -> Server:
        program = debian.find(PROGRAM)
        if program is None:
            raise NotAvailable(f"{PROGRAM} has gone")
        port = free_port()
        command = [str(program), "--addr", "127.0.0.1", "--port", str(port)]
        command += ["--jetstream", "--store_dir", str(folder / "data")]
        server = Server(command, env={}, cores=cores, folder=folder)
        server.wait_for_port(port)
        return server

    def create(self, server: Server, topic: str, partitions: int, *, readers: int) -> None:
        for partition in range(partitions):
            stream = nats.stream_of(topic, partition)
            settings = {"name": stream, "subjects": [stream], "storage": "file"}
            self._call(server, f"STREAM.CREATE.{stream}", settings)
            for reader in range(readers):
                name = f"{nats.READER}-{reader}"
                config = {"durable_name": name, "ack_policy": "none", "deliver_policy": "all"}
                body = {"stream_name": stream, "config": config}
                self._call(server, f"CONSUMER.DURABLE.CREATE.{stream}.{name}", body)

    def delete(self, server: Server, topic: str, partitions: int) -> None:
        for partition in range(partitions):
            self._call(server, f"STREAM.DELETE.{nats.stream_of(topic, partition)}", {})

    def _call(self, server: Server, subject: str, body: object) -> None:
        try:
            answer = nats.call(server.host, server.port, f"$JS.API.{subject}", body)
        except (Fault, OSError) as error:
            raise LoadFailed(f"{subject}: {error}") from error
        if "error" in answer:
            raise LoadFailed(f"{subject}: {answer['error']}")
