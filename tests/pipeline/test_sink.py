"""Writing: what a row becomes, and that a batch is there once whatever happens to its writers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.attacks.kit import ROOT, Operator
from tests.harness.cluster import PenstockCluster
from tests.harness.patience import eventually
from tests.harness.server import Server
from tests.pipeline.topics import Topics, topics_of

from penstock.cli.messages.producing import murmur2
from penstock.net.kafka_client.client import TRANSACTION, KafkaRefused
from penstock.pipeline.client.option_values import OptionInvalid
from penstock.pipeline.client.options import (
    WriteOptions,
    check_columns,
    client_for,
    parse_write_options,
)
from penstock.pipeline.writing import sink
from penstock.pipeline.writing.appender import Appender, RowInvalid, TopicMissing, partition_count
from penstock.pipeline.writing.sink import (
    CommitLost,
    Decision,
    Done,
    Written,
    commit_batch,
    write_task,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def topics(server: Server) -> Iterator[Topics]:
    with topics_of(server.kafka) as made:
        yield made


@pytest.fixture
def target(topics: Topics) -> str:
    name = f"target-{uuid.uuid4().hex[:8]}"
    topics.make(name, 3)
    return name


class Query:
    """A streaming query's writers, without Spark around them: each call is what a task or the
    driver does, and leaving one out is a kill at that place."""

    def __init__(self, topics: Topics, target: str, **options: str) -> None:
        self.id = uuid.uuid4().hex
        self.topics = topics
        self.target = target
        self.options = parse_write_options(
            {"kafka.bootstrap.servers": topics.kafka, "topic": target, **options}
        )

    def task(self, task: int, values: Sequence[str], *, batch: int = 0) -> Done:
        rows = pa.RecordBatch.from_pydict({"value": list(values)})
        return write_task(iter([rows]), self.options, self.id, batch_id=batch, task=task)

    def decide(self, *done: Done, batch: int = 0) -> None:
        written = tuple(each.written for each in done if each.written is not None)
        sink.decide(
            client_for(self.options.connection),
            self.id,
            Decision(batch, written),
            topic=self.target,
        )

    def end(self, done: Done) -> bool:
        assert done.written is not None
        client = client_for(self.options.connection)
        return sink.end(client, self.id, done.written, is_commit=True)

    def commit(self, *done: Done, batch: int = 0) -> None:
        commit_batch(done, self.options, batch_id=batch)

    def values(self) -> list[str]:
        """Markers are written behind the answer to a commit: read when nothing is open."""
        return sorted((each or b"").decode() for each in self.topics.values(self.target))

    def assert_values(self, *values: str) -> None:
        eventually(lambda: self.values() == sorted(values), seconds=120, what="markers are written")

    def state(self, task: int) -> str:
        from penstock.wire.kafka.generated.describe_transactions import DescribeTransactionsRequest

        client = client_for(self.options.connection)
        name = sink.transactional_id(self.id, task)
        node = client.coordinator(name, kind=TRANSACTION)
        reply = client.call(65, DescribeTransactionsRequest([name]), node=node)
        return str(reply.transaction_states[0].transaction_state)


# ── Once, whatever happens ───────────────────────────────────────────────────────────────────────


def test_nothing_can_be_read_before_the_batch_is_committed(topics: Topics, target: str) -> None:
    query = Query(topics, target)
    done = [query.task(0, ["a", "b"]), query.task(1, ["c"])]
    assert query.values() == []
    query.commit(*done)
    query.assert_values("a", "b", "c")


def test_a_batch_that_was_killed_before_its_decision_is_written_once(
    topics: Topics, target: str
) -> None:
    query = Query(topics, target)
    query.task(0, ["a", "b"])
    query.task(1, ["c"])
    again = [query.task(0, ["a", "b"]), query.task(1, ["c"])]
    query.commit(*again)
    query.assert_values("a", "b", "c")


@pytest.mark.parametrize("ended", [0, 1, 2])
def test_a_batch_that_was_killed_behind_its_decision_is_written_once(
    topics: Topics, target: str, ended: int
) -> None:
    """Also when its rows fall to other tasks the next time."""
    query = Query(topics, target)
    done = [query.task(0, ["a", "b"]), query.task(1, ["c"])]
    query.decide(*done)
    for each in done[:ended]:
        assert query.end(each)
    again = [query.task(0, ["a"]), query.task(1, ["b"]), query.task(2, ["c"])]
    assert all(each.is_settled for each in again)
    query.commit(*again)
    query.assert_values("a", "b", "c")
    query.commit(query.task(0, ["d"], batch=1), batch=1)
    query.assert_values("a", "b", "c", "d")


def test_a_batch_that_spark_forgot_to_have_committed_is_not_written_again(
    topics: Topics, target: str
) -> None:
    query = Query(topics, target)
    query.commit(query.task(0, ["a"]))
    again = query.task(0, ["a"])
    assert again.is_settled
    query.commit(again)
    query.assert_values("a")


def test_a_task_that_is_tried_again_fences_its_earlier_attempt(topics: Topics, target: str) -> None:
    query = Query(topics, target)
    client = client_for(query.options.connection)
    producer = sink.begin(client, query.id, 0, timeout_ms=60_000)
    earlier = Appender(client, query.options, producer, turn=0)
    earlier.add(pa.RecordBatch.from_pydict({"value": ["half"]}))
    earlier.flush()
    done = query.task(0, ["whole"])
    earlier.add(pa.RecordBatch.from_pydict({"value": ["late"]}))
    with pytest.raises(KafkaRefused):
        earlier.flush()
    query.commit(done)
    query.assert_values("whole")


def test_of_two_attempts_at_once_the_loser_cannot_be_committed_and_the_batch_is_once_in_the_end(
    topics: Topics, target: str
) -> None:
    query = Query(topics, target)
    others = query.task(1, ["b"])
    first = query.task(0, ["a"])
    query.task(0, ["a"])  # the copy comes late, and Spark has taken the first for done
    with pytest.raises(CommitLost, match="transactions of tasks 0 were aborted"):
        query.commit(first, others)
    again = [query.task(0, ["a"]), query.task(1, ["b"])]
    assert [each.is_settled for each in again] == [False, True]
    query.commit(*again)
    query.assert_values("a", "b")


def test_what_ran_into_its_time_out_behind_the_decision_is_written_again_by_its_task_alone(
    topics: Topics, target: str
) -> None:
    query = Query(topics, target)
    patient, hasty = query.options, Query(topics, target, transactionTimeout="5s").options
    first = query.task(0, ["a"])
    query.options = hasty
    done = [first, query.task(1, ["b"])]
    query.options = patient
    query.decide(*done)
    assert query.end(done[0])
    eventually(lambda: query.state(1) == "CompleteAbort", seconds=60, what="it times out")
    again = [query.task(0, ["a"]), query.task(1, ["b"])]
    assert [each.is_settled for each in again] == [True, False]
    query.commit(*again)
    query.assert_values("a", "b")


def test_a_straggler_of_an_earlier_batch_writes_nothing(topics: Topics, target: str) -> None:
    query = Query(topics, target)
    query.commit(query.task(0, ["a"]))
    query.commit(query.task(0, ["b"], batch=1), batch=1)
    assert query.task(0, ["a"], batch=0).is_settled
    query.assert_values("a", "b")


def test_more_tasks_than_a_decision_can_name_are_refused(topics: Topics, target: str) -> None:
    query = Query(topics, target)
    many = [Done(query.id, 1, target, Written(n, 2**60 + n, 2**14)) for n in range(400)]
    with pytest.raises(sink.TooManyTasks, match="exactly-once allows at most 219"):
        query.commit(*many)
    most = many[: sink.TASKS_MAX]
    query.decide(*most)
    found = sink.decided(client_for(query.options.connection), query.id)
    assert found == Decision(0, tuple(each.written for each in most if each.written))


def test_at_least_once_needs_no_decision(topics: Topics, target: str) -> None:
    query = Query(topics, target, delivery="at-least-once")
    query.task(0, ["a"])
    query.commit(query.task(0, ["a"]))
    query.assert_values("a", "a")


# ── Rows ─────────────────────────────────────────────────────────────────────────────────────────


def test_rows_keep_their_key_headers_partition_and_topic(
    spark: SparkSession, topics: Topics, target: str
) -> None:
    other = f"{target}-other"
    topics.make(other, 1)
    rows = [
        ("k1", b"v1", None, None, [("h", b"x"), ("n", None)]),
        ("k2", b"v2", 2, None, None),
        (None, b"v3", 0, other, []),
        (None, None, 1, target, None),
    ]
    schema = (
        "key string, value binary, partition int, topic string,"
        " headers array<struct<key:string,value:binary>>"
    )
    frame = spark.createDataFrame(rows, schema)
    writer = frame.write.format("penstock").mode("append")
    writer.option("kafka.bootstrap.servers", topics.kafka).option("topic", target).option(
        "kafka.compression.type", "zstd"
    ).save()
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", topics.kafka)
    read = reader.option("subscribe", f"{target},{other}").option("includeHeaders", "true").load()
    found = {
        (row.key and bytes(row.key), row.value and bytes(row.value)): row for row in read.collect()
    }
    assert found.keys() == {(b"k1", b"v1"), (b"k2", b"v2"), (None, b"v3"), (None, None)}
    assert found[b"k1", b"v1"].partition == (murmur2(b"k1") & 0x7FFF_FFFF) % 3
    headers = found[b"k1", b"v1"].headers
    assert [(each.key, each.value and bytes(each.value)) for each in headers] == [
        ("h", b"x"),
        ("n", None),
    ]
    assert found[b"k2", b"v2"].partition == 2
    assert (found[None, b"v3"].topic, found[None, b"v3"].headers) == (other, None)
    assert (found[None, None].topic, found[None, None].partition) == (target, 1)


def test_large_batches_are_cut_and_a_row_that_cannot_be_written_says_why(
    topics: Topics, target: str
) -> None:
    query = Query(topics, target, batchBytes="64k")
    values = [f"{number:05}" + "x" * 995 for number in range(3_000)]
    query.commit(query.task(0, values))
    query.assert_values(*values)
    for rows, why in (
        ({"value": ["a"], "partition": [3]}, "has partitions 0 to 2"),
        ({"value": ["a"], "topic": pa.array([None], pa.string())}, "a row has no topic"),
        ({"value": ["a"], "headers": [[{"key": None, "value": b""}]]}, "a header has no key"),
    ):
        batch = pa.RecordBatch.from_pydict(rows)
        options = query.options if "topic" not in rows else WriteOptions(query.options.connection)
        with pytest.raises(RowInvalid, match=why):
            write_task(iter([batch]), options, query.id, batch_id=1, task=0)


def test_a_queue_takes_no_transactions_and_the_error_says_what_does(
    topics: Topics,
) -> None:
    name = f"queue-{uuid.uuid4().hex[:8]}"
    topics.make(name, 1, penstock_queue="true")
    with pytest.raises(RowInvalid, match=r"Set delivery=at-least-once"):
        Query(topics, name).task(0, ["a"])
    query = Query(topics, name, delivery="at-least-once")
    query.commit(query.task(0, ["a"]))
    query.assert_values("a")


def test_an_encrypted_topic_is_written_and_read_like_any_other(topics: Topics) -> None:
    name = f"sealed-{uuid.uuid4().hex[:8]}"
    topics.make(name, 1, penstock_encryption="true")
    query = Query(topics, name)
    query.commit(query.task(0, ["a", "b"]))
    query.assert_values("a", "b")


@pytest.mark.parametrize(
    ("options", "columns", "why"),
    [
        ({}, "value string", "option topic is missing"),
        ({"topic": "t"}, "key string", "the rows have no column named value"),
        ({"topic": "t"}, "value int", "column value must be string or binary, not int"),
        ({"topic": "t"}, "value string, size int", "unknown column size"),
        (
            {"topic": "t", "delivery": "twice"},
            "value string",
            "delivery must be one of exactly-once",
        ),
        ({"topic": "t", "transactionTimeout": "1h"}, "value string", "must be from 1s to 15m"),
    ],
)
def test_a_bad_option_or_column_is_refused_with_one_line(
    spark: SparkSession, options: dict[str, str], columns: str, why: str
) -> None:
    schema = spark.createDataFrame([], columns).schema
    with pytest.raises(OptionInvalid, match=why):
        check_columns(schema, parse_write_options({"kafka.bootstrap.servers": "a:1", **options}))


# ── Topics that do not exist ─────────────────────────────────────────────────────────────────────


def test_a_task_creates_the_topics_that_its_rows_name(topics: Topics, target: str) -> None:
    query = Query(topics, target)
    rows = pa.RecordBatch.from_pydict({"value": ["a"], "topic": [f"{target}-new"]})
    done = write_task(iter([rows]), query.options, query.id, batch_id=0, task=0)
    query.commit(done)
    assert len(topics.client.places(f"{target}-new")) == 1


def test_a_topic_made_through_one_node_is_written_through_the_others(tmp_path: Path) -> None:
    with PenstockCluster(tmp_path, fsync="never") as cluster:
        names = [f"new-{number}" for number in range(6)]
        for place, name in enumerate(names):
            nodes = [*cluster.nodes.values()]
            driver = {"kafka.bootstrap.servers": nodes[place % 3].kafka, "topic": name}
            partition_count(client_for(parse_write_options(driver).connection), name)
            task = {**driver, "kafka.bootstrap.servers": nodes[(place + 1) % 3].kafka}
            options = parse_write_options({**task, "delivery": "at-least-once"})
            rows = pa.RecordBatch.from_pydict({"value": ["a", "b"]})
            done = write_task(iter([rows]), options, "q", batch_id=0, task=0)
            assert (done.row_count, done.topic) == (2, name)


def test_a_new_topic_is_created_for_a_batch_and_for_a_stream(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    first, second = (f"new-{uuid.uuid4().hex[:8]}" for _ in range(2))
    frame = spark.createDataFrame([("a",), ("b",)], "value string")
    frame.write.format("penstock").mode("append").option(
        "kafka.bootstrap.servers", topics.kafka
    ).option("topic", first).save()
    reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", topics.kafka)
    copied = reader.option("subscribe", first).option("startingOffsets", "earliest").load()
    writer = copied.select("value").writeStream.format("penstock").option("topic", second)
    writer = writer.option("kafka.bootstrap.servers", topics.kafka)
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    writer.start().awaitTermination()

    def are_both_there() -> bool:
        found = [sorted(topics.values(name), key=str) for name in (first, second)]
        return found == [[b"a", b"b"]] * 2

    eventually(are_both_there, seconds=120, what="both rows are in both topics")


def test_a_server_that_creates_no_topics_is_an_error_of_one_line_on_the_driver(
    spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.errors import AnalysisException, StreamingQueryException

    env = {"PENSTOCK_KAFKA__AUTO_CREATE": "false"}
    frame = spark.createDataFrame([("a",)], "value string")
    with Server(tmp_path / "data", fsync="never", kafka_port=0, env=env) as server:
        line = "TopicMissing: topic results does not exist: run penstock topic create results"
        options = {"kafka.bootstrap.servers": server.kafka, "topic": "results"}
        with pytest.raises(AnalysisException) as batch:
            frame.write.format("penstock").mode("append").options(**options).save()
        assert str(batch.value).splitlines()[0].endswith(line)
        assert "Traceback" not in str(batch.value)
        rates = spark.readStream.format("rate").load().selectExpr("cast(value AS string) AS value")
        writer = rates.writeStream.format("penstock").options(**options)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        with pytest.raises(StreamingQueryException) as stream:
            writer.start().awaitTermination()
        assert line in str(stream.value)
        assert "Traceback" not in str(stream.value)


def test_a_topic_that_may_not_be_created_is_told_from_one_that_may_not_be_used(
    tmp_path: Path,
) -> None:
    """Kafka has one error code for both."""
    secret = tmp_path / "secret"
    secret.write_text(str(ROOT.secret_key))
    secret.chmod(0o600)
    env = {
        "PENSTOCK_ROOT_KEY_ID": str(ROOT.access_key),
        "PENSTOCK_ROOT_SECRET_FILE": str(secret),
    }
    arguments = ["--auth", "on"]
    data = tmp_path / "data"
    with Server(data, fsync="never", kafka_port=0, arguments=arguments, env=env) as server:
        may = {"Effect": "Allow", "Action": ["kafka:Describe", "kafka:Write"], "Resource": "*"}
        hidden = {"Effect": "Deny", "Action": "kafka:*", "Resource": "arn:aws:sqs:*:*:hidden"}
        _, user = Operator(server).user(may, hidden)
        security = {
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.username": str(user.access_key),
            "kafka.sasl.password": str(user.secret_key),
        }
        options = {"kafka.bootstrap.servers": server.kafka, "topic": "t", **security}
        client = client_for(parse_write_options(options).connection)
        with pytest.raises(TopicMissing, match="penstock topic create results"):
            partition_count(client, "results")
        with pytest.raises(KafkaRefused, match="TOPIC_AUTHORIZATION_FAILED"):
            partition_count(client, "hidden")


def test_a_mistake_in_an_option_is_one_line_without_a_traceback(
    spark: SparkSession, topics: Topics
) -> None:
    from pyspark.errors import AnalysisException

    for options, said in (
        ({"subscribe": "a", "maxRate": "1"}, "unknown option maxrate"),
        ({"subscribe": "a", "startingOffsets": "x"}, "startingOffsets must be earliest"),
        ({"subscribe": "nope"}, "there is no topic nope"),
    ):
        reader = spark.read.format("penstock").option("kafka.bootstrap.servers", topics.kafka)
        with pytest.raises(AnalysisException) as raised:
            reader.options(**options).load().count()
        assert said in str(raised.value).splitlines()[0]
        assert "Traceback" not in str(raised.value)


def test_a_stream_that_is_run_again_from_its_checkpoint_adds_nothing(
    spark: SparkSession, topics: Topics, target: str, tmp_path: Path
) -> None:
    """Spark's own mark that a batch is done is removed, as if it had died just before."""
    source = f"{target}-source"
    topics.make(source, 2)
    topics.fill(source, {0: 120, 1: 80})

    def run() -> Any:
        reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", topics.kafka)
        frame = reader.option("subscribe", source).option("startingOffsets", "earliest").load()
        writer = frame.select("key", "value").writeStream.format("penstock")
        writer = writer.option("kafka.bootstrap.servers", topics.kafka).option("topic", target)
        query = (
            writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        )
        query.awaitTermination()

    run()
    expected = sorted(topics.values(source), key=str)
    eventually(
        lambda: sorted(topics.values(target), key=str) == expected, seconds=120, what="markers"
    )
    for file in (tmp_path / "commits").iterdir():
        file.unlink()
    topics.fill(source, {0: 5}, prefix="new")
    run()
    expected = sorted(topics.values(source), key=str)
    eventually(
        lambda: sorted(topics.values(target), key=str) == expected, seconds=120, what="markers"
    )
