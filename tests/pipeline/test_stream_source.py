"""Streaming reads through Spark from a real server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.harness.server import Server, penstock_command
from tests.pipeline.topics import Topics, topics_of

from penstock.net.kafka_client.client import Place
from penstock.pipeline.client.options import parse_read_options
from penstock.pipeline.reading.offsets import StreamOffset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def topics(server: Server) -> Iterator[Topics]:
    with topics_of(server.kafka) as made:
        yield made


def run(
    spark: SparkSession, topics: Topics, checkpoint: Path, **options: object
) -> tuple[list[tuple[Any, ...]], list[Any]]:
    """All that is there now: rows as (batch, partition, offset), and the progress of batches."""
    rows: list[tuple[Any, ...]] = []

    def take(batch: Any, number: int) -> None:
        rows.extend((number, row.partition, row.offset) for row in batch.collect())

    reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", topics.kafka)
    for name, value in {"columns": "partition,offset", **options}.items():
        reader = reader.option(name, str(value))
    query = (
        reader.load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return rows, [each for each in query.recentProgress if each.numInputRows]


def test_a_stream_goes_on_where_it_was_takes_new_partitions_and_commits_for_its_group(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topics.make("clicks", 2)
    topics.fill("clicks", {0: 300, 1: 200})
    options = {
        "subscribe": "clicks",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 400,
        "commitGroup": "audit",
    }
    rows, progress = run(spark, topics, tmp_path, **options)
    assert [each.numInputRows for each in progress] == [400, 100]
    first = json.loads(progress[0].sources[0].latestOffset)
    assert first["topics"] == {"clicks": {"0": 300, "1": 200}}  # lag shows while behind

    topics.fill("clicks", {0: 50})
    topics.grow("clicks", 3)
    topics.fill("clicks", {2: 10})
    more, _ = run(spark, topics, tmp_path, **options)

    places = sorted((partition, offset) for _, partition, offset in rows + more)
    assert places == [
        (partition, offset)
        for partition, count in ((0, 350), (1, 200), (2, 10))
        for offset in range(count)
    ]
    shown = subprocess.run(
        [penstock_command(), "group", "lag", "audit", "--kafka", topics.kafka],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lags = [json.loads(line) for line in shown.splitlines()]
    assert [(each["committed"], each["lag"]) for each in lags] == [(350, 0), (200, 0), (10, 0)]


def test_a_limit_in_bytes_makes_batches_of_about_that_size(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topics.make("large", 1)
    topics.fill("large", {0: 2_000})
    rows, progress = run(
        spark, topics, tmp_path, subscribe="large", startingOffsets="earliest",
        maxBytesPerTrigger="16k",
    )  # fmt: skip
    assert len(rows) == 2_000
    sizes = [each.numInputRows for each in progress]
    assert all(500 <= size <= 1_000 for size in sizes[:-1])  # records take some twenty bytes


def test_a_topic_that_was_made_again_is_data_loss(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topics.make("again", 1)
    topics.fill("again", {0: 30})
    options = {"subscribe": "again", "startingOffsets": "earliest"}
    assert len(run(spark, topics, tmp_path, **options)[0]) == 30
    topics.delete("again")
    topics.make("again", 1)
    topics.fill("again", {0: 40})
    with pytest.raises(Exception, match="the topic was deleted and created again"):
        run(spark, topics, tmp_path, **options)
    rows, _ = run(spark, topics, tmp_path, **options, failOnDataLoss="false")
    assert [offset for _, _, offset in rows] == list(range(40))


def test_fewer_records_than_the_least_are_waited_for_but_not_for_ever(
    server: Server, topics: Topics
) -> None:
    """Asked as Spark asks, but on a clock of its own: the wait is a quarter of an hour."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from penstock.pipeline.reading.stream_source import StreamReader

    topics.make("few", 1)
    topics.fill("few", {0: 10})
    given = {
        "kafka.bootstrap.servers": server.kafka,
        "subscribe": "few",
        "startingOffsets": "earliest",
        "minOffsetsPerTrigger": "50",
    }
    now_s = 1_000.0
    reader = StreamReader(parse_read_options(given, is_streaming=True), clock=lambda: now_s)
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    assert reader.latestOffset(start, limit) == start
    everything = reader.latestOffset(start, ReadAllAvailable())
    assert everything["topics"] == {"few": {"0": 10}}
    now_s += 15 * 60 - 1
    assert reader.latestOffset(start, limit) == start
    now_s += 1
    assert reader.latestOffset(start, limit) == everything


@pytest.mark.parametrize(
    ("count", "options", "tasks"),
    [(100, {}, 1), (3_000, {}, 4), (100, {"minPartitions": "4"}, 4)],
)
def test_a_micro_batch_of_a_few_records_is_one_task(
    topics: Topics, count: int, options: dict[str, str], tasks: int
) -> None:
    from penstock.pipeline.reading.stream_source import StreamReader

    name = f"spread{count}{len(options)}"
    topics.make(name, 4)
    topics.fill(name, dict.fromkeys(range(4), count))
    given = {
        "kafka.bootstrap.servers": topics.kafka,
        "subscribe": name,
        "columns": "partition,offset",
        **options,
    }
    reader = StreamReader(parse_read_options(given, is_streaming=True))
    start, end = (
        StreamOffset({Place(name, number): at for number in range(4)}).to_json()
        for at in (0, count)
    )
    parts = reader.partitions(start, end)
    assert len(parts) == tasks
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert [(row["partition"], row["offset"]) for row in rows] == [
        (number, offset) for number in range(4) for offset in range(count)
    ]
