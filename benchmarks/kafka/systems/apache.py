"""Apache Kafka: one node that is broker and controller. Maven fetches its jars once
(``apache_jars.py``).

It leaves syncing to the kernel by default; ``always`` makes it sync every append, which is the
closest it has: it does not sync by the group.
"""

import base64
import shutil
import uuid
from pathlib import Path

from benchmarks.kafka.systems.apache_jars import LIB, fetch_jars, run
from benchmarks.kafka.systems.kafka_topics import KafkaTopics
from benchmarks.server import NotAvailable, Server, free_port

FORMAT_S_MAX = 60
HEAP = "1g"

CONFIG = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
file.delete.delay.ms=0
"""


class ApacheKafka(KafkaTopics):
    warm_up_s = 20.0

    def __init__(self, policy: str) -> None:
        self.name = f"kafka-{policy}"
        self.policy = policy

    def prepare(self) -> None:
        if shutil.which("java") is None:
            raise NotAvailable("needs java")
        fetch_jars()

    def start(self, *, folder: Path, cores: set[int]) -> Server:
        port, controller = free_port(), free_port()
        config = folder / "server.properties"
        text = CONFIG.format(port=port, controller=controller, data=folder / "data")
        if self.policy == "always":
            text += "log.flush.interval.messages=1\n"
        config.write_text(text)
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        java = ["java", f"-Xms{HEAP}", f"-Xmx{HEAP}", "-cp", f"{LIB}/*"]
        tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}"]
        run([*java, *tool, "--config", str(config)], folder, seconds_max=FORMAT_S_MAX)
        command = [*java, "kafka.Kafka", str(config)]
        server = Server(command, env={}, cores=cores, folder=folder)
        server.wait_for_port(port)
        return server
