"""ElectLeaders: let the preferred replica of partitions lead, or any replica that is alive where no
other may lead: what that one does not have is lost."""

from penstock.frontend.kafka.brokers import NOBODY, Place
from penstock.frontend.kafka.cluster_port import Election
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.named import check_has_replicas, check_partition
from penstock.frontend.kafka.permissions import Operation, on_cluster
from penstock.frontend.kafka.refusal import REFUSALS, refusal_of
from penstock.frontend.kafka.topics import find_name
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

KEY = 43
PREFERRED, UNCLEAN = ELECTION_TYPES = (0, 1)


async def run(
    context: KafkaContext, call: KafkaCall, asked: ElectLeadersRequest
) -> ElectLeadersResponse:
    if not on_cluster(context, call, Operation.ALTER):
        return await _refused(call, asked, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if asked.election_type not in ELECTION_TYPES:
        return await _refused(call, asked, ErrorCode.INVALID_REQUEST)
    is_unclean = asked.election_type == UNCLEAN
    if asked.topic_partitions is None:
        results = await _of_all(context, call, is_unclean=is_unclean)
    else:
        results = [
            ReplicaElectionResult(
                named.topic,
                [
                    await _elected(context, named.topic, index, is_unclean=is_unclean)
                    async for index in call.slices.each(named.partitions)
                ],
            )
            async for named in call.slices.each(asked.topic_partitions)
        ]
    return ElectLeadersResponse(replica_election_results=results)


async def _of_all(
    context: KafkaContext, call: KafkaCall, *, is_unclean: bool
) -> list[ReplicaElectionResult]:
    """The reply names only the partitions that needed an election."""
    results = []
    topics = list(context.catalog.topics(context.account, context.config.region))
    async for topic in call.slices.each(topics):
        found = []
        async for index in call.slices.each(range(topic.partition_count)):
            place = context.brokers.place(topic, index)
            if _has_leader(place, is_unclean=is_unclean):
                continue  # as far as this node knows: that is enough to leave it out
            result = await _elected(context, topic.name, index, is_unclean=is_unclean)
            if result.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                found.append(result)
        if found:
            results.append(ReplicaElectionResult(topic.name, found))
    return results


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


async def _elected(
    context: KafkaContext, name: str, index: int, *, is_unclean: bool
) -> PartitionResult:
    try:
        topic = check_partition(find_name(context, name), index)
        check_has_replicas(topic)
        outcome = await context.cluster.elect(topic, index, is_unclean=is_unclean)
    except REFUSALS as error:
        refusal = refusal_of(error)
        return PartitionResult(index, refusal.code, refusal.message)
    code = _code(outcome, is_unclean=is_unclean)
    return PartitionResult(index, code, code.message if code else None)


def _has_leader(place: Place, *, is_unclean: bool) -> bool:
    if is_unclean:
        return place.leader != NOBODY
    return place.leader in place.replicas[:1]


def _code(outcome: Election, *, is_unclean: bool) -> ErrorCode:
    if outcome is Election.DONE:
        return ErrorCode.NONE
    if outcome is Election.NOT_NEEDED:
        return ErrorCode.ELECTION_NOT_NEEDED
    if is_unclean:
        return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


ACTION = KafkaAction(KEY, run)
