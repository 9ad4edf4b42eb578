"""A Kafka Streams application that a test starts, kills and restarts: ``StreamsApp.java``, compiled
with the machine's JDK. Maven fetches the jars once into ``benchmarks/.cache``."""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from benchmarks.kafka.systems.apache_jars import LIB, fetch_jars
from benchmarks.server import NotAvailable
from tests.harness.kafka_tools import COMPILER
from tests.harness.patience import eventually

SOURCE = Path(__file__).with_name("StreamsApp.java")
COMPILE_SECONDS_MAX = 300
STOP_SECONDS_MAX = 60
# The application runs for a minute: the first compiler is enough, and starts faster.
OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def compile_app(folder: Path) -> None:
    """Write the application's classes into a folder. Raises NotAvailable if there is no JDK or if
    Maven does not get the jars."""
    if shutil.which("javac") is None:
        raise NotAvailable("needs a JDK")
    fetch_jars()
    command = ["javac", *COMPILER, "-d", str(folder), "-cp", f"{LIB}/*", str(SOURCE)]
    subprocess.run(command, check=True, timeout=COMPILE_SECONDS_MAX)


class StreamsApp:
    """One instance. A killed one is started again with the same state folder."""

    def __init__(
        self,
        classes: Path,
        folder: Path,
        *,
        bootstrap: str,
        app: str,
        configs: Mapping[str, str],
    ) -> None:
        self._command = [
            "java",
            *OPTIONS,
            "-cp",
            f"{LIB}/*:{classes}",
            "StreamsApp",
            bootstrap,
            app,
        ]
        self._command += [str(folder), *(f"{name}={value}" for name, value in configs.items())]
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.lines: list[str] = []  # of all runs

    def __enter__(self) -> StreamsApp:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            print("--- the application ---", *self.lines[-60:], sep="\n")
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.lines.extend(line.rstrip() for line in process.stdout)

    @property
    def is_running(self) -> bool:
        """Whether the last state it told is that tasks run."""
        states = [line for line in self.lines if line.startswith("state ")]
        return bool(states) and states[-1] == "state RUNNING"

    @property
    def errors(self) -> list[str]:
        return [line for line in self.lines if line.startswith("error ")]

    def ask(self, letter: str, answer: str, *, seconds: float) -> str:
        """The line that the application prints for a command."""
        assert self._process is not None
        assert self._process.stdin is not None
        seen = len(self.lines)
        self._process.stdin.write(letter)
        self._process.stdin.flush()

        def found() -> str:
            return next((line for line in self.lines[seen:] if line.startswith(answer)), "")

        return eventually(found, seconds=seconds, what=f"it says {answer}")

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._ended()

    def close(self) -> int:
        """Let it leave the group. Returns the exit code."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._ended()

    def _ended(self) -> int:
        assert self._process is not None
        assert self._reader is not None
        code = self._process.wait(timeout=STOP_SECONDS_MAX)
        self._reader.join(timeout=5)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self.lines.append("state ENDED")
        return code
