"""The audit trail in the lake: each record once, and nothing altered or dropped unnoticed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.compat.conftest import sqs_client
from tests.compat.kafka.confluent import read_all
from tests.harness.server import Server

from penstock.pipeline.facts.audit_chain import CHANGED, MISSING, REPEATED, RESTARTED, UNREADABLE
from penstock.pipeline.job import JobContext, Mode, Unsound
from penstock.pipeline.jobs import audit
from penstock.pipeline.jobs.audit import GAP, LOG, ROOT, AuditTables, Verdict, verify_audit
from penstock.pipeline.lake import Lake
from penstock.pipeline.merkle import root_of
from penstock.pipeline.reading.expand import expand_audit
from penstock.wire.facts.audit import AuditEntry, Link, append, decode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_MS = 86_400_000
NOON_MS = 1_772_366_400_000  # 2026-03-01T12:00:00Z


@dataclass
class Notes:
    """A display for tests: it remembers what it was told."""

    texts: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.texts.append(text)

    @contextmanager
    def tasks(self, label: str) -> Iterator[None]:
        yield


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def chain(
    count: int,
    *,
    link: Link | None = None,
    at_ms: int = NOON_MS,
    step_ms: int = 1_000,
    node: str = "n1",
) -> tuple[list[bytes], Link]:
    """Records as a node writes them, and the link behind the last."""
    values, link = [], link or Link()
    for number in range(count):
        entry = AuditEntry(
            at_ms=at_ms + number * step_ms,
            principal=f"arn:aws:iam::000000000000:user/u{number % 3}",
            action="sqs:CreateQueue" if number % 2 else "kafka:CreateTopics",
            resource=f"arn:aws:sqs:eu:000000000000:q{number}",
            params={"n": number},
        )
        value, link = append(link, entry, node=node)
        values.append(value)
    return values, link


def frame(spark: SparkSession, values: Sequence[bytes | None], *, first: int = 0) -> DataFrame:
    batch = pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([0] * len(values), pa.int32()),
            "offset": pa.array(range(first, first + len(values)), pa.int64()),
            "value": pa.array(values, pa.binary()),
        }
    )
    return spark.createDataFrame(pa.Table.from_batches([expand_audit(batch)]))


def stored(spark: SparkSession, lake: Lake, *batches: Sequence[bytes]) -> AuditTables:
    tables = AuditTables(spark, lake)
    first = 0
    for batch_id, values in enumerate(batches):
        tables.add(frame(spark, values, first=first), app="audit:q", batch_id=batch_id)
        first += len(values)
    tables.state_roots()
    return tables


def gap_rows(spark: SparkSession, lake: Lake) -> list[tuple[int, str, int]]:
    if not lake.exists(GAP):
        return []
    rows = lake.read(spark, GAP).orderBy("offset").collect()
    return [(row.offset, row.kind, row.missing) for row in rows]


def kinds(verdict: Verdict) -> set[str]:
    return {str(fault["kind"]) for fault in verdict.faults}


# ── Links ────────────────────────────────────────────────────────────────────────────────────────


def test_a_whole_chain_over_several_batches_has_no_gap(spark: SparkSession, lake: Lake) -> None:
    values, _ = chain(30)
    tables = stored(spark, lake, values[:10], values[10:11], values[11:])
    assert (tables.records, tables.gaps) == (30, 0)
    verdict = verify_audit(spark, lake)
    assert (verdict.records, verdict.roots, verdict.fault_count) == (30, 1, 0)


def test_each_way_to_break_the_chain_is_told_apart(spark: SparkSession, lake: Lake) -> None:
    values, _ = chain(20)
    other, _ = chain(20, at_ms=NOON_MS + 1)
    anew, _ = chain(2, at_ms=NOON_MS + DAY_MS)
    told = [
        *values[:5],
        *values[7:10],  # 5: two are missing
        other[10],  # 8: another record with the right number
        b"not json",  # 9
        values[11],  # 10: ties to the one that other[10] has replaced
        values[11],  # 11: again
        *anew,  # 12: from 1
    ]
    stored(spark, lake, told[:6], told[6:10], told[10:])
    assert gap_rows(spark, lake) == [
        (5, MISSING, 2),
        (8, CHANGED, 0),
        (9, UNREADABLE, 0),
        (10, CHANGED, 0),
        (11, REPEATED, 0),
        (12, RESTARTED, 0),
    ]
    verdict = verify_audit(spark, lake)
    assert kinds(verdict) == {"link"}
    assert verdict.fault_count == 6
    assert all("the log had the same gap" in str(fault["why"]) for fault in verdict.faults)


def test_nodes_that_write_in_turns_each_have_a_chain_of_their_own(
    spark: SparkSession, lake: Lake
) -> None:
    one, two, three = (chain(12, node=name)[0] for name in ("n1", "n2", "n3"))
    told = [
        *one[:4], *two[:2], *one[4:6],
        *two[2:5], three[0], one[6],  # a batch of its own, as if the job had been started again
        *one[7:9], two[5], *three[1:3],  # n3 was silent in between
        one[9], two[7], b"{}", three[3],  # 19: the seventh of n2 is missing
    ]  # fmt: skip
    assert stored(spark, lake, told[:8]).gaps == 0
    tables = AuditTables(spark, lake)
    tables.add(frame(spark, told[8:13], first=8), app="audit:q", batch_id=1)
    again = AuditTables(spark, lake)
    again.add(frame(spark, told[13:], first=13), app="audit:q", batch_id=2)
    again.state_roots()
    assert gap_rows(spark, lake) == [(19, MISSING, 1), (20, UNREADABLE, 0)]
    verdict = verify_audit(spark, lake)
    assert [(f["kind"], f["offset"]) for f in verdict.faults] == [("link", 19), ("link", 20)]
    assert "number 8 of n2 follows 6; the log had the same gap" in str(verdict.faults[0]["why"])
    assert {row.node for row in lake.read(spark, ROOT).collect()} == {"n1", "n2", "n3"}


def test_the_first_records_may_have_gone_by_retention(spark: SparkSession, lake: Lake) -> None:
    values, _ = chain(20)
    assert stored(spark, lake, values[12:]).gaps == 0
    assert verify_audit(spark, lake).fault_count == 0


def test_a_batch_that_comes_again_changes_nothing(spark: SparkSession, lake: Lake) -> None:
    values, _ = chain(12)
    stored(spark, lake, values[:6], values[6:])
    again = AuditTables(spark, lake)
    assert not again.add(frame(spark, values[6:], first=6), app="audit:q", batch_id=1)
    assert again.state_roots() == 0
    assert lake.read(spark, LOG).count() == 12


# ── Tampering ────────────────────────────────────────────────────────────────────────────────────


def rewrite(lake: Lake, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Change rows of the table's only file, as somebody with access to the disk would."""
    (path,) = lake.table(LOG).files()
    table = pq.ParquetFile(path).read()
    rows = change(table.to_pylist())
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)


def altered(index: int, **fields: Any) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rows[index] |= fields
        return rows

    return change


def flipped(value: bytes, at: int) -> bytes:
    return value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]


@pytest.fixture(scope="module")
def sound(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake whose log is one file of eight records, in which nothing is wrong."""
    lake = Lake(tmp_path_factory.mktemp("sound"))
    tables = AuditTables(spark, lake)
    tables.add(frame(spark, chain(8)[0]).coalesce(1), app="audit:q", batch_id=0)
    tables.state_roots()
    assert verify_audit(spark, lake).fault_count == 0
    return lake.path


@pytest.fixture
def copied(sound: Path, lake: Lake) -> Lake:
    """A copy of the sound lake, to be tampered with."""
    shutil.copytree(sound, lake.path)
    return lake


def test_one_byte_of_a_records_value_is_noticed(spark: SparkSession, copied: Lake) -> None:
    values, _ = chain(8)
    at = values[3].index(b"user/u") + 5
    rewrite(copied, altered(3, value=flipped(values[3], at)))
    verdict = verify_audit(spark, copied)
    assert kinds(verdict) == {"row", "link", "root"}
    assert {(f["kind"], f["offset"]) for f in verdict.faults} >= {("row", 3), ("link", 4)}


def test_one_field_of_a_row_is_noticed(spark: SparkSession, copied: Lake) -> None:
    rewrite(copied, altered(7, principal="arn:aws:iam::000000000000:user/somebody-else"))
    verdict = verify_audit(spark, copied)
    assert [(f["kind"], f["offset"]) for f in verdict.faults] == [("row", 7)]
    assert "principal" in str(verdict.faults[0]["why"])


@pytest.mark.parametrize("index", [0, 3, 7])
def test_a_record_that_was_dropped_is_noticed(
    spark: SparkSession, copied: Lake, index: int
) -> None:
    rewrite(copied, lambda rows: rows[:index] + rows[index + 1 :])
    verdict = verify_audit(spark, copied)
    assert kinds(verdict) == {0: {"root"}, 3: {"link", "root"}, 7: {"root", "end"}}[index]


def test_a_damaged_file_is_named(spark: SparkSession, copied: Lake) -> None:
    (path,) = copied.table(LOG).files()
    raw = Path(path).read_bytes()
    Path(path).write_bytes(raw[: len(raw) // 2])
    verdict = verify_audit(spark, copied)
    assert kinds(verdict) == {"file"}
    assert Path(path).name in str(verdict.faults[0]["why"])


# ── Roots ────────────────────────────────────────────────────────────────────────────────────────


def test_a_days_root_is_the_one_over_its_hashes_and_stays(spark: SparkSession, lake: Lake) -> None:
    values, link = chain(6, at_ms=NOON_MS, step_ms=DAY_MS // 4)
    more, _ = chain(2, link=link, at_ms=NOON_MS + 2 * DAY_MS)
    tables = AuditTables(spark, lake)
    tables.add(frame(spark, values), app="audit:q", batch_id=0)
    stated = lake.read(spark, ROOT).orderBy("date").collect()
    assert [(str(row.date), row.records) for row in stated] == [("2026-03-01", 2)]  # one is over
    tables.state_roots()
    tables.add(frame(spark, more, first=6), app="audit:q", batch_id=1)
    tables.state_roots()
    told = lake.read(spark, ROOT).orderBy("date", "records").collect()
    assert [(str(r.date), r.records, r.first_seq, r.last_seq) for r in told] == [
        ("2026-03-01", 2, 1, 2),
        ("2026-03-02", 4, 3, 6),
        ("2026-03-03", 2, 7, 8),
    ]
    hashes = [bytes.fromhex(r.hash) for r in lake.read(spark, LOG).orderBy("offset").collect()]
    assert [r.root for r in told] == [
        root_of(hashes[a:b]).hex() for a, b in ((0, 2), (2, 6), (6, 8))
    ]
    assert verify_audit(spark, lake).fault_count == 0


# ── With a server ────────────────────────────────────────────────────────────────────────────────


def context_for(spark: SparkSession, server: Server, folder: Path, **given: Any) -> JobContext:
    return JobContext(
        spark=spark,
        server=server.kafka,
        lake=Lake(folder / "lake"),
        checkpoint=folder / "checkpoint",
        progress=Notes(),
        mode=Mode.ONCE,
        **given,
    )


def busy(server: Server, name: str, count: int) -> None:
    """Actions that are noted."""
    client = sqs_client(server.url)
    for number in range(count):
        client.create_queue(QueueName=f"{name}-{number}")
    client.close()


def node_of(server: Server) -> str:
    """The name under which it writes: a chain of another node would be none of its own."""
    return str(decode(read_all(server.kafka, "__audit")[0].value()).node)


def test_what_a_server_noted_is_found_once_and_can_be_searched(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    busy(server, "first", 12)
    shown: list[Any] = []
    context = context_for(spark, server, tmp_path, show=shown.extend)
    audit.JOB.run(context)
    busy(server, "second", 5)
    audit.JOB.run(context)
    rows = context.lake.read(spark, LOG)
    created = rows.where("action = 'sqs:CreateQueue'")
    names = [row.resource.rsplit(":", 1)[1] for row in created.orderBy("offset").collect()]
    assert names == [f"first-{n}" for n in range(12)] + [f"second-{n}" for n in range(5)]
    audit.VERIFY.run(context)
    assert "the chain is intact" in context.progress.texts[-1]  # type: ignore[attr-defined]
    found = audit.search(context.lake, {"action": "sqs:Create*"}, limit=7)
    assert [row["resource"].rsplit(":", 1)[1] for row in found] == [
        *[f"second-{n}" for n in range(4, -1, -1)],
        "first-11",
        "first-10",
    ]
    audit.SEARCH.run(context)
    assert len(shown) == rows.count()


def test_a_lost_checkpoint_puts_nothing_in_twice(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    busy(server, "before", 3)
    context = context_for(spark, server, tmp_path)
    audit.JOB.run(context)
    (tmp_path / "checkpoint").rename(tmp_path / "lost")
    busy(server, "after", 3)
    audit.JOB.run(context)
    rows = context.lake.read(spark, LOG)
    assert rows.count() == rows.select("offset").distinct().count()
    assert verify_audit(spark, context.lake).fault_count == 0


def test_a_break_ends_the_run_as_unsound(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    busy(server, "sound", 8)  # more than the table will hold
    context = context_for(spark, server, tmp_path)
    values, _ = chain(3, node=node_of(server))
    AuditTables(spark, context.lake).add(frame(spark, values), app="audit:x", batch_id=0)
    with pytest.raises(Unsound, match="are broken"):
        audit.JOB.run(context)  # goes on at offset 3, with another chain than the table's
    with pytest.raises(Unsound):
        audit.VERIFY.run(context)
