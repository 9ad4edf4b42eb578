"""Requests about nodes: DescribeCluster, DescribeQuorum, UnregisterBroker, DescribeLogDirs,
AlterReplicaLogDirs and UpdateFeatures. ApiVersions also returns the features that are defined here.

The level of a feature says which form of a protocol clients may use. Other features of Apache Kafka
are not implemented: ``metadata.version``, ``kraft.version`` and
``eligible.leader.replicas.version`` are about how its nodes store their metadata."""

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.frontend.kafka import permissions
from penstock.frontend.kafka.checks import check_cluster, find_name, has_partition, topics_chosen
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import API_ERRORS, ApiError, api_error
from penstock.model.errors import NotFound
from penstock.model.levels import STREAMS_GROUPS
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import alter_replica_log_dirs as alter_wire
from penstock.wire.kafka.generated import describe_cluster as cluster_wire
from penstock.wire.kafka.generated import describe_log_dirs as describe_wire
from penstock.wire.kafka.generated import describe_quorum as quorum_wire
from penstock.wire.kafka.generated import unregister_broker as unregister_wire
from penstock.wire.kafka.generated import update_features as features_wire

_BROKERS = 1
_CONTROLLERS = 2
METADATA_TOPIC = "__cluster_metadata"
_STREAMS: Final = "streams.version"


async def describe_cluster(call: KafkaCall, request: cluster_wire.Request) -> cluster_wire.Response:
    context = call.context
    if request.endpoint_type == _CONTROLLERS:
        raise ApiError(ErrorCode.MISMATCHED_ENDPOINT_TYPE)
    if request.endpoint_type != _BROKERS:
        raise ApiError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)
    brokers = [cluster_wire.DescribeClusterBroker(*broker) for broker in context.brokers.all()]
    if request.include_fenced_brokers:
        stopped = await context.cluster.stopped()
        brokers += [
            cluster_wire.DescribeClusterBroker(*broker, is_fenced=True) for broker in stopped
        ]
    with_operations = request.include_cluster_authorized_operations
    return cluster_wire.Response(
        cluster_id=context.config.cluster_id,
        controller_id=context.brokers.controller,
        brokers=brokers,
        cluster_authorized_operations=permissions.cluster_operations(call)
        if with_operations
        else permissions.UNASKED,
    )


async def describe_quorum(call: KafkaCall, request: quorum_wire.Request) -> quorum_wire.Response:
    """Report the cluster's manager as the leader of Kafka's metadata log. There is no such log: the
    revision of the metadata store is shown as its end offset, and all nodes as voters."""
    check_cluster(call, permissions.Operation.DESCRIBE)
    quorum, code = call.context.cluster.quorum(), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    reply = quorum_wire.DescribeQuorumResponsePartitionData
    metadata = reply(
        partition_index=0,
        error_message="",
        leader_id=quorum.leader,
        leader_epoch=quorum.epoch,
        high_watermark=quorum.revision,
        current_voters=[
            quorum_wire.ReplicaState(replica_id=node, log_end_offset=quorum.revision)
            for node in quorum.nodes
        ],
    )
    topics = [
        quorum_wire.DescribeQuorumResponseTopicData(
            topic.topic_name,
            [
                metadata
                if (topic.topic_name, one.partition_index) == (METADATA_TOPIC, 0)
                else reply(one.partition_index, code, code.message)
                async for one in call.slices.each(topic.partitions)
            ],
        )
        async for topic in call.slices.each(request.topics)
    ]
    protocol, brokers = call.context.config.protocol, call.context.brokers.all()
    nodes = [
        quorum_wire.Node(at.node_id, (quorum_wire.Listener(protocol, at.host, at.port),))
        for at in brokers
    ]
    is_about_metadata = any(metadata in topic.partitions for topic in topics)
    return quorum_wire.Response(
        error_message="", topics=topics, nodes=nodes if is_about_metadata else ()
    )


async def unregister(call: KafkaCall, request: unregister_wire.Request) -> unregister_wire.Response:
    """Remove a stopped node. A node with replicas is rejected, because partitions wait for it."""
    check_cluster(call, permissions.Operation.ALTER)
    try:
        await call.context.cluster.unregister(request.broker_id)
    except NotFound as error:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, str(error)) from None
    except API_ERRORS as error:
        raise api_error(error) from None
    return unregister_wire.Response(error_message=None)


class Feature(NamedTuple):
    lowest: int  # lowest level that clients may use
    level: int  # current level, also the highest


_FEATURES: Final[Mapping[str, Feature]] = {
    "group.version": Feature(1, 1),  # consumer groups of KIP-848
    "share.version": Feature(1, 1),  # share groups
    _STREAMS: Feature(1, 1),  # streams groups
    # At level 2, clients raise their epoch with every transaction, and brokers add partitions to
    # transactions. Older clients use level 1.
    "transaction.version": Feature(1, 2),
}


def features(context: KafkaContext) -> Mapping[str, Feature]:
    """Return the features by name, with streams groups once all nodes support them."""
    if context.level() >= STREAMS_GROUPS:
        return _FEATURES
    return {name: feature for name, feature in _FEATURES.items() if name != _STREAMS}


async def update_features(
    call: KafkaCall, request: features_wire.Request
) -> features_wire.Response:
    """Accept only the current levels, because each version of the server has fixed levels."""
    check_cluster(call, permissions.Operation.ALTER)
    known = features(call.context)
    async for update in call.slices.each(request.feature_updates):
        feature, reason = known.get(update.feature), None
        if feature is None:
            names = ", ".join(known)
            reason = f"Unknown feature {update.feature[:100]!r}: use one of {names}."
        elif update.max_version_level != feature.level:
            reason = (
                f"{update.feature} is at level {feature.level} and cannot be set to"
                f" {update.max_version_level}: this version of the server has no other level."
            )
        if reason is not None:
            raise ApiError(ErrorCode.INVALID_UPDATE_VERSION, reason)
    return features_wire.Response(
        error_message=None,
        results=[
            features_wire.UpdatableFeatureResult(update.feature, error_message=None)
            async for update in call.slices.each(request.feature_updates)
        ],
    )


async def describe_log_dirs(
    call: KafkaCall, request: describe_wire.Request
) -> describe_wire.Response:
    """Return the replicas on this node, their sizes and how far they are behind their leaders."""
    context = call.context
    check_cluster(call, permissions.Operation.DESCRIBE)
    wanted = None
    if request.topics is not None:
        wanted = ((each.topic, each.partitions) for each in request.topics)
    topics = []
    async for topic, indexes in call.slices.each(topics_chosen(context, wanted)):
        if not permissions.reaches_topic(call, permissions.Operation.DESCRIBE, topic):
            continue  # left out, as a topic that does not exist
        partitions = []
        async for index in call.slices.each(indexes):
            replica = None
            if has_partition(topic, index):
                replica = await context.cluster.replica(topic, index)
            if replica is not None:
                partitions.append(describe_wire.DescribeLogDirsPartition(index, *replica))
        if partitions:
            topics.append(describe_wire.DescribeLogDirsTopic(topic.name, partitions))
    total_bytes, usable_bytes = await asyncio.to_thread(context.volume)
    result = describe_wire.DescribeLogDirsResult(
        log_dir=context.config.log_dir,
        topics=topics,
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )
    return describe_wire.Response(results=(result,))


async def alter_log_dirs(call: KafkaCall, request: alter_wire.Request) -> alter_wire.Response:
    """Accept only the folder that a replica is already in, because a node has one data folder."""
    is_allowed = permissions.on_cluster(call, permissions.Operation.ALTER)
    here = call.context.config.log_dir.rstrip("/")
    results = []
    for folder in request.dirs:
        async for named in call.slices.each(folder.topics):
            topic, partitions = find_name(call.context, named.name), []
            async for index in call.slices.each(named.partitions):
                code = ErrorCode.NONE
                if not is_allowed:
                    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                elif folder.path.rstrip("/") != here:
                    code = ErrorCode.LOG_DIR_NOT_FOUND
                elif topic is None or not has_partition(topic, index):
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif await call.context.cluster.replica(topic, index) is None:
                    code = ErrorCode.REPLICA_NOT_AVAILABLE
                partitions.append(alter_wire.AlterReplicaLogDirPartitionResult(index, code))
            results.append(alter_wire.AlterReplicaLogDirTopicResult(named.name, partitions))
    return alter_wire.Response(results=results)
