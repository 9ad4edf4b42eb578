"""What there is to say about leaders, replicas and rights where there is one node without any."""

from collections.abc import Sequence

import msgspec
import pytest
from tests.unit.frontend_kafka_admin.stage import NODE_ID, Admin

from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.wire.kafka.generated.create_acls import AclCreation, CreateAclsRequest
from penstock.wire.kafka.generated.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from penstock.wire.kafka.generated.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from penstock.wire.kafka.generated.describe_acls import DescribeAclsRequest
from penstock.wire.kafka.generated.describe_cluster import DescribeClusterRequest
from penstock.wire.kafka.generated.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from penstock.wire.kafka.generated.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from penstock.wire.kafka.generated.elect_leaders import ElectLeadersRequest, TopicPartitions
from penstock.wire.kafka.generated.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)
from penstock.wire.kafka.generated.unregister_broker import UnregisterBrokerRequest


@pytest.mark.parametrize("version", range(3))
async def test_no_election_is_needed(admin: Admin, version: int) -> None:
    await admin.create("t", partitions=1)
    request = ElectLeadersRequest(
        topic_partitions=(TopicPartitions("t", (0, 1)), TopicPartitions("none", (0,)))
    )
    response = await admin.ask(43, request, version)
    assert response.error_code == ErrorCode.NONE
    codes = [
        [result.error_code for result in topic.partition_result]
        for topic in response.replica_election_results
    ]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [[ErrorCode.ELECTION_NOT_NEEDED, unknown], [unknown]]
    every = await admin.ask(43, ElectLeadersRequest(topic_partitions=None), version)
    assert every.replica_election_results == ()


async def test_an_unknown_kind_of_election_is_refused(admin: Admin) -> None:
    request = ElectLeadersRequest(election_type=2, topic_partitions=(TopicPartitions("t", (0,)),))
    response = await admin.ask(43, request)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    ((result,),) = [topic.partition_result for topic in response.replica_election_results]
    assert result.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(2))
async def test_partitions_can_be_told_to_be_where_they_are(admin: Admin, version: int) -> None:
    await admin.create("t", partitions=3)
    request = AlterPartitionReassignmentsRequest(
        topics=(
            ReassignableTopic(
                "t",
                (
                    ReassignablePartition(0, (NODE_ID,)),
                    ReassignablePartition(1, (NODE_ID + 1,)),
                    ReassignablePartition(2, None),
                    ReassignablePartition(3, (NODE_ID,)),
                ),
            ),
        )
    )
    response = await admin.ask(45, request, version)
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
    (topic,) = response.responses
    assert [partition.error_code for partition in topic.partitions] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


async def test_the_only_node_is_the_whole_cluster(admin: Admin) -> None:
    fenced = DescribeClusterRequest(endpoint_type=1, include_fenced_brokers=True)
    assert [one.broker_id for one in (await admin.ask(60, fenced)).brokers] == [NODE_ID]
    for node, code in (
        (NODE_ID, ErrorCode.INVALID_REQUEST),
        (NODE_ID + 1, ErrorCode.BROKER_ID_NOT_REGISTERED),
    ):
        answer = await admin.ask(64, UnregisterBrokerRequest(node))
        assert (answer.error_code, bool(answer.error_message)) == (code, True)
    metadata = DescribeQuorumRequestTopicData(
        "__cluster_metadata", [DescribeQuorumRequestPartitionData(0)]
    )
    for version in range(3):
        answer = await admin.ask(55, DescribeQuorumRequest([metadata]), version)
        (partition,) = answer.topics[0].partitions
        assert (partition.error_code, partition.leader_id) == (ErrorCode.NONE, NODE_ID)
        assert [one.replica_id for one in partition.current_voters] == [NODE_ID]
    assert [(one.node_id, one.listeners[0].port) for one in answer.nodes] == [(NODE_ID, 9092)]
    assert (answer.error_message, partition.error_message) == ("", "")  # not null, as in Kafka
    other = msgspec.structs.replace(metadata, topic_name="t")
    assert (await admin.ask(55, DescribeQuorumRequest([other]))).nodes == ()


async def test_partitions_are_added_to_this_node_only(admin: Admin) -> None:
    await admin.create("t", partitions=1)

    async def grown(*lists: Sequence[int]) -> int:
        given = [CreatePartitionsAssignment(one) for one in lists]
        asked = CreatePartitionsRequest([CreatePartitionsTopic("t", 2, given)])
        return int((await admin.ask(37, asked)).results[0].error_code)

    for wrong in ((), ((),), ((NODE_ID + 1,),), ((NODE_ID, NODE_ID),), ((NODE_ID,), (NODE_ID,))):
        assert await grown(*wrong) == ErrorCode.INVALID_REPLICA_ASSIGNMENT, wrong
    assert await grown((NODE_ID,)) == ErrorCode.NONE
    assert admin.stored("t").partition_count == 2
    assert admin.stored("t").configs == {}, "there is nothing to keep a manager from"


async def test_nothing_is_on_the_move(admin: Admin) -> None:
    response = await admin.ask(46, ListPartitionReassignmentsRequest())
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
    assert response.topics == ()


@pytest.mark.parametrize("version", range(1, 4))
async def test_access_rules_are_neither_shown_nor_taken(admin: Admin, version: int) -> None:
    shown = await admin.ask(29, DescribeAclsRequest(), version)
    assert (shown.error_code, shown.resources) == (ErrorCode.SECURITY_DISABLED, ())
    made = await admin.ask(30, CreateAclsRequest((AclCreation(), AclCreation())), version)
    assert [r.error_code for r in made.results] == [ErrorCode.SECURITY_DISABLED] * 2
    gone = await admin.ask(31, DeleteAclsRequest((DeleteAclsFilter(),)), version)
    assert [r.error_code for r in gone.filter_results] == [ErrorCode.SECURITY_DISABLED]


async def test_there_are_no_users(admin: Admin) -> None:
    every = await admin.ask(50, DescribeUserScramCredentialsRequest(None))
    assert (every.error_code, every.results) == (ErrorCode.NONE, ())
    some = await admin.ask(50, DescribeUserScramCredentialsRequest((UserName("kim"),)))
    assert [(r.user, r.error_code) for r in some.results] == [("kim", ErrorCode.RESOURCE_NOT_FOUND)]
