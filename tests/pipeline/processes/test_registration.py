"""``format("penstock")`` in a job that an IDE, cron or systemd starts: the Python of an environment
runs it, and ``PATH`` does not name that environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.server import Server
from tests.pipeline.topics import topics_of

JOB = """
import sys
from pyspark.sql import SparkSession

before, after = sys.argv[2:]
exec(before)
spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
exec(after)
reader = spark.read.format("penstock").option("kafka.bootstrap.servers", sys.argv[1])
print("rows:", reader.option("subscribe", "orders").load().count())
spark.stop()
"""
SHORT = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
IMPORT = "import pyspark_penstock"


@pytest.fixture(autouse=True)
def orders(server: Server) -> None:
    with topics_of(server.kafka) as topics:
        if not any(topic.name == "orders" for topic in topics.client.metadata().topics):
            topics.make("orders", 1)
            topics.fill("orders", {0: 7})


@pytest.fixture
def elsewhere(classes: None, tmp_path: Path) -> dict[str, str]:
    """An environment whose ``python3`` is not ours: it has no packages at all."""
    from penstock.pipeline.spark.java import archive_options, find_java

    java = find_java()
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text('#!/bin/sh\necho "this is another Python" >&2\nexit 1\n')
    other.chmod(0o755)
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV", "SPARK_HOME")
    }
    return {
        **inherited,
        "PATH": f"{other.parent}:/usr/bin:/bin",
        "JAVA_HOME": str(java.home),
        # Each JVM lives for seconds: neither the second compiler nor a second thread that collects
        # is worth what it costs.
        "JAVA_TOOL_OPTIONS": " ".join([*SHORT, *archive_options(java)]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (IMPORT, ""),
        pytest.param(
            "",
            f"{IMPORT}; pyspark_penstock.register(spark)",
            marks=[pytest.mark.faults, pytest.mark.faults_only],
        ),
    ],
)
def test_a_job_finds_the_format_without_the_environment_on_the_path(
    server: Server, elsewhere: dict[str, str], before: str, after: str
) -> None:
    run([sys.executable, "-c", JOB, server.kafka, before, after], elsewhere)


def test_a_job_is_submitted_as_the_documents_say(
    server: Server, elsewhere: dict[str, str], tmp_path: Path
) -> None:
    job = tmp_path / "job.py"
    job.write_text(JOB)
    submit = str(Path(sys.prefix) / "bin" / "spark-submit")
    command = [submit, "--master", "local[*]", str(job), server.kafka, "", ""]
    run(command, {**elsewhere, "PYSPARK_PYTHON": sys.executable})


def run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=600, check=False
    )
    assert "rows: 7" in done.stdout, done.stderr[-3_000:]
