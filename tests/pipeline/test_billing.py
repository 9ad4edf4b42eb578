"""Usage to invoices: every fact once, hours sealed when they are complete, amounts to the unit."""

from __future__ import annotations

import csv
import datetime
import io
import random
import shutil
import subprocess
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from pyspark.sql import functions as f
from tests.compat.conftest import sqs_client
from tests.harness.server import Server, penstock_command
from tests.pipeline.stage import Notes, context_of
from tests.pipeline.topics import topics_of
from tests.unit.pipeline.test_rates import CARD, DAY0_MS, hour

from penstock.pipeline.facts.rates import parse
from penstock.pipeline.facts.usage_sums import COUNTS, HOUR_MS
from penstock.pipeline.job import JobMisused
from penstock.pipeline.jobs import billing, usage
from penstock.pipeline.jobs.billing import Month, bill
from penstock.pipeline.jobs.usage import UsageTables
from penstock.pipeline.lake import Commit, Lake, LakeFenced, Table
from penstock.wire.facts.usage import UsageColumns, UsageFacts, UsageRow, encode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JANUARY = Month.parse("2026-01")
REFUSED = ("throttled", "denied", "failed")
Totals = dict[tuple[str, ...], dict[str, int]]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


class Node:
    """Writes facts as a front end does, and remembers what they add up to."""

    def __init__(self, name: str, seed: int = 1) -> None:
        self.name = name
        self._chance = random.Random(seed)
        self._incarnation = f"{seed:016x}"
        self._flush = 0

    def facts(self, minute_ms: int, rows: int = 5, written_at_ms: int | None = None) -> UsageFacts:
        self._flush += 1
        columns = UsageColumns()
        for _ in range(rows):
            chance = self._chance
            kind = chance.choice(["calls", "calls", "storage"])
            op = (
                "storage" if kind == "storage" else chance.choice(["sqs:SendMessage", "kafka:Read"])
            )
            numbers = {name: chance.randrange(1_000) for name in COUNTS if kind == "calls"}
            numbers |= {name: n % 10 for name, n in numbers.items() if name in REFUSED}
            row = UsageRow(
                tenant=chance.choice(["111111111111", "222222222222", ""]),
                region="eu",
                resource=chance.choice("ab"),
                kind=kind,
                op=op,
                stored_bytes=chance.randrange(10**9) if kind == "storage" else 0,
                **numbers,
            )
            for name in UsageRow.__struct_fields__:
                getattr(columns, name).append(getattr(row, name))
        at_ms = minute_ms + 60_000 if written_at_ms is None else written_at_ms
        return UsageFacts(1, self.name, self._incarnation, self._flush, minute_ms, at_ms, columns)


def totals_of(facts: Iterable[UsageFacts]) -> Totals:
    found: Totals = {}
    for each in facts:
        for row in each.columns.rows():
            key = (str(each.minute_ms // HOUR_MS), row.tenant, row.resource, row.op)
            sums = found.setdefault(key, dict.fromkeys((*COUNTS, "byte_minutes"), 0))
            for name in COUNTS:
                sums[name] += getattr(row, name)
            sums["byte_minutes"] += row.stored_bytes
    return found


def totals_in(df: DataFrame) -> Totals:
    found: Totals = {}
    for row in df.selectExpr("*", "unix_seconds(hour) div 3600 AS number").collect():
        if row.kind not in ("calls", "storage"):
            continue
        key = (str(row.number), row.tenant, row.resource, row.op)
        sums = found.setdefault(key, dict.fromkeys((*COUNTS, "byte_minutes"), 0))
        for name in sums:
            sums[name] += row[name]
    return found


def records(spark: SparkSession, values: list[bytes], first_offset: int = 0) -> DataFrame:
    rows = [(0, first_offset + n, value) for n, value in enumerate(values)]
    return spark.createDataFrame(rows, "partition int, offset long, value binary")


def tables(spark: SparkSession, lake: Lake, app: str = "usage:q", grace_ms: int = 0) -> UsageTables:
    return UsageTables(spark, lake, app=app, grace_ms=grace_ms)


# ── Every fact once ──────────────────────────────────────────────────────────────────────────


def test_sums_are_those_of_the_facts_whatever_is_there_twice(
    spark: SparkSession, lake: Lake
) -> None:
    node, other = Node("n1", 1), Node("n2", 2)
    facts = [each.facts(hour(n // 20, n % 20)) for n in range(60) for each in (node, other)]
    values = [encode(each) for each in facts]
    job = tables(spark, lake)
    assert job.add(records(spark, [*values[:80], values[3]]), 0)  # a copy in another task
    assert not job.add(records(spark, values[:80]), 0)  # the batch was done before a kill
    assert job.add(records(spark, [*values[70:], values[0]], 81), 1)  # copies of the last batch
    assert totals_in(lake.read(spark, usage.PARTIAL)) == totals_of(facts)
    reasons = [row.why for row in lake.read(spark, usage.REJECT).collect()]
    assert len(reasons) == 12
    assert all(why.startswith("copy of flush ") for why in reasons)
    again = tables(spark, lake)  # all that it must remember is in the table
    assert again.flushes.ranges.keys() == job.flushes.ranges.keys()
    assert again.ends == job.ends
    assert not again.flushes.gaps()


def test_what_cannot_be_read_is_kept_apart_with_its_reason(spark: SparkSession, lake: Lake) -> None:
    good = Node("n").facts(hour(0))
    bad_kind, below, beyond, old, late = (
        msgspec.structs.replace(good, flush=n) for n in range(2, 7)
    )
    bad_kind.columns = UsageColumns(["t"], ["r"], ["q"], ["x"], ["o"])
    below.columns = UsageColumns(["t"], ["r"], ["q"], ["calls"], ["o"], [-1])
    beyond.columns = UsageColumns(["t"], ["r"], ["q"], ["calls"], ["o"], [2**63])
    old.minute_ms = -5
    late.v = 2
    bad = [bad_kind, below, beyond, old, late]
    for facts in (bad_kind, below, beyond):
        for name in COUNTS:
            column = getattr(facts.columns, name)
            setattr(facts.columns, name, column or [0])
        facts.columns.stored_bytes = [0]
    values = [encode(good), *map(encode, bad), b"", b"\xff junk", b"x" * 10_000]
    job = tables(spark, lake)
    job.add(records(spark, values), 0)
    assert totals_in(lake.read(spark, usage.PARTIAL)) == totals_of([good])
    rejects = lake.read(spark, usage.REJECT).orderBy("offset").collect()
    assert [row.offset for row in rejects] == list(range(1, 9))
    assert "unknown kind" in rejects[0].why
    assert "below zero" in rejects[1].why
    assert "version 2" in rejects[4].why
    assert len(rejects[7].value) == 4_096
    assert job.rejected == 8


def test_another_query_beside_is_fenced_and_counts_nothing(spark: SparkSession, lake: Lake) -> None:
    node = Node("n")
    facts = [node.facts(hour(0, n)) for n in range(3)]
    ours, theirs = tables(spark, lake), tables(spark, lake, app="usage:other")
    ours.add(records(spark, [encode(facts[0])]), 0)
    stale = lake.table(usage.PARTIAL).turn_of("usage")
    theirs.add(records(spark, [encode(facts[1])], 1), 0)
    with pytest.raises(LakeFenced):
        lake.table(usage.PARTIAL).commit([], app="usage:q", batch_id=1, turn=stale + 1)
    assert totals_in(lake.read(spark, usage.PARTIAL)) == totals_of(facts[:2])


# ── Sealing ──────────────────────────────────────────────────────────────────────────────────


def test_late_facts_become_adjustments_and_nothing_is_counted_twice(
    spark: SparkSession, lake: Lake
) -> None:
    node = Node("n")
    facts = [node.facts(hour(n)) for n in range(3)]
    job = tables(spark, lake)
    job.add(records(spark, [encode(each) for each in facts]), 0)
    assert job.seal() == 2
    sealed = totals_in(lake.read(spark, usage.HOURLY))
    assert sealed == totals_of(facts[:2])
    late = [node.facts(hour(1), written_at_ms=hour(2, 5)), node.facts(hour(2, 30))]
    job.add(records(spark, [encode(each) for each in late], 3), 1)
    assert totals_in(lake.read(spark, usage.ADJUSTMENT)) == totals_of(late[:1])
    last = node.facts(hour(3, 30))
    job.add(records(spark, [encode(last)], 5), 2)
    assert job.seal() == 1
    assert job.seal() == 0
    assert totals_in(lake.read(spark, usage.HOURLY)) == totals_of([*facts, late[1]])
    assert totals_in(lake.read(spark, usage.ADJUSTMENT)) == totals_of(late[:1])
    df, is_sealed = billing.usage_of(spark, lake, JANUARY)
    assert totals_in(df) == totals_of([*facts, *late, last])
    assert not is_sealed


def test_a_kill_between_any_two_tables_is_made_good_by_the_next_run(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write in turn is the one before which the process dies."""

    class Killed(Exception):
        pass

    node = Node("n")
    first = [node.facts(hour(n, 5)) for n in range(3)]
    late = [node.facts(hour(0, 50)), node.facts(hour(4))]
    plan = [(records(spark, [encode(f) for f in first] + [b"junk"]), 0)]
    plan += [(records(spark, [encode(f) for f in late], 4), 1)]
    real = Table.commit
    lives = 0

    def mortal(self: Table, parts: Any, **options: Any) -> Commit:
        nonlocal lives
        if lives == 0:
            raise Killed
        commit = real(self, parts, **options)
        lives -= commit.is_new
        return commit

    monkeypatch.setattr(Table, "commit", mortal)
    deaths = 0
    while True:
        lives = 1  # each run gets one write further than the last
        try:
            job = tables(spark, lake)
            job.adjust()
            for df, batch_id in plan:
                job.add(df, batch_id)
                job.seal()
        except Killed:
            deaths += 1
            assert deaths < 20
            continue
        break
    assert deaths >= 6
    assert totals_in(lake.read(spark, usage.PARTIAL)) == totals_of([*first, *late])
    assert totals_in(lake.read(spark, usage.ADJUSTMENT)) == totals_of(late[:1])
    assert totals_in(lake.read(spark, usage.HOURLY)) == totals_of(first)
    assert lake.read(spark, usage.REJECT).count() == 1


# ── Invoices ─────────────────────────────────────────────────────────────────────────────────


def test_invoices_add_up_and_change_only_when_something_did(
    spark: SparkSession, lake: Lake
) -> None:
    node = Node("n")
    facts = [node.facts(hour(n)) for n in range(4)]
    card = parse(CARD)
    job = tables(spark, lake)
    job.add(records(spark, [encode(each) for each in facts]), 0)
    assert bill(spark, lake, card, JANUARY) == 3  # two tenants and nobody
    job.seal()
    assert bill(spark, lake, card, JANUARY) == 0  # sealing changes no sum
    rows = {row.tenant: row for row in lake.read(spark, billing.INVOICE).collect()}
    want = totals_of(facts)
    for tenant, row in rows.items():
        of_tenant = [sums for key, sums in want.items() if key[1] == tenant]
        for name in ("requests", "messages", "bytes_in", "bytes_out", "byte_minutes"):
            assert row[name] == sum(sums[name] for sums in of_tenant)
        assert (row.revision, row.status, row.currency) == (1, "draft", "EUR")
    assert rows[""].amount_micros == 0
    lines = lake.read(spark, billing.INVOICE_LINE).collect()
    for tenant in ("111111111111", "222222222222"):
        amounts = [line.amount_micros for line in lines if line.tenant == tenant]
        assert sum(amounts) == rows[tenant].amount_micros
    end = node.facts(DAY0_MS + 31 * 24 * HOUR_MS)  # February: January is over, and sealed
    job.add(records(spark, [encode(end)], 4), 1)
    job.seal()
    assert bill(spark, lake, card, JANUARY) == 3
    last = lake.read(spark, billing.INVOICE, "revision = 2").collect()
    assert {row.status for row in last} == {"final"}
    assert bill(spark, lake, card, JANUARY) == 0
    assert bill(spark, lake, parse(CARD.replace("400_000", "500_000")), JANUARY) == 2


def test_lines_of_a_killed_writing_give_way_to_the_next(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, card = tables(spark, lake), parse(CARD)
    node = Node("n")
    job.add(records(spark, [encode(node.facts(hour(0), rows=50))]), 0)
    real = Lake.append

    def die_before_heads(self: Lake, rows: Any, table: str, **options: Any) -> Any:
        if table == billing.INVOICE:
            raise KeyboardInterrupt
        return real(self, rows, table, **options)

    monkeypatch.setattr(Lake, "append", die_before_heads)
    with pytest.raises(KeyboardInterrupt):
        bill(spark, lake, card, JANUARY)
    monkeypatch.undo()
    job.add(records(spark, [encode(node.facts(hour(0, 1), rows=50))], 1), 1)
    bill(spark, lake, card, JANUARY)
    heads = lake.read(spark, billing.INVOICE).groupBy().sum("amount_micros").collect()
    lines = lake.read(spark, billing.INVOICE_LINE).groupBy().sum("amount_micros").collect()
    assert heads == lines


def test_misuse_of_billing_is_told_in_a_line(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    class Nowhere:
        kafka = "127.0.0.1:1"

    def run(**arguments: Any) -> None:
        server: Any = Nowhere()
        billing.run(context_of(spark, server, lake, tmp_path, **arguments))

    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text(CARD)
    bad.write_text("x")
    with pytest.raises(JobMisused, match="--rates is required"):
        run()
    with pytest.raises(JobMisused, match="cannot read the rate card"):
        run(rates=tmp_path / "none")
    with pytest.raises(JobMisused, match="penstock pipeline run usage"):
        run(rates=good, month="2026-01")
    with pytest.raises(JobMisused, match="not valid TOML"):
        run(rates=bad, month="2026-01")


# ── With a real server ───────────────────────────────────────────────────────────────────────


def test_invoices_say_what_the_servers_own_report_says(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """Used with boto3 and a Kafka client; ``penstock usage report`` is the measure."""
    with Server(tmp_path / "data", fsync="never", kafka_port=0) as server:
        month = datetime.datetime.now(datetime.UTC).strftime("%Y-%m")
        _use(server)
        server.restart()  # a stop writes all that was counted
        report = _report(server)
        card = tmp_path / "rates.toml"
        card.write_text(CARD.replace("2026-01-01", "2020-01-01"))
        notes = Notes()
        job = context_of(spark, server, lake, tmp_path / "c", notes, grace_s=0)
        usage.run(job)
        shutil.rmtree(tmp_path / "c")  # the table is a checkpoint as well
        usage.run(job)
        billing.run(context_of(spark, server, lake, tmp_path / "b", rates=card, month=month))
    lines = {
        (row.resource, row.op): row
        for row in lake.read(spark, usage.PARTIAL)
        .where("kind IN ('calls', 'storage')")
        .groupBy("resource", "op")
        .agg(*[f.sum(name).alias(name) for name in COUNTS])
        .collect()
    }
    used = [
        row for row in report if row["resource"] in ("bought", "sold") and row["op"] != "storage"
    ]
    assert {(row["resource"], row["op"]) for row in used} >= {
        ("bought", "sqs:SendMessage"),
        ("bought", "sqs:ReceiveMessage"),
        ("bought", "sqs:DeleteMessage"),
        ("sold", "kafka:Write"),
    }
    for row in used:
        found = lines[row["resource"], row["op"]]
        assert {name: str(found[name]) for name in COUNTS} == {name: row[name] for name in COUNTS}
    assert lines["bought", "sqs:SendMessage"].messages == 23
    assert lines["sold", "kafka:Write"].messages == 340
    (invoice,) = lake.read(spark, billing.INVOICE, "tenant <> ''").collect()
    total = (
        lake.read(spark, usage.PARTIAL).where("tenant <> ''").groupBy().sum(*COUNTS).collect()[0]
    )
    for name in ("requests", "messages", "bytes_in", "bytes_out"):
        assert invoice[name] == total[f"sum({name})"]
    assert invoice.amount_micros > 0
    assert not lake.exists(usage.REJECT)
    assert "0 records rejected" in notes.texts[0]


def _use(server: Server) -> None:
    with closing(sqs_client(server.url)) as sqs, topics_of(server.kafka) as topics:
        url = sqs.create_queue(QueueName="bought")["QueueUrl"]
        for n in range(3):
            sqs.send_message(QueueUrl=url, MessageBody="x" * 70_000 * n or "y")
        for _ in range(2):
            entries = [{"Id": str(n), "MessageBody": f"m{n}"} for n in range(10)]
            sqs.send_message_batch(QueueUrl=url, Entries=entries)
        got = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=7)["Messages"]
        for message in got:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        topics.make("sold", 2)
        topics.fill("sold", {0: 300, 1: 40})
        assert len(topics.values("sold")) == 340


def _report(server: Server) -> list[dict[str, str]]:
    command = [penstock_command(), "--endpoint", server.url, "--kafka", server.kafka]
    done = subprocess.run(
        [*command, "usage", "report", "--csv"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return list(csv.DictReader(io.StringIO(done.stdout)))
