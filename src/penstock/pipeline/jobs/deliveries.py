"""Job ``deliveries``: keeps the rows of ``__deliveries``, sums them by hour, and compares them with
the messages that were to be delivered.

    __deliveries ─► delivery          every row once, divided by date and hour
                        └► delivery_hourly   sums by subscription and hour

A run replaces the sums of each hour that has got rows since they were computed, so late rows are
counted too. All state is in the tables: the number of rows of an hour tells whether its sums are
current. A flush that a mirror of the topic contains twice is counted once.

``verify deliveries`` finds the messages of one subscription that have no row, or several."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click
import pyarrow as pa

from penstock.net.kafka_client.client import EARLIEST, LATEST
from penstock.pipeline.arrow_map import batch_of, schema_of
from penstock.pipeline.job import (
    Job,
    JobContext,
    JobMisused,
    Mode,
    NotFound,
    Unsound,
    option,
    require_table,
)
from penstock.pipeline.jobs.queries import check_topics, client_of, process, topic_stream
from penstock.pipeline.lake import Lake, Table

if TYPE_CHECKING:
    import datetime

    from pyspark.sql import DataFrame, SparkSession

    Hour = tuple[datetime.date, int]

ROWS, HOURLY = "delivery", "delivery_hourly"
NAME: Final = "deliveries"
TOPIC: Final = "__deliveries"
BY: Final = ("date", "hour")
BATCH_BYTES: Final = "64m"
FAULTS_MAX: Final = 1_000  # listed faults; all faults are counted

# A flush can be in a mirror of the topic twice.
_ALL_ROWS: Final = """once AS (
        SELECT first(struct(*)) AS it, count(*) AS copies FROM {rows} WHERE error IS NULL
        GROUP BY node, incarnation, flush, row_index
    ), all_rows AS (SELECT it.*, copies FROM once)"""
_OUTCOMES: Final = {  # columns of delivery_hourly
    "delivered": "delivered",
    "retried": "retry",
    "dead": "dead",
    "dropped": "dropped",
    "refused": "refused",
    "expired": "expired",
}
_COUNTS: Final = ", ".join(
    f"count_if(NOT is_test AND outcome = '{outcome}') AS {name}"
    for name, outcome in _OUTCOMES.items()
)
# Nothing was sent for the other outcomes.
_IS_ATTEMPT: Final = "NOT is_test AND outcome NOT IN ('refused', 'expired')"
_HOURLY: Final = f"""
    WITH {_ALL_ROWS}
    SELECT date, hour, tenant, region, source_topic, subscription,
        count_if({_IS_ATTEMPT}) AS attempts, {_COUNTS},
        count_if({_IS_ATTEMPT} AND is_replay) AS replays, count_if(is_test) AS tests,
        coalesce(sum(bytes) FILTER (WHERE {_IS_ATTEMPT}), 0L) AS bytes,
        percentile_approx(ms, 0.5D) FILTER (WHERE {_IS_ATTEMPT}) AS ms_p50,
        percentile_approx(ms, 0.99D) FILTER (WHERE {_IS_ATTEMPT}) AS ms_p99,
        sum(copies) AS row_count
    FROM all_rows GROUP BY date, hour, tenant, region, source_topic, subscription"""  # noqa: S608


@dataclass
class DeliveryTables:
    """A writer of this job's tables. All its state is in them, so a restarted job can continue."""

    spark: "SparkSession"
    lake: Lake
    topic: str = TOPIC
    rows: int = 0

    def add(self, records: "DataFrame", *, app: str, batch_id: int) -> None:
        """Add one micro-batch, unless the table has it already."""
        from pyspark.sql import functions as f

        hour = "CAST(at_ms div 3600000 % 24 AS INT) AS hour"
        named = records.withColumn("topic", f.lit(self.topic))
        dated = named.selectExpr("*", "to_date(timestamp_millis(at_ms)) AS date", hour)
        how: dict[str, Any] = {"partition_by": BY, "is_tracked": True}
        self.rows += self.lake.append(dated, ROWS, app=app, batch_id=batch_id, **how).rows

    def roll_up(self) -> int:
        """Compute the sums of all hours that have new rows. Return the number of hours."""
        table = self.lake.table(ROWS)
        if not table.exists():
            return 0
        handle = table.open()
        summed = self._summed()
        hours = [hour for hour, count in _row_counts(table).items() if summed[hour] != count]
        if not hours:
            return 0
        where = " OR ".join(f"(date = '{date}' AND hour = {hour})" for date, hour in sorted(hours))
        rows = self.lake.read(self.spark, ROWS, where)
        # The batch id is the version of the table of rows, so no version is summed up twice.
        self.lake.append(
            self.spark.sql(_HOURLY, rows=rows).repartition(*BY),
            HOURLY,
            app=f"delivery-hourly:{handle.metadata().id}",
            batch_id=handle.version(),
            partition_by=BY,
            replace_where=where if self.lake.exists(HOURLY) else None,
        )
        return len(hours)

    def _summed(self) -> "Counter[Hour]":
        """Return the number of rows that are in the sums of each hour."""
        if not self.lake.exists(HOURLY):
            return Counter()
        rows = self.lake.read(self.spark, HOURLY).groupBy(*BY).agg({"row_count": "sum"})
        return Counter({(row[0], row[1]): row[2] for row in rows.collect()})


def _row_counts(table: Table) -> "Counter[Hour]":
    """Return the number of rows of each hour, from the metadata of the table."""
    actions = table.open().get_add_actions(flatten=True)
    names = ("partition.date", "partition.hour", "num_records")
    counts: Counter[Hour] = Counter()
    for date, hour, count in zip(*(actions.column(n).to_pylist() for n in names), strict=True):
        if date is not None:  # the row of an unreadable record has no time
            counts[date, hour] += count
    return counts


def _topic(context: JobContext) -> str:
    return str(context.arguments.get("topic") or TOPIC)


def run(context: JobContext) -> None:
    topic = _topic(context)
    tables = DeliveryTables(context.spark, context.lake, topic)

    def take(records: "DataFrame", app: str, batch_id: int) -> None:
        tables.add(records, app=app, batch_id=batch_id)
        if context.mode is Mode.CONTINUOUS:
            tables.roll_up()

    ends = context.lake.end_offsets(ROWS, NAME)
    reader = topic_stream(context, topic, ends, decode=NAME)
    process(context, NAME, reader, take, batch_bytes=BATCH_BYTES)
    hours = tables.roll_up()
    context.progress.note(f"{tables.rows} rows copied, {hours} hours summed up")


# ── Comparison with the source ───────────────────────────────────────────────────────────────

MISSING: Final = "missing"  # no row, although the source has the message
UNKNOWN: Final = "unknown"  # a row, but the source does not have the message
DOUBLE: Final = "double"  # delivered more than once, not counting replays
PENDING: Final = "pending"  # failed so far
UNRECORDED: Final = "unrecorded"  # settled, but the row was lost, for example at a crash
_KINDS: Final = (MISSING, UNKNOWN, DOUBLE, PENDING, UNRECORDED)
_IS_SETTLED: Final = """(outcome IN ('delivered', 'dead', 'dropped', 'expired')
                OR (outcome = 'refused' AND next_ms = 0))"""
_RANGE: Final = schema_of("partition int, first_offset long, end_offset long, acked long")
_JUDGED: Final = f"""
    WITH {_ALL_ROWS}, told AS (
        SELECT source_partition AS partition, source_offset AS offset, count(*) AS attempts,
            count_if(outcome = 'delivered' AND NOT is_replay) AS delivered,
            bool_or({_IS_SETTLED}) AS is_settled
        FROM all_rows WHERE NOT is_test GROUP BY ALL
    ), within AS (
        SELECT told.* FROM told JOIN {{ranges}} AS r
        ON told.partition = r.partition AND offset >= first_offset AND offset < end_offset
    ), joined AS (
        SELECT partition, offset, coalesce(attempts, 0L) AS attempts,
            coalesce(delivered, 0L) AS delivered, coalesce(is_settled, false) AS is_settled,
            is_there IS NOT NULL AS is_there
        FROM within FULL JOIN (SELECT partition, offset, 1 AS is_there FROM {{records}})
        USING (partition, offset)
    )
    SELECT partition, offset, attempts, delivered, CASE
        WHEN NOT is_there THEN '{UNKNOWN}'
        WHEN delivered > 1 THEN '{DOUBLE}'
        WHEN is_settled THEN NULL
        WHEN offset < acked THEN '{UNRECORDED}'
        WHEN attempts = 0 THEN '{MISSING}'
        ELSE '{PENDING}' END AS kind
    FROM joined JOIN {{ranges}} USING (partition)"""  # noqa: S608


@dataclass(frozen=True)
class Range:
    """The offsets of one partition that are compared."""

    first: int
    end: int
    log_end: int
    acked: int  # the server reports that the messages before this offset are settled


def judge(rows: "DataFrame", records: "DataFrame", ranges: Mapping[int, Range]) -> "DataFrame":
    """Compare the rows of a subscription with the records (partition, offset) of its source, and
    return one row for each record. ``kind`` is null if the record is settled and not repeated."""
    spark = rows.sparkSession
    cells = [(partition, r.first, r.end, r.acked) for partition, r in ranges.items()]
    bounds = spark.createDataFrame(pa.Table.from_batches([batch_of(cells, _RANGE)]))
    return spark.sql(_JUDGED, rows=rows, records=records, ranges=bounds)


def _offsets(context: JobContext, name: str) -> dict[int, int]:
    """Parse an option such as ``0:120,1:80``: an offset for each partition."""
    text = str(context.arguments.get(name) or "")
    found: dict[int, int] = {}
    for part in filter(None, text.split(",")):
        partition, colon, offset = part.partition(":")
        if not (colon and partition.isdecimal() and offset.isdecimal()):
            raise JobMisused(f"--{name} is '{text}': give PARTITION:OFFSET, such as 0:120,1:80")
        found[int(partition)] = int(offset)
    return found


def _ranges(context: JobContext, rows: "DataFrame", source: str) -> dict[int, Range]:
    """Return what to compare: by default from the first message with a row to the last settled."""
    firsts, ends, acked = (_offsets(context, name) for name in ("first", "end", "acked"))
    spans = f"""
        SELECT source_partition AS partition, min(source_offset) AS first_offset,
            coalesce(max(source_offset) FILTER (WHERE {_IS_SETTLED}) + 1, 0L) AS end_offset
        FROM {{rows}} WHERE NOT is_test GROUP BY ALL"""  # noqa: S608
    found = rows.sparkSession.sql(spans, rows=rows).collect()
    firsts = {row.partition: row.first_offset for row in found} | firsts
    ends = {row.partition: row.end_offset for row in found} | ends
    with client_of(context) as client:
        places = [place for place in client.places(source) if place.partition in firsts]
        begins = client.offsets(dict.fromkeys(places, EARLIEST))
        lasts = client.offsets(dict.fromkeys(places, LATEST), is_committed=True)
    ranges = {}
    for place in places:
        number = place.partition
        first = max(firsts[number], begins[place])
        end = ends.get(number, lasts[place])
        if first < end:
            ranges[number] = Range(first, end, lasts[place], acked.get(number, 0))
    return ranges


def _read_source(context: JobContext, source: str, ranges: Mapping[int, Range]) -> "DataFrame":
    firsts = {str(number): min(r.first, r.log_end) for number, r in ranges.items()}
    ends = {str(number): min(r.end, r.log_end) for number, r in ranges.items()}
    given = {
        "assign": json.dumps({source: list(ranges)}),
        "startingOffsets": json.dumps({source: firsts}),
        "endingOffsets": json.dumps({source: ends}),
        "columns": "partition,offset",
    }
    return context.spark.read.format("penstock").options(**context.read_options, **given).load()


def run_verify(context: JobContext) -> None:
    from pyspark.sql import functions as f

    subscription = _subscription(context)
    is_one = (f.col("subscription") == subscription) & f.col("error").isNull()
    rows = context.lake.read(context.spark, ROWS).where(is_one)
    sources = sorted(row[0] for row in rows.select("source_topic").distinct().collect())
    if not sources:
        raise NotFound(
            f"the lake has no deliveries of subscription {subscription}",
            f"penstock pipeline run {NAME}",
        )
    ranges = _ranges(context, rows, sources[0])
    if not ranges:
        raise JobMisused("there are no messages to compare: give other values of --first and --end")
    judged = judge(rows, _read_source(context, sources[0], ranges), ranges).persist()
    try:
        counts = Counter(
            {row.kind: row["count"] for row in judged.groupBy("kind").count().collect()}
        )
        listed = judged.where("kind IS NOT NULL").orderBy("partition", "offset").limit(FAULTS_MAX)
        faults = [row.asDict() for row in listed.collect()]
    finally:
        judged.unpersist()
    if context.arguments.get("filtered"):  # no row: the filter policy did not match
        counts[None] += counts.pop(MISSING, 0)
        faults = [fault for fault in faults if fault["kind"] != MISSING]
    context.show(faults)
    texts = [f"{counts[kind]} {kind}" for kind in _KINDS if counts[kind]]
    context.progress.note(f"{counts.total()} messages: {', '.join([f'{counts[None]} ok', *texts])}")
    doubles_max = int(context.arguments.get("doubles_max") or 0)
    if counts[MISSING] or counts[UNKNOWN] or counts[DOUBLE] > doubles_max:
        raise Unsound(f"deliveries of {subscription}: {', '.join(texts)}")


def _subscription(context: JobContext) -> str:
    subscription = context.arguments.get("subscription")
    if not subscription:
        raise JobMisused("--subscription is required: name the subscription to verify")
    return str(subscription)


def _check_verify(context: JobContext) -> None:
    _subscription(context)
    for name in ("first", "end", "acked"):
        _offsets(context, name)
    require_table(context.lake, ROWS, job=NAME)


JOB: Final = Job(
    name=NAME,
    summary="Archive the deliveries of subscriptions, and sum them by subscription and hour.",
    run=run,
    check=lambda context: check_topics(context, [_topic(context)]),
    options=(
        option("--topic", None, "topic to read: the default or a mirror of it", default=TOPIC),
    ),
)
VERIFY: Final = Job(
    name=NAME,
    summary="Find lost and repeated messages of a subscription, from its archived deliveries.",
    run=run_verify,
    check=_check_verify,
    options=(
        option("--subscription", "ID", "subscription to verify"),
        option("--first", "P:OFFSET,…", "first offset by partition [default: first delivery]"),
        option("--end", "P:OFFSET,…", "end offset by partition [default: after the last delivery]"),
        option(
            "--acked",
            "P:OFFSET,…",
            "offset by partition before which the server reports all messages as settled",
        ),
        option("--filtered", None, "accept messages without deliveries", is_flag=True),
        option(
            "--doubles-max",
            "COUNT",
            "number of messages that may be delivered twice, for example after a crash",
            type=click.IntRange(0),
            default=0,
        ),
    ),
    modes=frozenset({Mode.ONCE}),
)
