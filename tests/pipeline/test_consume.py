"""A queue as a stream: messages go when their batch is done, and none is lost."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from tests.harness.patience import eventually
from tests.harness.server import Server

from penstock.pipeline.client.sqs_client import SqsRefused, SqsUnreachable
from penstock.pipeline.reading.consume import ConsumingReader, parse_consume_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Queue:
    def __init__(self, server: Server, **attributes: str) -> None:
        self.name = f"jobs-{uuid.uuid4().hex[:8]}"
        self.sqs = boto3.client(
            "sqs",
            endpoint_url=server.url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        self.url = self.sqs.create_queue(QueueName=self.name, Attributes=attributes)["QueueUrl"]
        self.options = {"mode": "consume", "endpoint": server.url, "queue": self.name}

    def send(self, count: int, prefix: str = "m") -> set[str]:
        bodies = [f"{prefix}{number}" for number in range(count)]
        for start in range(0, count, 10):
            entries = [
                {"Id": str(n), "MessageBody": body} for n, body in enumerate(bodies[start:][:10])
            ]
            self.sqs.send_message_batch(QueueUrl=self.url, Entries=entries)
        return set(bodies)

    def counts(self) -> tuple[int, int]:
        """That wait, and that are leased."""
        found = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=["All"])
        attributes = found["Attributes"]
        return (
            int(attributes["ApproximateNumberOfMessages"]),
            int(attributes["ApproximateNumberOfMessagesNotVisible"]),
        )


def reader_of(queue: Queue, **options: str) -> ConsumingReader:
    return ConsumingReader(parse_consume_options({**queue.options, **options}))


def bodies_of(reader: ConsumingReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    return [
        str(body)
        for part in reader.partitions(start, end)
        for rows in reader.read(part)
        for body in rows.column("body").to_pylist()
    ]


def test_a_stream_takes_every_message_once_and_leaves_the_queue_empty(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    queue = Queue(server)
    attributes = {"n": {"DataType": "Number", "StringValue": "7"}}
    queue.sqs.send_message(QueueUrl=queue.url, MessageBody="first", MessageAttributes=attributes)
    sent = queue.send(250) | {"first"}
    rows: list[Any] = []
    reader = spark.readStream.format("penstock").options(**queue.options)
    query = (
        reader.option("maxMessagesPerTrigger", "100")
        .load()
        .writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert {row.body for row in rows} == sent
    assert len(rows) == len(sent)
    first = next(row for row in rows if row.body == "first")
    assert (first.attributes, first.receive_count, first.group_id) == ({"n": "7"}, 1, None)
    assert queue.counts() == (0, 0)


def test_messages_stay_until_their_batch_is_done(server: Server) -> None:
    queue = Queue(server)
    sent = queue.send(30)
    reader = reader_of(queue)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert set(bodies_of(reader, start, end)) == sent
    assert queue.counts() == (0, 30)
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
    assert queue.counts() == (0, 0)
    reader.stop()


def test_a_batch_of_a_reader_that_died_is_empty_and_its_messages_come_again(
    server: Server,
) -> None:
    queue = Queue(server)
    sent = queue.send(20)
    died = reader_of(queue, leaseSeconds="10")
    start = died.initialOffset()
    end = died.latestOffset(start, died.getDefaultReadLimit())
    assert set(bodies_of(died, start, end)) == sent
    died.stop()  # its leases are not extended any more, and nothing is deleted

    reader = reader_of(queue)
    assert bodies_of(reader, start, end) == []  # Spark runs the batch that was planned again
    found: list[str] = []
    at = end

    def drained() -> bool:
        nonlocal at
        after = reader.latestOffset(at, reader.getDefaultReadLimit())
        found.extend(bodies_of(reader, at, after) if after != at else [])
        at = after
        return set(found) == sent

    eventually(drained, seconds=60, what="leases end and messages come again")
    assert reader.latestOffset(at, reader.getDefaultReadLimit()) == at
    assert queue.counts() == (0, 0)
    reader.stop()


def test_leases_are_extended_while_a_batch_runs(server: Server) -> None:
    queue = Queue(server)
    queue.send(12)
    reader = reader_of(queue, leaseSeconds="10")
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert len(bodies_of(reader, start, end)) == 12
    # Later than it would have ended: only somebody who extends it still holds it.
    threading.Event().wait(12)
    assert queue.counts() == (0, 12)
    reader.commit(end)
    assert queue.counts() == (0, 0)
    assert bodies_of(reader, start, end) == []
    reader.stop()


def test_a_queue_or_a_server_that_is_not_there_is_told(server: Server) -> None:
    given = {"mode": "consume", "endpoint": server.url, "queue": "nowhere"}
    reader = ConsumingReader(parse_consume_options(given))
    with pytest.raises(SqsRefused, match="QueueDoesNotExist"):
        reader.initialOffset()
    reader.stop()
    given["endpoint"] = "http://127.0.0.1:1"
    with pytest.raises(SqsUnreachable, match=r"cannot reach http://127\.0\.0\.1:1"):
        ConsumingReader(parse_consume_options(given)).initialOffset()
