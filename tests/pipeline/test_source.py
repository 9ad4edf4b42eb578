"""Batch reads through Spark from a real server, and the options they take."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.harness.server import Server
from tests.pipeline.topics import BASE_MS, Topics, topics_of

from penstock.net.kafka_client.client import Place
from penstock.record.batch import encode_batch
from penstock.record.record import encode_record
from penstock.wire.facts import usage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def topics(server: Server) -> Iterator[Topics]:
    with topics_of(server.kafka) as made:
        made.make("orders", 3)
        made.fill("orders", {0: 1_000, 1: 500, 2: 20})
        yield made


def read(spark: SparkSession, topics: Topics, **options: object) -> DataFrame:
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", topics.kafka)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────


def test_a_topic_is_read_with_the_columns_of_the_kafka_connector(
    spark: SparkSession, topics: Topics
) -> None:
    found = read(spark, topics, subscribe="orders", includeHeaders="true")
    assert [(field.name, field.dataType.simpleString()) for field in found.schema] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    rows = found.orderBy("partition", "offset").collect()
    assert [(row.partition, row.offset) for row in rows] == [
        (partition, offset)
        for partition, count in ((0, 1_000), (1, 500), (2, 20))
        for offset in range(count)
    ]
    one = rows[1_105]
    assert (bytes(one.key), bytes(one.value)) == (b"k105", b"v1-105")
    assert (one.topic, one.timestampType) == ("orders", 0)
    assert [(each.key, bytes(each.value)) for each in one.headers] == [("n", b"105")]
    assert rows[1_104].headers is None
    at = dt.datetime.fromtimestamp((BASE_MS + 105) / 1_000, dt.UTC)
    assert one.timestamp.astimezone(dt.UTC) == at


def test_offsets_say_where_a_read_begins_and_ends_and_tasks_are_split(
    spark: SparkSession, topics: Topics
) -> None:
    found = read(
        spark,
        topics,
        assign=json.dumps({"orders": [0, 2]}),
        startingOffsets=json.dumps({"orders": {"0": 150, "2": -2}}),
        endingOffsets=json.dumps({"orders": {"0": 850, "2": -1}}),
        columns="offset,partition",
        minPartitions=8,
    )
    assert found.columns == ["offset", "partition"]
    rows = sorted((row.partition, row.offset) for row in found.collect())
    assert rows == [(0, n) for n in range(150, 850)] + [(2, n) for n in range(20)]
    assert found.rdd.getNumPartitions() == 9  # eight for the large range, one for the small


def test_times_say_where_a_read_begins_and_ends(spark: SparkSession, topics: Topics) -> None:
    found = read(
        spark,
        topics,
        subscribePattern="ord.*",
        startingTimestamp=BASE_MS + 400,
        endingTimestamp=BASE_MS + 600,
        startingOffsetsByTimestampStrategy="latest",
        columns="partition,offset",
    )
    rows = sorted(tuple(row) for row in found.collect())
    assert rows == [(0, n) for n in range(400, 600)] + [(1, n) for n in range(400, 500)]


def test_filters_cut_ranges_and_lose_nothing(spark: SparkSession, topics: Topics) -> None:
    found = read(spark, topics, subscribe="orders", pushdown="true")
    some = found.where("partition in (0, 1) and offset >= 100 and offset < 300 and offset != 150")
    assert some.count() == 398
    at = dt.datetime.fromtimestamp((BASE_MS + 480) / 1_000, dt.UTC)
    late = found.where(found.timestamp >= at).where("partition = 1")
    assert sorted(row.offset for row in late.collect()) == list(range(480, 500))
    assert late.rdd.getNumPartitions() == 1


def test_a_queue_is_read_as_a_topic_with_its_attributes_as_headers(
    spark: SparkSession, server: Server, topics: Topics
) -> None:
    import boto3

    sqs = boto3.client(
        "sqs",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
    attributes = {"kind": {"DataType": "String", "StringValue": "mail"}}
    sqs.send_message(QueueUrl=url, MessageBody="hello", MessageAttributes=attributes)
    sqs.receive_message(QueueUrl=url)  # a lease is a control batch in the same log
    rows = read(spark, topics, subscribe="jobs", includeHeaders="true").collect()
    assert [bytes(row.value) for row in rows] == [b"hello"]
    assert ("kind", b"mail") in [(each.key, bytes(each.value)) for each in rows[0].headers]


def test_records_that_are_gone_are_an_error_or_passed_over_as_asked(
    spark: SparkSession, topics: Topics
) -> None:
    topics.make("short", 1)
    topics.fill("short", {0: 300})
    topics.cut(Place("short", 0), 120)
    begin = json.dumps({"short": {"0": 50}})
    with pytest.raises(
        Exception, match=r"data loss in topic short, partition 0: offsets 50 to 120"
    ):
        read(spark, topics, subscribe="short", startingOffsets=begin).count()
    left = read(spark, topics, subscribe="short", startingOffsets=begin, failOnDataLoss="false")
    assert left.count() == 180


def test_what_is_not_there_and_what_is_misspelt_is_told_in_one_line(
    spark: SparkSession, topics: Topics
) -> None:
    with pytest.raises(Exception, match="there is no topic nowhere"):
        read(spark, topics, subscribe="nowhere").count()
    with pytest.raises(Exception, match="did you mean maxOffsetsPerTrigger"):
        read(spark, topics, subscribe="orders", maxOffsetPerTrigger=5).count()


def test_usage_is_read_as_rows_and_what_is_none_says_so(
    spark: SparkSession, topics: Topics
) -> None:
    columns = usage.UsageColumns(["a", "b"], ["r"] * 2, ["q"] * 2, ["calls"] * 2, ["op"] * 2)
    for name in usage.UsageRow.__struct_fields__[5:]:
        setattr(columns, name, [3, 4] if name == "requests" else [0, 0])
    values = [
        usage.encode(usage.UsageFacts(1, "n", "i", 1, 60_000, 61_000, columns)),
        usage.encode(usage.UsageFacts(1, "n", "i", 2, 60_000, 121_000, usage.UsageColumns())),
        b"no usage",
    ]
    topics.make("facts", 1)
    records = [
        encode_record(offset_delta=n, timestamp_delta=0, key=None, value=value)
        for n, value in enumerate(values)
    ]
    batch = encode_batch(
        records, base_offset=0, leader_epoch=0, base_timestamp=BASE_MS, max_timestamp=BASE_MS
    )
    topics.client.produce({Place("facts", 0): batch}, is_repeatable=False)
    rows = read(spark, topics, subscribe="facts", decode="usage").orderBy("offset").collect()
    assert [(row.offset, row.flush, row.kind, row.tenant, row.requests) for row in rows] == [
        (0, 1, "calls", "a", 3),
        (0, 1, "calls", "b", 4),
        (1, 2, "none", "", 0),
        (2, None, "none", "", 0),
    ]
    assert rows[3].error.startswith("the value is not a usage record")
    assert all(row.error is None for row in rows[:3])
