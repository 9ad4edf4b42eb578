"""Job ``audit``: copies each entry of ``__audit`` once to a table, and checks the hash chain.

    __audit ─► audit_gap     broken links: records that are missing, changed or unreadable
            └► audit_log     every record, its bytes and its hash, divided by day
                   └► audit_root   Merkle roots by node and day, which are never changed

The broken links of a batch are written to ``audit_gap`` before its records are written to
``audit_log``, so no gap is lost. Both are tracked tables, so neither has a record twice. Each node
has a separate chain, whose last hash is read from the table at start. A later root of a day does
not replace earlier ones, so any copy of a root can be checked later.

``audit-search`` finds entries without Spark: each day is a folder of ``audit_log``, and Arrow reads
only the shown columns and the row groups that may match."""

import datetime
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.pipeline.facts import audit_chain as chain
from penstock.pipeline.job import Job, JobContext, Mode, Unsound, option, require_table, utc
from penstock.pipeline.jobs.queries import check_topics, process, topic_stream
from penstock.pipeline.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG, GAP, ROOT = "audit_log", "audit_gap", "audit_root"
NAME: Final = "audit"
BATCH_BYTES: Final = "64m"
FAULTS_MAX: Final = 1_000  # listed faults; all faults are counted
SHOWN: Final = (
    "at_ms", "principal", "action", "resource", "outcome", "error_code", "source_ip", "request_id",
    "params", "node", "seq",
)  # fmt: skip
FIELDS: Final = ("principal", "action", "resource", "outcome", "tenant")
LIMIT: Final = 100
_LIMITS: Final = click.IntRange(1, 100_000)


@dataclass
class AuditTables:
    """A writer of this job's tables. All its state is in them, so a restarted job can continue."""

    spark: "SparkSession"
    lake: Lake
    records: int = 0
    gaps: int = 0
    _day: datetime.date | None = None  # the newest day of any record

    def __post_init__(self) -> None:
        self._tails = self._read_tails()

    def _read_tails(self) -> dict[chain.Chain, chain.Tail]:
        if not self.lake.end_offsets(LOG, NAME):
            return {}
        last = chain.last_offsets(self.lake.read(self.spark, LOG))
        if not last:
            return {}
        # Do not read records before the last record of every chain.
        found = chain.tails_of(self.lake.read(self.spark, LOG, f"offset >= {min(last.values())}"))
        if set(found) >= set(last):
            return found
        # A chain's last record is unreadable: find the last readable one, to which the next links.
        return chain.tails_of(self.lake.read(self.spark, LOG))

    def add(self, records: "DataFrame", *, app: str, batch_id: int) -> bool:
        """Add one micro-batch. Return False if the tables have it already."""
        if self.lake.table(LOG).has(app, batch_id):
            return False
        rows = chain.transform(records)
        # Reading the records' bytes twice is faster than caching them, and takes no memory.
        links = rows.select(*chain.LINK_COLUMNS).persist()
        try:
            broken = chain.gaps(links, self._tails)
            if not broken.isEmpty():
                found = self.lake.append(
                    broken.coalesce(1), GAP, app=app, batch_id=batch_id, is_tracked=True
                )
                self.gaps += found.rows
            tails = chain.tails_of(links)
        finally:
            links.unpersist()
        commit = self.lake.append(
            rows, LOG, app=app, batch_id=batch_id, partition_by=("date",), is_tracked=True
        )
        self.records += commit.rows
        self._tails |= tails
        day = max((tail.day for tail in tails.values() if tail.day), default=None)
        if day is not None and (self._day is None or day > self._day):
            self._day = day
            self.state_roots(before=day)  # earlier days are over
        return True

    def state_roots(self, *, before: datetime.date | None = None) -> int:
        """Store a Merkle root for each day with new records, if the day is before ``before``."""
        days = [day for day in self._unstated() if before is None or day < before]
        if not days:
            return 0
        table = self.lake.table(LOG).open()
        among = ", ".join(f"DATE'{day.isoformat()}'" for day in days)
        made = chain.roots(self.lake.read(self.spark, LOG, f"date IN ({among})"))
        # The batch id is the version of the log table, so no version gets its roots twice.
        app = f"audit-root:{table.metadata().id}:{'closed' if before else 'all'}"
        commit = self.lake.append(made.coalesce(1), ROOT, app=app, batch_id=table.version())
        return commit.rows

    def _unstated(self) -> Sequence[datetime.date]:
        if not self.lake.exists(LOG):
            return []
        held = self._last(LOG, "offset")
        stated = self._last(ROOT, "last_offset") if self.lake.exists(ROOT) else {}
        return sorted({key[0] for key, last in held.items() if last > stated.get(key, -1)})

    def _last(self, table: str, column: str) -> dict[tuple[datetime.date, int], int]:
        rows = self.lake.read(self.spark, table, "date IS NOT NULL AND node IS NOT NULL")
        found = rows.groupBy("date", "partition").agg({column: "max"}).collect()
        return {(row[0], row[1]): row[2] for row in found}


def run(context: JobContext) -> None:
    tables = AuditTables(context.spark, context.lake)

    def take(records: "DataFrame", app: str, batch_id: int) -> None:
        tables.add(records, app=app, batch_id=batch_id)

    # Records deleted by retention show as missing sequence numbers.
    ends = context.lake.end_offsets(LOG, NAME)
    reader = topic_stream(context, chain.TOPIC, ends, decode="audit")
    process(context, NAME, reader, take, batch_bytes=BATCH_BYTES)
    if context.mode is Mode.ONCE:
        tables.state_roots()
    context.progress.note(f"{tables.records} records copied, {tables.gaps} broken links found")
    if tables.gaps:
        raise Unsound(f"{tables.gaps} links of the hash chain are broken: see table {GAP}")


@dataclass(slots=True)
class Verdict:
    records: int = 0
    roots: int = 0
    fault_count: int = 0
    faults: list[Mapping[str, Any]] = field(default_factory=list)

    def add(self, faults: Iterable[Mapping[str, Any]], count: int) -> None:
        self.faults += list(faults)[: FAULTS_MAX - len(self.faults)]
        self.fault_count += count


def verify_audit(spark: "SparkSession", lake: Lake) -> Verdict:
    verdict = Verdict()
    rows = lake.read(spark, LOG)
    try:
        verdict.records = rows.count()
        _check_rows(rows, verdict)
        _check_links(spark, lake, rows, verdict)
        _check_roots(spark, lake, rows, verdict)
        _check_ends(lake, rows, verdict)
    except Exception:
        # Spark's error does not name the damaged file, nor say that a file is damaged.
        damaged = _damaged_files(lake.table(LOG).files())
        if not damaged:
            raise
        return Verdict(fault_count=len(damaged), faults=damaged[:FAULTS_MAX])
    return verdict


def _fault(kind: str, why: str, partition: int = -1, offset: int = -1) -> Mapping[str, Any]:
    return {"kind": kind, "partition": partition, "offset": offset, "why": why}


def _damaged_files(paths: Sequence[str]) -> list[Mapping[str, Any]]:
    found = []
    for path in paths:
        try:
            with pq.ParquetFile(path) as file:
                for _ in file.iter_batches():
                    pass
        except (OSError, pa.ArrowException) as error:
            why = " ".join(str(error).split())[:200]
            found.append(_fault("file", f"{Path(path).name}: {why}"))
    return found


def _some(found: "DataFrame") -> tuple[list[Any], int]:
    first = found.limit(FAULTS_MAX + 1).collect()
    return first[:FAULTS_MAX], len(first) if len(first) <= FAULTS_MAX else found.count()


def _check_rows(rows: "DataFrame", verdict: Verdict) -> None:
    shown, count = _some(chain.differences(rows).orderBy("partition", "offset", "column"))
    text = "differs from the bytes of the record"
    faults = [_fault("row", f"{row.column} {text}", row.partition, row.offset) for row in shown]
    verdict.add(faults, count)


def _check_links(spark: "SparkSession", lake: Lake, rows: "DataFrame", verdict: Verdict) -> None:
    broken = chain.gaps(chain.rehashed(rows), {})
    shown, count = _some(broken.orderBy("partition", "offset"))
    if not count:
        return
    known: set[tuple[int, int]] = set()
    if lake.exists(GAP):
        places = lake.read(spark, GAP).select("partition", "offset").limit(100 * FAULTS_MAX)
        known = {(row.partition, row.offset) for row in places.collect()}
    faults = []
    for row in shown:
        place = row.partition, row.offset
        why = f"{row.kind}: number {row.seq} of {row.node} follows {row.seq_before}"
        faults.append(
            _fault("link", why + ("; the log had the same gap" if place in known else ""), *place)
        )
    verdict.add(faults, count)


def _check_roots(spark: "SparkSession", lake: Lake, rows: "DataFrame", verdict: Verdict) -> None:
    if not lake.exists(ROOT):
        return
    rows_of_roots = lake.read(spark, ROOT).select(*chain.Statement._fields).collect()
    statements = [chain.Statement(*row) for row in rows_of_roots]
    verdict.roots = len(statements)
    kept = chain.confirmed(rows, statements) if statements else set()
    for each in statements:
        if each not in kept:
            why = f"{each.records} records of {each.node} on {each.date} do not match the root"
            fault = _fault("root", f"{why} {each.root[:16]}…", each.partition, each.last_offset)
            verdict.add([fault], 1)


def _check_ends(lake: Lake, rows: "DataFrame", verdict: Verdict) -> None:
    held = {row[0]: row[1] for row in rows.groupBy("partition").agg({"offset": "max"}).collect()}
    for partition, end in lake.end_offsets(LOG, NAME).get(chain.TOPIC, {}).items():
        last = held.get(partition, -1)
        if last + 1 != end:
            why = f"the table should end at offset {end - 1}, but ends at {last}"
            verdict.add([_fault("end", why, partition, last)], 1)


def run_verify(context: JobContext) -> None:
    require_table(context.lake, LOG, job=NAME)
    verdict = verify_audit(context.spark, context.lake)
    if verdict.fault_count:
        context.show(verdict.faults)
        raise Unsound(f"the audit trail has {verdict.fault_count} faults")
    context.progress.note(
        f"the chain is intact: {verdict.records} records, {verdict.roots} roots confirmed"
    )


def search(
    lake: Lake,
    wanted: Mapping[str, str],
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    limit: int = LIMIT,
) -> list[dict[str, Any]]:
    """Return entries whose fields have these values. A value that ends with ``*`` is a prefix."""
    table = lake.table(LOG)
    at_ms = pc.field("at_ms")
    tests: list[pc.Expression] = [at_ms.is_valid()]
    tests += [] if since_ms is None else [at_ms >= since_ms]
    tests += [] if until_ms is None else [at_ms < until_ms]
    for name, value in wanted.items():
        is_prefix, text = value.endswith("*"), value.removesuffix("*")
        tests.append(pc.starts_with(pc.field(name), text) if is_prefix else pc.field(name) == value)
    test = reduce(operator.and_, tests)
    days = {str(each["date"]) for each in table.open().partitions() if each["date"] is not None}
    first = "" if since_ms is None else str(utc(since_ms).date())
    last = "9999-99-99" if until_ms is None else str(utc(until_ms).date())
    found: list[dict[str, Any]] = []
    for day in sorted((day for day in days if first <= day <= last), reverse=True):
        rows = pa.concat_tables(
            pq.read_table(path, columns=list(SHOWN), filters=test, partitioning=None)
            for path in table.files(f"date = '{day}'")
        )
        order = pc.sort_indices(rows, sort_keys=[("at_ms", "descending"), ("seq", "descending")])
        found += rows.take(order[: limit - len(found)]).to_pylist()
        if len(found) >= limit:
            break
    return found


def run_search(context: JobContext) -> None:
    wanted = {name: value for name in FIELDS if (value := context.arguments.get(name)) is not None}
    require_table(context.lake, LOG, job=NAME)
    times = {"since_ms": context.since_ms, "until_ms": context.until_ms}
    rows = search(context.lake, wanted, **times, limit=context.arguments.get("limit", LIMIT))
    for row in rows:
        at = utc(row["at_ms"]).isoformat(timespec="milliseconds")
        row["at"] = at.removesuffix("+00:00") + "Z"
    context.show([{name: row[name] for name in ("at", *SHOWN)} for row in rows])


JOB: Final = Job(
    name=NAME,
    summary="Archive the audit trail in the lake and verify its hash chain.",
    run=run,
    check=lambda context: check_topics(context, [chain.TOPIC]),
)
VERIFY: Final = Job(
    name=NAME,
    summary="Verify the rows, hash chain and roots of the archived audit trail.",
    run=run_verify,
    check=lambda context: require_table(context.lake, LOG, job=NAME),
    modes=frozenset({Mode.ONCE}),
)
SEARCH: Final = Job(
    name="audit-search",
    summary="Find entries in the archived audit trail, newest first.",
    run=run_search,
    options=(
        *(option(f"--{n}", "TEXT", f"{n} to search for; TEXT* matches a prefix") for n in FIELDS),
        option("--limit", None, "maximum number of entries to show", type=_LIMITS, default=LIMIT),
    ),
    modes=frozenset({Mode.ONCE}),
    needs_spark=False,
)
