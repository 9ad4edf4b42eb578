"""Deliveries in the log of a real broker: written once each, and the newest read again."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from tests.unit.broker.stage import Stage, on_stage
from tests.unit.frontend.counted import ACCOUNT, REGION, Ids, fact_log, records
from tests.unit.frontend.facts.test_usage_writer import Unreliable

from penstock.frontend.facts import deliveries as deliveries_module
from penstock.frontend.facts.deliveries import (
    REASON_CHARS_MAX,
    TOPIC,
    DeliveryWriter,
    recent_deliveries,
)
from penstock.frontend.facts.fact_log import Fact
from penstock.model.calls import BrokerCall, BrokerPort, Fetch, R
from penstock.model.errors import Overloaded
from penstock.model.topic import Topic
from penstock.wire.facts.deliveries import SCHEMA_HEADER, DeliveryFacts, DeliveryRow, decode


def row(number: int, subscription: str = "s-1", *, reason: str = "") -> DeliveryRow:
    at_ms = 1_000 + number
    outcome = "retry" if reason else "delivered"
    place = (subscription, "sns.orders", number % 3, number, f"id-{number}", 1, outcome)
    return DeliveryRow(at_ms, ACCOUNT, REGION, *place, reason=reason)


def writer_on(
    stage: Stage, *, broker: BrokerPort | None = None, node: str = "n1", flush_ms: int = 5
) -> DeliveryWriter:
    return DeliveryWriter(
        fact_log(stage, TOPIC, Ids(), broker=broker),
        node=node,
        clock=stage.clock,
        entropy=secrets.token_bytes,
        flush_ms=flush_ms,
    )


async def written(stage: Stage) -> list[DeliveryFacts]:
    return [decode(record.value or b"") for record in await records(stage, TOPIC)]


def rows_of(facts: list[DeliveryFacts]) -> list[DeliveryRow]:
    return [each for one in facts for each in one.columns.rows()]


def topic_of(stage: Stage) -> Topic:
    topic = stage.catalog.find(ACCOUNT, REGION, TOPIC)
    assert topic is not None
    return topic


# ── Writing ──────────────────────────────────────────────────────────────────────────────────


async def test_the_rows_of_a_flush_are_one_record_that_names_itself(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        writer = writer_on(stage)
        await writer.flush()  # nothing to write
        assert stage.catalog.find(ACCOUNT, REGION, TOPIC) is None
        for number in range(3):
            writer.note(row(number))
        await writer.flush()
        writer.note(row(3))
        await writer.flush()
        await writer.flush()
        first, second = await written(stage)
        assert rows_of([first, second]) == [row(number) for number in range(4)]
        assert (first.node, first.flush, second.flush) == ("n1", 1, 2)
        assert first.incarnation == second.incarnation
        assert (first.written_at_ms, first.left_out) == (stage.clock.wall, 0)
        [record, _] = await records(stage, TOPIC)
        assert (record.key, list(record.headers)) == (b"n1", [SCHEMA_HEADER])


async def test_many_rows_become_several_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries_module, "ROWS_MAX", 4)
    async with on_stage(tmp_path) as stage:
        writer = writer_on(stage)
        for number in range(10):
            writer.note(row(number))
        await writer.flush()
        facts = await written(stage)
        assert [len(each.columns) for each in facts] == [4, 4, 2]
        assert rows_of(facts) == [row(number) for number in range(10)]


async def test_a_task_writes_rows_until_its_stop_writes_the_last_ones(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        writer = writer_on(stage)
        writer.start()
        writer.note(row(0))
        writer.flush_ms = 3_600_000  # the wait after the first one: only the stop ends it
        while not await written(stage):
            await asyncio.sleep(0.001)
        writer.note(row(1))
        await writer.stop()
        assert rows_of(await written(stage)) == [row(0), row(1)]


async def test_while_nothing_can_be_written_the_newest_rows_are_kept_and_the_others_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries_module, "WAITING_MAX", 5)
    monkeypatch.setattr("penstock.frontend.facts.fact_log.RETRY_SECONDS", 0.0001)
    monkeypatch.setattr("penstock.frontend.facts.fact_log.RETRY_SECONDS_MAX", 0.0001)
    async with on_stage(tmp_path) as stage:
        gate = Unreliable(stage.broker, Random(0), lost=1.0)
        writer = writer_on(stage, broker=gate)
        writer.note(row(0))
        flush = asyncio.create_task(writer.flush())
        while gate.lost_there < 3:
            await asyncio.sleep(0)
        assert writer.trouble is not None
        for number in range(1, 13):
            writer.note(row(number))
        assert len(writer.table) == 5
        gate._lost = 0.0
        await flush
        await writer.flush()
        facts = await written(stage)
        assert [list(each.columns.rows()) for each in facts] == [
            [row(0)],
            [row(number) for number in range(8, 13)],
        ]
        assert [each.left_out for each in facts] == [0, 7]
        writer.note(row(13))
        await writer.flush()
        assert (await written(stage))[-1].left_out == 0
        assert writer.trouble is None


async def test_lost_calls_and_lost_answers_neither_lose_nor_double_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.frontend.facts.fact_log.RETRY_SECONDS", 0.0001)
    monkeypatch.setattr("penstock.frontend.facts.fact_log.RETRY_SECONDS_MAX", 0.0001)
    async with on_stage(tmp_path) as stage:
        broker = Unreliable(stage.broker, Random(3))
        writer = writer_on(stage, broker=broker)
        for number in range(60):
            writer.note(row(number))
            if number % 3 == 0:
                await writer.flush()
        await writer.flush()
        assert rows_of(await written(stage)) == [row(number) for number in range(60)]
        assert min(broker.lost_there, broker.lost_back) > 0


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("timeout", "timeout"),
        ("x" * 5_000, "x" * REASON_CHARS_MAX),
        ("n\u00e4mlich \udcff", r"n\xe4mlich \udcff"),  # a lone surrogate cannot be encoded
        ("\U0001f600" * 100, (r"\U0001f600" * 100)[:REASON_CHARS_MAX]),
    ],
)
async def test_a_reason_is_short_and_ascii(tmp_path: Path, reason: str, kept: str) -> None:
    async with on_stage(tmp_path) as stage:
        writer = writer_on(stage)
        writer.note(row(1, reason=reason))
        await writer.flush()
        assert rows_of(await written(stage)) == [row(1, reason=kept)]


# ── Reading ──────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def filled(folder: Path, flushes: int, *, rows: int = 3) -> AsyncIterator[Stage]:
    """A log with flushes of ``rows`` rows each, of the subscriptions s-0, s-1 and s-2 in turn."""
    async with on_stage(folder) as stage:
        writer = writer_on(stage)
        for flush in range(flushes):
            for number in range(flush * rows, (flush + 1) * rows):
                writer.note(row(number, f"s-{number % 3}"))
            await writer.flush()
        yield stage


class Watched:
    """A broker that counts what is fetched."""

    def __init__(self, broker: BrokerPort) -> None:
        self._broker = broker
        self.fetches: list[Fetch] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._broker, name)

    async def call(self, call: BrokerCall[R]) -> R:
        if isinstance(call, Fetch):
            self.fetches.append(call)
        return await self._broker.call(call)


@pytest.mark.parametrize("count", [1, 2, 7, 40, 100])
async def test_the_newest_rows_of_a_subscription_come_first(tmp_path: Path, count: int) -> None:
    async with filled(tmp_path, 40) as stage:
        found = await recent_deliveries(
            stage.broker, topic_of(stage), subscription_id="s-1", count=count
        )
        all_of_it = [row(number, "s-1") for number in range(119, -1, -1) if number % 3 == 1]
        assert found == all_of_it[:count]


async def test_a_few_rows_cost_one_short_read(tmp_path: Path) -> None:
    async with filled(tmp_path, 40) as stage:
        watched = Watched(stage.broker)
        await recent_deliveries(watched, topic_of(stage), subscription_id="s-1", count=5)  # type: ignore[arg-type]
        assert [call.offset for call in watched.fetches] == [40 - deliveries_module.STEP_RECORDS]


async def test_an_unknown_subscription_has_no_rows(tmp_path: Path) -> None:
    async with filled(tmp_path, 10) as stage:
        # A part of a name is found in the bytes, but is not the subscription of any row.
        for name in ("nobody", "s-", "orders"):
            found = await recent_deliveries(
                stage.broker, topic_of(stage), subscription_id=name, count=5
            )
            assert found == []


async def test_reading_ends_after_so_many_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries_module, "STEP_RECORDS", 2)
    async with filled(tmp_path, 30) as stage:
        topic = topic_of(stage)
        found = await recent_deliveries(
            stage.broker, topic, subscription_id="s-1", count=100, bytes_max=1
        )
        assert found == [row(number, "s-1") for number in (88, 85)]


async def test_steps_become_shorter_where_records_are_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries_module, "STEP_BYTES", 1)
    async with filled(tmp_path, 30) as stage:
        watched = Watched(stage.broker)
        found = await recent_deliveries(
            watched,  # type: ignore[arg-type]
            topic_of(stage),
            subscription_id="s-1",
            count=17,
        )
        assert [each.offset for each in found] == [3 * n + 1 for n in range(29, 12, -1)]
        assert [call.offset for call in watched.fetches] == [22, 18, 16, 15, 14, 13]


async def test_reading_ends_after_some_time_with_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries_module, "STEP_RECORDS", 2)

    class Hanging(Watched):
        async def call(self, call: BrokerCall[R]) -> R:
            if self.fetches:
                await asyncio.Event().wait()
            return await super().call(call)

    async with filled(tmp_path, 30) as stage:
        found = await recent_deliveries(
            Hanging(stage.broker),  # type: ignore[arg-type]
            topic_of(stage),
            subscription_id="s-1",
            count=100,
            seconds_max=1.0,
        )
        assert found in ([row(88, "s-1"), row(85, "s-1")], [])  # nothing, if one read took a second


async def test_records_that_cannot_be_read_are_skipped(tmp_path: Path) -> None:
    async with filled(tmp_path, 2) as stage:
        log = fact_log(stage, TOPIC, Ids())
        log.offer((Fact(b"n1", b"\xc1 s-1"), Fact(b"n1", b"")))
        await log.settle()
        found = await recent_deliveries(
            stage.broker, topic_of(stage), subscription_id="s-1", count=9
        )
        assert found == [row(4, "s-1"), row(1, "s-1")]


async def test_rows_of_several_nodes_are_sorted_by_time(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        ids = Ids()
        for node, numbers in (("n1", (1, 5, 9)), ("n2", (3, 4)), ("n1", (20,))):
            writer = writer_on(stage, node=node)
            writer.log = fact_log(stage, TOPIC, ids)
            for number in numbers:
                writer.note(row(number))
            await writer.flush()
        found = await recent_deliveries(
            stage.broker, topic_of(stage), subscription_id="s-1", count=4
        )
        assert [each.offset for each in found] == [20, 9, 5, 4]


async def test_a_topic_that_cannot_be_read_now_is_an_error(tmp_path: Path) -> None:
    class Away(Watched):
        async def call(self, call: BrokerCall[R]) -> R:
            raise Overloaded("no leader")

    async with filled(tmp_path, 1) as stage:
        with pytest.raises(Overloaded):
            await recent_deliveries(
                Away(stage.broker),  # type: ignore[arg-type]
                topic_of(stage),
                subscription_id="s-1",
                count=1,
            )
