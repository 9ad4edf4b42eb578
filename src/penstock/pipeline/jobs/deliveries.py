"""Job ``deliveries``: keeps the rows of ``__deliveries``, and sums them by hour.

    __deliveries ─► delivery          every row once, divided by date and hour
                        └► delivery_hourly   sums by subscription and hour

A run replaces the sums of each hour that has got rows since they were computed, so late rows are
counted too. All state is in the tables: the number of rows of an hour tells whether its sums are
current. A flush that a mirror of the topic contains twice is counted once.

``verify deliveries`` is in ``delivery_balance.py``."""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.pipeline.job import Job, JobContext, Mode, option
from penstock.pipeline.jobs.queries import check_topics, process, topic_stream
from penstock.pipeline.lake import Lake

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

Hour = tuple[str, int]  # date, and hour of the day

ROWS, HOURLY = "delivery", "delivery_hourly"
NAME: Final = "deliveries"
TOPIC: Final = "__deliveries"
BY: Final = ("date", "hour")
BATCH_BYTES: Final = "64m"

# A flush can be in a mirror of the topic twice.
ALL_ROWS: Final = """once AS (
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
    WITH {ALL_ROWS}
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
        hours = [hour for hour, count in _row_counts(handle).items() if summed[hour] != count]
        if not hours:
            return 0
        where = None
        if self.lake.exists(HOURLY):  # otherwise all hours are new, and there may be thousands
            where = " OR ".join(f"(date = '{day}' AND hour = {hour})" for day, hour in hours)
        rows = self.lake.read(self.spark, ROWS, where)
        # The batch id is the version of the table of rows, so no version is summed up twice.
        self.lake.append(
            self.spark.sql(_HOURLY, rows=rows).repartition(*BY),
            HOURLY,
            app=f"delivery-hourly:{handle.metadata().id}",
            batch_id=handle.version(),
            partition_by=BY,
            replace_where=where,
        )
        return len(hours)

    def _summed(self) -> Counter[Hour]:
        """Return the number of rows that are in the sums of each hour."""
        if not self.lake.exists(HOURLY):
            return Counter()
        rows = self.lake.read(self.spark, HOURLY).groupBy(*BY).agg({"row_count": "sum"})
        return Counter({(str(row[0]), row[1]): row[2] for row in rows.collect()})


def _row_counts(handle: "DeltaTable") -> Counter[Hour]:
    """Return the number of rows of each hour, from the metadata of the table."""
    actions = handle.get_add_actions(flatten=True)
    names = ("partition.date", "partition.hour", "num_records")
    counts: Counter[Hour] = Counter()
    for date, hour, count in zip(*(actions.column(n).to_pylist() for n in names), strict=True):
        if date is not None:  # the row of an unreadable record has no time
            counts[str(date), hour] += count
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


JOB: Final = Job(
    name=NAME,
    summary="Archive the deliveries of subscriptions, and sum them by subscription and hour.",
    run=run,
    check=lambda context: check_topics(context, [_topic(context)]),
    options=(
        option("--topic", None, "topic to read: the default or a mirror of it", default=TOPIC),
    ),
)
