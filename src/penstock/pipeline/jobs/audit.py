"""Job ``audit``: copies each entry of ``__audit`` once to a table, and checks the hash chain.

    __audit ─► audit_gap     broken links: missing, changed, unreadable
            └► audit_log     every record, its bytes and its hash, divided by day
                   └► audit_root   a Merkle root over each day of each node, never changed

A micro-batch is written to ``audit_gap`` first and then to ``audit_log``: when the log has a batch,
its gaps are recorded as well. Both are tracked tables, so neither has a record twice, even if the
checkpoint is lost. Each node of a cluster has a separate chain; its link between two batches is
read from the table.

A **root** covers the records of a day up to a given record. Roots are recorded when a day is over,
and at the end of each run that is not continuous. A later root of the same day does not replace
earlier ones, so any copy of a root can be checked later. ``penstock pipeline verify audit`` checks
the roots and the rest of the tables (``pipeline/jobs/audit_check.py``)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.pipeline.facts.audit_chain import (
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
from penstock.pipeline.jobs.queries import check_topics, process, topic_stream
from penstock.pipeline.lake import Lake

if TYPE_CHECKING:
    import datetime

    from pyspark.sql import DataFrame, SparkSession

LOG, GAP, ROOT = "audit_log", "audit_gap", "audit_root"
NAME: Final = "audit"
BATCH_BYTES: Final = "64m"


class AuditTables:
    """A writer of the tables, in the driver. Its state is read from the tables."""

    def __init__(self, spark: "SparkSession", lake: Lake) -> None:
        self._spark = spark
        self._lake = lake
        self._tails = self._read_tails()
        self._day: datetime.date | None = None  # the newest day of any record
        self.records = 0
        self.gaps = 0

    def _read_tails(self) -> dict[Chain, Tail]:
        if not self._lake.end_offsets(LOG, NAME):
            return {}
        last = last_offsets(self._lake.read(self._spark, LOG))
        if not last:
            return {}
        # A node that stopped long ago has an early end. Records before all ends are not read.
        found = tails_of(self._lake.read(self._spark, LOG, f"offset >= {min(last.values())}"))
        if set(found) >= set(last):
            return found
        # A chain's last record is unreadable: find the last readable one, to which the next links.
        return tails_of(self._lake.read(self._spark, LOG))

    def add(self, records: "DataFrame", *, app: str, batch_id: int) -> bool:
        """Add one micro-batch. Return False if the tables have it already."""
        if self._lake.table(LOG).has(app, batch_id):
            return False
        rows = transform(records)
        # Reading the records' bytes twice is faster than caching them, and takes no memory.
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
        """Record the roots of earlier days when a record of a later day arrives."""
        if day is not None and (self._day is None or day > self._day):
            self._day = day
            self.state_roots(before=day)

    def state_roots(self, *, before: "datetime.date | None" = None) -> int:
        """Record a root for each day that has records after its last root, and return the number of
        roots. ``before``: only for days before this one."""
        days = [day for day in self._unstated() if before is None or day < before]
        if not days:
            return 0
        table = self._lake.table(LOG).open()
        among = ", ".join(f"DATE'{day.isoformat()}'" for day in days)
        made = roots(self._lake.read(self._spark, LOG, f"date IN ({among})"))
        # The batch id is the version of the log table, so no version gets its roots twice.
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
        """Return the greatest value of a column for each day and partition."""
        rows = self._lake.read(self._spark, table, "date IS NOT NULL AND node IS NOT NULL")
        found = rows.groupBy("date", "partition").agg({column: "max"}).collect()
        return {(row[0], row[1]): row[2] for row in found}


def run(context: JobContext) -> None:
    tables = AuditTables(context.spark, context.lake)

    def take(records: "DataFrame", app: str, batch_id: int) -> None:
        tables.add(records, app=app, batch_id=batch_id)

    # Records deleted by retention show as missing sequence numbers.
    ends = context.lake.end_offsets(LOG, NAME)
    reader = topic_stream(context, TOPIC, ends, decode="audit")
    process(context, NAME, reader, take, batch_bytes=BATCH_BYTES)
    if context.mode is Mode.ONCE:
        tables.state_roots()
    context.progress.note(f"{tables.records} records, {tables.gaps} broken links")
    if tables.gaps:
        raise Unsound(f"{tables.gaps} links of the audit trail are broken: see table {GAP}")


JOB: Final = Job(
    name=NAME,
    summary="Archive the audit trail in the lake and verify its hash chain.",
    run=run,
    check=lambda context: check_topics(context, [TOPIC]),
)
