"""Kills jobs of the pipeline with SIGKILL, again and again.

The server, the topics and the truth belong to this process; a job runs in another one, in a process
group of its own (``killed_process.py``), which says what it has committed and is told where to
stop. A kill is one of these:

    worker   only the Python workers, under a job that goes on: the same process is there for the
             next kill, so that one JVM serves for both
    after    some milliseconds after progress was seen: in the middle of what comes next, mostly
    between  with one table's commit done and whatever follows it not: the job is held there
    before   with everything ready for a table's commit, and the commit not made

Every kill waits for progress, so none hits the start-up alone. At the end the job runs undisturbed,
in the session of this process; then a case (``killed_jobs.py``) compares every row with the truth.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
from tests.harness.patience import eventually
from tests.harness.server import Server
from tests.pipeline import held_worker
from tests.pipeline.killed_process import PATIENCE_S, Kill, Told, run_job
from tests.pipeline.topics import Topics, topics_of

from penstock.net.kafka_client.client import LATEST
from penstock.pipeline.lake import Lake
from penstock.pipeline.runs.runner import is_transient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPO = Path(__file__).parents[2]
MOMENT_S = 0.5  # within which a kill comes after progress was seen
TRIES_MAX = 3  # of a kill whose job was done before it
CHANCES_MIN = 10  # kills at any moment of which one must have met something half done
STDERR_LINES_MAX = 200


WORKER, AFTER = Kill("worker"), Kill("after")


def between(table: str, nth: int = 1) -> Kill:
    return Kill("between", table, nth)


def before(table: str, nth: int = 1) -> Kill:
    return Kill("before", table, nth)


class Driver:
    """One run of a job in a process group of its own."""

    def __init__(self, wish: Mapping[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.killed_process", json.dumps(wish)],
            cwd=REPO,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.told: list[Told] = []
        self.stderr: list[str] = []
        self._news = threading.Condition()
        self._has_ended = False
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._threads = [
            threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True),
            threading.Thread(target=self._keep, args=(self.process.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                if line.startswith("{") and line.endswith("}\n"):
                    with self._news:
                        self.told.append(json.loads(line))
                        self._news.notify_all()
        with self._news:
            self._has_ended = True
            self._news.notify_all()

    def _keep(self, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                self.stderr = [*self.stderr[1 - STDERR_LINES_MAX :], line]

    @property
    def is_over(self) -> bool:
        return self._has_ended

    @property
    def commits(self) -> int:
        with self._news:
            return sum(told["what"] == "commit" and told["is_new"] for told in self.told)

    def wait_for(self, is_so: Callable[[], bool]) -> bool:
        """Whether it was so before the process ended."""
        with self._news:
            self._news.wait_for(lambda: self._has_ended or is_so(), PATIENCE_S)
            return is_so()

    def has_said(self, what: str) -> bool:
        return any(told["what"] == what for told in self.told)

    def hold_at(self, kill: Kill) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asdict(kill)) + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        for thread in self._threads:
            thread.join(10)
        if self.process.stdin is not None:
            self.process.stdin.close()

    def kill_workers(self) -> int:
        """The Python workers below Spark's daemon; how many there were."""
        daemons = [pid for pid in _below(self.process.pid) if _is_daemon(_command(pid))]
        parents = {child for pid in daemons for child in _children(pid)}
        workers = [pid for pid in daemons if pid in parents]
        for pid in workers:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return len(workers)


def _children(pid: int) -> list[int]:
    try:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(c) for task in tasks for c in (task / "children").read_text().split()]
    except OSError:
        return []


def _below(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _below(child)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _is_daemon(command: bytes) -> bool:
    """That of workers that do tasks: other daemons, for whoever plans a query, have their like."""
    names = (b"pyspark.daemon", held_worker.__name__.encode())
    return any(name + b"\0pyspark.worker\0" in command for name in names)


@dataclass
class Tally:
    """What happened to one job."""

    job: str
    kills: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    commits: int = 0
    replays: int = 0  # kills after which something that was done had to be found done
    lost: int = 0
    doubled: int = 0
    is_by_chance: bool = False

    def compare(self, want: Counter[Any], found: Counter[Any]) -> None:
        self.lost += (want - found).total()
        self.doubled += (found - want).total()

    def assert_exact(self, kills: int) -> None:
        assert self.kills.total() == kills, self
        if not self.is_by_chance or kills >= CHANCES_MIN:
            assert self.replays, f"{self.job}: nothing was found done, so nothing proved: {self}"
        assert (self.lost, self.doubled) == (0, 0), self


class Case:
    """A job, what it is given, and how its result is judged."""

    name: str
    job: str = ""  # empty: as the case
    lives: Sequence[Sequence[Kill]]  # kills of one process each; only the last ends it
    is_by_chance: bool = False  # what a kill meets: none of few may meet what is half done
    is_early: bool = False  # workers are at work before there is progress to be seen
    watched: str | None = None  # topic whose growth is progress; otherwise commits are
    tables: Sequence[str] = ()  # those that are committed to by Spark's batches
    feeds = 0

    def __init__(self, stage: Stage, *, kills: int) -> None:
        self.stage = stage
        self.kills = kills
        self.topics = stage.topics
        self.folder = stage.folder / self.name
        self.folder.mkdir(parents=True)
        self.lake = Lake(self.folder / "lake")
        self.prepare()

    def rows(self, table: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table(table).to_pylist()
        return found

    def table(self, table: str) -> pa.Table:
        return self.lake.table(table).open().to_pyarrow_table()

    def prepare(self) -> None:
        """Make topics and files."""

    def feed(self) -> None:
        """Make work for one life."""

    def arguments(self, *, is_last: bool) -> dict[str, Any]:
        raise AssertionError(f"{self.name} says nothing of its arguments, last or not: {is_last}")

    def is_due_again(self, told: Sequence[Told], batches: Set[int]) -> bool:
        """Whether a batch is in a table and not yet in Spark's checkpoint (``batches`` are those):
        the next run plans it again, and has to find it there."""
        new = {
            each["batch"]
            for each in told
            if each["what"] == "commit" and each["is_new"] and each["table"] in self.tables
        }
        return bool(new & batches)

    def judge(self, tally: Tally, told: Sequence[Told]) -> None:
        """Compare all that is there with the truth."""
        raise AssertionError(f"{self.name} does not judge {tally} by {len(told)} lines")


class Stage:
    """A server, a session, and what happens to jobs."""

    def __init__(self, folder: Path, server: Server, topics: Topics, spark: SparkSession) -> None:
        self.folder = folder
        self.server = server
        self.topics = topics
        self.spark = spark

    def disturb(self, kind: type[Case], *, kills: int, seed: int) -> Tally:
        """Run a job with one kill after the other, then to its end, and judge."""
        case = kind(self, kills=kills)
        chance, told = random.Random(seed), list[Told]()
        tally = Tally(case.name, is_by_chance=case.is_by_chance)
        number = tries = 0
        while tally.kills.total() < kills:
            left = kills - tally.kills.total()
            life = case.lives[number % len(case.lives)][-left:]
            case.feed()
            before = tally.kills.total()
            told += self._live(case, life, tally, chance)
            tries = 0 if tally.kills.total() == before + len(life) else tries + 1
            number += tries == 0
            assert tries < TRIES_MAX, f"{case.name} is always done before it is killed: {tally}"
        told += self.finish(case)
        tally.commits = sum(each["what"] == "commit" and each["is_new"] for each in told)
        _assert_once(told)
        case.judge(tally, told)
        return tally

    def finish(self, case: Case) -> list[Told]:
        """Run a job undisturbed, here. As its runner does, try again what may pass: on a busy
        machine Spark gives up a Python process that takes ten seconds to start."""
        told: list[Told] = []
        for tries_left in reversed(range(TRIES_MAX)):
            try:
                run_job(self.spark, self._wish(case, is_last=True), told.append)
                break
            except Exception as error:
                if not tries_left or not is_transient(error):
                    raise
        return told

    def _wish(self, case: Case, hold: Kill | None = None, *, is_last: bool) -> dict[str, Any]:
        return {
            "job": case.job or case.name,
            "server": self.server.kafka,
            "lake": str(case.lake.path),
            "checkpoint": str(self._checkpoint(case)),
            "arguments": case.arguments(is_last=is_last),
            "hold": asdict(hold) if hold is not None else None,
            "is_told": not is_last,
        }

    def _checkpoint(self, case: Case) -> Path:
        return case.folder / "checkpoint"

    def _live(
        self, case: Case, life: Sequence[Kill], tally: Tally, chance: random.Random
    ) -> list[Told]:
        """One process, until it is dead."""
        seen = self._seen(case, None)
        known = life if case.is_early else life[:1]
        hold = next((kill for kill in known if kill.is_held), None)
        driver = Driver(self._wish(case, hold, is_last=False))
        tally.starts += 1
        try:
            for kill in life:
                if kill.is_held and kill is not hold:
                    driver.hold_at(kill)
                if not self._strike(case, driver, kill, seen, chance):
                    break
                tally.kills[kill.kind] += 1
                if kill.kind == "worker" and not case.is_early:  # it goes on, and gets on
                    seen = self._seen(case, driver)
                    if not self._has_more(case, driver, seen):
                        break
                    seen = self._seen(case, driver)
        finally:
            driver.kill()
        is_well = driver.process.returncode in (0, -signal.SIGKILL)
        assert is_well, f"{case.name} failed by itself:\n{''.join(driver.stderr[-40:])}"
        tally.replays += case.is_due_again(driver.told, undone(self._checkpoint(case)))
        return driver.told

    def _strike(
        self, case: Case, driver: Driver, kill: Kill, seen: int, chance: random.Random
    ) -> bool:
        """False: the job was done before its kill."""
        if kill.is_held:
            if not driver.wait_for(lambda: driver.has_said("held")):
                return False
        elif not case.is_early:
            if not self._has_more(case, driver, seen):
                return False
            threading.Event().wait(chance.random() * MOMENT_S)
        if kill.kind == "worker":
            return bool(
                eventually(
                    lambda: driver.kill_workers() or driver.is_over,
                    seconds=PATIENCE_S,
                    what=f"{case.name} has a Python worker",
                )
            ) and not driver.has_said("done")
        if driver.has_said("done"):
            return False
        driver.kill()
        return True

    def _seen(self, case: Case, driver: Driver | None) -> int:
        """How far it has come."""
        if case.watched is not None:
            places = self.topics.client.places(case.watched)
            ends = self.topics.client.offsets(dict.fromkeys(places, LATEST), is_committed=True)
            return sum(ends.values())
        return driver.commits if driver is not None else 0

    def _has_more(self, case: Case, driver: Driver, seen: int) -> bool:
        if case.watched is None:
            return driver.wait_for(lambda: driver.commits > seen)
        return eventually(
            lambda: self._seen(case, driver) > seen or driver.is_over,
            seconds=PATIENCE_S,
            what=f"{case.watched} grows",
        ) and not driver.has_said("done")


def undone(checkpoint: Path) -> set[int]:
    """Batches of any query of a job that were planned and are not done."""

    def batches(query: Path, log: str) -> set[int]:
        names = [each.name for each in (query / log).iterdir()] if (query / log).is_dir() else []
        return {int(name) for name in names if name.isdigit()}

    queries = list(checkpoint.iterdir()) if checkpoint.is_dir() else []
    return {n for each in queries for n in batches(each, "offsets") - batches(each, "commits")}


def _assert_once(told: Sequence[Told]) -> None:
    """No table takes a batch twice, whatever is in it."""
    commits = Counter(
        (each["table"], each["app"], each["batch"])
        for each in told
        if each["what"] == "commit" and each["is_new"]
    )
    again = [commit for commit, count in commits.items() if count > 1]
    assert not again, f"committed more than once: {again}"


@contextmanager
def stage_in(folder: Path, spark: SparkSession) -> Iterator[Stage]:
    with (
        Server(folder / "data", fsync="never", kafka_port=0) as server,
        topics_of(server.kafka) as topics,
    ):
        yield Stage(folder, server, topics, spark)
        server.assert_no_traceback()
