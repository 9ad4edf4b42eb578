"""One request for every API and every way of asking that needs a right of its own, with the
operation it needs, on what, and the code that says it was missing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.unit.frontend_kafka.rig import batch
from tests.unit.frontend_kafka_access.stage import kafka_arn, topic_arn

from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import FetchPartition as FetchAt
from penstock.wire.kafka.fetch import FetchRequest
from penstock.wire.kafka.fetch import FetchTopic as FetchFrom
from penstock.wire.kafka.generated import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_share_group_offsets,
    alter_user_scram_credentials,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_share_group_offsets,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_share_group_offsets,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
    streams_group_describe,
    streams_group_heartbeat,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    write_txn_markers,
)
from penstock.wire.kafka.primitives import ZERO_UUID
from penstock.wire.kafka.produce import ProducePartition, ProduceRequest, ProduceTopic

TOPIC, GROUP, TXN, CLUSTER = (
    topic_arn("t"),
    kafka_arn("group/g"),
    kafka_arn("txn/x"),
    kafka_arn("cluster"),
)
NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_TXN = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
NO_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
NO_ID = ErrorCode.UNKNOWN_TOPIC_ID

OF_TOPIC, OF_NODE, OF_LOGGER, OF_METRICS, OF_GROUP = 2, 4, 8, 16, 32


@dataclass(frozen=True)
class Ask:
    name: str
    key: int
    request: Callable[[bytes], Any]  # of the topic's id
    needs: str
    on: str
    code: ErrorCode
    version: int | None = None  # the newest
    also: tuple[str, ...] = ()  # rights that would do as well
    is_operators: bool = False  # the right is not enough: the caller is an operator


def _produce(topic_id: bytes, *, by_id: bool = True, txn: str | None = None) -> ProduceRequest:
    name, of = ("", topic_id) if by_id else ("t", ZERO_UUID)
    records = memoryview(batch(b"a"))
    return ProduceRequest(txn, -1, 1_000, [ProduceTopic(name, of, [ProducePartition(0, records)])])


def _fetch(topic_id: bytes, *, by_id: bool = True) -> FetchRequest:
    name, of = ("", topic_id) if by_id else ("t", ZERO_UUID)
    return FetchRequest(0, 1, [FetchFrom(name, of, [FetchAt(0, 0, 1_000)])])


def _add_partitions(_: bytes) -> Any:
    topics = [add_partitions_to_txn.AddPartitionsToTxnTopic("t", [0])]
    return add_partitions_to_txn.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=topics,
    )


def _add_partitions_for_others(_: bytes) -> Any:
    topics = [add_partitions_to_txn.AddPartitionsToTxnTopic("t", [0])]
    of = add_partitions_to_txn.AddPartitionsToTxnTransaction("x", 1, 0, False, topics)
    return add_partitions_to_txn.AddPartitionsToTxnRequest(transactions=[of])


def _txn_offset_commit(_: bytes) -> Any:
    partition = txn_offset_commit.TxnOffsetCommitRequestPartition(0, 1)
    topic = txn_offset_commit.TxnOffsetCommitRequestTopic("t", [partition])
    return txn_offset_commit.TxnOffsetCommitRequest(
        transactional_id="x", group_id="g", producer_id=1, producer_epoch=0, topics=[topic]
    )


def _offset_commit(topic_id: bytes) -> Any:
    partition = offset_commit.OffsetCommitRequestPartition(0, 1)
    topic = offset_commit.OffsetCommitRequestTopic("t", topic_id, [partition])
    return offset_commit.OffsetCommitRequest("g", -1, "", topics=[topic])


def _offset_fetch(topic_id: bytes) -> Any:
    topic = offset_fetch.OffsetFetchRequestTopics("t", topic_id, [0])
    return offset_fetch.OffsetFetchRequest(
        groups=[offset_fetch.OffsetFetchRequestGroup("g", topics=[topic])]
    )


def _offset_fetch_alone(_: bytes) -> Any:
    topic = offset_fetch.OffsetFetchRequestTopic("t", [0])
    return offset_fetch.OffsetFetchRequest(group_id="g", topics=[topic])


def _offset_delete(_: bytes) -> Any:
    partitions = [offset_delete.OffsetDeleteRequestPartition(0)]
    return offset_delete.OffsetDeleteRequest(
        "g", [offset_delete.OffsetDeleteRequestTopic("t", partitions)]
    )


def _find(key_type: int, key: str) -> Callable[[bytes], Any]:
    return lambda _: find_coordinator.FindCoordinatorRequest("", key_type, [key])


def _described(of: int, name: str) -> Callable[[bytes], Any]:
    resource = describe_configs.DescribeConfigsResource(of, name, None)
    return lambda _: describe_configs.DescribeConfigsRequest([resource])


def _altered(of: int, name: str) -> Callable[[bytes], Any]:
    resource = alter_configs.AlterConfigsResource(of, name, [])
    return lambda _: alter_configs.AlterConfigsRequest([resource])


def _incremental(of: int, name: str) -> Callable[[bytes], Any]:
    resource = incremental_alter_configs.AlterConfigsResource(of, name, [])
    return lambda _: incremental_alter_configs.IncrementalAlterConfigsRequest([resource])


def _quota(kind: str) -> Callable[[bytes], Any]:
    entity = alter_client_quotas.AlterClientQuotasRequestEntityData(kind, None)
    entry = alter_client_quotas.AlterClientQuotasRequestEntryData([entity], [])
    return lambda _: alter_client_quotas.AlterClientQuotasRequest([entry])


NAMES = {"all nodes": "", "loggers": "1", "metrics": "m"}


def _acl(_: bytes) -> Any:
    return create_acls.CreateAclsRequest(
        [create_acls.AclCreation(2, "t", 3, "User:ann", "*", 3, 3)]
    )


def _markers(_: bytes) -> Any:
    topic = write_txn_markers.WritableTxnMarkerTopic("t", [0])
    return write_txn_markers.WriteTxnMarkersRequest(
        [write_txn_markers.WritableTxnMarker(1, 0, False, [topic], 0)]
    )


def _share_fetch(topic_id: bytes) -> Any:
    topic = share_fetch.FetchTopic(topic_id, [share_fetch.FetchPartition(0)])
    return share_fetch.ShareFetchRequest("g", "m", 0, topics=[topic], max_records=1)


def _share_acknowledge(topic_id: bytes) -> Any:
    acked = [share_acknowledge.AcknowledgementBatch(0, 0, [1])]
    partition = share_acknowledge.AcknowledgePartition(0, acked)
    topic = share_acknowledge.AcknowledgeTopic(topic_id, [partition])
    return share_acknowledge.ShareAcknowledgeRequest("g", "m", 1, topics=[topic])


def _share_offsets(_: bytes) -> Any:
    topic = describe_share_group_offsets.DescribeShareGroupOffsetsRequestTopic("t", [0])
    group = describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup("g", [topic])
    return describe_share_group_offsets.DescribeShareGroupOffsetsRequest([group])


def _altered_share_offsets(_: bytes) -> Any:
    partition = alter_share_group_offsets.AlterShareGroupOffsetsRequestPartition(0, 0)
    topic = alter_share_group_offsets.AlterShareGroupOffsetsRequestTopic("t", [partition])
    return alter_share_group_offsets.AlterShareGroupOffsetsRequest("g", [topic])


def _deleted_share_offsets(_: bytes) -> Any:
    topic = delete_share_group_offsets.DeleteShareGroupOffsetsRequestTopic("t")
    return delete_share_group_offsets.DeleteShareGroupOffsetsRequest("g", [topic])


def _passwords(_: bytes) -> Any:
    upsertion = alter_user_scram_credentials.ScramCredentialUpsertion(
        "carl", 1, 4_096, b"s" * 16, b"p" * 32
    )
    return alter_user_scram_credentials.AlterUserScramCredentialsRequest(upsertions=[upsertion])


def _join(_: bytes) -> Any:
    protocol = join_group.JoinGroupRequestProtocol("range", b"")
    return join_group.JoinGroupRequest("g", 10_000, 10_000, "", None, "consumer", [protocol])


def _create(name: str) -> Callable[[bytes], Any]:
    return lambda _: create_topics.CreateTopicsRequest([create_topics.CreatableTopic(name, 1, 1)])


def _metadata(name: str | None) -> Callable[[bytes], Any]:
    def asked(topic_id: bytes) -> Any:
        of = ZERO_UUID if name is not None else topic_id
        return metadata.MetadataRequest([metadata.MetadataRequestTopic(of, name)], True)

    return asked


READ, WRITE, DESCRIBE = "kafka:Read", "kafka:Write", "kafka:Describe"
DELETE, ALTER, CREATE = "kafka:Delete", "kafka:Alter", "kafka:Create"
SEE_CONFIGS, SET_CONFIGS = "kafka:DescribeConfigs", "kafka:AlterConfigs"
ACT, NUMBER = "kafka:ClusterAction", "kafka:IdempotentWrite"
ANY_TOPIC = topic_arn("*")

ASKS = (
    Ask("Produce", 0, _produce, WRITE, TOPIC, NO_TOPIC),
    Ask("Produce by name", 0, lambda i: _produce(i, by_id=False), WRITE, TOPIC, NO_TOPIC, 12),
    Ask("Produce in a transaction", 0, lambda i: _produce(i, txn="x"), WRITE, TXN, NO_TXN),
    Ask("Fetch", 1, _fetch, READ, TOPIC, NO_TOPIC),
    Ask("Fetch by name", 1, lambda i: _fetch(i, by_id=False), READ, TOPIC, NO_TOPIC, 12),
    Ask(
        "ListOffsets",
        2,
        lambda _: list_offsets.ListOffsetsRequest(
            -1,
            0,
            [list_offsets.ListOffsetsTopic("t", [list_offsets.ListOffsetsPartition(0, -1, -1)])],
        ),
        DESCRIBE,
        TOPIC,
        NO_TOPIC,
    ),
    Ask("Metadata", 3, _metadata("t"), DESCRIBE, TOPIC, NO_TOPIC),
    Ask("Metadata by id", 3, _metadata(None), DESCRIBE, TOPIC, NO_ID),
    Ask("Metadata of a topic to be", 3, _metadata("new"), CREATE, "*", NO_TOPIC),
    Ask("OffsetCommit", 8, _offset_commit, READ, GROUP, NO_GROUP),
    Ask("OffsetCommit on a topic", 8, _offset_commit, READ, TOPIC, NO_TOPIC),
    Ask("OffsetCommit by name", 8, _offset_commit, READ, TOPIC, NO_TOPIC, 9),
    Ask("OffsetFetch", 9, _offset_fetch, DESCRIBE, GROUP, NO_GROUP),
    Ask("OffsetFetch of a topic", 9, _offset_fetch, DESCRIBE, TOPIC, NO_TOPIC),
    Ask("OffsetFetch by name", 9, _offset_fetch, DESCRIBE, TOPIC, NO_TOPIC, 9),
    Ask("OffsetFetch of one group", 9, _offset_fetch_alone, DESCRIBE, GROUP, NO_GROUP, 7),
    Ask("OffsetFetch in version 1", 9, _offset_fetch_alone, DESCRIBE, GROUP, NO_GROUP, 1),
    Ask("FindCoordinator of a group", 10, _find(0, "g"), DESCRIBE, GROUP, NO_GROUP),
    Ask("FindCoordinator of a transaction", 10, _find(1, "x"), DESCRIBE, TXN, NO_TXN),
    Ask("FindCoordinator of a share", 10, _find(2, "g:t:0"), ACT, CLUSTER, NO_CLUSTER),
    Ask(
        "FindCoordinator of one",
        10,
        lambda _: find_coordinator.FindCoordinatorRequest("g"),
        DESCRIBE,
        GROUP,
        NO_GROUP,
        3,
    ),
    Ask("JoinGroup", 11, _join, READ, GROUP, NO_GROUP),
    Ask("JoinGroup in version 0", 11, _join, READ, GROUP, NO_GROUP, 0),
    Ask("Heartbeat", 12, lambda _: heartbeat.HeartbeatRequest("g", 1, "m"), READ, GROUP, NO_GROUP),
    Ask(
        "LeaveGroup",
        13,
        lambda _: leave_group.LeaveGroupRequest("g", members=[leave_group.MemberIdentity("m")]),
        READ,
        GROUP,
        NO_GROUP,
    ),
    Ask(
        "SyncGroup",
        14,
        lambda _: sync_group.SyncGroupRequest("g", 1, "m", None, "consumer", "range"),
        READ,
        GROUP,
        NO_GROUP,
    ),
    Ask(
        "DescribeGroups",
        15,
        lambda _: describe_groups.DescribeGroupsRequest(["g"]),
        DESCRIBE,
        GROUP,
        NO_GROUP,
    ),
    Ask("CreateTopics", 19, _create("made"), CREATE, "*", NO_TOPIC),
    Ask("CreateTopics with configs told", 19, _create("made"), SEE_CONFIGS, ANY_TOPIC, NO_TOPIC),
    Ask(
        "DeleteTopics",
        20,
        lambda _: delete_topics.DeleteTopicsRequest(
            topics=[delete_topics.DeleteTopicState("t", ZERO_UUID)]
        ),
        DELETE,
        TOPIC,
        NO_TOPIC,
    ),
    Ask(
        "DeleteTopics by id",
        20,
        lambda i: delete_topics.DeleteTopicsRequest(
            topics=[delete_topics.DeleteTopicState(None, i)]
        ),
        DELETE,
        TOPIC,
        NO_TOPIC,
    ),
    Ask(
        "DeleteTopics by an id that is not known",
        20,
        lambda i: delete_topics.DeleteTopicsRequest(
            topics=[delete_topics.DeleteTopicState(None, i)]
        ),
        DESCRIBE,
        TOPIC,
        NO_ID,
    ),
    Ask(
        "DeleteRecords",
        21,
        lambda _: delete_records.DeleteRecordsRequest(
            [delete_records.DeleteRecordsTopic("t", [delete_records.DeleteRecordsPartition(0, 0)])]
        ),
        DELETE,
        TOPIC,
        NO_TOPIC,
    ),
    Ask(
        "InitProducerId in a transaction",
        22,
        lambda _: init_producer_id.InitProducerIdRequest("x", 1_000),
        WRITE,
        TXN,
        NO_TXN,
    ),
    Ask(
        "OffsetForLeaderEpoch",
        23,
        lambda _: offset_for_leader_epoch.OffsetForLeaderEpochRequest(
            topics=[
                offset_for_leader_epoch.OffsetForLeaderTopic(
                    "t", [offset_for_leader_epoch.OffsetForLeaderPartition(0, -1, 0)]
                )
            ]
        ),
        DESCRIBE,
        TOPIC,
        NO_TOPIC,
        also=(ACT,),
    ),
    Ask("AddPartitionsToTxn", 24, _add_partitions, WRITE, TXN, NO_TXN, 3),
    Ask("AddPartitionsToTxn of a topic", 24, _add_partitions, WRITE, TOPIC, NO_TOPIC, 3),
    Ask("AddPartitionsToTxn for others", 24, _add_partitions_for_others, ACT, CLUSTER, NO_CLUSTER),
    Ask(
        "AddOffsetsToTxn",
        25,
        lambda _: add_offsets_to_txn.AddOffsetsToTxnRequest("x", 1, 0, "g"),
        WRITE,
        TXN,
        NO_TXN,
    ),
    Ask(
        "AddOffsetsToTxn of a group",
        25,
        lambda _: add_offsets_to_txn.AddOffsetsToTxnRequest("x", 1, 0, "g"),
        READ,
        GROUP,
        NO_GROUP,
    ),
    Ask("EndTxn", 26, lambda _: end_txn.EndTxnRequest("x", 1, 0, True), WRITE, TXN, NO_TXN),
    Ask("WriteTxnMarkers", 27, _markers, ACT, CLUSTER, NO_CLUSTER, also=(ALTER,)),
    Ask("TxnOffsetCommit", 28, _txn_offset_commit, WRITE, TXN, NO_TXN),
    Ask("TxnOffsetCommit of a group", 28, _txn_offset_commit, READ, GROUP, NO_GROUP),
    Ask("TxnOffsetCommit of a topic", 28, _txn_offset_commit, READ, TOPIC, NO_TOPIC),
    Ask(
        "DescribeAcls",
        29,
        lambda _: describe_acls.DescribeAclsRequest(1, None, 1, None, None, 1, 1),
        DESCRIBE,
        CLUSTER,
        NO_CLUSTER,
    ),
    Ask("CreateAcls", 30, _acl, ALTER, CLUSTER, NO_CLUSTER),
    Ask(
        "DeleteAcls",
        31,
        lambda _: delete_acls.DeleteAclsRequest(
            [delete_acls.DeleteAclsFilter(1, None, 1, None, None, 1, 1)]
        ),
        ALTER,
        CLUSTER,
        NO_CLUSTER,
    ),
    Ask("DescribeConfigs of a topic", 32, _described(OF_TOPIC, "t"), SEE_CONFIGS, TOPIC, NO_TOPIC),
    Ask(
        "DescribeConfigs of the node",
        32,
        _described(OF_NODE, "1"),
        SEE_CONFIGS,
        CLUSTER,
        NO_CLUSTER,
    ),
    Ask("DescribeConfigs of a group", 32, _described(OF_GROUP, "g"), SEE_CONFIGS, GROUP, NO_GROUP),
    Ask("AlterConfigs of a topic", 33, _altered(OF_TOPIC, "t"), SET_CONFIGS, TOPIC, NO_TOPIC),
    Ask(
        "AlterConfigs of the node",
        33,
        _altered(OF_NODE, "1"),
        SET_CONFIGS,
        CLUSTER,
        NO_CLUSTER,
        is_operators=True,
    ),
    *(
        Ask(f"{name} of {of}", key, request, needs, CLUSTER, NO_CLUSTER, is_operators=True)
        for of, number in (("all nodes", OF_NODE), ("loggers", OF_LOGGER), ("metrics", OF_METRICS))
        for name, key, request, needs in (
            ("IncrementalAlterConfigs", 44, _incremental(number, NAMES[of]), SET_CONFIGS),
            ("DescribeConfigs", 32, _described(number, NAMES[of]), SEE_CONFIGS),
        )
        if (of, key) != ("all nodes", 32)
    ),
    Ask(
        "ListConfigResources",
        74,
        lambda _: list_config_resources.ListConfigResourcesRequest(),
        SEE_CONFIGS,
        CLUSTER,
        NO_CLUSTER,
    ),
    Ask(
        "DescribeClientQuotas",
        48,
        lambda _: describe_client_quotas.DescribeClientQuotasRequest(),
        SEE_CONFIGS,
        CLUSTER,
        NO_CLUSTER,
    ),
    Ask("AlterClientQuotas", 49, _quota("user"), SET_CONFIGS, CLUSTER, NO_CLUSTER),
    Ask(
        "AlterClientQuotas of an address",
        49,
        _quota("ip"),
        SET_CONFIGS,
        CLUSTER,
        NO_CLUSTER,
        is_operators=True,
    ),
    Ask("AlterConfigs of a group", 33, _altered(OF_GROUP, "g"), SET_CONFIGS, GROUP, NO_GROUP),
    Ask(
        "AlterReplicaLogDirs",
        34,
        lambda _: alter_replica_log_dirs.AlterReplicaLogDirsRequest(
            [
                alter_replica_log_dirs.AlterReplicaLogDir(
                    "data", [alter_replica_log_dirs.AlterReplicaLogDirTopic("t", [0])]
                )
            ]
        ),
        ALTER,
        CLUSTER,
        NO_CLUSTER,
    ),
    Ask(
        "DescribeQuorum",
        55,
        lambda _: describe_quorum.DescribeQuorumRequest(()),
        DESCRIBE,
        CLUSTER,
        NO_CLUSTER,
    ),
    Ask(
        "UpdateFeatures",
        57,
        lambda _: update_features.UpdateFeaturesRequest(),
        ALTER,
        CLUSTER,
        NO_CLUSTER,
    ),
    Ask(
        "UnregisterBroker",
        64,
        lambda _: unregister_broker.UnregisterBrokerRequest(99),
        ALTER,
        CLUSTER,
        NO_CLUSTER,
    ),
    Ask(
        "DescribeLogDirs",
        35,
        lambda _: describe_log_dirs.DescribeLogDirsRequest(None),
        DESCRIBE,
        CLUSTER,
        NO_CLUSTER,
    ),
    Ask(
        "CreatePartitions",
        37,
        lambda _: create_partitions.CreatePartitionsRequest(
            [create_partitions.CreatePartitionsTopic("t", 2, None)]
        ),
        ALTER,
        TOPIC,
        NO_TOPIC,
    ),
    Ask(
        "DeleteGroups",
        42,
        lambda _: delete_groups.DeleteGroupsRequest(["g"]),
        DELETE,
        GROUP,
        NO_GROUP,
    ),
    Ask(
        "ElectLeaders",
        43,
        lambda _: elect_leaders.ElectLeadersRequest(0, None),
        ALTER,
        CLUSTER,
        NO_CLUSTER,
    ),
    Ask(
        "IncrementalAlterConfigs of a topic",
        44,
        _incremental(OF_TOPIC, "t"),
        SET_CONFIGS,
        TOPIC,
        NO_TOPIC,
    ),
    Ask(
        "IncrementalAlterConfigs of a group",
        44,
        _incremental(OF_GROUP, "g"),
        SET_CONFIGS,
        GROUP,
        NO_GROUP,
    ),
    Ask(
        "AlterPartitionReassignments",
        45,
        lambda _: alter_partition_reassignments.AlterPartitionReassignmentsRequest(),
        ALTER,
        CLUSTER,
        NO_CLUSTER,
    ),
    Ask(
        "ListPartitionReassignments",
        46,
        lambda _: list_partition_reassignments.ListPartitionReassignmentsRequest(topics=None),
        DESCRIBE,
        CLUSTER,
        NO_CLUSTER,
    ),
    Ask("OffsetDelete", 47, _offset_delete, DELETE, GROUP, NO_GROUP),
    Ask(
        "DescribeUserScramCredentials",
        50,
        lambda _: describe_user_scram_credentials.DescribeUserScramCredentialsRequest(None),
        DESCRIBE,
        CLUSTER,
        NO_CLUSTER,
    ),
    Ask("AlterUserScramCredentials", 51, _passwords, ALTER, CLUSTER, NO_CLUSTER),
    Ask(
        "DescribeProducers",
        61,
        lambda _: describe_producers.DescribeProducersRequest(
            [describe_producers.TopicRequest("t", [0])]
        ),
        READ,
        TOPIC,
        NO_TOPIC,
    ),
    Ask(
        "DescribeTransactions",
        65,
        lambda _: describe_transactions.DescribeTransactionsRequest(["x"]),
        DESCRIBE,
        TXN,
        NO_TXN,
    ),
    Ask(
        "ConsumerGroupHeartbeat",
        68,
        lambda _: consumer_group_heartbeat.ConsumerGroupHeartbeatRequest("g", "m", 1),
        READ,
        GROUP,
        NO_GROUP,
    ),
    Ask(
        "ConsumerGroupHeartbeat about a topic",
        68,
        lambda _: consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            "g",
            "m",
            0,
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        ),
        DESCRIBE,
        TOPIC,
        NO_TOPIC,
    ),
    Ask(
        "ConsumerGroupDescribe",
        69,
        lambda _: consumer_group_describe.ConsumerGroupDescribeRequest(["g"]),
        DESCRIBE,
        GROUP,
        NO_GROUP,
    ),
    Ask(
        "DescribeTopicPartitions",
        75,
        lambda _: describe_topic_partitions.DescribeTopicPartitionsRequest(
            [describe_topic_partitions.TopicRequest("t")]
        ),
        DESCRIBE,
        TOPIC,
        NO_TOPIC,
    ),
    Ask(
        "ShareGroupHeartbeat",
        76,
        lambda _: share_group_heartbeat.ShareGroupHeartbeatRequest("g", "m", 1),
        READ,
        GROUP,
        NO_GROUP,
    ),
    Ask(
        "ShareGroupHeartbeat about a topic",
        76,
        lambda _: share_group_heartbeat.ShareGroupHeartbeatRequest(
            "g", "m", 0, subscribed_topic_names=["t"]
        ),
        DESCRIBE,
        TOPIC,
        NO_TOPIC,
    ),
    Ask(
        "ShareGroupDescribe",
        77,
        lambda _: share_group_describe.ShareGroupDescribeRequest(["g"]),
        DESCRIBE,
        GROUP,
        NO_GROUP,
    ),
    Ask("ShareFetch", 78, _share_fetch, READ, GROUP, NO_GROUP),
    Ask("ShareFetch of a topic", 78, _share_fetch, READ, TOPIC, NO_TOPIC),
    Ask("ShareAcknowledge", 79, _share_acknowledge, READ, GROUP, NO_GROUP),
    Ask(
        "StreamsGroupHeartbeat",
        88,
        lambda _: streams_group_heartbeat.StreamsGroupHeartbeatRequest("g", "m", 1),
        READ,
        GROUP,
        NO_GROUP,
    ),
    Ask(
        "StreamsGroupHeartbeat about a topic",
        88,
        lambda _: streams_group_heartbeat.StreamsGroupHeartbeatRequest(
            "g",
            "m",
            0,
            topology=streams_group_heartbeat.Topology(
                0, [streams_group_heartbeat.Subtopology("0", ["t"])]
            ),
        ),
        DESCRIBE,
        TOPIC,
        NO_TOPIC,
    ),
    Ask(
        "StreamsGroupDescribe",
        89,
        lambda _: streams_group_describe.StreamsGroupDescribeRequest(["g"]),
        DESCRIBE,
        GROUP,
        NO_GROUP,
    ),
    Ask("DescribeShareGroupOffsets", 90, _share_offsets, DESCRIBE, GROUP, NO_GROUP),
    Ask("AlterShareGroupOffsets", 91, _altered_share_offsets, READ, GROUP, NO_GROUP),
    Ask("DeleteShareGroupOffsets", 92, _deleted_share_offsets, DELETE, GROUP, NO_GROUP),
)
# On topics of a share group, once there is one.
SHARE_ASKS = (
    Ask("ShareAcknowledge of a topic", 79, _share_acknowledge, READ, TOPIC, NO_TOPIC),
    Ask("DescribeShareGroupOffsets of a topic", 90, _share_offsets, DESCRIBE, TOPIC, NO_TOPIC),
    Ask("AlterShareGroupOffsets of a topic", 91, _altered_share_offsets, READ, TOPIC, NO_TOPIC),
    Ask("DeleteShareGroupOffsets of a topic", 92, _deleted_share_offsets, READ, TOPIC, NO_TOPIC),
)
# Of a group that has offsets.
OFFSET_DELETE = Ask("OffsetDelete of a topic", 47, _offset_delete, READ, TOPIC, NO_TOPIC)
# Nobody needs a right for them: they come before anybody is known, filter what they list, or show
# bits.
FREE = frozenset((16, 17, 18, 36, 38, 39, 40, 41, 60, 66))
