"""What may be deleted: never anything that somebody needs, and everything that nobody does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.harness.server import Server
from tests.pipeline.test_audit import context_for
from tests.pipeline.topics import topics_of
from tests.unit.pipeline.test_retention_plan import STARTS, WANT, ack_rows

from penstock.net.kafka_client.client import EARLIEST, KafkaClient, Place
from penstock.pipeline.archive import retention_plan
from penstock.pipeline.archive.ack_ranges import floors, read_ack_files
from penstock.pipeline.job import JobMisused
from penstock.pipeline.jobs import archive, retention

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# ── Acknowledgements ─────────────────────────────────────────────────────────────────────────────


def test_executors_and_the_driver_find_the_same(spark: SparkSession, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    rows = ack_rows(3_000)
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=4_000)
    paths = [str(tmp_path / "a.parquet")]
    assert floors(read_ack_files(spark, paths, tasks=2), STARTS) == WANT
    assert read_ack_files(spark, [], tasks=2) == {}


# ── With a server ────────────────────────────────────────────────────────────────────────────────


def _topic(server: Server, name: str, config: Mapping[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": server.kafka})
    made = admin.create_topics([NewTopic(name, num_partitions=2, config=dict(config))])
    made[name].result(timeout=30)


def _fill(server: Server, topic: str, counts: tuple[int, int]) -> None:
    producer = Producer({"bootstrap.servers": server.kafka})
    for partition, count in enumerate(counts):
        for n in range(count):
            at_ms = 1_700_000_000_000 + n
            producer.produce(topic, b"v%d" % n, b"k%d" % n, partition=partition, timestamp=at_ms)
    assert producer.flush(120) == 0


def _commit(server: Server, group: str, topic: str, offsets: tuple[int, ...]) -> None:
    consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": group})
    at = [TopicPartition(topic, n, offset) for n, offset in enumerate(offsets)]
    consumer.commit(offsets=at, asynchronous=False)
    consumer.close()


def test_a_plan_is_printed_then_carried_out_and_no_further(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    keep = {"retention.ms": "-1"}
    _topic(server, "read", keep)
    _topic(server, "compacted", {"cleanup.policy": "compact"})
    _fill(server, "read", (50, 20))
    _fill(server, "compacted", (5, 0))
    _commit(server, "fast", "read", (40, 20))
    _commit(server, "slow", "read", (30,))  # has not come to partition 1
    _commit(server, "fast", "compacted", (5, 0))
    policies = tmp_path / "policies.toml"
    policies.write_text('[[policy]]\ntopic = "*"\nkeep_s = 3600\narchive_required = false\n')
    shown: list[dict[str, Any]] = []

    def run(**arguments: Any) -> list[tuple[Any, ...]]:
        shown.clear()
        given = {"policies": str(policies), **arguments}
        retention.JOB.run(context_for(spark, server, tmp_path, arguments=given, show=shown.extend))
        return [
            (row["topic"], row["partition"], row["to"], row["action"], row["reason"])
            for row in shown
            if row["topic"] in ("read", "compacted")
        ]

    planned = run()
    assert planned == [
        ("compacted", 0, 5, "keep", "compacted: compaction deletes its records"),
        ("read", 0, 30, "delete", "no longer needed"),
        ("read", 0, 40, "keep", "needed by slow"),
        ("read", 0, 50, "keep", "needed by fast"),
        ("read", 1, 20, "keep", "needed by slow"),
    ]
    with KafkaClient(server.kafka) as client:
        places = client.places("read")
        assert client.offsets(dict.fromkeys(places, EARLIEST)) == dict.fromkeys(places, 0)
        rows = [row for row in shown if row["action"] == "delete"]
        assert rows[0]["bytes"] > 0
        assert run(apply=True) == planned
        assert {row["outcome"] for row in shown if row["action"] == "delete"} == {"done"}
        begun = client.offsets(dict.fromkeys(places, EARLIEST))
        assert begun == {Place("read", 0): 30, Place("read", 1): 0}
    plans = Path(tmp_path / "lake")
    assert (plans / retention.PLAN / "_delta_log").exists()


def test_acknowledgements_of_other_cursors_are_honoured(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    _topic(server, "leased", {"retention.ms": "-1"})
    _fill(server, "leased", (30, 10))
    policies = tmp_path / "policies.toml"
    policies.write_text('[[policy]]\ntopic = "leased"\nkeep_s = 1\narchive_required = false\n')
    shown: list[dict[str, Any]] = []
    arguments = {"policies": str(policies), "acks": "acks"}
    context = context_for(spark, server, tmp_path, arguments=arguments, show=shown.extend)
    with pytest.raises(JobMisused, match="no table acks"):
        retention.JOB.run(context)
    acks = {"topic": ["leased"] * 3 + ["gone"], "partition": pa.array([0, 0, 0, 0], pa.int32()),
            "cursor": ["w"] * 4, "first": [5, 0, 9, 0], "last": [7, 5, 20, 9]}  # fmt: skip
    context.lake.append(pa.table(acks), "acks", app="acks:1", batch_id=0)
    retention.JOB.run(context)
    assert [(row["partition"], row["to"], row["action"]) for row in shown] == [
        (0, 8, "delete"),
        (0, 30, "keep"),
        (1, 10, "keep"),
    ]
    # What the archive does not have yet stays.
    shown.clear()
    policies.write_text('[[policy]]\ntopic = "leased"\nkeep_s = 1\n')
    rows = spark.createDataFrame(
        pa.table({"topic": ["leased"] * 6, "partition": pa.array([0] * 6, pa.int32()),
                  "offset": pa.array(range(6), pa.int64())})
    )  # fmt: skip
    context.lake.append(rows, "archive/leased", app="archive:q", batch_id=0, is_tracked=True)
    retention.JOB.run(context)
    assert [(row["partition"], row["to"], row["reason"]) for row in shown] == [
        (0, 6, "no longer needed"),
        (0, 8, "not archived"),
        (0, 30, "not archived"),
        (1, 10, "not archived"),
    ]


def test_a_table_of_a_topic_that_was_deleted_does_not_vouch_for_the_one_with_its_name(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    policies = tmp_path / "policies.toml"
    policies.write_text('[[policy]]\ntopic = "renewed"\nkeep_s = 1\ngroups = []\n')
    shown: list[dict[str, Any]] = []
    planning = context_for(
        spark,
        server,
        tmp_path,
        arguments={"policies": str(policies), "apply": True},
        show=shown.extend,
    )
    keeping = context_for(spark, server, tmp_path, arguments={"topics": "renewed"})

    def run() -> list[tuple[Any, ...]]:
        shown.clear()
        retention.JOB.run(planning)
        return [(row["from"], row["to"], row["reason"], row["outcome"]) for row in shown]

    with topics_of(server.kafka) as topics:
        topics.make("renewed", 1)
        topics.fill("renewed", {0: 20})
        archive.JOB.run(keeping)
        old = keeping.lake.table("archive/renewed").topic_ids("archive")["renewed"]
        topics.delete("renewed")
        topics.make("renewed", 1)
        topics.fill("renewed", {0: 12}, prefix="new")
        assert run() == [(0, 12, "not archived", "")]
        assert len(topics.values("renewed")) == 12
        (keeping.lake.path / "archive/renewed").rename(f"{tmp_path}/lake/archive/renewed.{old[:8]}")
        (tmp_path / "checkpoint").rename(tmp_path / "of the old one")
        archive.JOB.run(keeping)
        assert run() == [(0, 12, "no longer needed", "done")]
        assert topics.values("renewed") == []


def test_what_is_asked_for_is_on_record_before_it_is_done(
    spark: SparkSession, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _topic(server, "noted", {"retention.ms": "-1"})
    _fill(server, "noted", (10, 4))
    policies = tmp_path / "policies.toml"
    policies.write_text(
        '[[policy]]\ntopic = "noted"\nkeep_s = 1\ngroups = []\narchive_required = false\n'
    )
    arguments = {"policies": str(policies), "apply": True}
    context = context_for(spark, server, tmp_path, arguments=arguments)

    def outcomes() -> list[tuple[int, str]]:
        rows = context.lake.table(retention.PLAN).open().to_pyarrow_table().to_pylist()
        return sorted((row["partition"], row["outcome"]) for row in rows)

    def die(client: KafkaClient, wanted: Mapping[Place, int]) -> dict[Place, str]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(retention_plan, "delete_records", die)
        with pytest.raises(KeyboardInterrupt):
            retention.JOB.run(context)
    assert outcomes() == [(0, "asked"), (1, "asked")]
    retention.JOB.run(context)
    assert outcomes() == [(0, "asked"), (0, "done"), (1, "asked"), (1, "done")]
