"""Computes the rows of the audit trail, broken links of its hash chain, and daily Merkle roots.

A record's hash depends only on the record's bytes, which contain the hash of the previous record.
So all hashes are computed in parallel, and only the comparison with the previous record needs the
records in order. ``wire/facts/audit.py`` describes the chain."""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from penstock.pipeline.arrow_map import batch_of, map_in_arrow, schema_of
from penstock.pipeline.merkle import Merkle
from penstock.pipeline.reading.expand import AUDIT_SCHEMA, expand_audit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOPIC: Final = "__audit"
# Kinds of broken links.
UNREADABLE: Final = "unreadable"  # not an audit record, or one of an unknown version
MISSING: Final = "missing"  # the sequence number skips records
CHANGED: Final = "changed"  # the number is right, but the previous hash is wrong
RESTARTED: Final = "begun anew"  # the node could not read the end of its chain
REPEATED: Final = "repeated"  # a sequence number occurs a second time

# The columns that suffice to check the chain.
LINK_COLUMNS: Final = (
    "topic", "partition", "offset", "node", "seq", "prev_hash", "hash", "error", "date",
)  # fmt: skip

Chain = tuple[int, str]  # partition and node: each node writes a separate chain

# Until the last moment that a date can hold.
_AT: Final = "if(at_ms BETWEEN 0 AND 253402300799999, timestamp_millis(at_ms), NULL)"
_BEFORE: Final = "if(prev_hash RLIKE '^[0-9a-f]{64}$', unhex(prev_hash), NULL)"
_DERIVED: Final = {
    "hash": f"sha2(concat({_BEFORE}, value), 256)",  # null if the previous hash is invalid
    "at": _AT,
    "date": f"to_date({_AT})",
}
_DIFFERENCE: Final = schema_of("partition int, offset long, column string")
_ROOT: Final = schema_of(
    "date date, node string, partition int, first_seq long, last_seq long,"
    " first_offset long, last_offset long, records long, root string"
)
_NUMBER: Final = schema_of("number long")
_TAIL: Final = schema_of("partition int, node string, tail_seq long, tail_hash string")


# A record without an earlier record is not checked: retention may have removed records.
_GAPS: Final = f"""
    WITH linked AS (
        SELECT /*+ BROADCAST(tails) */ topic, partition, offset, node, seq, prev_hash, hash, error,
            coalesce(last(if(hash IS NULL, NULL, seq), true) OVER earlier, tail_seq) AS seq_before,
            coalesce(last(hash, true) OVER earlier, tail_hash) AS hash_before
        FROM {{rows}} LEFT JOIN {{ends}} AS tails USING (partition, node)
        WINDOW earlier AS (PARTITION BY partition, node ORDER BY offset
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    ), judged AS (
        SELECT *, CASE WHEN hash IS NULL THEN '{UNREADABLE}'
            WHEN seq_before IS NULL THEN NULL
            WHEN seq > seq_before + 1 THEN '{MISSING}'
            WHEN seq = 1 AND seq_before > 0 THEN '{RESTARTED}'
            WHEN seq <= seq_before THEN '{REPEATED}'
            WHEN prev_hash <> hash_before THEN '{CHANGED}' END AS kind
        FROM linked
    )
    SELECT topic, partition, offset, node, kind, seq, seq_before,
        if(kind = '{MISSING}', seq - seq_before - 1, 0L) AS missing, coalesce(error, '') AS error
    FROM judged WHERE kind IS NOT NULL"""  # noqa: S608


class Tail(NamedTuple):
    """The last readable record of a node's hash chain in a partition."""

    seq: int
    hash: str
    day: datetime.date | None = None  # the newest day up to this record


class Statement(NamedTuple):
    date: Any
    node: str
    partition: int
    first_offset: int
    last_offset: int
    records: int
    root: str


def transform(records: "DataFrame") -> "DataFrame":
    names = [name for name in AUDIT_SCHEMA.names if name not in ("value", "error")]
    derived, at, date = (f"{made} AS {name}" for name, made in _DERIVED.items())
    return records.selectExpr(f"'{TOPIC}' AS topic", *names, derived, at, "value", "error", date)


def rehashed(rows: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as f

    return rows.withColumn("hash", f.expr(_DERIVED["hash"]))


def gaps(rows: "DataFrame", tails: Mapping[Chain, Tail]) -> "DataFrame":
    """Return the broken links as rows. ``tails`` has the chains' last records before ``rows``."""
    tail_rows = [(*chain, tail.seq, tail.hash) for chain, tail in tails.items()]
    tail_table = pa.Table.from_batches([batch_of(tail_rows, _TAIL)])
    ends = rows.sparkSession.createDataFrame(tail_table)
    return rows.sparkSession.sql(_GAPS, rows=rows, ends=ends)


def tails_of(rows: "DataFrame") -> dict[Chain, Tail]:
    from pyspark.sql import functions as f

    last = f.max_by(f.struct("seq", "hash"), "offset").alias("last")
    readable = rows.where("hash IS NOT NULL").groupBy("partition", "node")
    found = readable.agg(last, f.max("date").alias("day")).collect()
    return {(row.partition, row.node): Tail(row.last.seq, row.last.hash, row.day) for row in found}


def last_offsets(rows: "DataFrame") -> dict[Chain, int]:
    """Return the offset of each node's last record in each partition, even if it is unreadable."""
    named = rows.where("node IS NOT NULL").groupBy("partition", "node")
    return {(row[0], row[1]): row[2] for row in named.agg({"offset": "max"}).collect()}


def roots(rows: "DataFrame") -> "DataFrame":
    """Return a Merkle root for each day, node and partition, over the hashes in log order."""

    def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = []
        for key, days_rows in _days(batches):
            tree = Merkle()
            first, offset, seq = (-1, -1), 0, 0
            for offset, seq, digest in days_rows:
                first = first if tree.count else (offset, seq)
                tree.add(digest)
            root = tree.root().hex()
            found.append((*key, first[1], seq, first[0], offset, tree.count, root))
        yield batch_of(found, _ROOT)

    return map_in_arrow(_in_order(rows), make, _ROOT)


def confirmed(rows: "DataFrame", statements: Sequence[Statement]) -> set[Statement]:
    """Return the recorded roots that equal the roots computed again from the rows."""
    by_day: dict[tuple[Any, str, int], list[tuple[int, Statement]]] = {}
    for number, each in enumerate(statements):
        by_day.setdefault((each.date, each.node, each.partition), []).append((number, each))

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found: list[int] = []
        for key, days_rows in _days(batches):
            found += _borne_out(days_rows, by_day.get(key, []))
        yield batch_of([(number,) for number in found], _NUMBER)

    numbers = map_in_arrow(_in_order(rehashed(rows)), check, _NUMBER).collect()
    return {statements[row.number] for row in numbers}


def _borne_out(
    days_rows: Iterator[tuple[int, int, bytes]], wanted: Sequence[tuple[int, Statement]]
) -> list[int]:
    trees = {each.first_offset: Merkle() for _, each in wanted}
    ends: dict[int, list[tuple[int, Statement]]] = {}
    for number, each in wanted:
        ends.setdefault(each.last_offset, []).append((number, each))
    found = []
    for offset, _, digest in days_rows:
        for first, tree in trees.items():
            if offset >= first:
                tree.add(digest)
        for number, each in ends.get(offset, ()):
            tree = trees[each.first_offset]
            if tree.count == each.records and tree.root().hex() == each.root:
                found.append(number)
    return found


def _in_order(rows: "DataFrame") -> "DataFrame":
    key = ("date", "node", "partition")
    hashed = rows.where("hash IS NOT NULL AND date IS NOT NULL")
    chosen = hashed.select(*key, "offset", "seq", "hash")
    return chosen.repartition(*key).sortWithinPartitions(*key, "offset")


def _days(
    batches: Iterator[pa.RecordBatch],
) -> Iterator[tuple[tuple[Any, str, int], Iterator[tuple[int, int, bytes]]]]:
    rows = (
        row
        for batch in batches
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    for key, run in groupby(rows, key=lambda row: row[:3]):
        yield key, ((offset, seq, bytes.fromhex(digest)) for *_, offset, seq, digest in run)


def differences(rows: "DataFrame") -> "DataFrame":
    """Return the columns whose value differs from the record's original bytes in the same row."""
    by_bytes = map_in_arrow(rows.select(*AUDIT_SCHEMA.names), _differing, _DIFFERENCE)
    checks = ", ".join(f"if({n} <=> {made}, NULL, '{n}')" for n, made in _DERIVED.items())
    by_fields = rows.selectExpr("partition", "offset", f"explode(array({checks})) AS column")
    return by_bytes.unionByName(by_fields.where("column IS NOT NULL"))


def _differing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        made = expand_audit(batch.select(["partition", "offset", "value"]))
        found: list[tuple[int, int, str]] = []
        for name in AUDIT_SCHEMA.names:
            ours, theirs = made.column(name), batch.column(name)
            if ours.equals(theirs):
                continue
            pairs = zip(ours.to_pylist(), theirs.to_pylist(), strict=True)
            found += [
                (batch.column("partition")[i].as_py(), batch.column("offset")[i].as_py(), name)
                for i, (one, other) in enumerate(pairs)
                if one != other
            ]
        yield batch_of(found, _DIFFERENCE)
