"""What a node writes down about itself, as one: how long its end takes."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest
from tests.unit.broker.stage import Stage, on_stage
from tests.unit.frontend.counted import ACCOUNT, REGION, Ids, records
from tests.unit.frontend.facts.test_usage_writer import Unreliable

from penstock.metadata.topics.catalog import StoredProducerIds
from penstock.model.calls import BrokerPort
from penstock.node.configuration.config import Config, NodeConfig
from penstock.node.process import facts as facts_module
from penstock.node.process.facts import Facts
from penstock.node.process.node_setup import NodeSetup
from penstock.wire.facts.deliveries import DeliveryRow

TOPICS = ("__usage", "__telemetry", "__audit", "__deliveries")
ROW = DeliveryRow(1, ACCOUNT, REGION, "s", "sns.orders", 0, 7, "id", 1, "delivered")


def facts_on(stage: Stage, broker: object, folder: Path) -> Facts:
    setup = SimpleNamespace(
        config=Config(node=NodeConfig(account=ACCOUNT, region=REGION, data=str(folder))),
        name="n1",
        clock=stage.clock,
        entropy=secrets.token_bytes,
    )
    ids = cast(StoredProducerIds, Ids())
    return Facts(cast(NodeSetup, setup), cast(BrokerPort, broker), stage.catalog, ids)


async def test_a_stop_writes_the_end_of_all_four(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        facts = facts_on(stage, stage.broker, tmp_path)
        facts.start()
        assert facts.usage is not None
        facts.usage.find((ACCOUNT, REGION, "jobs", "sqs:SendMessage")).add(1, 1, 0)
        facts.deliveries.note(ROW)
        await facts.stop()
        assert [bool(await records(stage, name)) for name in TOPICS] == [True] * 4
        topic = stage.catalog.find(ACCOUNT, REGION, "__deliveries")
        assert topic is not None
        assert topic.configs["retention.ms"] == str(7 * 24 * 3_600_000)


async def test_without_deliveries_there_is_no_topic_for_them(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        facts = facts_on(stage, stage.broker, tmp_path)
        facts.start()
        await facts.stop()
        assert stage.catalog.find(ACCOUNT, REGION, "__deliveries") is None


async def test_logs_that_take_nothing_are_given_up_together_in_the_time_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(facts_module, "STOP_SECONDS_MAX", 3.0)
    async with on_stage(tmp_path) as stage:
        facts = facts_on(stage, Unreliable(stage.broker, Random(0), lost=1.0), tmp_path)
        facts.start()
        assert facts.usage is not None
        facts.usage.find((ACCOUNT, REGION, "jobs", "sqs:SendMessage")).add(1, 1, 0)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await facts.stop()
        assert 3.0 <= loop.time() - began < 5.9  # one after the other it would be six at least
    assert {message for message in caplog.messages if "lost" in message} == {
        "last usage records lost",
        "last telemetry records lost",
        "last audit records lost at shutdown",
    }
