"""The job ``telemetry``: sums and histograms against what they came from, and a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.harness.server import Server
from tests.unit.pipeline.test_telemetry_sums import (
    NOW_MS,
    hist_of,
    input_batch,
    record,
)

from penstock.net.kafka_client.client import KafkaClient, Place
from penstock.pipeline.facts import rebalance
from penstock.pipeline.facts.rebalance import TOPIC as PLANS
from penstock.pipeline.facts.rebalance import publish
from penstock.pipeline.job import JobContext
from penstock.pipeline.jobs import telemetry as job
from penstock.pipeline.jobs.telemetry import TelemetryTables
from penstock.pipeline.lake import Lake
from penstock.pipeline.sketch import count_of, merge, percentile
from penstock.record.batch import split_batches
from penstock.record.record import iter_records
from penstock.wire.facts import telemetry as facts
from penstock.wire.facts.telemetry import (
    TelemetryColumns,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# ── Records ──────────────────────────────────────────────────────────────────────────────────


def fleet(minute: int, chance: Random) -> Iterator[bytes]:
    """Four nodes for one minute: the first has nearly all load, and a group is stuck."""
    for number, node in enumerate(("n0", "n1", "n2", "n3")):
        weight = 40 if number == 0 else 2

        def fill(to: TelemetryColumns, number: int = number, weight: int = weight) -> None:
            for partition in range(8):
                to.add(
                    facts.PARTITION,
                    account="a",
                    region="r",
                    resource=f"t{number}",
                    partition=partition,
                    messages=weight * 10,
                    bytes_in=weight * 1_000,
                    log_end=weight * 10 * (minute + 1),
                    size_bytes=5_000,
                )
            took = [chance.lognormvariate(-6, 1) for _ in range(weight * 10)]
            to.add(
                facts.CALLS,
                account="a",
                region="r",
                resource=f"t{number}",
                op="kafka:Write",
                requests=len(took),
                messages=weight * 80,
                bytes_in=weight * 8_000,
                hist=hist_of(took),
            )
            to.add(
                facts.LAG,
                account="a",
                region="r",
                resource=f"t{number}",
                partition=0,
                group="g",
                committed=5,
                log_end=weight * 10 * (minute + 1),
            )
            to.add(facts.NODE, cpu_ms=weight * 100, rss_bytes=1_000 + minute)

        yield record(fill, at_ms=NOW_MS + minute * 60_000, node=node, flush=minute + 1)


def test_minutes_become_hours_lags_hot_spots_and_one_plan(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    plans: list[rebalance.Plan] = []
    tables = TelemetryTables(
        spark, lake, app="telemetry:q", grace_ms=60_000, publish_plan=plans.append
    )
    chance = Random(7)
    hour = [list(fleet(minute, chance)) for minute in range(65)]
    values = [value for minute in hour for value in minute]
    half = len(values) // 2 + 1  # in the middle of a minute
    for batch_id, part in enumerate((values[:half], values[half:])):
        table = pa.Table.from_batches([input_batch(part)])
        tables.add(spark.createDataFrame(table), batch_id)
        tables.add(spark.createDataFrame(table), batch_id)  # again: nothing
    tables.derive()
    tables.derive()  # again: nothing

    minutes = lake.read(spark, job.MINUTES)
    assert requests_in(minutes) == 65 * 460
    whole = lake.read(spark, job.HOURS)
    total = requests_in(whole)
    hours = {row.at for row in whole.select("at").distinct().collect()}
    inside = [m for m in range(65) if minute_hour(m) in hours_of(hours)]
    assert total == len(inside) * 460
    [stuck] = (
        lake.read(spark, job.LAG, "resource = 't0'")
        .orderBy("at", ascending=False)
        .limit(1)
        .collect()
    )
    assert (stuck.state, stuck.eta_s, stuck.group) == ("STALLED", None, "g")
    assert stuck.records == 400 * 63 - 5  # the newest minute is not complete
    hot = lake.read(spark, job.HOT).collect()
    assert {(each.scope, each.name) for each in hot} >= {("queue", "a/r/t0"), ("node", "n0")}
    [made] = plans
    assert made.skew_before > 2
    assert made.skew_after < 1.25
    assert {step.source for step in made.steps} == {"n0"}
    assert lake.read(spark, job.PLAN).count() == len(made.steps)


def requests_in(rows: DataFrame) -> int:
    row = rows.where("kind = 'calls'").selectExpr("sum(requests) AS total").first()
    assert row is not None
    return int(row.total)


def minute_hour(minute: int) -> int:
    return (NOW_MS + minute * 60_000) // 3_600_000


def hours_of(hours: set[Any]) -> set[int]:
    return {int(each.timestamp()) // 3_600 for each in hours}


# ── A real server ────────────────────────────────────────────────────────────────────────────


class Quiet:
    """The port ``Progress`` for nobody."""

    def note(self, text: str) -> None: ...

    @contextmanager
    def tasks(self, label: str) -> Iterator[None]:
        yield


@pytest.fixture(scope="module")
def telling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(
        tmp_path_factory.mktemp("telling"),
        fsync="never",
        kafka_port=0,
        env={"PENSTOCK_TELEMETRY__FLUSH_MS": "200"},
    ) as running:
        yield running
        running.assert_no_traceback()


def test_what_a_server_writes_is_what_its_clients_did(
    spark: SparkSession, telling: Server, tmp_path: Path
) -> None:
    import boto3

    sqs = boto3.client(
        "sqs",
        endpoint_url=telling.url,
        region_name="us-east-1",
        aws_access_key_id="x",
        aws_secret_access_key="y",
    )
    url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
    for number in range(30):
        sqs.send_message(QueueUrl=url, MessageBody=f"message {number}")
    telling.restart()  # a stop writes everything
    lake = Lake(tmp_path / "lake")
    context = JobContext(
        spark=spark,
        server=telling.kafka,
        lake=lake,
        checkpoint=tmp_path / "checkpoint",
        progress=Quiet(),
        arguments={"grace_s": 0},
    )
    job.JOB.run(context)
    rows = lake.read(spark, job.MINUTES, "resource = 'jobs'")
    sent = rows.where("op = 'sqs:SendMessage'").collect()
    assert sum(each.requests for each in sent) == 30
    assert sum(count_of(each.hist) for each in sent) == 30
    p99 = percentile(merge(each.hist for each in sent), 0.99)
    assert p99 is not None
    assert 0.00001 < p99 < 30
    levels = rows.where("kind = 'queue'").selectExpr("max(depth_max)").first()
    assert levels is not None
    assert levels[0] == 30
    node = lake.read(spark, job.MINUTES, "kind = 'node'")
    vitals = node.selectExpr("max(rss_bytes_max)", "sum(cpu_ms)").first()
    assert vitals is not None
    assert vitals[0] > 10_000_000
    assert vitals[1] > 0


def test_a_plan_is_published_where_the_newest_takes_the_place_of_older_ones(
    telling: Server,
) -> None:
    made = rebalance.Plan("p1", NOW_MS, NOW_MS + 1, 3.0, 1.1, ())
    with KafkaClient(telling.kafka) as client:
        first = publish(client, made)
        assert publish(client, made) == first + 1
        place = Place(PLANS, 0)
        fetched = client.fetch({place: first})[place]
        told = [
            (record.key, json.loads(record.value or b""))
            for batch in split_batches([fetched.records])
            for record in iter_records(batch)
        ]
        assert [key for key, _ in told] == [b"rebalance"] * 2
        assert told[0][1]["plan_id"] == "p1"
        assert told[0][1]["valid_until_ms"] == NOW_MS + 1
