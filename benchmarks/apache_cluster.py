"""Several brokers of Apache Kafka on one machine, each of them a controller as well, with as many
copies of everything as there are brokers and all but one of them needed for an answer.

The jars are those of the single broker that streams are compared with. Raises ``NotAvailable`` when
they cannot be had or the brokers do not start.
"""

import base64
import os
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from benchmarks.kafka.systems.apache import FORMAT_S_MAX, ApacheKafka
from benchmarks.kafka.systems.apache_jars import LIB
from benchmarks.server import NotAvailable, Server, free_port

HEAP: Final = "1g"
TOGETHER_S_MAX: Final = 60.0
ASK_EVERY_S: Final = 0.2
ASK_S_MAX: Final = 5.0

CONFIG: Final = """process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={data}
default.replication.factor={copies}
min.insync.replicas={in_sync_min}
offsets.topic.replication.factor={copies}
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={in_sync_min}
share.coordinator.state.topic.replication.factor={copies}
share.coordinator.state.topic.min.isr={in_sync_min}
group.initial.rebalance.delay.ms=0
file.delete.delay.ms=0
"""


class ApacheCluster:
    """``with ApacheCluster(folder) as cluster: ...``: brokers that take requests and know each
    other."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 3,
        config: str = "",
        login: Mapping[str, str] | None = None,
    ) -> None:
        """``config``: further lines for every broker. ``login``: what a client needs to log in."""
        self._folder = folder
        self._config = config
        self._login = login or {}
        self.ports = [free_port() for _ in range(nodes)]
        self._controllers = [free_port() for _ in range(nodes)]
        self._stack = ExitStack()
        self._servers: list[Server] = []

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def pids(self) -> Sequence[int]:
        return [server.pid for server in self._servers]

    def __enter__(self) -> "ApacheCluster":
        ApacheKafka("never").prepare()
        try:
            configs = self._format()
            # A broker listens once a majority of controllers has found together: all first.
            for config in configs:
                command = [*_java(), "kafka.Kafka", str(config)]
                server = Server(
                    command, env={}, cores=os.sched_getaffinity(0), folder=config.parent
                )
                self._stack.callback(server.stop)
                self._servers.append(server)
            for server, port in zip(self._servers, self.ports, strict=True):
                server.wait_for_port(port)
            self._wait_together()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def _format(self) -> list[Path]:
        count = len(self.ports)
        voters = ",".join(
            f"{node}@127.0.0.1:{port}" for node, port in enumerate(self._controllers, 1)
        )
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        configs = []
        for node in range(1, count + 1):
            place = self._folder / f"broker-{node}"
            place.mkdir(parents=True)
            config = place / "server.properties"
            text = CONFIG.format(
                node=node,
                voters=voters,
                port=self.ports[node - 1],
                controller=self._controllers[node - 1],
                data=place / "data",
                copies=count,
                in_sync_min=max(1, count - 1),
            )
            config.write_text(text + self._config)
            tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}"]
            _format_one([*_java(), *tool, "--config", str(config)], place)
            configs.append(config)
        return configs

    def _wait_together(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 3, **self._login})
        until = time.monotonic() + TOGETHER_S_MAX
        found = 0
        while found < len(self.ports):
            if time.monotonic() > until:
                raise NotAvailable(f"{found} of {len(self.ports)} brokers know each other")
            try:
                found = len(admin.list_topics(timeout=ASK_S_MAX).brokers)
            except KafkaException:
                found = 0
            time.sleep(ASK_EVERY_S)


def _java() -> list[str]:
    return ["java", f"-Xms{HEAP}", f"-Xmx{HEAP}", "-cp", f"{LIB}/*"]


def _format_one(command: Sequence[str], folder: Path) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True, timeout=FORMAT_S_MAX, capture_output=True)
    except subprocess.TimeoutExpired as error:
        raise NotAvailable(f"formatting took more than {FORMAT_S_MAX} s") from error
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        raise NotAvailable(f"cannot format: {lines[-1][:200] if lines else error}") from error
