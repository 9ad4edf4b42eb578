"""Shares on three nodes: a new leader continues where the old one was."""

from pathlib import Path

import pytest
from tests.unit.broker.partition.test_stream import batch
from tests.unit.broker.queues.test_shares import claims

from penstock.broker.leases.leases import Leases
from penstock.broker.partition.replay import read_checkpoint
from penstock.broker.replicas import follower_log
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.calls import Acquire, AppendBatches, Finish, OpenShare, ShareLag
from penstock.model.ports import EARLIEST
from penstock.model.topic import Kind, Topic

from .stage import Cluster, cluster, until


def leases_of(on: Cluster, node: int, key: PartitionKey, share: Topic) -> Leases:
    partition = on.nodes[node].replica(key).partition
    assert partition is not None
    return partition.shares[share.topic_id]


async def fill(on: Cluster, node: int, topic: Topic) -> None:
    """Enough for two checkpoints."""
    for _ in range(40):
        sent = AppendBatches(topic, 0, acks=-1, batches=[batch("x" * 1_000)])
        await on.nodes[node].broker.call(sent)


async def test_a_follower_leads_shares_that_were_begun_before_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_log, "CHECKPOINT_BYTES", 20_000)
    async with cluster(tmp_path) as on:
        topic, key = await on.topic(kind=Kind.STREAM)
        leader = on.nodes[1].broker
        await leader.call(AppendBatches(topic, 0, acks=-1, batches=[batch("first")]))
        await on.alike(key)
        follower = on.nodes[2].replica(key)
        await until(lambda: follower.follower_log.replay is not None)
        reader = await leader.call(OpenShare(topic, 0, "g", start=EARLIEST))
        await fill(on, 1, topic)
        got = await leader.call(Acquire(reader, 0, 5, bytes_max=1 << 20, lease_ms=60_000))
        await leader.call(Finish(reader, 0, claims(got)[:2]))
        await fill(on, 1, topic)
        await on.alike(key)
        await until(lambda: read_checkpoint(follower.log) is not None)
        checkpoint = read_checkpoint(follower.log)
        assert checkpoint is not None
        assert reader.topic_id in checkpoint.shares
        live = leases_of(on, 1, key, reader).cursor
        expected = (live.head, live.low_offset(), live.unseen, live.in_flight_most)
        await on.elect(key, 2)
        found = leases_of(on, 2, key, reader).cursor
        assert (found.head, found.low_offset(), found.unseen, found.in_flight_most) == expected
        new = on.nodes[2].broker
        assert await new.call(ShareLag(reader, 0)) == 79
        got = await new.call(Acquire(reader, 0, 100, bytes_max=1 << 20, lease_ms=60_000))
        assert len(got.picks) == 76
