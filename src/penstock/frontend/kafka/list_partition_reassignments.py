"""ListPartitionReassignments: on one node nothing is ever on the move."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_cluster
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

KEY = 46


async def run(
    context: KafkaContext, call: KafkaCall, _asked: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    if not on_cluster(context, call, Operation.DESCRIBE):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return ListPartitionReassignmentsResponse(error_code=code, error_message=code.message)
    return ListPartitionReassignmentsResponse(error_message=None)


ACTION = KafkaAction(KEY, run)
