"""Data folders of older versions are served as they are.

``data/before-produced-bit.tar.xz`` was written by a version whose producers' batches did not carry
the produced bit (``record/batch.py``): a dead letter, a message with an attribute, a FIFO queue, an
encrypted queue, a record that Kafka produced into a queue, a topic with a group. The server runs at
the time of the folder, or its messages would have expired."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from confluent_kafka import TopicPartition
from tests.compat.kafka.confluent import consumer
from tests.e2e.older_data import clock_at, received
from tests.harness.server import Server

FOLDER = Path(__file__).parent / "data" / "before-produced-bit.tar.xz"
WRITTEN_AT = 1_794_834_000  # 2026-11-16 13:00:00 UTC
SENDER = "AKIAOLDSENDER"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("older")
    with tarfile.open(FOLDER) as archive:
        archive.extractall(folder, filter="data")
    with Server(folder / "data", fsync="never", kafka_port=0, env=clock_at(WRITTEN_AT)) as running:
        yield running
        assert running.stop() == 0, running.stderr_tail()
        running.assert_no_traceback()


@pytest.fixture(scope="module")
def sqs(server: Server) -> Iterator[Any]:
    client = boto3.client(
        "sqs",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id="AKIANEWREADER",
        aws_secret_access_key="x",
    )
    yield client
    client.close()


def by_body(sqs: Any, queue: str, count: int) -> dict[str, Any]:
    return {message["Body"]: message for message in received(sqs, queue, count)}


def test_a_dead_letter_keeps_its_sender_attempts_and_source(sqs: Any) -> None:
    letter = by_body(sqs, "dead", 1)["dies"]
    shown = letter["Attributes"]
    assert letter["MessageId"] == "faa34c24-d575-0d7d-51ef-d631c053ddbf"
    assert shown["SenderId"].endswith(SENDER)
    assert shown["ApproximateReceiveCount"] == "3"
    assert shown["DeadLetterQueueSourceArn"] == "arn:aws:sqs:us-east-1:000000000000:jobs"
    assert shown["SentTimestamp"] == "1794832186163"


def test_messages_and_produced_records_of_a_queue_are_delivered(sqs: Any) -> None:
    found = by_body(sqs, "jobs", 2)
    waits, produced = found["waits"], found["produced"]
    assert waits["MessageId"] == "68267fe3-c3cb-aa0f-8938-61d1f63bb76f"
    assert waits["Attributes"]["SenderId"].endswith(SENDER)
    assert waits["MessageAttributes"]["n"] == {"DataType": "Number", "StringValue": "7"}
    assert produced["MessageAttributes"]["h"]["StringValue"] == "1"
    assert produced["Attributes"]["ApproximateReceiveCount"] == "1"


def test_order_and_encryption_are_kept(sqs: Any) -> None:
    assert list(by_body(sqs, "orders.fifo", 3)) == ["order 0", "order 1", "order 2"]
    assert by_body(sqs, "sealed", 1)


def test_a_group_goes_on_where_it_was(server: Server) -> None:
    with consumer(server.kafka, "readers") as reader:
        offsets = reader.committed([TopicPartition("clicks", n) for n in range(1)], timeout=60)
        assert max(place.offset for place in offsets) == 1
