"""ElasticMQ: SQS in Scala on a JVM, in memory (its default). Maven resolves its jars once."""

import shutil
import subprocess
from pathlib import Path

from benchmarks.server import NotAvailable, Server, free_port

VERSION = "1.7.1"
LIB = Path(__file__).parents[1] / ".cache" / f"elasticmq-{VERSION}"
RESOLVE_S_MAX = 300

POM = f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>benchmarks</groupId><artifactId>elasticmq</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.elasticmq</groupId><artifactId>elasticmq-server_2.13</artifactId>
    <version>{VERSION}</version>
  </dependency></dependencies>
</project>
"""

CONFIG = """include classpath("application.conf")
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-hostname = "127.0.0.1", bind-port = {port}, sqs-limits = strict }}
rest-stats {{ enabled = false }}
"""


class ElasticMQ:
    name = "elasticmq"
    is_queue = True
    warm_up_s = 60.0

    def prepare(self) -> None:
        for tool in ("java", "mvn"):
            if shutil.which(tool) is None:
                raise NotAvailable(f"needs {tool}")
        if (LIB / f"elasticmq-server_2.13-{VERSION}.jar").exists():
            return
        LIB.mkdir(parents=True, exist_ok=True)
        (LIB / "pom.xml").write_text(POM)
        command = ["mvn", "-q", "-B", "-ntp", "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={LIB}"]
        try:
            subprocess.run(
                command, cwd=LIB, check=True, timeout=RESOLVE_S_MAX, capture_output=True, text=True
            )
        except subprocess.TimeoutExpired as error:
            raise NotAvailable(f"resolving took more than {RESOLVE_S_MAX} s") from error
        except subprocess.CalledProcessError as error:
            problem = next((x for x in str(error.stdout).splitlines() if "ERROR" in x), "failed")
            raise NotAvailable(f"Maven: {problem[:200]}") from error

    def start(self, *, folder: Path, cores: set[int]) -> Server:
        port = free_port()
        config = folder / "elasticmq.conf"
        config.write_text(CONFIG.format(port=port))
        command = ["java", f"-Dconfig.file={config}", "-cp", f"{LIB}/*"]
        command += ["org.elasticmq.server.Main"]
        server = Server(command, env={}, cores=cores, folder=folder)
        server.wait_for_answer(port, "/?Action=ListQueues")
        return server
