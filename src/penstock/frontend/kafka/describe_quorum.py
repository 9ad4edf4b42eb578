"""DescribeQuorum: who manages the cluster, shown as Kafka shows the leader of its metadata log. The
metadata is in a store of its own, so all nodes are voters that have read up to the same revision
of the store."""

from collections.abc import Sequence

from penstock.frontend.kafka.cluster_port import Quorum
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_cluster
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import describe_quorum as codec

KEY = 55
METADATA_TOPIC = "__cluster_metadata"


async def run(
    context: KafkaContext, call: KafkaCall, asked: codec.DescribeQuorumRequest
) -> codec.DescribeQuorumResponse:
    if not on_cluster(context, call, Operation.DESCRIBE):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return codec.DescribeQuorumResponse(error_code=code, error_message=code.message)
    metadata = _metadata(context.cluster.quorum())
    topics = [
        codec.DescribeQuorumResponseTopicData(
            topic.topic_name,
            [
                metadata
                if (topic.topic_name, one.partition_index) == (METADATA_TOPIC, 0)
                else _unknown(one.partition_index)
                async for one in call.slices.each(topic.partitions)
            ],
        )
        async for topic in call.slices.each(asked.topics)
    ]
    is_about_metadata = any(metadata in topic.partitions for topic in topics)
    return codec.DescribeQuorumResponse(
        error_message="", topics=topics, nodes=_nodes(context) if is_about_metadata else ()
    )


def _metadata(quorum: Quorum) -> codec.DescribeQuorumResponsePartitionData:
    return codec.DescribeQuorumResponsePartitionData(
        partition_index=0,
        error_message="",
        leader_id=quorum.leader,
        leader_epoch=quorum.epoch,
        high_watermark=quorum.revision,
        current_voters=[
            codec.ReplicaState(replica_id=node, log_end_offset=quorum.revision)
            for node in quorum.nodes
        ],
    )


def _unknown(index: int) -> codec.DescribeQuorumResponsePartitionData:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return codec.DescribeQuorumResponsePartitionData(index, code, code.message)


def _nodes(context: KafkaContext) -> Sequence[codec.Node]:
    return [
        codec.Node(at.node_id, (codec.Listener(context.config.protocol, at.host, at.port),))
        for at in context.brokers.all()
    ]


ACTION = KafkaAction(KEY, run)
