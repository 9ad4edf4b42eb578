"""ListTransactions: all transactional ids that the caller may describe, filtered by state, by
producer, by how long a transaction has been open (version 1) and by a pattern (version 2)."""

from penstock.cursor.group.pattern import Pattern
from penstock.cursor.group.pattern_syntax import InvalidPattern
from penstock.cursor.transactions import TxnValue
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_transaction
from penstock.frontend.kafka.transaction_states import OTHER_NAMES, STATE_NAMES
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

KEY = 66


async def run(
    context: KafkaContext, call: KafkaCall, asked: ListTransactionsRequest
) -> ListTransactionsResponse:
    known = OTHER_NAMES.union(STATE_NAMES.values())
    unknown = [name for name in asked.state_filters if name not in known]
    pattern: Pattern | None = None
    if asked.transactional_id_pattern:
        try:
            pattern = Pattern(asked.transactional_id_pattern)
        except InvalidPattern:
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    code, found = await context.transactions.all_ids()
    if code:
        return ListTransactionsResponse(error_code=code)
    now_ms = context.clock.wall_ms()
    return ListTransactionsResponse(
        unknown_state_filters=unknown,
        transaction_states=[
            TransactionState(transactional_id, txn.producer_id, STATE_NAMES[txn.state])
            async for transactional_id, txn in call.slices.each(found.items())
            if _is_wanted(asked, txn, now_ms)
            and (pattern is None or await _is_matched(call, pattern, transactional_id))
            and on_transaction(context, call, Operation.DESCRIBE, transactional_id)
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


def _is_wanted(asked: ListTransactionsRequest, txn: TxnValue, now_ms: int) -> bool:
    if asked.state_filters and STATE_NAMES[txn.state] not in asked.state_filters:
        return False
    if asked.producer_id_filters and txn.producer_id not in asked.producer_id_filters:
        return False
    if asked.duration_filter < 0:
        return True
    return txn.started_at_ms >= 0 and now_ms - txn.started_at_ms > asked.duration_filter


ACTION = KafkaAction(KEY, run)
