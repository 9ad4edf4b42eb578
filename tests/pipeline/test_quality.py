"""Rules of data quality: seeded faults are found with exact counts, clean data has none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.harness.server import Server
from tests.pipeline.test_audit import context_for
from tests.unit.pipeline.test_quality_rules import NOON_MS, rules

from penstock.net.kafka_client.client import KafkaClient
from penstock.pipeline.job import JobMisused, Unsound
from penstock.pipeline.jobs import quality
from penstock.pipeline.jobs.quality import QUARANTINE, RESULT, newest_ms
from penstock.pipeline.quality.rules import Result, count, mark, quarantined

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def row(offset: int, value: bytes | None = b"{}", **told: Any) -> dict[str, Any]:
    at_ms = told.pop("at_ms", NOON_MS + offset * 1_000)
    at = datetime.fromtimestamp(at_ms / 1_000, UTC)
    return {"key": b"k", "headers": None, "topic": "t", "partition": 0, **told,
            "value": value, "offset": offset, "timestamp": at}  # fmt: skip


def order(offset: int, **changed: Any) -> dict[str, Any]:
    body = {"id": f"o{offset}", "amount": 10 + offset, "at": NOON_MS + offset * 1_000,
            "customer": {"mail": "a@b.cd"}, "paid": True} | changed  # fmt: skip
    body = {name: value for name, value in body.items() if value is not ...}
    return row(offset, json.dumps(body).encode())


def frame(spark: SparkSession, rows: Sequence[dict[str, Any]]) -> DataFrame:
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    schema = pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(header)),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
        ]
    )
    return spark.createDataFrame(pa.Table.from_pylist(list(rows), schema=schema))


def found(results: Sequence[Result]) -> dict[str, tuple[int, str]]:
    return {each.rule.name: (each.failed, each.sample) for each in results}


ALL = rules(
    'name = "id there"\ncheck = "not_null"\nfield = "id"\non_fail = "quarantine"',
    'name = "key there"\ncheck = "not_null"\nfield = "key"',
    'name = "id once"\ncheck = "unique"\nfield = "id"\nwindow_s = 60',
    'name = "amount"\ncheck = "range"\nfield = "amount"\nmin = 0\nmax = 1000\n'
    'on_fail = "quarantine"',
    'name = "mail"\ncheck = "regex"\nfield = "customer.mail"\npattern = "[^@]+@[^@]+"',
    'name = "size"\ncheck = "size"\nmax = 200',
    'name = "trace"\ncheck = "size"\nfield = "header:trace"\nmin = 4',
    'name = "json"\ncheck = "json"\non_fail = "quarantine"\n'
    'fields = { id = "string?", amount = "number?", paid = "boolean",'
    ' "customer.mail" = "string?" }',
    'name = "skew"\ncheck = "skew"\nfield = "at"\nmax_s = 5',
    'name = "gap"\ncheck = "offset_gap"',
)


# ── Rows ─────────────────────────────────────────────────────────────────────────────────────────


def test_clean_rows_fail_nothing(spark: SparkSession) -> None:
    marked = mark(frame(spark, [order(n) for n in range(50)]), ALL)
    results = count(marked, ALL, {0: 0})
    assert {each.failed for each in results} == {0}
    assert {each.checked for each in results} == {50}
    assert len(results) == len(ALL)
    assert quarantined(marked, ALL).isEmpty()


def test_faults_of_every_kind_are_found_with_exact_counts(spark: SparkSession) -> None:
    header = {"key": "trace", "value": b"abc"}
    faults = [
        order(100, id=...),
        order(101, id=None),
        {**order(102), "key": None},
        order(104, id="o7"),  # 103 is missing
        order(105, amount=-1),
        order(106, amount=1001),
        order(107, amount="much"),  # in no range, and of another type
        order(108, customer={"mail": "nobody"}),
        order(109, note="x" * 200),
        {**order(110), "headers": [header]},
        {**order(111), "headers": [{**header, "value": b"abcd"}]},
        order(112, paid="yes"),
        order(113, paid=...),
        row(114, b"[1, 2]"),
        row(115, b'{"broken'),
        row(116, b"\xff\xfe"),
        row(117, None),
        order(118, at=NOON_MS),
        order(119, at="2026-03-01T12:01:59Z"),
        order(120, at="yesterday"),
    ]
    good = [order(n) for n in range(100)]
    marked = mark(frame(spark, [*good, *faults]), ALL).persist()
    assert found(count(marked, ALL, {0: 0})) == {
        # Those without an object have no id either.
        "id there": (6, "0:100"),
        "key there": (1, "0:102"),
        "id once": (0, ""),  # o7 came 97 s before
        "amount": (3, "0:105"),
        "mail": (1, "0:108"),
        "size": (1, "0:109"),
        "trace": (1, "0:110"),
        "json": (7, "0:107"),
        "skew": (2, "0:118"),
        "gap": (1, "0:0"),
    }
    aside = {r.offset: r.rules for r in quarantined(marked, ALL).collect()}
    marked.unpersist()
    assert sorted(aside) == [100, 101, 105, 106, 107, 112, 113, 114, 115, 116, 117]
    assert aside[107] == ["amount", "json"]
    assert aside[116] == ["id there", "json"]


def test_quotes_and_backslashes_of_rules_are_taken_as_they_are(spark: SparkSession) -> None:
    name = r"it's \n"
    strange = rules(
        'name = "it\'s \\\\n"\ncheck = "regex"\nfield = "header:it\'s \\\\n"\n'
        "pattern = '''\\d+'s \\\\ \"x\" \\$'''\n"
        'on_fail = "quarantine"',
        'name = "whole"\ncheck = "json"\nfields = { n = "integer", o = "object?", a = "array?" }',
    )
    header = {"key": name, "value": b'12\'s \\ "x" $'}
    rows = [
        row(0, b'{"n": 1, "o": {}, "a": [1]}', headers=[header]),
        row(1, b'{"n": 123456789012345678901234567890}', headers=[{**header, "value": b"12s"}]),
        row(2, b'{"n": 1.5}'),
        row(3, b'{"n": 1, "o": []}'),
    ]
    marked = mark(frame(spark, rows), strange)
    assert found(count(marked, strange, {})) == {name: (1, "0:1"), "whole": (2, "0:2")}
    assert [each.rules for each in quarantined(marked, strange).collect()] == [[name]]


def test_what_must_not_repeat_is_held_against_earlier_rows(spark: SparkSession) -> None:
    once = [ALL[2]]
    history = frame(spark, [order(n) for n in range(10)])
    rows = [order(10, id="o9"), order(11, id="o9"), order(69, id="o9"), order(80, id="o1"),
            order(150, id="o9"), order(151, id=None), order(152, id=None)]  # fmt: skip
    (result,) = count(mark(frame(spark, rows), once, history), once, {})
    assert (result.failed, result.checked, result.sample) == (3, 7, "0:10")


def test_gaps_between_batches_count(spark: SparkSession) -> None:
    gap = [ALL[-1]]
    rows = [row(5), row(6), row(9), row(3, partition=1)]
    marked = mark(frame(spark, rows), gap)
    assert found(count(marked, gap, {0: 5, 1: 3})) == {"gap": (2, "0:5")}
    assert found(count(marked, gap, {0: 2, 1: 0})) == {"gap": (8, "0:2")}
    assert found(count(marked, gap, {})) == {"gap": (2, "0:5")}


# ── With a server ────────────────────────────────────────────────────────────────────────────────

RULES = """
[[rule]]
topic = "orders"
check = "json"
fields = { id = "string" }
on_fail = "quarantine"
[[rule]]
topic = "orders"
check = "unique"
field = "id"
[[rule]]
topic = "orders"
check = "offset_gap"
[[rule]]
topic = "orders"
check = "freshness"
max_age_s = 3600
[[rule]]
topic = "orders"
check = "volume"
min = 1
max = 1000
"""


def _send(server: Server, topic: str, values: Sequence[bytes]) -> None:
    producer = Producer({"bootstrap.servers": server.kafka})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(120) == 0


def _body(number: int) -> bytes:
    return json.dumps({"id": f"o{number}"}).encode()


def test_a_topic_is_checked_run_by_run_and_bad_records_are_put_aside_once(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": server.kafka})
    admin.create_topics([NewTopic("orders", num_partitions=2)])["orders"].result(timeout=30)
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    shown: list[dict[str, Any]] = []
    context = context_for(
        spark, server, tmp_path, arguments={"rules": str(path)}, show=shown.extend
    )

    def numbers() -> dict[str, tuple[int, int]]:
        told = {line["rule"]: (line["checked"], line["failed"]) for line in shown}
        shown.clear()
        return told

    _send(server, "orders", [*map(_body, range(20)), b"\xc3\x28", b"{}"])
    quality.JOB.run(context)  # rows that were put aside are no alarm
    assert numbers() == {"json": (22, 2), "unique id": (22, 0), "offset_gap": (22, 0),
                         "freshness": (1, 0), "volume": (1, 0)}  # fmt: skip
    # A second run sees what is new, and still knows what must not repeat.
    _send(server, "orders", [_body(20), _body(3), b"nonsense"])
    with pytest.raises(Unsound, match="1 rules failed; rule 'unique id' of orders: 1 failed"):
        quality.JOB.run(context)
    assert numbers()["unique id"] == (3, 1)
    aside = context.lake.read(spark, QUARANTINE).orderBy("offset").collect()
    assert [bytes(r.value) for r in aside] == [b"\xc3\x28", b"{}", b"nonsense"]
    # A lost checkpoint: the tables know how far it was.
    (tmp_path / "checkpoint").rename(tmp_path / "lost")
    _send(server, "orders", [_body(30)])
    quality.JOB.run(context)
    assert numbers()["json"] == (1, 0)
    path.write_text(
        '[[rule]]\ntopic = "orders"\ncheck = "size"\nmax = 5\non_fail = "stop"\nname = "short"'
    )
    _send(server, "orders", [b"too long by far"])
    for _ in range(2):  # a batch that was stopped is not done: the next run stops there again
        with pytest.raises(Unsound, match="stopped by rule 'short' of orders: 1 failed"):
            quality.JOB.run(context)
        assert numbers() == {"short": (1, 1)}
    results = context.lake.read(spark, RESULT)
    assert results.where("status = 'failed' AND on_fail = 'stop'").count() == 2
    with KafkaClient(server.kafka) as client:
        newest = newest_ms(client, client.places("orders"))
    assert newest is not None
    assert newest > NOON_MS


def test_rules_that_cannot_be_read_are_told_plainly(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    with pytest.raises(JobMisused, match="--rules"):
        quality.JOB.run(context_for(spark, server, tmp_path))
    context = context_for(spark, server, tmp_path, arguments={"rules": str(tmp_path / "none")})
    with pytest.raises(JobMisused, match="cannot read"):
        quality.JOB.run(context)
