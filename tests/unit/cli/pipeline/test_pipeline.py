"""``penstock pipeline`` where no Spark is needed: help, lists, refusals, endings of small jobs."""

import json
from pathlib import Path

import pytest
from tests.unit.cli.conftest import Cli

from penstock.pipeline.registry import jobs_of

JOBS = "tests.pipeline.sample_jobs"
PROBE = "tests.pipeline.cluster_probe:JOB"  # needs Spark
NOBODY = "http://127.0.0.1:9"  # no server: these jobs need none


@pytest.fixture
def lake(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lake folder that does not exist yet; ``cli`` has chosen its own endpoint before."""
    monkeypatch.setenv("PENSTOCK_ENDPOINT", NOBODY)
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path / "lake"))
    monkeypatch.delenv("PENSTOCK_CHECKPOINT", raising=False)
    return tmp_path / "lake"


pytestmark = pytest.mark.usefixtures("lake")


@pytest.mark.parametrize(
    ("kind", "code", "line"),
    [
        ("misused", 2, "  why: --kind misused is never meant"),
        ("unsound", 8, "error: 3 rows are not what they should be"),
    ],
)
def test_a_job_says_how_it_ended_by_its_exit_code(
    cli: Cli, kind: str, code: int, line: str
) -> None:
    done = cli("pipeline", "run", f"{JOBS}:ODD", "--kind", kind)
    assert done.code == code
    assert done.err.splitlines()[-1] == line


def test_a_job_without_spark_prints_rows_as_every_command_does(cli: Cli) -> None:
    done = cli("pipeline", "run", f"{JOBS}:ODD", "--kind", "rows", "-o", "table")
    assert done.code == 0
    assert done.out.splitlines() == ["NAME  COUNT", "a         1", "b         2"]
    assert done.err == "looking\n"


def test_a_jobs_own_options_win_over_those_that_all_commands_have(cli: Cli) -> None:
    job = f"{JOBS}:NAMESAKE"
    times = ["--since", "1970-01-01T00:00:01Z", "--until", "1970-01-01T00:00:02Z"]
    done = cli("pipeline", "run", job, "--from", "a", "--to", "b", "--region", "r", *times)
    assert done.code == 0
    assert done.err == ""
    assert done.json == {
        "source": "a",
        "target": "b",
        "region": "r",
        "endpoint": NOBODY,  # as every command would take it
        "since": 1_000,
        "until": 2_000,
    }


def test_a_job_that_fails_for_a_passing_reason_is_tried_again(cli: Cli, tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    done = cli("pipeline", "run", f"{JOBS}:PASSING", "--tries", str(tries), "--failures", "2")
    assert done.code == 0
    assert done.err.splitlines() == [
        "Connection reset; trying again in 1 s (1 of 5)",
        "Connection reset; trying again in 2 s (2 of 5)",
    ]
    assert tries.read_text() == "xxx"
    (status,) = cli("pipeline", "status").lines
    assert (status["job"], status["state"], status["restarts"]) == ("passing", "done", 2)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["run", "nothing"], 2, "unknown job 'nothing'"),
        (["run", "no.such.module:JOB"], 2, "'no.such.module:JOB' cannot be imported"),
        (["run", f"{JOBS}:keeper"], 2, "is not a Job"),
        (["run", f"{JOBS}:LINES"], 2, "Missing option '--input'"),
        (["run", PROBE, "--conf", "x"], 2, "a Spark setting has the form spark.NAME=VALUE"),
        (["run", PROBE, "--from", "17"], 2, "not a time"),
        (["run", PROBE, "--server", "nowhere"], 2, "is HOST:PORT"),
        (["logs", "never"], 3, "job 'never' has no log"),
        (["logs", "../../etc"], 3, "has no log"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_reason(
    cli: Cli, arguments: list[str], code: int, said: str
) -> None:
    done = cli("pipeline", *arguments)
    assert done.code == code
    assert said in done.err
    assert "Traceback" not in done.err


def test_help_names_the_jobs_own_options_and_starts_nothing(cli: Cli, lake: Path) -> None:
    told = cli("pipeline", "run", f"{JOBS}:LINES", "--help").out
    for option in (
        "--input",
        "--once / --continuous",
        "--every",
        "--master",
        "--lake",
        "--from, --since",
    ):
        assert option in told
    assert not lake.exists()


def test_every_job_of_ours_is_listed(cli: Cli) -> None:
    rows = [json.loads(line) for line in cli("pipeline", "list").out.splitlines()]
    assert [row["job"] for row in rows] == list(jobs_of("run"))
    assert all(row["summary"] for row in rows)
