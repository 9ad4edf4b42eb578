"""DescribeTransactions: what transactional ids are doing, and in which partitions."""

from penstock.cursor.transactions import TxnValue
from penstock.frontend.kafka.context import KafkaAction, KafkaCall, KafkaContext
from penstock.frontend.kafka.permissions import Operation, on_topic, on_transaction
from penstock.frontend.kafka.transaction_states import STATE_NAMES
from penstock.model.names import OFFSETS_TOPIC, is_internal
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

KEY = 65


async def run(
    context: KafkaContext, call: KafkaCall, asked: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    states = [
        await _state(context, call, each)
        async for each in call.slices.each(dict.fromkeys(asked.transactional_ids))
    ]
    return DescribeTransactionsResponse(transaction_states=states)


async def _state(context: KafkaContext, call: KafkaCall, transactional_id: str) -> TransactionState:
    if not on_transaction(context, call, Operation.DESCRIBE, transactional_id):
        return TransactionState(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, transactional_id)
    if not transactional_id:
        return TransactionState(ErrorCode.INVALID_REQUEST)
    code, found = await context.transactions.describe(transactional_id)
    if found is None:
        return TransactionState(code, transactional_id)
    return TransactionState(
        code,
        transactional_id,
        STATE_NAMES[found.state],
        found.timeout_ms,
        found.started_at_ms,
        found.producer_id,
        found.epoch,
        await _topics(context, call, found),
    )


async def _topics(context: KafkaContext, call: KafkaCall, found: TxnValue) -> list[TopicData]:
    """By name; topics deleted meanwhile, and those that are none of the caller's business, are
    left out."""
    by_name: dict[str, list[int]] = {}
    async for topic_id, partition in call.slices.each(found.partitions):
        name = OFFSETS_TOPIC  # as clients know the topic that groups are in
        if not is_internal(topic_id):
            topic = context.catalog.find_id(topic_id)
            if topic is None or topic.account != context.account:
                continue
            name = topic.name
            if not on_topic(context, call, Operation.DESCRIBE, name, topic):
                continue
        by_name.setdefault(name, []).append(partition)
    return [TopicData(name, partitions) for name, partitions in by_name.items()]


ACTION = KafkaAction(KEY, run)
