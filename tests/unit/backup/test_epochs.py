"""A log of a cluster on a node by itself, as Kafka clients see it: they are told the epoch that it
goes on in, and a position from an earlier one is still good."""

from pathlib import Path
from typing import cast

import pytest
from tests.unit.broker.stage import on_stage
from tests.unit.broker.storage.test_compaction import batch, compacted_topic, partition_of
from tests.unit.frontend_kafka.rig import Rig

from penstock.frontend.kafka.ports.cluster import Brokers
from penstock.model.calls import AppendBatches, BrokerPort
from penstock.wire.kafka.generated.metadata import MetadataRequest, MetadataRequestTopic
from penstock.wire.kafka.generated.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

METADATA, OFFSET_FOR_LEADER_EPOCH = 3, 23


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, (0, 2)), (5, (5, 2)), (7, (7, 2)), (8, (-1, -1)), (-1, (-1, -1))]
)
async def test_a_position_from_an_earlier_epoch_is_still_good(
    tmp_path: Path, epoch: int, expected: tuple[int, int]
) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await compacted_topic(stage)
        await stage.broker.partitions.open(topic)
        partition_of(stage, topic).journal.leader_epoch = 7
        await stage.broker.call(
            AppendBatches(topic, 0, acks=-1, batches=[batch(("a", "1"), ("b", "2"))])
        )
        rig = Rig()
        context = rig.context
        context.broker = cast(BrokerPort, stage.broker)
        context.catalog = stage.catalog
        context.brokers = Brokers(1, lambda: ("h", 1), stage.broker.partitions.epoch_of)
        shown = await rig.ask(METADATA, 9, MetadataRequest([MetadataRequestTopic(name="t")]))
        assert shown.topics[0].partitions[0].leader_epoch == 7
        asked = OffsetForLeaderTopic("t", [OffsetForLeaderPartition(0, 7, epoch)])
        answer = await rig.ask(OFFSET_FOR_LEADER_EPOCH, 4, OffsetForLeaderEpochRequest(-1, [asked]))
        [one] = answer.topics[0].partitions
        assert (one.error_code, one.leader_epoch, one.end_offset) == (0, *expected)
