"""Kills jobs of the pipeline with SIGKILL, again and again, and compares tables with the truth.

    python -m benchmarks.pipeline.kills [--kills 20] [archive usage replay]

The server, the topics and the truth belong to this process; the job runs in another one, in a
process group of its own, which says on stdout what it has committed. A kill waits for a committed
batch, so it never hits the start-up alone, and is one of three:

    after     some milliseconds after a commit: in the middle of the next batch, mostly
    between   with the table's commit done and Spark's checkpoint not yet written: the job is held
              there, and the next run must find the batch in the table and skip it
    worker    only the Python workers, under a job that goes on

At the end the job runs undisturbed; then every row is compared. A run in which no batch was skipped
although one was killed in between is a failure: it would have proved nothing.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.harness.server import Server
from tests.pipeline.stage import Notes
from tests.pipeline.topics import Topics, topics_of

from penstock.net.kafka_client import LATEST, Place
from penstock.pipeline.job import JobContext
from penstock.pipeline.jobs import JOBS
from penstock.pipeline.lake import Commit, Lake, Table
from penstock.record.batch import encode_batch
from penstock.record.record import encode_record

READY_S, LINE_S = 180.0, 180.0
PARTITIONS = 2
RECORDS_PER_KILL = 600  # a run commits a few batches before its kill
BATCH_BYTES = "16k"
REPLAY_RATE = 200.0  # slow enough that a kill finds it at work


# ── The process that is killed ───────────────────────────────────────────────────────────────


class ToldLake(Lake):
    """Says what it commits, and can stop there for good."""

    hold_after: int | None = None
    commits = 0

    def table(self, name: str) -> Table:
        return ToldTable(self, name)


class ToldTable(Table):
    def __init__(self, lake: ToldLake, name: str) -> None:
        super().__init__(lake.path, name)
        self._lake = lake

    def commit(self, *arguments: Any, **options: Any) -> Commit:
        commit = super().commit(*arguments, **options)
        lake = self._lake
        lake.commits += commit.is_new
        say("commit", table=self.name, batch=commit.batch_id, is_new=commit.is_new)
        if lake.hold_after is not None and commit.is_new and lake.commits >= lake.hold_after:
            say("held")
            threading.Event().wait()
        return commit


def say(what: str, **facts: Any) -> None:
    print(json.dumps({"what": what, **facts}), flush=True)


class ToldNotes(Notes):
    def note(self, text: str) -> None:
        super().note(text)
        say("note", text=text)


def drive(wish: dict[str, Any]) -> None:
    from penstock.pipeline.session import close_session, open_session

    spark = open_session("kills", master="local[2,4]", is_short=True, conf=wish.get("conf", {}))
    lake = ToldLake(wish["lake"])
    lake.hold_after = wish["hold_after"]
    notes = ToldNotes()
    context = JobContext(
        spark=spark,
        server=wish["server"],
        lake=lake,
        checkpoint=Path(wish["checkpoint"]),
        progress=notes,
        arguments=wish["arguments"],
    )
    say("ready")
    JOBS[wish["job"]].run(context)
    close_session(spark)
    say("done")


# ── The process that kills ───────────────────────────────────────────────────────────────────


class Driver:
    """One run of a job in a process group of its own."""

    def __init__(self, wish: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "benchmarks.pipeline.kills", "--drive", json.dumps(wish)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.told: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._has_ended = False
        self.stderr: list[str] = []
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
                if line.startswith("{"):
                    with self._news:
                        self.told.append(json.loads(line))
                        self._news.notify_all()
        with self._news:
            self._has_ended = True
            self._news.notify_all()

    def _keep(self, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                self.stderr = [*self.stderr[-200:], line]

    def wait_for(self, is_it: Callable[[dict[str, Any]], bool], *, seconds: float = LINE_S) -> bool:
        """Whether it was said before the process ended."""
        with self._news:
            self._news.wait_for(lambda: self._has_ended or any(map(is_it, self.told)), seconds)
            return any(map(is_it, self.told))

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.end()

    def end(self, seconds: float = READY_S) -> int:
        code = self.process.wait(seconds)
        for thread in self._threads:
            thread.join(10)
        return code

    def kill_workers(self) -> int:
        """The Python workers below Spark's daemon; how many there were."""
        daemons = [pid for pid in _below(self.process.pid) if b"pyspark.daemon" in _command(pid)]
        workers = [pid for pid in daemons if any(pid in _children(other) for other in daemons)]
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


@dataclass
class Tally:
    """What happened to one job."""

    job: str
    kills: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    commits: int = 0
    repeated: int = 0

    def line(self) -> str:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(self.kills.items()))
        return (
            f"{self.job}: {sum(self.kills.values())} kills ({kinds}), {self.commits} commits,"
            f" {self.skipped} batches found in the table and skipped, {self.repeated} chunks known"
            " to their target, every row as it should be"
        )


class Harness:
    def __init__(self, folder: Path, server: Server, *, seed: int) -> None:
        self.folder = folder
        self.server = server
        self.lake = Lake(folder / "lake")
        self._chance = random.Random(seed)

    def disturb(self, job: str, arguments: dict[str, Any], kinds: list[str]) -> Tally:
        """Run a job with one kill after the other, then to its end."""
        tally = Tally(job)
        for kind in kinds:
            driver = self._start(job, arguments, hold_after=2 if kind == "between" else None)
            if not self._strike(driver, kind, tally):
                break  # the job was done before its kill
        driver = self._start(job, arguments)
        code = driver.end()
        self._count(driver, tally)
        assert code == 0, f"{job} failed undisturbed:\n{''.join(driver.stderr[-40:])}"
        if tally.kills["between"] and job != "replay":
            assert tally.skipped, f"{job}: no batch was skipped, so nothing was proved"
        return tally

    def _start(self, job: str, arguments: dict[str, Any], hold_after: int | None = None) -> Driver:
        wish = {
            "job": job,
            "server": self.server.kafka,
            "lake": str(self.lake.path),
            "checkpoint": str(self.folder / f"checkpoint-{job}"),
            "arguments": arguments,
            "hold_after": hold_after,
        }
        return Driver(wish)

    def _strike(self, driver: Driver, kind: str, tally: Tally) -> bool:
        if kind == "sending":
            is_due = self._wait_for_records(driver)
        else:
            sign = "held" if kind == "between" else "commit"
            is_due = driver.wait_for(lambda told: told["what"] == sign and told.get("is_new", True))
        if not is_due:
            driver.kill()
            assert any(told["what"] == "done" for told in driver.told), "".join(driver.stderr[-40:])
            self._count(driver, tally)
            return False
        if kind != "between":
            threading.Event().wait(self._chance.random() * 0.5)
        if kind == "worker":
            struck = driver.kill_workers()
            tally.kills["worker"] += bool(struck)
            before = sum(told["what"] == "commit" for told in driver.told)
            driver.wait_for(
                lambda told: (
                    told["what"] == "done"
                    or sum(t["what"] == "commit" for t in driver.told) > before
                )
            )
        else:
            tally.kills[kind] += 1
        driver.kill()
        self._count(driver, tally)
        return True

    def _wait_for_records(self, driver: Driver) -> bool:
        """A replay commits nothing to tables on its way; its target shows that it is under way."""
        with topics_of(self.server.kafka) as topics:
            place = Place("replayed", 0)
            begin = topics.client.offsets({place: LATEST})[place]
            ends_at = time.monotonic() + LINE_S
            pause = threading.Event()
            while time.monotonic() < ends_at and driver.process.poll() is None:
                if topics.client.offsets({place: LATEST})[place] > begin:
                    return True
                pause.wait(0.02)
        return False

    def _count(self, driver: Driver, tally: Tally) -> None:
        commits = [told for told in driver.told if told["what"] == "commit"]
        tally.commits += sum(told["is_new"] for told in commits)
        tally.skipped += sum(not told["is_new"] for told in commits)
        notes = [told["text"] for told in driver.told if told["what"] == "note"]
        tally.skipped += sum("was there already" in text for text in notes)
        tally.repeated += sum("were there from a run before" in text for text in notes)


# ── Jobs and their truth ─────────────────────────────────────────────────────────────────────


def kill_archive(harness: Harness, topics: Topics, kinds: list[str]) -> Tally:
    count = RECORDS_PER_KILL * (len(kinds) + 1)
    topics.make("archived", PARTITIONS)
    topics.fill("archived", dict.fromkeys(range(PARTITIONS), count // PARTITIONS))
    wish = {"topics": "archived", "batch_bytes": BATCH_BYTES}
    tally = harness.disturb("archive", wish, kinds)
    rows = harness.lake.table("archive/archived").open().to_pyarrow_table()
    rows = rows.sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert rows["value"].to_pylist() == topics.values("archived"), "archive differs from the log"
    return tally


def kill_usage(harness: Harness, topics: Topics, kinds: list[str]) -> Tally:
    from benchmarks.pipeline.facts import make_facts, totals_of, totals_of_rows

    facts = make_facts(RECORDS_PER_KILL // 10 * (len(kinds) + 1), rows=10)
    topics.make("facts", 1)
    send(topics, "facts", [value for _, value in facts])
    wish = {"topic": "facts", "grace_s": 0, "batch_bytes": BATCH_BYTES}
    tally = harness.disturb("usage", wish, kinds)
    want = totals_of(each for each, _ in facts)
    partial = harness.lake.table("usage_partial").open().to_pyarrow_table().to_pylist()
    assert totals_of_rows(partial) == want, "usage differs from the facts"
    sealed = harness.lake.table("usage_hourly").open().to_pyarrow_table().to_pylist()
    last = max(key[0] for key in totals_of_rows(sealed))
    assert totals_of_rows(sealed) == {k: v for k, v in want.items() if k[0] <= last}
    assert not harness.lake.exists("usage_reject"), "a fact was taken for a copy"
    return tally


def send(
    topics: Topics, topic: str, values: list[bytes], *, at_once: int = 5, partition: int = 0
) -> None:
    """Values as they are, a few in each batch, so that few bytes hold several batches."""
    for start in range(0, len(values), at_once):
        records = [
            encode_record(offset_delta=n, timestamp_delta=0, key=None, value=value)
            for n, value in enumerate(values[start : start + at_once])
        ]
        batch = encode_batch(
            records, base_offset=0, leader_epoch=0, base_timestamp=1, max_timestamp=1
        )
        topics.client.produce({Place(topic, partition): batch}, is_repeatable=False)


def kill_replay(harness: Harness, topics: Topics, kinds: list[str]) -> Tally:
    if not harness.lake.exists("archive/archived"):
        kill_archive(harness, topics, [])
    topics.make("replayed", PARTITIONS)
    wish = {"source": "archived", "target": "replayed", "rate": REPLAY_RATE}
    tally = harness.disturb("replay", wish, ["sending"] * len(kinds))
    assert topics.values("replayed") == topics.values("archived"), "replay differs from the archive"
    return tally


ALL = {"archive": kill_archive, "usage": kill_usage, "replay": kill_replay}


@contextmanager
def harness_in(folder: Path, *, seed: int) -> Iterator[tuple[Harness, Topics]]:
    with Server(folder / "data", fsync="never", kafka_port=0) as server:
        with topics_of(server.kafka) as topics:
            yield Harness(folder, server, seed=seed), topics
        server.assert_no_traceback()


def main() -> None:
    parser = argparse.ArgumentParser(description="kill jobs and compare tables with the truth")
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"of {', '.join(ALL)}")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    wish = parser.parse_args()
    if wish.drive:
        drive(json.loads(wish.drive))
        return
    print(f"seed {wish.seed}")
    pattern = ["between", "after", "after", "worker"]
    kinds = [pattern[n % len(pattern)] for n in range(wish.kills)]
    with (
        tempfile.TemporaryDirectory() as folder,
        harness_in(Path(folder), seed=wish.seed) as (harness, topics),
    ):
        for job in wish.jobs or ALL:
            print(ALL[job](harness, topics, kinds).line(), flush=True)


if __name__ == "__main__":
    main()
