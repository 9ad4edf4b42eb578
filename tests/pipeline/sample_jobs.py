"""Jobs for the tests of the runner: small, on Spark's own sources, and made to be disturbed.

Each writes what it saw as one file per batch, named by the batch: a batch that is done twice is
there once, as in a lake.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.pipeline.job import Job, JobContext, JobMisused, Unsound

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def keeper(target: Path, hold: str | None = None) -> Callable[[DataFrame, int], None]:
    """Keeps each batch; with ``hold``, waits in each batch until that file is there."""
    target.mkdir(parents=True, exist_ok=True)

    def keep(batch: DataFrame, number: int) -> None:
        rows = [row.value for row in batch.collect()]
        (target / f"begun-{number}").touch()
        pause = threading.Event()
        while hold is not None and not Path(hold).exists():
            pause.wait(0.05)
        draft = target / f".{number}"
        draft.write_text(json.dumps(rows))
        draft.rename(target / f"{number}.json")  # whole, or not there

    return keep


def _copy_lines(context: JobContext) -> None:
    arguments = context.arguments
    lines = (
        context.spark.readStream.format("text")
        .option("maxFilesPerTrigger", 1)
        .load(arguments["input"])
    )
    query = (
        lines.writeStream.queryName("lines")
        .foreachBatch(keeper(context.lake.path / "out", arguments["hold"]))
        .option("checkpointLocation", context.checkpoint_of())
        .trigger(**context.trigger)
        .start()
    )
    context.follow(query)


LINES = Job(
    name="lines",
    summary="Copies lines of files.",
    run=_copy_lines,
    options=[click.Option(["--input"], required=True), click.Option(["--hold"])],
)


def _count(context: JobContext) -> None:
    """A source whose planner is a Python process, as ours has one."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    step_file = Path(context.arguments["steps"])

    class Steps(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"at": 0}

        def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
            return {"at": int(step_file.read_text())}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition((start["at"], end["at"]))]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            for number in range(*partition.value):
                yield (number,)

    class Stepping(DataSource):
        @classmethod
        def name(cls) -> str:
            return "stepping"

        def schema(self) -> str:
            return "value BIGINT"

        def streamReader(self, schema: Any) -> Steps:
            return Steps()

    context.spark.dataSource.register(Stepping)
    query = (
        context.spark.readStream.format("stepping")
        .load()
        .writeStream.queryName("numbers")
        .foreachBatch(keeper(context.lake.path / "out"))
        .option("checkpointLocation", context.checkpoint_of())
        .trigger(**context.trigger)
        .start()
    )
    context.follow(query)


NUMBERS = Job(
    name="numbers",
    summary="Counts up to the number in a file.",
    run=_count,
    options=[click.Option(["--steps"], required=True)],
)


def _ask_for_nothing(context: JobContext) -> None:
    kind = context.arguments["kind"]
    if kind == "misused":
        raise JobMisused("--kind misused is never meant")
    if kind == "unsound":
        raise Unsound("3 rows are not what they should be")
    if kind == "rows":
        context.progress.note("looking")
        context.show([{"name": "a", "count": 1}, {"name": "b", "count": 2}])
        return
    raise AssertionError(kind)


ODD = Job(
    name="odd",
    summary="Ends as it is told to.",
    run=_ask_for_nothing,
    options=[click.Option(["--kind"], required=True)],
    needs_spark=False,
)


def _ask_the_open_session(context: JobContext) -> None:
    """In the session that a test has opened and goes on with: the runner would end its own."""
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    assert spark is not None
    spark.range(10).selectExpr("no_such_column").collect()


BROKEN = Job(
    name="broken",
    summary="Asks for a column that is not there.",
    run=_ask_the_open_session,
    needs_spark=False,
)


def _wait(context: JobContext) -> None:
    out = context.lake.path / "out"
    out.mkdir(parents=True)
    (out / "begun-0").touch()
    pause = threading.Event()
    while not Path(context.arguments["hold"]).exists():
        pause.wait(0.05)


WAITING = Job(
    name="waiting",
    summary="Waits for a file.",
    run=_wait,
    options=[click.Option(["--hold"], required=True)],
    needs_spark=False,
)


def _fail_at_first(context: JobContext) -> None:
    tries = Path(context.arguments["tries"])
    count = len(tries.read_text()) if tries.exists() else 0
    tries.write_text("x" * (count + 1))
    if count < context.arguments["failures"]:
        raise ConnectionResetError("Connection reset")


PASSING = Job(
    name="passing",
    summary="Fails so many times for a reason that passes.",
    run=_fail_at_first,
    options=[
        click.Option(["--tries"], required=True),
        click.Option(["--failures"], type=int, required=True),
    ],
    needs_spark=False,
)


def _repeat(context: JobContext) -> None:
    context.show([{**context.arguments, "since": context.since_ms, "until": context.until_ms}])


NAMESAKE = Job(
    name="namesake",
    summary="Calls its options as all commands call theirs.",
    run=_repeat,
    options=[
        click.Option(["--from", "source"]),
        click.Option(["--to", "target"]),
        click.Option(["--endpoint"]),
        click.Option(["--region"]),
    ],
    needs_spark=False,
)
