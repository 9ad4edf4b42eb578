"""DescribeCluster, DescribeQuorum and UnregisterBroker: the nodes of the cluster."""

from penstock.frontend.kafka.checks import check_cluster
from penstock.frontend.kafka.context import KafkaCall
from penstock.frontend.kafka.errors import API_ERRORS, ApiError, api_error
from penstock.frontend.kafka.permissions import UNASKED, Operation, cluster_operations
from penstock.model.errors import NotFound
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import describe_cluster as cluster_wire
from penstock.wire.kafka.generated import describe_quorum as quorum_wire
from penstock.wire.kafka.generated import unregister_broker as unregister_wire

_BROKERS = 1
_CONTROLLERS = 2
METADATA_TOPIC = "__cluster_metadata"


async def describe(call: KafkaCall, request: cluster_wire.Request) -> cluster_wire.Response:
    """Return the nodes, which of them is the controller and, on request, stopped nodes."""
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
        cluster_authorized_operations=cluster_operations(call) if with_operations else UNASKED,
    )


async def describe_quorum(call: KafkaCall, request: quorum_wire.Request) -> quorum_wire.Response:
    """Return the manager of the cluster as Kafka shows the leader of its metadata log. The metadata
    is in a store of its own, so all nodes are voters that have read up to its revision."""
    check_cluster(call, Operation.DESCRIBE)
    quorum = call.context.cluster.quorum()
    metadata = quorum_wire.DescribeQuorumResponsePartitionData(
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
                else _unknown(one.partition_index)
                async for one in call.slices.each(topic.partitions)
            ],
        )
        async for topic in call.slices.each(request.topics)
    ]
    nodes = [
        quorum_wire.Node(
            at.node_id, (quorum_wire.Listener(call.context.config.protocol, at.host, at.port),)
        )
        for at in call.context.brokers.all()
    ]
    is_about_metadata = any(metadata in topic.partitions for topic in topics)
    return quorum_wire.Response(
        error_message="", topics=topics, nodes=nodes if is_about_metadata else ()
    )


def _unknown(index: int) -> quorum_wire.DescribeQuorumResponsePartitionData:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return quorum_wire.DescribeQuorumResponsePartitionData(index, code, code.message)


async def unregister(call: KafkaCall, request: unregister_wire.Request) -> unregister_wire.Response:
    """Remove a node that is stopped and has no replicas. A node with replicas is rejected: its
    partitions would wait for it for ever."""
    check_cluster(call, Operation.ALTER)
    try:
        await call.context.cluster.unregister(request.broker_id)
    except NotFound as error:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, str(error)) from None
    except API_ERRORS as error:
        raise api_error(error) from None
    return unregister_wire.Response(error_message=None)
