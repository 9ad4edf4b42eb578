"""Creates the class-data archive of Spark (``spark/java.py``), with which a JVM starts faster. The
JVM writes the archive at the end of a session that used all common features."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.pipeline.arrow_map import map_in_arrow
from penstock.pipeline.session import close_session, open_session
from penstock.pipeline.spark.java import (
    BASE,
    QUIET,
    TOP,
    Java,
    archive_folder,
    has_base_archive,
    layers,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DUMP_S_MAX = 300.0  # idle machines need 5 to 10 s
_ARCHIVES_MAX = 3  # a few hundred megabytes each; the oldest are deleted


class WarmFailed(Exception):
    """Raised if the class-data archive was not created."""


def warm(java: Java, *, note: Callable[[str], None]) -> Path:
    """Create or replace the class-data archive of Spark, in a separate session."""
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is not None:
        raise WarmFailed("a Spark session is already open in this process: close it first")
    folder = archive_folder(java)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    top = folder / TOP
    top.unlink(missing_ok=True)
    if not has_base_archive(java):
        note("archiving the classes of Java")
        _dump_base(java, folder / BASE)
    note("archiving the classes of Spark: a session starts, works a little and ends")
    draft = folder / f".{TOP}.{os.getpid()}"
    try:
        _dump_top(java, draft)
        draft.replace(top)
    finally:
        draft.unlink(missing_ok=True)
    others = [each for each in folder.parent.iterdir() if each.is_dir() and each != folder]
    others.sort(key=lambda each: each.stat().st_mtime, reverse=True)
    for old in others[_ARCHIVES_MAX - 1 :]:
        shutil.rmtree(old, ignore_errors=True)
    return top


def _dump_base(java: Java, target: Path) -> None:
    command = [str(java.command), "-Xshare:dump", f"-XX:SharedArchiveFile={target}", *QUIET]
    done = subprocess.run(  # noqa: S603  the Java that runs Spark
        command, capture_output=True, timeout=_DUMP_S_MAX, check=False
    )
    if done.returncode or not target.is_file():
        output = (done.stdout + done.stderr).decode("utf-8", "replace").split()
        raise WarmFailed(f"{java.command} wrote no class-data archive: {' '.join(output)[-500:]}")


def _dump_top(java: Java, draft: Path) -> None:
    base = layers(java, None)
    options = [f"-XX:ArchiveClassesAtExit={draft}", *QUIET]
    if base:
        options.append(f"-XX:SharedArchiveFile={base}")
    spark = open_session(
        "penstock warm",
        master="local[2,4]",
        conf={"spark.driver.extraJavaOptions": " ".join(map(shlex.quote, options))},
        is_short=True,
    )
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-warm-") as folder:
            _work_a_little(spark, Path(folder))
    finally:
        close_session(spark, seconds_max=_DUMP_S_MAX)  # the JVM writes the archive when it ends
    if not draft.is_file():
        raise WarmFailed("the JVM wrote no class-data archive: is the disk full?")


def _work_a_little(spark: SparkSession, folder: Path) -> None:
    """Use the features that jobs use, so that the JVM loads their classes."""
    from pyspark.sql.pandas.types import to_arrow_schema

    rows = spark.range(0, 2_000, 1, 4).selectExpr(
        "id", "id % 7 AS k", "cast(id AS string) AS s", "timestamp_seconds(id) AS t"
    )
    rows.write.parquet(str(folder / "rows"))
    read = spark.read.parquet(str(folder / "rows"))
    read.where("k > 2").groupBy("k", "s").count().orderBy("k").limit(5).collect()
    read.join(read.groupBy("k").agg({"id": "sum"}), "k").count()
    map_in_arrow(read, lambda each: each, to_arrow_schema(read.schema, timezone="UTC")).count()

    def keep(batch: DataFrame, number: int) -> None:
        batch.write.mode("append").parquet(str(folder / f"batch-{number}"))

    query = (
        spark.readStream.schema(read.schema)
        .parquet(str(folder / "rows"))
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
