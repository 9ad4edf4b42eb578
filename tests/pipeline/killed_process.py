"""The process that is killed: a job whose lake says what it commits, and can be stopped there.

    python -m tests.pipeline.killed_process WISH

What it says goes to stdout, a line of JSON each: ``ready``, ``commit``, ``note``, ``held`` and
``done``. Where it is to stop comes with the wish, or later by stdin. ``killing.py`` starts it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.harness.patience import eventually
from tests.pipeline import held_worker
from tests.pipeline.stage import QUERIES, Notes

from penstock.pipeline.job import JobContext
from penstock.pipeline.lake import Commit, Lake, Table
from penstock.pipeline.registry import jobs_of

JOBS = jobs_of("run")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_S = 180.0  # for a session to start and a batch to be done on a busy machine

Told = dict[str, Any]


@dataclass(frozen=True)
class Kill:
    """``table``, ``nth``: which commit of which table it is held at, counted from when it is told;
    without a table, at a commit of any."""

    kind: str
    table: str = ""
    nth: int = 1

    @property
    def is_held(self) -> bool:
        return self.kind in ("between", "before")


class ToldLake(Lake):
    """Says what it commits, and can stop there for good."""

    def __init__(self, path: str | Path, say: Callable[[Told], None]) -> None:
        super().__init__(path)
        self._say = say
        self._hold: Kill | None = None
        self._passed = 0

    def hold_at(self, kill: Kill) -> None:
        self._passed = 0
        self._hold = kill

    def table(self, name: str) -> Table:
        return ToldTable(self, name)

    def pass_by(self, table: str, *, is_before: bool) -> None:
        hold = self._hold
        if hold is None or (hold.kind == "before") != is_before or hold.table not in ("", table):
            return
        self._passed += 1
        if self._passed == hold.nth:
            self._say({"what": "held"})
            threading.Event().wait()

    def say(self, table: str, app: str, commit: Commit) -> None:
        told = {"table": table, "app": app, "batch": commit.batch_id, "is_new": commit.is_new}
        self._say({"what": "commit", **told})


class ToldTable(Table):
    def __init__(self, lake: ToldLake, name: str) -> None:
        super().__init__(lake.path, name)
        self._lake = lake

    def commit(self, *arguments: Any, **options: Any) -> Commit:
        self._lake.pass_by(self.name, is_before=True)
        commit = super().commit(*arguments, **options)
        self._lake.say(self.name, options["app"], commit)
        if commit.is_new:
            self._lake.pass_by(self.name, is_before=False)
        return commit


class ToldNotes(Notes):
    def __init__(self, say: Callable[[Told], None]) -> None:
        super().__init__()
        self._say = say

    def note(self, text: str) -> None:
        super().note(text)
        self._say({"what": "note", "text": text})


def copy(context: JobContext) -> None:
    """Not one of our jobs: a query of a user that copies a topic to another, by way of the sink."""
    wish = context.arguments
    rows = (
        context.spark.readStream.format("penstock")
        .options(**context.read_options)
        .option("subscribe", wish["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(wish["batch_records"]))
        .load()
        .select("key", "value")
    )
    query = (
        rows.writeStream.format("penstock")
        .options(**context.read_options)
        .option("topic", wish["target"])
        .option("checkpointLocation", context.checkpoint_of())
        .trigger(**context.trigger)
    )
    context.follow(query.start())


def run_job(spark: SparkSession, wish: Mapping[str, Any], say: Callable[[Told], None]) -> None:
    lake = ToldLake(wish["lake"], say)
    context = JobContext(
        spark=spark,
        server=wish["server"],
        lake=lake,
        checkpoint=Path(wish["checkpoint"]),
        progress=ToldNotes(say),
        arguments=wish["arguments"],
    )
    hold_at = _holder_of_workers(wish, say) if wish["job"] == "replay" else lake.hold_at
    if wish["hold"] is not None:
        hold_at(Kill(**wish["hold"]))
    if wish["is_told"]:
        threading.Thread(target=_listen, args=(hold_at,), daemon=True).start()
    run = copy if wish["job"] == "sink" else JOBS[wish["job"]].run
    run(context)


def _listen(hold_at: Callable[[Kill], None]) -> None:
    for line in sys.stdin:
        hold_at(Kill(**json.loads(line)))


def _holder_of_workers(
    wish: Mapping[str, Any], say: Callable[[Told], None]
) -> Callable[[Kill], None]:
    """A replay commits to no table: its workers are held (``held_worker.py``)."""
    folder = Path(wish["checkpoint"])

    def wait() -> None:
        eventually((folder / "held").exists, seconds=PATIENCE_S, what="a worker is held")
        say({"what": "held"})

    def hold_at(kill: Kill) -> None:
        assert kill.kind == "between", kill
        (folder / "hold").touch()
        threading.Thread(target=wait, daemon=True).start()

    return hold_at


def drive(wish: Mapping[str, Any]) -> None:
    from penstock.pipeline.session import close_session, open_session

    lock = threading.Lock()

    def say(told: Told) -> None:
        with lock:
            print(json.dumps(told), flush=True)

    conf = dict(QUERIES)
    if wish["job"] == "replay":
        folder = Path(wish["checkpoint"])
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("hold", "held"):
            (folder / name).unlink(missing_ok=True)
        os.environ[held_worker.FOLDER] = str(folder)
        conf["spark.python.daemon.module"] = held_worker.__name__
    spark = open_session("killed", master="local[2,4]", is_short=True, conf=conf)
    say({"what": "ready"})
    run_job(spark, wish, say)
    close_session(spark)
    say({"what": "done"})


if __name__ == "__main__":
    drive(json.loads(sys.argv[1]))
