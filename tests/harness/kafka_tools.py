"""Apache Kafka's own command line tools, all calls in one JVM.

    with KafkaTools() as tools:
        said = tools.run("TopicCommand", "--list", at=node.kafka)

The programs in ``tests/compat/java`` run in the same JVM.

The jars are those that benchmarks use: Maven fetches them once into ``benchmarks/.cache``, with the
machine's own Maven settings. Raises ``NotAvailable`` where there is no JDK, no Maven, or Maven does
not get them.
"""

from __future__ import annotations

import os
import selectors
import shutil
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from benchmarks.kafka.systems.apache_jars import LIB, fetch_jars
from benchmarks.server import NotAvailable

SOURCES: Final = Path(__file__).parents[1] / "compat" / "java"
PACKAGE: Final = "org.apache.kafka.tools"
CALL_SECONDS_MAX: Final = 300.0
COMPILE_SECONDS_MAX: Final = 300.0
# A tool runs for less than a second, most of it in code that is used once.
BRIEF: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
COMPILER: Final = ("-proc:none", *(f"-J{option}" for option in BRIEF))
# Tools whose options come after a verb, before which they take the address.
_SERVER_FIRST: Final = {"FeatureCommand", "MetadataQuorumCommand", "TransactionsCommand"}
# Classes that are not in the package of most tools.
_ELSEWHERE: Final = {"ConfigCommand": "kafka.admin.ConfigCommand"}
_INT: Final = struct.Struct(">i")
_ANSWER: Final = struct.Struct(">ii")


class KafkaTools:
    def __init__(self) -> None:
        if shutil.which("javac") is None:
            raise NotAvailable("needs a JDK")
        fetch_jars()
        self._classes = tempfile.TemporaryDirectory()
        sources = map(str, SOURCES.glob("*.java"))
        subprocess.run(
            ["javac", *COMPILER, "-d", self._classes.name, "-cp", f"{LIB}/*", *sources],
            check=True,
            timeout=COMPILE_SECONDS_MAX,
        )
        options = ["-Xmx512m", *BRIEF, "-cp", f"{self._classes.name}:{LIB}/*"]
        self._process = subprocess.Popen(
            ["java", *options, "KafkaTools"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> KafkaTools:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._classes.cleanup()

    def run(self, name: str, *arguments: str, at: str, code: int | None = 0) -> str:
        """What a tool prints that is told to ask the server ``at`` an address. ``code``: the exit
        code it must have; None: any."""
        server = ("--bootstrap-server", at)
        words = (
            [*server, *arguments]
            if name.rpartition(".")[2] in _SERVER_FIRST
            else [*arguments, *server]
        )
        found, said = self.call(_ELSEWHERE.get(name, f"{PACKAGE}.{name}"), *words)
        assert code is None or found == code, f"{name} {' '.join(arguments)}: code {found}\n{said}"
        return said

    def call(self, class_name: str, *arguments: str) -> tuple[int, str]:
        """Exit code and output of any class with a main method."""
        words = [word.encode() for word in (class_name, *arguments)]
        frame = [_INT.pack(len(words))]
        for word in words:
            frame += (len(word).to_bytes(2, "big"), word)
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(b"".join(frame))
        stdin.flush()
        deadline = time.monotonic() + CALL_SECONDS_MAX
        code, size = _ANSWER.unpack(self._read(_ANSWER.size, deadline))
        return code, self._read(size, deadline).decode()

    def _read(self, size: int, deadline: float) -> bytes:
        stdout = self._process.stdout
        assert stdout is not None
        found = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while len(found) < size:
                if not selector.select(deadline - time.monotonic()):
                    self._process.kill()
                    raise TimeoutError(f"no answer within {CALL_SECONDS_MAX:.0f} s")
                some = os.read(stdout.fileno(), size - len(found))
                assert some, f"the JVM ended with code {self._process.wait()}"
                found += some
        return bytes(found)
