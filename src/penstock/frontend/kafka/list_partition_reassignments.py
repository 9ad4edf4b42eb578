"""ListPartitionReassignments: on one node nothing is ever on the move."""

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.wire.kafka.generated.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

KEY = 46


async def run(
    _context: KafkaContext, _call: KafkaCall, _asked: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_message=None)


ACTION = KafkaAction(KEY, run)
