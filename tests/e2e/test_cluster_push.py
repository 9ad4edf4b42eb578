"""Ordered shares and bookmarks on three nodes: the next leader has them when the leader is killed.
No client opens them, so the test calls the nodes as another node would."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from tests.attacks.frames import Wire
from tests.e2e.test_cluster_kafka import made
from tests.e2e.test_cluster_shares import leaders
from tests.harness.cluster import ClusterNode, PenstockCluster
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually
from tests.unit.broker.queues.test_shares import claims, values

from penstock.calls.internal.client import InternalClient
from penstock.calls.internal.connection import NodeEnd
from penstock.calls.remote.broker import RemoteBroker
from penstock.model.calls import (
    Acquire,
    BrokerCall,
    Ends,
    Finish,
    MoveBookmark,
    OpenShare,
    R,
    ReadBookmark,
    ShareLag,
)
from penstock.model.errors import PenstockError
from penstock.model.levels import Levels
from penstock.model.ports import EARLIEST, Acquired
from penstock.model.topic import Kind, Topic
from penstock.wire.kafka.generated.metadata import MetadataRequestTopic

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.skipif(LACKING is not None, reason=str(LACKING)),
]

SECONDS_MAX = 120.0
ACCOUNT = "000000000000"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockCluster]:
    with PenstockCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def ask(node: ClusterNode, call: BrokerCall[R]) -> R:
    """One call to one node, as another node of the cluster makes it."""

    async def run() -> R:
        host, _, port = node.internal_address.rpartition(":")
        end = NodeEnd("tester", "penstock", levels=Levels())
        client = InternalClient(host, int(port), end)
        broker = RemoteBroker(
            lambda: client, moves=lambda _arn: (), find_share=lambda _source, _group: None
        )
        try:
            return await broker.call(call)
        finally:
            await broker.close()
            await client.close()

    return asyncio.run(run())


def new_topic(cluster: PenstockCluster, name: str) -> Topic:
    """A topic of one partition, with no more of its entry than a call names."""
    made(cluster, name, partitions=1)
    with Wire(cluster.nodes[1]) as wire:
        (found,) = wire.ask("Metadata", 12, topics=[MetadataRequestTopic(name=name)]).topics
    return Topic(
        topic_id=found.topic_id.hex(),
        account=ACCOUNT,
        region="us-east-1",
        name=name,
        kind=Kind.STREAM,
        partition_count=1,
        created_at_ms=0,
        modified_at_ms=0,
        receipt_key=b"",
    )


def produce(cluster: PenstockCluster, topic: str, *records: tuple[str, str]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
    for key, value in records:
        producer.produce(topic, key=key, value=value)
    assert producer.flush(SECONDS_MAX) == 0


def kill_leader(cluster: PenstockCluster, topic: str) -> tuple[ClusterNode, ClusterNode]:
    """Kill the leader of the only partition. Returns it, and the next leader."""
    old = leaders(cluster, topic)[0]
    cluster.nodes[old].kill()
    alive = next(node for node in cluster.nodes.values() if node.is_running)

    def leader() -> int:
        with Wire(alive) as wire:
            (found,) = wire.ask("Metadata", 12, topics=[MetadataRequestTopic(name=topic)]).topics
        return int(found.partitions[0].leader_id)

    eventually(lambda: leader() not in (old, -1), seconds=SECONDS_MAX, what="another node leads")
    return cluster.nodes[old], cluster.nodes[leader()]


def acquire(node: ClusterNode, share: Topic, *, count: int = 10, lease_ms: int) -> Acquired:
    call = Acquire(share, 0, count, bytes_max=1 << 20, lease_ms=lease_ms, group_max=1)
    found: list[Acquired] = []

    def is_answered() -> bool:
        try:
            found.append(ask(node, call))
        except PenstockError:
            return False  # it has not heard that it leads, or of the share
        return True

    eventually(is_answered, seconds=SECONDS_MAX, what=f"node {node.number} answers")
    return found[0]


def test_the_groups_of_an_ordered_share_stay_locked_when_its_leader_is_killed(
    cluster: PenstockCluster,
) -> None:
    topic = new_topic(cluster, "ordered")
    node = cluster.nodes[leaders(cluster, "ordered")[0]]
    share = ask(node, OpenShare(topic, 0, "~s", start=EARLIEST, is_ordered=True))
    assert share.is_fifo
    rows = [("a", "a1"), ("b", "b1"), ("a", "a2"), ("c", "c1"), ("b", "b2"), ("c", "c2")]
    produce(cluster, "ordered", *rows)
    first = acquire(node, share, count=2, lease_ms=600_000)
    assert values(first) == ["a1", "b1"]
    killed, new = kill_leader(cluster, "ordered")
    try:
        assert values(acquire(new, share, lease_ms=600_000)) == ["c1"]
        assert list(ask(new, Finish(share, 0, claims(first)[:1]))) == [None]
        assert values(acquire(new, share, lease_ms=600_000)) == ["a2"]
        assert ask(new, ShareLag(share, 0)) == 5
    finally:
        killed.start(seconds=60)


def test_a_bookmark_is_there_when_its_leader_is_killed(cluster: PenstockCluster) -> None:
    topic = new_topic(cluster, "marked")
    node = cluster.nodes[leaders(cluster, "marked")[0]]
    produce(cluster, "marked", *[("k", str(at)) for at in range(20)])
    assert ask(node, ReadBookmark(topic, 0, "reader")) == 0
    end = ask(node, Ends(topic, 0)).high_watermark
    assert ask(node, MoveBookmark(topic, 0, "reader", end - 3)) == end - 3
    killed, new = kill_leader(cluster, "marked")
    try:
        found: list[int] = []

        def is_read() -> bool:
            try:
                found.append(ask(new, ReadBookmark(topic, 0, "reader")))
            except PenstockError:
                return False
            return True

        eventually(is_read, seconds=SECONDS_MAX, what="the new leader answers")
        assert found == [end - 3]
        assert ask(new, MoveBookmark(topic, 0, "reader", 1)) == end - 3
        assert ask(new, MoveBookmark(topic, 0, "reader", end)) == end
    finally:
        killed.start(seconds=60)
