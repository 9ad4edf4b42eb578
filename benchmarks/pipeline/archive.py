"""Archiving a topic: ``python -m benchmarks.pipeline.archive [--rows N] [--rounds N]``.

The job ``archive`` beside Spark's own Parquet sink, which gets the same rows from the same source
in batches of the same size, in turn and in the same run. Spark's sink promises less: its files are
complete for readers of its own log only. CPU time is that of this process and all below it, which
is what can be compared on a machine that does other things; it is told by process as well.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

from tests.harness.server import Server
from tests.pipeline.stage import context_of

from benchmarks.pipeline.read import fill
from penstock.pipeline.archive.archive_rows import COLUMNS, PARTITION_BY
from penstock.pipeline.jobs import archive
from penstock.pipeline.lake import Lake
from penstock.pipeline.session import close_session, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TOPIC = "bench"  # as benchmarks.pipeline.read names it
_NEVER = 1 << 30  # files of an hour: compaction is left out, since Spark's sink has none
_TICKS = os.sysconf("SC_CLK_TCK")
# By a word of its command line, whoever comes first.
_ROLES = {
    "pyspark.daemon": "workers",
    "python_streaming_source_runner": "planner",
    "java": "JVM",
    "penstock": "server",
}


class Took(NamedTuple):
    wall_s: float
    cpu_s: dict[str, float]  # by process

    @property
    def total_s(self) -> float:
        return sum(self.cpu_s.values())


def by_job(spark: "SparkSession", server: Server, folder: Path, batch: str) -> None:
    lake = Lake(folder / "lake")
    context = context_of(spark, server, lake, folder / "c", topics=_TOPIC, batch_bytes=batch)
    with patch.object(archive, "FILES_MIN", _NEVER):
        archive.run(context)


def by_spark(spark: "SparkSession", server: Server, folder: Path, batch: str) -> None:
    from pyspark.sql import functions as f

    reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", server.kafka)
    reader = reader.option("subscribe", _TOPIC).option("columns", ",".join(COLUMNS))
    reader = reader.option("startingOffsets", "earliest").option("maxBytesPerTrigger", batch)
    hours = f.to_date("timestamp").alias("date"), f.hour("timestamp").alias("hour")
    query = (
        reader.load()
        .select(*COLUMNS, *hours)
        .writeStream.format("parquet")
        .partitionBy(*PARTITION_BY)
        .option("compression", "zstd")
        .option("path", str(folder / "parquet"))
        .option("checkpointLocation", str(folder / "c"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


class Usage(NamedTuple):
    """CPU seconds of this process and those below it, and of those that they have seen end."""

    own: dict[int, float]
    roles: dict[int, str]
    ended: float


def usage() -> Usage:
    parents: dict[int, int] = {}
    own: dict[int, float] = {}
    ended: dict[int, float] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        pid = int(folder.name)
        parents[pid] = int(fields[1])
        own[pid] = sum(map(int, fields[11:13])) / _TICKS
        ended[pid] = sum(map(int, fields[13:15])) / _TICKS
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    here = below & own.keys()
    return Usage(
        {pid: own[pid] for pid in here},
        {pid: _role(pid) for pid in here},
        sum(ended[pid] for pid in here),
    )


def _role(pid: int) -> str:
    if pid == os.getpid():
        return "driver"
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return "ended"
    return next((role for word, role in _ROLES.items() if word in command), "ended")


def measured(work: Callable[[], None]) -> Took:
    before, began = usage(), time.monotonic()
    work()
    wall_s, after = time.monotonic() - began, usage()
    spent: dict[str, float] = {}
    for pid, total in after.own.items():
        role = after.roles[pid]
        spent[role] = spent.get(role, 0.0) + total - before.own.get(pid, 0.0)
    # Who ended in between is counted by whoever waited for it, with what it had spent before.
    known = sum(total for pid, total in before.own.items() if pid not in after.own)
    spent["ended"] = spent.get("ended", 0.0) + max(0.0, after.ended - before.ended - known)
    return Took(wall_s, spent)


def told(name: str, took: Took, rows: int) -> str:
    mega = rows / 1e6
    shares = ", ".join(
        f"{role} {spent / mega:.2f}"
        for role, spent in sorted(took.cpu_s.items(), key=lambda each: -each[1])
        if spent / mega >= 0.005
    )
    return (
        f"{name}: {rows / took.wall_s:,.0f} rows/s,"
        f" {took.total_s / mega:.2f} CPU s for a million ({shares})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="archive a topic, beside Spark's Parquet sink")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", default=archive.BATCH_BYTES, help="bytes of one micro-batch")
    wish = parser.parse_args()
    ways = {"penstock archive": by_job, "spark parquet": by_spark}
    found: dict[str, list[Took]] = {name: [] for name in ways}
    with (
        tempfile.TemporaryDirectory() as root,
        Server(Path(root) / "data", fsync="never", kafka_port=0) as server,
    ):
        fill(server.kafka, wish.rows, 2)
        spark = open_session("bench", master="local[2,4]")
        for number in range(wish.rounds + 1):  # the first is for warming up
            for name, work in ways.items():
                folder = Path(root) / f"{number}-{name.replace(' ', '-')}"
                took = measured(lambda w=work, f=folder: w(spark, server, f, wish.batch))  # type: ignore[misc]
                if number:
                    found[name].append(took)
                    print(told(name, took, wish.rows), flush=True)
        close_session(spark)
    wall = {name: median(each.wall_s for each in took) for name, took in found.items()}
    cpu = {name: median(each.total_s for each in took) for name, took in found.items()}
    ours, theirs = ways
    print(
        f"archive / Spark's Parquet sink: rows/s {wall[theirs] / wall[ours]:.2f},"
        f" CPU {cpu[ours] / cpu[theirs]:.2f}"
    )


if __name__ == "__main__":
    main()
