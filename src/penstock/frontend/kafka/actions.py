"""The table of all Kafka APIs with the functions that handle their requests."""

from collections.abc import Mapping
from typing import Any, Final

from penstock.frontend.kafka import cluster, connection
from penstock.frontend.kafka.access import acls, credentials, quotas
from penstock.frontend.kafka.configs import requests
from penstock.frontend.kafka.context import Handler, KafkaCall
from penstock.frontend.kafka.errors import ApiError, error_response
from penstock.frontend.kafka.groups import (
    describe_groups,
    membership,
    offsets,
    streams_group_heartbeat,
)
from penstock.frontend.kafka.records import fetch, positions, produce
from penstock.frontend.kafka.shares import share_fetch, share_groups
from penstock.frontend.kafka.topics import changes, metadata
from penstock.frontend.kafka.transactions import administration, producers
from penstock.wire.kafka.apis import APIS, Api

_HANDLERS: Final[Mapping[str, Handler]] = {
    "Produce": produce.produce,
    "Fetch": fetch.run,
    "ListOffsets": positions.list_offsets,
    "Metadata": metadata.metadata,
    "OffsetCommit": offsets.commit,
    "OffsetFetch": offsets.fetch,
    "FindCoordinator": membership.find_coordinator,
    "JoinGroup": membership.join,
    "Heartbeat": membership.heartbeat,
    "LeaveGroup": membership.leave,
    "SyncGroup": membership.sync,
    "DescribeGroups": describe_groups.classic,
    "ListGroups": describe_groups.list_groups,
    "SaslHandshake": connection.handshake,
    "ApiVersions": connection.api_versions,
    "CreateTopics": changes.create_topics,
    "DeleteTopics": changes.delete_topics,
    "DeleteRecords": positions.delete_records,
    "InitProducerId": producers.init_producer_id,
    "OffsetForLeaderEpoch": positions.epoch_ends,
    "AddPartitionsToTxn": producers.add_partitions,
    "AddOffsetsToTxn": producers.add_offsets,
    "EndTxn": producers.end_transaction,
    "WriteTxnMarkers": administration.write_markers,
    "TxnOffsetCommit": offsets.commit_in_transaction,
    "DescribeAcls": acls.describe,
    "CreateAcls": acls.create,
    "DeleteAcls": acls.delete,
    "DescribeConfigs": requests.describe,
    "AlterConfigs": requests.replace,
    "AlterReplicaLogDirs": cluster.alter_log_dirs,
    "DescribeLogDirs": cluster.log_dirs,
    "SaslAuthenticate": connection.authenticate,
    "CreatePartitions": changes.add_partitions,
    "CreateDelegationToken": credentials.create_token,
    "RenewDelegationToken": credentials.renew_token,
    "ExpireDelegationToken": credentials.expire_token,
    "DescribeDelegationToken": credentials.describe_tokens,
    "DeleteGroups": describe_groups.delete_groups,
    "ElectLeaders": cluster.elect,
    "IncrementalAlterConfigs": requests.change,
    "AlterPartitionReassignments": cluster.reassign,
    "ListPartitionReassignments": cluster.list_moves,
    "OffsetDelete": offsets.delete,
    "DescribeClientQuotas": quotas.describe,
    "AlterClientQuotas": quotas.alter,
    "DescribeUserScramCredentials": credentials.describe_scram,
    "AlterUserScramCredentials": credentials.alter_scram,
    "DescribeQuorum": cluster.describe_quorum,
    "UpdateFeatures": cluster.update,
    "DescribeCluster": cluster.describe_cluster,
    "DescribeProducers": administration.producers,
    "UnregisterBroker": cluster.unregister,
    "DescribeTransactions": administration.describe,
    "ListTransactions": administration.list_transactions,
    "ConsumerGroupHeartbeat": membership.consumer_beat,
    "ConsumerGroupDescribe": describe_groups.consumer,
    "ListConfigResources": requests.list_resources,
    "DescribeTopicPartitions": metadata.describe,
    "ShareGroupHeartbeat": membership.share_beat,
    "ShareGroupDescribe": describe_groups.share,
    "ShareFetch": share_fetch.share_fetch,
    "ShareAcknowledge": share_fetch.share_acknowledge,
    "StreamsGroupHeartbeat": streams_group_heartbeat.run,
    "StreamsGroupDescribe": describe_groups.streams,
    "DescribeShareGroupOffsets": share_groups.describe,
    "AlterShareGroupOffsets": share_groups.alter_offsets,
    "DeleteShareGroupOffsets": share_groups.delete_offsets,
}
_REPLY_BY_PARTITION: Final = frozenset(("Produce", "Fetch", "ShareFetch"))


def _replying(api: Api, handler: Handler) -> Handler:
    """Return a handler that calls ``handler`` and turns an ApiError into an error reply."""

    async def run(call: KafkaCall, request: Any) -> Any:
        try:
            return await handler(call, request)
        except ApiError as error:
            return error_response(api, error.code, error.message)

    return handler if api.name in _REPLY_BY_PARTITION else run


ACTIONS: Final[Mapping[int, Handler]] = {
    api.key: _replying(api, _HANDLERS[api.name]) for api in APIS.values()
}
