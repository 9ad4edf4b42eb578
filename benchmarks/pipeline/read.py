"""Spark reading a topic: ``python -m benchmarks.pipeline.read [--rows N]``.

Three figures, each beside Spark reading the same rows from Parquet in the same run: a batch read
into an aggregate, a stream in large batches, and how long a small micro-batch takes. Wall time says
what a user sees, CPU time (server, JVM and workers) what it costs; on a machine that does other
things only the second can be compared.
"""

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.harness.server import Server

from benchmarks.pipeline.decode import make_chunk
from penstock.net.kafka_client import KafkaClient, Place
from penstock.pipeline.session import close_session, open_session
from penstock.record.batch import split_batches
from penstock.wire.kafka.generated.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CREATE_TOPICS = 19
_BATCHES = 400
_RECORDS = 100
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(root: int) -> float:
    """Of a process and all below it, those that have ended included."""
    stats: dict[int, tuple[int, float]] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        stats[int(folder.name)] = int(fields[1]), sum(map(int, fields[11:15])) / _TICKS
    below = {root}
    while more := {pid for pid, (parent, _) in stats.items() if parent in below} - below:
        below |= more
    return sum(stats[pid][1] for pid in below if pid in stats)


def fill(kafka: str, rows: int, partitions: int) -> None:
    chance = random.Random(1)
    with KafkaClient(kafka) as client:
        # The records are old by their timestamps: nothing may be deleted for its age.
        keep = CreatableTopicConfig("retention.ms", "-1")
        topic = CreatableTopic("bench", partitions, 1, configs=[keep])
        client.call(_CREATE_TOPICS, CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        made = list(split_batches([make_chunk(chance, batches=_BATCHES, records=_RECORDS)]))
        for number in range(rows // _RECORDS // partitions):
            batch = made[number % len(made)]
            places = [Place("bench", index) for index in range(partitions)]
            client.produce(dict.fromkeys(places, batch), is_repeatable=False)


class Bench:
    def __init__(self, spark: "SparkSession", kafka: str, rows: int) -> None:
        self.spark = spark
        self.rows = rows
        self.options = {"kafka.bootstrap.servers": kafka, "subscribe": "bench"}

    def timed(self, run: Callable[[], Any]) -> tuple[float, float]:
        """Wall and CPU seconds: the best of three, since noise only ever adds."""
        walls, cpus = [], []
        for _ in range(3):
            cpu, began = cpu_seconds(os.getpid()), time.perf_counter()
            run()
            walls.append(time.perf_counter() - began)
            cpus.append(cpu_seconds(os.getpid()) - cpu)
        return min(walls), min(cpus)

    def show(self, what: str, ours: tuple[float, float], theirs: tuple[float, float]) -> None:
        mega = self.rows / 1e6
        print(
            f"{what:<28} {mega / ours[0]:5.2f} M rows/s {ours[1] / mega:5.2f} CPU s/M rows;"
            f" Parquet {mega / theirs[0]:5.2f} M rows/s {theirs[1] / mega:5.2f} CPU s/M;"
            f" ratio {theirs[0] / ours[0]:.2f} wall, {theirs[1] / ours[1]:.2f} CPU",
            flush=True,
        )

    def topic(self, **more: str) -> "DataFrame":
        return self.spark.read.format("penstock").options(**self.options, **more).load()

    def batch(self, parquet: str) -> None:
        def aggregate(frame: "DataFrame") -> Any:
            from pyspark.sql import functions as f

            sums = f.sum(f.length("value")), f.max("timestamp"), f.count("*")
            (row,) = frame.agg(*sums).collect()
            assert row[2] == self.rows, f"{row[2]} rows of {self.rows}"

        self.topic().write.mode("overwrite").parquet(parquet)
        theirs = self.timed(lambda: aggregate(self.spark.read.parquet(parquet)))
        self.show("batch, all columns", self.timed(lambda: aggregate(self.topic())), theirs)
        some = self.timed(lambda: aggregate(self.topic(columns="value,timestamp")))
        self.show("batch, columns=value,…", some, theirs)

    def stream(self, parquet: str, folder: Path, per_batch: int) -> None:
        def run(frame: "DataFrame", name: str) -> list[Any]:
            query = (
                frame.writeStream.format("noop")
                .option("checkpointLocation", str(folder / f"{name}-{time.time_ns()}"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            return [each for each in query.recentProgress if each.numInputRows]

        source = self.spark.readStream.format("penstock").options(**self.options)
        source = source.option("startingOffsets", "earliest")
        run(source.option("maxOffsetsPerTrigger", per_batch).load(), "warm")
        found = run(source.option("maxOffsetsPerTrigger", per_batch).load(), "large")
        speeds = [each.numInputRows / each.durationMs["triggerExecution"] / 1e3 for each in found]
        schema = self.spark.read.parquet(parquet).schema
        files = self.spark.readStream.schema(schema).parquet(parquet)
        theirs = run(files, "parquet")
        rates = [each.numInputRows / each.durationMs["triggerExecution"] / 1e3 for each in theirs]
        print(
            f"stream, {per_batch:,} a batch: median {sorted(speeds)[len(speeds) // 2]:.2f},"
            f" best {max(speeds):.2f} M rows/s; Parquet {max(rates):.2f}",
            flush=True,
        )
        small_reader = self.spark.readStream.format("penstock").options(**self.options)
        begin = f'{{"bench":{{{",".join(_near_end(self.rows))}}}}}'
        small_reader = small_reader.option("startingOffsets", begin)
        times = [
            each.durationMs["triggerExecution"]
            for each in run(small_reader.option("maxOffsetsPerTrigger", 400).load(), "small")
        ][5:]
        print(f"small micro-batch: p50 {sorted(times)[len(times) // 2]} ms, least {min(times)} ms")


def _near_end(rows: int) -> list[str]:
    return [f'"{index}":{rows // 4 - 4_000}' for index in range(4)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--cores", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Server(folder / "data", fsync="never", kafka_port=0) as server:
            fill(server.kafka, given.rows, 4)
            spark = open_session("bench", master=f"local[{given.cores},4]")
            try:
                bench = Bench(spark, server.kafka, given.rows)
                bench.batch(str(folder / "parquet"))
                bench.stream(str(folder / "parquet"), folder, given.rows // 4)
            finally:
                close_session(spark)


if __name__ == "__main__":
    main()
