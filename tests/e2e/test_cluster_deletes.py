"""DeleteRecords on three nodes as processes: no node shows a deleted record, whatever is killed
after the reply, and the end offset stays where it is."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.e2e.test_cluster_kafka import Produced, consumed, made
from tests.harness.cluster import PenstockCluster
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.skipif(LACKING is not None, reason=str(LACKING)),
]

SECONDS_MAX = 200.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockCluster]:
    with PenstockCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def ends(bootstrap: str, topic: str) -> tuple[int, int]:
    """Earliest and latest, as ListOffsets tells them."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)
        return low, high
    finally:
        consumer.close()


def are_ends(bootstrap: str, topic: str, expected: tuple[int, int]) -> bool:
    """Also while a leader is being elected; any other offsets are wrong at once."""
    try:
        found = ends(bootstrap, topic)
    except KafkaException:
        return False
    assert found == expected
    return True


def deleted(bootstrap: str, topic: str, before: int) -> int:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [future] = admin.delete_records([TopicPartition(topic, 0, before)], request_timeout=20).values()
    found: int = future.result(30).low_watermark
    return found


def filled(cluster: PenstockCluster, topic: str, count: int = 30) -> None:
    made(cluster, topic, partitions=1)
    produced = Produced(cluster, topic)
    produced.send(count)
    assert not produced.failed


def leader_of(cluster: PenstockCluster, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    leader: int = admin.list_topics(timeout=60).topics[topic].partitions[0].leader
    return leader


def test_no_node_shows_a_deleted_record_whatever_is_killed(cluster: PenstockCluster) -> None:
    filled(cluster, "killed-after")
    for before, start in ((7, 7), (8, 8), (20, 20)):
        assert deleted(cluster.bootstrap, "killed-after", before) == start
        for node in cluster.nodes.values():
            assert ends(node.kafka, "killed-after") == (start, 30)
        victim = leader_of(cluster, "killed-after")
        cluster.nodes[victim].kill()
        check = partial(are_ends, cluster.bootstrap, "killed-after", (start, 30))
        eventually(check, seconds=SECONDS_MAX, what="the next leader tells the same")
        found = consumed(cluster, "killed-after", f"after-{start}", count=30 - start)
        assert [int(value) for value in found] == list(range(start + 1, 31))
        cluster.nodes[victim].start()
    for node in cluster.nodes.values():
        node.kill()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda node: node.start(seconds=SECONDS_MAX), cluster.nodes.values()))
    eventually(
        partial(are_ends, cluster.bootstrap, "killed-after", (20, 30)),
        seconds=SECONDS_MAX,
        what="all nodes come back with it",
    )
    assert deleted(cluster.bootstrap, "killed-after", -1) == 30
    assert ends(cluster.bootstrap, "killed-after") == (30, 30)
