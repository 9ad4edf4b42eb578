"""AlterPartitionReassignments: on one node a partition can be told to be where it is, and there is
no move to cancel."""

from collections.abc import Iterator

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.named import check_partition
from penstock.frontend.kafka.permissions import Operation, on_cluster
from penstock.frontend.kafka.refusal import Refusal
from penstock.frontend.kafka.topics import find_name
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopic,
    ReassignableTopicResponse,
)

KEY = 45


async def run(
    context: KafkaContext, call: KafkaCall, asked: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    if not on_cluster(context, call, Operation.ALTER):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return AlterPartitionReassignmentsResponse(error_code=code, error_message=code.message)
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=asked.allow_replication_factor_change,
        error_message=None,
        responses=[
            ReassignableTopicResponse(
                topic.name, [one async for one in call.slices.each(_results(context, topic))]
            )
            async for topic in call.slices.each(asked.topics)
        ],
    )


def _results(
    context: KafkaContext, named: ReassignableTopic
) -> Iterator[ReassignablePartitionResponse]:
    topic = find_name(context, named.name)
    for wanted in named.partitions:
        try:
            check_partition(topic, wanted.partition_index)
            _check_replicas(context.config.node_id, wanted)
            yield ReassignablePartitionResponse(wanted.partition_index, error_message=None)
        except Refusal as refusal:
            yield ReassignablePartitionResponse(
                wanted.partition_index, refusal.code, refusal.message
            )


def _check_replicas(node_id: int, wanted: ReassignablePartition) -> None:
    if wanted.replicas is None:
        raise Refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    if tuple(wanted.replicas) != (node_id,):
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The one replica of a partition must be on node {node_id}.",
        )


ACTION = KafkaAction(KEY, run)
