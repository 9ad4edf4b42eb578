"""Batches that a producer has sent ahead of one that was refused, to a node that has just begun to
lead: it is told to come again, not that their order is wrong."""

from pathlib import Path

import pytest
from tests.unit.broker.replicas.stage import Cluster, cluster, settles

from penstock.broker.partition import stream
from penstock.model.calls import AppendBatches
from penstock.model.errors import LeaderMoved, ProducerRefused
from penstock.model.topic import Kind, Topic
from penstock.record.batch import encode_batch
from penstock.record.record import encode_record

PRODUCER = 7


async def produce(on: Cluster, node: int, topic: Topic, sequence: int) -> int:
    batch = encode_batch(
        [encode_record(offset_delta=0, timestamp_delta=0, key=None, value=b"%d" % sequence)],
        base_offset=0,
        leader_epoch=0,
        base_timestamp=1,
        max_timestamp=1,
        producer_id=PRODUCER,
        producer_epoch=0,
        base_sequence=sequence,
    )
    broker = on.nodes[node].broker
    return (await broker.call(AppendBatches(topic, 0, acks=-1, batches=(batch,)))).base_offset


async def test_what_was_sent_ahead_of_a_refused_one_comes_again(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic(kind=Kind.STREAM)
        assert await settles(produce(on, 1, topic, 0)) == 0
        await on.elect(key, 2)
        with pytest.raises(LeaderMoved):
            await settles(produce(on, 2, topic, 2))
        assert [await settles(produce(on, 2, topic, n)) for n in (0, 1, 2)] == [0, 1, 2]


async def test_the_second_batch_of_a_producer_that_nobody_knows_is_not_taken_for_its_first(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as on:
        topic, _ = await on.topic(kind=Kind.STREAM)
        with pytest.raises(LeaderMoved):
            await settles(produce(on, 1, topic, 1))
        assert [await settles(produce(on, 1, topic, n)) for n in (0, 1)] == [0, 1]


async def test_after_a_while_a_gap_is_called_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "GAP_EXCUSED_MS", 0)
    async with cluster(tmp_path) as on:
        topic, _ = await on.topic(kind=Kind.STREAM)
        assert await settles(produce(on, 1, topic, 0)) == 0
        with pytest.raises(ProducerRefused):
            await settles(produce(on, 1, topic, 2))
