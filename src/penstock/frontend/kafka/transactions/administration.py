"""DescribeProducers: the producer ids that write to a partition, and the first offsets of their
open transactions. Tools use it to find hanging transactions.

The timestamp is the last time that the partition got a batch of the producer; after a restart
without a snapshot it is the time of the restart.

DescribeTransactions and ListTransactions: the state of transactional ids.

WriteTxnMarkers: end transactions in partitions without their coordinator. Nodes send the
decision of a coordinator to the partitions; people use it, through tools, to abort a hanging
transaction that its coordinator has forgotten.

A marker is rejected if its producer or coordinator has been replaced. In transaction version 2 the
epoch is raised with each transaction, so a marker with the epoch of an open transaction is late,
meant for the transaction before, and is rejected too. Queues and internal topics cannot be in
transactions."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from penstock.cursor.coordinator_calls import DescribeTransaction, ListTransactions
from penstock.cursor.patterns.pattern import Pattern
from penstock.cursor.patterns.pattern_syntax import InvalidPattern
from penstock.cursor.transactions import TxnState, TxnValue
from penstock.frontend.kafka.checks import (
    check_partition,
    check_topic,
    find_name,
    has_partition,
    is_internal_topic,
)
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.frontend.kafka.errors import API_ERRORS, error_fields, invalid_request, partition_code
from penstock.frontend.kafka.offsets_view import log_of
from penstock.frontend.kafka.permissions import Operation, on_cluster, on_topic, on_transaction
from penstock.model.calls import AppendMarker, IsInTransaction, Producers
from penstock.model.errors import NotLeader, PenstockError
from penstock.model.names import OFFSETS_TOPIC, is_internal
from penstock.model.ports import Marker, ProducerSeen
from penstock.model.topic import Topic
from penstock.net.slices import portions
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import describe_producers as producers_wire
from penstock.wire.kafka.generated import describe_transactions as describe_wire
from penstock.wire.kafka.generated import list_transactions as list_wire
from penstock.wire.kafka.generated import write_txn_markers as marker_wire


async def describe_producers(
    call: KafkaCall, request: producers_wire.Request
) -> producers_wire.Response:
    # A partition may have very many producers: repeated in one request, its reply would have no
    # bound.
    described: set[tuple[str, int]] = set()
    topics = []
    async for named in call.slices.each(request.topics):
        partitions = []
        async for index in call.slices.each(named.partition_indexes):
            is_again = (named.name, index) in described
            described.add((named.name, index))
            partitions.append(await _partition(call, named.name, index, is_again=is_again))
        topics.append(producers_wire.TopicResponse(named.name, partitions))
    return producers_wire.Response(topics=topics)


async def _partition(
    call: KafkaCall, name: str, index: int, *, is_again: bool
) -> producers_wire.PartitionResponse:
    try:
        if is_again:
            raise invalid_request("The request names this partition more than once.")
        check_topic(call, Operation.READ, name)
        topic = check_partition(find_name(call.context, name), index)
        producers = await _producers(call.context, log_of(call.context, topic), index)
    except API_ERRORS as error:
        return producers_wire.PartitionResponse(index, **error_fields(error))
    return producers_wire.PartitionResponse(
        index, active_producers=[_producer(each) for each in producers]
    )


async def _producers(context: KafkaContext, topic: Topic, index: int) -> Sequence[ProducerSeen]:
    """Followers reply as well: tools ask every replica of a node."""
    try:
        return await context.broker.call(Producers(topic, index))
    except NotLeader:
        found = await context.cluster.followed_producers(topic, index)
        if found is None:
            raise
        return found


def _producer(seen: ProducerSeen) -> producers_wire.ProducerState:
    return producers_wire.ProducerState(
        producer_id=seen.producer_id,
        producer_epoch=seen.producer_epoch,
        last_sequence=seen.last_sequence,
        last_timestamp=seen.seen_at_ms,
        coordinator_epoch=seen.coordinator_epoch,
        current_txn_start_offset=seen.transaction_start,
    )


STATE_NAMES: Final[Mapping[TxnState, str]] = MappingProxyType(
    {
        TxnState.EMPTY: "Empty",
        TxnState.ONGOING: "Ongoing",
        TxnState.PREPARE_COMMIT: "PrepareCommit",
        TxnState.PREPARE_ABORT: "PrepareAbort",
        TxnState.COMPLETE_COMMIT: "CompleteCommit",
        TxnState.COMPLETE_ABORT: "CompleteAbort",
    }
)
# States of other brokers that tools may filter by; no transaction here is ever in one.
OTHER_NAMES: Final = frozenset(("Dead", "PrepareEpochFence"))


async def describe_transactions(
    call: KafkaCall, request: describe_wire.Request
) -> describe_wire.Response:
    states = [
        await _state(call, each)
        async for each in call.slices.each(dict.fromkeys(request.transactional_ids))
    ]
    return describe_wire.Response(transaction_states=states)


async def _state(call: KafkaCall, transactional_id: str) -> describe_wire.TransactionState:
    if not on_transaction(call, Operation.DESCRIBE, transactional_id):
        return describe_wire.TransactionState(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, transactional_id
        )
    if not transactional_id:
        return describe_wire.TransactionState(ErrorCode.INVALID_REQUEST)
    code, found = await call.context.transactions.call(DescribeTransaction(transactional_id))
    if found is None:
        return describe_wire.TransactionState(code, transactional_id)
    return describe_wire.TransactionState(
        code,
        transactional_id,
        STATE_NAMES[found.state],
        found.timeout_ms,
        found.started_at_ms,
        found.producer_id,
        found.epoch,
        await _topics(call, found),
    )


async def _topics(call: KafkaCall, found: TxnValue) -> list[describe_wire.TopicData]:
    """Return partitions by topic name. Deleted topics, and topics that the caller may not describe,
    are left out."""
    by_name: dict[str, list[int]] = {}
    async for topic_id, partition in call.slices.each(found.partitions):
        name = OFFSETS_TOPIC  # the topic of groups, by its name in Kafka
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
    """Return the transactional ids that the caller may describe, filtered by state, by producer, by
    how long a transaction has been open (version 1) and by a pattern (version 2)."""
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
    if request.state_filters and STATE_NAMES[txn.state] not in request.state_filters:
        return False
    if request.producer_id_filters and txn.producer_id not in request.producer_id_filters:
        return False
    if request.duration_filter < 0:
        return True
    return txn.started_at_ms >= 0 and now_ms - txn.started_at_ms > request.duration_filter


_EPOCH_RAISED_FROM: Final = 2  # transaction version


async def write_markers(call: KafkaCall, request: marker_wire.Request) -> marker_wire.Response:
    # For nodes and for administrators.
    may_write = on_cluster(call, Operation.ALTER) or on_cluster(call, Operation.CLUSTER_ACTION)
    write = _write if may_write else _refused
    # One marker after the other: two may be for the same producer.
    return marker_wire.Response(
        [await write(call, marker) async for marker in call.slices.each(request.markers)]
    )


async def _refused(
    call: KafkaCall, requested: marker_wire.WritableTxnMarker
) -> marker_wire.WritableTxnMarkerResult:
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return await _marker_result(call, requested, lambda _name, _index: code)


async def _write(
    call: KafkaCall, requested: marker_wire.WritableTxnMarker
) -> marker_wire.WritableTxnMarkerResult:
    places = {
        (topic.name, index): find_name(call.context, topic.name)
        async for topic in call.slices.each(requested.topics)
        for index in topic.partition_indexes
    }
    code_at: dict[tuple[str, int], ErrorCode] = {}
    async for some in call.slices.each(portions(list(places.items()))):
        codes = await asyncio.gather(
            *(_write_one(call.context, requested, topic, index) for (_, index), topic in some)
        )
        code_at.update(zip((place for place, _ in some), codes, strict=True))
    return await _marker_result(call, requested, lambda name, index: code_at[name, index])


async def _marker_result(
    call: KafkaCall,
    requested: marker_wire.WritableTxnMarker,
    code_at: Callable[[str, int], ErrorCode],
) -> marker_wire.WritableTxnMarkerResult:
    return marker_wire.WritableTxnMarkerResult(
        requested.producer_id,
        [
            marker_wire.WritableTxnMarkerTopicResult(
                topic.name,
                [
                    marker_wire.WritableTxnMarkerPartitionResult(index, code_at(topic.name, index))
                    async for index in call.slices.each(topic.partition_indexes)
                ],
            )
            async for topic in call.slices.each(requested.topics)
        ],
    )


async def _write_one(
    context: KafkaContext, requested: marker_wire.WritableTxnMarker, topic: Topic | None, index: int
) -> ErrorCode:
    if topic is None or not has_partition(topic, index):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic.is_queue or is_internal_topic(topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if requested.producer_id < 0:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if requested.producer_epoch < 0:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    marker = Marker(
        producer_id=requested.producer_id,
        producer_epoch=requested.producer_epoch,
        is_commit=requested.transaction_result,
        coordinator_epoch=requested.coordinator_epoch,
    )
    broker = context.broker
    try:
        if requested.transaction_version >= _EPOCH_RAISED_FROM and await broker.call(
            IsInTransaction(topic, index, requested.producer_id, requested.producer_epoch)
        ):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        await broker.call(AppendMarker(topic, index, marker))
    except PenstockError as error:
        return partition_code(error)
    return ErrorCode.NONE
