"""Apache Kafka: one node that is broker and controller. Maven resolves its jars once.

It leaves syncing to the kernel by default; ``always`` makes it sync every append, which is the
closest it has: it does not sync by the group.
"""

import base64
import shutil
import subprocess
import uuid
from pathlib import Path

from benchmarks.kafka.systems.kafka_topics import KafkaTopics
from benchmarks.server import NotAvailable, Server, free_port

VERSION = "4.3.0"
LIB = Path(__file__).parents[2] / ".cache" / f"kafka-{VERSION}"
MAIN_JAR = f"kafka_2.13-{VERSION}.jar"
TOOLS_JAR = f"kafka-tools-{VERSION}.jar"  # the command line tools, for tests
STREAMS_JAR = f"kafka-streams-{VERSION}.jar"  # Kafka Streams, for tests
RESOLVE_S_MAX = 300
FORMAT_S_MAX = 60
HEAP = "1g"

POM = f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>benchmarks</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
    <version>{VERSION}</version>
  </dependency><dependency>
    <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId>
    <version>{VERSION}</version>
  </dependency><dependency>
    <groupId>org.apache.kafka</groupId><artifactId>kafka-streams</artifactId>
    <version>{VERSION}</version>
  </dependency></dependencies>
</project>
"""

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
        for tool in ("java", "mvn"):
            if shutil.which(tool) is None:
                raise NotAvailable(f"needs {tool}")
        if all((LIB / jar).exists() for jar in (MAIN_JAR, TOOLS_JAR, STREAMS_JAR)):
            return
        LIB.mkdir(parents=True, exist_ok=True)
        (LIB / "pom.xml").write_text(POM)
        command = ["mvn", "-q", "-B", "-ntp", "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={LIB}"]
        _run(command, LIB, seconds_max=RESOLVE_S_MAX)

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
        _run([*java, *tool, "--config", str(config)], folder, seconds_max=FORMAT_S_MAX)
        command = [*java, "kafka.Kafka", str(config)]
        server = Server(command, env={}, cores=cores, folder=folder)
        server.wait_for_port(port)
        return server


def _run(command: list[str], folder: Path, *, seconds_max: int) -> None:
    try:
        subprocess.run(
            command, cwd=folder, check=True, timeout=seconds_max, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired as error:
        raise NotAvailable(f"{command[0]} took more than {seconds_max} s") from error
    except subprocess.CalledProcessError as error:
        lines = [x for x in (error.stdout + error.stderr).splitlines() if x.strip()]
        problem = next((x for x in lines if "ERROR" in x or "Exception" in x), "failed")
        raise NotAvailable(f"{command[0]}: {problem[:200]}") from error
