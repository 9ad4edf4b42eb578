"""Telemetry into the log of a real broker, and what passes by on its way to usage."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.broker.stage import Stage, message, on_stage
from tests.unit.calls.routing_kit import Cluster, on_nodes
from tests.unit.frontend.aws.test_pipeline import json_call, make_queue
from tests.unit.frontend.counted import (
    ACCOUNT,
    REGION,
    CountedRig,
    Ids,
    cluster_log,
    fact_log,
    records,
    records_of,
)

from penstock.cursor.coordinator_calls import (
    CoordinatorCall,
    Coordinators,
    FetchOffsets,
    ListGroups,
    R,
)
from penstock.cursor.groups.decision import Listing
from penstock.cursor.groups.offsets import FetchedOffset, FetchReply
from penstock.frontend.facts import telemetry_writer
from penstock.frontend.facts.telemetry_writer import TOPIC, CallSums, ProcessStats, TelemetryWriter
from penstock.frontend.facts.usage import Counts, Refusal, UsageTable
from penstock.model.calls import Append
from penstock.model.topic import Kind, Topic
from penstock.wire.facts.telemetry import (
    FOLDED,
    SCHEMA_HEADER,
    TelemetryColumns,
    TelemetryFacts,
    bucket_of,
    decode,
    unpacked,
)
from penstock.wire.kafka.faults import ErrorCode

KEY = ("000000000001", REGION, "jobs", "sqs:SendMessage")


class Committed:
    """Coordinators with one group of another account and its offsets, and bookkeeping groups."""

    def __init__(self, *places: tuple[str, int, int]) -> None:
        self._offsets = [FetchedOffset(*place) for place in places]

    async def call(self, call: CoordinatorCall[R]) -> R:
        found: Any
        if isinstance(call, ListGroups):
            # The second keeps what a Spark query has written, and has no lag.
            sink = "spark-sink-0b7d5f63-6a0a-4d53-9a55-2f4f6b6f0c11"
            names = ("123456789012/g", f"123456789012/{sink}", sink)
            found = (
                ErrorCode.NONE,
                [Listing(name, "consumer", "Stable", "classic") for name in names],
            )
        else:
            assert isinstance(call, FetchOffsets)
            found = FetchReply(ErrorCode.NONE, (*self._offsets, FetchedOffset("gone", 0, 1)))
        return cast(R, found)


def writer_on(
    stage: Stage, table: UsageTable, *, groups: Coordinators | None = None, flush_ms: int = 20
) -> TelemetryWriter:
    return TelemetryWriter(
        table,
        fact_log(stage, TOPIC, Ids()),
        node="n1",
        account=ACCOUNT,
        catalog=stage.catalog,
        broker=stage.broker,
        clock=stage.clock,
        entropy=secrets.token_bytes,
        vitals=lambda: ProcessStats(stage.clock.wall % 1_000_000, 5_000, 9_000),
        groups=groups,
        flush_ms=flush_ms,
        is_only_reader=True,
    )


async def written(stage: Stage) -> list[TelemetryFacts]:
    return [decode(record.value or b"") for record in await records(stage, TOPIC)]


def rows(facts: TelemetryFacts, kind: str) -> list[dict[str, object]]:
    columns = facts.columns
    names = columns.__struct_fields__
    every = (
        dict(zip(names, row, strict=True))
        for row in zip(*(getattr(columns, name) for name in names), strict=True)
    )
    return [row for row in every if row["kind"] == kind]


async def test_a_record_tells_calls_levels_and_vitals_of_one_interval(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        table = UsageTable(now_ms=stage.clock.wall, is_timed=True)
        writer = writer_on(stage, table)
        began_ms = stage.clock.wall
        topic = await stage.topic("jobs")
        counts = table.find(KEY)
        counts.add(2, 30, 0)
        counts.took(0.004)
        table.reject(KEY, Refusal.FAILED)
        stage.clock.advance(10_000)
        await writer.flush()
        await stage.broker.call(Append(topic, 0, [message("a"), message("b")]))
        stage.clock.advance(10_000)
        await writer.flush()
        first, second = await written(stage)
        assert (first.flush, second.flush) == (1, 2)
        assert (first.from_ms, first.written_at_ms) == (began_ms, began_ms + 10_000)
        assert second.from_ms == first.written_at_ms
        [call] = rows(first, "calls")
        assert (call["requests"], call["errors"], call["messages"]) == (2, 1, 2)
        assert unpacked(first.columns.hist[0]) == {bucket_of(0.004): 1}
        assert rows(second, "calls") == []
        [before], [after] = rows(first, "partition"), rows(second, "partition")
        assert (before["messages"], after["messages"]) == (0, 2)
        assert int(str(after["bytes_in"])) > 0
        assert (after["log_start"], after["log_end"]) == (0, 2)
        [queue] = rows(second, "queue")
        assert (queue["resource"], queue["depth"], queue["oldest_age_ms"]) == ("jobs", 2, 10_000)
        [node] = rows(second, "node")
        assert (node["cpu_ms"], node["rss_bytes"], node["disk_free_bytes"]) == (
            10_000,
            5_000,
            9_000,
        )
        [record, _] = await records(stage, TOPIC)
        assert record.key == b"n1"
        assert list(record.headers) == [SCHEMA_HEADER]


async def test_the_lag_of_a_group_is_told_under_its_own_account(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic("jobs")
        await stage.broker.call(Append(topic, 0, [message("a"), message("b"), message("c")]))
        table = UsageTable(now_ms=stage.clock.wall, is_timed=True)
        writer = writer_on(stage, table, groups=Committed((topic.topic_id, 0, 1)))
        await writer.flush()
        [facts] = await written(stage)
        [lag] = rows(facts, "lag")
        assert (lag["account"], lag["group"], lag["resource"]) == ("123456789012", "g", "jobs")
        assert (lag["committed"], lag["log_end"], lag["depth"]) == (1, 3, 2)


async def told_by_all(
    cluster: Cluster, topic: Topic, *, groups: Coordinators, retry_seconds_max: float = 0.2
) -> list[TelemetryFacts]:
    """One record of each node; the first coordinates the groups."""
    ids = Ids()
    for number, node in cluster.nodes.items():
        writer = TelemetryWriter(
            UsageTable(now_ms=cluster.clock.wall, is_timed=True),
            cluster_log(cluster, number, TOPIC, ids),
            node=f"n{number}",
            account=ACCOUNT,
            catalog=node.catalog,
            broker=cluster.routed(number, retry_seconds_max=retry_seconds_max),
            clock=cluster.clock,
            entropy=secrets.token_bytes,
            vitals=lambda: ProcessStats(0, 0, 0),
            groups=groups if number == 1 else None,
            leads=cluster.leads(number),
            is_only_reader=True,
        )
        await writer.flush()
    return [decode(record.value or b"") for record in await records_of(cluster.routed(1), topic)]


async def test_all_nodes_together_tell_every_level_once(tmp_path: Path) -> None:
    async with on_nodes(tmp_path, 1, 2, 3) as cluster:
        topic = await cluster.topic(TOPIC, led_by=(3,), kind=Kind.STREAM)
        jobs = await cluster.topic("jobs", led_by=(2, 1, 3))
        for partition in range(3):
            await cluster.put(jobs, partition, [message("a")] * (partition + 1))
        groups = Committed((jobs.topic_id, 1, 1), (jobs.topic_id, 2, 1))
        told = await told_by_all(cluster, topic, groups=groups)
    partitions = [
        (row["partition"], facts.node, row["log_end"])
        for facts in told
        for row in rows(facts, "partition")
    ]
    assert partitions == [(1, "n1", 2), (0, "n2", 1), (2, "n3", 3)]
    [queue] = rows(told[1], "queue")
    assert (queue["resource"], queue["depth"]) == ("jobs", 6)
    assert not rows(told[0], "queue") + rows(told[2], "queue")
    lags = [(row["partition"], row["depth"]) for row in rows(told[0], "lag")]
    assert lags == [(1, 1), (2, 2)], "wherever the partitions are led"
    assert [facts.left_out for facts in told] == [0, 0, 0]


async def test_levels_that_nobody_can_tell_are_waited_for_once(tmp_path: Path) -> None:
    async with on_nodes(tmp_path, 1, 2) as cluster:
        topic = await cluster.topic(TOPIC, led_by=(1,), kind=Kind.STREAM)
        lost = [await cluster.topic(f"lost-{n}", led_by=(1, None)) for n in range(20)]
        groups = Committed(*((each.topic_id, 1, 1) for each in lost))
        began = asyncio.get_running_loop().time()
        first, second = await told_by_all(cluster, topic, groups=groups, retry_seconds_max=1.0)
        assert asyncio.get_running_loop().time() - began < 20 * 1.0
    assert len(rows(first, "partition")) == 20
    assert (first.left_out, second.left_out) == (20 + 20, 0)


async def test_levels_that_have_no_room_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry_writer, "PARTITION_ROWS_MAX", 2)
    monkeypatch.setattr(telemetry_writer, "QUEUE_ROWS_MAX", 1)
    async with on_stage(tmp_path) as stage:
        for name in ("a", "b", "c"):
            await stage.topic(name)
        writer = writer_on(stage, UsageTable(now_ms=stage.clock.wall, is_timed=True))
        await writer.flush()
        [facts] = await written(stage)
        assert (len(rows(facts, "partition")), len(rows(facts, "queue"))) == (2, 1)
        assert facts.left_out == 1 + 2


async def test_a_stop_writes_what_was_counted(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        table = UsageTable(now_ms=stage.clock.wall, is_timed=True)
        writer = writer_on(stage, table, flush_ms=60_000)
        writer.start()
        await asyncio.sleep(0)
        table.find(KEY).add(1, 1, 0)
        await writer.stop()
        [facts] = await written(stage)
        assert [row["requests"] for row in rows(facts, "calls")] == [1]


def test_calls_beyond_the_bound_are_added_to_one_row() -> None:
    sums = CallSums(rows_max=2)
    for name in ("a", "b", "c", "d"):
        counts = Counts(is_timed=True)
        counts.add(1, 10, 0)
        counts.took(0.1)
        sums.add((*KEY[:2], name, KEY[3]), counts)
    columns = TelemetryColumns()
    sums.take(columns)
    assert columns.resource == ["a", "b", FOLDED]
    assert columns.requests == [1, 1, 2]
    assert unpacked(columns.hist[2]) == {bucket_of(0.1): 2}
    again = TelemetryColumns()
    sums.take(again)
    assert len(again) == 0


def test_calls_beyond_the_share_of_a_tenant_are_added_to_one_row_of_the_tenant() -> None:
    own = "000000000000"
    sums = CallSums(rows_max=30, own_account=own)
    for tenant, count in (("1", 20), ("2", 2), (own, 10)):
        for number in range(count):
            counts = Counts()
            counts.add(1, 10, 0)
            sums.add((tenant, "r", f"q{number}", "op"), counts)
    columns = TelemetryColumns()
    sums.take(columns)
    assert Counter(columns.account) == {"1": 4, "2": 2, own: 10}
    folded = columns.resource.index(FOLDED)
    assert (columns.account[folded], columns.requests[folded]) == ("1", 17)


def test_what_usage_takes_passes_by_once() -> None:
    table = UsageTable(now_ms=0, is_timed=True)
    sums = CallSums()
    table.on_taken = sums.add
    table.find(KEY).add(1, 10, 0)
    table.find(KEY).took(0.5)
    table.take(now_ms=0)
    table.take(now_ms=0)
    columns = TelemetryColumns()
    sums.take(columns)
    assert (columns.requests, columns.bytes_in) == ([1], [10])
    assert unpacked(columns.hist[0]) == {bucket_of(0.5): 1}


def test_without_telemetry_no_duration_is_kept() -> None:
    table = UsageTable(now_ms=0)
    table.find(KEY).took(0.5)
    assert table.find(KEY).durations is None


async def test_a_request_is_timed_under_its_queue_and_operation() -> None:
    rig = CountedRig(is_timed=True)
    url = await make_queue(rig, "jobs")
    await json_call(rig, "SendMessage", QueueUrl=url, MessageBody="x")
    taken: dict[tuple[str, ...], dict[int, int] | None] = {}

    def note(key: tuple[str, str, str, str], counts: Counts) -> None:
        taken[key[2:]] = dict(counts.durations or {})

    rig.table.on_taken = note
    rig.used()
    assert taken["jobs", "sqs:SendMessage"] == {0: 1}
