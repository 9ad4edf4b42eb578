"""DescribeTransactions and ListTransactions: the state of transactional ids."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from penstock.cursor.coordinator_calls import DescribeTransaction, ListTransactions
from penstock.cursor.patterns.pattern import Pattern
from penstock.cursor.patterns.pattern_syntax import InvalidPattern
from penstock.cursor.transactions import TxnState, TxnValue
from penstock.frontend.kafka.context import KafkaCall
from penstock.frontend.kafka.permissions import Operation, on_topic, on_transaction
from penstock.model.names import OFFSETS_TOPIC, is_internal
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import describe_transactions as describe_wire
from penstock.wire.kafka.generated import list_transactions as list_wire

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


async def describe(call: KafkaCall, request: describe_wire.Request) -> describe_wire.Response:
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
