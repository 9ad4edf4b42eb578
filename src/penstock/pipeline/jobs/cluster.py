"""Runs a Spark cluster of several processes on this machine: ``penstock pipeline cluster up``. It
is for tests, and for machines with more cores than one JVM can use efficiently.

Any local user can run code in the cluster as the user that started it, because Spark does not
authenticate by default. Spark's REST port for submissions is off. The processes end with this
process: it stops them in order when it stops, and the kernel ends them when it is killed."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import click

from penstock.net.child_process import start_child
from penstock.pipeline.job import Job, JobContext, Mode, Stopped, option
from penstock.pipeline.spark.java import find_java, wait_or_kill

HOST: Final = "127.0.0.1"
PORT_DEFAULT: Final = 7_077
WORKERS_DEFAULT: Final = 2
_WORKERS: Final = click.IntRange(1, 64)
_PORTS: Final = click.IntRange(1, 65_535)
START_SECONDS_MAX: Final = 120.0
STOP_SECONDS_MAX: Final = 20.0
_LOOK_S: Final = 0.2
_ANSWER_S_MAX: Final = 5.0
_LOG_CHARACTERS: Final = 600
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_PROPERTIES: Final = """\
spark.master.rest.enabled false
spark.port.maxRetries 0
spark.worker.cleanup.enabled true
"""
_DAEMON_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Duser.timezone=UTC"


class ClusterFailed(Exception):
    """Raised if the cluster did not start, or one of its processes has ended."""


class Cluster:
    """A context manager that starts a Spark master and workers on entry, and stops them on exit."""

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = WORKERS_DEFAULT,
        cores: int = 1,
        memory: str = "1g",
        port: int = 0,
        stopping: threading.Event | None = None,
    ) -> None:
        self._folder = folder
        self._stopping = stopping or threading.Event()
        self._worker_count = workers
        self._cores = cores
        self._memory = memory
        # Both sockets are open at once, so that the ports differ.
        with socket.socket() as one, socket.socket() as other:
            one.bind((HOST, 0))
            other.bind((HOST, 0))
            free, self._page_port = (int(each.getsockname()[1]) for each in (one, other))
        self._port = port or free
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        return f"spark://{HOST}:{self._port}"

    @property
    def worker_pids(self) -> list[int]:
        return [each.pid for name, each in self._processes.items() if name != "master"]

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        """Start the cluster, and wait until its workers have registered or ``stopping`` is set."""
        self._folder.mkdir(parents=True, exist_ok=True)
        properties = self._folder / "spark.properties"
        properties.write_text(_PROPERTIES)
        shared = ("--host", HOST, "--properties-file", str(properties))
        master = ("--port", str(self._port), "--webui-port", str(self._page_port))
        self._launch("master", _MASTER, *shared, *master)
        deadline = time.monotonic() + START_SECONDS_MAX
        if not self._until(self._listens, deadline, "the Spark master does not accept connections"):
            return
        for number in range(1, self._worker_count + 1):
            name = f"worker-{number}"
            size = ("--cores", str(self._cores), "--memory", self._memory)
            place = ("--work-dir", str(self._folder / name), "--webui-port", "0")
            self._launch(name, _WORKER, *shared, *size, *place, self.url)

        def is_whole() -> bool:
            return self.alive_workers() >= self._worker_count

        self._until(is_whole, deadline, "not all workers have registered")

    def check(self) -> None:
        for name, process in self._processes.items():
            code = process.poll()
            if code is not None:
                raise ClusterFailed(f"{name} exited with code {code}: {self._last_words(name)}")

    def stop(self) -> None:
        for is_master in (False, True):
            ending = {n: p for n, p in self._processes.items() if (n == "master") == is_master}
            for process in ending.values():
                process.terminate()
            deadline = time.monotonic() + STOP_SECONDS_MAX
            for process in ending.values():
                wait_or_kill(process, max(0.1, deadline - time.monotonic()))
        self._processes.clear()

    def _launch(self, name: str, main: str, *arguments: str) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        command = [str(home / "bin" / "spark-class"), main, *arguments]
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes[name] = start_child(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(home),
                end=signal.SIGTERM,
            )

    def _until(self, condition: Callable[[], bool], deadline: float, trouble: str) -> bool:
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                raise ClusterFailed(f"{trouble} after {START_SECONDS_MAX:.0f} s")
            if self._stopping.wait(_LOOK_S):
                return False
        return True

    def _listens(self) -> bool:
        try:
            with socket.create_connection((HOST, self._port), timeout=_ANSWER_S_MAX):
                return True
        except OSError:
            return False

    def alive_workers(self) -> int:
        connection = http.client.HTTPConnection(HOST, self._page_port, timeout=_ANSWER_S_MAX)
        try:
            connection.request("GET", "/json/")
            return int(json.loads(connection.getresponse().read())["aliveworkers"])
        except (OSError, ValueError, KeyError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def _last_words(self, name: str) -> str:
        with contextlib.suppress(OSError):
            text = (self._folder / f"{name}.log").read_text("utf-8", "replace")
            return " ".join(text[-_LOG_CHARACTERS:].split()) or "no output"
        return "no log"


def _environment(home: Path) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PENSTOCK_"))}
    return {
        **inherited,
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _DAEMON_OPTIONS,
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "PYSPARK_PYTHON": sys.executable,
    }


def up(context: JobContext) -> None:
    options = context.arguments
    workers = int(options.get("workers") or WORKERS_DEFAULT)
    cores = options.get("cores") or max(1, (os.cpu_count() or 1) // workers)
    cluster = Cluster(
        context.checkpoint / "processes",
        workers=workers,
        cores=int(cores),
        memory=str(options.get("memory") or "1g"),
        port=int(options.get("port") or PORT_DEFAULT),
        stopping=context.stopping,
    )
    with cluster:
        if not context.stopping.is_set():
            context.progress.note(f"{workers} workers at {cluster.url}; stop them with Ctrl-C")
            context.progress.note(f"penstock pipeline run usage --master {cluster.url}")
        while not context.stopping.wait(1.0):
            cluster.check()
    raise Stopped


JOB: Final = Job(
    name="up",
    summary="Run a Spark master and workers on this machine until Ctrl-C.",
    run=up,
    options=(
        option("--workers", None, "number of workers", type=_WORKERS, default=WORKERS_DEFAULT),
        option(
            "--cores", None, "cores per worker [default: CPUs / workers]", type=click.IntRange(1)
        ),
        option("--memory", "SIZE", "memory of each worker", default="1g"),
        option("--port", None, "port of the Spark master", type=_PORTS, default=PORT_DEFAULT),
    ),
    modes=frozenset((Mode.ONCE,)),
    needs_spark=False,
    is_draining=True,
)
