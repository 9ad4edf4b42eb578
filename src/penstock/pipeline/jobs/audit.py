"""Job ``audit``: the entries of ``__audit``, each once, with their chain checked on the way.

    __audit ─► audit_gap     links that do not hold: missing, changed, unreadable
            └► audit_log     every record, its bytes and its hash, divided by day
                   └► audit_root   a Merkle root over each day of each node, noted and never changed

A micro-batch goes to ``audit_gap`` first and then to ``audit_log``: once the log has it, its gaps
are known as well. Both are tracked tables, so neither has a record twice, whatever becomes of the
checkpoint. Each node of a cluster has a chain of its own; the link of each between two batches is
read from the table itself.

A **root** says what a day held up to some record. It is noted when a day is over, and at the end of
every run that is not continuous; a later one for the same day does not replace it, so that whoever
kept a copy of any of them can ask for it to be borne out. ``penstock pipeline verify audit`` does
that, and everything else that the tables claim (``pipeline/audit_check.py``).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.pipeline.audit_chain import (
    LINK_COLUMNS,
    TOPIC,
    Chain,
    Tail,
    gaps,
    last_offsets,
    roots,
    tails_of,
    transform,
)
from penstock.pipeline.job import Job, JobContext, Mode, Unsound
from penstock.pipeline.lake import Lake, query_app
from penstock.pipeline.starting import check_topics, client_of, starting_offsets

if TYPE_CHECKING:
    import datetime

    from pyspark.sql import DataFrame, SparkSession

LOG, GAP, ROOT = "audit_log", "audit_gap", "audit_root"
NAME: Final = "audit"
BATCH_BYTES: Final = "64m"


class AuditTables:
    """What one driver does with the tables; all it remembers it has read from them."""

    def __init__(self, spark: "SparkSession", lake: Lake) -> None:
        self._spark = spark
        self._lake = lake
        self._tails = self._read_tails()
        self._day: datetime.date | None = None  # the newest that was seen
        self.records = 0
        self.gaps = 0

    def _read_tails(self) -> dict[Chain, Tail]:
        if not self._lake.end_offsets(LOG, NAME):
            return {}
        last = last_offsets(self._lake.read(self._spark, LOG))
        if not last:
            return {}
        # Of a node that wrote long ago the end is far back; what is before all ends is not read.
        found = tails_of(self._lake.read(self._spark, LOG, f"offset >= {min(last.values())}"))
        if set(found) >= set(last):
            return found
        # A chain's last record is unreadable: look for the one that the next will tie to.
        return tails_of(self._lake.read(self._spark, LOG))

    def add(self, records: "DataFrame", *, app: str, batch_id: int) -> bool:
        """One micro-batch; false if the tables had it already."""
        done = self._lake.version_of(LOG, app)
        if done is not None and done >= batch_id:
            return False
        rows = transform(records)
        # Bodies are read twice rather than kept: that takes less time, and no memory.
        links = rows.select(*LINK_COLUMNS).persist()
        try:
            broken = gaps(links, self._tails)
            if not broken.isEmpty():
                found = self._lake.append(
                    broken.coalesce(1), GAP, app=app, batch_id=batch_id, is_tracked=True
                )
                self.gaps += found.rows
            tails = tails_of(links)
        finally:
            links.unpersist()
        commit = self._lake.append(
            rows, LOG, app=app, batch_id=batch_id, partition_by=("date",), is_tracked=True
        )
        self.records += commit.rows
        self._tails |= tails
        self._advance(max((tail.day for tail in tails.values() if tail.day), default=None))
        return True

    def _advance(self, day: "datetime.date | None") -> None:
        """A day is over when a later one has begun."""
        if day is not None and (self._day is None or day > self._day):
            self._day = day
            self.state_roots(before=day)

    def state_roots(self, *, before: "datetime.date | None" = None) -> int:
        """Note the root of every day that has records beyond its last root; how many there were.
        ``before``: only of days that are over."""
        days = [day for day in self._unstated() if before is None or day < before]
        if not days:
            return 0
        table = self._lake.table(LOG).open()
        among = ", ".join(f"DATE'{day.isoformat()}'" for day in days)
        made = roots(self._lake.read(self._spark, LOG, f"date IN ({among})"))
        # By version of the log: what was noted for it is not noted twice.
        app = f"audit-root:{table.metadata().id}:{'closed' if before else 'all'}"
        commit = self._lake.append(made.coalesce(1), ROOT, app=app, batch_id=table.version())
        return commit.rows

    def _unstated(self) -> "Sequence[datetime.date]":
        if not self._lake.exists(LOG):
            return []
        held = self._last(LOG, "offset")
        stated = self._last(ROOT, "last_offset") if self._lake.exists(ROOT) else {}
        return sorted({key[0] for key, last in held.items() if last > stated.get(key, -1)})

    def _last(self, table: str, column: str) -> "dict[tuple[datetime.date, int], int]":
        """The greatest value of a column for each day and partition."""
        rows = self._lake.read(self._spark, table, "date IS NOT NULL AND node IS NOT NULL")
        found = rows.groupBy("date", "partition").agg({column: "max"}).collect()
        return {(row[0], row[1]): row[2] for row in found}


def run(context: JobContext) -> None:
    tables = AuditTables(context.spark, context.lake)
    checkpoint = context.checkpoint_of()

    def take(records: "DataFrame", batch_id: int) -> None:
        tables.add(records, app=query_app(NAME, checkpoint), batch_id=batch_id)

    with client_of(context) as client:
        begins = starting_offsets(client, [TOPIC], context.lake.end_offsets(LOG, NAME))
    reader = context.spark.readStream.format("penstock").options(**context.read_options)
    stream = (
        reader.option("subscribe", TOPIC)
        .option("decode", "audit")
        .option("startingOffsets", begins)
        .option("onDataLoss", "skip")  # what retention took shows as missing numbers
        .option("maxBytesPerTrigger", context.arguments.get("batch_bytes", BATCH_BYTES))
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", checkpoint)
        .trigger(**context.trigger)
    )
    context.follow(stream.start())
    if context.mode is Mode.ONCE:
        tables.state_roots()
    context.progress.note(f"{tables.records} records, {tables.gaps} broken links")
    if tables.gaps:
        raise Unsound(f"{tables.gaps} links of the audit trail do not hold: table {GAP} says where")


JOB: Final = Job(
    name=NAME,
    summary="Keep the audit trail for good, and check its chain.",
    run=run,
    check=lambda context: check_topics(context, [TOPIC]),
)
