"""Shares and bookmarks on three nodes: a new leader continues where the old one was."""

from pathlib import Path

import pytest
from tests.unit.broker.partition.test_stream import batch
from tests.unit.broker.queues.test_ordered_shares import keyed
from tests.unit.broker.queues.test_shares import claims, values

from penstock.broker.leases.leases import Leases
from penstock.broker.partition.replay import read_checkpoint
from penstock.broker.replicas import follower_log
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.calls import (
    Acquire,
    AppendBatches,
    Finish,
    MoveBookmark,
    OpenShare,
    Prolong,
    ReadBookmark,
    ShareLag,
)
from penstock.model.ports import EARLIEST, LATEST
from penstock.model.topic import Kind, Topic

from .stage import Cluster, cluster, until


@pytest.fixture
def small_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_log, "CHECKPOINT_BYTES", 20_000)


def leases_of(on: Cluster, node: int, key: PartitionKey, share: Topic) -> Leases:
    partition = on.nodes[node].replica(key).partition
    assert partition is not None
    return partition.shares[share.topic_id]


async def fill(on: Cluster, node: int, topic: Topic, count: int = 40) -> None:
    """Enough for two checkpoints."""
    for _ in range(count):
        sent = AppendBatches(topic, 0, acks=-1, batches=[batch("x" * 1_000)])
        await on.nodes[node].broker.call(sent)


@pytest.mark.usefixtures("small_checkpoints")
@pytest.mark.parametrize("is_known_late", [False, True])
async def test_a_follower_leads_shares_that_were_begun_before_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_known_late: bool
) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic(kind=Kind.STREAM)
        leader = on.nodes[1].broker
        await leader.call(AppendBatches(topic, 0, acks=-1, batches=[batch("first")]))
        await on.alike(key)
        follower = on.nodes[2].replica(key)
        await until(lambda: follower.follower_log.replay is not None)
        if is_known_late:
            # The log is faster than the catalog.
            catalog = follower.context.catalog
            monkeypatch.setattr(catalog, "shares_of", lambda _topic_id: ())
        reader = await leader.call(OpenShare(topic, 0, "g", start=EARLIEST))
        await fill(on, 1, topic)
        got = await leader.call(Acquire(reader, 0, 5, bytes_max=1 << 20, lease_ms=60_000))
        await leader.call(Finish(reader, 0, claims(got)[:2]))
        await fill(on, 1, topic)
        await on.alike(key)
        await until(lambda: read_checkpoint(follower.log) is not None)
        checkpoint = read_checkpoint(follower.log)
        assert checkpoint is not None
        assert (reader.topic_id in checkpoint.unknown_shares) == is_known_late
        assert (reader.topic_id in checkpoint.shares) != is_known_late
        monkeypatch.undo()
        live = leases_of(on, 1, key, reader).cursor
        expected = (live.head, live.low_offset(), live.unseen, live.in_flight_most)
        await on.elect(key, 2)
        found = leases_of(on, 2, key, reader).cursor
        assert (found.head, found.low_offset(), found.unseen, found.in_flight_most) == expected
        new = on.nodes[2].broker
        assert await new.call(ShareLag(reader, 0)) == 79
        got = await new.call(Acquire(reader, 0, 100, bytes_max=1 << 20, lease_ms=60_000))
        assert len(got.picks) == 76


async def test_an_ordered_share_keeps_its_locks_when_its_leader_is_killed(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic(kind=Kind.STREAM)
        leader = on.nodes[1].broker
        reader = await leader.call(OpenShare(topic, 0, "g", start=LATEST, is_ordered=True))
        sent = keyed(("a", "a1"), ("b", "b1"), ("a", "a2"), ("c", "c1"), ("b", "b2"), ("c", "c2"))
        await leader.call(AppendBatches(topic, 0, acks=-1, batches=[sent]))
        take = Acquire(reader, 0, 2, bytes_max=1 << 20, lease_ms=600_000, group_max=1)
        first = await leader.call(take)
        assert values(first) == ["a1", "b1"]
        await leader.call(Prolong(reader, 0, [(claims(first)[1], 600_000)]))
        await until(lambda: all(on.nodes[n].catalog.find_id(reader.topic_id) for n in (2, 3)))
        await on.nodes[1].kill()
        await on.elect(key, 2)
        new = on.nodes[2].broker
        second = await new.call(Acquire(reader, 0, 10, bytes_max=1 << 20, lease_ms=600_000))
        assert values(second) == ["c1", "c2"], "the groups in flight stay locked"
        assert await new.call(Finish(reader, 0, claims(first))) == (None, None)
        third = await new.call(Acquire(reader, 0, 10, bytes_max=1 << 20, lease_ms=600_000))
        assert values(third) == ["a2", "b2"]


@pytest.mark.usefixtures("small_checkpoints")
async def test_a_bookmark_is_the_same_for_the_next_leader(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic(kind=Kind.STREAM)
        leader = on.nodes[1].broker
        await fill(on, 1, topic, 10)
        assert await leader.call(MoveBookmark(topic, 0, "fan out", 7)) == 7
        await fill(on, 1, topic)
        await on.alike(key)
        follower = on.nodes[2].replica(key)
        await until(lambda: read_checkpoint(follower.log) is not None)
        found = read_checkpoint(follower.log)
        assert found is not None
        assert found.bookmarks == {"fan out": 7}
        assert await leader.call(MoveBookmark(topic, 0, "fan out", 30)) == 30
        await on.nodes[1].kill()
        await on.elect(key, 2)
        assert await on.nodes[2].broker.call(ReadBookmark(topic, 0, "fan out")) == 30
        assert await on.nodes[2].broker.call(MoveBookmark(topic, 0, "fan out", 31)) == 31
        await on.elect(key, 3)
        assert await on.nodes[3].broker.call(ReadBookmark(topic, 0, "fan out")) == 31
