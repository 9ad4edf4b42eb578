"""Handles DescribeProducers, DescribeTransactions, ListTransactions and WriteTxnMarkers, with which
operators end hanging transactions."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from msgspec.structs import astuple

from penstock.cursor.coordinator_calls import DescribeTransaction, ListTransactions
from penstock.cursor.patterns.pattern import InvalidPattern, Pattern
from penstock.cursor.transaction_values import TxnState, TxnValue
from penstock.frontend.kafka import checks
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import API_ERRORS, error_fields, invalid_request, partition_code
from penstock.frontend.kafka.offsets_view import log_of
from penstock.frontend.kafka.permissions import Operation, on_cluster, on_topic, on_transaction
from penstock.frontend.kafka.transactions.producers import transactional_code
from penstock.model.calls import AppendMarker, IsInTransaction, Producers
from penstock.model.errors import NotLeader, PenstockError
from penstock.model.names import OFFSETS_TOPIC, is_internal
from penstock.model.ports import Marker
from penstock.model.topic import Topic
from penstock.net.slices import portions
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import describe_producers as producers_wire
from penstock.wire.kafka.generated import describe_transactions as describe_wire
from penstock.wire.kafka.generated import list_transactions as list_wire
from penstock.wire.kafka.generated import write_txn_markers as marker_wire

STATE_NAMES: Final[Mapping[TxnState, str]] = {
    state: "".join(word.capitalize() for word in state.name.split("_")) for state in TxnState
}
# States of Apache Kafka that tools may filter by. Penstock never uses them.
OTHER_NAMES: Final = frozenset(("Dead", "PrepareEpochFence"))
_EPOCH_RAISED_FROM: Final = 2  # transaction version


async def producers(call: KafkaCall, request: producers_wire.Request) -> producers_wire.Response:
    """Return the producers that write to a partition, and the first offsets of their open
    transactions. The timestamp of a producer is the time of its last batch in the partition or,
    after a restart without a snapshot, the time of the restart."""
    # A partition may have very many producers, so a request must not name it more than once.
    described: set[tuple[str, int]] = set()

    async def reply(named: Any, index: int) -> producers_wire.PartitionResponse:
        try:
            if (named.name, index) in described:
                raise invalid_request("The request names this partition more than once.")
            described.add((named.name, index))
            checks.check_topic(call, Operation.READ, named.name)
            topic = checks.check_partition(checks.find_name(call.context, named.name), index)
            found = await _producers(call.context, log_of(call.context, topic), index)
            return producers_wire.PartitionResponse(index, 0, None, found)
        except API_ERRORS as error:
            return producers_wire.PartitionResponse(index, **error_fields(error))

    topics = await call.by_topic(request.topics, producers_wire.TopicResponse, reply)
    return producers_wire.Response(topics=topics)


async def _producers(
    context: KafkaContext, topic: Topic, index: int
) -> list[producers_wire.ProducerState]:
    """Return the producers of a partition. Followers reply too: tools query every replica."""
    try:
        found = await context.broker.call(Producers(topic, index))
    except NotLeader:
        followed = await context.cluster.followed_producers(topic, index)
        if followed is None:
            raise
        found = followed
    return [producers_wire.ProducerState(*astuple(seen)) for seen in found]  # fields are the same


async def describe(call: KafkaCall, request: describe_wire.Request) -> describe_wire.Response:
    kind, states = describe_wire.TransactionState, []
    async for each in call.slices.each(dict.fromkeys(request.transactional_ids)):
        if not on_transaction(call, Operation.DESCRIBE, each):
            states.append(kind(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, each))
            continue
        if not each:
            states.append(kind(ErrorCode.INVALID_REQUEST))
            continue
        code, found = await call.context.transactions.call(DescribeTransaction(each))
        if found is None:
            states.append(kind(code, each))
            continue
        state, topics = STATE_NAMES[found.state], await _topics(call, found)
        times = (found.timeout_ms, found.started_at_ms)
        states.append(kind(code, each, state, *times, found.producer_id, found.epoch, topics))
    return describe_wire.Response(transaction_states=states)


async def _topics(call: KafkaCall, found: TxnValue) -> list[describe_wire.TopicData]:
    """Return the transaction's partitions, without topics that the caller may not describe."""
    by_name: dict[str, list[int]] = {}
    async for topic_id, partition in call.slices.each(found.partitions):
        name = OFFSETS_TOPIC  # Kafka's name for the topic of groups
        if not is_internal(topic_id):
            topic = call.context.catalog.find_id(topic_id)
            if topic is None or topic.account != call.context.account:
                continue
            name = topic.name
            if not on_topic(call, Operation.DESCRIBE, name, topic):
                continue
        by_name.setdefault(name, []).append(partition)
    return [describe_wire.TopicData(name, partitions) for name, partitions in by_name.items()]


async def list_transactions(call: KafkaCall, request: list_wire.Request) -> list_wire.Response:
    """Return the transactional ids that the caller may describe, filtered by state, producer, time
    since the transaction began (from version 1 on) and a pattern (from version 2 on)."""
    known = OTHER_NAMES.union(STATE_NAMES.values())
    unknown = [name for name in request.state_filters if name not in known]
    pattern: Pattern | None = None
    if request.transactional_id_pattern:
        try:
            pattern = Pattern(request.transactional_id_pattern)
        except InvalidPattern:
            return list_wire.Response(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    code, found = await call.context.transactions.call(ListTransactions())
    if code:
        return list_wire.Response(error_code=code)
    now_ms = call.context.clock.wall_ms()
    return list_wire.Response(
        unknown_state_filters=unknown,
        transaction_states=[
            list_wire.TransactionState(transactional_id, txn.producer_id, STATE_NAMES[txn.state])
            async for transactional_id, txn in call.slices.each(found.items())
            if _is_wanted(request, txn, now_ms)
            and (pattern is None or await _is_matched(call, pattern, transactional_id))
            and on_transaction(call, Operation.DESCRIBE, transactional_id)
        ],
    )


async def _is_matched(call: KafkaCall, pattern: Pattern, transactional_id: str) -> bool:
    steps = pattern.steps(transactional_id)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bool(end.value)
        await call.slices.next()


def _is_wanted(request: list_wire.Request, txn: TxnValue, now_ms: int) -> bool:
    states, producers = request.state_filters, request.producer_id_filters
    if states and STATE_NAMES[txn.state] not in states:
        return False
    if producers and txn.producer_id not in producers:
        return False
    shortest_ms, since_ms = request.duration_filter, txn.started_at_ms
    return shortest_ms < 0 or (since_ms >= 0 and now_ms - since_ms > shortest_ms)


async def write_markers(call: KafkaCall, request: marker_wire.Request) -> marker_wire.Response:
    """Write markers that end transactions in partitions, without their coordinator.

    A marker is rejected if a newer producer or coordinator has taken over. In transaction version 2
    the epoch is raised with each transaction, so a marker with the epoch of an open transaction was
    meant for the previous transaction. It comes too late and is rejected as well."""
    may_write = on_cluster(call, Operation.ALTER) or on_cluster(call, Operation.CLUSTER_ACTION)
    kind, results = marker_wire.WritableTxnMarkerTopicResult, []
    # One marker after the other: two may be for the same producer.
    async for marker in call.slices.each(request.markers):
        places = {
            (topic.name, index): checks.find_name(call.context, topic.name)
            async for topic in call.slices.each(marker.topics if may_write else ())
            for index in topic.partition_indexes
        }
        code_at: dict[tuple[str, int], ErrorCode] = {}
        async for some in call.slices.each(portions(list(places.items()))):
            codes = await asyncio.gather(
                *(_write(call.context, marker, topic, index) for (_, index), topic in some)
            )
            code_at.update(zip((place for place, _ in some), codes, strict=True))
        topics = await call.by_topic(marker.topics, kind, partial(_written, code_at))
        results.append(marker_wire.WritableTxnMarkerResult(marker.producer_id, topics))
    return marker_wire.Response(results)


async def _written(code_at: Mapping[tuple[str, int], ErrorCode], topic: Any, index: int) -> Any:
    code = code_at.get((topic.name, index), ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return marker_wire.WritableTxnMarkerPartitionResult(index, code)


async def _write(
    context: KafkaContext, requested: marker_wire.WritableTxnMarker, topic: Topic | None, index: int
) -> ErrorCode:
    code = transactional_code(topic, index)
    if code or topic is None:
        return code
    producer_id, epoch = requested.producer_id, requested.producer_epoch
    if producer_id < 0:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if epoch < 0:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    marker = Marker(
        producer_id=producer_id,
        producer_epoch=epoch,
        is_commit=requested.transaction_result,
        coordinator_epoch=requested.coordinator_epoch,
    )
    try:
        if requested.transaction_version >= _EPOCH_RAISED_FROM and await context.broker.call(
            IsInTransaction(topic, index, producer_id, epoch)
        ):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        await context.broker.call(AppendMarker(topic, index, marker))
    except PenstockError as error:
        return partition_code(error)
    return ErrorCode.NONE
