"""ElectLeaders: on one node every partition has the only leader it can have."""

from collections.abc import Iterator

from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.named import check_partition
from penstock.frontend.kafka.permissions import Operation, on_cluster
from penstock.frontend.kafka.refusal import Refusal
from penstock.frontend.kafka.topics import find_name
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)

KEY = 43
ELECTION_TYPES = (0, 1)  # preferred, unclean


async def run(
    context: KafkaContext, call: KafkaCall, asked: ElectLeadersRequest
) -> ElectLeadersResponse:
    if not on_cluster(context, call, Operation.ALTER):
        return await _refused(call, asked, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if asked.election_type not in ELECTION_TYPES:
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    # Who asks for all partitions is told only of those that needed an election.
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(
                named.topic, [one async for one in call.slices.each(_results(context, named))]
            )
            async for named in call.slices.each(asked.topic_partitions or ())
        ]
    )


async def _refused(
    call: KafkaCall, asked: ElectLeadersRequest, code: ErrorCode
) -> ElectLeadersResponse:
    """For each partition as well: the first version has no other place for it."""
    return ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            ReplicaElectionResult(
                named.topic,
                [
                    PartitionResult(one, code, code.message)
                    async for one in call.slices.each(named.partitions)
                ],
            )
            async for named in call.slices.each(asked.topic_partitions or ())
        ],
    )


def _results(context: KafkaContext, named: TopicPartitions) -> Iterator[PartitionResult]:
    topic = find_name(context, named.topic)
    for partition in named.partitions:
        code = ErrorCode.ELECTION_NOT_NEEDED
        try:
            check_partition(topic, partition)
        except Refusal as refusal:
            code = refusal.code
        yield PartitionResult(partition, code, code.message)


ACTION = KafkaAction(KEY, run)
