"""Usage to hourly sums: ``python -m benchmarks.pipeline.billing [--facts N] [--rounds N]``.

The job ``usage`` (each fact once, rejects apart, durable tables, hours sealed) beside two that do
less with the same facts: a plain Spark aggregate over the topic, and one over Parquet files that
somebody else has made of it. Both throw their result away. One fact is one row of a flush.

Wall clocks say little on a machine that others use, so processor time is printed too: of all
processes, server and JVM included, by process, and, for what tasks of the job do, step by step.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from tests.harness.server import Server
from tests.pipeline.stage import context_of
from tests.pipeline.topics import Topics, topics_of

from benchmarks.pipeline.facts import BEGIN_MS, make_facts
from benchmarks.pipeline.kills import send
from benchmarks.pipeline.read import Cost, cost_of, least
from penstock.net.kafka_client.client import Place
from penstock.pipeline.client.options import parse_read_options
from penstock.pipeline.decoding.packed_columns import READ_BYTES, read_columns
from penstock.pipeline.facts.usage_sums import Flushes, partials, write_share
from penstock.pipeline.jobs import usage
from penstock.pipeline.lake import Commit, Lake, Table
from penstock.pipeline.reading.fetching import read_range
from penstock.pipeline.reading.offsets import Range
from penstock.pipeline.session import close_session, open_session
from penstock.wire.facts.usage import FORM, NUMBERS, TEXTS, encode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROWS = 500  # of one record
_TEMPLATES = 24
_MILLION = 1_000_000
_STEP_ROUNDS = 3


def fill(topics: Topics, facts: int) -> int:
    """Records of three nodes, a minute apart; how many facts they hold."""
    made = [each for each, _ in make_facts(_TEMPLATES, rows=_ROWS)]
    values = []
    for number in range(facts // _ROWS):
        minute = number // 3
        head = msgspec.structs.replace(
            made[number % _TEMPLATES],
            node=f"node-{number % 3}",
            incarnation=f"{number % 3:016x}",
            flush=minute + 1,
            minute_ms=BEGIN_MS + minute * 60_000,
            written_at_ms=BEGIN_MS + (minute + 1) * 60_000,
        )
        values.append(encode(head))
    # The records are old by their timestamps: nothing may be deleted for its age.
    topics.make("facts", 2, retention_ms="-1")
    half = len(values) // 2
    send(topics, "facts", values[:half], at_once=10)
    send(topics, "facts", values[half:], at_once=10, partition=1)
    return len(values) * _ROWS


# ── Ways ─────────────────────────────────────────────────────────────────────────────────────


class TimedLake(Lake):
    def table(self, name: str) -> Table:
        return TimedTable(self.path, name)


class TimedTable(Table):
    commit_s = 0.0  # that all commits took

    def commit(self, *arguments: Any, **options: Any) -> Commit:
        began = time.monotonic()
        try:
            return super().commit(*arguments, **options)
        finally:
            TimedTable.commit_s += time.monotonic() - began


def by_job(spark: "SparkSession", server: Server, folder: Path) -> None:
    lake = TimedLake(folder / "lake")
    usage.run(context_of(spark, server, lake, folder / "c", topic="facts", grace_s=0))


def by_spark(spark: "SparkSession", server: Server, folder: Path) -> None:  # noqa: ARG001
    aggregate(facts_in(spark, server))


def by_parquet(spark: "SparkSession", server: Server, folder: Path) -> None:  # noqa: ARG001
    aggregate(spark.read.parquet(str(folder.parent / "parquet")))


def facts_in(spark: "SparkSession", server: Server) -> "DataFrame":
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", server.kafka)
    return reader.option("subscribe", "facts").option("decode", "usage").load()


def aggregate(rows: "DataFrame") -> None:
    keys = ["minute_ms div 3600000 AS hour", *TEXTS]
    grouped = rows.selectExpr(*keys, *NUMBERS).groupBy("hour", *TEXTS)
    grouped.sum(*NUMBERS).write.format("noop").mode("overwrite").save()


WAYS: dict[str, Callable[["SparkSession", Server, Path], None]] = {
    "job usage": by_job,
    "aggregate of the topic": by_spark,
    "aggregate of Parquet": by_parquet,
}


# ── Measuring ────────────────────────────────────────────────────────────────────────────────


def steps(server: Server, facts: int, folder: Path) -> dict[str, float]:
    """What the tasks of one run do, in one process and without Spark: CPU seconds of each step."""
    options = parse_read_options(
        {
            "kafka.bootstrap.servers": server.kafka,
            "subscribe": "facts",
            "columns": "partition,offset,value",
        },
        is_streaming=False,
    )
    half = facts // _ROWS // 2
    ranges = [Range(Place("facts", number), 0, half) for number in (0, 1)]

    def fetch() -> list[pa.RecordBatch]:
        return [batch for each in ranges for batch in read_range(each, options)]

    batches = fetch()
    values = [value for batch in batches for value in batch.column("value").to_pylist()]
    at_once = max(1, READ_BYTES // len(values[0]))

    def decode() -> None:
        for at in range(0, len(values), at_once):
            blocks = [FORM.block(value).columns for value in values[at : at + at_once]]
            read_columns(blocks, texts=TEXTS, numbers=NUMBERS)

    decode_s = least_cpu_s(decode)
    sum_s = least_cpu_s(lambda: partials(batches, Flushes()))
    write_s = least_cpu_s(lambda: list(write_share(batches, seen=Flushes(), turn=1, lake=folder)))
    return {
        "fetch": least_cpu_s(fetch),
        "decode": decode_s,
        "sum": sum_s - decode_s,  # which is decoding too, as writing is adding up
        "write": write_s - sum_s,
    }


def least_cpu_s(work: Callable[[], object]) -> float:
    """Noise only ever adds."""
    found = []
    for _ in range(_STEP_ROUNDS):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


# ── The table ────────────────────────────────────────────────────────────────────────────────


def tell(name: str, facts: int, cost: Cost) -> None:
    print(
        f"{name}: {facts / cost.wall_s:,.0f} facts/s,"
        f" {cost.total_s / facts * _MILLION:.2f} CPU s per million,"
        f" {facts / cost.total_s:,.0f} facts per CPU second",
        flush=True,
    )


def tell_job(facts: int, cost: Cost, of_tasks: dict[str, float], commit_s: float) -> None:
    millions = facts / _MILLION
    parts = ", ".join(f"{name} {s / millions:.2f}" for name, s in cost.cpu_s.items())
    print(f"job usage, CPU s per million by process: {parts}")
    parts = ", ".join(f"{name} {s / millions:.2f}" for name, s in of_tasks.items())
    rest = cost.total_s - sum(of_tasks.values()) - cost.cpu_s["server"]
    print(f"  by step: {parts}, Spark and all else {rest / millions:.2f}")
    print(f"  commits to the lake: {commit_s:.2f} s of {cost.wall_s:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description="usage to hourly sums, beside plain aggregates")
    parser.add_argument("--facts", type=int, default=4 * _MILLION)
    parser.add_argument("--rounds", type=int, default=3)
    wish = parser.parse_args()
    found: dict[str, list[Cost]] = {name: [] for name in WAYS}
    with (
        tempfile.TemporaryDirectory() as name,
        Server(Path(name) / "data", fsync="never", kafka_port=0) as server,
    ):
        root = Path(name)
        with topics_of(server.kafka) as topics:
            facts = fill(topics, wish.facts)
        of_tasks = steps(server, facts, root / "steps")
        spark = open_session("bench", master="local[2,4]", conf={"spark.driver.memory": "1g"})
        facts_in(spark, server).write.parquet(str(root / "parquet"))
        for number in range(wish.rounds + 1):  # the first is for warming up
            for way, work in WAYS.items():
                folder = root / f"{number}"
                cost = cost_of(lambda w=work, f=folder: w(spark, server, f))  # type: ignore[misc]
                if number:
                    found[way].append(cost)
                    tell(way, facts, cost)
        close_session(spark)
    ours = least(found["job usage"])
    tell_job(facts, ours, of_tasks, TimedTable.commit_s / (wish.rounds + 1))
    for way in list(WAYS)[1:]:
        theirs = least(found[way])
        speed, cpu = theirs.wall_s / ours.wall_s, ours.total_s / theirs.total_s
        print(f"usage / {way}: facts/s {speed:.2f}, CPU {cpu:.2f}")


if __name__ == "__main__":
    main()
