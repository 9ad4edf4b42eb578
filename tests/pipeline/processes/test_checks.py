"""What is wrong with a command is said before Spark starts.

The Java that the commands are told to use does not exist: a command that starts Spark ends with
exit code 8, and never with the code that a test expects."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.harness import forks
from tests.harness.server import Server, penstock_command
from tests.pipeline.topics import topics_of


def pipeline(server: Server, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    env = {
        **inherited,
        "PENSTOCK_JAVA_HOME": str(folder / "no-java"),
        "PENSTOCK_KAFKA": server.kafka,
        "PENSTOCK_LAKE": str(folder / "lake"),
    }
    return forks.run([penstock_command(), "pipeline", *arguments], cwd=folder, env=env)


CARD = """currency = "EUR"
[[version]]
valid_from = 2026-01-01
bytes_out_micros = 1
storage_micros = 1
[version.request_micros]
other = 1
"""


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["run", "billing", "--rates", "missing.toml"], 2, "missing.toml: No such file"),
        (["run", "billing", "--rates", "bad.toml"], 2, "bad.toml: the file is not valid TOML"),
        (["run", "billing", "--rates", "card.toml", "--month", "x"], 2, "'x' is not a month"),
        (["run", "billing", "--rates", "card.toml"], 3, "has no table usage_partial"),
        (["run", "quality", "--rules", "missing.toml"], 2, "missing.toml: No such file"),
        (["run", "quality", "--rules", "rules.toml"], 3, "there is no topic nope"),
        (["run", "retention", "--policies", "missing.toml"], 2, "missing.toml: No such file"),
        (["run", "archive", "--topics", "nope"], 3, "there is no topic nope"),
        (["run", "archive", "--topics", "here,nope"], 3, "there is no topic nope"),
        (["run", "archive", "--topics", "["], 2, "is not a regular expression"),
        (["run", "usage", "--topic", "nope"], 3, "there is no topic nope"),
        (["run", "telemetry", "--topic", "nope"], 3, "there is no topic nope"),
        (["run", "dead-letters", "--queue", "nope"], 3, "there is no topic nope"),
        (["run", "replay", "--from", "here", "--to", "here"], 3, "there is no archive of here"),
        (["verify", "archive"], 3, "has no archive"),
        (["run", "deliveries", "--topic", "nope"], 3, "there is no topic nope"),
        (["verify", "audit"], 3, "has no table audit_log"),
        (["verify", "deliveries", "--subscription", "s"], 3, "has no table delivery"),
        (["verify", "deliveries"], 2, "--subscription is required"),
        (["report", "usage"], 3, "error: cannot write report 'usage'"),
        (["report", "billing"], 3, "do: run `penstock pipeline run billing`"),
        (["run", "archive", "--topics", "here", "--server", "127.0.0.1:1"], 5, "cannot reach"),
        (["run", "retention", "--policies", "none.toml", "--server", "127.0.0.1:1"], 5, "reach"),
        (["run", "archive", "--topics", "here", "--lake", "s3://b/l"], 2, "it is a URL"),
        (["run", "archive", "--topics", "here", "--lake", "card.toml"], 2, "it is a file"),
        (["run", "archive", "--topics", "here", "--checkpoint", "card.toml/x"], 2, "not writable"),
    ],
)
def test_a_mistake_is_said_before_spark_starts(
    server: Server, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    with topics_of(server.kafka) as topics:
        if not any(topic.name == "here" for topic in topics.client.metadata().topics):
            topics.make("here", 1)
    (tmp_path / "card.toml").write_text(CARD)
    (tmp_path / "bad.toml").write_text("x")
    (tmp_path / "none.toml").write_text("")
    (tmp_path / "rules.toml").write_text('[[rule]]\ntopic = "nope"\ncheck = "not_null"\n')
    done = pipeline(server, tmp_path, *arguments)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr
    if arguments[0] != "report":  # which needs no Spark, and says in `status` how it ended
        assert not (tmp_path / "lake").exists()


def test_a_command_without_a_mistake_goes_on_to_start_spark(server: Server, tmp_path: Path) -> None:
    with topics_of(server.kafka) as topics:
        topics.make("fine", 1)
    done = pipeline(server, tmp_path, "run", "archive", "--topics", "fine")
    assert done.returncode == 8, done.stderr
    assert "no-java" in done.stderr


def test_a_report_is_not_taken_for_the_job_of_the_same_name(server: Server, tmp_path: Path) -> None:
    assert pipeline(server, tmp_path, "report", "usage").returncode == 3
    (status,) = map(json.loads, pipeline(server, tmp_path, "status").stdout.splitlines())
    assert (status["job"], status["kind"], status["state"]) == ("usage", "report", "failed")
    assert "KIND" in pipeline(server, tmp_path, "status", "-o", "table").stdout
    jobs = map(json.loads, pipeline(server, tmp_path, "list").stdout.splitlines())
    assert {job["job"]: job["state"] for job in jobs}["usage"] is None
