"""AlterPartitionReassignments and ListPartitionReassignments, which move partitions to given nodes,
and ElectLeaders.

The first node in a list of replicas is the preferred leader. Moves continue after the reply. A list
with more or fewer nodes than before changes the replication factor of the partition. Fewer replicas
than ``min.insync.replicas`` are rejected, because producers could not write then."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from penstock.frontend.kafka import checks
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import API_ERRORS, ApiError, error_fields
from penstock.frontend.kafka.permissions import Operation, on_cluster
from penstock.frontend.kafka.ports.cluster import NO_LEADER, Election, Reassigned
from penstock.model.errors import InvalidRequest, NotFound
from penstock.model.replication import (
    FACTOR_MAX,
    MANUAL,
    PLACEMENT,
    factor_of,
    is_manual,
    with_factors,
)
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import alter_partition_reassignments as alter_wire
from penstock.wire.kafka.generated import elect_leaders as elect_wire
from penstock.wire.kafka.generated import list_partition_reassignments as list_wire

Moves = Mapping[tuple[str, int], Reassigned]
PREFERRED, UNCLEAN = ELECTION_TYPES = (0, 1)


def check_replicas(replicas: Sequence[int], nodes: Collection[int]) -> None:
    """Raise ApiError unless ``replicas`` has at least one node and only different live nodes."""
    if not 1 <= len(replicas) <= FACTOR_MAX:
        raise invalid(f"A partition must have 1 to {FACTOR_MAX} replicas, not {len(replicas)}.")
    seen: set[int] = set()
    for node in replicas:
        if node in seen:
            raise invalid(f"Node {node} is in the list of replicas more than once.")
        if node not in nodes:
            raise invalid(f"Node {node} does not exist or is stopped. Nodes: {sorted(nodes)}.")
        seen.add(node)


def check_lists(lists: Sequence[Sequence[int]], nodes: Collection[int], *, factor: int) -> None:
    for replicas in lists:
        check_replicas(replicas, nodes)
        if len(replicas) != factor:
            raise invalid(f"A partition has {len(replicas)} replicas but must have {factor}.")


def invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


async def reassign(call: KafkaCall, request: alter_wire.Request) -> alter_wire.Response:
    checks.check_cluster(call, Operation.ALTER)
    moves = await call.context.cluster.moves() if request.topics else {}
    is_factor_fixed = not request.allow_replication_factor_change
    return alter_wire.Response(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=[
            await _altered(call, topic, moves, is_factor_fixed=is_factor_fixed)
            async for topic in call.slices.each(request.topics)
        ],
    )


async def _altered(
    call: KafkaCall, named: alter_wire.ReassignableTopic, moves: Moves, *, is_factor_fixed: bool
) -> alter_wire.ReassignableTopicResponse:
    context = call.context
    found = checks.find_name(context, named.name)
    results = []
    async for wanted in call.slices.each(named.partitions):
        index = wanted.partition_index
        fields: dict[str, Any] = {"error_message": None}
        try:
            topic = checks.check_partition(found, index)
            checks.check_has_replicas(topic)
            if wanted.replicas is None:
                await _cancel(context, topic, index)
            else:
                # The number of replicas before the current move, if there is one:
                count = len(context.brokers.place(topic, index).replicas)
                move = moves.get((topic.topic_id, index))
                if move is not None:
                    count = len(move.replicas) - len(move.adding)
                if is_factor_fixed and len(wanted.replicas) != count:
                    raise ApiError(
                        ErrorCode.INVALID_REPLICATION_FACTOR,
                        f"The replication factor is changed from {count} to"
                        f" {len(wanted.replicas)}, and the request does not allow that.",
                    )
                await _move(context, topic, index, wanted.replicas)
        except API_ERRORS as error:
            fields = error_fields(error)
        results.append(alter_wire.ReassignablePartitionResponse(index, **fields))
    return alter_wire.ReassignableTopicResponse(named.name, results)


async def _move(context: KafkaContext, topic: Topic, index: int, replicas: Sequence[int]) -> None:
    holding = context.brokers.place(topic, index).replicas
    check_replicas(replicas, {*context.cluster.nodes, *holding})
    try:
        await context.cluster.move(topic, index, replicas)
    except InvalidRequest as error:
        raise invalid(str(error)) from None
    await _note(context, topic, index, len(replicas), is_assigned=True)


async def _cancel(context: KafkaContext, topic: Topic, index: int) -> None:
    try:
        count = await context.cluster.cancel_move(topic, index)
    except NotFound:
        raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS) from None
    await _note(context, topic, index, count, is_assigned=False)


async def _note(
    context: KafkaContext, topic: Topic, index: int, count: int, *, is_assigned: bool
) -> None:
    """Store the replication factor and manual placement in the topic, for the manager."""
    default = context.config.replicas_default

    def change(topic: Topic) -> Topic:
        changed = with_factors(topic, {index: count}, default)
        if not is_assigned:
            return changed
        return msgspec.structs.replace(changed, configs={**changed.configs, PLACEMENT: MANUAL})

    now = context.catalog.find_id(topic.topic_id)
    if context.joined is None or now is None:
        return
    is_right = factor_of(now, index, default) == count
    if not is_right or (is_assigned and not is_manual(now)):
        await context.catalog.change(topic.account, topic.region, topic.name, change)


async def list_moves(call: KafkaCall, request: list_wire.Request) -> list_wire.Response:
    checks.check_cluster(call, Operation.DESCRIBE)
    moves = await call.context.cluster.moves()
    moving = {topic_id for topic_id, _ in moves}
    wanted = None
    if request.topics is not None:
        wanted = ((each.name, each.partition_indexes) for each in request.topics)
    topics = []
    async for topic, indexes in call.slices.each(checks.topics_chosen(call.context, wanted)):
        if topic.topic_id not in moving:
            continue
        found = [
            list_wire.OngoingPartitionReassignment(index, *moves[topic.topic_id, index])
            async for index in call.slices.each(indexes)
            if (topic.topic_id, index) in moves
        ]
        if found:
            topics.append(list_wire.OngoingTopicReassignment(topic.name, found))
    return list_wire.Response(error_message=None, topics=topics)


async def elect(call: KafkaCall, request: elect_wire.Request) -> elect_wire.Response:
    """Make the preferred replica of each partition its leader. If no in-sync replica is alive, an
    unclean election makes any live replica the leader; records that it lacks are lost."""
    code, is_unclean = ErrorCode.NONE, request.election_type == UNCLEAN
    if not on_cluster(call, Operation.ALTER):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    elif request.election_type not in ELECTION_TYPES:
        code = ErrorCode.INVALID_REQUEST
    if request.topic_partitions is None and not code:
        results = await _of_all(call, is_unclean=is_unclean)
    else:
        # Errors are repeated for each partition: version 0 has no field for the whole request.
        results = [
            elect_wire.ReplicaElectionResult(
                named.topic,
                [
                    elect_wire.PartitionResult(index, code, code.message)
                    if code
                    else await _elected(call.context, named.topic, index, is_unclean=is_unclean)
                    async for index in call.slices.each(named.partitions)
                ],
            )
            async for named in call.slices.each(request.topic_partitions or ())
        ]
    return elect_wire.Response(error_code=code, replica_election_results=results)


async def _of_all(call: KafkaCall, *, is_unclean: bool) -> list[elect_wire.ReplicaElectionResult]:
    """Elect leaders in all partitions that need it. Return only the results of these partitions."""
    results = []
    async for topic, indexes in call.slices.each(checks.topics_chosen(call.context, None)):
        found = []
        async for index in call.slices.each(indexes):
            at = call.context.brokers.place(topic, index)
            if at.leader != NO_LEADER if is_unclean else at.leader in at.replicas[:1]:
                continue  # the partition has the right leader, as far as this node knows
            result = await _elected(call.context, topic.name, index, is_unclean=is_unclean)
            if result.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                found.append(result)
        if found:
            results.append(elect_wire.ReplicaElectionResult(topic.name, found))
    return results


async def _elected(
    context: KafkaContext, name: str, index: int, *, is_unclean: bool
) -> elect_wire.PartitionResult:
    try:
        topic = checks.check_partition(checks.find_name(context, name), index)
        checks.check_has_replicas(topic)
        outcome = await context.cluster.elect(topic, index, is_unclean=is_unclean)
    except API_ERRORS as error:
        return elect_wire.PartitionResult(index, **error_fields(error))
    if outcome is Election.DONE:
        return elect_wire.PartitionResult(index, error_message=None)
    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    if outcome is Election.NOT_NEEDED:
        code = ErrorCode.ELECTION_NOT_NEEDED
    elif is_unclean:
        code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    return elect_wire.PartitionResult(index, code, code.message)
