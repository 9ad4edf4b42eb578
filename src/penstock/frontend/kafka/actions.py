"""The handlers of all APIs that are served, by key."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from penstock.frontend.kafka.access import (
    acls,
    delegation_tokens,
    quota_requests,
    scram_credentials,
)
from penstock.frontend.kafka.cluster import (
    describe_cluster,
    elect_leaders,
    features,
    log_dirs,
    reassignments,
)
from penstock.frontend.kafka.configs import alter_configs, describe_configs, list_config_resources
from penstock.frontend.kafka.connection import api_versions, sasl
from penstock.frontend.kafka.context import Handler, KafkaCall
from penstock.frontend.kafka.errors import ApiError, error_response
from penstock.frontend.kafka.groups import (
    classic_membership,
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeats,
    offset_commit,
    offset_delete,
    offset_fetch,
    streams_group_heartbeat,
)
from penstock.frontend.kafka.records import (
    delete_records,
    fetch,
    list_offsets,
    offset_for_leader_epoch,
    produce,
)
from penstock.frontend.kafka.shares import share_acknowledge, share_fetch, share_group_offsets
from penstock.frontend.kafka.topics import (
    create_partitions,
    create_topics,
    delete_topics,
    describe_topic_partitions,
    metadata,
)
from penstock.frontend.kafka.transactions import (
    add_partitions_to_txn,
    describe_producers,
    describe_transactions,
    producer_transactions,
    write_txn_markers,
)
from penstock.wire.kafka.apis import APIS, Api

_HANDLERS: Final[Mapping[str, Handler]] = {
    "Produce": produce.run,
    "Fetch": fetch.run,
    "ListOffsets": list_offsets.run,
    "Metadata": metadata.run,
    "OffsetCommit": offset_commit.run,
    "OffsetFetch": offset_fetch.run,
    "FindCoordinator": find_coordinator.run,
    "JoinGroup": classic_membership.join,
    "Heartbeat": classic_membership.heartbeat,
    "LeaveGroup": classic_membership.leave,
    "SyncGroup": classic_membership.sync,
    "DescribeGroups": describe_groups.classic,
    "ListGroups": describe_groups.list_groups,
    "SaslHandshake": sasl.handshake,
    "ApiVersions": api_versions.run,
    "CreateTopics": create_topics.run,
    "DeleteTopics": delete_topics.run,
    "DeleteRecords": delete_records.run,
    "InitProducerId": producer_transactions.init_producer_id,
    "OffsetForLeaderEpoch": offset_for_leader_epoch.run,
    "AddPartitionsToTxn": add_partitions_to_txn.run,
    "AddOffsetsToTxn": producer_transactions.add_offsets,
    "EndTxn": producer_transactions.end,
    "WriteTxnMarkers": write_txn_markers.run,
    "TxnOffsetCommit": offset_commit.run_in_transaction,
    "DescribeAcls": acls.describe,
    "CreateAcls": acls.create,
    "DeleteAcls": acls.delete,
    "DescribeConfigs": describe_configs.run,
    "AlterConfigs": alter_configs.replace,
    "AlterReplicaLogDirs": log_dirs.alter,
    "DescribeLogDirs": log_dirs.describe,
    "SaslAuthenticate": sasl.authenticate,
    "CreatePartitions": create_partitions.run,
    "CreateDelegationToken": delegation_tokens.create,
    "RenewDelegationToken": delegation_tokens.renew,
    "ExpireDelegationToken": delegation_tokens.expire,
    "DescribeDelegationToken": delegation_tokens.describe,
    "DeleteGroups": delete_groups.run,
    "ElectLeaders": elect_leaders.run,
    "IncrementalAlterConfigs": alter_configs.change,
    "AlterPartitionReassignments": reassignments.alter,
    "ListPartitionReassignments": reassignments.list_moves,
    "OffsetDelete": offset_delete.run,
    "DescribeClientQuotas": quota_requests.describe,
    "AlterClientQuotas": quota_requests.alter,
    "DescribeUserScramCredentials": scram_credentials.describe,
    "AlterUserScramCredentials": scram_credentials.alter,
    "DescribeQuorum": describe_cluster.describe_quorum,
    "UpdateFeatures": features.update,
    "DescribeCluster": describe_cluster.describe,
    "DescribeProducers": describe_producers.run,
    "UnregisterBroker": describe_cluster.unregister,
    "DescribeTransactions": describe_transactions.describe,
    "ListTransactions": describe_transactions.list_transactions,
    "ConsumerGroupHeartbeat": heartbeats.consumer,
    "ConsumerGroupDescribe": describe_groups.consumer,
    "ListConfigResources": list_config_resources.run,
    "DescribeTopicPartitions": describe_topic_partitions.run,
    "ShareGroupHeartbeat": heartbeats.share,
    "ShareGroupDescribe": describe_groups.share,
    "ShareFetch": share_fetch.run,
    "ShareAcknowledge": share_acknowledge.run,
    "StreamsGroupHeartbeat": streams_group_heartbeat.run,
    "StreamsGroupDescribe": describe_groups.streams,
    "DescribeShareGroupOffsets": share_group_offsets.describe,
    "AlterShareGroupOffsets": share_group_offsets.alter,
    "DeleteShareGroupOffsets": share_group_offsets.delete,
}
_REPLY_BY_PARTITION: Final = frozenset(("Produce", "Fetch", "ShareFetch"))


def _replying(api: Api, handler: Handler) -> Handler:
    """Return the handler with a reply for each ApiError that it raises."""

    async def run(call: KafkaCall, request: Any) -> Any:
        try:
            return await handler(call, request)
        except ApiError as error:
            return error_response(api, error.code, error.message)

    return handler if api.name in _REPLY_BY_PARTITION else run


ACTIONS: Final[Mapping[int, Handler]] = MappingProxyType(
    {api.key: _replying(api, _HANDLERS[api.name]) for api in APIS.values()}
)
