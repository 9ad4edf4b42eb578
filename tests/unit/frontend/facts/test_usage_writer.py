"""Usage into the log of a real broker: once each, in full, whatever becomes of the answers."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.harness.full import part
from tests.unit.broker.stage import Stage, message, on_stage
from tests.unit.calls.routing_kit import on_nodes
from tests.unit.frontend.counted import (
    ACCOUNT,
    REGION,
    Ids,
    cluster_log,
    fact_log,
    records,
    records_of,
)

from penstock.frontend.facts.fact_log import Fact, FactLog
from penstock.frontend.facts.usage import TOPIC, UsageTable, UsageWriter
from penstock.model.calls import (
    Append,
    AppendBatches,
    BrokerCall,
    BrokerPort,
    Ends,
    LogBytes,
    R,
    Stats,
)
from penstock.model.errors import Overloaded, ProducerRefused
from penstock.model.limits import MINUTE_MS
from penstock.model.topic import Kind
from penstock.record.batch import parse_header
from penstock.wire.facts.usage import SCHEMA_HEADER, UsageFacts, UsageRow, decode
from penstock.wire.kafka.faults import ErrorCode

KEY = ("000000000001", REGION, "jobs", "sqs:SendMessage")


def writer_on(
    stage: Stage, table: UsageTable, log: FactLog, *, flush_ms: int = 20, is_storing: bool = False
) -> UsageWriter:
    return UsageWriter(
        table,
        log,
        node="n1",
        clock=stage.clock,
        entropy=secrets.token_bytes,
        flush_ms=flush_ms,
        stored_in=(stage.catalog, stage.broker) if is_storing else None,
    )


async def written(stage: Stage) -> list[UsageFacts]:
    return [decode(record.value or b"") for record in await records(stage, TOPIC)]


def sums(facts: Sequence[UsageFacts]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in facts:
        for row in each.columns.rows():
            total[row.resource] += row.requests
    return total


class Unreliable:
    """A broker behind a bad line: calls go astray on the way there or on the way back."""

    def __init__(self, broker: BrokerPort, chance: Random, *, lost: float = 0.5) -> None:
        self._broker = broker
        self._chance = chance
        self._lost = lost
        self.lost_there = 0
        self.lost_back = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def call(self, call: BrokerCall[R]) -> R:
        is_append = isinstance(call, AppendBatches)
        if is_append and self._chance.random() < self._lost:
            self.lost_there += 1
            raise Overloaded("not reached")
        done = await self._broker.call(call)
        if is_append and self._chance.random() < self._lost:
            self.lost_back += 1
            raise Overloaded("no answer")
        return done


async def test_a_flush_is_one_record_that_names_itself(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        table = UsageTable(now_ms=stage.clock.wall)
        writer = writer_on(stage, table, fact_log(stage, TOPIC, Ids()))
        table.find(KEY).add(2, 30, 0)
        await writer.flush()
        table.find(KEY).add(1, 5, 0)
        await writer.flush()
        await writer.flush()  # nothing to say
        first, second = await written(stage)
        assert (first.node, first.flush, second.flush) == ("n1", 1, 2)
        assert first.incarnation == second.incarnation
        assert first.written_at_ms == stage.clock.wall
        assert list(first.columns.rows()) == [
            UsageRow(*KEY[:3], "calls", KEY[3], 1, 2, 30, units64k=1)
        ]
        [record, _] = await records(stage, TOPIC)
        assert record.key == b"n1"
        assert list(record.headers) == [SCHEMA_HEADER]


async def test_every_minute_is_told_even_when_nothing_happened(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        table = UsageTable(now_ms=stage.clock.wall)
        writer = writer_on(stage, table, fact_log(stage, TOPIC, Ids()))
        began_ms = table.minute_ms
        for _ in range(3):
            stage.clock.advance(MINUTE_MS)
            await writer.flush()
        facts = await written(stage)
        assert [each.minute_ms for each in facts] == [began_ms + n * MINUTE_MS for n in range(3)]
        assert not any(len(each.columns) for each in facts)


@pytest.mark.full_set
@pytest.mark.parametrize("seed", part(range(4), 1))
async def test_lost_calls_and_lost_answers_neither_lose_nor_double(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.frontend.facts.fact_log.RETRY_SECONDS", 0.0001)
    monkeypatch.setattr("penstock.frontend.facts.fact_log.RETRY_SECONDS_MAX", 0.0002)
    chance = Random(seed)
    async with on_stage(tmp_path) as stage:
        broker = Unreliable(stage.broker, chance)
        table = UsageTable(now_ms=stage.clock.wall)
        writer = writer_on(stage, table, fact_log(stage, TOPIC, Ids(), broker=broker))
        counted: Counter[str] = Counter()
        for _ in range(40):
            for name in chance.choices("abc", k=5):
                table.find((*KEY[:2], name, KEY[3])).add(1, 1, 0)
                counted[name] += 1
            stage.clock.advance(chance.randrange(30_000))
            flushing = asyncio.create_task(writer.flush())
            if chance.random() < 0.3:  # cut off in the middle; the next one goes on with it
                await asyncio.sleep(chance.random() * 0.003)
                flushing.cancel()
            with suppress(asyncio.CancelledError):
                await flushing
        await writer.flush()
        facts = await written(stage)
        assert sums(facts) == counted
        assert [each.flush for each in facts] == list(range(1, len(facts) + 1))
        assert broker.lost_there > 5
        assert broker.lost_back > 5


async def test_incarnations_over_crashes_are_each_written_once(tmp_path: Path) -> None:
    ids = Ids()
    counted: Counter[str] = Counter()
    for number in range(5):
        async with on_stage(tmp_path, is_crash=True) as stage:
            table = UsageTable(now_ms=stage.clock.wall)
            writer = writer_on(stage, table, fact_log(stage, TOPIC, ids))
            for _ in range(3):
                table.find((*KEY[:2], f"q{number}", KEY[3])).add(1, 1, 0)
                counted[f"q{number}"] += 1
                await writer.flush()
            table.find(KEY).add(1, 1, 0)  # counted, never written: it is lost with the process
    async with on_stage(tmp_path) as stage:
        facts = await written(stage)
        assert sums(facts) == counted
        assert len({each.incarnation for each in facts}) == 5
        assert len({each.name for each in facts}) == 15


async def test_a_partition_that_lost_track_is_gone_on_with_under_another_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.frontend.facts.fact_log.RETRY_SECONDS", 0.0001)

    refusals = [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID]
    ids: set[int] = set()

    class Forgetful(Unreliable):
        async def call(self, call: BrokerCall[R]) -> R:
            if isinstance(call, AppendBatches):
                ids.add(parse_header(call.batches[0]).producer_id)
                if refusals:
                    raise ProducerRefused(refusals.pop(), "lost")
            return await self._broker.call(call)

    async with on_stage(tmp_path) as stage:
        broker = Forgetful(stage.broker, Random(0))
        log = fact_log(stage, TOPIC, Ids(), broker=broker)
        log.offer([Fact(b"k", b"1"), Fact(b"k", b"2")])
        await log.settle()
        log.offer([Fact(b"k", b"3")])
        await log.settle()
        assert [record.value for record in await records(stage, TOPIC)] == [b"1", b"2", b"3"]
        assert len(ids) == 3
        assert log.trouble is None


async def test_a_topic_that_somebody_deleted_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.frontend.facts.fact_log.RETRY_SECONDS", 0.001)
    async with on_stage(tmp_path) as stage:
        log = fact_log(stage, TOPIC, Ids())
        log.offer([Fact(b"k", b"1")])
        await log.settle()
        await stage.catalog.delete(ACCOUNT, REGION, TOPIC, now_ms=stage.clock.wall)
        log.offer([Fact(b"k", b"2")])
        await log.settle()
        assert [record.value for record in await records(stage, TOPIC)] == [b"2"]


async def test_a_queue_that_has_the_name_is_left_alone_and_told_of(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        queue = await stage.topic(TOPIC)
        log = fact_log(stage, TOPIC, Ids())
        log.offer([Fact(b"k", b"1")])
        settling = asyncio.create_task(log.settle())
        while log.trouble is None:
            await asyncio.sleep(0)
        assert "is a queue" in log.trouble
        assert (await stage.broker.call(Stats(queue))).visible == 0
        await stage.catalog.delete(ACCOUNT, REGION, TOPIC, now_ms=stage.clock.wall)
        await settling
        assert log.trouble is None
        assert [record.value for record in await records(stage, TOPIC)] == [b"1"]


async def test_the_topic_is_kept_as_long_as_the_settings_say(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        for retention_ms in (60_000, 120_000):
            topic = await fact_log(stage, TOPIC, Ids(), retention_ms=retention_ms).find_or_make()
            assert topic.configs["retention.ms"] == str(retention_ms)
            assert not topic.is_queue
        assert len(stage.catalog.all_topics()) == 1


async def test_what_queues_hold_is_sampled_without_our_own_topics(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        jobs = await stage.topic("jobs", partitions=2)
        await stage.topic("empty")
        await stage.broker.call(Append(jobs, 1, [message("x" * 1_000)]))
        table = UsageTable(now_ms=stage.clock.wall)
        writer = writer_on(stage, table, fact_log(stage, TOPIC, Ids()), is_storing=True)
        await writer.flush()
        await writer.sample()
        await writer.flush()
        [facts] = await written(stage)
        [row] = facts.columns.rows()
        assert (row.tenant, row.resource, row.kind) == (ACCOUNT, "jobs", "storage")
        assert row.stored_bytes == (await stage.broker.call(Stats(jobs))).log_bytes > 1_000


async def test_of_each_partition_the_node_tells_that_leads_it_and_none_is_told_twice(
    tmp_path: Path,
) -> None:
    async with on_nodes(tmp_path, 1, 2, 3) as cluster:
        usage = await cluster.topic(TOPIC, led_by=(2,), kind=Kind.STREAM)
        jobs = await cluster.topic("jobs", led_by=(1, 2, 2, 3))
        mail = await cluster.topic("mail", led_by=(3,))
        await cluster.topic("nobodys", led_by=(None,))
        for topic, partition in ((jobs, 0), (jobs, 1), (jobs, 2), (mail, 0)):
            await cluster.put(topic, partition, [message("x" * 1_000 * (partition + 1))])
        ids = Ids()
        for number, node in cluster.nodes.items():
            routed = cluster.routed(number)
            writer = UsageWriter(
                UsageTable(now_ms=cluster.clock.wall),
                cluster_log(cluster, number, TOPIC, ids),
                node=f"n{number}",
                clock=cluster.clock,
                entropy=secrets.token_bytes,
                stored_in=(node.catalog, routed),
                leads=cluster.leads(number),
            )
            await writer.sample()
            await writer.flush()
        routed = cluster.routed(1)
        told: Counter[str] = Counter()
        for record in await records_of(routed, usage):
            for row in decode(record.value or b"").columns.rows():
                told[row.resource] += row.stored_bytes
        held = {
            topic.name: sum(
                [await routed.call(LogBytes(topic, n)) for n in range(topic.partition_count)]
            )
            for topic in (jobs, mail)
        }
        assert told == held
        assert held["jobs"] > 6_000


async def test_it_writes_by_itself_and_a_stop_writes_the_rest(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        table = UsageTable(now_ms=stage.clock.wall)
        log = fact_log(stage, TOPIC, Ids())
        writer = writer_on(stage, table, log, is_storing=True)
        writer.start()
        table.find(KEY).add(1, 1, 0)
        await advanced(stage, log, 1)
        table.find(KEY).add(1, 1, 0)
        await writer.stop()
        assert sums(await written(stage)) == {"jobs": 2}
        assert writer.trouble is None


async def test_a_stop_gives_up_on_a_log_that_takes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with on_stage(tmp_path) as stage:
        broker = Unreliable(stage.broker, Random(0), lost=1.0)
        table = UsageTable(now_ms=stage.clock.wall)
        writer = writer_on(stage, table, fact_log(stage, TOPIC, Ids(), broker=broker))
        writer.start()
        table.find(KEY).add(1, 1, 0)
        await writer.stop(seconds_max=0.05)
        assert "last usage records lost" in caplog.messages
        assert not await written(stage)


async def advanced(stage: Stage, log: FactLog, count: int) -> None:
    """Until the topic holds so many records."""
    topic = await log.find_or_make()
    await stage.broker.call(Ends(topic, 0))  # opens it
    moved = asyncio.Event()
    stop = stage.broker.on_advance(topic, 0, moved.set)
    async with asyncio.timeout(10):
        while (await stage.broker.call(Ends(topic, 0))).high_watermark < count:
            moved.clear()
            await moved.wait()
    stop()
