"""How long a retention plan takes over many acknowledgements.

    python -m benchmarks.pipeline.retention [--rows 18000000] [--rounds 3]

Makes acknowledgements of twelve partitions and two cursors, each offset once and one in twenty
twice, shuffled within a thousand as consumers shuffle them, with one hole in every partition. Then,
in turn and in the same session: the plan (rows melted to where each cursor needs the log, segments
decided) and a plain Spark SQL aggregation over the same files, which is as little as one can do
with every row. Prints wall clock and CPU of both (driver, JVM and workers), their ratio, and checks
the plan against what was made.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.net.kafka_client.client import Place
from penstock.pipeline.archive.ack_ranges import floors, read_ack_files
from penstock.pipeline.archive.retention_plan import Facts, Policy, Segment, cuts, plan
from penstock.pipeline.session import close_session, jvm_pid, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS, CURSORS = 12, ("a", "b")
SEGMENT_RECORDS = 10_000
NOW_MS = 1_772_366_400_000


def make(folder: Path, rows: int) -> tuple[list[str], dict[Place, int], int]:
    """Files, the hole of each partition, and the records of each."""
    chance = np.random.default_rng(11)
    records = rows * 20 // 21 // (PARTITIONS * len(CURSORS))
    holes, paths = {}, []
    for partition in range(PARTITIONS):
        hole = int(chance.integers(records // 2, records))
        holes[Place("t", partition)] = hole
        for cursor in CURSORS:
            offsets = np.delete(np.arange(records, dtype=np.int64), hole)
            offsets = np.concatenate((offsets, chance.choice(offsets, records // 20)))
            order = np.argsort(offsets + chance.integers(0, 1_000, len(offsets)))
            path = folder / f"{partition}-{cursor}.parquet"
            table = pa.table(
                {
                    "topic": pa.array(["t"]).take(pa.array(np.zeros(len(offsets), np.int32))),
                    "partition": np.full(len(offsets), partition, np.int32),
                    "cursor": pa.array([cursor]).take(pa.array(np.zeros(len(offsets), np.int32))),
                    "first": offsets[order],
                    "last": offsets[order],
                }
            )
            pq.write_table(table, path, compression="zstd", row_group_size=1_000_000)
            paths.append(str(path))
    return paths, holes, records


def planned(spark: "SparkSession", paths: list[str], records: int) -> dict[Place, int]:
    found = read_ack_files(spark, paths, tasks=spark.sparkContext.defaultParallelism)
    places = [Place("t", n) for n in range(PARTITIONS)]
    needs = floors(found, dict.fromkeys(places, 0))
    segments = [
        Segment(place, base, min(base + SEGMENT_RECORDS, records), 1_000_000, 0)
        for place in places
        for base in range(0, records, SEGMENT_RECORDS)
    ]
    policy = Policy("t", 3_600, is_archive_required=False)
    return cuts(plan(Facts(segments, needs), [policy], [], now_ms=NOW_MS))


def aggregated(spark: "SparkSession", paths: list[str]) -> int:
    rows = spark.read.parquet(*paths).groupBy("topic", "partition", "cursor")
    return len(rows.agg({"first": "min", "last": "max", "*": "count"}).collect())


def cpu_s() -> float:
    """Of this process, its children that have ended, and the JVM with its workers."""
    mine = sum(resource.getrusage(who).ru_utime + resource.getrusage(who).ru_stime
               for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))  # fmt: skip
    return mine + sum(_cpu_of(pid) for pid in _below(jvm_pid()))


def _below(pid: int | None) -> Iterator[int]:
    """A process and all below it."""
    if pid is None:
        return
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from _below(int(child))


def _cpu_of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return sum(map(int, fields[11:15])) / 100


@contextmanager
def measured(into: list[tuple[float, float]]) -> Iterator[None]:
    wall, cpu = time.perf_counter(), cpu_s()
    yield
    into.append((time.perf_counter() - wall, cpu_s() - cpu))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=18_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths, holes, records = make(Path(folder), given.rows)
        rows = sum(pq.ParquetFile(path).metadata.num_rows for path in paths)
        spark = open_session("retention", master="local[2,4]")
        plans: list[tuple[float, float]] = []
        sums: list[tuple[float, float]] = []
        try:
            # The first of each pays for compilation and workers.
            for number in range(given.rounds + 1):
                with measured(plans):
                    found = planned(spark, paths, records)
                with measured(sums):
                    aggregated(spark, paths)
                assert found == {
                    p: at // SEGMENT_RECORDS * SEGMENT_RECORDS for p, at in holes.items()
                }
                if not number:
                    plans.clear()
                    sums.clear()
        finally:
            close_session(spark)
    tell(rows, plans, sums, print)


def tell(
    rows: int,
    plans: list[tuple[float, float]],
    sums: list[tuple[float, float]],
    say: Callable[[str], None],
) -> None:
    say(f"{rows:,} acknowledgements, {PARTITIONS} partitions, {len(CURSORS)} cursors, two cores")
    for name, times in (("plan", plans), ("plain aggregation", sums)):
        wall, cpu = (min(values) for values in zip(*times, strict=True))
        say(f"{name:18} best of {len(times)}: {wall:6.2f} s wall, {cpu:6.2f} s CPU")
    ratio = min(c for _, c in plans) / min(c for _, c in sums)
    say(f"plan / aggregation: {ratio:.2f} in CPU, "
        f"{min(w for w, _ in plans) / min(w for w, _ in sums):.2f} in wall clock")  # fmt: skip


if __name__ == "__main__":
    main()
