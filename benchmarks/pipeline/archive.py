"""Archiving a topic: ``python -m benchmarks.pipeline.archive [--rows N] [--rounds N]``.

The job ``archive`` beside Spark's own Parquet sink, which gets the same rows from the same source
in batches of the same size, in turn and in the same run. Spark's sink promises less: its files are
complete for readers of its own log only. CPU time is that of this process and all below it, which
is what can be compared on a machine that does other things.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING
from unittest.mock import patch

from tests.harness.server import Server
from tests.pipeline.stage import context_of

from benchmarks.pipeline.read import cpu_seconds, fill
from penstock.pipeline.jobs import archive
from penstock.pipeline.lake import Lake
from penstock.pipeline.session import close_session, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TOPIC = "bench"  # as benchmarks.pipeline.read names it
_BATCH = "64m"
_NEVER = 1 << 30  # files of an hour: compaction is left out, since Spark's sink has none


def by_job(spark: "SparkSession", server: Server, folder: Path) -> None:
    lake = Lake(folder / "lake")
    context = context_of(spark, server, lake, folder / "c", topics=_TOPIC, batch_bytes=_BATCH)
    with patch.object(archive, "FILES_MIN", _NEVER):
        archive.run(context)


def by_spark(spark: "SparkSession", server: Server, folder: Path) -> None:
    reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", server.kafka)
    reader = reader.option("subscribe", _TOPIC).option("columns", ",".join(archive.COLUMNS))
    reader = reader.option("startingOffsets", "earliest").option("maxBytesPerTrigger", _BATCH)
    query = (
        archive.transform(reader.load())
        .writeStream.format("parquet")
        .partitionBy(*archive.PARTITION_BY)
        .option("compression", "zstd")
        .option("path", str(folder / "parquet"))
        .option("checkpointLocation", str(folder / "c"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def measured(work: Callable[[], None]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    cpu, wall = cpu_seconds(os.getpid()), time.monotonic()
    work()
    return time.monotonic() - wall, cpu_seconds(os.getpid()) - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description="archive a topic, beside Spark's Parquet sink")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    wish = parser.parse_args()
    ways = {"penstock archive": by_job, "spark parquet": by_spark}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    with (
        tempfile.TemporaryDirectory() as root,
        Server(Path(root) / "data", fsync="never", kafka_port=0) as server,
    ):
        fill(server.kafka, wish.rows, 2)
        spark = open_session("bench", master="local[2,4]")
        for number in range(wish.rounds + 1):  # the first is for warming up
            for name, work in ways.items():
                folder = Path(root) / f"{number}-{name.replace(' ', '-')}"
                took = measured(lambda w=work, f=folder: w(spark, server, f))  # type: ignore[misc]
                if number:
                    found[name].append(took)
                    rate = wish.rows / took[0]
                    print(f"{name}: {rate:,.0f} rows/s, {took[1]:.1f} CPU s", flush=True)
        close_session(spark)
    middle = {
        name: [median(each) for each in zip(*took, strict=True)] for name, took in found.items()
    }
    ours, theirs = middle["penstock archive"], middle["spark parquet"]
    print(
        f"archive / Spark's Parquet sink: rows/s {theirs[0] / ours[0]:.2f}, "
        f"CPU {ours[1] / theirs[1]:.2f}"
    )


if __name__ == "__main__":
    main()
