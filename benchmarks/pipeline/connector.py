"""Spark reading the same topic by our source and by its own Kafka connector, side by side:
``python -m benchmarks.pipeline.connector [--rows N]``.

Three queries (count, an aggregate over values, to Parquet), the readers taking turns in each round,
beside Spark reading the same rows from Parquet. The ratio is the connector's time over ours: above
1 we are faster. CPU time is that of all processes, server included.

The connector is no part of PySpark: Maven fetches it, or ``--jars`` names it. Not every repository
has every version; the nearest one below PySpark's is taken, and named. Without it the benchmark
says so and measures the others.
"""

import argparse
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.harness.server import Server

from benchmarks.pipeline.read import Cost, cost_of, fill, least
from penstock.pipeline.session import close_session, open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PARTITIONS = 4
_MAVEN_S = 180
_SPARKS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13",
)
# What the connector needs and PySpark does not bring.
_OTHERS: Mapping[str, Sequence[str]] = {
    "org.apache.kafka:kafka-clients": ("3.9.2", "3.9.1", "3.9.0"),
    "org.apache.commons:commons-pool2": ("2.13.1", "2.12.1", "2.12.0"),
}

Load = Callable[[], "DataFrame"]
Query = Callable[["DataFrame"], Any]


class NotToBeHad(Exception):
    """The text says why, in one line."""


# ── The connector ────────────────────────────────────────────────────────────────────────────────


def fetch_jars(folder: Path, version: str) -> list[Path]:
    """The connector for this version of Spark or the nearest older one. Raises NotToBeHad."""
    if shutil.which("mvn") is None:
        raise NotToBeHad("there is no mvn to fetch it with; name its jars with --jars")
    folder.mkdir()
    for name in _SPARKS:
        version = _fetch(folder, name, _not_newer(version))
    for name, versions in _OTHERS.items():
        _fetch(folder, name, versions)
    return sorted(folder.glob("*.jar"))


def _not_newer(version: str) -> list[str]:
    """The version itself, then the first release of each minor version down to .0."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        return [version]
    major, minor = int(found[1]), int(found[2])
    first = [f"{major}.{number}.0" for number in range(minor, -1, -1)]
    return list(dict.fromkeys([version, *first]))


def _fetch(folder: Path, name: str, versions: Iterable[str]) -> str:
    for version in versions:
        command = ("mvn", "-q", "-B", "dependency:copy", f"-Dartifact={name}:{version}")
        try:
            done = subprocess.run(
                [*command, f"-DoutputDirectory={folder}"],
                cwd=folder,
                capture_output=True,
                timeout=_MAVEN_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NotToBeHad(f"Maven did not answer in {_MAVEN_S} s") from None
        if not done.returncode:
            return version
    raise NotToBeHad(f"Maven finds no {name} of {', '.join(versions)}")


# ── The queries ──────────────────────────────────────────────────────────────────────────────────


def count(rows: int) -> Query:
    def run(frame: "DataFrame") -> None:
        found = frame.count()
        assert found == rows, f"{found} rows of {rows}"

    return run


def total_length(rows: int) -> Query:
    def run(frame: "DataFrame") -> None:
        from pyspark.sql import functions as f

        (row,) = frame.agg(f.sum(f.length("value")), f.count("*")).collect()
        assert row[1] == rows, f"{row[1]} rows of {rows}"

    return run


def to_parquet(folder: Path) -> Query:
    def run(frame: "DataFrame") -> None:
        frame.write.mode("overwrite").parquet(str(folder))

    return run


def _run(query: Query, load: Load) -> None:
    query(load())


def compare(queries: Mapping[str, Query], readers: Mapping[str, Load], rows: int) -> None:
    for what, query in queries.items():
        costs: dict[str, list[Cost]] = {name: [] for name in readers}
        for _ in range(4):
            for name, load in readers.items():
                costs[name].append(cost_of(partial(_run, query, load)))
        best = {name: least(each[1:]) for name, each in costs.items()}  # the first warms up
        print(what)
        for name, cost in best.items():
            wall = cost.wall_s / best["penstock"].wall_s
            cpu = cost.total_s / best["penstock"].total_s
            print(
                f"  {name:<10} {cost.told(rows)}; ratio {wall:.2f} wall, {cpu:.2f} CPU", flush=True
            )


def readers_of(
    spark: "SparkSession", kafka: str, parquet: Path, *, has_connector: bool
) -> dict[str, Load]:
    options = {"kafka.bootstrap.servers": kafka, "subscribe": "bench"}

    def topic(kind: str) -> Load:
        return lambda: spark.read.format(kind).options(**options).load()

    readers = {"penstock": topic("penstock")}
    if has_connector:
        readers["kafka"] = topic("kafka")
    return {**readers, "parquet": lambda: spark.read.parquet(str(parquet))}


def main() -> None:
    import pyspark

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--jars", help="of the connector and what it needs, comma-separated")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jars: list[str] = given.jars.split(",") if given.jars else []
        try:
            jars = jars or [str(jar) for jar in fetch_jars(folder / "jars", pyspark.__version__)]
            print(f"Spark {pyspark.__version__} with {', '.join(Path(jar).name for jar in jars)}")
        except NotToBeHad as reason:
            print(f"without Spark's Kafka connector: {reason}")
        conf = {"spark.jars": ",".join(jars)} if jars else {}
        with Server(folder / "data", fsync="never", kafka_port=0) as server:
            rows = given.rows // 100 // _PARTITIONS * 100 * _PARTITIONS
            fill(server.kafka, rows, _PARTITIONS)
            spark = open_session("bench", master=f"local[{given.cores},4]", conf=conf)
            try:
                readers = readers_of(spark, server.kafka, folder / "rows", has_connector=bool(jars))
                to_parquet(folder / "rows")(readers["penstock"]())
                queries = {
                    "count": count(rows),
                    "sum(length(value))": total_length(rows),
                    "to Parquet": to_parquet(folder / "copy"),
                }
                compare(queries, readers, rows)
            finally:
                close_session(spark)


if __name__ == "__main__":
    main()
