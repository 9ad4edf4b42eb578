"""Opens a Spark session with settings for Penstock. This module, and not PySpark, starts the JVM,
in order to use the Java that ``java.py`` found, and to let the caller choose where the output of
the JVM goes and handle Ctrl-C. All ports are bound to the loopback address, unless executors run on
other machines.

The default master is ``local[*,4]``, which allows four attempts per task, so a task whose Python
worker died is retried; with ``local[*]`` the query would fail."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import signal
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.pipeline.files import replacing
from penstock.pipeline.spark.java import (
    Java,
    archive_options,
    cache_folder,
    find_java,
    wait_or_kill,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER_DEFAULT = "local[*,4]"
_END_S_MAX = 30.0  # for a JVM to end
_LOOPBACK = "127.0.0.1"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?\Z")
_LOOPBACK_MASTER = re.compile(r"local-cluster\[|spark://(?:127\.0\.0\.1|localhost)[:,]")
_SHUFFLE_PARTITIONS_MAX = 16  # on one machine; each costs a task and a state store per batch
_PACKAGES = ("penstock", "pyspark_penstock")
_KEPT_MAX = 4
_EPOCH = (1980, 1, 1, 0, 0, 0)  # one time for all files: the same code gives the same bytes
_STATIC_CONF: Mapping[str, str] = {
    "spark.driver.memory": "1g",
    "spark.executorEnv.TZ": "UTC",
    "spark.scheduler.mode": "FIFO",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.python.filterPushdown.enabled": "true",  # required by sources with filters
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class SessionFailed(Exception):
    """Raised if Spark did not start. The text is one line for users."""


def open_session(
    app: str,
    *,
    master: str = MASTER_DEFAULT,
    conf: Mapping[str, str] | None = None,
    is_short: bool = False,
    output: int | None = None,
    log_level: str = "error",
) -> SparkSession:
    """Open the session of this process, or return the one that is already open. ``is_short`` saves
    start-up time at the cost of throughput. ``output`` is a file descriptor for the output of the
    JVM; the default is stderr. ``conf`` overrides the settings chosen here, but its JVM options are
    added to those chosen here."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    java = find_java()
    settings = session_conf(app, master=master, conf=conf or {})
    ours = _java_options(java, is_short=is_short, log_level=log_level)
    settings[_JAVA_OPTIONS] = " ".join([*ours, settings.get(_JAVA_OPTIONS, "")]).strip()
    spark = _start(java, settings, output)
    if not is_local(master):
        spark.sparkContext.addPyFile(str(code_zip()))
    return spark


def is_local(master: str) -> bool:
    """Return whether the driver and the executors run in one process."""
    return _LOCAL.match(master) is not None


def session_conf(app: str, *, master: str, conf: Mapping[str, str]) -> dict[str, str]:
    settings = {**_STATIC_CONF, "spark.app.name": app, "spark.master": master}
    match = _LOCAL.match(master)
    if match is not None:
        cores = (os.cpu_count() or 1) if match[1] == "*" else int(match[1] or 1)
        partitions = max(1, min(cores, _SHUFFLE_PARTITIONS_MAX))
        settings["spark.sql.shuffle.partitions"] = str(partitions)
    if is_local(master) or _LOOPBACK_MASTER.match(master):
        settings |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
    return settings | dict(conf)


def _java_options(java: Java, *, is_short: bool, log_level: str) -> list[str]:
    log4j = Path(__file__).with_name("log4j2.properties")
    options = [
        f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        f"-Dpenstock.log.level={log_level}",
        "-Duser.timezone=UTC",
        *archive_options(java),
    ]
    if java.major >= 24:
        # Without these, each start prints that Spark's libraries use deprecated features.
        options += ["--sun-misc-unsafe-memory-access=allow", "--enable-native-access=ALL-UNNAMED"]
    if is_short:
        # Only the first compiler, and a single-threaded garbage collector: faster in a process
        # that lives for seconds.
        options += ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    return [shlex.quote(option) for option in options]


def _start(java: Java, settings: Mapping[str, str], output: int | None) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    stream = sys.stderr.fileno() if output is None else output
    is_main = threading.current_thread() is threading.main_thread()
    ours = signal.getsignal(signal.SIGINT) if is_main else None
    _set_environment(java, settings)
    try:
        gateway = SparkContext._gateway
        if gateway is None:
            launch: Any = launch_gateway
            gateway = launch(conf, popen_kwargs={"stdout": stream, "stderr": stream})
        return SparkSession(SparkContext(conf=conf, gateway=gateway))
    except PySparkException as error:
        raise SessionFailed(f"Spark did not start: {' '.join(str(error).split())}") from error
    finally:
        if is_main:
            signal.signal(signal.SIGINT, ours)  # PySpark has replaced the handler


def _set_environment(java: Java, settings: Mapping[str, str]) -> None:
    os.environ["JAVA_HOME"] = str(java.home)
    # For the short-lived JVM that only composes Spark's command line.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    os.environ.pop("SPARK_HOME", None)  # PySpark must use the Spark that it contains
    if settings.get("spark.driver.host") == _LOOPBACK:
        os.environ["SPARK_LOCAL_IP"] = _LOOPBACK
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # same Python as the driver
    python = settings.get("spark.pyspark.python")
    if python:
        os.environ["PYSPARK_PYTHON"] = python


def close_session(spark: SparkSession, *, seconds_max: float = _END_S_MAX) -> None:
    """End the session and its JVM. A JVM that has not ended after ``seconds_max`` is killed."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway: Any = SparkContext._gateway
    try:
        if jvm_pid() is not None:
            spark.stop()
            gateway.shutdown()
    finally:
        process = gateway.proc if gateway is not None else None
        if process is not None:
            process.stdin.close()  # the JVM ends when its standard input is closed
            wait_or_kill(process, seconds_max)
        # Clear the JVM in PySpark's classes, so that the next session starts a new one.
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None


def jvm_pid() -> int | None:
    """Return the process id of the JVM that this process started, or None if it has ended."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    process = gateway.proc if gateway is not None else None
    return process.pid if process is not None and process.poll() is None else None


def code_zip() -> Path:
    """Pack Penstock's code into a zip for executors on machines without Penstock, and return its
    path in the cache folder, from where Spark serves it. Its name is a hash of its contents.
    Dependencies must be installed on the executors: compiled packages do not run from a zip."""
    files = sorted(_files())
    digest = hashlib.sha256()
    for name, path in files:
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    folder = cache_folder() / "code"
    target = folder / f"penstock-{digest.hexdigest()[:16]}.zip"
    if not target.is_file():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacing(target) as file, zipfile.ZipFile(file, "w") as archive:
            for name, path in files:
                entry = zipfile.ZipInfo(name, _EPOCH)
                archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
        zips = sorted(folder.glob("penstock-*.zip"), key=lambda path: path.stat().st_mtime)
        for old in zips[:-_KEPT_MAX]:
            old.unlink(missing_ok=True)
    return target


def _files() -> Iterator[tuple[str, Path]]:
    for package in _PACKAGES:
        spec = find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec is not None else []:
            root = Path(place)
            for path in root.rglob("*"):
                if path.is_file() and "__pycache__" not in path.parts:
                    yield f"{package}/{path.relative_to(root).as_posix()}", path
