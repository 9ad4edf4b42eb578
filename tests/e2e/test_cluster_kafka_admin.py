"""Three nodes as processes: what Kafka's admin requests move and elect, sent to each node in turn
and compared with what Metadata and DescribeLogDirs of every node say afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.harness.cluster import PenstockCluster
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually

from penstock.net.kafka_client.node import Dialling, KafkaNode, Security
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import alter_partition_reassignments as alter
from penstock.wire.kafka.generated import alter_replica_log_dirs as log_dirs
from penstock.wire.kafka.generated.add_offsets_to_txn import AddOffsetsToTxnRequest
from penstock.wire.kafka.generated.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from penstock.wire.kafka.generated.describe_cluster import DescribeClusterRequest
from penstock.wire.kafka.generated.describe_log_dirs import DescribeLogDirsRequest
from penstock.wire.kafka.generated.elect_leaders import ElectLeadersRequest, TopicPartitions
from penstock.wire.kafka.generated.end_txn import EndTxnRequest
from penstock.wire.kafka.generated.heartbeat import HeartbeatRequest
from penstock.wire.kafka.generated.init_producer_id import InitProducerIdRequest
from penstock.wire.kafka.generated.join_group import JoinGroupRequest
from penstock.wire.kafka.generated.leave_group import LeaveGroupRequest, MemberIdentity
from penstock.wire.kafka.generated.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)
from penstock.wire.kafka.generated.metadata import MetadataRequest, MetadataRequestTopic
from penstock.wire.kafka.generated.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from penstock.wire.kafka.generated.sync_group import SyncGroupRequest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.skipif(LACKING is not None, reason=str(LACKING)),
]
SECONDS_MAX = 200.0
PREFERRED, UNCLEAN = 0, 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockCluster]:
    with PenstockCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def ask(cluster: PenstockCluster, at: int, key: int, request: Any) -> Any:
    host, _, port = cluster.nodes[at].kafka.rpartition(":")
    node = KafkaNode(host, int(port), Dialling(Security(), None, SECONDS_MAX, "admin"))
    try:
        return node.call(key, request)
    finally:
        node.close()


def create(
    cluster: PenstockCluster, at: int, name: str, lists: Sequence[Sequence[int]], **configs: str
) -> int:
    wanted = CreatableTopic(
        name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[CreatableReplicaAssignment(*pair) for pair in enumerate(lists)],
        configs=[
            CreatableTopicConfig(key.replace("_", "."), text) for key, text in configs.items()
        ],
    )
    (result,) = ask(cluster, at, 19, CreateTopicsRequest([wanted])).topics
    return int(result.error_code)


def partitions(cluster: PenstockCluster, at: int, name: str) -> dict[int, Any]:
    asked = MetadataRequest([MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    (topic,) = ask(cluster, at, 3, asked).topics
    return {one.partition_index: one for one in topic.partitions}


def sizes(cluster: PenstockCluster, at: int, name: str) -> dict[int, tuple[int, int]]:
    """Size and lag of the replicas on a node."""
    (result,) = ask(cluster, at, 35, DescribeLogDirsRequest(None)).results
    assert 0 < result.usable_bytes <= result.total_bytes
    return {
        one.partition_index: (one.partition_size, one.offset_lag)
        for topic in result.topics
        if topic.name == name
        for one in topic.partitions
    }


def is_placed(
    cluster: PenstockCluster, name: str, lists: Sequence[Sequence[int]], *, nodes: Sequence[int]
) -> bool:
    """Metadata of every node, and the folders of the nodes, agree with the lists."""
    held = {
        node: {index for index, replicas in enumerate(lists) if node in replicas} for node in nodes
    }
    return all(
        [list(one.replica_nodes) for one in partitions(cluster, node, name).values()]
        == [list(replicas) for replicas in lists]
        and all(
            one.leader_id == one.replica_nodes[0]
            for one in partitions(cluster, node, name).values()
        )
        and set(sizes(cluster, node, name)) == held[node]
        for node in nodes
    )


def produce(cluster: PenstockCluster, name: str, index: int, count: int) -> None:
    failures: list[str] = []

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "message.timeout.ms": 60_000})
    for number in range(count):
        producer.produce(name, b"v" * 500, partition=index, key=str(number), on_delivery=delivered)
    assert producer.flush(120) == 0
    assert not failures


def reassign(
    cluster: PenstockCluster, at: int, name: str, *lists: Sequence[int] | None
) -> list[int]:
    asked = alter.AlterPartitionReassignmentsRequest(
        topics=[
            alter.ReassignableTopic(
                name, [alter.ReassignablePartition(*pair) for pair in enumerate(lists)]
            )
        ]
    )
    (topic,) = ask(cluster, at, 45, asked).responses
    return [int(one.error_code) for one in topic.partitions]


def elect(cluster: PenstockCluster, at: int, kind: int, name: str) -> int:
    asked = ElectLeadersRequest(kind, [TopicPartitions(name, [0])])
    (topic,) = ask(cluster, at, 43, asked).replica_election_results
    (result,) = topic.partition_result
    return int(result.error_code)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_assigned_replicas_hold_the_records_and_move_on_request(
    cluster: PenstockCluster, at: int
) -> None:
    name, nodes = f"moved-{at}", (1, 2, 3)
    lists: list[list[int]] = [[2, 3], [3, 1], [1]]
    assert create(cluster, at, name, [[2, 3, 1], [3, 1]]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert create(cluster, at, name, [[2, 3], [3, 1], [1, 2]]) == ErrorCode.NONE
    lists = [[2, 3], [3, 1], [1, 2]]
    eventually(
        lambda: is_placed(cluster, name, lists, nodes=nodes), seconds=120, what="the topic is there"
    )
    produce(cluster, name, 0, 100)
    eventually(
        lambda: all(sizes(cluster, node, name)[0] > (50_000, -1) for node in (2, 3)),
        seconds=120,
        what="both replicas have the records",
    )
    assert sizes(cluster, 3, name)[0][1] == 0, "the follower is not behind"
    lists = [[1, 3], [1, 3], [3, 1, 2]]
    assert reassign(cluster, at, name, *lists) == [0, 0, 0]
    eventually(
        lambda: is_placed(cluster, name, lists, nodes=nodes), seconds=60, what="the moves ended"
    )
    assert sizes(cluster, 1, name)[0][0] > 50_000
    for node in nodes:
        assert ask(cluster, node, 46, ListPartitionReassignmentsRequest()).topics == ()
    assert reassign(cluster, at, name, None) == [ErrorCode.NO_REASSIGNMENT_IN_PROGRESS]
    assert elect(cluster, at, PREFERRED, name) == ErrorCode.ELECTION_NOT_NEEDED


@pytest.mark.parametrize("at", [1, 2, 3])
def test_one_replica_stays_on_one_node(cluster: PenstockCluster, at: int) -> None:
    """Although the other nodes have fewer replicas: the manager does not move what was assigned."""
    name = f"single-{at}"
    assert create(cluster, at, name, [[1], [1], [1]]) == ErrorCode.NONE
    eventually(
        lambda: is_placed(cluster, name, [[1], [1], [1]], nodes=(1, 2, 3)),
        seconds=90,
        what="the topic is on node 1",
    )
    produce(cluster, name, 0, 1)


def test_folders_can_only_stay_what_they_are(cluster: PenstockCluster) -> None:
    assert create(cluster, 1, "folders", [[2]]) == ErrorCode.NONE
    eventually(
        lambda: is_placed(cluster, "folders", [[2]], nodes=(1, 2, 3)), seconds=120, what="is there"
    )

    def altered(at: int, path: str, index: int = 0) -> int:
        topics = [log_dirs.AlterReplicaLogDirTopic("folders", [index])]
        asked = log_dirs.AlterReplicaLogDirsRequest([log_dirs.AlterReplicaLogDir(path, topics)])
        (result,) = ask(cluster, at, 34, asked).results
        return int(result.partitions[0].error_code)

    (own,) = ask(cluster, 2, 35, DescribeLogDirsRequest(None)).results
    assert altered(2, own.log_dir) == ErrorCode.NONE
    assert altered(2, own.log_dir, 1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert altered(2, "/elsewhere") == ErrorCode.LOG_DIR_NOT_FOUND
    (other,) = ask(cluster, 1, 35, DescribeLogDirsRequest(None)).results
    assert altered(1, other.log_dir) == ErrorCode.REPLICA_NOT_AVAILABLE


@pytest.mark.parametrize("at", [1, 2, 3])
def test_any_node_rejects_members_of_a_group_without_an_id(
    cluster: PenstockCluster, at: int
) -> None:
    for key, request in (
        (11, JoinGroupRequest(protocol_type="consumer")),
        (12, HeartbeatRequest(member_id="m")),
        (13, LeaveGroupRequest(members=[MemberIdentity("m")])),
        (14, SyncGroupRequest(member_id="m", protocol_type="consumer", protocol_name="range")),
    ):
        assert ask(cluster, at, key, request).error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("at", [1, 2, 3])
def test_any_node_rejects_transactions_without_an_id(cluster: PenstockCluster, at: int) -> None:
    init = InitProducerIdRequest("", 60_000)
    assert ask(cluster, at, 22, init).error_code == ErrorCode.INVALID_REQUEST
    end = EndTxnRequest("", 1, 0, True)
    assert ask(cluster, at, 26, end).error_code == ErrorCode.INVALID_REQUEST
    offsets = AddOffsetsToTxnRequest("", 1, 0, "g")
    assert ask(cluster, at, 25, offsets).error_code == ErrorCode.INVALID_REQUEST


def test_an_epoch_that_never_was_has_no_end(cluster: PenstockCluster) -> None:
    assert create(cluster, 1, "epochs", [[2, 3]]) == ErrorCode.NONE
    asked = OffsetForLeaderTopic("epochs", [OffsetForLeaderPartition(0, -1, 99)])

    def reply() -> tuple[int, int, int] | None:
        found = ask(cluster, 2, 23, OffsetForLeaderEpochRequest(-1, [asked]))
        (one,) = found.topics[0].partitions
        is_led = one.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER
        return (one.error_code, one.leader_epoch, one.end_offset) if is_led else None

    assert eventually(reply, seconds=SECONDS_MAX, what="node 2 leads") == (ErrorCode.NONE, -1, -1)


def test_leaders_are_elected_when_nodes_stop_and_return(cluster: PenstockCluster) -> None:
    assert create(cluster, 1, "led", [[2, 3, 1]]) == ErrorCode.NONE
    assert create(cluster, 1, "rare", [[3, 2]], min_insync_replicas="1") == ErrorCode.NONE
    assert create(cluster, 1, "alone", [[3]]) == ErrorCode.NONE
    produce(cluster, "led", 0, 1)
    produce(cluster, "rare", 0, 1)
    cluster.nodes[2].kill()
    eventually(
        lambda: all(partitions(cluster, at, "led")[0].leader_id == 3 for at in (1, 3)),
        seconds=SECONDS_MAX,
        what="node 3 leads",
    )
    for at in (1, 3):
        assert elect(cluster, at, PREFERRED, "led") == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        assert elect(cluster, at, UNCLEAN, "led") == ErrorCode.ELECTION_NOT_NEEDED
        asked = DescribeClusterRequest(endpoint_type=1, include_fenced_brokers=True)
        brokers = {one.broker_id: one for one in ask(cluster, at, 60, asked).brokers}
        assert [(node, brokers[node].is_fenced) for node in sorted(brokers)] == [
            (1, False), (2, True), (3, False)
        ]  # fmt: skip
        assert f"{brokers[2].host}:{brokers[2].port}" == cluster.nodes[2].kafka
    eventually(
        lambda: list(partitions(cluster, 1, "rare")[0].isr_nodes) == [3],
        seconds=SECONDS_MAX,
        what="node 3 alone is in sync",
    )
    produce(cluster, "rare", 0, 1)
    cluster.nodes[3].kill()
    eventually(
        lambda: partitions(cluster, 1, "alone")[0].leader_id == -1, seconds=60, what="no leader"
    )
    assert elect(cluster, 1, UNCLEAN, "alone") == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    cluster.nodes[2].start()
    eventually(
        lambda: partitions(cluster, 2, "rare")[0].leader_id == -1,
        seconds=SECONDS_MAX,
        what="nobody leads, because node 2 lacks a record",
    )
    assert elect(cluster, 2, UNCLEAN, "rare") == ErrorCode.NONE
    eventually(
        lambda: all(partitions(cluster, at, "rare")[0].leader_id == 2 for at in (1, 2)),
        seconds=SECONDS_MAX,
        what="node 2 leads",
    )
    cluster.nodes[3].start()
    for at in (1, 2, 3):
        assert elect(cluster, at, PREFERRED, "led") in (0, ErrorCode.ELECTION_NOT_NEEDED), at
    eventually(
        lambda: partitions(cluster, 1, "led")[0].leader_id == 2, seconds=60, what="node 2 leads"
    )
