"""Job ``usage``: the facts of ``__usage`` added up by the hour, each counted exactly once.

    __usage ─► usage_partial ─► usage_hour      which hours are complete, and up to which turn
                     │       └► usage_hourly    their sums; never changed
                     ├────────► usage_adjustment  what came for an hour after it was sealed
                     └─ what cannot be read, and copies ─► usage_reject

**Partial sums.** A micro-batch becomes sums by hour, tenant, region, resource and operation, and
one commit; the total of an hour is the sum of its partials, so there is no state to lose and
nothing comes too late to be counted. The same commit says which flushes of which node it holds
(rows of the kind ``flush``): a flush that is there already is a copy and is not counted again, one
that is missing between two others is an alarm. Each commit takes the next *turn* of the table, and
its rows carry it: which partials an hour was sealed with is then a comparison of numbers.

**Sealing.** An hour is complete when every live node has told everything up to its end and some
grace. Tables are written in an order in which each can be made from those before, and each knows
how far it is: a job that was killed anywhere goes on from what stands there.

Decoding and summing happen in the executors: ``pipeline/usage_sums.py``.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import pyarrow as pa

from penstock.pipeline.arrow_map import map_in_arrow
from penstock.pipeline.job import Job, JobContext, Mode
from penstock.pipeline.lake import Lake, query_app
from penstock.pipeline.starting import client_of, starting_offsets
from penstock.pipeline.usage_sums import (
    FLUSH,
    HOUR_MS,
    KEYS,
    OUT,
    OUT_SPARK,
    REJECTED,
    SUMS,
    Flushes,
    Name,
    partials,
)
from penstock.wire.facts.usage import CALLS, STORAGE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC: Final = "__usage"
PARTIAL, HOUR, HOURLY = "usage_partial", "usage_hour", "usage_hourly"
ADJUSTMENT, REJECT = "usage_adjustment", "usage_reject"
DAY_MS: Final = 24 * HOUR_MS
GRACE_MS: Final = 15 * 60_000
SILENT_MS: Final = DAY_MS  # a node that told nothing for so long keeps no hour open
SEEN_DAYS: Final = 40  # flushes are remembered for longer than the topic keeps them
BATCH_BYTES: Final = "64m"  # of records, which hold about twenty rows a kilobyte
INPUT_COLUMNS: Final = "partition,offset,value"


# ── Pure transforms of tables ────────────────────────────────────────────────────────────────


def transform(records: "DataFrame", seen: Flushes) -> "DataFrame":
    """Records of ``__usage`` to rows of ``usage_partial``, flushes and rejects among them."""

    def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return partials(batches, seen)

    return map_in_arrow(records.select("partition", "offset", "value"), make, OUT_SPARK)


def hourly(partial: "DataFrame", hours: "DataFrame") -> "DataFrame":
    """Sums of the hours that are sealed: of all partials up to the turn with which each was."""
    from pyspark.sql import functions as f

    counted = partial.where(f.col("kind").isin(CALLS, STORAGE))
    sealed = hours.select("hour", "through")
    joined = counted.join(f.broadcast(sealed), "hour").where("turn <= through")
    sums = [f.sum(name).alias(name) for name in SUMS]
    return joined.groupBy(*KEYS, "through").agg(*sums).withColumn("date", f.to_date("hour"))


def adjustments(partial: "DataFrame", hours: "DataFrame") -> "DataFrame":
    """Partials that came for an hour after it was sealed, by turn."""
    from pyspark.sql import functions as f

    counted = partial.where(f.col("kind").isin(CALLS, STORAGE))
    late = counted.join(f.broadcast(hours.select("hour", "through")), "hour")
    sums = [f.sum(name).alias(name) for name in SUMS]
    grouped = late.where("turn > through").groupBy(*KEYS, "turn").agg(*sums)
    return grouped.withColumn("date", f.to_date("hour"))


def last_complete_hour(written_at_ms: Mapping[str, int], *, grace_ms: int) -> int | None:
    """The number of the last hour for which every live node has told everything; None: none.

    A node that was silent for a day while others were not is not live. Time is what nodes say:
    a job that runs later, or again, decides the same.
    """
    if not written_at_ms:
        return None
    newest = max(written_at_ms.values())
    told = min(at for at in written_at_ms.values() if at > newest - SILENT_MS)
    return max(-1, (told - grace_ms) // HOUR_MS - 1)


# ── The job ──────────────────────────────────────────────────────────────────────────────────


class UsageTables:
    """What one driver does with the tables; all it remembers it has read from them."""

    def __init__(
        self, spark: "SparkSession", lake: Lake, *, app: str = "", grace_ms: int = GRACE_MS
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._grace_ms = grace_ms
        self.app = app
        self.flushes = Flushes()
        self._written_at_ms: dict[str, int] = {}
        self.ends: dict[int, int] = {}  # partition of __usage: where to go on without a checkpoint
        self.rejected = 0
        self._remember()

    def _remember(self) -> None:
        if not self._lake.exists(PARTIAL):
            return
        newest = self._lake.read(self._spark, PARTIAL, f"kind = '{FLUSH}'")
        row = newest.selectExpr("max(written_at_ms)").first()
        if row is None or row[0] is None:
            return
        since = row[0] - SEEN_DAYS * DAY_MS
        day = f"cast(from_unixtime({since // 1_000}) AS date)"
        for told in _islands(newest.where(f"date >= {day}")).toLocalIterator():
            self._note(told)

    def _note(self, told: Any) -> None:
        self.flushes.add((told.node, told.incarnation), told.first_flush, told.last_flush)
        at_ms = max(told.written_at_ms, self._written_at_ms.get(told.node, 0))
        self._written_at_ms[told.node] = at_ms
        self.ends[told.partition] = max(told.end_offset, self.ends.get(told.partition, 0))

    def add(self, records: "DataFrame", batch_id: int) -> bool:
        """One micro-batch; false if the tables had it already."""
        done = self._lake.version_of(PARTIAL, self.app)
        if done is not None and done >= batch_id:
            return False
        rows = transform(records, self.flushes).persist()
        try:
            told = _told(rows)
            if _overlap(told):  # copies of one flush in two tasks: one task sees both
                rows.unpersist()
                rows = transform(records.coalesce(1), self.flushes).persist()
                told = _told(rows)
            self._append(rows, batch_id)
        finally:
            rows.unpersist()
        for each in told:
            self._note(each)
        sealed = self.sealed_through()
        if sealed is not None and any(row.hour_number <= sealed for row in told):
            self.adjust()
        return True

    def _append(self, rows: "DataFrame", batch_id: int) -> None:
        from pyspark.sql import functions as f

        rejects = rows.where(f"kind = '{REJECTED}'").selectExpr(
            "partition", "end_offset - 1 AS offset", "why", "value"
        )
        count = rejects.count()
        if count:
            # Before the sums: when those are there, a second run would take all for copies.
            self._lake.append(rejects, REJECT, app=self.app, batch_id=batch_id)
            self.rejected += count
        turn = self._lake.table(PARTIAL).turn_of("usage") + 1
        at = f.when(f.col("kind") == FLUSH, f.timestamp_millis("written_at_ms"))
        partial = (
            rows.where(f"kind <> '{REJECTED}'")
            .drop("why", "value")
            .withColumn("turn", f.lit(turn).cast("long"))
            .withColumn("date", f.to_date(f.coalesce(at, f.col("hour"))))
        )
        self._lake.append(
            partial,
            PARTIAL,
            app=self.app,
            batch_id=batch_id,
            partition_by=("kind", "date"),
            turn=turn,
        )

    def sealed_through(self) -> int | None:
        return self._lake.version_of(HOUR, "seal")

    def adjust(self) -> int:
        """Tell apart what came after its hour was sealed; how many rows there were."""
        turn = self._lake.table(PARTIAL).turn_of("usage")
        before = self._lake.version_of(ADJUSTMENT, "adjust") or 0
        if turn <= before or not self._lake.exists(HOUR):
            return 0
        partial = self._lake.read(self._spark, PARTIAL, f"turn > {before} AND turn <= {turn}")
        late = adjustments(partial, self._lake.read(self._spark, HOUR))
        commit = self._lake.append(
            late.coalesce(1), ADJUSTMENT, app="adjust", batch_id=turn, partition_by=("date",)
        )
        return commit.rows

    def seal(self) -> int:
        """Close the hours that are complete; how many there were."""
        count = self._close_hours()
        last = self.sealed_through()
        done = self._lake.version_of(HOURLY, "seal")
        if last is None or (done is not None and done >= last):
            return count
        since = "" if done is None else f"hour > {_sql_hour(done)}"
        hours = self._lake.read(self._spark, HOUR, since or None)
        partial = self._lake.read(self._spark, PARTIAL, since or None)
        self._lake.append(
            hourly(partial, hours), HOURLY, app="seal", batch_id=last, partition_by=("date",)
        )
        return count

    def _close_hours(self) -> int:
        last = last_complete_hour(self._written_at_ms, grace_ms=self._grace_ms)
        sealed = self.sealed_through()
        if last is None or (sealed is not None and last <= sealed):
            return 0
        if sealed is None:
            first = self._lake.read(self._spark, PARTIAL).selectExpr(
                "unix_seconds(min(hour)) div 3600 AS number"
            )
            row = first.first()
            assert row is not None
            sealed = row.number - 1
        numbers = range(sealed + 1, last + 1)
        if not numbers:
            return 0
        # What is late for an hour must be known by its turn, so adjustments up to here are due.
        self.adjust()
        turn = self._lake.table(PARTIAL).turn_of("usage")
        rows = pa.table(
            {
                "hour": pa.array([n * HOUR_MS * 1_000 for n in numbers], pa.int64()).cast(
                    OUT.field("hour").type
                ),
                "through": pa.array([turn] * len(numbers), pa.int64()),
            }
        )
        self._lake.append_arrow(rows, HOUR, app="seal", batch_id=last)
        return len(numbers)


def _told(rows: "DataFrame") -> list[Any]:
    """Which flushes a batch has, and for which hours the first of their facts are."""
    flushes = rows.where(f"kind = '{FLUSH}'")
    return flushes.selectExpr("*", "unix_seconds(hour) div 3600 AS hour_number").collect()


def _overlap(told: Sequence[Any]) -> bool:
    """Whether two tasks have the same flush."""
    found: dict[Name, list[tuple[int, int]]] = {}
    for row in told:
        found.setdefault((row.node, row.incarnation), []).append((row.first_flush, row.last_flush))
    return any(
        after[0] <= before[1]
        for ranges in map(sorted, found.values())
        for before, after in pairwise(ranges)
    )


def _islands(flushes: "DataFrame") -> "DataFrame":
    """Flushes of many batches as few ranges."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    of_one = Window.partitionBy("node", "incarnation", "partition").orderBy("first_flush")
    before = f.max("last_flush").over(of_one.rowsBetween(Window.unboundedPreceding, -1))
    begins = f.when(f.col("first_flush") <= before + 1, 0).otherwise(1)
    marked = flushes.withColumn("begins", begins)
    numbered = marked.withColumn("island", f.sum("begins").over(of_one))
    return numbered.groupBy("node", "incarnation", "partition", "island").agg(
        f.min("first_flush").alias("first_flush"),
        f.max("last_flush").alias("last_flush"),
        f.max("written_at_ms").alias("written_at_ms"),
        f.max("end_offset").alias("end_offset"),
    )


def _sql_hour(number: int) -> str:
    return f"timestamp_seconds({number * 3_600})"


def run(context: JobContext) -> None:
    grace_ms = int(context.arguments.get("grace_s", GRACE_MS // 1_000)) * 1_000
    tables = UsageTables(context.spark, context.lake, grace_ms=grace_ms)
    tables.adjust()  # what a killed run had not come to
    checkpoint = context.checkpoint_of()

    def take(records: "DataFrame", batch_id: int) -> None:
        tables.app = query_app("usage", checkpoint)
        if not tables.add(records, batch_id):
            context.progress.note(f"batch {batch_id} was there already")
        if context.mode is Mode.CONTINUOUS:
            tables.seal()

    reader = context.spark.readStream.format("penstock").options(**context.read_options)
    topic = str(context.arguments.get("topic") or TOPIC)
    reader = reader.option("subscribe", topic).option("columns", INPUT_COLUMNS)
    stream = (
        reader.option("startingOffsets", _starting(context, topic, tables.ends, checkpoint))
        .option("maxBytesPerTrigger", context.arguments.get("batch_bytes", BATCH_BYTES))
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", checkpoint)
        .trigger(**context.trigger)
    )
    context.follow(stream.start())
    hours = tables.seal()
    context.progress.note(f"{hours} hours sealed, {tables.rejected} records rejected")
    for (node, incarnation), count in tables.flushes.gaps().items():
        context.progress.note(f"{count} flushes of {node}/{incarnation} are missing")


def _starting(context: JobContext, topic: str, ends: Mapping[int, int], checkpoint: str) -> str:
    """Where a query without a checkpoint begins: the table is one as well."""
    if not ends or (Path(checkpoint) / "metadata").exists():
        return "earliest"
    with client_of(context) as client:
        return starting_offsets(client, [topic], {topic: dict(ends)})


JOB: Final = Job(
    name="usage",
    summary="Add up the facts of __usage by the hour, exactly once.",
    run=run,
    options=(
        click.Option(
            ["--grace", "grace_s"],
            type=click.IntRange(0, 86_400),
            default=GRACE_MS // 1_000,
            show_default=True,
            metavar="SECONDS",
            help="how long an hour stays open after its end",
        ),
        click.Option(["--topic"], default=TOPIC, show_default=True, help="or a mirror of it"),
    ),
)
