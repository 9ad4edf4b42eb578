"""Usage to hourly sums: ``python -m benchmarks.pipeline.billing [--facts N] [--rounds N]``.

The job ``usage`` (each fact once, rejects apart, durable tables, hours sealed) beside the plainest
thing that Spark can do with the same topic: decode, group by hour and resource, and throw the
result away. One fact is one row of a flush.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import msgspec
from tests.harness.server import Server
from tests.pipeline.stage import context_of
from tests.pipeline.topics import Topics, topics_of

from benchmarks.pipeline.facts import BEGIN_MS, make_facts
from benchmarks.pipeline.kills import send
from benchmarks.pipeline.read import cpu_seconds
from penstock.pipeline.jobs import usage
from penstock.pipeline.lake import Lake
from penstock.pipeline.session import close_session, open_session
from penstock.wire.facts.usage import encode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS = 500  # of one record
_TEMPLATES = 24


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
    topics.make("facts", 2)
    half = len(values) // 2
    send(topics, "facts", values[:half], at_once=10)
    send(topics, "facts", values[half:], at_once=10, partition=1)
    return len(values) * _ROWS


def by_job(spark: "SparkSession", server: Server, folder: Path) -> None:
    lake = Lake(folder / "lake")
    usage.run(context_of(spark, server, lake, folder / "c", topic="facts", grace_s=0))


def by_spark(spark: "SparkSession", server: Server, folder: Path) -> None:  # noqa: ARG001
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", server.kafka)
    rows = reader.option("subscribe", "facts").option("decode", "usage").load()
    keys = ["minute_ms div 3600000 AS hour", "tenant", "region", "resource", "kind", "op"]
    numbers = ["requests", "messages", "bytes_in", "bytes_out", "units64k", "stored_bytes"]
    grouped = rows.selectExpr(*keys, *numbers).groupBy(*[each.split()[-1] for each in keys])
    grouped.sum(*numbers).write.format("noop").mode("overwrite").save()


def measured(work: Callable[[], None]) -> tuple[float, float]:
    cpu, wall = cpu_seconds(os.getpid()), time.monotonic()
    work()
    return time.monotonic() - wall, cpu_seconds(os.getpid()) - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description="usage to hourly sums, beside a plain aggregate")
    parser.add_argument("--facts", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    wish = parser.parse_args()
    ways = {"job usage": by_job, "plain aggregate": by_spark}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    with (
        tempfile.TemporaryDirectory() as root,
        Server(Path(root) / "data", fsync="never", kafka_port=0) as server,
    ):
        with topics_of(server.kafka) as topics:
            facts = fill(topics, wish.facts)
        spark = open_session("bench", master="local[2,4]")
        for number in range(wish.rounds + 1):  # the first is for warming up
            for name, work in ways.items():
                folder = Path(root) / f"{number}"
                took = measured(lambda w=work, f=folder: w(spark, server, f))  # type: ignore[misc]
                if number:
                    found[name].append(took)
                    rate, per_core = facts / took[0], facts / took[1]
                    print(
                        f"{name}: {rate:,.0f} facts/s, {took[1]:.1f} CPU s,"
                        f" {per_core:,.0f} facts per CPU second",
                        flush=True,
                    )
        close_session(spark)
    middle = {
        name: [median(each) for each in zip(*took, strict=True)] for name, took in found.items()
    }
    ours, theirs = middle["job usage"], middle["plain aggregate"]
    print(f"usage / aggregate: facts/s {theirs[0] / ours[0]:.2f}, CPU {ours[1] / theirs[1]:.2f}")


if __name__ == "__main__":
    main()
