"""Job ``telemetry``: sums up the metrics of nodes (``__telemetry``) by minute, hour and day, and
derives lags, hot spots and rebalancing plans.

    __telemetry ─► metrics_1m ─► metrics_1h ─► metrics_1d    sums, levels, histograms
                        ├──────► lag_1m           lag of groups, and whether they catch up
                        ├──────► hot              queues, partitions and nodes with high load
                        └──────► rebalance_plan ─► topic __plans

Rows of ``metrics_1m`` are **partial**: each micro-batch adds rows in one commit, and readers sum
the rows with equal keys (``telemetry_sums.fold``). The other tables are computed once from complete
minutes, hours or days. All times are those that nodes report, so a later run gives the same result.
Plans are sent to a topic, because jobs cannot reach the server's placement in another way."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock.pipeline.arrow_map import map_in_arrow, schema_of
from penstock.pipeline.client.options import client_for
from penstock.pipeline.facts import rebalance, telemetry_sums
from penstock.pipeline.facts.telemetry_sums import Point, hot, lag_of
from penstock.pipeline.job import Job, JobContext, Mode, utc
from penstock.pipeline.jobs.queries import FactTopic, check_topics, fact_options, grace_ms_of
from penstock.pipeline.lake import Lake
from penstock.pipeline.parts import PART_SCHEMA, part_batches, read_parts
from penstock.pipeline.reading.stream_source import RecordReader, as_they_are
from penstock.wire.facts import telemetry as facts

TOPIC: Final = "__telemetry"
MINUTES, HOURS, DAYS = "metrics_1m", "metrics_1h", "metrics_1d"
LAG, HOT, PLAN = "lag_1m", "hot", "rebalance_plan"
MINUTE_MS: Final = telemetry_sums.MINUTE_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
WINDOW_MS: Final = 5 * MINUTE_MS  # over which load is measured
LAG_MINUTES: Final = 5  # of history for the trend of a lag
GRACE_MS: Final = 2 * MINUTE_MS
LOADS_MAX: Final = 50_000  # rows that one plan is made from; the busiest, if there are more
MINUTES_BY: Final = ("kind", "date")
MINUTES_SCHEMA: Final = telemetry_sums.OUT.append(pa.field("date", pa.date32()))

_LAG_KEYS: Final = ("account", "region", "resource", "partition", "group")
_LAG: Final = schema_of(
    "at timestamp, account string, region string, resource string, partition int, group string,"
    " records long, seconds double, trend_per_s double, eta_s double, state string"
)
_HOT: Final = schema_of(
    "at timestamp, scope string, name string, rate double, share double, z double, reason string"
)
_PLAN: Final = schema_of(
    "plan_id string, created_at_ms long, valid_until_ms long, seq long, action string,"
    " account string, region string, resource string, partition int, source string, target string,"
    " gain double, cost_bytes long, reason string, skew_before double, skew_after double"
)


def dated(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        date = batch.column("at").cast(pa.date32())
        yield pa.RecordBatch.from_arrays([*batch.columns, date], schema=MINUTES_SCHEMA)


def rolled_up(rows: DataFrame, unit: str) -> DataFrame:
    """Aggregate rows to one row for each set of keys and each ``unit`` (minute, hour or day)."""
    counted = rows.where(f"kind <> '{telemetry_sums.SOURCE}'").drop("date")
    longer = counted.withColumn("at", f.date_trunc(unit, "at"))
    together = longer.repartition(*telemetry_sums.names_of(telemetry_sums.KEYS))
    return map_in_arrow(together, telemetry_sums.folded, telemetry_sums.OUT)


def lags(rows: DataFrame) -> DataFrame:
    keys = telemetry_sums.names_of(_LAG_KEYS)
    of_groups = rows.where(f"kind = '{facts.LAG}'")
    chosen = of_groups.selectExpr("at", *keys, "committed_max", "log_end_max")
    ordered = chosen.repartition(*keys).sortWithinPartitions(*keys, "at")
    return map_in_arrow(ordered, _lag_rows, _LAG)


def _lag_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Compute lags from rows sorted by group and time. Only the last row of a minute counts."""
    last: tuple[Any, ...] | None = None
    points: list[Point] = []
    for batch in batches:
        found: list[dict[str, Any]] = []
        for row in batch.to_pylist():
            key = tuple(row[name] for name in _LAG_KEYS)
            at_ms = int(row["at"].timestamp() * 1_000)
            if key != last:
                last, points = key, []
            point = Point(at_ms, row["committed_max"], row["log_end_max"])
            if points and points[-1].at_ms == at_ms:
                points.pop()
            points = [*points[-LAG_MINUTES:], point]
            found.append({**row, **lag_of(points)._asdict()})
        yield pa.RecordBatch.from_pylist(found, _LAG)


def by_window(rows: DataFrame) -> DataFrame:
    """Sum up the load of each partition, topic and node in each time window."""
    query = f"""
        SELECT unix_millis(at) div {WINDOW_MS} AS window, kind, node, account, region, resource,
            partition, sum(requests) AS requests, sum(messages) AS messages,
            sum(bytes_in) AS bytes_in, sum(bytes_out) AS bytes_out, sum(cpu_ms) AS cpu_ms,
            max(size_bytes_max) AS size_bytes, max(unix_millis(at)) AS at_ms
        FROM {{rows}} WHERE kind IN ('{facts.CALLS}', '{facts.PARTITION}', '{facts.NODE}')
        GROUP BY ALL"""  # noqa: S608
    return rows.sparkSession.sql(query, rows=rows)


def hot_rows(rows: Sequence[Any], *, seconds: float) -> list[dict[str, Any]]:
    rates: dict[str, dict[str, float]] = {"queue": {}, "partition": {}, "node": {}}
    for row in rows:
        name = f"{row.account}/{row.region}/{row.resource}"
        if row.kind == facts.CALLS and row.resource not in ("", facts.FOLDED):
            scope, amount = rates["queue"], row.messages
        elif row.kind == facts.PARTITION:
            scope, amount, name = rates["partition"], row.messages, f"{name}/{row.partition}"
        elif row.kind == facts.NODE:
            scope, amount, name = rates["node"], row.cpu_ms, row.node
        else:
            continue
        scope[name] = scope.get(name, 0.0) + amount / seconds
    return [{"scope": scope, **each._asdict()} for scope, of in rates.items() for each in hot(of)]


def loads(rows: Sequence[Any]) -> list[rebalance.Placed]:
    """Return the load of each partition in one window. Bytes out and requests are only known for
    whole topics, and are divided among partitions in proportion to their messages."""
    bytes_out, requests, messages = Counter[Any](), Counter[Any](), Counter[Any]()  # by topic
    last: dict[rebalance.PartitionId, Any] = {}
    for row in rows:
        topic = row.account, row.region, row.resource
        if row.kind == facts.CALLS:
            bytes_out[topic] += row.bytes_out
            requests[topic] += row.requests
        elif row.kind == facts.PARTITION:
            # A partition that moved within the window counts for its last node.
            place = rebalance.PartitionId(*topic, row.partition)
            if place not in last or last[place].at_ms < row.at_ms:
                last[place] = row
    for row in last.values():
        messages[row.account, row.region, row.resource] += row.messages
    found = []
    for place, row in sorted(last.items(), key=lambda each: each[0]):
        topic = row.account, row.region, row.resource
        share = row.messages / messages[topic] if messages[topic] else 0.0
        load = rebalance.Load(row.bytes_in, bytes_out[topic] * share, requests[topic] * share)
        found.append(rebalance.Placed(place, row.node, load, row.size_bytes))
    return found


@dataclass
class TelemetryTables:
    """A writer of this job's tables. All its state is in them, so a restarted job can continue."""

    spark: SparkSession
    lake: Lake
    app: str = ""
    grace_ms: int = GRACE_MS
    publish_plan: Callable[[rebalance.Plan], None] | None = None
    reading: RecordReader = as_they_are  # from batches of the source to records
    _since_ms: int = 0

    def ends(self) -> dict[int, int]:
        """Return, for each partition, the offset at which a query without a checkpoint begins."""
        if not self.lake.exists(MINUTES):
            return {}
        rows = self.lake.read(self.spark, MINUTES, f"kind = '{telemetry_sums.SOURCE}'")
        ends = rows.groupBy("partition").agg(f.expr("max(log_end_max)").alias("end"))
        return {row.partition: row.end for row in ends.collect()}

    def add(self, batch: DataFrame, batch_id: int) -> None:
        """Add a micro-batch to the tables. Each Spark task fetches, sums and writes its records."""
        table = self.lake.table(MINUTES)
        if table.has(self.app, batch_id):
            return
        reading, root = self.reading, table.path

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            rows = dated(telemetry_sums.by_minute(reading(batches)))
            return part_batches(rows, root, MINUTES_BY, is_tracked=False)

        parts = read_parts(map_in_arrow(batch, work, PART_SCHEMA))
        table.ensure(MINUTES_SCHEMA, MINUTES_BY)
        table.commit(parts, app=self.app, batch_id=batch_id)

    def derive(self) -> None:
        if not self.lake.exists(MINUTES):
            return
        rows = self.lake.read(self.spark, MINUTES, f"kind = '{telemetry_sums.SOURCE}'")
        span = rows.selectExpr("unix_millis(min(at)) AS a", "unix_millis(max(at)) AS b").first()
        if span is None or span.a is None:
            return
        self._since_ms = span.a
        # Records written in the newest minute are about this minute or earlier ones, so the
        # earlier minutes are complete and the newest is not.
        through_ms = span.b - self.grace_ms
        self._add_lags(through_ms)
        self._add_window(through_ms)
        self._roll(MINUTES, HOURS, "hour", HOUR_MS, through_ms)
        self._roll(HOURS, DAYS, "day", DAY_MS, through_ms)

    def _roll(self, source: str, target: str, unit: str, unit_ms: int, through_ms: int) -> None:
        """Append all complete hours or days that the target table does not have, in one commit."""
        last, since_ms = self._pending(target, "roll", unit_ms, through_ms)
        # Before the end of the first unit there is nothing to append.
        if self.lake.exists(source) and max(since_ms, self._since_ms) < (last + 1) * unit_ms:
            rows = self._between(source, since_ms, (last + 1) * unit_ms)
            self._append_dated(rolled_up(rows, unit), target, "roll", last)

    def _pending(self, table: str, app: str, unit_ms: int, through_ms: int) -> tuple[int, int]:
        """Return the number of the last complete time unit, and the end time of the table in ms."""
        done = self.lake.version_of(table, app)
        return through_ms // unit_ms - 1, 0 if done is None else (done + 1) * unit_ms

    def _append_dated(self, rows: DataFrame, table: str, app: str, batch_id: int) -> None:
        dated = rows.withColumn("date", f.expr("to_date(at)"))
        self.lake.append(dated, table, app=app, batch_id=batch_id, partition_by=("date",))

    def _add_lags(self, through_ms: int) -> None:
        last, since_ms = self._pending(LAG, "lag", MINUTE_MS, through_ms)
        if since_ms >= (last + 1) * MINUTE_MS:
            return
        before_ms = since_ms - LAG_MINUTES * MINUTE_MS
        rows = self._between(MINUTES, before_ms, (last + 1) * MINUTE_MS, kind=facts.LAG)
        # Merges rows of one minute that came in several batches.
        found = lags(rolled_up(rows, "minute")).where(f"unix_millis(at) >= {since_ms}")
        self._append_dated(found, LAG, "lag", last)

    def _add_window(self, through_ms: int) -> None:
        """Append the hot spots and the plan of the last complete window. Skip earlier windows."""
        window = through_ms // WINDOW_MS - 1
        if self.lake.table(HOT).has("hot", window):
            return
        since_ms = (window + 1 - rebalance.WINDOWS_MIN) * WINDOW_MS
        rows = self._between(MINUTES, since_ms, (window + 1) * WINDOW_MS)
        is_node, moved = f.expr(f"kind = '{facts.NODE}'"), f.expr("bytes_in + bytes_out")
        busiest = by_window(rows).orderBy(is_node.desc(), moved.desc()).limit(LOADS_MAX)
        windows: dict[int, list[Any]] = {}
        for row in busiest.collect():
            windows.setdefault(row.window, []).append(row)
        latest = windows.get(window, [])
        nodes = {row.node for row in latest if row.node}
        if len(nodes) > 1:  # a single node needs no plan
            self._plan(
                [loads(windows[n]) for n in sorted(windows)], nodes, (window + 1) * WINDOW_MS
            )
        at_us = window * WINDOW_MS * 1_000
        found = [{"at": at_us, **row} for row in hot_rows(latest, seconds=WINDOW_MS / 1_000)]
        self.lake.append(pa.Table.from_pylist(found, _HOT), HOT, app="hot", batch_id=window)

    def _plan(
        self, windows: Sequence[Sequence[rebalance.Placed]], nodes: Iterable[str], now_ms: int
    ) -> None:
        made = rebalance.plan(
            windows, nodes, now_ms=now_ms, last_plan_at_ms=self.lake.version_of(PLAN, "plan")
        )
        if made is None:
            return
        rows = [{**asdict(made), **asdict(step)} for step in made.steps]
        # The batch id of a plan's commit is its time, from which the pause after it is computed.
        # Published before the commit, so that a run after a kill publishes the same plan again.
        if self.publish_plan is not None:
            self.publish_plan(made)
        self.lake.append(
            pa.Table.from_pylist(rows, _PLAN), PLAN, app="plan", batch_id=made.created_at_ms
        )

    def _between(
        self, table: str, since_ms: int, until_ms: int, kind: str | None = None
    ) -> DataFrame:
        since_ms = max(0, since_ms)
        where = f"at >= timestamp_millis({since_ms}) AND at < timestamp_millis({until_ms})"
        files = f"date >= '{utc(since_ms).date()}' AND date <= '{utc(until_ms - 1).date()}'"
        if kind is not None:
            where, files = f"{where} AND kind = '{kind}'", f"{files} AND kind = '{kind}'"
        return self.lake.read(self.spark, table, where, files=files)


def run(context: JobContext) -> None:
    topic = FactTopic(context, TOPIC)

    def publish_plan(made: rebalance.Plan) -> None:
        rebalance.publish(client_for(topic.connection), made)
        context.progress.note(f"plan {made.plan_id} published: {len(made.steps)} steps")

    tables = TelemetryTables(
        context.spark,
        context.lake,
        grace_ms=grace_ms_of(context, GRACE_MS),
        publish_plan=publish_plan,
        reading=topic.reading,
    )

    def take(batch: DataFrame, app: str, batch_id: int) -> None:
        tables.app = app
        tables.add(batch, batch_id)
        if context.mode is Mode.CONTINUOUS:
            tables.derive()

    topic.process("telemetry", take, ends=tables.ends())
    tables.derive()


JOB: Final = Job(
    name="telemetry",
    summary="Aggregate rates, durations and lags; find hot spots and plan moves of partitions.",
    run=run,
    check=lambda context: check_topics(context, [FactTopic(context, TOPIC).name]),
    options=fact_options(TOPIC, "a minute", GRACE_MS),
)
