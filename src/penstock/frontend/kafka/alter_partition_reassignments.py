"""AlterPartitionReassignments: move partitions to given nodes, or cancel their moves. The first
node of a list is the preferred leader. Moves go on after the reply; ListPartitionReassignments
shows them.

A list of another length than before changes the replication factor of that partition. Fewer
replicas than must be in sync (min.insync.replicas) are rejected: nothing could be written then."""

from collections.abc import Mapping

import msgspec

from penstock.frontend.kafka.assignments import check_replicas, invalid
from penstock.frontend.kafka.cluster_port import Reassigned
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.named import check_has_replicas, check_partition
from penstock.frontend.kafka.permissions import Operation, on_cluster
from penstock.frontend.kafka.refusal import REFUSALS, Refusal, refusal_of
from penstock.frontend.kafka.topics import find_name
from penstock.model.errors import InvalidRequest, NotFound
from penstock.model.replication import MANUAL, PLACEMENT, factor_of, is_manual, with_factors
from penstock.model.topic import Topic
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
Moves = Mapping[tuple[str, int], Reassigned]


async def run(
    context: KafkaContext, call: KafkaCall, asked: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    if not on_cluster(context, call, Operation.ALTER):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return AlterPartitionReassignmentsResponse(error_code=code, error_message=code.message)
    moves = await context.cluster.moves() if asked.topics else {}
    is_factor_fixed = not asked.allow_replication_factor_change
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=asked.allow_replication_factor_change,
        error_message=None,
        responses=[
            await _altered(context, call, topic, moves, is_factor_fixed=is_factor_fixed)
            async for topic in call.slices.each(asked.topics)
        ],
    )


async def _altered(
    context: KafkaContext,
    call: KafkaCall,
    named: ReassignableTopic,
    moves: Moves,
    *,
    is_factor_fixed: bool,
) -> ReassignableTopicResponse:
    found = find_name(context, named.name)
    results = []
    async for wanted in call.slices.each(named.partitions):
        index = wanted.partition_index
        try:
            topic = check_partition(found, index)
            check_has_replicas(topic)
            move = moves.get((topic.topic_id, index))
            if wanted.replicas is None:
                await _cancel(context, topic, index)
            else:
                count = _count(context, topic, index, move)
                if is_factor_fixed and len(wanted.replicas) != count:
                    raise _factor_changed(count, len(wanted.replicas))
                await _move(context, topic, wanted)
            results.append(ReassignablePartitionResponse(index, error_message=None))
        except REFUSALS as error:
            refusal = refusal_of(error)
            results.append(ReassignablePartitionResponse(index, refusal.code, refusal.message))
    return ReassignableTopicResponse(named.name, results)


def _count(context: KafkaContext, topic: Topic, index: int, move: Reassigned | None) -> int:
    """The number of replicas without the move that may be under way."""
    if move is not None:
        return len(move.replicas) - len(move.adding)
    return len(context.brokers.place(topic, index).replicas)


def _factor_changed(before: int, after: int) -> Refusal:
    return Refusal(
        ErrorCode.INVALID_REPLICATION_FACTOR,
        f"The replication factor is changed from {before} to {after}, and the request does not "
        "allow that.",
    )


async def _move(context: KafkaContext, topic: Topic, wanted: ReassignablePartition) -> None:
    replicas, index = wanted.replicas or (), wanted.partition_index
    holding = context.brokers.place(topic, index).replicas
    check_replicas(replicas, {*context.cluster.nodes, *holding})
    try:
        await context.cluster.move(topic, index, replicas)
    except InvalidRequest as error:
        raise invalid(str(error)) from None
    await _note(context, topic, {index: len(replicas)}, is_assigned=True)


async def _cancel(context: KafkaContext, topic: Topic, index: int) -> None:
    try:
        count = await context.cluster.cancel_move(topic, index)
    except NotFound:
        raise Refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS) from None
    await _note(context, topic, {index: count}, is_assigned=False)


async def _note(
    context: KafkaContext, topic: Topic, counts: Mapping[int, int], *, is_assigned: bool
) -> None:
    """The manager gives a partition as many replicas as its topic says, and moves it unless the
    topic says otherwise: so the topic says it."""
    default = context.config.replicas_default

    def change(topic: Topic) -> Topic:
        changed = with_factors(topic, counts, default)
        if not is_assigned:
            return changed
        return msgspec.structs.replace(changed, configs={**changed.configs, PLACEMENT: MANUAL})

    now = context.catalog.find_id(topic.topic_id)
    if context.joined is None or now is None:
        return
    is_right = all(factor_of(now, at, default) == count for at, count in counts.items())
    if not is_right or (is_assigned and not is_manual(now)):
        await context.catalog.change(topic.account, topic.region, topic.name, change)


ACTION = KafkaAction(KEY, run)
