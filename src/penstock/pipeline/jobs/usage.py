"""Job ``usage``: sums the rows of ``__usage`` by hour, and counts each row exactly once.

    __usage ─► usage_partial ─► usage_hour      complete hours, and the turn that sealed each
                     │       └► usage_hourly    sums of sealed hours, which never change
                     ├────────► usage_adjustment  sums that came for an hour after it was sealed
                     └─ unreadable records and copies ─► usage_reject

The total of an hour is the sum of its partial sums, so the job has no state to lose, and late rows
are always counted. Nodes number the records that they write (flushes). The commit of a micro-batch
also has rows of the kind ``flush`` with these numbers: a flush with a known number is a copy. Each
commit has the next *turn* (commit number) of the table, and its rows carry this number, which shows
whether they came before or after an hour was sealed. Each table can be computed from those written
before it, and records its progress, so a killed job continues from its tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock.pipeline.facts import usage_sums
from penstock.pipeline.facts.usage_sums import FLUSH, HOURLY, PARTIAL, REJECT
from penstock.pipeline.job import Job, JobContext, Mode, utc
from penstock.pipeline.jobs.queries import FactTopic, check_topics, fact_options, grace_ms_of
from penstock.pipeline.lake import Lake, Table
from penstock.pipeline.reading.stream_source import RecordReader, as_they_are
from penstock.wire.facts.usage import CALLS, STORAGE

__all__ = ["ADJUSTMENT", "HOUR", "HOURLY", "JOB", "PARTIAL", "REJECT", "UsageTables"]

TOPIC: Final = "__usage"
HOUR, ADJUSTMENT = "usage_hour", "usage_adjustment"
HOUR_MS: Final = usage_sums.HOUR_MS
DAY_MS: Final = 24 * HOUR_MS
GRACE_MS: Final = 15 * 60_000
SILENT_MS: Final = DAY_MS  # a node that wrote no facts for this time keeps no hour open
SEEN_DAYS: Final = 40  # flushes of these days are remembered; longer than the topic's retention


def adjustments(partial: DataFrame, hours: DataFrame) -> DataFrame:
    """Return, for each commit (turn), the sums of usage that came after its hour was sealed."""
    counted = partial.where(f.col("kind").isin(CALLS, STORAGE))
    late = counted.join(f.broadcast(hours.select("hour", "through")), "hour")
    sums = [f.sum(name).alias(name) for name in usage_sums.SUMS]
    grouped = late.where("turn > through").groupBy(*usage_sums.KEYS, "turn").agg(*sums)
    return grouped.withColumn("date", f.to_date("hour"))


def last_complete_hour(written_at_ms: Mapping[str, int], *, grace_ms: int) -> int | None:
    """Return the number of the last hour for which all live nodes have written their usage, if any.

    A node is not live if it wrote nothing for a day while others did. Only the times that nodes
    report count, so a later or repeated run gets the same result."""
    if not written_at_ms:
        return None
    newest = max(written_at_ms.values())
    written = min(at for at in written_at_ms.values() if at > newest - SILENT_MS)
    return max(-1, (written - grace_ms) // HOUR_MS - 1)


@dataclass
class UsageTables:
    """A writer of this job's tables. All its state is in them, so a restarted job can continue."""

    spark: SparkSession
    lake: Lake
    app: str = ""
    grace_ms: int = GRACE_MS
    reading: RecordReader = as_they_are  # from batches of the source to records
    flushes: usage_sums.Flushes = field(default_factory=usage_sums.Flushes)
    ends: dict[int, int] = field(default_factory=dict)  # where to continue without a checkpoint
    rejected: int = 0
    _written_at_ms: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.lake.exists(PARTIAL):
            return
        flushes = self.lake.read(self.spark, PARTIAL, f"kind = '{FLUSH}'")
        newest = flushes.selectExpr("max(written_at_ms)").first()
        if newest is None or newest[0] is None:
            return
        since = utc(newest[0] - SEEN_DAYS * DAY_MS).date()
        for row in _islands(flushes.where(f"date >= '{since}'")).toLocalIterator():
            self._note(row)

    def _note(self, found: Any) -> None:
        self.flushes.add((found.node, found.incarnation), found.first_flush, found.last_flush)
        at_ms = max(found.written_at_ms, self._written_at_ms.get(found.node, 0))
        self._written_at_ms[found.node] = at_ms
        self.ends[found.partition] = max(found.end_offset, self.ends.get(found.partition, 0))

    def add(self, batch: DataFrame, batch_id: int) -> bool:
        """Add one micro-batch. Return False if the tables have it already."""
        if self.lake.table(PARTIAL).has(self.app, batch_id):
            return False
        turn = self.lake.table(PARTIAL).turn_of("usage") + 1
        how: dict[str, Any] = {"seen": self.flushes, "turn": turn, "lake": self.lake.path}
        found = usage_sums.write(batch, self.reading, **how)
        if _overlap(found.flushes):  # two tasks had copies of a flush; a single task finds them
            found.drop(self.lake.path)
            found = usage_sums.write(batch.coalesce(1), self.reading, **how)
        self._commit(found, batch_id, turn)
        for each in found.flushes:
            self._note(each)
        sealed = self.sealed_through()
        if sealed is not None and any(each.hour_number <= sealed for each in found.flushes):
            self.adjust()
        return True

    def _commit(self, found: usage_sums.Written, batch_id: int, turn: int) -> None:
        if found.reject:
            # Committed before the sums, after which a second run would take all flushes for copies.
            table = self.lake.table(REJECT)
            table.ensure(usage_sums.REJECT_SCHEMA, ())
            table.commit(found.reject, app=self.app, batch_id=batch_id)
            self.rejected += sum(part.rows for part in found.reject)
        table = self.lake.table(PARTIAL)
        table.ensure(usage_sums.PARTIAL_SCHEMA, usage_sums.PARTIAL_BY)
        table.commit(found.partial, app=self.app, batch_id=batch_id, turn=turn)

    def sealed_through(self) -> int | None:
        return self.lake.version_of(HOUR, "seal")

    def adjust(self) -> int:
        """Append usage that came after its hour was sealed, and return the number of rows."""
        turn = self.lake.table(PARTIAL).turn_of("usage")
        before = self.lake.version_of(ADJUSTMENT, "adjust") or 0
        if turn <= before or not self.lake.exists(HOUR):
            return 0
        partial = self.lake.read(self.spark, PARTIAL, f"turn > {before} AND turn <= {turn}")
        late = adjustments(partial, self.lake.read(self.spark, HOUR))
        commit = self.lake.append(
            late.coalesce(1), ADJUSTMENT, app="adjust", batch_id=turn, partition_by=("date",)
        )
        return commit.rows

    def seal(self) -> int:
        count = self._close_hours()
        last = self.sealed_through()
        done = self.lake.version_of(HOURLY, "seal")
        if last is None or (done is not None and done >= last):
            return count
        through = _through(self.lake.table(HOUR), done)
        shares = usage_sums.shares_of(through, usage_sums.files_of(self.lake.table(PARTIAL)))
        parts = usage_sums.seal(self.spark, shares, self.lake.path)
        table = self.lake.table(HOURLY)
        table.ensure(usage_sums.HOURLY_SCHEMA, usage_sums.HOURLY_BY)
        table.commit(parts, app="seal", batch_id=last)
        return count

    def _close_hours(self) -> int:
        last = last_complete_hour(self._written_at_ms, grace_ms=self.grace_ms)
        sealed = self.sealed_through()
        if last is None or (sealed is not None and last <= sealed):
            return 0
        if sealed is None:
            first = usage_sums.first_hour(usage_sums.files_of(self.lake.table(PARTIAL)))
            sealed = last if first is None else first - 1
        numbers = range(sealed + 1, last + 1)
        if not numbers:
            return 0
        # Partials after this turn are late for these hours, so earlier adjustments come first.
        self.adjust()
        turn = self.lake.table(PARTIAL).turn_of("usage")
        schema = pa.schema([usage_sums.SUMS_SCHEMA.field("hour"), ("through", pa.int64())])
        closed = [{"hour": n * HOUR_MS * 1_000, "through": turn} for n in numbers]
        rows = pa.Table.from_pylist(closed, schema)
        self.lake.append(rows, HOUR, app="seal", batch_id=last)
        return len(numbers)


def _overlap(flushes: Sequence[usage_sums.FlushRange]) -> bool:
    merged = usage_sums.Flushes()
    for each in flushes:
        merged.add((each.node, each.incarnation), each.first_flush, each.last_flush)
    count = sum(last + 1 - first for of in merged.ranges.values() for first, last in of)
    return count < sum(each.last_flush + 1 - each.first_flush for each in flushes)


def _islands(flushes: DataFrame) -> DataFrame:
    of_one = "PARTITION BY node, incarnation, partition ORDER BY first_flush"
    before = f"max(last_flush) OVER ({of_one} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    marked = flushes.selectExpr("*", f"if(first_flush <= {before} + 1, 0, 1) AS begins")
    numbered = marked.selectExpr("*", f"sum(begins) OVER ({of_one}) AS island")
    query = """
        SELECT node, incarnation, partition, min(first_flush) AS first_flush,
            max(last_flush) AS last_flush, max(written_at_ms) AS written_at_ms,
            max(end_offset) AS end_offset
        FROM {numbered} GROUP BY node, incarnation, partition, island"""
    return flushes.sparkSession.sql(query, numbered=numbered)


def _through(hours: Table, done: int | None) -> dict[int, int]:
    where = None if done is None else f"hour > '{utc(done * HOUR_MS):%Y-%m-%dT%H:%M:%SZ}'"
    found: dict[int, int] = {}
    for path in hours.files(where):
        rows = pq.read_table(path, columns=["hour", "through"], partitioning=None)
        numbers = pc.divide(rows["hour"].cast(pa.int64()), HOUR_MS * 1_000)
        found |= dict(zip(numbers.to_pylist(), rows["through"].to_pylist(), strict=True))
    return {hour: turn for hour, turn in found.items() if done is None or hour > done}


def run(context: JobContext) -> None:
    topic = FactTopic(context, TOPIC)
    grace_ms = grace_ms_of(context, GRACE_MS)
    tables = UsageTables(context.spark, context.lake, grace_ms=grace_ms, reading=topic.reading)
    tables.adjust()  # for a run that was killed before this step

    def take(batch: DataFrame, app: str, batch_id: int) -> None:
        tables.app = app
        if not tables.add(batch, batch_id):
            context.progress.note(f"batch {batch_id} is already in the table")
        if context.mode is Mode.CONTINUOUS:
            tables.seal()

    topic.process("usage", take, ends=tables.ends)
    hours = tables.seal()
    context.progress.note(f"{hours} hours sealed, {tables.rejected} records rejected")
    for (node, incarnation), count in tables.flushes.gaps().items():
        context.progress.note(f"{count} flushes of {node}/{incarnation} are missing")


JOB: Final = Job(
    name="usage",
    summary="Sum the usage in the topic __usage by hour, and count each record once.",
    run=run,
    check=lambda context: check_topics(context, [FactTopic(context, TOPIC).name]),
    options=fact_options(TOPIC, "an hour", GRACE_MS),
)
