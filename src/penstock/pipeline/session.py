"""A Spark session with settings that suit Penstock: ``open_session``.

Starts the JVM itself instead of leaving it to PySpark, for three reasons: the Java is the one that
``java.py`` found, what the JVM prints goes where the caller wants it, and Ctrl-C stays the
caller's to handle. Everything is bound to the loopback address unless the executors are elsewhere.

A local master is given as ``local[*,4]``: the second number lets a task whose Python worker died
run again, where plain ``local[*]`` would end the query.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.pipeline.java import Java, find_java, wait_or_kill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER_DEFAULT = "local[*,4]"
_END_S_MAX = 30.0  # for a JVM that was told to end
_LOOPBACK = "127.0.0.1"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?\Z")
_LOOPBACK_MASTER = re.compile(r"local-cluster\[|spark://(?:127\.0\.0\.1|localhost)[:,]")
_SHUFFLE_PARTITIONS_MAX = 16  # on one machine; each costs a task and a state store a batch
_STATIC_CONF: Mapping[str, str] = {
    "spark.driver.memory": "1g",
    "spark.executorEnv.TZ": "UTC",
    "spark.scheduler.mode": "FIFO",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.python.filterPushdown.enabled": "true",  # a source with filters fails without
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class SessionFailed(Exception):
    """Spark did not start. The text is one line for a person."""


def open_session(
    app: str,
    *,
    master: str = MASTER_DEFAULT,
    conf: Mapping[str, str] | None = None,
    is_short: bool = False,
    output: int | None = None,
    log_level: str = "error",
) -> SparkSession:
    """The session of this process: one that is open already is returned as it is.

    ``is_short`` saves start-up time at the cost of throughput, for tests and jobs of seconds.
    ``output`` is a file descriptor for all that the JVM prints; without, it is our own stderr.
    ``conf`` wins over what is chosen here, except that options for the JVM are added to ours.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    java = find_java()
    settings = session_conf(app, master=master, conf=conf or {})
    settings[_JAVA_OPTIONS] = " ".join(
        [
            *_java_options(java, is_short=is_short, log_level=log_level),
            settings.get(_JAVA_OPTIONS, ""),
        ]
    ).strip()
    spark = _start(java, settings, output)
    if not is_local(master):
        from penstock.pipeline.shipping import code_zip

        spark.sparkContext.addPyFile(str(code_zip()))
    return spark


def is_local(master: str) -> bool:
    """Whether driver and executors are one process."""
    return _LOCAL.match(master) is not None


def session_conf(app: str, *, master: str, conf: Mapping[str, str]) -> dict[str, str]:
    settings = {**_STATIC_CONF, "spark.app.name": app, "spark.master": master}
    if is_local(master):
        settings["spark.sql.shuffle.partitions"] = str(_shuffle_partitions(master))
    if is_local(master) or _LOOPBACK_MASTER.match(master):
        settings |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
    return settings | dict(conf)


def _shuffle_partitions(master: str) -> int:
    match = _LOCAL.match(master)
    cores = match[1] if match is not None else None
    count = (os.cpu_count() or 1) if cores == "*" else int(cores or 1)
    return max(1, min(count, _SHUFFLE_PARTITIONS_MAX))


def _java_options(java: Java, *, is_short: bool, log_level: str) -> list[str]:
    from penstock.pipeline.warm import archive_options

    log4j = Path(__file__).with_name("log4j2.properties")
    options = [
        f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        f"-Dpenstock.log.level={log_level}",
        "-Duser.timezone=UTC",
        *archive_options(java),
    ]
    if java.major >= 24:
        # What Spark's libraries do is announced as deprecated on every start otherwise.
        options += ["--sun-misc-unsafe-memory-access=allow", "--enable-native-access=ALL-UNNAMED"]
    if is_short:
        # The first compiler only, and one thread that collects: both save more than they cost
        # in a process that lives for seconds.
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
            signal.signal(signal.SIGINT, ours)  # PySpark puts its own in place


def _set_environment(java: Java, settings: Mapping[str, str]) -> None:
    """What the JVM and its Python workers inherit."""
    os.environ["JAVA_HOME"] = str(java.home)
    # The short-lived JVM that only puts Spark's command line together.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    os.environ.pop("SPARK_HOME", None)  # another Spark than the one PySpark brings would not fit
    if settings.get("spark.driver.host") == _LOOPBACK:
        os.environ["SPARK_LOCAL_IP"] = _LOOPBACK
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what we run
    python = settings.get("spark.pyspark.python")
    if python:
        os.environ["PYSPARK_PYTHON"] = python


def close_session(spark: SparkSession, *, seconds_max: float = _END_S_MAX) -> None:
    """End the session and the JVM that was started for it, also one that has died. A JVM that has
    not ended after ``seconds_max`` is killed."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    try:
        if jvm_pid() is not None:
            spark.stop()
            gateway.shutdown()
    finally:
        process = gateway.proc if gateway is not None else None
        if process is not None:
            process.stdin.close()  # the JVM ends when nobody holds its input
            wait_or_kill(process, seconds_max)
        _forget()


def jvm_pid() -> int | None:
    """The process of the JVM that this process has started, while it lives."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    process = gateway.proc if gateway is not None else None
    return process.pid if process is not None and process.poll() is None else None


def _forget() -> None:
    """PySpark remembers the JVM in its classes; the next session is to start one of its own."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None
