"""Spark reading a topic: ``python -m benchmarks.pipeline.read [--rows N]``.

Three figures, each beside Spark reading the same rows from Parquet in the same run: a batch read
into an aggregate, a stream in large batches, and how long a small micro-batch takes, by its phases.
Wall time says what a user sees, CPU time (server, JVM and workers apart) what it costs; on a
machine that does other things only the second can be compared. ``connector`` compares with Spark's
own Kafka connector.
"""

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.harness.server import Server

from benchmarks.pipeline.decode import make_chunk
from penstock.net.kafka_client.client import KafkaClient, Place
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
PARTS = ("server", "jvm", "python", "driver")


def cpu_by_part(root: int) -> dict[str, float]:
    """Seconds of a process and all below it, those that have ended included: those of the
    ``server``, the ``jvm``, the ``python`` workers, and the ``driver`` itself."""
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
    seconds = dict.fromkeys(PARTS, 0.0)
    for pid in below & stats.keys():
        seconds["driver" if pid == root else _part(pid)] += stats[pid][1]
    return seconds


def _part(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "python"  # ended meanwhile; only workers do
    if command[0].endswith(b"java"):
        return "jvm"
    return "server" if b"serve" in command else "python"


def cpu_seconds(root: int) -> float:
    return sum(cpu_by_part(root).values())


class Cost(NamedTuple):
    wall_s: float
    cpu_s: dict[str, float]  # by part

    @property
    def total_s(self) -> float:
        return sum(self.cpu_s.values())

    def told(self, rows: int) -> str:
        mega = rows / 1e6
        parts = ", ".join(f"{part} {self.cpu_s[part] / mega:.2f}" for part in PARTS[:-1])
        return (
            f"{mega / self.wall_s:5.2f} M rows/s, {self.total_s / mega:5.2f} CPU s/M rows ({parts})"
        )


def cost_of(run: Callable[[], Any]) -> Cost:
    before, began = cpu_by_part(os.getpid()), time.perf_counter()
    run()
    wall_s = time.perf_counter() - began
    after = cpu_by_part(os.getpid())
    return Cost(wall_s, {part: max(0.0, after[part] - before[part]) for part in PARTS})


def least(costs: Iterable[Cost]) -> Cost:
    """Noise only ever adds: the shortest of the walls, and of the CPU times."""
    found = list(costs)
    return Cost(min(each.wall_s for each in found), min(found, key=lambda each: each.total_s).cpu_s)


def fill(kafka: str, rows: int, partitions: int) -> None:
    """The topic ``bench`` with so many records of 16 + 200 bytes, in batches of a hundred."""
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

    def timed(self, run: Callable[[], Any]) -> Cost:
        return least(cost_of(run) for _ in range(3))

    def show(self, what: str, ours: Cost, theirs: Cost) -> None:
        print(f"{what:<24} {ours.told(self.rows)}")
        print(f"{'  Parquet':<24} {theirs.told(self.rows)}")
        wall, cpu = theirs.wall_s / ours.wall_s, theirs.total_s / ours.total_s
        print(f"{'  ratio':<24} {wall:5.2f} wall, {cpu:.2f} CPU", flush=True)

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
            f"stream, {per_batch:,} a batch: median {median(speeds):.2f},"
            f" best {max(speeds):.2f} M rows/s; Parquet {max(rates):.2f}",
            flush=True,
        )
        small_reader = self.spark.readStream.format("penstock").options(**self.options)
        begin = f'{{"bench":{{{",".join(_near_end(self.rows))}}}}}'
        small_reader = small_reader.option("startingOffsets", begin)
        found = run(small_reader.option("maxOffsetsPerTrigger", 400).load(), "small")[5:]
        times = sorted(each.durationMs["triggerExecution"] for each in found)
        print(f"small micro-batch: p50 {median(times)} ms, least {times[0]} ms; of which p50")
        for phase in sorted(found[0].durationMs):
            took = [each.durationMs.get(phase, 0) for each in found]
            print(f"  {phase:<20} {median(took):>5} ms, least {min(took)} ms")


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
