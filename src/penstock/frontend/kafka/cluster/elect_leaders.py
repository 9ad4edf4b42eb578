"""ElectLeaders: make the preferred replica of partitions the leader, or, by an unclean election,
any replica that is alive where no in-sync replica is: records that it does not have are lost."""

from penstock.frontend.kafka.checks import check_has_replicas, check_partition
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import API_ERRORS, error_fields
from penstock.frontend.kafka.permissions import Operation, on_cluster
from penstock.frontend.kafka.ports.brokers import NO_LEADER, Place
from penstock.frontend.kafka.ports.cluster import Election
from penstock.frontend.kafka.topic_lookup import find_name
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import elect_leaders as wire

PREFERRED, UNCLEAN = ELECTION_TYPES = (0, 1)


async def run(call: KafkaCall, request: wire.Request) -> wire.Response:
    if not on_cluster(call, Operation.ALTER):
        return await _refused(call, request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if request.election_type not in ELECTION_TYPES:
        return await _refused(call, request, ErrorCode.INVALID_REQUEST)
    is_unclean = request.election_type == UNCLEAN
    if request.topic_partitions is None:
        results = await _of_all(call, is_unclean=is_unclean)
    else:
        results = [
            wire.ReplicaElectionResult(
                named.topic,
                [
                    await _elected(call.context, named.topic, index, is_unclean=is_unclean)
                    async for index in call.slices.each(named.partitions)
                ],
            )
            async for named in call.slices.each(request.topic_partitions)
        ]
    return wire.Response(replica_election_results=results)


async def _of_all(call: KafkaCall, *, is_unclean: bool) -> list[wire.ReplicaElectionResult]:
    """The reply contains only partitions that needed an election."""
    results = []
    topics = list(call.context.catalog.topics(call.context.account, call.context.config.region))
    async for topic in call.slices.each(topics):
        found = []
        async for index in call.slices.each(range(topic.partition_count)):
            place = call.context.brokers.place(topic, index)
            if _has_leader(place, is_unclean=is_unclean):
                continue  # as far as this node knows
            result = await _elected(call.context, topic.name, index, is_unclean=is_unclean)
            if result.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                found.append(result)
        if found:
            results.append(wire.ReplicaElectionResult(topic.name, found))
    return results


async def _refused(call: KafkaCall, request: wire.Request, code: ErrorCode) -> wire.Response:
    """Report the error for each partition as well: version 0 has no other field."""
    return wire.Response(
        error_code=code,
        replica_election_results=[
            wire.ReplicaElectionResult(
                named.topic,
                [
                    wire.PartitionResult(one, code, code.message)
                    async for one in call.slices.each(named.partitions)
                ],
            )
            async for named in call.slices.each(request.topic_partitions or ())
        ],
    )


async def _elected(
    context: KafkaContext, name: str, index: int, *, is_unclean: bool
) -> wire.PartitionResult:
    try:
        topic = check_partition(find_name(context, name), index)
        check_has_replicas(topic)
        outcome = await context.cluster.elect(topic, index, is_unclean=is_unclean)
    except API_ERRORS as error:
        return wire.PartitionResult(index, **error_fields(error))
    code = _code(outcome, is_unclean=is_unclean)
    return wire.PartitionResult(index, code, code.message if code else None)


def _has_leader(place: Place, *, is_unclean: bool) -> bool:
    if is_unclean:
        return place.leader != NO_LEADER
    return place.leader in place.replicas[:1]


def _code(outcome: Election, *, is_unclean: bool) -> ErrorCode:
    if outcome is Election.DONE:
        return ErrorCode.NONE
    if outcome is Election.NOT_NEEDED:
        return ErrorCode.ELECTION_NOT_NEEDED
    if is_unclean:
        return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
