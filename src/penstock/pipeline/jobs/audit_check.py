"""``penstock pipeline verify audit``: checks that the tables of the audit trail were not changed.

The command compares, in this order: each row with the bytes stored in it; each node's chain over
these bytes, from the first row to the last; each recorded root with the rows of its day; the end of
the table with the offsets that its commits name. Faults are listed with partition and offset. A
link that was already broken in the log (``audit_gap``) is also a fault, and is marked as known."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.pipeline.facts.audit_chain import (
    TOPIC,
    Statement,
    confirmed,
    differences,
    gaps,
    hash_of,
)
from penstock.pipeline.job import Job, JobContext, Mode, Unsound, require_table
from penstock.pipeline.jobs.audit import GAP, LOG, NAME, ROOT
from penstock.pipeline.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FAULTS_MAX: Final = 1_000  # that are listed; all are counted


@dataclass(slots=True)
class Verdict:
    records: int = 0
    roots: int = 0
    fault_count: int = 0
    faults: list[Mapping[str, Any]] = field(default_factory=list)

    def add(self, faults: Iterable[Mapping[str, Any]], count: int) -> None:
        room = FAULTS_MAX - len(self.faults)
        self.faults += list(faults)[:room]
        self.fault_count += count


def verify_audit(spark: "SparkSession", lake: Lake) -> Verdict:
    """Raises TableMissing."""
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
        faults = [_fault("file", why=f"{path}: {why}") for path, why in damaged]
        return Verdict(fault_count=len(faults), faults=faults[:FAULTS_MAX])
    return verdict


def _damaged_files(paths: Sequence[str]) -> list[tuple[str, str]]:
    found = []
    for path in paths:
        try:
            with pq.ParquetFile(path) as file:
                for _ in file.iter_batches():
                    pass
        except (OSError, pa.ArrowException) as error:
            found.append((Path(path).name, " ".join(str(error).split())[:200]))
    return found


def _some(found: "DataFrame") -> tuple[list[Any], int]:
    """Return the first faults, and the number of all."""
    first = found.limit(FAULTS_MAX + 1).collect()
    return first[:FAULTS_MAX], len(first) if len(first) <= FAULTS_MAX else found.count()


def _check_rows(rows: "DataFrame", verdict: Verdict) -> None:
    found = differences(rows)
    shown, count = _some(found.orderBy("partition", "offset", "column"))
    verdict.add(
        [_fault("row", row, f"{row.column} differs from the bytes of the record") for row in shown],
        count,
    )


def _check_links(spark: "SparkSession", lake: Lake, rows: "DataFrame", verdict: Verdict) -> None:
    broken = gaps(rows.withColumn("hash", hash_of()), {})
    shown, count = _some(broken.orderBy("partition", "offset"))
    if not count:
        return
    known: set[tuple[int, int]] = set()
    if lake.exists(GAP):
        places = lake.read(spark, GAP).select("partition", "offset").limit(100 * FAULTS_MAX)
        known = {(row.partition, row.offset) for row in places.collect()}
    verdict.add(
        [
            _fault(
                "link",
                row,
                f"{row.kind}: number {row.seq} of {row.node} follows {row.seq_before}"
                + ("; the log had the same gap" if (row.partition, row.offset) in known else ""),
            )
            for row in shown
        ],
        count,
    )


def _check_roots(spark: "SparkSession", lake: Lake, rows: "DataFrame", verdict: Verdict) -> None:
    if not lake.exists(ROOT):
        return
    names = ("date", "node", "partition", "first_offset", "last_offset", "records", "root")
    rows_of_roots = lake.read(spark, ROOT).select(*names).collect()
    statements = [Statement(*row) for row in rows_of_roots]
    verdict.roots = len(statements)
    kept = confirmed(rows, statements) if statements else set()
    lost = [each for each in statements if each not in kept]
    verdict.add(
        [
            {
                "kind": "root",
                "partition": each.partition,
                "offset": each.last_offset,
                "why": f"{each.records} records of {each.node} on {each.date} do not match the"
                f" root {each.root[:16]}…",
            }
            for each in lost
        ],
        len(lost),
    )


def _check_ends(lake: Lake, rows: "DataFrame", verdict: Verdict) -> None:
    held = {row[0]: row[1] for row in rows.groupBy("partition").agg({"offset": "max"}).collect()}
    for partition, end in lake.end_offsets(LOG, NAME).get(TOPIC, {}).items():
        last = held.get(partition, -1)
        if last + 1 != end:
            why = f"the table should end at offset {end - 1}, but ends at {last}"
            verdict.add([{"kind": "end", "partition": partition, "offset": last, "why": why}], 1)


def _fault(kind: str, row: Any = None, why: str = "") -> Mapping[str, Any]:
    place = {} if row is None else {"partition": row.partition, "offset": row.offset}
    return {"kind": kind, "partition": -1, "offset": -1, **place, "why": why}


def check(context: JobContext) -> None:
    require_table(context.lake, LOG, job=NAME)


def run(context: JobContext) -> None:
    check(context)
    verdict = verify_audit(context.spark, context.lake)
    if verdict.fault_count:
        context.show(verdict.faults)
        raise Unsound(f"{verdict.fault_count} faults in the audit trail")
    context.progress.note(
        f"the chain is intact: {verdict.records} records, {verdict.roots} roots confirmed"
    )


JOB: Final = Job(
    name=NAME,
    summary="Verify the rows, hash chain and roots of the archived audit trail.",
    run=run,
    check=check,
    modes=frozenset({Mode.ONCE}),
)
