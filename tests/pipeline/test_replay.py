"""Replay: archived records once more, and not twice when it is cut off and begun again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.compat.conftest import sqs_client
from tests.harness.server import Server
from tests.pipeline.stage import Notes, context_of
from tests.pipeline.topics import BASE_MS, Topics, topics_of

from penstock.net.kafka_client.client import Place
from penstock.pipeline.archive import replaying
from penstock.pipeline.archive.replaying import (
    Position,
    ProgressLost,
    Replay,
    commit_position,
    send_partitions,
)
from penstock.pipeline.client.options import Connection
from penstock.pipeline.job import JobMisused
from penstock.pipeline.jobs import archive, replay
from penstock.pipeline.lake import Lake
from penstock.record.batch import parse_header, split_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTE_MS = 60_000


@pytest.fixture(scope="module")
def topics(server: Server) -> Iterator[Topics]:
    with topics_of(server.kafka) as found:
        yield found


@pytest.fixture
def sqs(server: Server) -> Iterator[Any]:
    with closing(sqs_client(server.url)) as client:
        yield client


@pytest.fixture(scope="module")
def lake(
    spark: SparkSession, server: Server, topics: Topics, tmp_path_factory: pytest.TempPathFactory
) -> Lake:
    """An archive of one topic: 2,500 records in two partitions, and ten of an hour later."""
    folder = tmp_path_factory.mktemp("replay")
    topics.make("events", 2)
    topics.fill("events", {0: 2_300, 1: 200})
    topics.fill("events", {1: 10}, at_ms=BASE_MS + 60 * MINUTE_MS, prefix="late")
    lake = Lake(folder / "lake")
    archive.run(context_of(spark, server, lake, folder / "c", topics="events"))
    return lake


def test_a_replay_sends_every_record_once_however_often_it_is_run(
    spark: SparkSession, server: Server, lake: Lake, tmp_path: Path, topics: Topics
) -> None:
    topics.make("again", 2)
    notes = Notes()
    context = context_of(spark, server, lake, tmp_path, notes, source="events", target="again")
    replay.run(context)
    assert topics.values("again") == topics.values("events")
    replay.run(context)
    assert topics.values("again") == topics.values("events")
    assert "2510 records sent" in notes.texts[0]
    assert "nothing is left" in notes.texts[1]


def test_time_and_filter_choose_and_original_times_can_be_kept(
    spark: SparkSession, server: Server, lake: Lake, tmp_path: Path, topics: Topics
) -> None:
    topics.make("chosen", 1)
    context = context_of(
        spark,
        server,
        lake,
        tmp_path,
        since_ms=BASE_MS + 30 * MINUTE_MS,
        source="events",
        target="chosen",
        filter="cast(key AS string) IN ('k3', 'k4')",
        original_timestamps=True,
        rate=1_000.0,
    )
    replay.run(context)
    assert topics.values("chosen") == [b"late1-3", b"late1-4"]
    part = topics.client.fetch({Place("chosen", 0): 0}, wait_ms=0)[Place("chosen", 0)]
    (batch,) = split_batches([bytes(part.records)])
    assert parse_header(batch).base_timestamp == BASE_MS + 60 * MINUTE_MS + 3


def test_a_table_that_was_moved_aside_is_replayed_under_its_new_name(
    spark: SparkSession, server: Server, tmp_path: Path, topics: Topics
) -> None:
    topics.make("renewed", 2)
    topics.fill("renewed", {0: 30, 1: 20}, prefix="old")
    lake = Lake(tmp_path / "lake")
    archive.run(context_of(spark, server, lake, tmp_path / "c", topics="renewed"))
    old = topics.values("renewed")
    (lake.path / "archive/renewed").rename(lake.path / "archive/renewed.0a1b2c3d")
    topics.make("renewed-again", 2)
    notes = Notes()
    wish: dict[str, Any] = {"source": "renewed.0a1b2c3d", "target": "renewed-again"}
    replay.run(context_of(spark, server, lake, tmp_path, notes, **wish))
    assert "50 records sent" in notes.texts[0]
    assert topics.values("renewed-again") == old
    replay.run(context_of(spark, server, lake, tmp_path, notes, **wish))
    assert "nothing is left" in notes.texts[1]


def _rows(offsets: range) -> pa.RecordBatch:
    count = len(offsets)
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.RecordBatch.from_arrays(
        [
            pa.array([3] * count, pa.int32()),
            pa.array(offsets, pa.int64()),
            pa.array([BASE_MS * 1_000] * count, pa.timestamp("us", tz="UTC")),
            pa.array([None] * count, pa.binary()),
            pa.array([b"m%d" % n for n in offsets], pa.binary()),
            pa.array([None] * count, headers),
        ],
        list(replaying.COLUMNS),
    )


@pytest.mark.parametrize("target", ["cut-topic", "cut-queue"])
def test_a_chunk_whose_note_was_lost_is_sent_again_and_stored_once(
    server: Server, topics: Topics, target: str, sqs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill between a chunk's answer and the note of its place, for topics and for queues."""
    monkeypatch.setattr(replaying, "CHUNK_RECORDS", 10)
    if target == "cut-queue":
        url = sqs.create_queue(QueueName=target)["QueueUrl"]
    else:
        topics.make(target, 1)
    partitions = len(topics.client.places(target))
    sending = Replay("cut", Connection(server.kafka), target, partitions, None, now_ms=BASE_MS)
    producer_id, epoch = topics.client.producer_id()
    commit_position(topics.client, sending, 3, Position(0, producer_id, epoch, 0))
    noted = replaying.commit_position
    notes = 0

    def note_twice_then_die(*arguments: Any) -> None:
        nonlocal notes
        notes += 1
        if notes == 3:
            raise KeyboardInterrupt
        noted(*arguments)

    monkeypatch.setattr(replaying, "commit_position", note_twice_then_die)
    with pytest.raises(KeyboardInterrupt):
        list(send_partitions([_rows(range(45))], sending))
    monkeypatch.setattr(replaying, "commit_position", noted)
    (done,) = send_partitions([_rows(range(20)), _rows(range(20, 45))], sending)
    assert done.to_pylist() == [{"partition": 3, "sent": 25, "repeated": 10}]
    assert topics.values(target) == [b"m%d" % n for n in range(45)]
    if target == "cut-queue":
        got = set[str]()
        while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
            bodies = {message["Body"] for message in messages}
            assert not bodies & got
            got |= bodies
        assert got == {f"m{n}" for n in range(45)}


def test_a_fifo_queue_gets_messages_in_the_order_of_each_key(
    spark: SparkSession, server: Server, lake: Lake, tmp_path: Path, sqs: Any
) -> None:
    attributes = {"FifoQueue": "true"}
    url = sqs.create_queue(QueueName="again.fifo", Attributes=attributes)["QueueUrl"]
    secret = tmp_path / "secret"
    secret.write_text("penstock\n")
    arguments: dict[str, Any] = {
        "source": "events",
        "target": "again.fifo",
        "filter": "partition = 1 AND offset < 25",
        "endpoint": server.url,
        "key_id": "penstock",
        "secret_file": str(secret),
    }
    replay.run(context_of(spark, server, lake, tmp_path, **arguments))
    # Another replay of the same records under the same name would be dropped by their ids.
    sending = Replay("x", Connection(server.kafka), "again.fifo", 1, None)
    assert sending.target_of(7) == Place("again.fifo", 0)
    got: list[tuple[str, str, str | None]] = []
    while messages := sqs.receive_message(
        QueueUrl=url,
        MaxNumberOfMessages=10,
        AttributeNames=["All"],
        MessageAttributeNames=["All"],
    ).get("Messages"):
        for message in messages:
            header = message.get("MessageAttributes", {}).get("n", {}).get("StringValue")
            got.append((message["Body"], message["Attributes"]["MessageGroupId"], header))
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    want = [(f"v1-{n}", f"k{n}", str(n) if n % 2 else None) for n in range(25)]
    assert sorted(got) == sorted(want)


def test_misuse_is_told_in_a_line(
    spark: SparkSession, server: Server, lake: Lake, tmp_path: Path, topics: Topics, sqs: Any
) -> None:
    topics.make("target", 1)

    def run(**arguments: Any) -> None:
        replay.run(context_of(spark, server, lake, tmp_path, **arguments))

    with pytest.raises(JobMisused, match="--from"):
        run(target="target")
    with pytest.raises(JobMisused, match="no archive of nothing"):
        run(source="nothing", target="target")
    with pytest.raises(JobMisused, match="cannot replay to missing"):
        run(source="events", target="missing")
    with pytest.raises(JobMisused, match="is not a valid --name"):
        run(source="events", target="target", name="a b'")
    sqs.create_queue(QueueName="x.fifo", Attributes={"FifoQueue": "true"})
    with pytest.raises(JobMisused, match="--endpoint"):
        run(source="events", target="x.fifo")
    with pytest.raises(JobMisused, match="--filter nonsense"):
        run(source="events", target="target", filter="nonsense = 1", name="n1")
    with pytest.raises(JobMisused, match="other options"):
        run(source="events", target="target", name="n1")
    sending = Replay("gone", Connection(server.kafka), "target", 1, None)
    with pytest.raises(ProgressLost, match="does not exist"):
        list(send_partitions([_rows(range(3))], sending))
