"""The jars of Apache Kafka and its command line tools. Maven fetches them once, with the machine's
own Maven settings; each must have its SHA-256 sum of ``apache_jars.sha256``.

After a change of VERSION or POM, ``python -m benchmarks.kafka.systems.apache_jars`` writes the sums
of what the POM says.
"""

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.server import NotAvailable

VERSION: Final = "4.3.0"
LIB: Final = Path(__file__).parents[2] / ".cache" / f"kafka-{VERSION}"
SUMS: Final = Path(__file__).with_suffix(".sha256")
FETCH_S_MAX: Final = 300

POM: Final = f"""<project>
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


def fetch_jars() -> None:
    """Raises NotAvailable if there is no Maven, or it does not get the jars."""
    wanted = dict(line.split()[::-1] for line in SUMS.read_text().splitlines())
    LIB.parent.mkdir(parents=True, exist_ok=True)
    with (LIB.parent / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if wanted.items() <= _sums(LIB).items():
            return
        with tempfile.TemporaryDirectory(dir=LIB.parent) as folder:
            found = _fetch(Path(folder))
            if found != wanted:
                names = sorted(name for name, _ in found.items() ^ wanted.items())
                raise RuntimeError(f"other jars than {SUMS.name} has: {', '.join(names)}")
            shutil.rmtree(LIB, ignore_errors=True)
            shutil.copytree(folder, LIB)


def _fetch(folder: Path) -> Mapping[str, str]:
    if shutil.which("mvn") is None:
        raise NotAvailable("needs mvn")
    (folder / "pom.xml").write_text(POM)
    command = ["mvn", "-q", "-B", "-ntp", "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    run(command, folder, seconds_max=FETCH_S_MAX)
    return _sums(folder)


def _sums(folder: Path) -> Mapping[str, str]:
    return {
        jar.name: hashlib.sha256(jar.read_bytes()).hexdigest()
        for jar in sorted(folder.glob("*.jar"))
    }


def run(command: list[str], folder: Path, *, seconds_max: int) -> None:
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


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        sums = _fetch(Path(folder))
    SUMS.write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))


if __name__ == "__main__":
    main()
