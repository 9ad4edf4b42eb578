"""The audit trail of a cluster: every node writes to the same partition, each a chain of its own
that goes on when the node comes back, whether it was stopped or killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.compat.conftest import sqs_client
from tests.compat.kafka.confluent import read_all
from tests.harness.cluster import PenstockCluster
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually

from penstock.wire.facts.audit import AuditRecord, breaks, decode

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(LACKING is not None, reason=str(LACKING)),
]

SECONDS_MAX = 200.0
NODES = ("n1", "n2", "n3")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockCluster]:
    with PenstockCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def create(cluster: PenstockCluster, node: int, *names: str) -> None:
    client = sqs_client(cluster.nodes[node].url)
    for name in names:
        client.create_queue(QueueName=name)
    client.close()


def trail(cluster: PenstockCluster) -> list[bytes]:
    return [message.value() for message in read_all(cluster.bootstrap, "__audit", 1)]


def noted(cluster: PenstockCluster, *names: str) -> list[bytes]:
    """The trail, once it tells of these queues."""
    found: list[bytes] = []

    def missing() -> set[str]:
        found[:] = trail(cluster)
        return set(names) - {record.resource.rpartition(":")[2] for record in map(decode, found)}

    try:
        eventually(lambda: not missing(), seconds=SECONDS_MAX, what="all noted")
    except AssertionError as error:
        why = [(name, node.readyz()) for name, node in cluster.nodes.items()]
        raise AssertionError(f"{error}: {missing()} missing; {why}") from None
    return found


def of_node(records: list[AuditRecord], node: str) -> list[AuditRecord]:
    return [record for record in records if record.node == node]


def test_each_node_goes_on_with_its_own_chain_after_stops_and_kills(
    cluster: PenstockCluster,
) -> None:
    for number in cluster.nodes:
        create(cluster, number, f"first-{number}")
    noted(cluster, "first-1", "first-2", "first-3")
    assert cluster.nodes[1].stop() == 0
    create(cluster, 2, "meanwhile-1", "meanwhile-2")
    create(cluster, 3, "meanwhile-3")
    noted(cluster, "meanwhile-1", "meanwhile-2", "meanwhile-3")
    cluster.nodes[1].start()
    cluster.nodes[2].kill()
    cluster.nodes[2].start()
    for number in cluster.nodes:
        create(cluster, number, f"last-{number}")
    values = noted(cluster, "last-1", "last-2", "last-3")
    records = [decode(value) for value in values]
    assert not list(breaks(values))
    for node in NODES:
        mine = of_node(records, node)
        assert [record.seq for record in mine] == list(range(1, len(mine) + 1))
    started = [sum(r.action == "penstock:Started" for r in of_node(records, n)) for n in NODES]
    stopped = [sum(r.action == "penstock:Stopped" for r in of_node(records, n)) for n in NODES]
    assert (started, stopped) == ([2, 2, 1], [1, 0, 0])


def test_what_is_noted_while_all_are_stopped_one_after_the_other_is_there_afterwards(
    cluster: PenstockCluster,
) -> None:
    """A node's last words go to a leader that may be about to move."""
    names = []
    for number in cluster.nodes:
        names += [f"restarted-{number}-{each}" for each in range(10)]
        create(cluster, number, *names[-10:])
        assert cluster.nodes[number].stop() == 0
        cluster.nodes[number].start()
    values = noted(cluster, *names)
    assert not list(breaks(values))
    for node in cluster.nodes.values():
        assert "last audit records lost at shutdown" not in node.stderr, node.stderr_tail()
        node.assert_no_traceback()
