"""The archive: what the log held is in the tables, each record once, whatever happened to jobs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.compat.conftest import sqs_client
from tests.harness.server import Server
from tests.pipeline.stage import Notes, context_of
from tests.pipeline.topics import BASE_MS, Topics, topics_of

from penstock.net.kafka_client.client import Place
from penstock.pipeline.archive import archive_source
from penstock.pipeline.archive.archive_rows import COLUMNS, PARTITION_BY
from penstock.pipeline.archive.archive_source import ArchivingReader, Written
from penstock.pipeline.client.options import parse_read_options
from penstock.pipeline.job import JobContext, JobMisused, Unsound
from penstock.pipeline.jobs import archive
from penstock.pipeline.jobs.archive import verify
from penstock.pipeline.lake import Lake, RecordsRepeated, TopicRemade
from penstock.pipeline.parts import Part, write_parts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

HOUR_MS = 3_600_000


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def topics(server: Server) -> Iterator[Topics]:
    with topics_of(server.kafka) as found:
        yield found


def append(lake: Lake, records: DataFrame, topic: str, *, app: str, batch_id: int = 0) -> None:
    """As the job's commits, of rows that Spark has made: date and hour are Spark's here."""
    from pyspark.sql import functions as f

    hours = f.to_date("timestamp").alias("date"), f.hour("timestamp").alias("hour")
    lake.append(
        records.select(*COLUMNS, *hours),
        archive.table_of(topic),
        app=app,
        batch_id=batch_id,
        partition_by=PARTITION_BY,
        is_tracked=True,
    )


def test_topics_are_archived_as_they_are_and_only_what_is_new_is_added(
    spark: SparkSession,
    server: Server,
    lake: Lake,
    tmp_path: Path,
    topics: Topics,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: list[int] = []
    follow = JobContext.follow

    def follow_and_count(context: JobContext, *queries: StreamingQuery) -> None:
        follow(context, *queries)
        counts.extend(p.numInputRows for query in queries for p in query.recentProgress)

    monkeypatch.setattr(JobContext, "follow", follow_and_count)
    for name in ("orders", "returns", "other"):
        topics.make(name, 2)
    topics.fill("orders", {0: 250, 1: 120})
    topics.fill("returns", {1: 30})
    topics.fill("other", {0: 5})
    context = context_of(spark, server, lake, tmp_path / "c", topics="(orders|returns)")
    archive.run(context)
    assert sum(counts) == 400  # records, which is what progress bars and rates are made of
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
    assert lake.table("archive/orders").schema().simpleString() == (
        "struct<key:binary,value:binary,headers:array<struct<key:string,value:binary>>,"
        "topic:string,partition:int,offset:bigint,timestamp:timestamp,date:date,hour:int>"
    )
    notes = Notes()
    archive.run_verify(context_of(spark, server, lake, tmp_path / "v", notes))
    assert notes.texts == ["410 records in 3 partitions are archived exactly once"]


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
    with pytest.raises(RecordsRepeated, match="another checkpoint"):
        append(lake, reader.load(), "kept", app="archive:x")
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
    append(lake, df.load(), "small", app="archive:by hand", batch_id=batch_id)


def test_verify_finds_what_is_missing_and_what_is_twice_and_forgives_the_logs_own_gaps(
    spark: SparkSession, server: Server, lake: Lake, tmp_path: Path, topics: Topics
) -> None:
    topics.make("gaps", 1)
    topics.fill("gaps", {0: 20})
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", server.kafka)
    reader = reader.option("subscribe", "gaps").option("includeHeaders", "true")
    rows = reader.load().where("offset NOT IN (3, 4)")
    holes = Lake(tmp_path / "holes")
    twice = Lake(tmp_path / "twice")
    for each, data in ((holes, rows), (twice, rows.union(rows.where("offset = 7")))):
        append(each, data, "gaps", app="archive:q")
    context = context_of(spark, server, holes, tmp_path / "v", topics="gaps")
    (verdict,) = verify(spark, holes, "gaps", context)
    assert (verdict.missing, verdict.repeated, verdict.is_sound) == (2, 0, False)
    (verdict,) = verify(spark, twice, "gaps", context)
    assert (verdict.repeated, verdict.is_sound) == (1, False)
    notes = Notes()
    with pytest.raises(Unsound, match="1 partitions"):
        archive.run_verify(context_of(spark, server, holes, tmp_path / "v", notes))
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


def test_a_topic_that_was_made_again_is_refused_until_its_table_is_moved_aside(
    spark: SparkSession, server: Server, lake: Lake, tmp_path: Path, topics: Topics
) -> None:
    for name in ("remade", "stays"):
        topics.make(name, 1)
        topics.fill(name, {0: 5})
    context = context_of(spark, server, lake, tmp_path / "c", topics="remade,stays")
    archive.run(context)
    old = lake.table("archive/remade").topic_ids("archive")["remade"]
    topics.delete("remade")
    topics.make("remade", 1)
    topics.fill("remade", {0: 8}, prefix="new")
    topics.fill("stays", {0: 2}, prefix="more")
    with pytest.raises(TopicRemade) as refused:
        archive.run(context)
    aside = Path(f"{lake.path}/archive/remade.{old[:8]}")
    assert f"move the table to {aside}, remove the job's checkpoint" in str(refused.value)
    (lake.path / "archive/remade").rename(aside)
    shutil.rmtree(tmp_path / "c")
    archive.run(context)
    assert archive.archived_ends(lake) == {"remade": {0: 8}, "stays": {0: 7}}
    values = [row.value for row in lake.read(spark, "archive/remade").orderBy("offset").collect()]
    assert values == topics.values("remade")
    notes = Notes()
    archive.run_verify(context_of(spark, server, lake, tmp_path / "v", notes))
    assert notes.texts == ["20 records in 3 partitions are archived exactly once"]
    with pytest.raises(TopicRemade):  # a driver that did not look, or looked before
        archive.commit_written(
            lake, [Written("remade", old, _part(lake, 8))], app="archive:z", batch_id=0
        )
    assert lake.end_offsets("archive/remade", "archive") == {"remade": {0: 8}}


def _part(lake: Lake, offset: int) -> Part:
    rows = pa.RecordBatch.from_pydict(
        {"topic": ["remade"], "partition": pa.array([0], pa.int32()), "offset": [offset]}
    )
    (part,) = write_parts([rows], lake.table("archive/remade").path, (), is_tracked=True)
    return part


def test_a_large_batch_of_one_partition_is_shared_out_and_a_small_one_is_not(
    server: Server, lake: Lake, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.make("wide", 1)
    topics.fill("wide", {0: 300})
    options = {"kafka.bootstrap.servers": server.kafka, "columns": ",".join(COLUMNS)}
    options |= {"subscribe": "wide", "startingOffsets": "earliest"}
    reading = parse_read_options(options, is_streaming=True)
    reader = ArchivingReader(reading, lake.path / "archive", tasks=3)
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ReadAllAvailable())
    assert len(reader.partitions(begin, end)) == 1
    monkeypatch.setattr(archive_source, "_TASK_RECORDS_MIN", 100)
    tasks = reader.partitions(begin, end)
    assert len(tasks) == 3
    written: list[Written] = []
    for task in tasks:
        told = pa.Table.from_batches(reader.read(task))["part"].to_pylist()
        assert len(told) == 100  # a row for each record, and one that says which file it was
        (text,) = [each for each in told if each is not None]
        written.append(Written.from_text(text))
    archive.commit_written(lake, written, app="archive:q", batch_id=0)
    rows = lake.table("archive/wide").open().to_pyarrow_table().sort_by("offset")
    assert rows["value"].to_pylist() == topics.values("wide")
    assert lake.end_offsets("archive/wide", "archive") == {"wide": {0: 300}}


def test_records_of_a_time_that_no_calendar_has_lie_under_no_date(
    spark: SparkSession, server: Server, lake: Lake, tmp_path: Path, topics: Topics
) -> None:
    topics.make("distant", 1, message_timestamp_after_max_ms=str(10**15))
    topics.fill("distant", {0: 2}, at_ms=253_402_300_800_000)  # the year 10000
    topics.fill("distant", {0: 2})
    context = context_of(spark, server, lake, tmp_path / "c", topics="distant")
    archive.run(context)
    assert set(lake.table("archive/distant").files_by(PARTITION_BY)) == {
        ("", "0"),
        ("2023-11-14", "22"),
    }
    assert lake.read(spark, "archive/distant").count() == 4
    assert lake.read(spark, "archive/distant", "date = '2023-11-14'").count() == 2
    assert [v.is_sound for v in verify(spark, lake, "distant", context)] == [True]


def test_topics_have_to_be_named(spark: SparkSession, server: Server, lake: Lake) -> None:
    with pytest.raises(JobMisused, match="--topics"):
        archive.run(context_of(spark, server, lake, Path("unused")))
    with pytest.raises(JobMisused, match="no archive"):
        archive.run_verify(context_of(spark, server, lake, Path("unused")))
