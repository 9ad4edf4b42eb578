"""The archive: what the log held is in the tables, each record once, whatever happened to jobs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.compat.conftest import sqs_client
from tests.harness.server import Server
from tests.pipeline.stage import Notes, context_of
from tests.pipeline.topics import BASE_MS, Topics, topics_of

from penstock.net.kafka_client import Place
from penstock.pipeline import archive_check
from penstock.pipeline.archive_check import verify
from penstock.pipeline.job import JobMisused, Unsound
from penstock.pipeline.jobs import archive
from penstock.pipeline.lake import Lake, RecordsRepeated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def topics(server: Server) -> Iterator[Topics]:
    with topics_of(server.kafka) as found:
        yield found


def test_topics_are_archived_as_they_are_and_only_what_is_new_is_added(
    spark: SparkSession, server: Server, lake: Lake, tmp_path: Path, topics: Topics
) -> None:
    for name in ("orders", "returns", "other"):
        topics.make(name, 2)
    topics.fill("orders", {0: 250, 1: 120})
    topics.fill("returns", {1: 30})
    topics.fill("other", {0: 5})
    context = context_of(spark, server, lake, tmp_path / "c", topics="(orders|returns)")
    archive.run(context)
    assert lake.tables() == ["archive/orders", "archive/returns"]
    topics.fill("orders", {0: 10}, at_ms=BASE_MS + HOUR_MS, prefix="later")
    archive.run(context)
    rows = lake.read(spark, "archive/orders").orderBy("partition", "offset").collect()
    assert [row.value for row in rows] == topics.values("orders")
    first, second = rows[0], rows[1]
    assert (first.topic, first.key, first.headers) == ("orders", b"k0", None)
    assert [(h.key, h.value) for h in second.headers] == [("n", b"1")]
    assert {(row.date.isoformat(), row.hour) for row in rows} == {
        ("2023-11-14", 22),
        ("2023-11-14", 23),
    }
    late = lake.read(spark, "archive/orders", "date = '2023-11-14' AND hour = 23")
    assert late.count() == 10
    assert lake.end_offsets("archive/orders", "archive") == {"orders": {0: 260, 1: 120}}
    notes = Notes()
    archive_check.run(context_of(spark, server, lake, tmp_path / "v", notes))
    assert notes.texts == ["410 records in 3 partitions are each there once"]


def test_a_lost_checkpoint_costs_nothing_and_a_second_query_is_refused(
    spark: SparkSession, server: Server, lake: Lake, tmp_path: Path, topics: Topics
) -> None:
    topics.make("kept", 2)
    topics.fill("kept", {0: 40, 1: 40})
    archive.run(context_of(spark, server, lake, tmp_path / "c", topics="kept"))
    shutil.rmtree(tmp_path / "c")
    topics.fill("kept", {1: 7}, prefix="more")
    archive.run(context_of(spark, server, lake, tmp_path / "c", topics="kept"))
    assert [v.is_sound for v in verify(spark, lake, "kept")] == [True, True]
    assert lake.read(spark, "archive/kept").count() == 87
    # One that is told to begin at the beginning, beside the table's own account.
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", server.kafka)
    reader = reader.option("subscribe", "kept").option("includeHeaders", "true")
    rows = archive.transform(reader.load())
    with pytest.raises(RecordsRepeated):
        lake.append_each(
            rows, "archive", by="topic", app="archive:x", batch_id=0, partition_by=("date", "hour")
        )
    assert lake.read(spark, "archive/kept").count() == 87


def test_closed_hours_are_compacted_and_the_last_is_left_alone(
    spark: SparkSession, server: Server, lake: Lake, tmp_path: Path, topics: Topics
) -> None:
    topics.make("small", 1)
    context = context_of(spark, server, lake, tmp_path / "c", topics="small")
    for batch in range(archive.FILES_MIN):
        topics.fill("small", {0: 5}, at_ms=BASE_MS, prefix=f"a{batch}-")
        topics.fill("small", {0: 5}, at_ms=BASE_MS + 3 * HOUR_MS, prefix=f"b{batch}-")
        archive.run(context) if batch == 0 else _append_rest(spark, server, lake, batch)
    before = [row.value for row in lake.read(spark, "archive/small").orderBy("offset").collect()]
    saved = archive.compact_closed(lake, now_ms=BASE_MS + 3 * HOUR_MS + 60_000)
    assert saved == archive.FILES_MIN - 1
    assert lake.table("archive/small").files_by(("hour",)) == {
        ("22",): 1,
        ("1",): archive.FILES_MIN,
    }
    after = [row.value for row in lake.read(spark, "archive/small").orderBy("offset").collect()]
    assert after == before == topics.values("small")
    assert lake.end_offsets("archive/small", "archive") == {"small": {0: 40}}


def _append_rest(spark: SparkSession, server: Server, lake: Lake, batch_id: int) -> None:
    """What is new, as one more micro-batch, without the cost of a streaming query."""
    end = lake.end_offsets("archive/small", "archive")["small"][0]
    df = spark.read.format("penstock").option("kafka.bootstrap.servers", server.kafka)
    df = df.option("subscribe", "small").option("includeHeaders", "true")
    df = df.option("startingOffsets", f'{{"small": {{"0": {end}}}}}')
    lake.append_each(
        archive.transform(df.load()),
        "archive",
        by="topic",
        app="archive:by hand",
        batch_id=batch_id,
        partition_by=archive.PARTITION_BY,
    )


def test_verify_finds_what_is_missing_and_what_is_twice_and_forgives_the_logs_own_gaps(
    spark: SparkSession, server: Server, lake: Lake, tmp_path: Path, topics: Topics
) -> None:
    topics.make("gaps", 1)
    topics.fill("gaps", {0: 20})
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", server.kafka)
    reader = reader.option("subscribe", "gaps").option("includeHeaders", "true")
    rows = archive.transform(reader.load()).where("offset NOT IN (3, 4)")
    holes = Lake(tmp_path / "holes")
    twice = Lake(tmp_path / "twice")
    for each, data in ((holes, rows), (twice, rows.union(rows.where("offset = 7")))):
        each.append_each(
            data, "archive", by="topic", app="archive:q", batch_id=0, partition_by=("date", "hour")
        )
    context = context_of(spark, server, holes, tmp_path / "v", topics="gaps")
    (verdict,) = verify(spark, holes, "gaps", context)
    assert (verdict.missing, verdict.repeated, verdict.is_sound) == (2, 0, False)
    (verdict,) = verify(spark, twice, "gaps", context)
    assert (verdict.repeated, verdict.is_sound) == (1, False)
    notes = Notes()
    with pytest.raises(Unsound, match="1 partitions"):
        archive_check.run(context_of(spark, server, holes, tmp_path / "v", notes))
    assert notes.rows[0]["missing"] == 2
    topics.cut(Place("gaps", 0), 4)  # the log forgets offset 3
    (verdict,) = verify(spark, holes, "gaps", context)
    assert (verdict.missing, verdict.unknown) == (1, 1)
    topics.delete("gaps")
    (verdict,) = verify(spark, holes, "gaps", context)
    assert (verdict.missing, verdict.unknown, verdict.is_sound) == (0, 2, True)


def test_a_queue_is_archived_with_what_makes_its_messages(
    spark: SparkSession, server: Server, lake: Lake, tmp_path: Path
) -> None:
    with closing(sqs_client(server.url)) as sqs:
        url = sqs.create_queue(QueueName="inbox")["QueueUrl"]
        for n in range(5):
            sqs.send_message(QueueUrl=url, MessageBody=f"hello {n}")
        received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=2)["Messages"]
        for message in received:  # leases and deletes are markers in the log, and no records
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    context = context_of(spark, server, lake, tmp_path / "c", topics="inbox")
    archive.run(context)
    rows = lake.read(spark, "archive/inbox").collect()
    assert sorted(row.value for row in rows) == [b"hello %d" % n for n in range(5)]
    assert all(row.headers[0].key == "penstock" for row in rows)
    assert all(v.is_sound for v in verify(spark, lake, "inbox", context))


def test_topics_have_to_be_named(spark: SparkSession, server: Server, lake: Lake) -> None:
    with pytest.raises(JobMisused, match="--topics"):
        archive.run(context_of(spark, server, lake, Path("unused")))
    with pytest.raises(JobMisused, match="no archive"):
        archive_check.run(context_of(spark, server, lake, Path("unused")))
